# DualPipeInstall.cmake
#
# install() rules and the package `dualpipe`, used from the install tree and from the build tree alike:
#   find_package(dualpipe REQUIRED COMPONENTS schedule analysis runtime)
# The pure rooms and the runtime are two export sets, so that the pure ones are used without LibTorch.
#
#   dualpipe_install_library(<target> PURE|TORCH)   once per library
#   dualpipe_install_package()                      once, after all of them
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(DUALPIPE_PACKAGE_DIR "${CMAKE_INSTALL_LIBDIR}/cmake/dualpipe")

function(dualpipe_install_library target kind)
  if(DUALPIPE_INSTALL)
    string(TOLOWER ${kind} kind)
    install(
      TARGETS ${target}
      EXPORT dualpipe_${kind}
      FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/dualpipe")
  endif()
endfunction()

function(_dualpipe_install_export_set set)
  install(EXPORT ${set} FILE ${set}.cmake NAMESPACE dualpipe:: DESTINATION "${DUALPIPE_PACKAGE_DIR}")
  export(EXPORT ${set} FILE "${PROJECT_BINARY_DIR}/${set}.cmake" NAMESPACE dualpipe::)
endfunction()

function(dualpipe_install_package)
  if(NOT DUALPIPE_INSTALL)
    return()
  endif()
  _dualpipe_install_export_set(dualpipe_pure)
  set(modules "")
  if(DUALPIPE_WITH_TORCH)
    _dualpipe_install_export_set(dualpipe_torch)
    set(modules "${PROJECT_SOURCE_DIR}/cmake/FindLibTorch.cmake")
    file(COPY ${modules} DESTINATION "${PROJECT_BINARY_DIR}")
  endif()
  configure_package_config_file(cmake/dualpipeConfig.cmake.in dualpipeConfig.cmake
                                INSTALL_DESTINATION "${DUALPIPE_PACKAGE_DIR}")
  write_basic_package_version_file(dualpipeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES "${PROJECT_BINARY_DIR}/dualpipeConfig.cmake" "${PROJECT_BINARY_DIR}/dualpipeConfigVersion.cmake" ${modules}
          DESTINATION "${DUALPIPE_PACKAGE_DIR}")
endfunction()
