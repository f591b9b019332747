# DualPipeDependencies.cmake
#
# Libraries from the system whose CMake names differ between releases, under the name of the newer one.

macro(dualpipe_find_yaml_cpp)
  find_package(yaml-cpp REQUIRED)
  if(NOT TARGET yaml-cpp::yaml-cpp)  # Before 0.8.
    add_library(yaml-cpp::yaml-cpp ALIAS yaml-cpp)
  endif()
endmacro()
