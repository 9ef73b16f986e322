// The addend of a decode step's matmul: the LoRA adapters' part (lora.cu). The matmul multiplies while lora.cu's kernels still run.
#pragma once
#include "decoder/common.cuh"
#include "signal.cuh"

#ifdef HAS_BFLOAT16

struct Addend {
  const float* elements;  // (batch, rows of the weight); complete when the primary has ended; null: no addend
  const int* adapted;     // of each row of x: 0 if nothing is added to it, otherwise 1
  const u32* x_ready;     // becomes 1 when x is complete
};

// Waits until x is complete, at most for DEADLINE.
__device__ __forceinline__ void wait_for_x(const Addend& addend) {
  if (!addend.elements) {
    wait_for_primary();
    return;
  }
  u64 begin = global_time();
  for (u32 i = 1, ready = 0;; i++) {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(ready) : "l"(addend.x_ready) : "memory");
    if (ready) return;
    if (i % 1024 == 0 && global_time() - begin > DEADLINE) __trap();
  }
}

#endif
