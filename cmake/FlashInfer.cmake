# FlashInfer's headers, and the CCCL that they are written for, as the target dendrite_flashinfer:
# a peer of the benches; the library uses none of it. They are taken as they are from the wheel of
# its Python package that scripts/cuda/flashinfer.txt pins (62 MB, Apache-2.0). pip downloads it
# when it is missing; it stays in
#   DENDRITE_FLASHINFER_DIR  cache variable: the folder with the wheel
# and is enough for a configuration without network. Its SHA-256 is checked each time.

set(DENDRITE_FLASHINFER_DIR ${PROJECT_SOURCE_DIR}/.flashinfer CACHE PATH
  "Where FlashInfer's wheel is kept")
set(_flashinfer_pin ${PROJECT_SOURCE_DIR}/scripts/cuda/flashinfer.txt)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${_flashinfer_pin})
file(STRINGS ${_flashinfer_pin} _flashinfer_line REGEX "^flashinfer-python==")
if(NOT _flashinfer_line MATCHES "^flashinfer-python==([^ ]+) --hash=sha256:([0-9a-f]+)$")
  message(FATAL_ERROR "${_flashinfer_pin}: got '${_flashinfer_line}'; expected "
    "flashinfer-python==VERSION --hash=sha256:HASH")
endif()
set(_flashinfer_version ${CMAKE_MATCH_1})
set(_flashinfer_hash ${CMAKE_MATCH_2})
set(_flashinfer_wheel
  ${DENDRITE_FLASHINFER_DIR}/flashinfer_python-${_flashinfer_version}-py3-none-any.whl)

# Sets `result` to whether the wheel is there with the pinned hash.
function(_flashinfer_is_there result)
  set(found "missing")
  if(EXISTS ${_flashinfer_wheel})
    file(SHA256 ${_flashinfer_wheel} found)
  endif()
  string(COMPARE EQUAL "${found}" "${_flashinfer_hash}" is_there)
  set(${result} ${is_there} PARENT_SCOPE)
endfunction()

_flashinfer_is_there(_flashinfer_found)
if(NOT _flashinfer_found)
  set(_flashinfer_way_out "Put the wheel there by hand (SHA-256 ${_flashinfer_hash}), or configure "
    "with -DDENDRITE_BENCH_FLASHINFER=OFF.")
  string(CONCAT _flashinfer_way_out ${_flashinfer_way_out})
  find_program(_flashinfer_python python3 NO_CACHE)
  if(NOT _flashinfer_python)
    message(FATAL_ERROR "${_flashinfer_wheel} is missing, and so is python3, whose pip would "
      "download it. ${_flashinfer_way_out}")
  endif()
  message(STATUS "Downloading FlashInfer ${_flashinfer_version} by pip (62 MB)")
  execute_process(
    COMMAND ${_flashinfer_python} -m pip download --quiet --disable-pip-version-check --retries 2
            --no-deps --only-binary :all: --require-hashes --dest ${DENDRITE_FLASHINFER_DIR}
            --requirement ${_flashinfer_pin}
    OUTPUT_VARIABLE _flashinfer_output ERROR_VARIABLE _flashinfer_output
    RESULT_VARIABLE _flashinfer_status)
  _flashinfer_is_there(_flashinfer_found)
  if(NOT _flashinfer_found)
    message(FATAL_ERROR "pip could not download ${_flashinfer_wheel} (python3-pip not installed, or "
      "the package index out of reach?); it ended with ${_flashinfer_status}:\n"
      "${_flashinfer_output}\n${_flashinfer_way_out}")
  endif()
endif()

# What compiling needs of it, unpacked once a build tree.
set(_flashinfer_root ${PROJECT_BINARY_DIR}/flashinfer-${_flashinfer_version})
set(_flashinfer_data ${_flashinfer_root}/flashinfer/data)
if(NOT EXISTS ${_flashinfer_root}/complete)
  file(REMOVE_RECURSE ${_flashinfer_root})
  file(ARCHIVE_EXTRACT INPUT ${_flashinfer_wheel} DESTINATION ${_flashinfer_root}
    PATTERNS "flashinfer/data/include/*" "flashinfer/data/cccl/libcudacxx/include/*"
             "flashinfer/data/cccl/cub/cub/*" "flashinfer/data/cccl/thrust/thrust/*"
             "*.dist-info/licenses/*")
  if(NOT EXISTS ${_flashinfer_data}/include/flashinfer/page.cuh)
    message(FATAL_ERROR "${_flashinfer_wheel}: flashinfer/data/include/flashinfer/page.cuh was "
      "not found in it")
  endif()
  file(TOUCH ${_flashinfer_root}/complete)
endif()
message(STATUS "FlashInfer ${_flashinfer_version}: ${_flashinfer_data}/include")

add_library(dendrite_flashinfer INTERFACE)
# Its CCCL stands before the toolkit's, which is older.
target_include_directories(dendrite_flashinfer SYSTEM INTERFACE
  ${_flashinfer_data}/include
  ${_flashinfer_data}/cccl/libcudacxx/include
  ${_flashinfer_data}/cccl/cub
  ${_flashinfer_data}/cccl/thrust)
target_compile_definitions(dendrite_flashinfer INTERFACE
  DENDRITE_FLASHINFER_VERSION="${_flashinfer_version}")
# As its own build compiles it.
target_compile_options(dendrite_flashinfer INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-use_fast_math>)
