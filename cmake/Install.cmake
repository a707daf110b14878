# `cmake --install` leaves a package that find_package(dendrite) finds.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS dendrite EXPORT dendriteTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/dendrite DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${DENDRITE_BRIDGE_LIB} DESTINATION ${CMAKE_INSTALL_LIBDIR}/dendrite)
install(EXPORT dendriteTargets NAMESPACE dendrite::
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/dendrite)
configure_package_config_file(cmake/dendriteConfig.cmake.in
  ${PROJECT_BINARY_DIR}/dendriteConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/dendrite)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/dendriteConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/dendriteConfig.cmake
  ${PROJECT_BINARY_DIR}/dendriteConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/dendrite)
if(DENDRITE_BUILD_CLI)
  install(TARGETS dendrite-cli DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
# All that are shipped; another folder that somebody put there is not.
file(GLOB models CONFIGURE_DEPENDS models/dendrite-*)
install(DIRECTORY ${models} DESTINATION ${CMAKE_INSTALL_DATADIR}/dendrite/models)
