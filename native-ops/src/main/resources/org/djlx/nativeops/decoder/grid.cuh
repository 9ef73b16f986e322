// What the persistent kernels of matmuls share: a barrier of all thread blocks, and positions in a ring of shared memory.
//
// A thread block has CONSUMERS warps that compute; further warps copy. Only consumers take part in barriers.
#pragma once
#include "decoder/common.cuh"
#include "signal.cuh"

const int CONSUMERS = 16;
const u64 DEADLINE = 10000000000;  // ns

template <int ID, int WARPS>
__device__ __forceinline__ void barrier() {
  asm volatile("bar.sync %0, %1;" ::"n"(ID), "n"(WARPS* WARP) : "memory");
}
__device__ __forceinline__ void consumers_barrier() { barrier<1, CONSUMERS>(); }

// The barrier of all consumers. The upper bit of `arrivals` flips when the last block arrives; `phase` has its value before.
__device__ __forceinline__ void grid_barrier(u32* arrivals, u32& phase) {
  const u32 UPPER = 0x80000000;
  consumers_barrier();
  if (threadIdx.x == 0) {
    u32 add = blockIdx.x == 0 ? UPPER - (gridDim.x - 1) : 1, now;
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(arrivals), "r"(add) : "memory");
    u64 begin = global_time();
    for (u32 i = 1;; i++) {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(arrivals) : "memory");
      if ((now ^ phase) & UPPER) break;
      if (i % 1024 == 0 && global_time() - begin > DEADLINE) __trap();
    }
  }
  phase ^= UPPER;
  consumers_barrier();
}

// A position in a ring.
struct Stage {
  u32 index, parity;

  __device__ __forceinline__ void skip(u32 count, u32 stages) {
    index += count;
    if (index < stages) return;
    index -= stages;
    parity ^= 1;
  }
};
