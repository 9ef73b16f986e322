// Sums over the threads of a block, in an order that depends only on the number of threads.
//
// Order: the lanes of each warp, then the sums of the warps. All threads get the same bits.
// Shared memory: one float per warp, passed by the caller. A loop alternates between two such buffers: each sum has one barrier,
// and a buffer is reused only after the next sum's barrier.
#pragma once
#include "element.cuh"

// Step 1: stores the sum of a warp's values. All warps call it, then a barrier follows.
__device__ __forceinline__ void store_warp_sum(float value, float* sums, u32 warp) {
  value = warp_sum(value);
  if (threadIdx.x % WARP == 0) sums[warp] = value;
}

// Step 2: returns the sum of the warps' sums.
__device__ __forceinline__ float sum_of_warps(const float* sums, u32 warps) {
  u32 lane = threadIdx.x % WARP;
  return warp_sum(lane < warps ? sums[lane] : 0);
}

// Both steps for COUNT values of each thread.
template <int COUNT, int WARPS>
__device__ __forceinline__ void block_sums(float (&values)[COUNT], float (&sums)[COUNT][WARPS]) {
#pragma unroll
  for (int i = 0; i < COUNT; i++) store_warp_sum(values[i], sums[i], threadIdx.x / WARP);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < COUNT; i++) values[i] = sum_of_warps(sums[i], blockDim.x / WARP);
}
