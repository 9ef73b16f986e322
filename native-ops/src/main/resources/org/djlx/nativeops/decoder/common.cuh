// Types, asynchronous copies and tensor core products of the LLM kernels. decoder.cu lists the sources.
#pragma once
#include "element.cuh"

#ifndef TYPE
#define TYPE Bfloat16
#endif

#ifdef HAS_BFLOAT16

typedef TYPE T;
typedef T::Bits Bits;

const int PACK = Pack<T>::COUNT;
const int STEP = 4 * PACK;  // elements of a row that 4 lanes load at a time
const u64 DEADLINE = 10000000000;  // ns; a wait for other thread blocks traps after it
const float LOWEST = -1e30f;  // below every attention score and logit

// A placeholder for an input token: the token that decode_sample stored for the sequence. The host does not know it yet.
const int SAMPLED = -2;

// Copies a pack to shared memory (cp.async), or zeros if `there` is false. ONCE: weights; also fetches neighbouring bytes into L2.
template <bool ONCE>
__device__ __forceinline__ void copy_pack_async(u32 to, const void* from, bool there) {
  if (ONCE) {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
  } else {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
  }
}

// Copies 4 bytes to shared memory, or zeros.
__device__ __forceinline__ void copy_word_async(u32 to, const float* from, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(there ? 4 : 0) : "memory");
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits for the thread's copies, except for the last PENDING copy groups.
template <int PENDING>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// A barrier of WARPS warps of a thread block. ID: the hardware barrier; 0 is __syncthreads.
template <int ID, int WARPS>
__device__ __forceinline__ void barrier() {
  asm volatile("bar.sync %0, %1;" ::"n"(ID), "n"(WARPS* WARP) : "memory");
}

// sum += A B for a warp: m16n8k16, A row-major, B column-major.
__device__ __forceinline__ void mma(float (&sum)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  if (T::IS_BFLOAT16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

#endif
