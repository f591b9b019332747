# DualPipeEmbed.cmake
#
# Text files as strings of a program.
#
#   dualpipe_embed(<out.cc> HEADER <header> FUNCTION <namespace::function> FILES <file>...)
#       Makes <out.cc> in the binary folder, which defines the function that <header> declares: it gives a std::span of
#       {name without folder, text} of its namespace's PageFile. Made anew when a file changes.
#
# The build runs this file as a script (cmake -P) with OUT, HEADER, FUNCTION and FILES.

function(_dualpipe_write_strings out header function files)
  string(REGEX REPLACE "::[^:]*$" "" namespace "${function}")
  string(REGEX REPLACE "^.*::" "" name "${function}")
  set(text "#include \"${header}\"\n\nnamespace ${namespace} {\n\n")
  string(APPEND text "std::span<const PageFile> ${name}() {\n  static constexpr PageFile kFiles[] = {\n")
  foreach(file IN LISTS files)
    get_filename_component(file_name "${file}" NAME)
    file(READ "${file}" content)
    string(APPEND text "{\"${file_name}\", R\"dualpipe(${content})dualpipe\"},\n")
  endforeach()
  string(APPEND text "  };\n  return kFiles;\n}\n\n}  // namespace ${namespace}\n")
  file(WRITE "${out}" "${text}")
endfunction()

function(dualpipe_embed out)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "HEADER;FUNCTION" "FILES")
  list(TRANSFORM arg_FILES PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
  set(script "${PROJECT_SOURCE_DIR}/cmake/DualPipeEmbed.cmake")
  add_custom_command(
    OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/${out}"
    COMMAND "${CMAKE_COMMAND}" "-DOUT=${CMAKE_CURRENT_BINARY_DIR}/${out}" "-DHEADER=${arg_HEADER}"
            "-DFUNCTION=${arg_FUNCTION}" "-DFILES=${arg_FILES}" -P "${script}"
    DEPENDS ${arg_FILES} "${script}"
    VERBATIM)
endfunction()

if(CMAKE_SCRIPT_MODE_FILE)
  _dualpipe_write_strings("${OUT}" "${HEADER}" "${FUNCTION}" "${FILES}")
endif()
