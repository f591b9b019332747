# DualPipeTest.cmake
#
# Tests, each with a label (pure, cpu or multiproc), a time limit (four times as long under a sanitizer) and one OpenMP
# thread. A test that starts processes of its own (multiproc) counts as two for `ctest -j`.
#
#   dualpipe_add_test(<name> LABEL <label> SOURCES <file>... [LIBS <target>...] [ARGS <arg>...] [TIMEOUT <seconds>])
#       A GoogleTest program; a main() of its own wins over gmock's. All but pure ones link LibTorch.
#   dualpipe_add_python_test(<name> LABEL <label> SCRIPT <file> [ARGS <arg>...] [TIMEOUT <seconds>])
#       A script that exits with 0, run by the checkout's .venv, or by any python3 where that does not exist.
#   dualpipe_add_pytest(<name> LABEL <label> PATHS <file or folder>... [TIMEOUT <seconds>])
#       pytest over the package that `make package` installed.

find_package(GTest REQUIRED)
if(EXISTS "${PROJECT_SOURCE_DIR}/.venv/bin/python")
  set(DUALPIPE_PYTHON "${PROJECT_SOURCE_DIR}/.venv/bin/python")
else()
  find_program(DUALPIPE_PYTHON NAMES python3 REQUIRED)
endif()

function(_dualpipe_set_test_properties name label timeout)
  if(NOT label MATCHES "^(pure|cpu|multiproc)$")
    message(FATAL_ERROR "Test ${name}: LABEL must be pure, cpu or multiproc, got '${label}'")
  endif()
  if(NOT timeout)
    set(timeout 120)
  endif()
  # LibTorch's stores ask who 127.0.0.1 is; a server of names that loses the question costs a second, not five.
  set(environment OMP_NUM_THREADS=1 "RES_OPTIONS=timeout:1 attempts:1")
  if(DUALPIPE_SANITIZE)
    # Tests that measure memory must not see freed blocks held back.
    list(APPEND environment ASAN_OPTIONS=quarantine_size_mb=1)
    math(EXPR timeout "4 * ${timeout}")
  endif()
  set_tests_properties(${name} PROPERTIES LABELS ${label} TIMEOUT ${timeout} ENVIRONMENT "${environment}")
  if(label STREQUAL "multiproc")
    set_tests_properties(${name} PROPERTIES PROCESSORS 2)
  endif()
endfunction()

function(dualpipe_add_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "LABEL;TIMEOUT" "SOURCES;LIBS;ARGS")
  set(room PURE)
  if(NOT arg_LABEL STREQUAL "pure")
    set(room TORCH)
  endif()
  dualpipe_add_program(${name} ${room} SOURCES ${arg_SOURCES} LIBS ${arg_LIBS} GTest::gmock GTest::gmock_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
  add_test(NAME ${name} COMMAND ${name} ${arg_ARGS} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  _dualpipe_set_test_properties(${name} "${arg_LABEL}" "${arg_TIMEOUT}")
endfunction()

function(dualpipe_add_python_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "LABEL;SCRIPT;TIMEOUT" "ARGS")
  get_filename_component(script "${arg_SCRIPT}" ABSOLUTE)
  add_test(NAME ${name} COMMAND "${DUALPIPE_PYTHON}" "${script}" ${arg_ARGS} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  _dualpipe_set_test_properties(${name} "${arg_LABEL}" "${arg_TIMEOUT}")
endfunction()

function(dualpipe_add_pytest name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "LABEL;TIMEOUT" "PATHS")
  list(TRANSFORM arg_PATHS PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
  add_test(NAME ${name} COMMAND "${DUALPIPE_PYTHON}" -m pytest -q -p no:cacheprovider ${arg_PATHS}
           WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  _dualpipe_set_test_properties(${name} "${arg_LABEL}" "${arg_TIMEOUT}")
endfunction()
