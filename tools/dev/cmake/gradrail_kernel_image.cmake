# The library contains the kernels of gpu/kernels as bytes: nvcc makes one fatbin, and an assembler directive includes
# it. nvcc is a program of a custom command, not a CMake language, which would link cudart and need its headers.
#
# gradrail_kernel_image(<variable>) sets the variable to the source of gpu/kernels/image.h for this build, and adds its
# rules. Call it in gpu/kernels/.

# The fatbin has native code for Ampere, Hopper and Blackwell, and PTX for other devices. PTX of compute_100 can use
# more instructions. PTX of compute_80 also supports devices between the three.
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
  # Drivers load the code of each nvcc of the same major version and of older ones (CUDA Compatibility). All drivers for
  # CUDA 13 support compression, which reduces each program by 0.8 MB; not all for CUDA 12 do.
  string(REGEX MATCH "^[0-9]+" nvcc_major "${nvcc_version}")
  math(EXPR version "1000 * ${nvcc_major}")
  if(nvcc_version VERSION_GREATER_EQUAL 13)
    list(APPEND flags --compress-mode=size)
  endif()
  if(GRADRAIL_WERROR)
    list(APPEND flags -Werror=all-warnings)
  endif()
  add_custom_command(
    OUTPUT ${image} ${report}
    COMMAND ${CMAKE_COMMAND} "-DREPORT=${report}" -P ${PROJECT_SOURCE_DIR}/tools/dev/cmake/run_nvcc.cmake --
            ${GRADRAIL_NVCC} -ccbin ${CMAKE_CXX_COMPILER} -fatbin ${flags} -MD -MF ${image}.d -o ${image} ${folder}/kernels.cu
    DEPENDS ${folder}/kernels.cu ${PROJECT_SOURCE_DIR}/tools/dev/cmake/run_nvcc.cmake
    DEPFILE ${image}.d
    COMMENT "nvcc: ${description}"
    VERBATIM)
  set_source_files_properties(image_fatbin.cc PROPERTIES
    OBJECT_DEPENDS ${image}
    COMPILE_DEFINITIONS "GRADRAIL_FATBIN=\"${image}\";GRADRAIL_FATBIN_TARGETS=\"${description}\";GRADRAIL_FATBIN_VERSION=${version}")
  set(${source} image_fatbin.cc PARENT_SCOPE)
endfunction()
