# What the build needs from the system; `make deps` installs it. Versions: Debian 12's or newer.
find_package(Threads REQUIRED)
set(_dependencies "TBB|libtbb-dev" "nlohmann_json|nlohmann-json3-dev")
if(DENDRITE_BUILD_CLI OR DENDRITE_BUILD_TESTS) # the fuzzer, which is a test, too, has a command line
  list(APPEND _dependencies "CLI11|libcli11-dev")
endif()
foreach(dependency ${_dependencies})
  string(REPLACE "|" ";" pair ${dependency})
  list(GET pair 0 package)
  list(GET pair 1 debian)
  find_package(${package} CONFIG QUIET)
  if(NOT ${package}_FOUND)
    message(FATAL_ERROR "${package} was not found; expected Debian's ${debian} (run `make deps`, "
                        "or: apt-get install ${debian})")
  endif()
endforeach()
# XXH3, from the header alone; Debian's package has no CMake configuration.
find_path(DENDRITE_XXHASH_INCLUDE xxhash.h)
mark_as_advanced(DENDRITE_XXHASH_INCLUDE)
if(NOT DENDRITE_XXHASH_INCLUDE)
  message(FATAL_ERROR "xxhash.h was not found; expected Debian's libxxhash-dev (run `make deps`, "
                      "or: apt-get install libxxhash-dev)")
endif()
add_library(dendrite_xxhash INTERFACE)
target_include_directories(dendrite_xxhash SYSTEM INTERFACE ${DENDRITE_XXHASH_INCLUDE})
