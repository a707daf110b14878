# The CPU backend's sources, in DENDRITE_CPU_SOURCES. Kernel files are compiled once per instruction
# path, each with its own flags; dispatch.cpp picks one at run time. Include before add_library(), in
# the same directory.
set(DENDRITE_CPU_DIR ${CMAKE_CURRENT_LIST_DIR}/../src/backend/cpu)

file(GLOB DENDRITE_CPU_SOURCES CONFIGURE_DEPENDS ${DENDRITE_CPU_DIR}/*.cpp)
list(FILTER DENDRITE_CPU_SOURCES EXCLUDE REGEX "/kernels_[a-z0-9_]+\\.cpp$")

# dendrite_cpu_kernels(NAME FLAG...): adds kernels_NAME.cpp. Results must not depend on what the
# compiler contracts or assumes, so every path says itself where it fuses; sqrt needs no errno. (With
# sanitizers -O3 takes two minutes a file, -O1 a fifth of that.)
function(dendrite_cpu_kernels name)
  set(file ${DENDRITE_CPU_DIR}/kernels_${name}.cpp)
  set(level -O3)
  if(DENDRITE_SANITIZE)
    set(level -O1)
  endif()
  set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS
    "${level};-ffp-contract=off;-fno-math-errno;-fno-trapping-math;${ARGN}" SKIP_PRECOMPILE_HEADERS ON)
  set(DENDRITE_CPU_SOURCES ${DENDRITE_CPU_SOURCES} ${file} PARENT_SCOPE)
endfunction()

dendrite_cpu_kernels(portable)
dendrite_cpu_kernels(amx_bf16_model -Os -fno-inline-functions -Wno-psabi) # slow anyhow; wide vectors that no other file sees
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(_avx2 -mavx2 -mfma -mf16c)
  set(_avx512 ${_avx2} -mavx512f -mavx512bw -mavx512vl -mavx512dq)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC 12's own intrinsics trip this warning (GCC bug 105593).
    list(APPEND _avx512 -Wno-maybe-uninitialized -Wno-uninitialized)
  endif()
  dendrite_cpu_kernels(avx2 ${_avx2})
  dendrite_cpu_kernels(avx512 ${_avx512})
  dendrite_cpu_kernels(avx512_bf16 ${_avx512} -mavx512bf16 -mavx512vnni)
  dendrite_cpu_kernels(amx_bf16 ${_avx512} -mavx512bf16)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  dendrite_cpu_kernels(neon)
endif()
