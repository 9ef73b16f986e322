// Matmul of few rows, for decode steps: output[b][n] = bias[n] + sum over k of x[b][k] * weight[n][k], in float32, rounded once.
//
// Tensor cores: the left operand is a weight tile, 16 rows of the weight; the right operand is an x tile, 8 rows of x. A lane loads
// 16 bytes of a weight row, and the X_PACKS packs of x for them (weights.cuh). mma takes them for other values of k; as the order
// is the same in both operands, the sum does not change. So a lane uses only data that it has copied itself: shared memory holds
// loads in flight, and threads synchronise only for the sums. Weights of 8 bits are scaled in the sum, of 4 bits in the sum of a
// group, which is one load of four lanes or a part of it.
//
// Blocks: the warps of a block divide k; their sums are added in warp order.
//   one x tile     a block computes several groups of weight tiles, and copies the next group's weights while it adds up the sums
//   more x tiles   a block computes one group, because shared memory has no room for separate sums
//
// Shared memory
//   for each warp     STAGES stages, used in a ring: for each weight tile the upper and the lower half, then the packs of each x tile;
//                     16 bytes per lane each; then with 4 bits two scales per lane for each weight tile
//   sums              for each warp: 16 bytes per lane for each weight tile and x tile; after the stages, or in their place
//
// Invariant: the result of a row of x depends neither on the other rows nor on their number.
// Synchronisation: none between blocks. With an addend, x is complete before the primary has ended (addend.cuh).
//
// Compiled with
//   ROWS          8, 16, 32 or 64: the largest number of rows
//   SHARED_BYTES  shared memory that a block may use
//   WEIGHT_BITS   16, 8 or 4 (weights.cuh)
//   ZERO_GROUP    with 4 bits (int4.cuh)
#include "decoder/addend.cuh"
#include "decoder/output.cuh"

#ifndef ROWS
#define ROWS 8
#endif
#ifndef SHARED_BYTES
#define SHARED_BYTES 232448
#endif

#ifdef HAS_BFLOAT16

struct Matmul {
  Bits* output;        // (batch, width), rows `stride` elements apart
  const Bits* x;       // (batch, depth)
  const char* weight;  // (width, depth); gated: (2 width, depth), gates then values
  const float* scales; // of the weight: (rows), or words of groups (rows, groups); not read with 16 bits
  const Bits* bias;    // (width); gated: (2 width); may be null
  u64 batch;
  u64 width;
  u64 depth;  // a multiple of 8; of 16 for weights of 8 bits
  u64 stride;
  u64 gated;  // 1: output = silu(x gates) * (x values); a weight tile then yields 8 columns instead of 16
  Addend addend;  // of weights of 16 bits
};

const int MATMUL_WARPS = 8;
const int TURN_LOADS = 2 * MATMUL_WARPS;  // warps alternate in k after two loads each, a cache line of L2
const int LOAD_BYTES = 64;                // of a weight row, by 4 lanes
static_assert(LOAD_BYTES == SET_BYTES, "with 4 bits a load is a set");

// Whether sums have their own shared memory.
__host__ __device__ constexpr bool has_separate_sums(int x_tiles) { return x_tiles == 1; }

// Adds the addend to the sums of a lane; `sum`, n and b as in store_sums.
__device__ __forceinline__ void add_addend(const Matmul& matmul, float (&sum)[4], u32 n, u32 b) {
  u32 width = matmul.width, columns = matmul.gated ? 2 * width : width, lower = n + (matmul.gated ? width : 8);
#pragma unroll
  for (int i = 0; i < 2; i++) {
    if (n >= width || b + i >= matmul.batch || !matmul.addend.adapted[b + i]) continue;
    const float* from = matmul.addend.elements + (u64)(b + i) * columns;
    sum[i] += from[n];
    if (lower < columns) sum[i + 2] += from[lower];
  }
}

