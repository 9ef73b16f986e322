// Signals between GPUs: 64-bit words in peer-mapped memory, set by one rank and polled by another.
//
// A word holds the epoch of the last operation that the signalling rank has reached; epochs only grow. signal() releases: what the
// rank wrote before is visible to a peer that sees the epoch (acquire).
//
// NOTE [epochs] Epochs have 64 bits, so they never wrap around. At 2 us an operation, 32 bits would last for 2.4 hours; then a word
// that few operations use, for example the flag of a tile of large matmuls, could hold an epoch that is ahead of the operation's.
// 0 means "never signalled".
//
// Invariants
// - Each rank counts its operations in its own memory, so a CUDA graph can be replayed between eager operations.
// - A rank enters an operation by signalling its epoch to the peers. After that it reads no data of earlier operations,
//   so the peers may overwrite those data with the data of this operation.
// - Every wait ends: when the signal arrives, after the timeout, or when the host sets `stop`. Without the signal it reports the
//   missing rank to the host, and holds the stream until the host sets `stop`.
#pragma once

#include "element.cuh"

const int MAX_RANKS = 8;

// Pinned host memory, accessed by both sides while kernels run.
struct Status {
  volatile u32 stop;     // set by the host to end all waits
  volatile u32 missing;  // 1 + a rank that did not arrive or named other ranks (signals.cu); 0: none
  volatile u32 refused;  // why a kernel refused splits (SplitError); 0: it did not
  volatile u32 refused_index;
  volatile u64 refused_value;
  volatile u64 refused_limit;
};

// In ns; the same clock on all SMs.
__device__ inline u64 global_time() {
  u64 time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

__device__ inline void signal(u64* word, u64 epoch) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(epoch) : "memory");
}

// Returns whether a word has reached an epoch.
__device__ inline bool is_signalled(const u64* word, u64 epoch) {
  u64 value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value >= epoch;
}

// The epoch of a rank's next operation.
__device__ inline u64 next_epoch(const u64* count) { return *(const volatile u64*)count + 1; }

const u64 HOLD = 10000000000ull;  // ns

// Reports a peer that did not arrive. Later work on the stream would use incomplete data, and might overwrite data that a peer still
// reads. So this blocks the stream until the host has failed the operation, has told all ranks, and sets `stop`, at most for HOLD.
__device__ inline void give_up(Status* status, u32 missing) {
  status->missing = missing;
  __threadfence_system();
  u64 begin = global_time();
  while (status->stop == 0 && global_time() - begin < HOLD) __nanosleep(1000);
}

// Waits until a peer has signalled an epoch or a later one, at most `timeout` ns. Returns false on timeout or stop.
__device__ inline bool wait_signal(const u64* word, u64 epoch, Status* status, u64 timeout, u32 peer) {
  if (is_signalled(word, epoch)) return true;
  u64 begin = global_time();
  for (u32 i = 1;; i++) {
    if (is_signalled(word, epoch)) return true;
    // Reading host memory is slow: check it and the clock now and then.
    if (i % 1024 == 0 && (status->stop != 0 || global_time() - begin > timeout)) {
      give_up(status, 1 + peer);
      return false;
    }
  }
}
