# DualPipePython.cmake
#
# Which Python the package is built for: that of the torch package which LibTorch comes from.
#
#   dualpipe_decide_on_python()
#       Sets DUALPIPE_PYTHON_PACKAGE, and Python_EXECUTABLE where nobody has. False without DUALPIPE_BUILD_PYTHON, with a
#       LibTorch that is no part of a Python environment, under a sanitizer (an interpreter without it cannot load what
#       it instruments), and where the interpreter's headers are missing.
#
# Under scikit-build-core, which names the interpreter, TORCH_DIR is that interpreter's torch unless it is given.

if(SKBUILD AND NOT TORCH_DIR)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c
            "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0], end='')"
    OUTPUT_VARIABLE TORCH_DIR ERROR_QUIET RESULT_VARIABLE _status)
  if(NOT _status EQUAL 0)
    message(FATAL_ERROR "dualpipe is built for the torch that is installed, and ${Python_EXECUTABLE} sees none, as in "
                        "an isolated build of pip: install torch and scikit-build-core, then run "
                        "`pip install --no-build-isolation .` instead")
  endif()
endif()

# The interpreter of an environment, from the directory of its torch; "" where there is none.
function(_dualpipe_python_of_torch torch result)
  get_filename_component(prefix "${torch}/../../../.." ABSOLUTE)
  set(${result} "" PARENT_SCOPE)
  if(EXISTS "${torch}/lib/libtorch_python.so" AND EXISTS "${prefix}/bin/python")
    set(${result} "${prefix}/bin/python" PARENT_SCOPE)
  endif()
endfunction()

macro(dualpipe_decide_on_python)
  set(DUALPIPE_PYTHON_PACKAGE FALSE)
  if(DUALPIPE_BUILD_PYTHON AND NOT DUALPIPE_SANITIZE)
    if(NOT Python_EXECUTABLE)
      _dualpipe_python_of_torch("${LibTorch_DIR_FOUND}" Python_EXECUTABLE)
    endif()
    if(Python_EXECUTABLE)
      find_package(Python COMPONENTS Interpreter Development.Module)
      set(DUALPIPE_PYTHON_PACKAGE ${Python_FOUND})
    endif()
    if(NOT DUALPIPE_PYTHON_PACKAGE)
      message(STATUS "No Python package: ${LibTorch_DIR_FOUND} belongs to no Python with headers")
    endif()
  endif()
endmacro()
