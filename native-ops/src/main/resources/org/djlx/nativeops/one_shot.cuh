// The region of a rank that its peers write to, and low-latency pushes into it: the data itself is the signal.
//
// Region: | Control | … | half 0 | half 1 |. A half holds one slot per peer; launches alternate between the halves by epoch.
// all_reduce.cu describes the layout of each algorithm.
//
// Low-latency pushes (Lamport; also in TensorRT-LLM and FlashInfer): an idle slot holds EMPTY words. A peer stores 16-byte packs
// that contain no EMPTY word; the owner polls its own memory until no word of a pack is EMPTY, reads the pack and stores EMPTY
// back. No barrier, no flag, no clearing pass.
//
// Invariants
// - A half is free when launch e writes to it. Its last readers are the kernels of launch e - 2. A rank starts launch e after it has
//   received the data of launch e - 1 from all peers, and a peer pushes these data after its kernel of launch e - 2 has ended.
// - While a kernel waits for a peer, all work that the peer has enqueued before its own kernel can still start. With one rank per
//   GPU, stream order ensures this. If ranks share a GPU, waiting blocks may occupy SMs that a peer's matmul needs: cuBLAS launches
//   clusters of eight blocks that fill an SM each, and a cluster starts only when eight SMs of one GPC are free. Therefore the
//   waiting kernels of all ranks except one use at most half of the SMs together (P2pParts.waitingBlocks).
//   The limit holds for every kernel that waits: one-shot, two-shot, mesh and direct all-reduce, gathered.cu, all-reduce +
//   RMSNorm, fused matmul. A kernel that waits launches dependents after its last wait, because the limit does not count the blocks
//   of a dependent kernel.
#pragma once

#include "element.cuh"
#include "signal.cuh"

const int MAX_BLOCKS = 64;
const int PHASES = 2;
const int TENSOR_WORDS = 4;

// The beginning of a rank's region. Peers write flags and tensors.
struct Control {
  u64 flags[PHASES][MAX_BLOCKS][MAX_RANKS];
  u64 epoch;                             // of the last launch that has ended
  u64 tensors[MAX_RANKS][TENSOR_WORDS];  // of each peer, for direct all-reduces (publish_tensor)
  u32 blocks_ended;                      // of the current launch
};

struct Peers {
  char* region[MAX_RANKS];  // of each rank, as mapped on this GPU; null if it is not linked
};

// Kernel argument. Java: OneShotSlots.launch, AllReduceKernels.
struct Launch {
  Peers peers;
  Status* status;
  u64 timeout;     // ns
  u64 begin;       // offset of half 0 in a region
  u64 half_bytes;
  u64 slot_bytes;
  u64 rank;
};

__device__ Control* control(const Launch& launch, u32 rank) { return (Control*)launch.peers.region[rank]; }

// The half of a rank's region that this launch uses.
__device__ char* half_address(const Launch& launch, u32 rank, u64 epoch) {
  return launch.peers.region[rank] + launch.begin + (epoch & 1) * launch.half_bytes;
}

__device__ uint4* slot(const Launch& launch, u32 rank, u64 epoch, u32 source) {
  return (uint4*)(half_address(launch, rank, epoch) + source * launch.slot_bytes);
}

// The slot of `source` on `rank`. Slots are in the order of their sources; `rank` has no slot for itself.
__device__ uint4* peer_slot(const Launch& launch, u32 rank, u64 epoch, u32 source) {
  return slot(launch, rank, epoch, source < rank ? source : source - 1);
}

__device__ u64 begin_epoch(const Launch& launch) { return next_epoch(&control(launch, launch.rank)->epoch); }

// The last block to end stores the epoch for the next launch; all blocks have read it before. No fence: there is nothing to order,
// and a fence would wait for the stores to the peers, which takes as long as the rest of a small all-reduce.
__device__ void end_epoch(const Launch& launch, u64 epoch) {
  __syncthreads();
  if (threadIdx.x == 0) {
    Control* own = control(launch, launch.rank);
    if (gridDim.x == 1 || atomicAdd(&own->blocks_ended, 1) == gridDim.x - 1) {
      own->blocks_ended = 0;
      *(volatile u64*)&own->epoch = epoch;
    }
  }
}

__device__ __forceinline__ void store_relaxed(uint4* to, const uint4& value) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

