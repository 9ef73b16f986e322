// All-reduce, residual addition and RMSNorm in one launch, for the few rows of a decode step. Residual addition and RMSNorm
// also as a kernel of their own, after an all-reduce of many rows.
//
//   sum      = partials of all ranks in rank order, in float32, rounded to the element type
//   residual = residual + sum, in float32, rounded
//   norm     = residual / sqrt(mean(residual^2) + epsilon) * weight, in float32, rounded
//
// Kernels with e4m3 in their names also round the norm to e4m3, with a scale for each row (e4m3_row.cuh).
//
// Memory: the slots and epochs of one-shot all-reduces (one_shot.cuh); a row takes whole packs of a slot. Shared memory: a row in whole
// packs, the new residual, then the norm if it is rounded to e4m3.
// Synchronisation: each thread polls for the peers' packs with the indices that it pushed itself. No block waits for another block of
// its rank.
//
// Invariants
// - A block has one row at a time. It reads the residual and the weight while the peers' packs are in flight.
// - The residual has the bits of an all-reduce followed by an addition.
// - The order in which squares are added depends on the row length alone: equal residuals give equal norms on all ranks.
// - After a timeout or stop the results are undefined (signal.cuh).
// - Dependents start after the peers' packs have arrived. Waiting blocks of a dependent matmul fill the SMs; on a GPU that
//   ranks or groups share, a peer may need these SMs for work before its own kernel.
//
// Experiments: docs/design/experiments/all-reduce.md.
//
// Compiled with
//   RANKS   world size, 2 to 8
#ifndef RANKS
#define RANKS 2
#endif
#include "block_sum.cuh"
#include "e4m3_row.cuh"
#include "one_shot.cuh"
#include "rms_norm.cuh"

static_assert(NORM_THREADS <= ROW_THREADS, "round_row supports the block size");

// Arrays of `rows` x `hidden` elements; the weight is one row. The new residual may overwrite the partial. Rows in e4m3 have a
// multiple of 8 elements.
template <typename T>
struct Rows {
  typename T::Bits* new_residual;
  void* norm;  // of the element type, or in e4m3
  const typename T::Bits* partial;
  const typename T::Bits* residual;
  const typename T::Bits* weight;
  u64 rows;
  u64 hidden;
  float* scales;  // of the rows of a norm in e4m3; otherwise not written
};

// EXCHANGE: the kernel all-reduces the ranks' partials; otherwise the partial is already the sum.
template <typename T, bool EXCHANGE, bool E4M3>
__device__ __forceinline__ void normalize(const Rows<T>& args, float epsilon, const Launch& launch) {
  extern __shared__ uint4 values[];
  __shared__ float sums[2][NORM_THREADS / WARP];
  if (!EXCHANGE) launch_dependents();
  wait_for_primary();
  u64 epoch = EXCHANGE ? begin_epoch(launch) : 0;
  u32 packs = pack_count<T>(args.hidden);
  bool good = true;
  u32 parity = 0;
  for (u64 row = blockIdx.x; row < args.rows && good; row += gridDim.x, parity ^= 1) {
    u64 begin = row * args.hidden;
    auto load = [&](const typename T::Bits* array, u32 i) { return i < packs ? load_pack<T>(array, args.hidden, i) : zeros(); };
    auto send = [&](u32 i, const uint4& pack) {
#pragma unroll
      for (u32 step = 1; step < RANKS; step++) {
        store_relaxed(peer_slot(launch, ring_peer(launch, step), epoch, launch.rank) + row * packs + i, without_empty(pack));
      }
    };
    // Step 1: push the row to all peers.
    uint4 own = load(args.partial + begin, threadIdx.x);
    if (EXCHANGE) {
      if (threadIdx.x < packs) send(threadIdx.x, own);
      for (u32 i = threadIdx.x + blockDim.x; i < packs; i += blockDim.x) send(i, load(args.partial + begin, i));
    }
    // Step 2: sum the ranks' packs, add the residual, and add up squares.
    uint4 residual = load(args.residual + begin, threadIdx.x);
    uint4 weight = load(args.weight, threadIdx.x);
    float squares = 0;
    for (u32 i = threadIdx.x; i < packs; i += blockDim.x) {
      uint4 total = own;
      if (EXCHANGE) {
        FloatPack<T> sum;
        good = good && take_sum<T>(launch, epoch, row * packs + i, own, sum);
        total = sum.rounded(1);
      }
      values[i] = add_packs<T>(residual, total);
      store_pack<T>(args.new_residual + begin, args.hidden, i, values[i]);
      squares = add_squares<T>(squares, values[i]);
      own = load(args.partial + begin, i + blockDim.x);
      residual = load(args.residual + begin, i + blockDim.x);
    }
    // Step 3: norm the row. All threads of the block learn whether a wait has failed.
    store_warp_sum(squares, sums[parity], threadIdx.x / WARP);
    good = __syncthreads_and(good);
    if (EXCHANGE && row + gridDim.x >= args.rows) launch_dependents();
    float scale = norm_scale(sum_of_warps(sums[parity], blockDim.x / WARP), args.hidden, epsilon);
    u32 most = 0;
    for (u32 i = threadIdx.x; i < packs; i += blockDim.x) {
      uint4 norm = normalize_pack<T>(values[i], scale, weight);
      if (E4M3) {
        values[i] = norm;
        most = most_of<T>(most, norm);
      } else {
        store_pack<T>((typename T::Bits*)args.norm + begin, args.hidden, i, norm);
      }
      weight = load(args.weight, i + blockDim.x);
    }
    if (E4M3) round_row<T>(values, packs, most, (uint2*)args.norm + row * packs, args.scales + row);
  }
  if (EXCHANGE) end_epoch(launch, epoch);
}

#define RMS_NORM(name, T, E4M3)                                                                                      \
  extern "C" __global__ void __launch_bounds__(NORM_THREADS) all_reduce_rms_norm_##name(                            \
      const __grid_constant__ Rows<T> args, float epsilon, const __grid_constant__ Launch launch) {                   \
    normalize<T, true, E4M3>(args, epsilon, launch);                                                                  \
  }                                                                                                                 \
  extern "C" __global__ void __launch_bounds__(NORM_THREADS)                                                        \
      add_rms_norm_##name(const __grid_constant__ Rows<T> args, float epsilon) {                                      \
    normalize<T, false, E4M3>(args, epsilon, Launch{});                                                               \
  }

RMS_NORM(float32, Float32, false)
RMS_NORM(float16, Float16, false)
#ifdef HAS_BFLOAT16
RMS_NORM(bfloat16, Bfloat16, false)
RMS_NORM(e4m3_float16, Float16, true)
RMS_NORM(e4m3_bfloat16, Bfloat16, true)
#endif
