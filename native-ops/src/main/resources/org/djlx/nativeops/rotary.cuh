// Rotary embedding of one pair: element i of the first half of a head and element i of the second half.
//
//   (a, b) -> (a cos - b sin, b cos + a sin)
#pragma once
#include "element.cuh"

// ROUNDED: every multiplication and addition is rounded, as libtorch's operators do. Otherwise the compiler may contract them to
// fused multiply-adds.
template <bool ROUNDED>
__device__ __forceinline__ void rotate_pair(float& first, float& second, float cosine, float sine) {
  float a = first, b = second;
  if (ROUNDED) {
    first = __fsub_rn(__fmul_rn(a, cosine), __fmul_rn(b, sine));
    second = __fadd_rn(__fmul_rn(b, cosine), __fmul_rn(a, sine));
  } else {
    first = a * cosine - b * sine;
    second = b * cosine + a * sine;
  }
}
