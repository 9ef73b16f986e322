// All-reduce between the GPUs of a host that can write into each other's memory.
//
// Every rank has a region of memory that all can write, or for the mesh, those that are linked to it. It begins with the
// control block of one_shot.cuh; behind it lie two halves of data, used in turn by one launch after the other, and two more for
// the mesh:
//
//   one-shot   slots of the other ranks, in their order         a slot holds a whole tensor, or what is not there yet
//   two-shot   the same slots                                   a slot holds a part, and from its middle on the sum of another
//   mesh       slot of rank 0 | slot of rank 1 | …             a slot holds a whole tensor
//   direct     none: every rank reads and writes the others' tensors themselves
//
// But for direct, data is pushed. In one-shot and two-shot, whoever reads it sees whether it has arrived. In the mesh a block
// writes its packs into the slots of the peers, then raises its flag on them; it waits for the flags of the same block on the
// peers, which have written the same packs, and needs no other block. Flags are epochs, which only grow, and the epoch is
// counted in memory, so that a launch can be replayed by a graph.
//
// A half is free when it is written again: its last readers were the kernels of two launches before; what a peer sent in the
// launch between, data or a flag, it sent after its kernel before had ended.
//
// All ranks launch with the same count, and in the mesh with the same blocks and threads. Sums are in float32 and in rank order
// (mesh: each four ranks, then the two sums), so that all ranks get the same bits.
//
// Compiled with
//   RANKS   how many there are, 2 to 8; the mesh is of 8
//
// Nothing waits for ever: a wait ends after `timeout` nanoseconds, or when the host sets `stop`. Then the kernel tells
// the host who was missing and ends; what it has written into the tensor is worthless.
#ifndef RANKS
#define RANKS 2
#endif
#include "one_shot.cuh"

// Tells the ranks in `mask`, by the flags of a block, that this one has written what they wait for, and waits until they have
// told this one. Returns false, to all threads of the block, if one did not.
__device__ bool flag_barrier(const Launch& launch, int phase, u32 block, u32 mask, u32 epoch) {
  __syncthreads();  // all threads' writes come before the flags
  bool good = true;
  u32 peer = threadIdx.x;
  if (peer < RANKS && (mask >> peer & 1)) {
    __threadfence_system();
    signal(&control(launch, peer)->flags[phase][block][launch.rank], epoch);
    good = wait_signal(&control(launch, launch.rank)->flags[phase][block][peer], epoch, launch.status, launch.timeout, peer);
  }
  return __syncthreads_and(good);
}

// Every rank sends everything to all; all sum. There is no barrier and no flag: the data alone tells that it has arrived, as
// until then there is something that nobody sends, and who has read a pack puts that back. (Lamport's idea; TensorRT-LLM and
// FlashInfer use -0 so.) A thread sends its next pack, and reads the one behind that from the tensor, before it waits for what
// the peers sent of this one: neither the links nor the memory are idle meanwhile.
template <typename T>
__device__ __forceinline__ void one_shot(typename T::Bits* tensor, u64 count, const Launch& launch, float divisor) {
  u32 epoch = begin_epoch(launch);
  u64 packs = pack_count<T>(count);
  u64 stride = (u64)gridDim.x * blockDim.x;
  auto load = [&](u64 i) { return i < packs ? load_pack<T>(tensor, count, i) : zeros(); };
  auto send = [&](u64 i, const uint4& pack) {
    if (i >= packs) return;
    for (u32 step = 1; step < RANKS; step++) {
      u32 peer = ring_peer(launch, step);
      store_relaxed(peer_slot(launch, peer, epoch, launch.rank) + i, without_empty(pack));
    }
  };
  u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x;
  uint4 own = load(i);
  uint4 next = load(i + stride);
  send(i, own);
  for (bool good = true; i < packs && good; i += stride) {
    send(i + stride, next);
    uint4 after = load(i + 2 * stride);
    FloatPack<T> sum;
    good = take_sum<T>(launch, epoch, i, own, sum);
    store_pack<T>(tensor, count, i, sum.rounded(divisor));
    own = next;
    next = after;
  }
  end_epoch(launch, epoch);
}

