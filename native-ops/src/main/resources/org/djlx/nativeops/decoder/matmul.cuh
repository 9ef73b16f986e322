// Matmul of few rows, for decode steps: output[b][n] = bias[n] + sum over k of x[b][k] * weight[n][k], in float32, rounded once.
// matmul.cu multiplies by one weight, experts.cu by those of several experts.
//
// Tensor cores: the left operand is a weight tile, 16 rows of the weight; the right operand is an x tile, 8 rows of x. A lane loads
// 16 bytes of a weight row, and the X_PACKS packs of x for them (weights.cuh). mma takes them for other values of k; as the order
// is the same in both operands, the sum does not change. So a lane uses only data that it has copied itself: shared memory holds
// loads in flight, and threads synchronise only for the sums. With weights of 8 bits the sum is scaled. With 4 bits the sum of each
// scale's group of numbers is scaled: one load of four lanes, or a part of it.
//
// Blocks compute groups of WEIGHT_TILES weight tiles and X_TILES x tiles. The warps of a block divide k; their sums are added in warp
// order.
//   separate sums      a block computes several groups, and copies the next group's weights while it adds up the sums
//   no separate sums   a block computes one group; the sums take the place of the stages
//
// Shared memory
//   for each warp     STAGES stages, used in a ring: for each weight tile the upper and the lower half, then the packs of each x tile;
//                     16 bytes per lane each; then with 4 bits two scales per lane for each weight tile
//   sums              for each warp: 16 bytes per lane for each weight tile and x tile; after the stages, or in their place
//
// Invariant: the result of a row of x depends neither on the other rows nor on their number.
// Synchronisation: none between blocks.
//
// Compiled with
//   SHARED_BYTES  shared memory that a block may use
//   WEIGHT_BITS   16, 8 or 4 (weights.cuh)
//   ZERO_GROUP    with 4 bits (int4.cuh)
#pragma once
#include "decoder/output.cuh"

#ifndef ROWS
#define ROWS 8
#endif
#ifndef SHARED_BYTES
#define SHARED_BYTES 232448
#endif

#ifdef HAS_BFLOAT16

const int MATMUL_WARPS = 8;
const int TURN_LOADS = 2 * MATMUL_WARPS;  // warps alternate in k after two loads each, a cache line of L2
const int LOAD_BYTES = 64;                // of a weight row, by 4 lanes
static_assert(LOAD_BYTES == SET_BYTES, "with 4 bits a load is a set");

// The packs of a lane in a stage.
__host__ __device__ constexpr int stage_packs(int x_tiles, int weight_tiles) {
  return 2 * weight_tiles + x_tiles * 16 / WEIGHT_BITS + (WEIGHT_BITS == 4 ? (weight_tiles + 1) / 2 : 0);
}

// The number of stages that fit into shared memory, 2 to max_stages. MatmulMemory of Java computes the same, and skips kernels for
// which not even 2 stages fit.
__host__ __device__ constexpr int stages(int x_tiles, int weight_tiles, int max_stages, bool separate_sums) {
  int room = SHARED_BYTES / (MATMUL_WARPS * WARP * 16) - (separate_sums ? weight_tiles * x_tiles : 0);
  int fit = room / stage_packs(x_tiles, weight_tiles);
  return fit < 2 ? 2 : fit < max_stages ? fit : max_stages;
}

