// Matmul of up to 128 rows on Hopper GPUs: output = x weight^T + bias + addend. Gated: the weight has the rows of the gates, then those of
// the values; output = silu(gates) * values, both with bias and addend. x and the weight have 16 bits, or both are e4m3 with a scale for
// each row. Sums are in float32 (e4m3: see below), rounded once. wide_matmul.cu multiplies by one weight, wide_experts.cu by those of several experts.
//
// Terms
//   tile        COLUMNS rows of the weight, so COLUMNS columns of x weight^T. A thread block multiplies it by up to ROWS rows of x; a wgmma
//               multiplies 64 of these rows, its left operand, by half of the columns
//   k-block     BOX_BYTES bytes of each row of the tile and of x
//   cluster     CLUSTER thread blocks that share a tile and divide k. Each multiplies a range of the k-blocks, then adds up the cluster's
//               sums of some columns, and stores them if CLUSTERS is 1. Smaller tiles without clusters would also use all SMs, but copy x
//               more often
//   CLUSTERS    clusters that share a tile: 1, or 2, which divide k, too. Their sums are partial sums: of the two blocks with the same
//               columns, the second one to end adds those of both and stores them. A cluster of 4 would not need memory for this, but
//               a GPU runs too few of these at a time
//   quarter     a quarter of the tile's columns. Gated: 0 and 2 are gates, 1 and 3 their values
//   half        quarters 0 and 1, or 2 and 3. The thread that has a column of the even quarter has the same column of the odd one
//   warp group  4 warps; they multiply GROUP_ROWS rows
//
// Threads: two warp groups multiply. If ROWS is 64, each takes half of the columns; if it is 128, half of the rows. One more thread copies
// k-blocks into a ring of stages. It copies the first weights before it waits until x is complete
// (wide_experts.cu: after it has waited).
//
// Shared memory: a ring takes more than half of an SM's, so an SM runs one block, and the blocks spread over all SMs. The rest has room
// for blocks of a norm or attention, the previous or next kernel, which run while the ring fills.
//
// Precision of e4m3: tensor cores sum a k-block with few bits (Float8 in hopper.cuh); the k-blocks are added in float32.
//
// Invariant: bit for bit, a row of the result depends only on its row of x, the weight, their scales, the bias, the row's addend, CLUSTER
// and CLUSTERS.
//
// Compiled with
//   TYPE         Float16 or Bfloat16
//   WEIGHT_BITS  16, or 8 for e4m3
#pragma once
#include "decoder/addend.cuh"
#include "decoder/common.cuh"
#include "hopper.cuh"
#include "silu.cuh"

#ifndef WEIGHT_BITS
#define WEIGHT_BITS 16
#endif

struct WideMatmul {
  TensorMap weight;  // (width, depth); gated: (2 width, depth), gates then values. Boxes: a k-block of a quarter
  TensorMap x;       // (rows of x, depth). Boxes: a k-block of ROWS rows
  const float* weight_scales;  // e4m3: of the weight's rows
  const float* x_scales;       // e4m3: of the rows of x
  Bits* output;      // (batch, width), rows `stride` elements apart; width and stride are even
  const Bits* bias;  // of the weight's rows; may be null
  u64 batch;         // rows of x
  u64 width;         // columns of the output
  u64 depth;         // columns of x
  u64 stride;
  u64 gated;         // 0 or 1
  Addend addend;
  // CLUSTERS = 2. Launches that share this memory must not overlap.
  float2* partial_sums;       // MAX_PARTIAL_SUMS / 2 pairs for each block
  u32* partial_sums_written;  // of each two blocks with the same columns: how many have written theirs; 0 before and after a launch
};

#if WEIGHT_BITS == 8
typedef Float8 Operand;
#else
typedef T Operand;
#endif
const bool E4M3 = WEIGHT_BITS == 8;
const int BOX_BYTES = 128;
const int K = BOX_BYTES * 8 / WEIGHT_BITS;  // columns of a k-block
const int GROUP_ROWS = 64;                  // of a wgmma
const int CONSUMERS = 8;                    // warps that multiply
const int THREADS = CONSUMERS * WARP + WARP;
// Bytes of a ring. Larger rings leave no room for norm and attention (docs/design/experiments).
const int RING_BYTES_64 = 144 << 10;   // with 64 rows
const int RING_BYTES_128 = 192 << 10;  // with 128 rows

template <int ROWS, int COLUMNS>
struct StageMemory {
  char weight[COLUMNS][BOX_BYTES];
  char x[ROWS][BOX_BYTES];
};