// Every rank sends part p to rank p, which sums it and sends the sum to all. As in one-shot, the data tells of itself; the
// second half of a slot has sums. A thread sends its next packs before it sums the present ones, and takes the sums of those
// before after that, so that neither way to the peers and back is waited for while there is something else to do.
//
// It may wait for a thread of a peer, which may wait for another, but each for an earlier pack: the first ones wait for nobody.
template <typename T>
__device__ __forceinline__ void two_shot(typename T::Bits* tensor, u64 count, const Launch& launch, float divisor) {
  u32 epoch = begin_epoch(launch);
  u64 packs = pack_count<T>(count);
  u64 part = (packs + RANKS - 1) / RANKS;
  u64 sums = launch.slot_bytes / (2 * sizeof(uint4));
  u64 stride = (u64)gridDim.x * blockDim.x;
  auto send = [&](u64 i) {
    if (i >= part) return;
#pragma unroll
    for (u32 step = 1; step < RANKS; step++) {
      u32 peer = ring_peer(launch, step);
      u64 source = peer * part + i;
      if (source < packs) store_relaxed(peer_slot(launch, peer, epoch, launch.rank) + i, without_empty(load_pack<T>(tensor, count, source)));
    }
  };
  auto add = [&](u64 i) {
    u64 index = launch.rank * part + i;
    if (index >= packs) return true;
    FloatPack<T> sum;
    bool good = take_sum<T>(launch, epoch, i, load_pack<T>(tensor, count, index), sum);
    uint4 value = sum.rounded(divisor);
    for (u32 step = 1; step < RANKS; step++) {
      store_relaxed(peer_slot(launch, ring_peer(launch, step), epoch, launch.rank) + sums + i, value);
    }
    store_pack<T>(tensor, count, index, value);
    return good;
  };
  auto take_sums = [&](u64 i) {
    uint4 arrived[RANKS];
    load_arrived(launch, epoch, sums + i, arrived);
    bool good = true;
#pragma unroll
    for (u32 peer = 0; peer < RANKS; peer++) {
      u64 index = peer * part + i;
      if (peer == launch.rank || index >= packs) continue;
      good = good && take_pack(launch, epoch, sums + i, peer, arrived[peer]);
      store_pack<T>(tensor, count, index, arrived[peer]);
    }
    return good;
  };
  u64 first = blockIdx.x * (u64)blockDim.x + threadIdx.x;
  send(first);
  bool good = true;
  for (u64 i = first; i < part && good; i += stride) {
    send(i + stride);
    good = add(i) && (i == first || take_sums(i - stride));
    if (good && i + stride >= part) good = take_sums(i);
  }
  end_epoch(launch, epoch);
}

// For eight GPUs that have a link to four neighbours each, as in a hybrid cube mesh: three form a group of four with
// this one, the fourth, the relay, belongs to the other four. Every rank sums its four and swaps sums with its relay.
// It reads and writes no other rank's memory. A relay tells this rank of its own sum when its whole four has come.
// The relay's sum comes in float32, in the slots that the tensors of the other four would have.
template <typename T>
__device__ void mesh(typename T::Bits* tensor, u64 count, const Launch& launch, u32 quad, u32 relay, float divisor) {
  u32 epoch = begin_epoch(launch);
  const int words = Pack<T>::COUNT / 4;  // packs of floats for a pack of elements
  u64 packs = pack_count<T>(count);
  u64 first = blockIdx.x * (u64)blockDim.x + threadIdx.x;
  u64 stride = (u64)gridDim.x * blockDim.x;
  for (u64 i = first; i < packs; i += stride) {
    uint4 value = load_pack<T>(tensor, count, i);
    for (u32 peer = 0; peer < RANKS; peer++)
      if (quad >> peer & 1) slot(launch, peer, epoch, launch.rank)[i] = value;
  }
  bool good = flag_barrier(launch, 0, blockIdx.x, quad, epoch);
  u32 relay_slot = __ffs(~quad) - 1;  // the first slot that no tensor uses
  u32 relay_slot_on_peer = __ffs(quad) - 1;
  // Sums are kept in this rank's own slots of the other four until the relay's arrive beside them.
  if (good) {
    for (u64 i = first; i < packs; i += stride) {
      FloatPack<T> sum;
      bool started = false;
      for (u32 rank = 0; rank < RANKS; rank++) {
        if (!(quad >> rank & 1)) continue;
        uint4 value = slot(launch, launch.rank, epoch, rank)[i];
        if (started) {
          sum.add(value);
        } else {
          sum.set(value);
          started = true;
        }
      }
      for (int k = 0; k < words; k++) {
        uint4 floats = make_uint4(__float_as_uint(sum.values[4 * k]), __float_as_uint(sum.values[4 * k + 1]),
                                  __float_as_uint(sum.values[4 * k + 2]), __float_as_uint(sum.values[4 * k + 3]));
        slot(launch, relay, epoch, relay_slot_on_peer)[words * i + k] = floats;
        slot(launch, launch.rank, epoch, RANKS)[words * i + k] = floats;
      }
    }
    good = flag_barrier(launch, 1, blockIdx.x, 1u << relay, epoch);
  }
  if (good) {
    bool lower = quad & 1;
    for (u64 i = first; i < packs; i += stride) {
      FloatPack<T> total;
      for (int k = 0; k < words; k++) {
        uint4 own = slot(launch, launch.rank, epoch, RANKS)[words * i + k];
        uint4 other = slot(launch, launch.rank, epoch, relay_slot)[words * i + k];
        uint4 a = lower ? own : other;
        uint4 b = lower ? other : own;
        total.values[4 * k] = __uint_as_float(a.x) + __uint_as_float(b.x);
        total.values[4 * k + 1] = __uint_as_float(a.y) + __uint_as_float(b.y);
        total.values[4 * k + 2] = __uint_as_float(a.z) + __uint_as_float(b.z);
        total.values[4 * k + 3] = __uint_as_float(a.w) + __uint_as_float(b.w);
      }
      store_pack<T>(tensor, count, i, total.rounded(divisor));
    }
  }
  end_epoch(launch, epoch);
}

