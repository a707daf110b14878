# Builds bridge/ (a Rust static library) with cargo and offers it as the target dendrite::bridge.
#   DENDRITE_BRIDGE_LIB  path of the built archive, for install()
#   DENDRITE_CARGO       cache variable: the cargo to use; empty: any that is new enough
# The crate is always built in release mode, in the build tree, with the committed Cargo.lock.

set(_bridge_dir ${CMAKE_CURRENT_LIST_DIR}/../bridge)
cmake_path(NORMAL_PATH _bridge_dir)

# The oldest Rust that will do is written once, in Cargo.toml.
file(STRINGS ${_bridge_dir}/Cargo.toml _rust_version_line REGEX "^rust-version *=")
string(REGEX MATCH "[0-9]+\\.[0-9]+(\\.[0-9]+)?" DENDRITE_RUST_VERSION "${_rust_version_line}")

# Sets `result` to the version of a cargo program, as run in bridge/; empty if it does not run.
function(_bridge_cargo_version program result)
  execute_process(COMMAND ${program} --version WORKING_DIRECTORY ${_bridge_dir}
    OUTPUT_VARIABLE output ERROR_QUIET)
  string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" version "${output}")
  set(${result} "${version}" PARENT_SCOPE)
endfunction()

# The first that is new enough, of: the one asked for, those in PATH, rustup's usual place.
set(DENDRITE_CARGO "" CACHE FILEPATH "cargo, which builds the Rust part of Dendrite")
set(_bridge_candidates ${DENDRITE_CARGO})
if(NOT DENDRITE_CARGO)
  find_program(_bridge_path_cargo cargo NO_CACHE)
  find_program(_bridge_home_cargo cargo NO_CACHE NO_DEFAULT_PATH
    PATHS "$ENV{CARGO_HOME}/bin" "$ENV{HOME}/.cargo/bin")
  foreach(_bridge_found ${_bridge_path_cargo} ${_bridge_home_cargo})
    if(_bridge_found)
      list(APPEND _bridge_candidates ${_bridge_found})
    endif()
  endforeach()
endif()
set(_bridge_cargo)
set(_bridge_tried)
foreach(_bridge_candidate ${_bridge_candidates})
  _bridge_cargo_version(${_bridge_candidate} _bridge_version)
  if(_bridge_version VERSION_GREATER_EQUAL DENDRITE_RUST_VERSION)
    set(_bridge_cargo ${_bridge_candidate})
    break()
  endif()
  string(APPEND _bridge_tried " ${_bridge_candidate} (version '${_bridge_version}')")
endforeach()
if(NOT _bridge_cargo)
  if(NOT _bridge_tried)
    set(_bridge_tried " no cargo")
  endif()
  message(FATAL_ERROR "Dendrite: found${_bridge_tried}, but bridge/ needs Rust "
    "${DENDRITE_RUST_VERSION} or newer. Run scripts/install_rust.sh, or set DENDRITE_CARGO to a "
    "newer cargo program.")
endif()

# Cross compilation: name the target for cargo and lend it the C++ compiler as a linker.
set(_bridge_target_args)
set(_bridge_target_env)
set(_bridge_out ${PROJECT_BINARY_DIR}/bridge)
if(NOT CMAKE_SYSTEM_PROCESSOR STREQUAL CMAKE_HOST_SYSTEM_PROCESSOR)
  set(_bridge_triple ${CMAKE_SYSTEM_PROCESSOR}-unknown-linux-gnu)
  string(TOUPPER ${_bridge_triple} _bridge_triple_env)
  string(REPLACE "-" "_" _bridge_triple_env ${_bridge_triple_env})
  set(_bridge_target_args --target ${_bridge_triple})
  set(_bridge_target_env CARGO_TARGET_${_bridge_triple_env}_LINKER=${CMAKE_CXX_COMPILER})
  string(APPEND _bridge_out /${_bridge_triple})
endif()
set(DENDRITE_BRIDGE_LIB ${_bridge_out}/release/libdendrite_bridge.a)

# A source distribution brings the crates (scripts/package.sh): then nothing is downloaded.
set(_bridge_crates)
if(EXISTS ${_bridge_dir}/vendor.tar.xz)
  file(ARCHIVE_EXTRACT INPUT ${_bridge_dir}/vendor.tar.xz DESTINATION ${PROJECT_BINARY_DIR}/bridge)
  set(_bridge_crates --offline --config "source.crates-io.replace-with='vendored'"
    --config "source.vendored.directory='${PROJECT_BINARY_DIR}/bridge/vendor'")
endif()

file(GLOB _bridge_sources CONFIGURE_DEPENDS ${_bridge_dir}/src/*.rs ${_bridge_dir}/.cargo/*.toml)
add_custom_command(
  OUTPUT ${DENDRITE_BRIDGE_LIB}
  # make's job server is not passed on to cargo, which would warn about it; cargo counts the CPUs.
  COMMAND ${CMAKE_COMMAND} -E env --unset=MAKEFLAGS --unset=CARGO_BUILD_TARGET
          ${_bridge_target_env}
          ${_bridge_cargo} build --release --locked --quiet ${_bridge_crates} ${_bridge_target_args}
          --manifest-path ${_bridge_dir}/Cargo.toml --target-dir ${PROJECT_BINARY_DIR}/bridge
  # When cargo had nothing to do it leaves the time of the archive; the build must see it as new.
  COMMAND ${CMAKE_COMMAND} -E touch ${DENDRITE_BRIDGE_LIB}
  DEPENDS ${_bridge_sources} ${_bridge_dir}/Cargo.toml ${_bridge_dir}/Cargo.lock
  WORKING_DIRECTORY ${_bridge_dir}
  COMMENT "Building the Rust bridge (a minute or two, the first time)"
  VERBATIM)
add_custom_target(dendrite_bridge_archive DEPENDS ${DENDRITE_BRIDGE_LIB})

add_library(dendrite::bridge STATIC IMPORTED GLOBAL)
set_target_properties(dendrite::bridge PROPERTIES
  IMPORTED_LOCATION ${DENDRITE_BRIDGE_LIB}
  INTERFACE_INCLUDE_DIRECTORIES ${_bridge_dir}
  INTERFACE_LINK_LIBRARIES "pthread;dl;m")
add_dependencies(dendrite::bridge dendrite_bridge_archive)
