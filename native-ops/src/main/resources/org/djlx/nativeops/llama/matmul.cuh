// Products of few rows: output[b][n] = sum over k of x[b][k] * weight[n][k], in float32, rounded once.
//
// The weight is the left operand of the tensor core's products, 16 of its rows (a weight_tile) at a time, and 8 rows of x (a x_tile) are
// the right one. A warp's lanes load 16 bytes each, which are next to each other in k, and both operands' alike: which k the tensor
// core takes them for does not matter to a sum. So a lane needs nothing but what it has copied itself: shared memory is a place for
// what is on its way, and no thread waits for another until the end. The warps of a block divide k, and their sums are added in the
// order of warps. What a row of x gets depends neither on the other rows nor on their number.
//
// A block of 8 rows goes through several groups of weight_tiles, and copies weights of the next one while it adds up sums: so few blocks do
// all, and what begins a block, like the norm of x, is done once. With more rows, sums have no room beside the stages: a block has
// one group.
//
// Shared memory, for each warp: STAGES of a load each, which take turns: 16 bytes of each lane for the upper and lower half of each
// weight_tile, then for each x_tile. Behind them, or in their place, sums: for each warp, 16 bytes of each lane for each weight_tile and x_tile. Where
// a block norms x, that is next, then the weight of the norm and NORM_THREADS / WARP floats.
#pragma once
#include "llama/common.cuh"
#include "rms_norm.cuh"
#include "silu.cuh"

#ifdef HAS_BFLOAT16

struct Matmul {
  Bits* output;        // rows at a distance of `stride`
  const Bits* x;       // (batch, depth)
  const Bits* weight;  // (width, depth); gated, that of gates and behind it that of values
  u64 batch;
  u64 width;   // of the output
  u64 depth;   // a multiple of 8
  u64 stride;
  u64 gated;   // 1: output = silu(x gates) * (x values), so that 8 columns come from a weight_tile instead of 16; or 0
  // Where x, one row, is added to a residual and normed first, by each block for itself:
  const Bits* norm_weight;
  const Bits* residual;
  Bits* new_residual;       // neither x nor the residual, which other blocks still read
  u64 epsilon;              // a float's bits
};

const int MATMUL_WARPS = 8;
const int TURN_LOADS = 2 * MATMUL_WARPS;  // loads; warps take turns, of two each: a line of the second cache

__host__ __device__ constexpr bool has_separate_sums(int x_tiles) { return x_tiles == 1; }

// Fewer stages where there is no room. The host leaves alone kernels that have no room for two. Of `x_tiles`, as many are copied.
__host__ __device__ constexpr int stages(int x_tiles, int weight_tiles, int copied, int most) {
  int room = SHARED_BYTES / (MATMUL_WARPS * WARP * 16) - (has_separate_sums(x_tiles) ? weight_tiles : 0);
  int fit = room / (2 * weight_tiles + copied);
  return fit < 2 ? 2 : fit < most ? fit : most;
}

// x = (residual + x) / sqrt(mean((residual + x)^2) + epsilon) * weight for one row, into shared memory, to the bits of add_rms_norm.
__device__ __forceinline__ void norm_x(const Matmul& args, uint4* row, const uint4* weight, float* sums) {
  const int THREADS = MATMUL_WARPS * WARP, PARTS = NORM_THREADS / THREADS;
  const uint4 *x = (const uint4*)args.x, *residual = (const uint4*)args.residual;
  u32 packs = args.depth / PACK, threads = min((packs + WARP - 1) / WARP * WARP, NORM_THREADS);
  // Each thread is PARTS of those of add_rms_norm.
  float squares[PARTS] = {};
  for (u32 begin = 0; begin < packs; begin += threads) {
    uint4 sum[PARTS];
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
      u32 thread = part * THREADS + threadIdx.x, i = begin + thread;
      sum[part] = thread < threads && i < packs ? add_packs<T>(residual[i], x[i]) : zeros();
    }
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
      u32 thread = part * THREADS + threadIdx.x, i = begin + thread;
      if (thread >= threads || i >= packs) continue;
      row[i] = sum[part];
      if (blockIdx.x == 0) ((uint4*)args.new_residual)[i] = sum[part];
      squares[part] = add_squares<T>(squares[part], sum[part]);
    }
  }
