// Products of few rows: output[b][n] = sum over k of x[b][k] * weight[n][k], in float32, rounded once.
//
// The weight is the left operand of the tensor core's products, 16 of its rows (a stripe) at a time, and 8 rows of x (a tile) are
// the right one. A warp's lanes load 16 bytes each, which are next to each other in k, and both operands' alike: which k the tensor
// core takes them for does not matter to a sum. So a lane needs nothing but what it has copied itself: shared memory is a place for
// what is on its way, and no thread waits for another until the end. The warps of a block divide k, and their sums are added in the
// order of warps. What a row of x gets depends neither on the other rows nor on their number.
//
// Shared memory, for each warp: STAGES of a load each, which take turns: 16 bytes of each lane for the upper and lower half of each
// stripe, then for each tile. At the end, sums: 16 bytes of each lane for each stripe and tile.
#pragma once
#include "llama/common.cuh"

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
};

const int PRODUCT_WARPS = 8;
const int TURN = 2 * PRODUCT_WARPS;  // loads; warps take turns, of two each: a line of the second cache

// TILES of x, STRIPES of weights. Neither changes the order in which a sum is taken.
template <int TILES, int STRIPES, int STAGES>
__device__ __forceinline__ void product(const Product& of) {
  const int PACKS = 2 * STRIPES + TILES;  // of a lane in a stage
  const int STAGE = PACKS * WARP;
  static_assert(STRIPES * TILES <= STAGES * PACKS, "sums need more room than stages");
  extern __shared__ __align__(16) uint4 staged[];
  let_others_begin();
  u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  u32 row = lane / 4;            // of both operands
  u32 within = lane % 4 * PACK;  // of a load
  u32 batch = of.batch, width = of.width, depth = of.depth;
  bool gated = of.gated;
  u32 columns = gated ? 8 : 16;  // of a stripe
  u32 column = blockIdx.x * STRIPES * columns + row;
  u32 lower = gated ? 0 : 8;  // the column of a stripe's lower half
  const Bits* weight = of.weight + (u64)column * depth;
  u64 to_lower = (u64)(gated ? width : 8) * depth, to_next = (u64)columns * depth;
  const Bits* x = of.x + (u64)row * depth;
  u32 own = warp * STAGES * STAGE + lane;
  u32 address = (u32)__cvta_generic_to_shared(staged + own);
  u32 loads = (depth + TURN * STEP - 1) / (TURN * STEP) * 2;
  auto k_of = [&](u32 load) { return (load / 2 * TURN + warp * 2 + load % 2) * STEP + within; };
  auto copy_weights = [&](u32 stage, u32 load) {
    u32 k = k_of(load);
    const Bits* from = weight + k;
#pragma unroll
    for (int stripe = 0; stripe < STRIPES; stripe++) {
      u32 c = column + stripe * columns, to = address + (stage + stripe * 2 * WARP) * 16;
      copy_pack<true>(to, from, k < depth && c < width);
      copy_pack<true>(to + WARP * 16, from + to_lower, k < depth && c + lower < width);
      from += to_next;
    }
  };
  auto is_x = [&](int tile, u32 k) { return tile * 8 + row < batch && k < depth; };
  auto copy_x = [&](u32 stage, u32 load) {
    u32 k = k_of(load);
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
      copy_pack<false>(address + (stage + (2 * STRIPES + tile) * WARP) * 16, x + (tile * 8 * depth + k), is_x(tile, k));
    }
  };

  // Weights of the first loads, a group each; then x, which others have written: of the first load directly, so that it waits for no
  // group behind its weights, of the others a group each.
#pragma unroll
  for (int load = 0; load < STAGES; load++) {
    if (load < loads) copy_weights(load * STAGE, load);
    end_group();
  }
  await_others();
  uint4 first[TILES];
#pragma unroll
  for (int tile = 0; tile < TILES; tile++) {
    u32 k = k_of(0);
    first[tile] = is_x(tile, k) ? *(const uint4*)(x + (tile * 8 * depth + k)) : zeros();
  }
#pragma unroll
  for (int load = 1; load < STAGES; load++) {
    if (load < loads) copy_x(load * STAGE, load);
    end_group();
  }
#pragma unroll
  for (int tile = 0; tile < TILES; tile++) staged[own + (2 * STRIPES + tile) * WARP] = first[tile];
  await_groups<2 * STAGES - 2>();

  float sums[STRIPES][TILES][4] = {};
  u32 stage = 0;
#pragma unroll 1
  for (u32 load = 0; load < loads; load++) {
    if (load > 0) await_groups<STAGES - 1>();
    const uint4* from = staged + own + stage;
    uint4 right[TILES];
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) right[tile] = from[(2 * STRIPES + tile) * WARP];
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
    if (load + STAGES < loads) {
      copy_weights(stage, load + STAGES);
      copy_x(stage, load + STAGES);
    }
    end_group();
    stage = stage == (STAGES - 1) * STAGE ? 0 : stage + STAGE;
  }

  // Still each lane's own room, whose copies have all arrived.
#pragma unroll
  for (int stripe = 0; stripe < STRIPES; stripe++)
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
      const float* four = sums[stripe][tile];
      ((float4*)staged)[own + (stripe * TILES + tile) * WARP] = make_float4(four[0], four[1], four[2], four[3]);
    }
  __syncthreads();
  for (u32 part = warp; part < STRIPES * TILES; part += PRODUCT_WARPS) {
    float sum[4] = {};
#pragma unroll
    for (int w = 0; w < PRODUCT_WARPS; w++) {
      float4 four = ((const float4*)staged)[w * STAGES * STAGE + part * WARP + lane];
      sum[0] += four.x;
      sum[1] += four.y;
      sum[2] += four.z;
      sum[3] += four.w;
    }
    u32 n = column + part / TILES * columns, b = part % TILES * 8 + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      if (b + i >= batch || n >= width) continue;
      Bits* to = of.output + (b + i) * of.stride + n;
      if (gated) {
        *to = T::store(sum[i] / (1 + __expf(-sum[i])) * sum[i + 2]);
      } else {
        *to = T::store(sum[i]);
        if (n + 8 < width) to[8] = T::store(sum[i + 2]);
      }
    }
  }
}

// Fewer stages where there is no room. The host leaves alone kernels that have no room for two.
__host__ __device__ constexpr int stages(int tiles, int stripes, int most) {
  int fit = ROOM / (PRODUCT_WARPS * WARP * 16 * (2 * stripes + tiles));
  return fit < 2 ? 2 : fit < most ? fit : most;
}

#define PRODUCT(rows, stripes, most)                                                  \
  extern "C" __global__ void __launch_bounds__(PRODUCT_WARPS* WARP)                   \
      decode_product_##rows##_##stripes(const __grid_constant__ Product of) {         \
    product<rows / 8, stripes, stages(rows / 8, stripes, most)>(of);                  \
  }

// NOTES.md has what was measured. The host knows these numbers, and chooses by how many stripes there are; 64 rows have too many
// sums for 7 of a block.
PRODUCT(8, 7, 3)
PRODUCT(8, 3, 7)
PRODUCT(8, 2, 10)
PRODUCT(8, 1, 10)
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
