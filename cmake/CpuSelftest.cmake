# Tests of the CPU kernels of an instruction set this machine lacks: when a cross compiler and an
# emulator are there, ctest builds the self-test for 64-bit Arm and runs it. Include after
# enable_testing().
find_program(DENDRITE_AARCH64_CXX aarch64-linux-gnu-g++)
find_program(DENDRITE_QEMU_AARCH64 qemu-aarch64)
if(DENDRITE_AARCH64_CXX AND DENDRITE_QEMU_AARCH64
   AND NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  add_test(NAME aarch64_kernels_selftest
    COMMAND ${CMAKE_CTEST_COMMAND} --build-and-test
      ${PROJECT_SOURCE_DIR}/tests/backend/aarch64 ${PROJECT_BINARY_DIR}/aarch64_selftest
      --build-generator ${CMAKE_GENERATOR} --build-makeprogram ${CMAKE_MAKE_PROGRAM}
      --build-options -DCMAKE_TOOLCHAIN_FILE=${PROJECT_SOURCE_DIR}/cmake/aarch64.cmake
                      -DCMAKE_BUILD_TYPE=Release
      --test-command ${DENDRITE_QEMU_AARCH64} -L /usr/aarch64-linux-gnu ./kernels_selftest)
  set_tests_properties(aarch64_kernels_selftest PROPERTIES TIMEOUT 600)
endif()
