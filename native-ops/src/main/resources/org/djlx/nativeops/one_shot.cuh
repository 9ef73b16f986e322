// A rank's region, which its peers write into, for the kernels that use it one after the other: what it begins with, the
// halves of its data, and the count of launches; all_reduce.cu says how it is divided. Then the data of one-shot kernels,
// which tells of itself that it has arrived.
//
// Invariant: while a kernel waits for a peer, everything that the peer has enqueued before its own kernel can still start. On a
// GPU of its own a rank's stream guarantees that. Where ranks share a GPU, waiting blocks may take the SMs that a peer's matmul
// needs: cuBLAS launches clusters of eight blocks that fill an SM each, and such a cluster starts only when eight SMs of one GPC
// are free at once. So the kernels of all ranks but one take at most half of the SMs together (P2p.waitingBlocks).
//
// Every kernel that waits has this limit: one-shot, two-shot, mesh and direct all-reduce, gather and scatter, all-reduce + RMSNorm,
// fused matmul. One kernel still breaks the invariant, in graphs: all-reduce + RMSNorm lets the next kernel begin before it waits
// (let_others_begin), and the blocks of that kernel, which the limit does not count, keep their SMs until the wait ends.
#pragma once

#include "element.cuh"
#include "signal.cuh"

const int MAX_BLOCKS = 64;
const int PHASES = 2;
const int TOLD = 3;

// At the beginning of a rank's region. The flags are raised by others.
struct Control {
  u32 flags[PHASES][MAX_BLOCKS][MAX_RANKS];
  u32 epoch;      // launches that have ended
  u32 ended;      // blocks of this launch that have ended
  u64 told[MAX_RANKS][TOLD];  // by each of the others, where they read and write each other's tensors
};

struct Peers {
  char* region[MAX_RANKS];  // of each rank, as this GPU addresses it; null if it is not linked
};

struct Launch {
  Peers peers;
  Status* status;
  u64 timeout;     // ns
  u64 begin;       // of the halves, from the beginning of a region
  u64 half_bytes;
  u64 slot_bytes;
  u64 rank;
};

__device__ Control* control(const Launch& launch, u32 rank) { return (Control*)launch.peers.region[rank]; }

// This launch's half of a rank's data.
__device__ char* half_of(const Launch& launch, u32 rank, u32 epoch) {
  return launch.peers.region[rank] + launch.begin + (epoch & 1) * launch.half_bytes;
}

__device__ uint4* slot(const Launch& launch, u32 rank, u32 epoch, u32 source) {
  return (uint4*)(half_of(launch, rank, epoch) + source * launch.slot_bytes);
}

// Epochs are not 0, which words have that nobody has raised; halves are used in turn when they begin anew, too.
__device__ u32 begin_epoch(const Launch& launch) {
  u32 epoch = *(volatile u32*)&control(launch, launch.rank)->epoch + 1;
  return epoch == 0 ? 2 : epoch;
}

// The last block to end counts the launch, for the next one: all have read the epoch. There is nothing to fence, and a fence
// would wait for what is on its way to the peers, which takes as long as the rest of a small all-reduce.
__device__ void end_epoch(const Launch& launch, u32 epoch) {
  __syncthreads();
  if (threadIdx.x == 0) {
    Control* own = control(launch, launch.rank);
    if (gridDim.x == 1 || atomicAdd(&own->ended, 1) == gridDim.x - 1) {
      own->ended = 0;
      *(volatile u32*)&own->epoch = epoch;
    }
  }
}

// In one-shot, where a rank has no slot for itself.
__device__ uint4* slot_of_other(const Launch& launch, u32 rank, u32 epoch, u32 source) {
  return slot(launch, rank, epoch, source < rank ? source : source - 1);
}

__device__ __forceinline__ void put(uint4* to, const uint4& value) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

__device__ __forceinline__ uint4 get(const uint4* from) {
  uint4 value;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from)
               : "memory");
  return value;
}

// A word that is not there yet: a NaN that nobody sends.
const u32 ABSENT = 0xffffffff;

// Another NaN instead; sums have one NaN only.
__device__ __forceinline__ u32 present(u32 word) { return word == ABSENT ? 0x7fffffff : word; }

__device__ __forceinline__ uint4 present(const uint4& value) {
  return make_uint4(present(value.x), present(value.y), present(value.z), present(value.w));
}

__device__ __forceinline__ bool is_present(const uint4& value) {
  return value.x != ABSENT && value.y != ABSENT && value.z != ABSENT && value.w != ABSENT;
}

// Waits until a peer has put its data, and returns it; returns false if it does not come.
__device__ __forceinline__ bool await_data(const Launch& launch, const uint4* from, u32 peer, uint4& value) {
  if (is_present(value)) return true;
  u64 begin = now();
  for (u32 i = 1; !is_present(value); i++) {
    value = get(from);
    if (i % 1024 == 0 && (launch.status->stop != 0 || now() - begin > launch.timeout)) {
      launch.status->missing = 1 + peer;
      __threadfence_system();
      return false;
    }
  }
  return true;
}

#ifdef RANKS  // by kernels that are compiled for a number of ranks

// The rank that is some steps behind this one, in a ring: so that not all send to the same one first.
__device__ __forceinline__ u32 other(const Launch& launch, u32 step) {
  u32 peer = launch.rank + step;
  return peer < RANKS ? peer : peer - RANKS;
}

// Reads what all others put at `i` of their slots, as far as it is there.
__device__ __forceinline__ void get_all(const Launch& launch, u32 epoch, u64 i, uint4 (&arrived)[RANKS]) {
#pragma unroll
  for (u32 peer = 0; peer < RANKS; peer++) {
    if (peer != launch.rank) arrived[peer] = get(slot_of_other(launch, launch.rank, epoch, peer) + i);
  }
}

// Waits until a peer has put its data at `i` of its slot, returns it, and leaves the slot as it was; returns false if it does
// not come.
__device__ __forceinline__ bool take(const Launch& launch, u32 epoch, u64 i, u32 peer, uint4& value) {
  uint4* from = slot_of_other(launch, launch.rank, epoch, peer) + i;
  bool good = await_data(launch, from, peer, value);
  *from = make_uint4(ABSENT, ABSENT, ABSENT, ABSENT);
  return good;
}

// Sums a pack of this rank's with those of all others at `i`, in rank order. Returns false if one did not come.
template <typename T>
__device__ __forceinline__ bool take_sum(const Launch& launch, u32 epoch, u64 i, const uint4& own, Sum<T>& sum) {
  uint4 arrived[RANKS];
  get_all(launch, epoch, i, arrived);
  bool good = true;
#pragma unroll
  for (u32 peer = 0; peer < RANKS; peer++) {
    uint4 part = own;
    if (peer != launch.rank) {
      good = good && take(launch, epoch, i, peer, arrived[peer]);
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
