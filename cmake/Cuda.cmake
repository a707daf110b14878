# The CUDA backend's sources, in DENDRITE_CUDA_SOURCES, and the compiler for them. Include before
# add_library(), when DENDRITE_CUDA is on. The toolkit is the system's if there is one, else what
# scripts/install_cuda.sh put into .cuda/.
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(_nvcc nvcc PATHS /usr/local/cuda/bin)
  set(_pinned ${PROJECT_SOURCE_DIR}/.cuda/nvidia/cu13)
  if(NOT _nvcc AND EXISTS ${_pinned}/bin/nvcc)
    set(_nvcc ${_pinned}/bin/nvcc)
  endif()
  if(NOT _nvcc)
    message(FATAL_ERROR "DENDRITE_CUDA: no CUDA compiler was found; expected nvcc on the PATH or in "
                        "/usr/local/cuda, or run scripts/install_cuda.sh")
  endif()
  set(CMAKE_CUDA_COMPILER ${_nvcc} CACHE FILEPATH "CUDA compiler")
  get_filename_component(_toolkit ${_nvcc} DIRECTORY)
  get_filename_component(_toolkit ${_toolkit} DIRECTORY)
  set(CUDAToolkit_ROOT ${_toolkit} CACHE PATH "CUDA toolkit")
endif()
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100-real 121-real CACHE STRING "GPUs to compile for")
endif()
# 9.0 has instructions of its own (hopper.cuh), which only its exact target may use.
list(TRANSFORM CMAKE_CUDA_ARCHITECTURES REPLACE "^90-real$" "90a-real")
# So have 12.0 and 12.1 (block_scaled_mma.cuh).
list(TRANSFORM CMAKE_CUDA_ARCHITECTURES REPLACE "^(120|121)-real$" "\\1a-real")
enable_language(CUDA)
if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION) # CMake 3.25 stops at C++17 for nvcc
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
find_package(CUDAToolkit 13.0 REQUIRED)

file(GLOB_RECURSE DENDRITE_CUDA_SOURCES CONFIGURE_DEPENDS
  ${PROJECT_SOURCE_DIR}/src/backend/cuda/*.cpp ${PROJECT_SOURCE_DIR}/src/backend/cuda/*.cu)
list(FILTER DENDRITE_CUDA_SOURCES EXCLUDE REGEX "_sm90\\.cu$")
