// How matmuls read weights of WEIGHT_BITS bits. Rows are contiguous.
//
//   16   elements of T
//   8    e4m3, with a float32 scale for each row
//   4    sets and groups of int4.cuh
//
// Converting to T is exact, and takes bit operations that all GPUs have.
#pragma once
#include "decoder/common.cuh"
#include "e4m3.cuh"
#include "int4.cuh"

#ifndef WEIGHT_BITS
#define WEIGHT_BITS 16
#endif

#ifdef HAS_BFLOAT16

const int X_PACKS = 16 / WEIGHT_BITS;  // packs of x that 16 bytes of a weight row are multiplied by

__device__ __forceinline__ u32 row_bytes(u32 depth) {
  return WEIGHT_BITS == 4 ? (depth + SET - 1) / SET * SET_BYTES : depth * WEIGHT_BITS / 8;
}

// The first element of pack `i` of x for the 16 bytes at `byte` of a weight row.
__device__ __forceinline__ u32 element_of(u32 byte, int i) {
  if (WEIGHT_BITS == 4) return byte / SET_BYTES * SET + i * 32 + byte % SET_BYTES / 16 * PACK;
  return byte * 8 / WEIGHT_BITS + i * PACK;
}

// Two of -(2^7 + zero) or -(2^10 + zero), for the word of a group.
__device__ __forceinline__ u32 offsets_of(u32 word) {
  return (T::IS_BFLOAT16 ? 0xc300c300 : 0xe400e400) | group_zero(word) * 0x10001;
}

// Two numbers less their zero, selected from 4 bytes. With the upper byte of 2^7 or 2^10 they are 2^7 or 2^10 more.
__device__ __forceinline__ u32 from_int4(u32 bytes, u32 selector, u32 offsets) {
  const u32 UPPER = T::IS_BFLOAT16 ? 0x43434343 : 0x64646464;
  const u32 ONES = T::IS_BFLOAT16 ? 0x3f803f80 : 0x3c003c00;
  return multiply_add<T>(__byte_perm(bytes, UPPER, selector), ONES, offsets);
}

// The weights for pack `i` of x of 16 bytes, without their scale. `offsets`: of their group, with 4 bits.
__device__ __forceinline__ uint4 weights_of(const uint4& bytes, int i, u32 offsets) {
  if (WEIGHT_BITS == 16) return bytes;
  u32 first = i % 2 ? bytes.z : bytes.x, second = i % 2 ? bytes.w : bytes.y;
  if (WEIGHT_BITS == 8) return pack_of_e4m3<T>(first, second);
  first = first >> i / 2 * 4 & 0x0f0f0f0f;
  second = second >> i / 2 * 4 & 0x0f0f0f0f;
  return make_uint4(from_int4(first, 0x4140, offsets), from_int4(first, 0x4342, offsets), from_int4(second, 0x4140, offsets),
                    from_int4(second, 0x4342, offsets));
}

#endif