__device__ __forceinline__ uint4 load_relaxed(const uint4* from) {
  uint4 value;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from)
               : "memory");
  return value;
}

// A word that has not arrived: a NaN in every element type, never sent.
const u32 EMPTY = 0xffffffff;

// Replaces EMPTY words by another NaN before they are sent. Sums contain no EMPTY word: the only NaN that the hardware makes has the sign bit 0.
__device__ __forceinline__ u32 without_empty(u32 word) { return word == EMPTY ? 0x7fffffff : word; }

__device__ __forceinline__ uint4 without_empty(const uint4& value) {
  return make_uint4(without_empty(value.x), without_empty(value.y), without_empty(value.z), without_empty(value.w));
}

__device__ __forceinline__ bool has_arrived(const uint4& value) {
  return value.x != EMPTY && value.y != EMPTY && value.z != EMPTY && value.w != EMPTY;
}

const int FAST_POLLS = 32;            // about 20 us
const u32 SLOWER = 16, SLOWEST = 8192;  // ns of sleep: for each poll so far, and at most
const int POLLS_TO_CHECK = 1024;      // about 8 ms

// Polls a pack until the peer's data has arrived. `value` is the pack as last loaded, and the result. Returns false on timeout or
// stop. After FAST_POLLS it sleeps between polls, for 2 % of the wait so far.
//
// Up to 270,000 threads poll, and a read of host memory by each warp takes a millisecond together. If waits of a millisecond led to
// such reads, a single late launch would make all later ones late: in that time the peer waits, and begins to read, too. So reads are
// rare, and warps take turns.
__device__ __forceinline__ bool wait_data(const Launch& launch, const uint4* from, u32 peer, uint4& value) {
  if (has_arrived(value)) return true;
  u64 begin = global_time();
  for (u32 i = 1; !has_arrived(value); i++) {
    if (i > FAST_POLLS) __nanosleep(min(i * SLOWER, SLOWEST));
    value = load_relaxed(from);
    if (i % POLLS_TO_CHECK != 0) continue;
    bool asks_host = (i / POLLS_TO_CHECK + threadIdx.x / WARP) % 8 == 0;
    if ((asks_host && launch.status->stop != 0) || global_time() - begin > launch.timeout) {
      give_up(launch.status, 1 + peer);
      return false;
    }
  }
  return true;
}

#ifdef RANKS  // kernels compiled for a fixed world size

// The peer at a distance in ring order. Ranks start with different peers, so they do not all send to the same one first.
__device__ __forceinline__ u32 ring_peer(const Launch& launch, u32 step) {
  u32 peer = launch.rank + step;
  return peer < RANKS ? peer : peer - RANKS;
}

// Loads pack `i` of all peers' slots, whether or not it has arrived: all loads are in flight before the first wait.
__device__ __forceinline__ void load_arrived(const Launch& launch, u64 epoch, u64 i, uint4 (&arrived)[RANKS]) {
#pragma unroll
  for (u32 peer = 0; peer < RANKS; peer++) {
    if (peer != launch.rank) arrived[peer] = load_relaxed(peer_slot(launch, launch.rank, epoch, peer) + i);
  }
}

// Waits for pack `i` of a peer's slot, returns it in `value` and empties the slot. Returns false on timeout or stop.
__device__ __forceinline__ bool take_pack(const Launch& launch, u64 epoch, u64 i, u32 peer, uint4& value) {
  uint4* from = peer_slot(launch, launch.rank, epoch, peer) + i;
  bool good = wait_data(launch, from, peer, value);
  *from = make_uint4(EMPTY, EMPTY, EMPTY, EMPTY);
  return good;
}

// Sums this rank's pack and pack `i` of all peers' slots, in rank order. Returns false on timeout or stop.
template <typename T>
__device__ __forceinline__ bool take_sum(const Launch& launch, u64 epoch, u64 i, const uint4& own, FloatPack<T>& sum) {
  uint4 arrived[RANKS];
  load_arrived(launch, epoch, i, arrived);
  bool good = true;
#pragma unroll
  for (u32 peer = 0; peer < RANKS; peer++) {
    uint4 part = own;
    if (peer != launch.rank) {
      good = good && take_pack(launch, epoch, i, peer, arrived[peer]);
      part = arrived[peer];
    }
    if (peer == 0) {
      sum.set(part);
    } else {
      sum.add(part);
    }
  }
  return good;
}

#endif