// X_TILES, WEIGHT_TILES and STAGES do not change the order of a sum. SEPARATE_SUMS: a block computes several groups.
// W is the work of a block, its groups with their operands and results:
//   args                    a struct with width, depth and gated of struct Matmul
//   Group                   a group; `column`: its first column
//   first(columns)          this block's first group of `columns` columns; its weight may be read before x is complete
//   advance(group, columns) goes on to this block's next group
//   exists(group)           whether the block has the group
//   weight(group)           the first row of the group's whole weight
//   scales()                with 4 bits the words of the weight's groups of numbers
//   wait_for_x()            returns when x is complete; call it before rows()
//   Rows rows(group, row)   the rows of x that a lane reads: `row` of each x tile; at(x_tile, k) and exists(x_tile)
//   store(group, sum, n, b) stores a lane's sums; arguments as in store_sums
template <int X_TILES, int WEIGHT_TILES, int STAGES, bool SEPARATE_SUMS, typename W>
__device__ __forceinline__ void matmul(W work) {
  typedef typename W::Group Group;
  typedef typename W::template Rows<X_TILES> Rows;
  const int STAGE = stage_packs(X_TILES, WEIGHT_TILES) * WARP;
  const int SCALES = (2 * WEIGHT_TILES + X_TILES * X_PACKS) * WARP;  // where they begin in a stage
  const int SUMS = WEIGHT_TILES * X_TILES * WARP;  // packs of a warp
  static_assert(SEPARATE_SUMS || SUMS <= STAGES * STAGE, "sums fit in place of the stages");
  extern __shared__ __align__(16) uint4 staged[];
  u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  u32 row = lane / 4;            // of both operands
  u32 width = work.args.width, depth = work.args.depth, bytes = row_bytes(depth);
  bool gated = work.args.gated;
  u32 columns = gated ? 8 : 16;  // of a weight tile
  u32 lower = gated ? 0 : 8;     // column of a weight tile's lower half
  u32 to_lower_row = gated ? width : 8;
  u64 to_lower = (u64)to_lower_row * bytes, to_next = (u64)columns * bytes;
  u32 group_columns = WEIGHT_TILES * columns;
  u32 own = warp * STAGES * STAGE + lane;
  u32 address = (u32)__cvta_generic_to_shared(staged + own), scale_address = address - lane * 8;
  u32 loads = (bytes + TURN_LOADS * LOAD_BYTES - 1) / (TURN_LOADS * LOAD_BYTES) * 2;  // of a group
  auto byte_of = [&](u32 load) { return (load / 2 * TURN_LOADS + warp * 2 + load % 2) * LOAD_BYTES + lane % 4 * 16; };
  // The next load of weights to copy, and its group.
  const Group first_group = work.first(group_columns);
  u32 next_load = 0;
  Group next_group = first_group;
  auto weight_of = [&](const Group& group) { return work.weight(group) + (u64)(group.column + row) * bytes; };
  const char* next_weight = weight_of(next_group);
  auto copy_weights = [&](u32 stage) {
    u32 byte = byte_of(next_load);
    const char* from = next_weight + byte;
#pragma unroll
    for (int weight_tile = 0; weight_tile < WEIGHT_TILES; weight_tile++) {
      u32 c = next_group.column + weight_tile * columns + row, to = address + (stage + weight_tile * 2 * WARP) * 16;
      bool is_upper = byte < bytes && c < width, is_lower = byte < bytes && c + lower < width;
      copy_pack_async<true>(to, from, is_upper);
      copy_pack_async<true>(to + WARP * 16, from + to_lower, is_lower);
      from += to_next;
      if (WEIGHT_BITS == 4) {
        // Lane i of four has the word of the group of pack i.
        u32 groups = bytes / GROUP_BYTES;
        const float* scale = work.scales() + (u64)c * groups + byte / GROUP_BYTES;
        to = scale_address + (stage + SCALES) * 16 + weight_tile * WARP * 8;
        copy_word_async(to, scale, is_upper);
        copy_word_async(to + 4, scale + (u64)to_lower_row * groups, is_lower);
      }
    }
    if (++next_load < loads || !SEPARATE_SUMS) return;
    next_load = 0;
    work.advance(next_group, group_columns);
    next_weight = weight_of(next_group);
  };
  auto has_next = [&] { return SEPARATE_SUMS ? work.exists(next_group) : next_load < loads; };
  // The next load of x to copy, and its group: after step 2 the same as of weights. Without separate sums the group is the only one.
  u32 next_x = 0;
  Group x_group = first_group;
  Rows rows;
  auto x_of = [&](int x_tile, int i) { return (2 * WEIGHT_TILES + x_tile * X_PACKS + i) * WARP; };  // in a stage
  auto end_load_of_x = [&] {
    if (!SEPARATE_SUMS || ++next_x < loads) return;
    next_x = 0;
    work.advance(x_group, group_columns);
    rows = work.template rows<X_TILES>(x_group, row);
  };
  auto copy_x = [&](u32 stage, u32 load) {
    u32 byte = byte_of(load);
#pragma unroll
    for (int x_tile = 0; x_tile < X_TILES; x_tile++)
#pragma unroll
      for (int i = 0; i < X_PACKS; i++) {
        u32 k = element_of(byte, i);
        copy_pack_async<false>(address + (stage + x_of(x_tile, i)) * 16, rows.at(x_tile, k), rows.exists(x_tile) && k < depth);
      }
    end_load_of_x();
  };

  // Step 1: copy the weights of the first STAGES loads, one copy group per load.
  uint4* warp_sums = SEPARATE_SUMS ? staged + MATMUL_WARPS * STAGES * STAGE : staged;
  const int TO_NEXT_WARP = SEPARATE_SUMS ? SUMS : STAGES * STAGE;
#pragma unroll
  for (int load = 0; load < STAGES; load++) {
    if (has_next()) copy_weights(load * STAGE);
    commit_copies();
  }
  // Step 2: copy x of the first loads, a copy group each. The first load of x is a plain load: it does not wait for the copy groups
  // after its weights.
  work.wait_for_x();
  rows = work.template rows<X_TILES>(x_group, row);
  uint4 first[X_TILES][X_PACKS];
#pragma unroll
  for (int x_tile = 0; x_tile < X_TILES; x_tile++)
#pragma unroll
    for (int i = 0; i < X_PACKS; i++) {
      u32 k = element_of(byte_of(0), i);
      first[x_tile][i] = rows.exists(x_tile) && k < depth ? *(const uint4*)rows.at(x_tile, k) : zeros();
    }
  end_load_of_x();
#pragma unroll
  for (int stage = 1; stage < STAGES; stage++) {
    if (SEPARATE_SUMS ? work.exists(x_group) : stage < loads) copy_x(stage * STAGE, SEPARATE_SUMS ? next_x : stage);
    commit_copies();
  }
#pragma unroll
  for (int x_tile = 0; x_tile < X_TILES; x_tile++)
#pragma unroll
    for (int i = 0; i < X_PACKS; i++) staged[own + x_of(x_tile, i)] = first[x_tile][i];
  wait_copies<2 * STAGES - 2>();

  // Step 3: multiply the groups, load by load.
  u32 stage = 0;
  bool is_first = true;
#pragma unroll 1
  for (Group group = first_group; work.exists(group); work.advance(group, group_columns)) {
    float sums[WEIGHT_TILES][X_TILES][4] = {};
#pragma unroll 1
    for (u32 load = 0; load < loads; load++) {
      if (!is_first || load > 0) wait_copies<STAGES - 1>();
      const uint4* from = staged + own + stage;
      uint4 right[X_TILES][X_PACKS];
#pragma unroll
      for (int x_tile = 0; x_tile < X_TILES; x_tile++)
#pragma unroll
        for (int i = 0; i < X_PACKS; i++) right[x_tile][i] = from[x_of(x_tile, i)];
#pragma unroll
      for (int weight_tile = 0; weight_tile < WEIGHT_TILES; weight_tile++) {
        uint4 upper_bytes = from[weight_tile * 2 * WARP], lower_bytes = from[(weight_tile * 2 + 1) * WARP];
        float of_group[X_TILES][4];  // before they are scaled, with 4 bits
        float(&part)[X_TILES][4] = WEIGHT_BITS == 4 ? of_group : sums[weight_tile];
        uint2 own = {}, words = {};  // of groups
        if (WEIGHT_BITS == 4) own = words = ((const uint2*)(from - lane + SCALES))[weight_tile * WARP + lane];
#pragma unroll
        for (int i = 0; i < X_PACKS; i++) {
          if (WEIGHT_BITS == 4 && i % GROUP_PARTS == 0) {
            if (GROUP < SET) words = make_uint2(__shfl_sync(~0u, own.x, lane / 4 * 4 + i), __shfl_sync(~0u, own.y, lane / 4 * 4 + i));
#pragma unroll
            for (int x_tile = 0; x_tile < X_TILES; x_tile++)
#pragma unroll
              for (int e = 0; e < 4; e++) of_group[x_tile][e] = 0;
          }
          uint4 upper = weights_of(upper_bytes, i, offsets_of(words.x)), lower = weights_of(lower_bytes, i, offsets_of(words.y));
#pragma unroll
          for (int x_tile = 0; x_tile < X_TILES; x_tile++) {
            mma(part[x_tile], upper.x, lower.x, upper.y, lower.y, right[x_tile][i].x, right[x_tile][i].y);
          }
#pragma unroll
          for (int x_tile = 0; x_tile < X_TILES; x_tile++) {
            mma(part[x_tile], upper.z, lower.z, upper.w, lower.w, right[x_tile][i].z, right[x_tile][i].w);
          }
          if (WEIGHT_BITS != 4 || (i + 1) % GROUP_PARTS != 0) continue;
          float upper_scale = group_scale(words.x), lower_scale = group_scale(words.y);
#pragma unroll
          for (int x_tile = 0; x_tile < X_TILES; x_tile++)
#pragma unroll
            for (int e = 0; e < 4; e++) sums[weight_tile][x_tile][e] += part[x_tile][e] * (e < 2 ? upper_scale : lower_scale);
        }
      }
      // The stage has been read: refill it.
      if (has_next()) {
        copy_x(stage, next_load);
        copy_weights(stage);
      }
      commit_copies();
      stage = stage == (STAGES - 1) * STAGE ? 0 : stage + STAGE;
    }

    // Step 4: add up the warps' sums. Sums in place of the stages: a warp writes to its own stages, after all its copies have arrived.
    if (is_first) wait_for_primary();  // then the addend of store() is complete
    if (!is_first) __syncthreads();    // other warps may still read the previous group's sums
    is_first = false;
#pragma unroll
    for (int weight_tile = 0; weight_tile < WEIGHT_TILES; weight_tile++)
#pragma unroll
      for (int x_tile = 0; x_tile < X_TILES; x_tile++) {
        const float* part_sums = sums[weight_tile][x_tile];
        float4* to = (float4*)warp_sums + warp * TO_NEXT_WARP + (weight_tile * X_TILES + x_tile) * WARP + lane;
        *to = make_float4(part_sums[0], part_sums[1], part_sums[2], part_sums[3]);
      }
    __syncthreads();
    for (u32 part = warp; part < WEIGHT_TILES * X_TILES; part += MATMUL_WARPS) {
      float sum[4] = {};
#pragma unroll
      for (int w = 0; w < MATMUL_WARPS; w++) {
        float4 part_sums = ((const float4*)warp_sums)[w * TO_NEXT_WARP + part * WARP + lane];
        sum[0] += part_sums.x;
        sum[1] += part_sums.y;
        sum[2] += part_sums.z;
        sum[3] += part_sums.w;
      }
      work.store(group, sum, group.column + part / X_TILES * columns + row, part % X_TILES * 8 + lane % 4 * 2);
    }
    if (!SEPARATE_SUMS) break;
  }
}

#endif