// Tells a peer of this rank's tensor: where it is, and how many elements it has, in words that have the epoch beside 32 bits each. So a
// peer takes no word of another launch for one of this, not even if it is late and this rank has given up and gone on.
__device__ void publish_tensor(u64* words, u64 address, u64 count, u32 epoch) {
  u32 values[TENSOR_WORDS] = {(u32)address, (u32)(address >> 32), (u32)count};
  for (int i = 0; i < TENSOR_WORDS; i++) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(words + i), "l"((u64)epoch << 32 | values[i]) : "memory");
  }
}

// Waits for what a peer tells. Returns its tensor; null if it does not come, or has another size.
__device__ u64 wait_tensor(const u64* words, u64 count, u32 epoch, const Launch& launch, u32 peer) {
  u64 begin = global_time();
  for (u32 i = 1;; i++) {
    u64 values[TENSOR_WORDS];
    bool here = true;
    for (int k = 0; k < TENSOR_WORDS; k++) {
      asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(values[k]) : "l"(words + k) : "memory");
      here = here && values[k] >> 32 == epoch;
    }
    bool stopped = (here || i % 1024 == 0) && (launch.status->stop != 0 || global_time() - begin > launch.timeout);
    if (here && !stopped && (u32)values[2] == (u32)count) return (u32)values[0] | values[1] << 32;
    if (here || stopped) {
      launch.status->missing = 1 + peer;
      __threadfence_system();
      return 0;
    }
  }
}

