# FindLibTorch.cmake
#
# LibTorch with c10d, linked directly: libtorch_cpu and libc10, and for component CUDA libtorch_cuda and libc10_cuda.
# The TorchConfig.cmake that comes with PyTorch wants a CUDA toolkit wherever the wheel is the CUDA build; this module
# does not, so the wheel from PyPI serves a machine without CUDA.
#
# Input     TORCH_DIR (variable, else environment): a wheel's site-packages/torch or an unpacked LibTorch. Where it is
#           not set: LibTorch_HINTS (a list of such directories), then the torch of the .venv beside the top project,
#           then that of the active virtual environment.
# Output    LibTorch_FOUND, LibTorch_VERSION, LibTorch_DIR_FOUND (the directory taken), LibTorch_CXX11_ABI (0 or 1)
# Targets   LibTorch::LibTorch; LibTorch::CUDA with component CUDA
#
# Required: version 2.11 or newer, built with distributed, with the libstdc++ string ABI that this project compiles for.
# Gloo's own headers come from the system (libgloo-dev); Gloo itself is inside libtorch_cpu.

set(_libtorch_minimum 2.11)

# Ends the module: LibTorch_FOUND is false, and an error if the package is required.
macro(_libtorch_fail)
  string(CONCAT LibTorch_NOT_FOUND_MESSAGE ${ARGN})
  set(LibTorch_FOUND FALSE)
  if(LibTorch_FIND_REQUIRED)
    message(FATAL_ERROR "${LibTorch_NOT_FOUND_MESSAGE}")
  endif()
  return()
endmacro()

# The torch package of a Python environment, without importing it; "" if there is none.
function(_libtorch_of_environment environment result)
  set(${result} "" PARENT_SCOPE)
  if(EXISTS "${environment}/bin/python")
    execute_process(
      COMMAND "${environment}/bin/python" -c
              "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0], end='')"
      OUTPUT_VARIABLE found ERROR_QUIET RESULT_VARIABLE status)
    if(status EQUAL 0)
      set(${result} "${found}" PARENT_SCOPE)
    endif()
  endif()
endfunction()

