// Conversions between e4m3 and 16-bit elements, by bit operations that all GPUs have; from compute capability 8.9 on one instruction
// rounds two numbers.
#pragma once
#include "element.cuh"

__device__ __forceinline__ u32 magnitude_bits(float x) { return __float_as_uint(x) & 0x7fffffff; }

// Rounds to e4m3; 448 and -448 for what is larger. A sum with 2^20 times the number's power of two rounds to 4 significant bits.
__device__ __forceinline__ u32 to_e4m3(float x) {
  float magnitude = fminf(fabsf(x), 448);
  float large = __uint_as_float(max(__float_as_uint(magnitude) & 0x7f800000, 121u << 23) + (20 << 23));
  float rounded = magnitude + large - large;
  bool is_normal = rounded >= 0.015625f;
  u32 bits = is_normal ? (__float_as_uint(rounded) >> 20) - (120 << 3) : (u32)(rounded * 512);
  return bits | (__float_as_uint(x) >> 24 & 0x80);
}

// Rounds two numbers to e4m3, the first to the lower byte. The results are those for one number, except of NaN: 448 or NaN.
__device__ __forceinline__ u32 to_e4m3(float first, float second) {
#if __CUDA_ARCH__ >= 890
  u16 both;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(second), "f"(first));
  return both;
#else
  return to_e4m3(first) | to_e4m3(second) << 8;
#endif
}

const float E4M3_MAX = 448;  // the largest finite number

// Returns the factor that makes the largest magnitude of a row E4M3_MAX. 0 up to 1e-35, where it could be infinite, and for NaN.
__device__ __forceinline__ float inverse_scale(float largest) { return largest > 1e-35f ? E4M3_MAX / largest : 0; }

// a * b + c for two elements of T each.
template <typename T>
__device__ __forceinline__ u32 multiply_add(u32 a, u32 b, u32 c) {
  u32 result;
  if (T::IS_BFLOAT16) {
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  } else {
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  }
  return result;
}

// a * b + c for integers.
__device__ __forceinline__ u32 mad(u32 a, u32 b, u32 c) {
  u32 result;
  asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
}

// Two e4m3, each in the lower byte of a half; the upper bytes are 0. Moved to where T has the sign, the last four bits of the exponent
// and the first three of the mantissa, they are too small by a power of two, subnormal ones too. Multiplications move them: unlike
// shifts, they run beside the permutations of bytes.
template <typename T>
__device__ __forceinline__ u32 from_e4m3(u32 bytes) {
  const u32 TO_PLACE = T::IS_BFLOAT16 ? 1 << 4 : 1 << 7;  // moves exponent and mantissa
  const u32 SIGN_TO_PLACE = (1 << 8) - TO_PLACE;          // added for the sign, which moves further
  const u32 FACTORS = T::IS_BFLOAT16 ? 0x7b807b80 : 0x5c005c00;  // 2^120, 2^8
  u32 signs = mad(bytes & 0x00800080, SIGN_TO_PLACE, 0);
  return multiply_add<T>(mad(bytes, TO_PLACE, signs), FACTORS, 0x80008000);
}

// The pack of 8 elements in the order of their bytes. Exact.
template <typename T>
__device__ __forceinline__ uint4 pack_of_e4m3(u32 first, u32 second) {
  return make_uint4(from_e4m3<T>(__byte_perm(first, 0, 0x4140)), from_e4m3<T>(__byte_perm(first, 0, 0x4342)),
                    from_e4m3<T>(__byte_perm(second, 0, 0x4140)), from_e4m3<T>(__byte_perm(second, 0, 0x4342)));
}
