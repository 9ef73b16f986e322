// Products of few rows: output[b][n] = sum over k of x[b][k] * weight[n][k], in float32, rounded once.
//
// The weight is the left operand of the tensor core's products, 16 of its rows (a stripe) at a time, and 8 rows of x (a tile) are
// the right one. A warp's lanes load 16 bytes each, which are next to each other in k, and both operands' alike: which k the tensor
// core takes them for does not matter to a sum. So a lane needs nothing but what it has copied itself: shared memory is a place for
// what is on its way, and no thread waits for another until the end. The warps of a block divide k, and their sums are added in the
// order of warps. What a row of x gets depends neither on the other rows nor on their number.
//
// A block of 8 rows goes through several groups of stripes, and copies weights of the next one while it adds up sums: so few blocks do
// all, and what begins a block, like the norm of x, is done once. With more rows, sums have no room beside the stages: a block has
// one group.
//
// Shared memory, for each warp: STAGES of a load each, which take turns: 16 bytes of each lane for the upper and lower half of each
// stripe, then for each tile. Behind them, or in their place, sums: for each warp, 16 bytes of each lane for each stripe and tile. Where
// a block norms x, that is next, then the weight of the norm and NORM_THREADS / WARP floats.
#pragma once
#include "llama/common.cuh"
#include "rms_norm.cuh"
#include "silu.cuh"

#ifdef HAS_BFLOAT16

struct Product {
  Bits* output;        // rows at a distance of `stride`
  const Bits* x;       // (batch, depth)
  const Bits* weight;  // (width, depth); gated, that of gates and behind it that of values
  u64 batch;
  u64 width;   // of the output
  u64 depth;   // a multiple of 8
  u64 stride;
  u64 gated;   // 1: output = silu(x gates) * (x values), so that 8 columns come from a stripe instead of 16; or 0
  // Where x, one row, is added to a residual and normed first, by each block for itself:
  const Bits* norm_weight;
  const Bits* residual;
  Bits* new_residual;       // neither x nor the residual, which other blocks still read
  u64 epsilon;              // a float's bits
};

const int PRODUCT_WARPS = 8;
const int TURN = 2 * PRODUCT_WARPS;  // loads; warps take turns, of two each: a line of the second cache

__host__ __device__ constexpr bool has_sums_apart(int tiles) { return tiles == 1; }

// Fewer stages where there is no room. The host leaves alone kernels that have no room for two. Of `tiles`, as many are copied.
__host__ __device__ constexpr int stages(int tiles, int stripes, int copied, int most) {
  int room = ROOM / (PRODUCT_WARPS * WARP * 16) - (has_sums_apart(tiles) ? stripes : 0);
  int fit = room / (2 * stripes + copied);
  return fit < 2 ? 2 : fit < most ? fit : most;
}

// x = (residual + x) / sqrt(mean((residual + x)^2) + epsilon) * weight for one row, into shared memory, to the bits of add_rms_norm.
__device__ __forceinline__ void norm_x(const Product& args, uint4* row, const uint4* weight, float* sums) {
  const int THREADS = PRODUCT_WARPS * WARP, PARTS = NORM_THREADS / THREADS;
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
    store_warp_sum(squares[part], sums, part * PRODUCT_WARPS + threadIdx.x / WARP);
  }
  __syncthreads();
  float scale = norm_scale(sum_of_warps(sums, NORM_THREADS / WARP), args.depth, __uint_as_float((u32)args.epsilon));
  for (u32 i = threadIdx.x; i < packs; i += THREADS) row[i] = normalize_pack<T>(row[i], scale, weight[i]);
  __syncthreads();
}

