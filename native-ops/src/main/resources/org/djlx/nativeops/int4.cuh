// Weights of 4 bits. A weight is scale * (number - zero). Rows are sets of 128 numbers, 64 bytes each; the last set is filled up. In a
// set, byte 16 l + 8 h + e has number 32 h + 8 l + e in its lower half, and the number 64 further on in its upper half: four lanes with
// 16 bytes each have 32 adjacent numbers at a time.
//
// A group of numbers has a 32-bit word for its scale and zero:
//   ZERO_GROUP 0             of 128 numbers: a float32 scale; zeros are 8
//   ZERO_GROUP 32, 64 or 128 of so many: a scale in float16 as float32, and in its 4 lowest bits, which it does not use, zero xor 8
#pragma once
#include "element.cuh"

#ifndef ZERO_GROUP
#define ZERO_GROUP 0
#endif

const int SET = 128;
const int SET_BYTES = 64;
const int GROUP = ZERO_GROUP ? ZERO_GROUP : SET;
const int GROUP_BYTES = GROUP / 2;
const int GROUP_PARTS = GROUP / 32;  // of 32 numbers
const u32 ZERO_BITS = ZERO_GROUP ? 15 : 0;

__device__ __forceinline__ float group_scale(u32 word) { return __uint_as_float(word & ~ZERO_BITS); }

__device__ __forceinline__ u32 group_zero(u32 word) { return word & ZERO_BITS ^ 8; }