// A ring in shared memory.
template <int ROWS, int COLUMNS>
struct Ring {
  static const int STAGES = (ROWS == GROUP_ROWS ? RING_BYTES_64 : RING_BYTES_128) / sizeof(StageMemory<ROWS, COLUMNS>);
  StageMemory<ROWS, COLUMNS>* stages;
  Barrier *loaded, *emptied;  // of the stages
};

// Returns the first row of the weight of a quarter.
template <int COLUMNS>
__device__ __forceinline__ u32 quarter_row(const WideMatmul& args, u32 tile, u32 quarter) {
  const u32 QUARTER = COLUMNS / 4;
  return args.gated ? quarter % 2 * (u32)args.width + (tile * 2 + quarter / 2) * QUARTER : (tile * 4 + quarter) * QUARTER;
}

// Copies the k-blocks from `begin` up to `end` through the ring. One thread calls it. It first fills the ring with weights, then waits
// until x is complete.
template <int ROWS, int COLUMNS, typename W>
__device__ __forceinline__ void copy_k_blocks(const W& work, const Ring<ROWS, COLUMNS>& ring, u32 begin, u32 end) {
  const WideMatmul& args = work.args;
  const int STAGES = Ring<ROWS, COLUMNS>::STAGES;
  auto copy_weight = [&](u32 stage, u32 k) {
    Barrier& loaded = ring.loaded[stage];
    loaded.arrive_expecting(sizeof(StageMemory<ROWS, COLUMNS>));
#pragma unroll
    for (int quarter = 0; quarter < 4; quarter++) {
      char(*to)[BOX_BYTES] = ring.stages[stage].weight + quarter * (COLUMNS / 4);
      work.load_weight(to, loaded, k * K, quarter_row<COLUMNS>(args, work.tile, quarter));
    }
  };
  auto copy_x = [&](u32 stage, u32 k) { load_box(ring.stages[stage].x, args.x, ring.loaded[stage], k * K, work.first_row); };
  u32 filled = min(STAGES, end - begin);
  for (u32 stage = 0; stage < filled; stage++) copy_weight(stage, begin + stage);
  wait_for_x(args.addend);
  if (args.addend.elements) fence_async();  // x was written by ordinary stores
  for (u32 stage = 0; stage < filled; stage++) copy_x(stage, begin + stage);
  Stage next = {0, 0};
#pragma unroll 1
  for (u32 k = begin + filled; k < end; k++) {
    ring.emptied[next.index].wait(next.parity);
    copy_weight(next.index, k);
    copy_x(next.index, k);
    next.skip(1, STAGES);
  }
}

// Returns the column of the odd quarter that belongs to a column of the even one. Gated: a column of the bias and the addend, not of the
// output.
template <int COLUMNS>
__device__ __forceinline__ u32 odd_column(const WideMatmul& args, u32 column) {
  return column + (args.gated ? (u32)args.width : COLUMNS / 4);
}

__device__ __forceinline__ void add(float* sums, float2 addend) {
  sums[0] += addend.x;
  sums[1] += addend.y;
}

__device__ __forceinline__ float2 load_bias(const Bits* bias) { return make_float2(T::load(bias[0]), T::load(bias[1])); }

// Stores two adjacent columns of the even quarter and the same two of the odd one. Gated: stores silu(even) * odd. `to`: the row of the
// output, or null for none. `column`: the first column of the output.
template <int COLUMNS>
__device__ __forceinline__ void store(const WideMatmul& args, Bits* to, u32 column, const float* even, const float* odd) {
  u32 width = args.width;
  if (!to || column >= width) return;
  if (args.gated) {
    *(u32*)(to + column) = pack(T(), silu_fast(even[0]) * odd[0], silu_fast(even[1]) * odd[1]);
    return;
  }
  *(u32*)(to + column) = pack(T(), even[0], even[1]);
  if (odd_column<COLUMNS>(args, column) < width) *(u32*)(to + odd_column<COLUMNS>(args, column)) = pack(T(), odd[0], odd[1]);
}

// The row and the columns of two adjacent sums of a thread.
struct Position {
  u32 row;         // 0 or 1: of the thread's two rows
  u32 half;
  u32 in_quarter;  // first column, in the quarter
  u32 column;      // first column, in the output
};

// Calls f(even sums, odd sums, position) for each two adjacent columns of a half's quarters.
template <int PASSES, int SUMS, typename Positions, typename F>
__device__ __forceinline__ void for_sums(float (&sums)[PASSES][2][SUMS], const Positions& position, const F& f) {
#pragma unroll
  for (int pass = 0; pass < PASSES; pass++)
#pragma unroll
    for (int i = 0; i < SUMS; i += 2) f(sums[pass][0] + i, sums[pass][1] + i, position(pass, i));
}