// Every rank sums a part of all tensors where they lie, and writes the sum to all of them. No other rank touches that part, so
// ranks wait for each other at the beginning, for the first block of each to tell of its tensor, and at the end alone. A rank's
// blocks need not run at once. The tensors are aligned to packs, and the GPUs of all ranks address them, as memory of cudaMalloc in
// one process is once peers have access to each other. The host keeps the memory of one that has failed, as a rank that is late
// may still write into it.
template <typename T>
__device__ __forceinline__ void direct(typename T::Bits* tensor, u64 count, const Launch& launch, float divisor) {
  const int UNROLL = RANKS <= 2 ? 4 : RANKS <= 4 ? 2 : 1;  // packs of each rank: what is under way hides the links' latency
  __shared__ typename T::Bits* tensors[RANKS];
  __shared__ bool last, all_good;
  u32 epoch = begin_epoch(launch);
  Control* own = control(launch, launch.rank);
  u64 packs = count / Pack<T>::COUNT;
  u32 peer = threadIdx.x;
  u64 address = (u64)tensor;
  if (peer < RANKS) {
    if (peer != launch.rank) {
      if (blockIdx.x == 0) publish_tensor(control(launch, peer)->tensors[launch.rank], address, count, epoch);
      address = wait_tensor(own->tensors[peer], count, epoch, launch, peer);
    }
    tensors[peer] = (typename T::Bits*)address;
  }
  bool good = __syncthreads_and(address != 0);
  if (good) {
    u64 part = (packs + RANKS - 1) / RANKS;
    u64 begin = launch.rank * part, end = begin + part < packs ? begin + part : packs;
    u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 first = begin + blockIdx.x * (u64)blockDim.x + threadIdx.x; first < end; first += UNROLL * stride) {
      uint4 parts[UNROLL][RANKS];
#pragma unroll
      for (int k = 0; k < UNROLL; k++) {
        u64 i = first + k * stride;
        if (i >= end) continue;
#pragma unroll
        for (int rank = 0; rank < RANKS; rank++) parts[k][rank] = ((const uint4*)tensors[rank])[i];
      }
#pragma unroll
      for (int k = 0; k < UNROLL; k++) {
        u64 i = first + k * stride;
        if (i >= end) continue;
        FloatPack<T> sum;
        sum.set(parts[k][0]);
#pragma unroll
        for (int rank = 1; rank < RANKS; rank++) sum.add(parts[k][rank]);
        uint4 value = sum.rounded(divisor);
#pragma unroll
        for (int rank = 0; rank < RANKS; rank++) ((uint4*)tensors[rank])[i] = value;
      }
    }
    // What is left is less than a pack.
    if (launch.rank == RANKS - 1 && blockIdx.x == 0 && threadIdx.x == 0 && packs * Pack<T>::COUNT < count) {
      FloatPack<T> sum;
      sum.set(load_pack<T>(tensors[0], count, packs));
      for (int rank = 1; rank < RANKS; rank++) sum.add(load_pack<T>(tensors[rank], count, packs));
      for (int rank = 0; rank < RANKS; rank++) store_pack<T>(tensors[rank], count, packs, sum.rounded(divisor));
    }
  }
  // The last block tells the others that all of this rank's have ended well. Those that have not are counted above the rest.
  const u32 FAILED = 1 << 16;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence_system();
    u32 before = atomicAdd(&own->blocks_ended, good ? 1 : FAILED + 1);
    __threadfence_system();
    last = before % FAILED == gridDim.x - 1;
    all_good = good && before < FAILED;
  }
  __syncthreads();
  if (last) {
    if (all_good) flag_barrier(launch, 1, 0, (1u << RANKS) - 1, epoch);
    if (threadIdx.x == 0) {
      own->blocks_ended = 0;
      *(volatile u32*)&own->epoch = epoch;
    }
  }
}

// More ranks need more registers.
const int MAX_THREADS = RANKS <= 4 ? 1024 : 512;

#if RANKS == 8
#define MESH_KERNEL(name, T)                                                                                               \
  extern "C" __global__ void __launch_bounds__(512)                                                                        \
      mesh_##name(T::Bits* tensor, u64 count, const __grid_constant__ Launch launch, float divisor, u32 quad, u32 relay) { \
    mesh<T>(tensor, count, launch, quad, relay, divisor);                                                                  \
  }
#else
#define MESH_KERNEL(name, T)  // There is no such mesh, and compiling takes time.
#endif

#define ALL_REDUCE(name, T)                                                                                                \
  extern "C" __global__ void __launch_bounds__(MAX_THREADS)                                                               \
      one_shot_##name(T::Bits* tensor, u64 count, const __grid_constant__ Launch launch, float divisor) {                  \
    one_shot<T>(tensor, count, launch, divisor);                                                                           \
  }                                                                                                                        \
  extern "C" __global__ void __launch_bounds__(MAX_THREADS)                                                               \
      two_shot_##name(T::Bits* tensor, u64 count, const __grid_constant__ Launch launch, float divisor) {                  \
    two_shot<T>(tensor, count, launch, divisor);                                                                           \
  }                                                                                                                        \
  extern "C" __global__ void __launch_bounds__(MAX_THREADS)                                                               \
      direct_##name(T::Bits* tensor, u64 count, const __grid_constant__ Launch launch, float divisor) {                    \
    direct<T>(tensor, count, launch, divisor);                                                                             \
  }                                                                                                                        \
  MESH_KERNEL(name, T)

ALL_REDUCE(float32, Float32)
ALL_REDUCE(float16, Float16)
#ifdef HAS_BFLOAT16
ALL_REDUCE(bfloat16, Bfloat16)
#endif
