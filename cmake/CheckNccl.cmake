# CheckNccl.cmake
#
# The headers that ProcessGroupNCCL needs, as dualpipe_nccl: NCCL's, and the CUDA toolkit's. NCCL's must be of the very
# version that LibTorch was built with: another one gives ProcessGroupNCCL another layout, which corrupts the heap at
# run time. They come from the nvidia-nccl wheel beside the torch wheel, or from DUALPIPE_NCCL_INCLUDE_DIR.

set(DUALPIPE_NCCL_INCLUDE_DIR "" CACHE PATH "Directory of nccl.h; empty: the nvidia-nccl wheel beside LibTorch")

# "2.30.7" from nccl.h.
function(_dualpipe_nccl_of_header directory result)
  file(STRINGS "${directory}/nccl.h" lines REGEX "define NCCL_(MAJOR|MINOR|PATCH) +[0-9]+")
  string(REGEX REPLACE "[^0-9;]" "" numbers "${lines}")
  string(REPLACE ";" "." version "${numbers}")
  set(${result} "${version}" PARENT_SCOPE)
endfunction()

# The NCCL that LibTorch was built with: as the wheel's metadata requires it, else as a LibTorch that contains NCCL says.
function(_dualpipe_nccl_of_libtorch result)
  file(GLOB metadata "${LibTorch_DIR_FOUND}/../torch-${LibTorch_VERSION}*.dist-info/METADATA")
  set(text "")
  if(metadata)
    file(STRINGS ${metadata} text REGEX "^Requires-Dist: nvidia-nccl-cu[0-9]+==" LIMIT_COUNT 1)
  endif()
  if(NOT text)
    file(STRINGS "${LibTorch_DIR_FOUND}/lib/libtorch_cuda.so" text REGEX "NCCL version [0-9.]+" LIMIT_COUNT 1)
  endif()
  string(REGEX MATCH "(==|version )([0-9]+\\.[0-9]+\\.[0-9]+)" found "${text}")
  set(${result} "${CMAKE_MATCH_2}" PARENT_SCOPE)
endfunction()

set(_nccl_include "${DUALPIPE_NCCL_INCLUDE_DIR}")
if(NOT _nccl_include)
  get_filename_component(_nccl_include "${LibTorch_DIR_FOUND}/../nvidia/nccl/include" ABSOLUTE)
endif()
if(NOT EXISTS "${_nccl_include}/nccl.h")
  message(FATAL_ERROR "NCCL's headers not found in ${_nccl_include}. Install the nvidia-nccl wheel that the torch wheel "
                      "requires (`make setup` does), or give -DDUALPIPE_NCCL_INCLUDE_DIR=<directory of nccl.h>.")
endif()

_dualpipe_nccl_of_header("${_nccl_include}" _nccl_header_version)
_dualpipe_nccl_of_libtorch(_nccl_torch_version)
if(NOT _nccl_header_version VERSION_EQUAL _nccl_torch_version)
  message(
    FATAL_ERROR
      "NCCL headers ${_nccl_header_version} in ${_nccl_include} do not match LibTorch ${LibTorch_VERSION}, which was built "
      "with NCCL ${_nccl_torch_version}: the program would corrupt its heap. Use the headers of NCCL "
      "${_nccl_torch_version}: -DDUALPIPE_NCCL_INCLUDE_DIR=<directory of nccl.h>.")
endif()
message(STATUS "NCCL headers ${_nccl_header_version}: ${_nccl_include}")

find_package(CUDAToolkit REQUIRED)
add_library(dualpipe_nccl INTERFACE)
target_include_directories(dualpipe_nccl INTERFACE "${_nccl_include}" ${CUDAToolkit_INCLUDE_DIRS})
target_compile_definitions(dualpipe_nccl INTERFACE USE_C10D_NCCL)