// W is the work of a block, a tile of a weight times rows of x:
//   args              a WideMatmul
//   tile              index of the tile
//   first_row, rows   the rows of x: first index and number, at most ROWS. With e4m3 or an addend the first one is 0
//   load_weight(...)  loads a box of the weight: load_box without its tensor map
//   output_row(b)     the row of the output for row first_row + b of x
//   add_other_cluster(sums)  CLUSTERS = 2: adds the other cluster's partial sums; returns false if the other block will do it
template <int ROWS, int COLUMNS, int CLUSTER, int CLUSTERS, typename W>
__device__ __forceinline__ void wide_matmul(const W& work) {
  const WideMatmul& args = work.args;
  const int STAGES = Ring<ROWS, COLUMNS>::STAGES;
  const int PASSES = ROWS / GROUP_ROWS;         // halves that a warp group multiplies, one after the other
  const int QUARTER_SUMS = COLUMNS / 8;         // sums of a thread in a quarter: 2 rows, and 2 of each 8 columns
  const int OWN_SUMS = QUARTER_SUMS / CLUSTER;  // of these, the sums that this block adds up
  static_assert(QUARTER_SUMS % (2 * CLUSTER) == 0, "adjacent columns must belong to the same block: COLUMNS is not a multiple of 16 * CLUSTER");
  extern __shared__ __align__(1024) char memory[];
  __shared__ Barrier loaded[STAGES], emptied[STAGES];
  __shared__ __align__(8) float scales[2][2][COLUMNS / 4];  // E4M3: of the rows of the weight, by half and quarter
  Ring<ROWS, COLUMNS> ring = {(StageMemory<ROWS, COLUMNS>*)memory, loaded, emptied};
  u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  u32 tile = work.tile, rank = blockIdx.x % CLUSTER, part = blockIdx.x % (CLUSTER * CLUSTERS);
  u32 k_blocks = ((u32)args.depth + K - 1) / K;
  u32 begin = k_blocks * part / (CLUSTER * CLUSTERS), end = k_blocks * (part + 1) / (CLUSTER * CLUSTERS);
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      loaded[i].init(1);
      emptied[i].init(CONSUMERS);
    }
    publish_barriers();
  }
  __syncthreads();
  launch_dependents();
  if (warp == CONSUMERS) {
    if (lane == 0) copy_k_blocks(work, ring, begin, end);
    return;
  }

  if (E4M3 && threadIdx.x < COLUMNS) {
    u32 weight_row = quarter_row<COLUMNS>(args, tile, threadIdx.x / (COLUMNS / 4)) + threadIdx.x % (COLUMNS / 4);
    (&scales[0][0][0])[threadIdx.x] = weight_row < (args.gated ? 2 : 1) * args.width ? args.weight_scales[weight_row] : 0;
  }
  // Step 1: multiply.
  u32 group = warp / 4, x_row = PASSES == 1 ? 0 : group * GROUP_ROWS, first_half = PASSES == 1 ? group : 0;
  float sums[PASSES][2 * QUARTER_SUMS] = {};
  Stage next = {0, 0};
