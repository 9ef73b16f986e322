// Path PIPELINED: signals of a stream between its copies and matmuls. Kernels of the other paths signal for themselves.
//
// Memory: on each rank, rows of words (RegionLayout); word r of a row is signalled by rank r, words are `distance` bytes apart.
// Word `rank` of row ENTERED is the rank's own count of operations: the epoch that it signals.
// Synchronisation: launches of one block, ordered by their stream.
//
// Why not cuStreamWaitValue32 and cuStreamWriteValue32
// - A wait has no deadline, and the host cannot end it: streams share hardware queues, so a wait blocks later work, possibly the
//   very write that would end it.
// - The values are fixed in a graph; epochs are not.
#include "signal.cuh"

struct Entered {
  char* words[MAX_RANKS];  // of each rank: the row
  u64 distance;
  u64 rank;
  u64 ranks;
};

// Enters the next operation: advances this rank's epoch, then signals it to all peers. One thread per rank.
extern "C" __global__ void enter(const __grid_constant__ Entered entered) {
  __shared__ u32 epoch;
  u32 peer = threadIdx.x;
  if (peer == entered.rank) {
    u32* count = (u32*)(entered.words[peer] + peer * entered.distance);
    epoch = next_epoch(count);
    *count = epoch;
  }
  __syncthreads();
  if (peer < entered.ranks && peer != entered.rank) signal((u32*)(entered.words[peer] + entered.rank * entered.distance), epoch);
}

// Signals this rank's epoch to a peer: the stream's earlier work is visible to the peer once it sees the signal.
extern "C" __global__ void signal_peer(u32* word, const u32* count) {
  __threadfence_system();
  signal(word, *count);
}

const u64 HOLD = 10000000000ull;  // ns

// Waits for the signals of some peers. One thread per rank.
// words:   of this rank, `distance` bytes apart
// ranks:   bit mask of the ranks to wait for
// After a timeout, later work on the stream would use incomplete data and might overwrite data that a peer still reads. So the
// kernel blocks the stream until the host has announced the broken group to all ranks and sets `stop`, at most for HOLD.
extern "C" __global__ void wait_signals(const char* words, u64 distance, u32 ranks, const u32* count, Status* status,
                                        u64 timeout) {
  u32 peer = threadIdx.x;
  if (!(ranks >> peer & 1)) return;
  if (wait_signal((const u32*)(words + peer * distance), *count, status, timeout, peer)) return;
  u64 begin = global_time();
  while (status->stop == 0 && global_time() - begin < HOLD) __nanosleep(1000);
}
