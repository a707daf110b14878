# Kernels of compute capability 9.0 alone: the warpgroup's products are instructions of sm_90a, which
# no other device runs. Compiled apart and put into the library `dendrite`, if its architectures have
# 90 among them.
if(NOT CMAKE_CUDA_ARCHITECTURES MATCHES "(^|;)90")
  return()
endif()
file(GLOB_RECURSE _sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/backend/cuda/*_sm90.cu)
add_library(dendrite_sm90 OBJECT ${_sources})
set_target_properties(dendrite_sm90 PROPERTIES
  CUDA_ARCHITECTURES 90a-real)
target_include_directories(dendrite_sm90
  PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(dendrite_sm90 PRIVATE dendrite_options CUDA::cudart_static)
target_sources(dendrite PRIVATE $<TARGET_OBJECTS:dendrite_sm90>)
target_compile_definitions(dendrite PRIVATE DENDRITE_CUDA_SM90)
