// All kernels in one translation unit: nvcc makes one image of it. It is plain C++ but for __global__, __device__,
// __grid_constant__, __launch_bounds__ and threadIdx.x, blockIdx.x, blockDim.x, gridDim.x, so that any compiler that is
// given those can run it thread after thread.
#include "gpu/kernels/crc32c.cuh"
#include "gpu/kernels/images.cuh"
#include "gpu/kernels/layers.cuh"
#include "gpu/kernels/update.cuh"
#include "gpu/kernels/vectors.cuh"
