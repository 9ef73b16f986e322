// How matmuls of few rows store their sums. `M` is a struct with the members output, scales, bias, width, stride and gated.
#pragma once
#include "decoder/weights.cuh"
#include "silu.cuh"

#ifdef HAS_BFLOAT16

// A row of x has its result in the same row of the output.
struct SameRow {
  __device__ __forceinline__ u32 operator()(u32 b) const { return b; }
};

// Scales the sums of a lane, adds the bias, and stores them rounded. sum[0] and sum[1]: column n for rows b and b + 1 of x. sum[2] and
// sum[3]: column n + 8, or, if gated, the values of the gates in sum[0] and sum[1]. `row_of`: where the result of a row of x lies.
template <typename M, typename R = SameRow>
__device__ __forceinline__ void store_sums(const M& matmul, u32 batch, float (&sum)[4], u32 n, u32 b, const R& row_of = R()) {
  u32 width = matmul.width;
  bool gated = matmul.gated, has_lower = gated || n + 8 < width;
  u32 lower_row = n + (gated ? width : 8);
  if (n >= width) return;
  if (WEIGHT_BITS == 8) {
    float upper = matmul.scales[n], lower = has_lower ? matmul.scales[lower_row] : 0;
    sum[0] *= upper;
    sum[1] *= upper;
    sum[2] *= lower;
    sum[3] *= lower;
  }
  if (matmul.bias) {
    float upper = T::load(matmul.bias[n]), lower = has_lower ? T::load(matmul.bias[lower_row]) : 0;
    sum[0] += upper;
    sum[1] += upper;
    sum[2] += lower;
    sum[3] += lower;
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    if (b + i >= batch) continue;
    Bits* to = matmul.output + row_of(b + i) * matmul.stride + n;
    if (gated) {
      *to = T::store(silu_fast(sum[i]) * sum[i + 2]);
    } else {
      *to = T::store(sum[i]);
      if (has_lower) to[8] = T::store(sum[i + 2]);
    }
  }
}

#endif
