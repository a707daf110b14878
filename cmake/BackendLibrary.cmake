# dendrite_backend_library(NAME SOURCE...): a backend as a library of its own, for
# EngineOptions::backend_library: the entry points, these sources, and what they need of `dendrite`.
function(dendrite_backend_library name)
  add_library(${name} MODULE EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/src/backend/library_entry.cpp ${ARGN})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${name} PRIVATE dendrite dendrite_options)
  # Of the archives nothing is exported, and of their libraries only what is used is needed.
  target_link_options(${name} PRIVATE
    LINKER:--exclude-libs,ALL LINKER:--as-needed LINKER:--gc-sections)
  if(NOT DENDRITE_SANITIZE) # whose functions are the program's
    target_link_options(${name} PRIVATE LINKER:--no-undefined)
  endif()
  set_target_properties(${name} PROPERTIES
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
endfunction()
