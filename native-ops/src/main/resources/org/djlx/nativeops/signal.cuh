// How GPUs tell each other that data has arrived: words that only grow, raised by one and awaited by another. What was
// written before a word is raised (release) is visible to who has seen it raised (acquire).
//
// Words are raised to the epoch of an operation, which each rank counts in its own memory: so a graph can be replayed, and
// operations that are called may come between replays. A rank enters an operation by telling the others its epoch: from then
// on it reads nothing of what they wrote in an operation before, and they may write what belongs to this one.
//
// Nothing waits for ever: a wait ends after its timeout, or when the host sets `stop`, and then tells the host who was
// missing.
#pragma once

#include "element.cuh"

const int MAX_RANKS = 8;

// Pinned memory of the host, which reads and writes it while kernels run.
struct Status {
  volatile u32 stop;     // written by the host
  volatile u32 missing;  // 1 + a rank that did not arrive; 0 if all did
};

__device__ inline u64 global_time() {
  u64 time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

__device__ inline void signal(u32* word, u32 epoch) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(epoch) : "memory");
}

__device__ inline bool is_signalled(const u32* word, u32 epoch) {
  u32 value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  // Nobody is further ahead than an operation or two. What lies behind by half of all epochs, as a word that nobody has
  // raised for hours may, is not ahead; nor is one that nobody has raised yet.
  return value != 0 && value - epoch < 16;
}

// The epoch of the operation behind those that a rank has counted.
__device__ inline u32 next_epoch(const u32* count) {
  u32 epoch = *(const volatile u32*)count + 1;
  return epoch == 0 ? 1 : epoch;
}

// Waits until a peer has raised a word to an epoch, or beyond; at most `timeout` ns. Returns whether it has.
__device__ inline bool wait_signal(const u32* word, u32 epoch, Status* status, u64 timeout, u32 peer) {
  if (is_signalled(word, epoch)) return true;
  u64 begin = global_time();
  for (u32 i = 1;; i++) {
    if (is_signalled(word, epoch)) return true;
    // The host's memory is slow to read.
    if (i % 1024 == 0 && (status->stop != 0 || global_time() - begin > timeout)) {
      status->missing = 1 + peer;
      __threadfence_system();
      return false;
    }
  }
}
