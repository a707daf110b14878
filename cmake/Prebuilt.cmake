# The library from another build tree, DENDRITE_PREBUILT, instead of building it again.
get_filename_component(_prebuilt ${DENDRITE_PREBUILT} ABSOLUTE BASE_DIR ${PROJECT_SOURCE_DIR})
set(_library ${_prebuilt}/libdendrite.a)
set(_bridge ${_prebuilt}/bridge/release/libdendrite_bridge.a)
foreach(_file ${_library} ${_bridge})
  if(NOT EXISTS ${_file})
    message(FATAL_ERROR "Dendrite: DENDRITE_PREBUILT is ${DENDRITE_PREBUILT}, but there is no ${_file}; "
      "expected a build tree in which the library was built")
  endif()
endforeach()
find_package(Threads REQUIRED)
find_package(TBB REQUIRED)
add_library(dendrite STATIC IMPORTED)
set_target_properties(dendrite PROPERTIES
  IMPORTED_LOCATION ${_library}
  INTERFACE_COMPILE_FEATURES cxx_std_20
  INTERFACE_INCLUDE_DIRECTORIES ${PROJECT_SOURCE_DIR}/include
  INTERFACE_LINK_LIBRARIES "${_bridge};TBB::tbb;Threads::Threads;dl;m")
