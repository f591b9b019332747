# DualPipeDeveloper.cmake
#
# What is wanted where this project is the top one: a default build type, sanitizers, ccache and a fast linker.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()

if(DUALPIPE_SANITIZE)
  add_compile_options(-fsanitize=${DUALPIPE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${DUALPIPE_SANITIZE})
endif()

find_program(DUALPIPE_CCACHE ccache)
if(DUALPIPE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Precompiled headers are cached only with these.
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env CCACHE_SLOPPINESS=pch_defines,time_macros
                                  "${DUALPIPE_CCACHE}")
  add_compile_options(-fpch-preprocess)
endif()

find_program(DUALPIPE_LLD ld.lld)
if(DUALPIPE_LLD)
  add_link_options(-fuse-ld=lld)
endif()
