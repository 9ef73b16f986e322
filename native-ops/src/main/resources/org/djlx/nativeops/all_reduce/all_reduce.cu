// All-reduce between the GPUs of a host that map each other's memory.
//
// Memory: every rank has a region that its peers write to (mesh: the linked peers). After the control block of one_shot.cuh it has
// two halves for one-shot and two-shot, and two more for the mesh. Launches alternate between the halves.
//
//   algorithm  slots of a half                     a slot holds
//   one-shot   one per peer, in rank order         a whole tensor, or EMPTY words
//   two-shot   the same slots                      a part of the tensor; in its second half, the sum of a part
//   mesh       slot of rank 0 | slot of rank 1 | … a whole tensor
//   direct     none                                (all ranks read and write the tensors themselves)
//
// Synchronisation
//   one-shot, two-shot  a thread polls for the packs that it needs (one_shot.cuh)
//   mesh                block b signals block b of its peers and waits for their signals; block b writes the same packs on all ranks
//   direct              the first blocks exchange addresses, the last blocks meet at a barrier
//
// Invariants
// - All ranks launch with the same count; mesh: also with the same blocks and threads.
// - Flags and epochs only grow. The epoch is counted in device memory, so graphs replay.
// - Sums are in float32, in rank order (mesh: the sums of both quads are added), so all ranks get the same bits.
// - After a timeout or stop the tensor is undefined (signal.cuh).
//
// Picture: docs/design/all-reduce.md. Experiments: docs/design/experiments/all-reduce.md.
//
// Compiled with
//   RANKS   world size, 2 to 8; the mesh exists for 8
#ifndef RANKS
#define RANKS 2
#endif
#include "one_shot.cuh"

// Barrier between the blocks of one index on the ranks in `mask`: signals that this block's writes are done, and waits for the peers'
// signals. Returns false to all threads on timeout or stop.
__device__ bool flag_barrier(const Launch& launch, int phase, u32 block, u32 mask, u64 epoch) {
  __syncthreads();  // all threads' writes happen before the signals
  bool good = true;
  u32 peer = threadIdx.x;
  if (peer < RANKS && (mask >> peer & 1)) {
    __threadfence_system();
    signal(&control(launch, peer)->flags[phase][block][launch.rank], epoch);
    good = wait_signal(&control(launch, launch.rank)->flags[phase][block][peer], epoch, launch.status, launch.timeout, peer);
  }
  return __syncthreads_and(good);
}

// One-shot: every rank pushes its tensor to all peers; every rank sums all tensors. A thread pushes its next pack, and loads the
// one after it, before it waits for the peers' current one: links and memory stay busy during the wait.
template <typename T>
__device__ __forceinline__ void one_shot(typename T::Bits* tensor, u64 count, const Launch& launch, float divisor) {
  u64 epoch = begin_epoch(launch);
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
    // Step 1: push the next pack, and load the one after it.
    send(i + stride, next);
    uint4 after = load(i + 2 * stride);
    // Step 2: sum this rank's current pack with the peers'.
    FloatPack<T> sum;
    good = take_sum<T>(launch, epoch, i, own, sum);
    store_pack<T>(tensor, count, i, sum.rounded(divisor));
    own = next;
    next = after;
  }
  end_epoch(launch, epoch);
}

// Two-shot: rank p sums part p of all tensors and pushes the sum to all peers. The second half of a slot holds sums.
//
// Pipeline of a thread, per pack i: push the parts of pack i + 1, sum pack i, take the peers' sums of pack i - 1.
// No deadlock: a thread pushes before it waits. At pack i it waits for parts that its peers push at pack i - 1, then for sums that they
// push at pack i - 1; at its last pack also for the sums of pack i, after it has pushed its own.
template <typename T>
__device__ __forceinline__ void two_shot(typename T::Bits* tensor, u64 count, const Launch& launch, float divisor) {
  u64 epoch = begin_epoch(launch);
  u64 packs = pack_count<T>(count);
  u64 part = (packs + RANKS - 1) / RANKS;
  u64 sums = launch.slot_bytes / (2 * sizeof(uint4));
  u64 stride = (u64)gridDim.x * blockDim.x;
  // Step 1: push pack i of each part to the rank that sums it.
  auto send = [&](u64 i) {
    if (i >= part) return;
#pragma unroll
    for (u32 step = 1; step < RANKS; step++) {
      u32 peer = ring_peer(launch, step);
      u64 source = peer * part + i;
      if (source >= packs) continue;
      store_relaxed(peer_slot(launch, peer, epoch, launch.rank) + i, without_empty(load_pack<T>(tensor, count, source)));
    }
  };
  // Step 2: sum pack i of this rank's part, and push the sum to all peers.
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
  // Step 3: take pack i of the sums of all peers.
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

// Hybrid cube mesh: eight GPUs, each linked to four. Two quads of four fully linked ranks; each rank has one relay, its link to the
// other quad.
//
// Step 1: push the tensor to the quad. Step 2: sum the quad's tensors, push the sum to the relay. Step 3: add the relay's sum.
// Sums travel in float32, in the slots that the tensors of the other quad would use. `quad` is a bit mask.
template <typename T>
__device__ void mesh(typename T::Bits* tensor, u64 count, const Launch& launch, u32 quad, u32 relay, float divisor) {
  u64 epoch = begin_epoch(launch);
  const int words = Pack<T>::COUNT / 4;  // float packs of one element pack
  u64 packs = pack_count<T>(count);
  u64 first = blockIdx.x * (u64)blockDim.x + threadIdx.x;
  u64 stride = (u64)gridDim.x * blockDim.x;
  // Step 1
  for (u64 i = first; i < packs; i += stride) {
    uint4 value = load_pack<T>(tensor, count, i);
    for (u32 peer = 0; peer < RANKS; peer++)
      if (quad >> peer & 1) slot(launch, peer, epoch, launch.rank)[i] = value;
  }
  bool good = flag_barrier(launch, 0, blockIdx.x, quad, epoch);
  u32 relay_slot = __ffs(~quad) - 1;  // the first slot of the other quad
  u32 relay_slot_on_peer = __ffs(quad) - 1;
  // Step 2: this rank's own sum goes to slot RANKS until the relay's sum has arrived.
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
  // Step 3: the sum of ranks 0 to 3 comes first on both quads.
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

// Publishes this rank's tensor to a peer: its address and element count, 32 bits a word, the lower half of the epoch in the upper
// half of each word. The epoch tells a late peer which launch a word belongs to, even if this rank has timed out and started the next
// launch. The last word has the rest of the epoch.
__device__ void publish_tensor(u64* words, u64 address, u64 count, u64 epoch) {
  u32 values[TENSOR_WORDS] = {(u32)address, (u32)(address >> 32), (u32)count, (u32)(epoch >> 32)};
  for (int i = 0; i < TENSOR_WORDS; i++) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(words + i), "l"(epoch << 32 | values[i]) : "memory");
  }
}

