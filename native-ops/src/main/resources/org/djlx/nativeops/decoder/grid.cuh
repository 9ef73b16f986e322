// Barriers of the persistent matmul kernels chain.cu and wide_chain.cu.
//
// The first CONSUMERS warps of a thread block multiply. Further warps help, for example by copying weights; they must not call barriers.
#pragma once
#include "decoder/common.cuh"
#include "signal.cuh"

const int CONSUMERS = 16;
const u64 DEADLINE = 10000000000;  // ns; a wait for other thread blocks traps after it

// A barrier of WARPS warps of a thread block. ID: the hardware barrier; 0 is __syncthreads.
template <int ID, int WARPS>
__device__ __forceinline__ void barrier() {
  asm volatile("bar.sync %0, %1;" ::"n"(ID), "n"(WARPS* WARP) : "memory");
}
__device__ __forceinline__ void consumers_barrier() { barrier<1, CONSUMERS>(); }

// The barrier of the consumers of all thread blocks, with acquire and release. Together the blocks add UPPER to `arrivals`, so its upper
// bit flips when the last block arrives. `phase`: `arrivals` before the first barrier of the launch; each barrier flips its upper bit.
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
