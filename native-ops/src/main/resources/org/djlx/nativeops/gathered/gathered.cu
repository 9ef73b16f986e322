// All-gather before a matmul, and reduce-scatter behind one, of so few bytes that the latency counts: each is a launch that
// neither waits for a barrier nor raises a flag.
//
// Data tells of itself that it has arrived, as in a one-shot all-reduce; the slots are those of all_reduce.cu, and so is the
// rule by which launches take turns in them. A thread sends its next pack before it waits for what the peers sent of this one.
//
// All ranks launch with the same packs or count. A word of all ones, which is a NaN in each of these types, arrives as another
// NaN. Sums are in float32 and in rank order.
//
// Compiled with
//   RANKS   how many there are, 2 to 8
#ifndef RANKS
#define RANKS 2
#endif
#include "one_shot.cuh"

// Gathers packs of the ranks' shards, which lie at some distance from each other then.
extern "C" __global__ void __launch_bounds__(256) all_gather(const uint4* shard, u64 packs, const __grid_constant__ Launch launch,
                                                         uint4* whole, u64 stride_of_parts) {
  u32 epoch = begin_epoch(launch);
  u64 stride = (u64)gridDim.x * blockDim.x;
  auto load = [&](u64 i) { return i < packs ? shard[i] : make_uint4(0, 0, 0, 0); };
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
    send(i + stride, next);
    uint4 after = load(i + 2 * stride);
    uint4 arrived[RANKS];
    load_arrived(launch, epoch, i, arrived);
#pragma unroll
    for (u32 rank = 0; rank < RANKS; rank++) {
      if (rank != launch.rank) good = good && take_pack(launch, epoch, i, rank, arrived[rank]);
      whole[rank * stride_of_parts + i] = rank == launch.rank ? own : arrived[rank];
    }
    own = next;
    next = after;
  }
  end_epoch(launch, epoch);
}

// Sums elements of part r of the ranks' tensors on rank r; parts lie at some distance from each other.
template <typename T>
__device__ __forceinline__ void reduce_scatter(const typename T::Bits* parts, u64 count, const Launch& launch, typename T::Bits* sums,
                                        u64 stride_of_parts, float divisor) {
  u32 epoch = begin_epoch(launch);
  u64 packs = (count + Pack<T>::COUNT - 1) / Pack<T>::COUNT;
  u64 stride = (u64)gridDim.x * blockDim.x;
  auto load = [&](u32 part, u64 i) {
    return i < packs ? load_pack<T>(parts + part * stride_of_parts, count, i) : make_uint4(0, 0, 0, 0);
  };
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
    load_all(i + stride, pack);
    send(i + stride, pack);
    FloatPack<T> sum;
    good = take_sum<T>(launch, epoch, i, own, sum);
    store_pack<T>(sums, count, i, sum.rounded(divisor));
    own = pack[0];
  }
  end_epoch(launch, epoch);
}

#define REDUCE_SCATTER(name, T)                                                                                       \
  extern "C" __global__ void __launch_bounds__(256)                                                            \
      reduce_scatter_##name(const T::Bits* parts, u64 count, const __grid_constant__ Launch launch, T::Bits* sums,    \
                     u64 stride_of_parts, float divisor) {                                                            \
    reduce_scatter<T>(parts, count, launch, sums, stride_of_parts, divisor);                                                 \
  }

REDUCE_SCATTER(float32, Float32)
REDUCE_SCATTER(float16, Float16)
#ifdef HAS_BFLOAT16
REDUCE_SCATTER(bfloat16, Bfloat16)
#endif