// The packs of a lane in a stage.
__host__ __device__ constexpr int stage_packs(int x_tiles, int weight_tiles) {
  return 2 * weight_tiles + x_tiles * 16 / WEIGHT_BITS + (WEIGHT_BITS == 4 ? (weight_tiles + 1) / 2 : 0);
}

// The number of stages that fit into shared memory, 2 to max_stages. Java computes the same, and skips kernels for which not even
// 2 stages fit.
__host__ __device__ constexpr int stages(int x_tiles, int weight_tiles, int max_stages) {
  int room = SHARED_BYTES / (MATMUL_WARPS * WARP * 16) - (has_separate_sums(x_tiles) ? weight_tiles : 0);
  int fit = room / stage_packs(x_tiles, weight_tiles);
  return fit < 2 ? 2 : fit < max_stages ? fit : max_stages;
}

// X_TILES and WEIGHT_TILES: tiles of a group; they do not change the order of a sum.
template <int X_TILES, int WEIGHT_TILES, int STAGES>
__device__ __forceinline__ void matmul(const Matmul& args) {
  const bool SEPARATE_SUMS = has_separate_sums(X_TILES);  // then a block computes several groups
  const int STAGE = stage_packs(X_TILES, WEIGHT_TILES) * WARP;
  const int SCALES = (2 * WEIGHT_TILES + X_TILES * X_PACKS) * WARP;  // where they begin in a stage
  const int SUMS = WEIGHT_TILES * X_TILES * WARP;  // packs of a warp
  static_assert(SUMS <= STAGES * STAGE, "sums fit in place of the stages");
  extern __shared__ __align__(16) uint4 staged[];
  launch_dependents();
  u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  u32 row = lane / 4;            // of both operands
  u32 batch = args.batch, width = args.width, depth = args.depth, bytes = row_bytes(depth);
  bool gated = args.gated;
  u32 columns = gated ? 8 : 16;  // of a weight tile
  u32 lower = gated ? 0 : 8;     // column of a weight tile's lower half
  u32 to_lower_row = gated ? width : 8;
  u64 to_lower = (u64)to_lower_row * bytes, to_next = (u64)columns * bytes;
  u32 group_columns = WEIGHT_TILES * columns, to_next_group = gridDim.x * group_columns;
  const Bits* x = args.x + (u64)row * depth;
  u32 own = warp * STAGES * STAGE + lane;
  u32 address = (u32)__cvta_generic_to_shared(staged + own), scale_address = address - lane * 8;
  u32 loads = (bytes + TURN_LOADS * LOAD_BYTES - 1) / (TURN_LOADS * LOAD_BYTES) * 2;  // of a group
  auto byte_of = [&](u32 load) { return (load / 2 * TURN_LOADS + warp * 2 + load % 2) * LOAD_BYTES + lane % 4 * 16; };
  // The next load to copy, and its group.
  u32 next_load = 0, next_group = blockIdx.x * group_columns;
  const char* next_weight = args.weight + (u64)(next_group + row) * bytes;
  auto copy_weights = [&](u32 stage) {
    u32 byte = byte_of(next_load);
    const char* from = next_weight + byte;
#pragma unroll
    for (int weight_tile = 0; weight_tile < WEIGHT_TILES; weight_tile++) {
      u32 c = next_group + weight_tile * columns + row, to = address + (stage + weight_tile * 2 * WARP) * 16;
      bool is_upper = byte < bytes && c < width, is_lower = byte < bytes && c + lower < width;
      copy_pack_async<true>(to, from, is_upper);
      copy_pack_async<true>(to + WARP * 16, from + to_lower, is_lower);
      from += to_next;
      if (WEIGHT_BITS == 4) {
        // Lane i of four has the word of the group of pack i.
        u32 groups = bytes / GROUP_BYTES;
        const float* scale = args.scales + (u64)c * groups + byte / GROUP_BYTES;
        to = scale_address + (stage + SCALES) * 16 + weight_tile * WARP * 8;
        copy_word_async(to, scale, is_upper);
        copy_word_async(to + 4, scale + (u64)to_lower_row * groups, is_lower);
      }
    }
    if (++next_load < loads || !SEPARATE_SUMS) return;
    next_load = 0;
    next_group += to_next_group;
    next_weight += (u64)to_next_group * bytes;
  };
  auto has_next = [&] { return SEPARATE_SUMS ? next_group < width : next_load < loads; };
  auto x_of = [&](int x_tile, int i) { return (2 * WEIGHT_TILES + x_tile * X_PACKS + i) * WARP; };  // in a stage
  auto is_x = [&](int x_tile, u32 k) { return x_tile * 8 + row < batch && k < depth; };
  auto copy_x = [&](u32 stage, u32 load) {
    u32 byte = byte_of(load);
#pragma unroll
    for (int x_tile = 0; x_tile < X_TILES; x_tile++)
#pragma unroll
      for (int i = 0; i < X_PACKS; i++) {
        u32 k = element_of(byte, i);
        copy_pack_async<false>(address + (stage + x_of(x_tile, i)) * 16, x + (x_tile * 8 * depth + k), is_x(x_tile, k));
      }
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
  wait_for_x(args.addend);
  uint4 first[X_TILES][X_PACKS];
#pragma unroll
  for (int x_tile = 0; x_tile < X_TILES; x_tile++)
#pragma unroll
    for (int i = 0; i < X_PACKS; i++) {
      u32 k = element_of(byte_of(0), i);
      first[x_tile][i] = is_x(x_tile, k) ? *(const uint4*)(x + (x_tile * 8 * depth + k)) : zeros();
    }
  u32 next_x = 1;  // load of a group
#pragma unroll
  for (int stage = 1; stage < STAGES; stage++) {
    if (SEPARATE_SUMS || next_x < loads) copy_x(stage * STAGE, next_x);
    commit_copies();
    if (++next_x == loads && SEPARATE_SUMS) next_x = 0;
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
  for (u32 group = blockIdx.x * group_columns; group < width; group += to_next_group) {
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

    // Step 4: add up the warps' sums. Sums in place of the stages: a warp writes to its own stages, after all its copies have
    // arrived. Separate sums: other warps may still read the previous group's sums.
    if (is_first) wait_for_primary();  // then the addend is complete
    if (!is_first) __syncthreads();
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
      u32 n = group + part / X_TILES * columns + row, b = part % X_TILES * 8 + lane % 4 * 2;
      if (args.addend.elements) add_addend(args, sum, n, b);
      store_sums(args, batch, sum, n, b);
    }
    if (!SEPARATE_SUMS) break;
  }
}

#define MATMUL(rows, weight_tiles, max_stages)                                                            \
  extern "C" __global__ void __launch_bounds__(MATMUL_WARPS* WARP, 1)                          \
      decode_matmul_##rows##_##weight_tiles(const __grid_constant__ Matmul args) {                   \
    matmul<rows / 8, weight_tiles, stages(rows / 8, weight_tiles, max_stages)>(args);           \
  }

// Rows of x, weight tiles of a group, maximum number of stages; measured in docs/design/experiments. DecoderKernels.MATMULS of Java
// reads these lines, and picks a kernel by the number of weight tiles. For 64 rows the sums of 7 weight tiles do not fit, nor does x
// with weights of less than 16 bits.
#if ROWS == 8
MATMUL(8, 7, 3)
MATMUL(8, 3, 7)
MATMUL(8, 2, 10)
MATMUL(8, 1, 10)
#elif ROWS == 16
MATMUL(16, 7, 3)
MATMUL(16, 3, 7)
MATMUL(16, 2, 6)
MATMUL(16, 1, 6)
#elif ROWS == 32
MATMUL(32, 7, 3)
MATMUL(32, 3, 5)
MATMUL(32, 2, 5)
MATMUL(32, 1, 5)
#elif ROWS == 64
MATMUL(64, 4, 3)
MATMUL(64, 2, 4)
MATMUL(64, 1, 4)
#endif

#endif