// TILES of x, STRIPES of weights. Neither changes the order in which a sum is taken. NORMED: x is one row, and normed first.
template <int TILES, int STRIPES, int STAGES, bool NORMED>
__device__ __forceinline__ void product(const Product& args) {
  const bool APART = has_sums_apart(TILES);  // there may be several groups
  const int PACKS = 2 * STRIPES + (NORMED ? 0 : TILES);  // of a lane in a stage
  const int STAGE = PACKS * WARP;
  const int SUMS = STRIPES * TILES * WARP;  // packs of a warp
  static_assert(SUMS <= STAGES * STAGE, "sums need more room than stages");
  extern __shared__ __align__(16) uint4 staged[];
  launch_dependents();
  u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  u32 row = lane / 4;            // of both operands
  u32 within = lane % 4 * PACK;  // of a load
  u32 batch = args.batch, width = args.width, depth = args.depth;
  bool gated = args.gated;
  u32 columns = gated ? 8 : 16;  // of a stripe
  u32 lower = gated ? 0 : 8;     // the column of a stripe's lower half
  u64 to_lower = (u64)(gated ? width : 8) * depth, to_next = (u64)columns * depth;
  u32 group_columns = STRIPES * columns, to_next_group = gridDim.x * group_columns;
  const Bits* x = args.x + (u64)row * depth;
  u32 own = warp * STAGES * STAGE + lane;
  u32 address = (u32)__cvta_generic_to_shared(staged + own);
  u32 loads = (depth + TURN * STEP - 1) / (TURN * STEP) * 2;  // of a group
  auto k_of = [&](u32 load) { return (load / 2 * TURN + warp * 2 + load % 2) * STEP + within; };
  // What is copied next, of which group.
  u32 next_load = 0, next_group = blockIdx.x * group_columns;
  const Bits* next_weight = args.weight + (u64)(next_group + row) * depth;
  auto copy_weights = [&](u32 stage) {
    u32 k = k_of(next_load);
    const Bits* from = next_weight + k;
#pragma unroll
    for (int stripe = 0; stripe < STRIPES; stripe++) {
      u32 c = next_group + stripe * columns + row, to = address + (stage + stripe * 2 * WARP) * 16;
      copy_pack<true>(to, from, k < depth && c < width);
      copy_pack<true>(to + WARP * 16, from + to_lower, k < depth && c + lower < width);
      from += to_next;
    }
    if (++next_load < loads || !APART) return;
    next_load = 0;
    next_group += to_next_group;
    next_weight += (u64)to_next_group * depth;
  };
  auto has_next = [&] { return APART ? next_group < width : next_load < loads; };
  auto is_x = [&](int tile, u32 k) { return tile * 8 + row < batch && k < depth; };
  auto copy_x = [&](u32 stage, u32 load) {
    u32 k = k_of(load);
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
      copy_pack<false>(address + (stage + (2 * STRIPES + tile) * WARP) * 16, x + (tile * 8 * depth + k), is_x(tile, k));
    }
  };

  // Weights of the first loads, a set of copies each, that of the norm with the first; then x, which others have written: of the
  // first load directly, so that it waits for no copies behind its weights, of the others a set each.
  uint4* sums_of_warps = APART ? staged + PRODUCT_WARPS * STAGES * STAGE : staged;
  const int TO_NEXT_WARP = APART ? SUMS : STAGES * STAGE;
  uint4* normed = sums_of_warps + PRODUCT_WARPS * TO_NEXT_WARP;
  uint4* norm_weight = normed + depth / PACK;
  if (NORMED) {
    for (u32 i = threadIdx.x; i < depth / PACK; i += PRODUCT_WARPS * WARP) {
      copy_pack<false>((u32)__cvta_generic_to_shared(norm_weight + i), args.norm_weight + i * PACK, true);
    }
  }
#pragma unroll
  for (int load = 0; load < STAGES; load++) {
    if (has_next()) copy_weights(load * STAGE);
    end_group();
  }
  wait_for_primary();
  uint4 first[TILES];
  if (NORMED) {
    await_groups<STAGES - 1>();
    norm_x(args, normed, norm_weight, (float*)(norm_weight + depth / PACK));
  } else {
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
      u32 k = k_of(0);
      first[tile] = is_x(tile, k) ? *(const uint4*)(x + (tile * 8 * depth + k)) : zeros();
    }
    u32 load = 1;  // of a group
#pragma unroll
    for (int stage = 1; stage < STAGES; stage++) {
      if (APART || load < loads) copy_x(stage * STAGE, load);
      end_group();
      if (++load == loads && APART) load = 0;
    }
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) staged[own + (2 * STRIPES + tile) * WARP] = first[tile];
    await_groups<2 * STAGES - 2>();
  }

  u32 stage = 0;
  bool is_first = true;
