// Path GATHERED: all-gather before a matmul and reduce-scatter after it, for small messages, where latency dominates.
//
// Memory: the slots of one-shot all-reduces. Both kinds of launches alternate between the halves by one epoch (one_shot.cuh).
// Synchronisation: each thread polls for the peers' packs with the indices that it pushed itself; no barrier, no flag.
//
// Invariants
// - All ranks launch with the same number of packs or elements, at most a slot. The number of blocks may differ between ranks; all
//   blocks of a rank must be resident at the same time.
// - A thread sends its next pack before it waits for the peers' current one.
// - A word of all ones, a NaN in every element type, arrives as another NaN.
// - Sums are in float32, in rank order, rounded once.
//
// Experiments: docs/design/experiments/gathered.md.
//
// Compiled with
//   RANKS   world size, 2 to 8
#ifndef RANKS
#define RANKS 2
#endif
#include "one_shot.cuh"

const int GATHERED_THREADS = 256;

// Gathers shards of `packs` packs. Shard r begins at gathered + r * shard_stride packs.
extern "C" __global__ void __launch_bounds__(GATHERED_THREADS)
    all_gather(const uint4* shard, u64 packs, const __grid_constant__ Launch launch, uint4* gathered, u64 shard_stride) {
  u64 epoch = begin_epoch(launch);
  u64 stride = (u64)gridDim.x * blockDim.x;
  auto load = [&](u64 i) { return i < packs ? shard[i] : zeros(); };
  auto send = [&](u64 i, const uint4& pack) {
    if (i >= packs) return;
#pragma unroll
    for (u32 step = 1; step < RANKS; step++) {
      store_relaxed(peer_slot(launch, ring_peer(launch, step), epoch, launch.rank) + i, without_empty(pack));
    }
  };
  u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x;
  uint4 own = load(i);
  uint4 next = load(i + stride);
  send(i, own);
  for (bool good = true; i < packs && good; i += stride) {
    // Step 1: push the next pack, and load the one after it.
    send(i + stride, next);
    uint4 after = load(i + 2 * stride);
    // Step 2: take the peers' current packs.
    uint4 arrived[RANKS];
    load_arrived(launch, epoch, i, arrived);
#pragma unroll
    for (u32 rank = 0; rank < RANKS; rank++) {
      if (rank != launch.rank) good = good && take_pack(launch, epoch, i, rank, arrived[rank]);
      gathered[rank * shard_stride + i] = rank == launch.rank ? own : arrived[rank];
    }
    own = next;
    next = after;
  }
  end_epoch(launch, epoch);
}

// Sums part r of all ranks' tensors on rank r. Part r begins at parts + r * part_stride elements and has `count`.
template <typename T>
__device__ __forceinline__ void reduce_scatter(const typename T::Bits* parts, u64 count, const Launch& launch, typename T::Bits* sums,
                                               u64 part_stride, float divisor) {
  u64 epoch = begin_epoch(launch);
  u64 packs = pack_count<T>(count);
  u64 stride = (u64)gridDim.x * blockDim.x;
  auto load = [&](u32 part, u64 i) { return i < packs ? load_pack<T>(parts + part * part_stride, count, i) : zeros(); };
  auto send = [&](u64 i, const uint4 (&pack)[RANKS]) {
    if (i >= packs) return;
#pragma unroll
    for (u32 step = 1; step < RANKS; step++) {
      store_relaxed(peer_slot(launch, ring_peer(launch, step), epoch, launch.rank) + i, without_empty(pack[step]));
    }
  };
  auto load_all = [&](u64 i, uint4 (&pack)[RANKS]) {
#pragma unroll
    for (u32 step = 0; step < RANKS; step++) pack[step] = load(ring_peer(launch, step), i);
  };
  u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x;
  uint4 pack[RANKS];
  load_all(i, pack);
  send(i, pack);
  uint4 own = pack[0];
  for (bool good = true; i < packs && good; i += stride) {
    // Step 1: push the next packs.
    load_all(i + stride, pack);
    send(i + stride, pack);
    // Step 2: sum this rank's current pack with the peers'.
    FloatPack<T> sum;
    good = take_sum<T>(launch, epoch, i, own, sum);
    store_pack<T>(sums, count, i, sum.rounded(divisor));
    own = pack[0];
  }
  end_epoch(launch, epoch);
}

#define REDUCE_SCATTER(name, T)                                                                                    \
  extern "C" __global__ void __launch_bounds__(GATHERED_THREADS)                                                   \
      reduce_scatter_##name(const T::Bits* parts, u64 count, const __grid_constant__ Launch launch, T::Bits* sums, \
                            u64 part_stride, float divisor) {                                                      \
    reduce_scatter<T>(parts, count, launch, sums, part_stride, divisor);                                           \
  }

REDUCE_SCATTER(float32, Float32)
REDUCE_SCATTER(float16, Float16)
#ifdef HAS_BFLOAT16
REDUCE_SCATTER(bfloat16, Bfloat16)
#endif
