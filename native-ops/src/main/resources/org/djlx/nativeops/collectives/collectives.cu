// All-gather, broadcast, all-to-all and reduce-scatter by pushes: the data itself is the signal (one_shot.cuh).
//
// Memory: the slots of one-shot all-reduces. A slot holds `slot_packs` packs, then an escape word for each of them. All launches of a
// rank alternate between the halves by one epoch, whatever the kernel.
// Synchronisation: a thread polls for the packs that it needs. No barrier, no flag, so CUDA graphs replay the kernels as they are.
//
// NOTE [escapes] Moves keep every bit, but an idle slot holds EMPTY words. A word that equals EMPTY is sent as ESCAPE. If a pack has an
// ESCAPE word, real or not, the sender also stores an escape word: a bit for each word of the pack that stands for EMPTY. The receiver
// polls for it only after it has seen ESCAPE, and stores EMPTY back.
//
// NOTE [tokens] A rank may start launch e only after it has received data of launch e - 1 from every peer (one_shot.cuh). Therefore each
// rank sends at least one pack to every peer in every launch, even if it has no bytes for it.
//
// NOTE [rounds] The ranks of an all-to-all know the sizes of their own parts only, so they cannot agree on a number of launches. One
// launch moves parts larger than a slot in rounds, which use the halves in turn. Two ranks know what they send each other, and use the
// same rounds:
// - Both send the larger of the two sizes, padded with zeros.
// - A position of a slot belongs to one thread of each rank. A thread takes all its packs of a round, then fences, then sends those of the
//   next round. So a pack of round k shows that the peer has taken its packs of round k - 1. Round k + 1 may reuse that half.
// - The number of rounds is odd. So the next launch begins in the half that the peer is known to have emptied.
//
// Invariants
// - Blocks wait for packs and not for blocks, so ranks may launch different numbers of blocks. All blocks of a rank must be resident.
// - A thread sends its next packs before it waits for the peers' current ones.
// - Sums are in float32, in rank order, rounded once: the same bits in every run.
//
// Compiled with
//   RANKS   world size, 2 to 8
#ifndef RANKS
#define RANKS 2
#endif
#include "one_shot.cuh"

const int COLLECTIVE_THREADS = RANKS <= 4 ? 1024 : 512;

const u32 ESCAPE = 0x7fffffff;

// What this rank sends and receives, by peer; its own entry is copied locally. A part without an address is received and dropped.
// Java: ExchangeKernels.
struct Parts {
  const char* send[MAX_RANKS];
  char* receive[MAX_RANKS];
  u64 send_bytes[MAX_RANKS];
  u64 receive_bytes[MAX_RANKS];
  u64 send_packs[MAX_RANKS];  // at least 1, with padding
  u64 receive_packs[MAX_RANKS];
  u64 round_packs[MAX_RANKS];  // of each round, at most a slot
  u64 positions;               // the largest of round_packs
  u64 rounds;                  // of the peer with the most
  u64 slot_packs;
};

