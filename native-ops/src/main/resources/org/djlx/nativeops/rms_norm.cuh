// RMSNorm of a row, pack by pack: y = x / sqrt(mean(x^2) + epsilon) * weight.
//
// All kernels that normalise rows use these functions. Kernels that sum squares in this order give the same bits: each thread of a
// row (at most NORM_THREADS, whole warps) adds the squares of every NORM_THREADS-th pack; then block_sum.cuh adds the threads'
// sums.
#pragma once
#include "block_sum.cuh"
#include "element.cuh"

// The maximum number of threads of a row. A row with fewer packs has as many threads as packs, rounded up to whole warps.
const int NORM_THREADS = 512;

// residual + addend, rounded.
template <typename T>
__device__ __forceinline__ uint4 add_packs(const uint4& residual, const uint4& addend) {
  FloatPack<T> sum;
  sum.set(residual);
  sum.add(addend);
  return sum.rounded(1);
}

// Returns sum + the squares of a pack.
template <typename T>
__device__ __forceinline__ float add_squares(float sum, const FloatPack<T>& x) {
#pragma unroll
  for (int k = 0; k < Pack<T>::COUNT; k++) sum += x.values[k] * x.values[k];
  return sum;
}

template <typename T>
__device__ __forceinline__ float add_squares(float sum, const uint4& pack) {
  FloatPack<T> x;
  x.set(pack);
  return add_squares<T>(sum, x);
}

// 1 / sqrt(mean(x^2) + epsilon)
__device__ __forceinline__ float norm_scale(float squares, u64 size, float epsilon) {
  return 1 / sqrtf(squares / size + epsilon);
}

// x * scale * weight, rounded.
template <typename T>
__device__ __forceinline__ uint4 normalize_pack(FloatPack<T> x, float scale, const uint4& weight) {
  FloatPack<T> factors;
  factors.set(weight);
#pragma unroll
  for (int k = 0; k < Pack<T>::COUNT; k++) x.values[k] = x.values[k] * scale * factors.values[k];
  return x.rounded(1);
}

template <typename T>
__device__ __forceinline__ uint4 normalize_pack(const uint4& pack, float scale, const uint4& weight) {
  FloatPack<T> x;
  x.set(pack);
  return normalize_pack<T>(x, scale, weight);
}
