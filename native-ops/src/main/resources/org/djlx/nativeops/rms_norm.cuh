// RMSNorm of a residual to which something is added, by packs: what kernels share that give the same bits.
#pragma once
#include "element.cuh"

// The most threads that a row has. With fewer packs it has as many, rounded up to whole warps. Each adds up the squares of every
// so manyth pack, then those of a warp are added, then those of all warps.
const int NORM_THREADS = 512;

// The new residual.
template <typename T>
__device__ __forceinline__ uint4 added(const uint4& residual, const uint4& total) {
  FloatPack<T> sum;
  sum.set(residual);
  sum.add(total);
  return sum.rounded(1);
}

template <typename T>
__device__ __forceinline__ float with_squares(float sum, const uint4& pack) {
  FloatPack<T> values;
  values.set(pack);
#pragma unroll
  for (int k = 0; k < Pack<T>::COUNT; k++) sum += values.values[k] * values.values[k];
  return sum;
}

__device__ __forceinline__ float norm_scale(float squares, u64 hidden, float epsilon) {
  return 1 / sqrtf(squares / hidden + epsilon);
}

template <typename T>
__device__ __forceinline__ uint4 scaled(const uint4& pack, float scale, const uint4& weight) {
  FloatPack<T> norm, factors;
  norm.set(pack);
  factors.set(weight);
#pragma unroll
  for (int k = 0; k < Pack<T>::COUNT; k++) norm.values[k] = norm.values[k] * scale * factors.values[k];
  return norm.rounded(1);
}