// Waits for a peer's tensor and returns its address; null on timeout, on stop, or if the sizes differ.
__device__ u64 wait_tensor(const u64* words, u64 count, u64 epoch, const Launch& launch, u32 peer) {
  u64 begin = global_time();
  for (u32 i = 1;; i++) {
    u64 values[TENSOR_WORDS];
    bool arrived = true;
    for (int k = TENSOR_WORDS - 1; k >= 0; k--) {  // The last first: then the others are at least as new.
      asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(values[k]) : "l"(words + k) : "memory");
      arrived = arrived && values[k] >> 32 == (u32)epoch;
    }
    arrived = arrived && (u32)values[TENSOR_WORDS - 1] == epoch >> 32;
    bool stopped = (arrived || i % 1024 == 0) && (launch.status->stop != 0 || global_time() - begin > launch.timeout);
    if (arrived && !stopped && (u32)values[2] == (u32)count) return (u32)values[0] | values[1] << 32;
    if (arrived || stopped) {
      give_up(launch.status, 1 + peer);
      return 0;
    }
  }
}

// Direct: every rank sums one part of all tensors in place and writes the sum to all of them.
//
// - Ranks synchronise at the beginning (block 0 publishes the tensor's address) and at the end only. In between, each part is accessed
//   by one rank only.
// - The blocks of a rank need not be co-resident.
// - Tensors are aligned to packs and addressable by all ranks' GPUs, for example cudaMalloc memory of one process with peer access.
// - The host keeps the tensor of a failed rank allocated: a late peer may still write to it.
template <typename T>
__device__ __forceinline__ void direct(typename T::Bits* tensor, u64 count, const Launch& launch, float divisor) {
  const int UNROLL = RANKS <= 2 ? 4 : RANKS <= 4 ? 2 : 1;  // packs of each rank in flight, to hide the links' latency
  __shared__ typename T::Bits* tensors[RANKS];
  __shared__ bool last, all_good;
  u64 epoch = begin_epoch(launch);
  Control* own = control(launch, launch.rank);
  u64 packs = count / Pack<T>::COUNT;
  // Step 1: exchange addresses.
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
  // Step 2: sum this rank's part.
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
    // The last rank sums the incomplete pack at the end.
    if (launch.rank == RANKS - 1 && blockIdx.x == 0 && threadIdx.x == 0 && packs * Pack<T>::COUNT < count) {
      FloatPack<T> sum;
      sum.set(load_pack<T>(tensors[0], count, packs));
      for (int rank = 1; rank < RANKS; rank++) sum.add(load_pack<T>(tensors[rank], count, packs));
      for (int rank = 0; rank < RANKS; rank++) store_pack<T>(tensors[rank], count, packs, sum.rounded(divisor));
    }
  }
  // Step 3: the last block of this rank signals the peers, if no block has failed. The upper bits of blocks_ended count failures.
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
      *(volatile u64*)&own->epoch = epoch;
    }
  }
}

// More ranks need more registers. Java: AllReduceKernels.
const int MAX_THREADS = RANKS <= 4 ? 1024 : 512;

#if RANKS == 8
const int MESH_THREADS = 512;

#define MESH_KERNEL(name, T)                                                                                               \
  extern "C" __global__ void __launch_bounds__(MESH_THREADS)                                                               \
      mesh_##name(T::Bits* tensor, u64 count, const __grid_constant__ Launch launch, float divisor, u32 quad, u32 relay) { \
    mesh<T>(tensor, count, launch, quad, relay, divisor);                                                                  \
  }
#else
#define MESH_KERNEL(name, T)  // no such mesh
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
