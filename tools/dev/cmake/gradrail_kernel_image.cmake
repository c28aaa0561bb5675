# The kernels of gpu/kernels as bytes of the library: nvcc makes one fatbin, an assembler directive takes it in. nvcc is
# run as a program and not as a CMake language, which would link cudart and ask for its headers.
#
# gradrail_kernel_image(<variable>): the source of gpu/kernels/image.h for this build, with its rules. Call it in
# gpu/kernels/.

# Native code for Ampere, Hopper and Blackwell. PTX is for what comes later, twice: compute_100's may use more,
# compute_80's also serves devices between the three.
set(gradrail_native_targets 80 90 100)
set(gradrail_ptx_targets 80 100)

function(gradrail_kernel_image source)
  if(NOT GRADRAIL_HAS_CUDA)
    set(${source} image_none.cc PARENT_SCOPE)
    return()
  endif()
  set(targets "")
  set(description "")
  foreach(target IN LISTS gradrail_native_targets)
    list(APPEND targets -gencode=arch=compute_${target},code=sm_${target})
    list(APPEND description sm_${target})
  endforeach()
  foreach(target IN LISTS gradrail_ptx_targets)
    list(APPEND targets -gencode=arch=compute_${target},code=compute_${target})
    list(APPEND description "PTX compute_${target}")
  endforeach()
  list(JOIN description ", " description)
  set(image ${CMAKE_CURRENT_BINARY_DIR}/kernels.fatbin)
  set(report ${CMAKE_CURRENT_BINARY_DIR}/kernels.ptxas.txt) # registers and spills of each kernel; tests/gpu reads it
  set(folder ${CMAKE_CURRENT_SOURCE_DIR})
  # No contraction into FMA: update() gives the bits of ps::apply. Division and square root are exact by default.
  set(flags -std=c++20 -O3 -fmad=false -Xptxas=-v -I${PROJECT_SOURCE_DIR} ${targets})
  # 0.2 instead of 1 MB in every program. Code of nvcc 12 also runs on drivers that cannot unpack this.
  if(nvcc_version VERSION_GREATER_EQUAL 13)
    list(APPEND flags --compress-mode=size)
  endif()
  if(GRADRAIL_WERROR)
    list(APPEND flags -Werror=all-warnings)
  endif()
  add_custom_command(
    OUTPUT ${image} ${report}
    COMMAND ${CMAKE_COMMAND} "-DREPORT=${report}" -P ${PROJECT_SOURCE_DIR}/tools/dev/cmake/run_nvcc.cmake --
            ${GRADRAIL_NVCC} -ccbin ${CMAKE_CXX_COMPILER} -fatbin ${flags} -o ${image} ${folder}/kernels.cu
    DEPENDS ${folder}/arguments.h ${folder}/common.cuh ${folder}/crc32c.cuh ${folder}/images.cuh ${folder}/kernels.cu
            ${folder}/layers.cuh ${folder}/update.cuh ${folder}/vectors.cuh
            ${PROJECT_SOURCE_DIR}/tools/dev/cmake/run_nvcc.cmake
    COMMENT "nvcc: ${description}"
    VERBATIM)
  set_source_files_properties(image_fatbin.cc PROPERTIES
    OBJECT_DEPENDS ${image}
    COMPILE_DEFINITIONS "GRADRAIL_FATBIN=\"${image}\";GRADRAIL_FATBIN_TARGETS=\"${description}\"")
  set(${source} image_fatbin.cc PARENT_SCOPE)
endfunction()
