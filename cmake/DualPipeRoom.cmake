# DualPipeRoom.cmake
#
# Libraries and programs of the rooms, all with the same warnings and position-independent code.
#
#   dualpipe_add_library(<room> PURE|TORCH HEADERS <file>... SOURCES <file>... [LIBS <target>...]
#                        [HEADER_LIBS <target>...])
#       Target dualpipe_<room>, alias dualpipe::<room>, installed with its headers; included from the repository's root.
#       HEADER_LIBS give this room's sources their headers and definitions, and do not reach its users.
#   dualpipe_add_internal_library(<name> PURE|TORCH SOURCES <file>... [LIBS <target>...])
#       A library of this build alone: shared by programs or tests, neither exported nor installed.
#   dualpipe_add_program(<name> PURE|TORCH SOURCES <file>... [LIBS <target>...])
#       Into <build>/bin.
#
# TORCH rooms link LibTorch and share one precompiled header (cmake/pch), PURE rooms see none of it.

function(_dualpipe_set_up target kind)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(${target} PRIVATE -Wall -Wextra -fPIC)
  if(kind STREQUAL "TORCH")
    target_link_libraries(${target} PUBLIC LibTorch::LibTorch)
    if(NOT target STREQUAL "dualpipe_torch_pch")
      target_precompile_headers(${target} REUSE_FROM dualpipe_torch_pch)
    endif()
  endif()
endfunction()

function(dualpipe_add_library room kind)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "HEADERS;SOURCES;LIBS;HEADER_LIBS")
  set(target dualpipe_${room})
  add_library(${target} ${arg_SOURCES})
  add_library(dualpipe::${room} ALIAS ${target})
  target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}" FILES ${arg_HEADERS})
  target_link_libraries(${target} PUBLIC ${arg_LIBS})
  foreach(lib IN LISTS arg_HEADER_LIBS)
    target_include_directories(${target} SYSTEM PRIVATE "$<TARGET_PROPERTY:${lib},INTERFACE_INCLUDE_DIRECTORIES>")
    target_compile_definitions(${target} PRIVATE "$<TARGET_PROPERTY:${lib},INTERFACE_COMPILE_DEFINITIONS>")
  endforeach()
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${room})
  _dualpipe_set_up(${target} ${kind})
  dualpipe_install_library(${target} ${kind})
endfunction()

function(dualpipe_add_internal_library name kind)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "SOURCES;LIBS")
  add_library(${name} STATIC ${arg_SOURCES})
  target_include_directories(${name} PUBLIC "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PUBLIC ${arg_LIBS})
  _dualpipe_set_up(${name} ${kind})
endfunction()

function(dualpipe_add_program name kind)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "SOURCES;LIBS")
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE ${arg_LIBS})
  _dualpipe_set_up(${name} ${kind})
endfunction()
