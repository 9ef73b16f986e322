// Which elements of a vector a thread takes.
#pragma once
#include "scale_type.cuh"

__device__ inline int first() { return static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); }
__device__ inline int step() { return static_cast<int>(gridDim.x * blockDim.x); }