__device__ __forceinline__ void store_relaxed(u32* to, u32 value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

__device__ __forceinline__ u32 load_relaxed(const u32* from) {
  u32 value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

union Bytes {
  uint4 vector;
  u32 words[4];
  unsigned char bytes[16];
};

// Loads pack `i` of a part. ALIGNED: address and size are multiples of a pack. Bytes past the end are 0.
template <bool ALIGNED>
__device__ __forceinline__ uint4 load_bytes(const char* from, u64 size, u64 i) {
  if (ALIGNED) return ((const uint4*)from)[i];
  Bytes pack;
  u64 begin = i * 16;
  if (begin + 16 <= size && ((u64)from & 3) == 0) {
#pragma unroll
    for (int k = 0; k < 4; k++) pack.words[k] = ((const u32*)(from + begin))[k];
    return pack.vector;
  }
#pragma unroll
  for (int k = 0; k < 16; k++) pack.bytes[k] = begin + k < size ? from[begin + k] : 0;
  return pack.vector;
}

// Stores pack `i` of a part; bytes past the end are not stored.
template <bool ALIGNED>
__device__ __forceinline__ void store_bytes(char* to, u64 size, u64 i, const uint4& value) {
  if (ALIGNED) {
    ((uint4*)to)[i] = value;
    return;
  }
  Bytes pack;
  pack.vector = value;
  u64 begin = i * 16;
  if (begin + 16 <= size && ((u64)to & 3) == 0) {
#pragma unroll
    for (int k = 0; k < 4; k++) ((u32*)(to + begin))[k] = pack.words[k];
    return;
  }
#pragma unroll
  for (int k = 0; k < 16; k++)
    if (begin + k < size) to[begin + k] = pack.bytes[k];
}

__device__ __forceinline__ u64 packs_of(u64 bytes) { return (bytes + 15) / 16; }

__device__ __forceinline__ bool has_word(const uint4& value, u32 word) {
  return value.x == word || value.y == word || value.z == word || value.w == word;
}

// The escape word of pack `i` of a slot.
__device__ __forceinline__ u32* escape_word(uint4* slot, u64 slot_packs, u64 i) { return (u32*)(slot + slot_packs) + i; }

// Stores a pack into position `i` of a peer's slot. See NOTE [escapes].
__device__ __forceinline__ void send_pack(uint4* slot, u64 slot_packs, u64 i, const uint4& value) {
  uint4 sent = value;
  if (has_word(value, EMPTY) || has_word(value, ESCAPE)) {
    u32 escaped = (value.x == EMPTY) | (value.y == EMPTY) << 1 | (value.z == EMPTY) << 2 | (value.w == EMPTY) << 3;
    sent = without_empty(value);
    store_relaxed(escape_word(slot, slot_packs, i), escaped);
  }
  store_relaxed(slot + i, sent);
}

// Takes an escape word. Returns EMPTY on timeout or stop.
__device__ __noinline__ u32 take_escape(const Launch& launch, u32* word, u32 peer) {
  u64 begin = global_time();
  u32 escaped = load_relaxed(word);
  for (u32 i = 1; escaped == EMPTY; i++) {
    escaped = load_relaxed(word);
    if (i % 1024 == 0 && (launch.status->stop != 0 || global_time() - begin > launch.timeout)) {
      give_up(launch.status, 1 + peer);
      return EMPTY;
    }
  }
  store_relaxed(word, EMPTY);
  return escaped;
}

// Moves parts between all ranks. SAME: this rank sends one part to all peers.
template <bool SAME, bool ALIGNED>
__device__ __forceinline__ void exchange(const Launch& launch, const Parts& parts) {
  u64 epoch = begin_epoch(launch);
  u64 stride = (u64)gridDim.x * blockDim.x;
  u64 first = blockIdx.x * (u64)blockDim.x + threadIdx.x;
  bool good = true;
  for (u64 round = 0; round < parts.rounds && good; round++) {
    u64 half = epoch + round;
    auto index_of = [&](u32 peer, u64 i) { return round * parts.round_packs[peer] + i; };
    // Step 1: push the packs at position i, and copy this rank's own.
    auto send = [&](u64 i) {
      if (i >= parts.positions) return;
      uint4 value[SAME ? 1 : RANKS];
#pragma unroll
      for (u32 step = 0; step < (SAME ? 1 : RANKS); step++) {
        u32 peer = ring_peer(launch, step);
        u64 index = index_of(peer, i), bytes = parts.send_bytes[peer];
        bool has = i < parts.round_packs[peer] && index < packs_of(bytes);
        value[step] = has ? load_bytes<ALIGNED>(parts.send[peer], bytes, index) : zeros();
      }
#pragma unroll
      for (u32 step = 1; step < RANKS; step++) {
        u32 peer = ring_peer(launch, step);
        if (i >= parts.round_packs[peer] || index_of(peer, i) >= parts.send_packs[peer]) continue;
        send_pack(peer_slot(launch, peer, half, launch.rank), parts.slot_packs, i, value[SAME ? 0 : step]);
      }
      u64 index = index_of(launch.rank, i), bytes = parts.receive_bytes[launch.rank];
      if (i < parts.round_packs[launch.rank] && index < packs_of(bytes)) {
        store_bytes<ALIGNED>(parts.receive[launch.rank], bytes, index, value[0]);
      }
    };
    // Step 2: take the peers' packs. All loads are in flight before the first wait.
    auto take = [&](u64 i) {
      uint4 arrived[RANKS];
      auto has = [&](u32 peer) {
        return peer != launch.rank && i < parts.round_packs[peer] && index_of(peer, i) < parts.receive_packs[peer];
      };
#pragma unroll
      for (u32 peer = 0; peer < RANKS; peer++) {
        if (has(peer)) arrived[peer] = load_relaxed(peer_slot(launch, launch.rank, half, peer) + i);
      }
#pragma unroll
      for (u32 peer = 0; peer < RANKS; peer++) {
        if (!has(peer) || !good) continue;
        uint4* slot = peer_slot(launch, launch.rank, half, peer);
        good = wait_data(launch, slot + i, peer, arrived[peer]);
        uint4 value = arrived[peer];
        if (good && has_word(value, ESCAPE)) {
          u32 escaped = take_escape(launch, escape_word(slot, parts.slot_packs, i), peer);
          good = escaped != EMPTY;
          if (escaped & 1) value.x = EMPTY;
          if (escaped & 2) value.y = EMPTY;
          if (escaped & 4) value.z = EMPTY;
          if (escaped & 8) value.w = EMPTY;
        }
        slot[i] = make_uint4(EMPTY, EMPTY, EMPTY, EMPTY);
        char* to = parts.receive[peer];
        u64 index = index_of(peer, i), bytes = parts.receive_bytes[peer];
        if (good && to != nullptr && index < packs_of(bytes)) store_bytes<ALIGNED>(to, bytes, index, value);
      }
    };
    if (round > 0) __threadfence_system();
    send(first);
    for (u64 i = first; i < parts.positions && good; i += stride) {
      send(i + stride);
      take(i);
    }
  }
  end_epoch(launch, epoch);
}

#define EXCHANGE(name, SAME, ALIGNED)                                              \
  extern "C" __global__ void __launch_bounds__(COLLECTIVE_THREADS)                 \
      name(const __grid_constant__ Launch launch, const __grid_constant__ Parts parts) { \
    exchange<SAME, ALIGNED>(launch, parts);                                        \
  }

EXCHANGE(gather_packs, true, true)
EXCHANGE(gather_bytes, true, false)
EXCHANGE(exchange_packs, false, true)
EXCHANGE(exchange_bytes, false, false)

// Sums part r of all ranks' tensors on rank r. `send` are this rank's parts, all of `count` elements, at most a slot.
template <typename T>
__device__ __forceinline__ void reduce_scatter(const Launch& launch, const Parts& parts, typename T::Bits* sums, u64 count,
                                               float divisor) {
  u64 epoch = begin_epoch(launch);
  u64 packs = pack_count<T>(count);
  u64 stride = (u64)gridDim.x * blockDim.x;
  auto load = [&](u32 peer, u64 i) { return load_pack<T>((const typename T::Bits*)parts.send[peer], count, i); };
  auto send = [&](u64 i) {
    if (i >= packs) return;
    uint4 value[RANKS];
#pragma unroll
    for (u32 step = 1; step < RANKS; step++) value[step] = load(ring_peer(launch, step), i);
#pragma unroll
    for (u32 step = 1; step < RANKS; step++) {
      store_relaxed(peer_slot(launch, ring_peer(launch, step), epoch, launch.rank) + i, without_empty(value[step]));
    }
  };
  u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x;
  send(i);
  for (bool good = true; i < packs && good; i += stride) {
    send(i + stride);
    FloatPack<T> sum;
    good = take_sum<T>(launch, epoch, i, load(launch.rank, i), sum);
    store_pack<T>(sums, count, i, sum.rounded(divisor));
  }
  end_epoch(launch, epoch);
}

// Sums the parts of all ranks, after copies have brought them into this GPU's memory. `send` are the parts, of `count` elements each.
template <typename T>
__device__ __forceinline__ void sum_parts(const Parts& parts, typename T::Bits* sums, u64 count, float divisor) {
  u64 packs = pack_count<T>(count);
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < packs; i += (u64)gridDim.x * blockDim.x) {
    uint4 values[RANKS];
#pragma unroll
    for (u32 rank = 0; rank < RANKS; rank++) values[rank] = load_pack<T>((const typename T::Bits*)parts.send[rank], count, i);
    FloatPack<T> sum;
    sum.set(values[0]);
#pragma unroll
    for (u32 rank = 1; rank < RANKS; rank++) sum.add(values[rank]);
    store_pack<T>(sums, count, i, sum.rounded(divisor));
  }
}

#define REDUCE_SCATTER(name, T)                                                                                               \
  extern "C" __global__ void __launch_bounds__(COLLECTIVE_THREADS)                                                            \
      reduce_scatter_##name(const __grid_constant__ Launch launch, const __grid_constant__ Parts parts, T::Bits* sums, u64 count, \
                            float divisor) {                                                                                  \
    reduce_scatter<T>(launch, parts, sums, count, divisor);                                                                   \
  }                                                                                                                           \
  extern "C" __global__ void __launch_bounds__(COLLECTIVE_THREADS)                                                            \
      sum_parts_##name(const __grid_constant__ Parts parts, T::Bits* sums, u64 count, float divisor) {                        \
    sum_parts<T>(parts, sums, count, divisor);                                                                                \
  }

REDUCE_SCATTER(float32, Float32)
REDUCE_SCATTER(float16, Float16)
#ifdef HAS_BFLOAT16
REDUCE_SCATTER(bfloat16, Bfloat16)
#endif
