// All-reduce, addition of a residual and RMSNorm in one launch, for the few rows that decoding has; and the latter two alone,
// behind an all-reduce of many rows.
//
//   sum      = partials of all ranks, in rank order in float32, rounded to the element type
//   residual = residual + sum, in float32, rounded
//   norm     = residual / sqrt(mean(residual^2) + epsilon) * weight, in float32, rounded
//
// So the residual has the bits that an all-reduce and an addition would give. Squares are added in an order that depends on the
// length of a row alone: ranks with the same residual get the same bits.
//
// A block has a row at a time, and keeps its new residual in shared memory, of the size of a row in whole packs. Ranks exchange
// rows as a one-shot all-reduce does (all_reduce.cu), in the same slots and epochs: a rank pushes its row to all others, and who
// reads it sees whether it has arrived. A row takes whole packs in a slot. While it is on its way, the residual and the weight
// are read. No block waits for another of its rank.
//
// Nothing waits for ever: see signal.cuh. When a wait has ended in vain, results are worthless.
//
// Compiled with
//   RANKS   how many there are, 2 to 8
#ifndef RANKS
#define RANKS 2
#endif
#include "one_shot.cuh"
#include "rms_norm.cuh"

// Arrays of `rows` times `hidden` elements, the weight of one row; the new residual may be where the partial is.
template <typename T>
struct Rows {
  typename T::Bits* new_residual;
  typename T::Bits* norm;
  const typename T::Bits* partial;
  const typename T::Bits* residual;
  const typename T::Bits* weight;
  u64 rows;
  u64 hidden;
};

// The sum over the threads of a block, the same bits to all. `sums` is shared memory that nobody has read since the last
// barrier but one. Sets `good` to false on all threads if it is on one.
__device__ __forceinline__ float sum_of_block(float value, float* sums, bool& good) {
  value = warp_sum(value);
  u32 lane = threadIdx.x % WARP;
  if (lane == 0) sums[threadIdx.x / WARP] = value;
  good = __syncthreads_and(good);
  return warp_sum(lane < blockDim.x / WARP ? sums[lane] : 0);
}

template <typename T, bool EXCHANGE>
__device__ __forceinline__ void normalize(const Rows<T>& of, float epsilon, const Launch& launch) {
  extern __shared__ uint4 values[];
  __shared__ float sums[2][NORM_THREADS / WARP];
  launch_dependents();
  wait_for_primary();
  u32 epoch = EXCHANGE ? begin_epoch(launch) : 0;
  u32 packs = (of.hidden + Pack<T>::COUNT - 1) / Pack<T>::COUNT;
  bool good = true;
  u32 parity = 0;
  for (u64 row = blockIdx.x; row < of.rows && good; row += gridDim.x, parity ^= 1) {
    u64 begin = row * of.hidden;
    auto load = [&](const typename T::Bits* array, u32 i) {
      return i < packs ? load_pack<T>(array, of.hidden, i) : make_uint4(0, 0, 0, 0);
    };
    auto send = [&](u32 i, const uint4& pack) {
#pragma unroll
      for (u32 step = 1; step < RANKS; step++) {
        store_relaxed(peer_slot(launch, ring_peer(launch, step), epoch, launch.rank) + row * packs + i, without_empty(pack));
      }
    };
    uint4 own = load(of.partial + begin, threadIdx.x);
    if (EXCHANGE) {
      if (threadIdx.x < packs) send(threadIdx.x, own);
      for (u32 i = threadIdx.x + blockDim.x; i < packs; i += blockDim.x) send(i, load(of.partial + begin, i));
    }
    uint4 residual = load(of.residual + begin, threadIdx.x);
    uint4 weight = load(of.weight, threadIdx.x);
    float squares = 0;
    for (u32 i = threadIdx.x; i < packs; i += blockDim.x) {
      uint4 total = own;
      if (EXCHANGE) {
        FloatPack<T> sum;
        good = good && take_sum<T>(launch, epoch, row * packs + i, own, sum);
        total = sum.rounded(1);
      }
      values[i] = added<T>(residual, total);
      store_pack<T>(of.new_residual + begin, of.hidden, i, values[i]);
      squares = with_squares<T>(squares, values[i]);
      own = load(of.partial + begin, i + blockDim.x);
      residual = load(of.residual + begin, i + blockDim.x);
    }
    float scale = norm_scale(sum_of_block(squares, sums[parity], good), of.hidden, epsilon);
    for (u32 i = threadIdx.x; i < packs; i += blockDim.x) {
      store_pack<T>(of.norm + begin, of.hidden, i, scaled<T>(values[i], scale, weight));
      weight = load(of.weight, i + blockDim.x);
    }
  }
  if (EXCHANGE) end_epoch(launch, epoch);
}

#define RMS_NORM(name, T)                                                                                           \
  extern "C" __global__ void __launch_bounds__(NORM_THREADS) all_reduce_rms_norm_##name(                             \
      const __grid_constant__ Rows<T> of, float epsilon, const __grid_constant__ Launch launch) {                   \
    normalize<T, true>(of, epsilon, launch);                                                                        \
  }                                                                                                                 \
  extern "C" __global__ void __launch_bounds__(NORM_THREADS)                                                         \
      add_rms_norm_##name(const __grid_constant__ Rows<T> of, float epsilon) {                                      \
    normalize<T, false>(of, epsilon, Launch{});                                                                         \
  }

RMS_NORM(float32, Float32)
RMS_NORM(float16, Float16)
#ifdef HAS_BFLOAT16
RMS_NORM(bfloat16, Bfloat16)
#endif