#pragma unroll
  for (int part = 0; part < PARTS; part++) {
    store_warp_sum(squares[part], sums, part * MATMUL_WARPS + threadIdx.x / WARP);
  }
  __syncthreads();
  float scale = norm_scale(sum_of_warps(sums, NORM_THREADS / WARP), args.depth, __uint_as_float((u32)args.epsilon));
  for (u32 i = threadIdx.x; i < packs; i += THREADS) row[i] = normalize_pack<T>(row[i], scale, weight[i]);
  __syncthreads();
}

// X_TILES of x, WEIGHT_TILES of weights. Neither changes the order in which a sum is taken. NORM: x is one row, and normed first.
template <int X_TILES, int WEIGHT_TILES, int STAGES, bool NORM>
__device__ __forceinline__ void matmul(const Matmul& args) {
  const bool SEPARATE_SUMS = has_separate_sums(X_TILES);  // there may be several groups
  const int PACKS = 2 * WEIGHT_TILES + (NORM ? 0 : X_TILES);  // of a lane in a stage
  const int STAGE = PACKS * WARP;
  const int SUMS = WEIGHT_TILES * X_TILES * WARP;  // packs of a warp
  static_assert(SUMS <= STAGES * STAGE, "sums need more room than stages");
  extern __shared__ __align__(16) uint4 staged[];
  launch_dependents();
  u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  u32 row = lane / 4;            // of both operands
  u32 within = lane % 4 * PACK;  // of a load
  u32 batch = args.batch, width = args.width, depth = args.depth;
  bool gated = args.gated;
  u32 columns = gated ? 8 : 16;  // of a weight_tile
  u32 lower = gated ? 0 : 8;     // the column of a weight_tile's lower half
  u64 to_lower = (u64)(gated ? width : 8) * depth, to_next = (u64)columns * depth;
  u32 group_columns = WEIGHT_TILES * columns, to_next_group = gridDim.x * group_columns;
  const Bits* x = args.x + (u64)row * depth;
  u32 own = warp * STAGES * STAGE + lane;
  u32 address = (u32)__cvta_generic_to_shared(staged + own);
  u32 loads = (depth + TURN_LOADS * STEP - 1) / (TURN_LOADS * STEP) * 2;  // of a group
  auto k_of = [&](u32 load) { return (load / 2 * TURN_LOADS + warp * 2 + load % 2) * STEP + within; };
  // What is copied next, of which group.
  u32 next_load = 0, next_group = blockIdx.x * group_columns;
  const Bits* next_weight = args.weight + (u64)(next_group + row) * depth;
  auto copy_weights = [&](u32 stage) {
    u32 k = k_of(next_load);
    const Bits* from = next_weight + k;
#pragma unroll
    for (int weight_tile = 0; weight_tile < WEIGHT_TILES; weight_tile++) {
      u32 c = next_group + weight_tile * columns + row, to = address + (stage + weight_tile * 2 * WARP) * 16;
      copy_pack_async<true>(to, from, k < depth && c < width);
      copy_pack_async<true>(to + WARP * 16, from + to_lower, k < depth && c + lower < width);
      from += to_next;
    }
    if (++next_load < loads || !SEPARATE_SUMS) return;
    next_load = 0;
    next_group += to_next_group;
    next_weight += (u64)to_next_group * depth;
  };
  auto has_next = [&] { return SEPARATE_SUMS ? next_group < width : next_load < loads; };
  auto is_x = [&](int x_tile, u32 k) { return x_tile * 8 + row < batch && k < depth; };
  auto copy_x = [&](u32 stage, u32 load) {
    u32 k = k_of(load);
#pragma unroll
    for (int x_tile = 0; x_tile < X_TILES; x_tile++) {
      copy_pack_async<false>(address + (stage + (2 * WEIGHT_TILES + x_tile) * WARP) * 16, x + (x_tile * 8 * depth + k), is_x(x_tile, k));
    }
  };

  // Weights of the first loads, a set of copies each, that of the norm with the first; then x, which others have written: of the
  // first load directly, so that it waits for no copies behind its weights, of the others a set each.
  uint4* sums_of_warps = SEPARATE_SUMS ? staged + MATMUL_WARPS * STAGES * STAGE : staged;
  const int TO_NEXT_WARP = SEPARATE_SUMS ? SUMS : STAGES * STAGE;
  uint4* normed = sums_of_warps + MATMUL_WARPS * TO_NEXT_WARP;
  uint4* norm_weight = normed + depth / PACK;
  if (NORM) {
    for (u32 i = threadIdx.x; i < depth / PACK; i += MATMUL_WARPS * WARP) {
      copy_pack_async<false>((u32)__cvta_generic_to_shared(norm_weight + i), args.norm_weight + i * PACK, true);
    }
  }
#pragma unroll
  for (int load = 0; load < STAGES; load++) {
    if (has_next()) copy_weights(load * STAGE);
    commit_copies();
  }
  wait_for_primary();
  uint4 first[X_TILES];
  if (NORM) {
    wait_copies<STAGES - 1>();
    norm_x(args, normed, norm_weight, (float*)(norm_weight + depth / PACK));
  } else {
#pragma unroll
    for (int x_tile = 0; x_tile < X_TILES; x_tile++) {
      u32 k = k_of(0);
      first[x_tile] = is_x(x_tile, k) ? *(const uint4*)(x + (x_tile * 8 * depth + k)) : zeros();
    }
    u32 load = 1;  // of a group
#pragma unroll
    for (int stage = 1; stage < STAGES; stage++) {
      if (SEPARATE_SUMS || load < loads) copy_x(stage * STAGE, load);
      commit_copies();
      if (++load == loads && SEPARATE_SUMS) load = 0;
    }
#pragma unroll
    for (int x_tile = 0; x_tile < X_TILES; x_tile++) staged[own + (2 * WEIGHT_TILES + x_tile) * WARP] = first[x_tile];
    wait_copies<2 * STAGES - 2>();
  }

  u32 stage = 0;
  bool is_first = true;
#pragma unroll 1
  for (u32 group = blockIdx.x * group_columns; group < width; group += to_next_group) {
    float sums[WEIGHT_TILES][X_TILES][4] = {};
#pragma unroll 1
    for (u32 load = 0; load < loads; load++) {
      if (!is_first || load > 0) wait_copies<STAGES - 1>();
      const uint4* from = staged + own + stage;
      uint4 right[X_TILES];
#pragma unroll
      for (int x_tile = 0; x_tile < X_TILES; x_tile++) {
        if (NORM) {
          u32 k = k_of(load);
          right[x_tile] = is_x(x_tile, k) ? normed[k / PACK] : zeros();
        } else {
          right[x_tile] = from[(2 * WEIGHT_TILES + x_tile) * WARP];
        }
      }
#pragma unroll
      for (int weight_tile = 0; weight_tile < WEIGHT_TILES; weight_tile++) {
        uint4 upper = from[weight_tile * 2 * WARP], lower = from[(weight_tile * 2 + 1) * WARP];
#pragma unroll
        for (int x_tile = 0; x_tile < X_TILES; x_tile++) {
          mma(sums[weight_tile][x_tile], upper.x, lower.x, upper.y, lower.y, right[x_tile].x, right[x_tile].y);
        }
#pragma unroll
        for (int x_tile = 0; x_tile < X_TILES; x_tile++) {
          mma(sums[weight_tile][x_tile], upper.z, lower.z, upper.w, lower.w, right[x_tile].z, right[x_tile].w);
        }
      }
      // Products have taken what was in the stage.
      if (has_next()) {
        if (!NORM) copy_x(stage, next_load);
        copy_weights(stage);
      }
      commit_copies();
      stage = stage == (STAGES - 1) * STAGE ? 0 : stage + STAGE;
    }

    // In place of stages it is still each warp's own room, whose copies have all arrived; apart, sums before may still be read.
    if (!is_first) __syncthreads();
    is_first = false;
#pragma unroll
    for (int weight_tile = 0; weight_tile < WEIGHT_TILES; weight_tile++)
#pragma unroll
      for (int x_tile = 0; x_tile < X_TILES; x_tile++) {
        const float* part_sums = sums[weight_tile][x_tile];
        float4* to = (float4*)sums_of_warps + warp * TO_NEXT_WARP + (weight_tile * X_TILES + x_tile) * WARP + lane;
        *to = make_float4(part_sums[0], part_sums[1], part_sums[2], part_sums[3]);
      }
    __syncthreads();
    for (u32 part = warp; part < WEIGHT_TILES * X_TILES; part += MATMUL_WARPS) {
      float sum[4] = {};
#pragma unroll
      for (int w = 0; w < MATMUL_WARPS; w++) {
        float4 part_sums = ((const float4*)sums_of_warps)[w * TO_NEXT_WARP + part * WARP + lane];
        sum[0] += part_sums.x;
        sum[1] += part_sums.y;
        sum[2] += part_sums.z;
        sum[3] += part_sums.w;
      }
      u32 n = group + part / X_TILES * columns + row, b = part % X_TILES * 8 + lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < 2; i++) {
        if (b + i >= batch || n >= width) continue;
        Bits* to = args.output + (b + i) * args.stride + n;
        if (gated) {
          *to = T::store(silu_fast(sum[i]) * sum[i + 2]);
        } else {
          *to = T::store(sum[i]);
          if (n + 8 < width) to[8] = T::store(sum[i + 2]);
        }
      }
    }
    if (!SEPARATE_SUMS) break;
  }
}