# Where to look: what the user names and nothing else, or the first of the defaults that exists.
function(_libtorch_locate result)
  set(named "${TORCH_DIR}")
  if(NOT named)
    set(named "$ENV{TORCH_DIR}")
  endif()
  if(named)
    get_filename_component(named "${named}" ABSOLUTE BASE_DIR "${CMAKE_SOURCE_DIR}")
    string(REGEX REPLACE "/share/cmake/Torch/?$" "" named "${named}")
    set(${result} "${named}" PARENT_SCOPE)
    return()
  endif()
  _libtorch_of_environment("${CMAKE_SOURCE_DIR}/.venv" own)
  _libtorch_of_environment("$ENV{VIRTUAL_ENV}" active)
  set(${result} "" PARENT_SCOPE)
  foreach(candidate IN LISTS LibTorch_HINTS own active)
    if(EXISTS "${candidate}/lib")
      set(${result} "${candidate}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# "2.15.0" from whichever header of this version states it.
function(_libtorch_read_version directory result)
  set(${result} "" PARENT_SCOPE)
  foreach(header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
    if(EXISTS "${directory}/include/${header}")
      file(STRINGS "${directory}/include/${header}" lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
      if(lines)
        string(REGEX REPLACE "[^0-9;]" "" numbers "${lines}")
        string(REPLACE ";" "." version "${numbers}")
        set(${result} "${version}" PARENT_SCOPE)
        return()
      endif()
    endif()
  endforeach()
endfunction()

# The value that this project's own flags give to _GLIBCXX_USE_CXX11_ABI; "" if they leave it alone.
function(_libtorch_requested_abi result)
  get_directory_property(definitions COMPILE_DEFINITIONS)
  get_directory_property(options COMPILE_OPTIONS)
  set(${result} "" PARENT_SCOPE)
  if("${CMAKE_CXX_FLAGS};${options};${definitions}" MATCHES "_GLIBCXX_USE_CXX11_ABI=([01])")
    set(${result} "${CMAKE_MATCH_1}" PARENT_SCOPE)
  endif()
endfunction()

_libtorch_locate(_libtorch_dir)
if(NOT _libtorch_dir)
  _libtorch_fail(
    "LibTorch not found: TORCH_DIR is not set, and there is no .venv with torch in ${CMAKE_SOURCE_DIR}. "
    "Run `make setup` there, or give a LibTorch ${_libtorch_minimum} or newer: -DTORCH_DIR=/path/to/site-packages/torch")
endif()
if(NOT EXISTS "${_libtorch_dir}/lib/libtorch_cpu.so" OR NOT EXISTS "${_libtorch_dir}/include/ATen/ATen.h")
  _libtorch_fail(
    "LibTorch not found in ${_libtorch_dir}: lib/libtorch_cpu.so or include/ATen/ATen.h is missing. Give TORCH_DIR the "
    "directory of an unpacked LibTorch, or that of the torch package in a Python environment, for example "
    "-DTORCH_DIR=.venv/lib/python3.11/site-packages/torch, which `make setup` installs.")
endif()

_libtorch_read_version("${_libtorch_dir}" LibTorch_VERSION)
if(LibTorch_VERSION VERSION_LESS _libtorch_minimum)
  _libtorch_fail(
    "LibTorch ${_libtorch_minimum} or newer is needed, found '${LibTorch_VERSION}' in ${_libtorch_dir}. "
    "Give TORCH_DIR a newer one, or unset it to use torch 2.15.0 from `make setup`.")
endif()

if(NOT EXISTS "${_libtorch_dir}/include/torch/csrc/distributed/c10d/ProcessGroup.hpp"
   OR NOT EXISTS "${_libtorch_dir}/include/torch/csrc/distributed/c10d/ProcessGroupGloo.hpp")
  _libtorch_fail(
    "DualPipe needs a LibTorch built with distributed: ${_libtorch_dir} (version ${LibTorch_VERSION}) lacks "
    "include/torch/csrc/distributed/c10d/ProcessGroup.hpp or ProcessGroupGloo.hpp. The wheels from PyPI have both, "
    "and a build from source needs USE_DISTRIBUTED=1 and USE_GLOO=1.")
endif()

file(STRINGS "${_libtorch_dir}/lib/libc10.so" _libtorch_cxx11_names REGEX "St7__cxx1112basic_string" LIMIT_COUNT 1)
set(LibTorch_CXX11_ABI 0)
if(_libtorch_cxx11_names)
  set(LibTorch_CXX11_ABI 1)
endif()
_libtorch_requested_abi(_libtorch_abi)
if(NOT _libtorch_abi STREQUAL "" AND NOT _libtorch_abi EQUAL LibTorch_CXX11_ABI)
  _libtorch_fail(
    "The flags of this project set _GLIBCXX_USE_CXX11_ABI=${_libtorch_abi}, but ${_libtorch_dir} was built with "
    "_GLIBCXX_USE_CXX11_ABI=${LibTorch_CXX11_ABI}, and the two do not link. Remove the flag: LibTorch::LibTorch carries the "
    "right one.")
endif()

find_path(LibTorch_GLOO_INCLUDE_DIR gloo/context.h)
if(NOT LibTorch_GLOO_INCLUDE_DIR)
  _libtorch_fail("Gloo's headers (gloo/context.h) not found. Install them: apt-get install libgloo-dev")
endif()

set(LibTorch_CUDA_FOUND FALSE)
if(EXISTS "${_libtorch_dir}/lib/libtorch_cuda.so")
  set(LibTorch_CUDA_FOUND TRUE)
endif()
if(LibTorch_FIND_REQUIRED_CUDA AND NOT LibTorch_CUDA_FOUND)
  _libtorch_fail("A CUDA build of LibTorch is needed, but ${_libtorch_dir} lacks lib/libtorch_cuda.so. Give TORCH_DIR a "
                 "CUDA build, for example the wheel from PyPI, or configure with -DDUALPIPE_WITH_CUDA=OFF.")
endif()

function(_libtorch_import name)
  if(NOT TARGET LibTorch::${name})
    add_library(LibTorch::${name} SHARED IMPORTED)
    set_target_properties(LibTorch::${name} PROPERTIES IMPORTED_LOCATION "${_libtorch_dir}/lib/lib${name}.so")
  endif()
endfunction()

find_package(Threads QUIET REQUIRED)
_libtorch_import(c10)
_libtorch_import(torch_cpu)
if(NOT TARGET LibTorch::LibTorch)
  add_library(LibTorch::LibTorch INTERFACE IMPORTED)
  # The fmt that comes with LibTorch is headers only, and comes before a system fmt on the include path.
  set_target_properties(
    LibTorch::LibTorch
    PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES
      "${_libtorch_dir}/include;${_libtorch_dir}/include/torch/csrc/api/include;${LibTorch_GLOO_INCLUDE_DIR}"
      INTERFACE_COMPILE_DEFINITIONS
      "USE_DISTRIBUTED;USE_C10D_GLOO;FMT_HEADER_ONLY=1;_GLIBCXX_USE_CXX11_ABI=${LibTorch_CXX11_ABI}"
      INTERFACE_COMPILE_FEATURES cxx_std_20
      INTERFACE_LINK_LIBRARIES "LibTorch::torch_cpu;LibTorch::c10;Threads::Threads")
endif()

# The CUDA runtime that LibTorch itself loads: the wheel beside it, a copy inside it, or the toolkit's.
function(_libtorch_cudart result)
  file(GLOB found "${_libtorch_dir}/../nvidia/*/lib/libcudart.so.*" "${_libtorch_dir}/lib/libcudart*.so*")
  if(found)
    list(GET found 0 found)
    get_filename_component(found "${found}" ABSOLUTE)
  else()
    find_package(CUDAToolkit QUIET REQUIRED)
    set(found CUDA::cudart)
  endif()
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

if(LibTorch_CUDA_FOUND AND "CUDA" IN_LIST LibTorch_FIND_COMPONENTS)
  _libtorch_cudart(_libtorch_cudart_library)
  _libtorch_import(c10_cuda)
  _libtorch_import(torch_cuda)
  if(NOT TARGET LibTorch::CUDA)
    add_library(LibTorch::CUDA INTERFACE IMPORTED)
    # libtorch_cuda registers its kernels and backends when it is loaded, also where no symbol of it is named.
    set_target_properties(
      LibTorch::CUDA
      PROPERTIES INTERFACE_LINK_OPTIONS "LINKER:--no-as-needed"
                 INTERFACE_LINK_LIBRARIES "LibTorch::LibTorch;LibTorch::torch_cuda;LibTorch::c10_cuda;${_libtorch_cudart_library}")
  endif()
endif()

set(LibTorch_DIR_FOUND "${_libtorch_dir}")
set(LibTorch_FOUND TRUE)
if(NOT LibTorch_FIND_QUIETLY)
  message(STATUS "LibTorch ${LibTorch_VERSION}: ${_libtorch_dir}")
endif()