#pragma unroll 1
  for (u32 k = begin; k < end; k++) {
    loaded[next.index].wait(next.parity);
    const StageMemory<ROWS, COLUMNS>& stage = ring.stages[next.index];
    u32 x = shared_address(stage.x[x_row]);
#pragma unroll
    for (int pass = 0; pass < PASSES; pass++) {
      u32 weight = shared_address(stage.weight[(first_half + pass) * COLUMNS / 2]);
      // 16 bits: wgmma adds to the sums. e4m3: it sums a k-block, which is then added in float32.
      float k_block_sums[2 * QUARTER_SUMS];
      float(&accumulators)[2 * QUARTER_SUMS] = E4M3 ? k_block_sums : sums[pass];
      begin_products();
#pragma unroll
      for (int step = 0; step < BOX_BYTES / 32; step++) {
        product<true>(Operand(), accumulators, matrix(x + step * 32, 16, 1024), matrix(weight + step * 32, 16, 1024), !E4M3 || step);
      }
      commit_products();
      if (E4M3 || pass == PASSES - 1) wait_products<0>();
#pragma unroll
      for (int i = 0; E4M3 && i < 2 * QUARTER_SUMS; i++) sums[pass][i] += k_block_sums[i];
    }
    if (lane == 0) emptied[next.index].arrive();
    next.skip(1, STAGES);
  }

  // Step 2: add up. Sums have the layout of wgmma: for even i, sums i and i + 1 are adjacent columns. Each block of a cluster adds up some
  // columns of each quarter.
  float own[PASSES][2][OWN_SUMS];  // of the even and the odd quarter
  if (CLUSTER == 1) {
#pragma unroll
    for (int pass = 0; pass < PASSES; pass++)
#pragma unroll
      for (int i = 0; i < 2 * OWN_SUMS; i++) own[pass][i / OWN_SUMS][i % OWN_SUMS] = sums[pass][i];
  } else {
    // Blocks send each sum to the thread of the same index in the block that adds it up.
    typedef float Exchange[CLUSTER][PASSES][2][OWN_SUMS][CONSUMERS * WARP];
    static_assert(sizeof(Exchange) <= STAGES * sizeof(StageMemory<ROWS, COLUMNS>) || CLUSTER == 1, "the exchanged sums must fit into the ring");
    Exchange& exchange = *(Exchange*)memory;
    cluster_barrier();  // The rings of all blocks have been read.
#pragma unroll
    for (int pass = 0; pass < PASSES; pass++)
#pragma unroll
      for (int i = 0; i < 2 * QUARTER_SUMS; i++) {
        u32 in_quarter = i % QUARTER_SUMS;
        float* to = &exchange[rank][pass][i / QUARTER_SUMS][in_quarter % OWN_SUMS][threadIdx.x];
        *of_block(to, in_quarter / OWN_SUMS) = sums[pass][i];
      }
    cluster_barrier();
#pragma unroll
    for (int pass = 0; pass < PASSES; pass++)
#pragma unroll
      for (int i = 0; i < 2 * OWN_SUMS; i++) {
        float sum = 0;
#pragma unroll
        for (int block = 0; block < CLUSTER; block++) sum += exchange[block][pass][i / OWN_SUMS][i % OWN_SUMS][threadIdx.x];
        own[pass][i / OWN_SUMS][i % OWN_SUMS] = sum;
      }
  }

  if constexpr (CLUSTERS == 2) {
    if (!work.add_other_cluster(own)) return;
  }

  // Step 3: scale, add and store.
  u32 width = args.width, outputs = args.gated ? 2 * width : width;
  u32 thread_row = x_row + warp % 4 * 16 + lane / 4;  // The thread's rows are this one and the one 8 below.
  u32 half_columns = args.gated ? COLUMNS / 4 : COLUMNS / 2;  // of the output
  auto position = [&](int pass, int i) {
    u32 sum = rank * OWN_SUMS + i, half = first_half + pass, in_quarter = sum / 4 * 8 + lane % 4 * 2;
    return Position{sum % 4 / 2, half, in_quarter, (tile * 2 + half) * half_columns + in_quarter};
  };
  if (E4M3 || args.addend.elements) wait_for_primary();  // then x_scales or the addend are complete
  if (E4M3) {
    float x_scales[2];  // of the thread's rows
#pragma unroll
    for (int r = 0; r < 2; r++) x_scales[r] = thread_row + r * 8 < work.rows ? args.x_scales[thread_row + r * 8] : 0;
    barrier<1, CONSUMERS>();  // `scales` are complete
    for_sums(own, position, [&](float* even, float* odd, const Position& at) {
#pragma unroll
      for (int k = 0; k < 2; k++) {
        even[k] *= x_scales[at.row] * scales[at.half][0][at.in_quarter + k];
        odd[k] *= x_scales[at.row] * scales[at.half][1][at.in_quarter + k];
      }
    });
  }
  if (args.bias) {
    for_sums(own, position, [&](float* even, float* odd, const Position& at) {
      u32 other = odd_column<COLUMNS>(args, at.column);
      if (at.column < width) add(even, load_bias(args.bias + at.column));
      if (at.column < width && other < outputs) add(odd, load_bias(args.bias + other));
    });
  }
  if (args.addend.elements) {
    bool adapted[2];  // the thread's rows
#pragma unroll
    for (int r = 0; r < 2; r++) adapted[r] = thread_row + r * 8 < work.rows && args.addend.adapted[thread_row + r * 8];
    // Loads everything before the first store, or each load would wait for the one before it.
    for_sums(own, position, [&](float* even, float* odd, const Position& at) {
      const float* from = args.addend.elements + (u64)(thread_row + at.row * 8) * outputs;
      bool there = adapted[at.row] && at.column < width;
      u32 other = odd_column<COLUMNS>(args, at.column);
      add(even, there ? *(const float2*)(from + at.column) : make_float2(0, 0));
      add(odd, there && other < outputs ? *(const float2*)(from + other) : make_float2(0, 0));
    });
  }
  Bits* to[2];  // the thread's rows
#pragma unroll
  for (int r = 0; r < 2; r++) {
    u32 row = thread_row + r * 8;
    to[r] = row < work.rows ? args.output + work.output_row(row) * args.stride : nullptr;
  }
  for_sums(own, position, [&](float* even, float* odd, const Position& at) { store<COLUMNS>(args, to[at.row], at.column, even, odd); });
}
