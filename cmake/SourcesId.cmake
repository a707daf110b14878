# The checksum of the library's sources in dendrite::build_id, made whenever one of them changes.
# Included: the command that makes it. With -P: that command,
#   cmake -DROOT=DIR -DTO=FILE.h -P SourcesId.cmake
set(_patterns *.h *.cpp *.inl *.cu *.cuh)
if(CMAKE_SCRIPT_MODE_FILE)
  list(TRANSFORM _patterns PREPEND ${ROOT}/src/ OUTPUT_VARIABLE _globs)
  file(GLOB_RECURSE _files RELATIVE ${ROOT} ${_globs} ${ROOT}/include/*.h)
  list(SORT _files)
  set(_sums)
  foreach(_file ${_files})
    file(SHA256 ${ROOT}/${_file} _sum)
    string(APPEND _sums "${_file} ${_sum}\n")
  endforeach()
  string(SHA256 _sum "${_sums}")
  string(SUBSTRING ${_sum} 0 12 _sum)
  file(WRITE ${TO} "#define DENDRITE_SOURCES_ID \"${_sum}\"\n")
  return()
endif()

list(TRANSFORM _patterns PREPEND ${PROJECT_SOURCE_DIR}/src/ OUTPUT_VARIABLE _globs)
file(GLOB_RECURSE _files CONFIGURE_DEPENDS ${_globs} ${PROJECT_SOURCE_DIR}/include/*.h)
set(_header ${PROJECT_BINARY_DIR}/generated/sources_id.h)
add_custom_command(OUTPUT ${_header}
  COMMAND ${CMAKE_COMMAND} -DROOT=${PROJECT_SOURCE_DIR} -DTO=${_header} -P ${CMAKE_CURRENT_LIST_FILE}
  DEPENDS ${_files} ${CMAKE_CURRENT_LIST_FILE}
  VERBATIM)
set_source_files_properties(src/core/build_id.cpp PROPERTIES
  OBJECT_DEPENDS ${_header} INCLUDE_DIRECTORIES ${PROJECT_BINARY_DIR}/generated)
