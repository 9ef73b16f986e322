// What an operation that is several launches and copies does with signals, from a stream; launches of one block. Kernels that
// are a whole operation do it themselves.
//
// The driver's own means to wait, cuStreamWaitValue32, has no deadline, and cannot be ended by the host: streams share hardware
// queues, in which a wait holds up whatever comes behind it, and that may be the very write that would end it. And what it
// would compare with, as what cuStreamWriteValue32 writes, is fixed in a graph.
#include "signal.cuh"

// Where ranks tell each other which operation they have entered: on each rank, a word for each that tells it, `distance` bytes
// apart. A rank counts in its own word.
struct Entered {
  char* words[MAX_RANKS];
  u64 distance;
  u64 rank;
  u64 ranks;
};

// Enters the next operation: counts it, and tells the others. A thread for each rank.
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

// Raises a word of a rank to this rank's epoch: what was before on the stream is visible to who sees it.
extern "C" __global__ void signal_peer(u32* word, const u32* count) {
  __threadfence_system();
  signal(word, *count);
}

const u64 HELD = 10000000000ull;  // ns

// Waits for signals of other ranks, a thread for each rank. If one does not come, what follows runs on what is not there, and may
// overwrite what a rank still reads: not before the host has told the other ranks that the group is broken, and says stop.
// words:   of this rank, one for each rank that raises it, `distance` bytes apart
// ranks:   a bit for each rank to wait for
extern "C" __global__ void wait_signals(const char* words, u64 distance, u32 ranks, const u32* count, Status* status,
                                        u64 timeout) {
  u32 peer = threadIdx.x;
  if (!(ranks >> peer & 1)) return;
  if (wait_signal((const u32*)(words + peer * distance), *count, status, timeout, peer)) return;
  u64 begin = global_time();
  while (status->stop == 0 && global_time() - begin < HELD) __nanosleep(1000);
}
