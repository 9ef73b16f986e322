// Barriers, and the signals of path PIPELINED between copies and matmuls. Kernels of the other paths signal for themselves.
//
// Memory: on each rank, rows of words (RegionLayout); word r of a row is signalled by rank r, words are `distance` bytes apart.
// Word `rank` of row ENTERED is the rank's own count of operations: the epoch that it signals.
// Row MET has a Meeting for each peer.
// Synchronisation: launches of one block, ordered by their stream.
//
// Why not cuStreamWaitValue32 and cuStreamWriteValue32
// - A wait has no deadline, and the host cannot end it: streams share hardware queues, so a wait blocks later work, possibly the
//   very write that would end it.
// - The values are fixed in a graph; epochs are not.
//
// Picture: docs/design/memory-and-signals.md. Experiments: docs/design/experiments/signals.md.
#include "signal.cuh"

struct Entered {
  char* words[MAX_RANKS];  // of each rank: the row
  u64 distance;
  u64 rank;
  u64 ranks;
};

// Enters the next operation: advances this rank's epoch, then signals it to all peers. One thread per rank.
extern "C" __global__ void enter(const __grid_constant__ Entered entered) {
  __shared__ u64 epoch;
  u32 peer = threadIdx.x;
  if (peer == entered.rank) {
    u64* count = (u64*)(entered.words[peer] + peer * entered.distance);
    epoch = next_epoch(count);
    *count = epoch;
  }
  __syncthreads();
  if (peer < entered.ranks && peer != entered.rank) signal((u64*)(entered.words[peer] + entered.rank * entered.distance), epoch);
}

// Signals this rank's epoch to a peer: the stream's earlier work is visible to the peer once it sees the signal.
extern "C" __global__ void signal_peer(u64* word, const u64* count) {
  __threadfence_system();
  signal(word, *count);
}

// Waits for the signals of some peers. One thread per rank.
// words:   of this rank, `distance` bytes apart
// ranks:   bit mask of the ranks to wait for
extern "C" __global__ void wait_signals(const char* words, u64 distance, u32 ranks, const u64* count, Status* status,
                                        u64 timeout) {
  u32 peer = threadIdx.x;
  if (!(ranks >> peer & 1)) return;
  wait_signal((const u64*)(words + peer * distance), *count, status, timeout, peer);
}

// Path PIPELINED with small parts, in one kernel: enters the next operation, sends this rank's part to all ranks, and waits for the
// parts of all peers. To the peers it is the same as `enter`, copies, `signal_peer` and `wait_signals`. One block, a thread per rank or
// more.
// sent:   the row of the signals
// slot:   where the part goes on all ranks. Both are distances from row ENTERED
extern "C" __global__ void exchange(const __grid_constant__ Entered entered, u64 sent, u64 slot, const char* part, u64 bytes,
                                    Status* status, u64 timeout) {
  __shared__ u64 epoch;
  u32 rank = entered.rank, peer = threadIdx.x;
  u64 distance = entered.distance;
  if (peer == rank) {
    u64* count = (u64*)(entered.words[rank] + rank * distance);
    epoch = next_epoch(count);
    *count = epoch;
  }
  __syncthreads();
  bool waits = peer < entered.ranks && peer != rank, good = true;
  if (waits) {
    signal((u64*)(entered.words[peer] + rank * distance), epoch);
    good = wait_signal((const u64*)(entered.words[rank] + peer * distance), epoch, status, timeout, peer);
  }
  if (__syncthreads_and(good)) {  // A peer that has not entered may still read earlier data.
    for (u32 to = 0; to < entered.ranks; to++) {
      char* place = entered.words[to] + slot;
      u64 packs = ((u64)part | (u64)place) % sizeof(uint4) == 0 ? bytes / sizeof(uint4) : 0;
      for (u64 i = threadIdx.x; i < packs; i += blockDim.x) ((uint4*)place)[i] = ((const uint4*)part)[i];
      for (u64 i = packs * sizeof(uint4) + threadIdx.x; i < bytes; i += blockDim.x) place[i] = part[i];
    }
    __threadfence_system();
    __syncthreads();
    if (waits) {
      signal((u64*)(entered.words[peer] + sent + rank * distance), epoch);
      wait_signal((const u64*)(entered.words[rank] + sent + peer * distance), epoch, status, timeout, peer);
    }
  }
}

// Barriers between this rank and a peer. The pair counts them by itself: barriers of one rank with other peers do not disturb it.
struct Meeting {
  u64 epoch;     // the last barrier that the peer has reached
  u64 count;     // this rank's own count
  u32 ranks[2];  // the ranks that the peer named, as bit masks, by the epoch's parity: the peer may be one barrier ahead
};

// Barrier of the ranks in a bit mask: signals them, and waits for their signals. One thread per rank. All these ranks name the same
// ranks. If a peer has named others, sets `missing` to 1 + the peer and, from bit MISMATCH_SHIFT on, the ranks that it named.
const int MISMATCH_SHIFT = 8;

extern "C" __global__ void meet(const __grid_constant__ Entered met, u32 ranks, Status* status, u64 timeout) {
  u32 peer = threadIdx.x;
  if (peer == met.rank || !(ranks >> peer & 1)) return;
  Meeting* own = (Meeting*)(met.words[met.rank] + peer * met.distance);
  Meeting* there = (Meeting*)(met.words[peer] + met.rank * met.distance);
  u64 epoch = own->count + 1;
  own->count = epoch;
  __threadfence_system();
  there->ranks[epoch % 2] = ranks;
  signal(&there->epoch, epoch);
  bool arrived = wait_signal(&own->epoch, epoch, status, timeout, peer);
  u32 named = *(const volatile u32*)&own->ranks[epoch % 2];
  if (arrived && named != ranks) give_up(status, 1 + peer | named << MISMATCH_SHIFT);
}