#pragma unroll 1
  for (u32 group = blockIdx.x * group_columns; group < width; group += to_next_group) {
    float sums[STRIPES][TILES][4] = {};
#pragma unroll 1
    for (u32 load = 0; load < loads; load++) {
      if (!is_first || load > 0) await_groups<STAGES - 1>();
      const uint4* from = staged + own + stage;
      uint4 right[TILES];
#pragma unroll
      for (int tile = 0; tile < TILES; tile++) {
        if (NORMED) {
          u32 k = k_of(load);
          right[tile] = is_x(tile, k) ? normed[k / PACK] : zeros();
        } else {
          right[tile] = from[(2 * STRIPES + tile) * WARP];
        }
      }
#pragma unroll
      for (int stripe = 0; stripe < STRIPES; stripe++) {
        uint4 upper = from[stripe * 2 * WARP], lower = from[(stripe * 2 + 1) * WARP];
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
          multiply(sums[stripe][tile], upper.x, lower.x, upper.y, lower.y, right[tile].x, right[tile].y);
        }
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
          multiply(sums[stripe][tile], upper.z, lower.z, upper.w, lower.w, right[tile].z, right[tile].w);
        }
      }
      // Products have taken what was in the stage.
      if (has_next()) {
        if (!NORMED) copy_x(stage, next_load);
        copy_weights(stage);
      }
      end_group();
      stage = stage == (STAGES - 1) * STAGE ? 0 : stage + STAGE;
    }

    // In place of stages it is still each warp's own room, whose copies have all arrived; apart, sums before may still be read.
    if (!is_first) __syncthreads();
    is_first = false;
#pragma unroll
    for (int stripe = 0; stripe < STRIPES; stripe++)
#pragma unroll
      for (int tile = 0; tile < TILES; tile++) {
        const float* four = sums[stripe][tile];
        float4* to = (float4*)sums_of_warps + warp * TO_NEXT_WARP + (stripe * TILES + tile) * WARP + lane;
        *to = make_float4(four[0], four[1], four[2], four[3]);
      }
    __syncthreads();
    for (u32 part = warp; part < STRIPES * TILES; part += PRODUCT_WARPS) {
      float sum[4] = {};
#pragma unroll
      for (int w = 0; w < PRODUCT_WARPS; w++) {
        float4 four = ((const float4*)sums_of_warps)[w * TO_NEXT_WARP + part * WARP + lane];
        sum[0] += four.x;
        sum[1] += four.y;
        sum[2] += four.z;
        sum[3] += four.w;
      }
      u32 n = group + part / TILES * columns + row, b = part % TILES * 8 + lane % 4 * 2;
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
    if (!APART) break;
  }
}

#define PRODUCT(rows, stripes, most)                                                            \
  extern "C" __global__ void __launch_bounds__(PRODUCT_WARPS* WARP, 1)                          \
      decode_product_##rows##_##stripes(const __grid_constant__ Product args) {                   \
    product<rows / 8, stripes, stages(rows / 8, stripes, rows / 8, most), false>(args);           \
  }

#define NORM_PRODUCT(stripes, most)                                        \
  extern "C" __global__ void __launch_bounds__(PRODUCT_WARPS* WARP, 1)     \
      decode_norm_product_##stripes(const __grid_constant__ Product args) {  \
    product<1, stripes, stages(1, stripes, 0, most), true>(args);            \
  }

// NOTES.md has what was measured. The host knows these numbers, and chooses by how many stripes there are; 64 rows have too many
// sums for 7 of a block.
PRODUCT(8, 7, 3)
PRODUCT(8, 3, 7)
PRODUCT(8, 2, 10)
PRODUCT(8, 1, 10)
NORM_PRODUCT(7, 3)
NORM_PRODUCT(3, 8)
NORM_PRODUCT(2, 10)
NORM_PRODUCT(1, 10)
PRODUCT(16, 7, 3)
PRODUCT(16, 3, 7)
PRODUCT(16, 2, 6)
PRODUCT(16, 1, 6)
PRODUCT(32, 7, 3)
PRODUCT(32, 3, 5)
PRODUCT(32, 2, 5)
PRODUCT(32, 1, 5)
PRODUCT(64, 4, 3)
PRODUCT(64, 2, 4)
PRODUCT(64, 1, 4)

#endif