#define MATMUL(rows, weight_tiles, most)                                                            \
  extern "C" __global__ void __launch_bounds__(MATMUL_WARPS* WARP, 1)                          \
      decode_matmul_##rows##_##weight_tiles(const __grid_constant__ Matmul args) {                   \
    matmul<rows / 8, weight_tiles, stages(rows / 8, weight_tiles, rows / 8, most), false>(args);           \
  }

#define NORM_MATMUL(weight_tiles, most)                                        \
  extern "C" __global__ void __launch_bounds__(MATMUL_WARPS* WARP, 1)     \
      decode_norm_matmul_##weight_tiles(const __grid_constant__ Matmul args) {  \
    matmul<1, weight_tiles, stages(1, weight_tiles, 0, most), true>(args);            \
  }

// NOTES.md has what was measured. The host knows these numbers, and chooses by how many weight_tiles there are; 64 rows have too many
// sums for 7 of a block.
MATMUL(8, 7, 3)
MATMUL(8, 3, 7)
MATMUL(8, 2, 10)
MATMUL(8, 1, 10)
NORM_MATMUL(7, 3)
NORM_MATMUL(3, 8)
NORM_MATMUL(2, 10)
NORM_MATMUL(1, 10)
MATMUL(16, 7, 3)
MATMUL(16, 3, 7)
MATMUL(16, 2, 6)
MATMUL(16, 1, 6)
MATMUL(32, 7, 3)
MATMUL(32, 3, 5)
MATMUL(32, 2, 5)
MATMUL(32, 1, 5)
MATMUL(64, 4, 3)
MATMUL(64, 2, 4)
MATMUL(64, 1, 4)

#endif
