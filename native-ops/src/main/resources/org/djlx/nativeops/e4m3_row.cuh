// Rounds a row of 16-bit elements in shared memory to e4m3, with a scale: the row's largest magnitude divided by 448. A block has one
// row at a time: each thread calls most_of for its packs, then round_row.
#pragma once
#include "e4m3.cuh"

const int ROW_THREADS = 512;  // the most threads of a block that calls round_row

__device__ __forceinline__ u32 warp_max(u32 value) {
#if __CUDA_ARCH__ >= 800
  return __reduce_max_sync(~0u, value);
#else
  for (int distance = WARP / 2; distance > 0; distance /= 2) value = max(value, __shfl_xor_sync(~0u, value, distance));
  return value;
#endif
}

// Returns the larger of `most` and the bits of a pack's largest magnitude; NaN is larger than all numbers.
template <typename T>
__device__ __forceinline__ u32 most_of(u32 most, const uint4& pack) {
  FloatPack<T> x;
  x.set(pack);
#pragma unroll
  for (int e = 0; e < Pack<T>::COUNT; e++) most = max(most, magnitude_bits(x.values[e]));
  return most;
}

// Rounds the row that the block has in shared memory. A thread rounds every blockDim.x-th pack, those that it wrote; `most` is the
// result of most_of for them. A block that calls this several times needs a barrier between two calls.
template <typename T>
__device__ __forceinline__ void round_row(const uint4* row, u32 packs, u32 most, uint2* quantized, float* scale) {
  __shared__ u32 of_warps[ROW_THREADS / WARP];
  u32 lane = threadIdx.x % WARP;
  most = warp_max(most);
  if (lane == 0) of_warps[threadIdx.x / WARP] = most;
  __syncthreads();
  most = warp_max(lane < blockDim.x / WARP ? of_warps[lane] : 0);
  float largest = __uint_as_float(most), inverse = inverse_scale(largest);
  if (threadIdx.x == 0) *scale = largest / E4M3_MAX;
  for (u32 i = threadIdx.x; i < packs; i += blockDim.x) {
    FloatPack<T> x;
    x.set(row[i]);
    u32 words[2] = {};
#pragma unroll
    for (int e = 0; e < Pack<T>::COUNT; e += 2) words[e / 4] |= to_e4m3(x.values[e] * inverse, x.values[e + 1] * inverse) << e % 4 * 8;
    quantized[i] = make_uint2(words[0], words[1]);
  }
}
