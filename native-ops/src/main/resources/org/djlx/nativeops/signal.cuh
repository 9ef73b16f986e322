// How GPUs tell each other that data has arrived: words that only grow, raised by one and awaited by another. What was
// written before a word is raised (release) is visible to who has seen it raised (acquire).
//
// Nothing waits for ever: a wait ends after its timeout, or when the host sets `stop`, and then tells the host who was
// missing.
#pragma once

#include "element.cuh"

// Pinned memory of the host, which reads and writes it while kernels run.
struct Status {
  volatile u32 stop;     // written by the host
  volatile u32 missing;  // 1 + a rank that did not arrive; 0 if all did
};

__device__ inline u64 now() {
  u64 time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

__device__ inline void raise(u32* word, u32 epoch) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(epoch) : "memory");
}

__device__ inline bool raised(const u32* word, u32 epoch) {
  u32 value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  // Nobody is further ahead than an operation or two. What lies behind by half of all epochs, as a word that nobody has
  // raised yet may in a group that runs for hours, is not ahead.
  return value - epoch < 16;
}

// Waits until a peer has raised a word to an epoch, or beyond; at most `timeout` ns. Returns whether it has.
__device__ inline bool wait(const u32* word, u32 epoch, Status* status, u64 timeout, u32 peer) {
  if (raised(word, epoch)) return true;
  u64 begin = now();
  for (u32 i = 1;; i++) {
    if (raised(word, epoch)) return true;
    // The host's memory is slow to read.
    if (i % 1024 == 0 && (status->stop != 0 || now() - begin > timeout)) {
      status->missing = 1 + peer;
      __threadfence_system();
      return false;
    }
  }
}
