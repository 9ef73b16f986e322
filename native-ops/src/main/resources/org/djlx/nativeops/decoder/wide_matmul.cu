// Matmul of up to 128 rows for decode steps on Hopper GPUs: output = x weight^T + bias in float32, rounded once; gated: silu(x gates) *
// (x values). x and the weight have 16 bits, or both are e4m3 with a scale for each row. Takes little longer than to read the weight.
//
// Terms
//   tile     COLUMNS rows of the weight, the right operand of wgmma; gated: as many gates as values. The left operand is x, ROWS rows
//   k-block  BOX_BYTES bytes of each row of x and of the weight
//   cluster  CLUSTER thread blocks that share a tile, each a range of its k-blocks. Then each adds up and stores the sums of a part
//            of the columns. With wider tiles x is copied less often; blocks of narrow tiles would wait for x, not for the weight
//   quarter  a quarter of the columns of a tile. Gated: gates, their values, gates, their values. A thread that has sums of a column
//            of an even quarter also has those of the same column of the next quarter
//
// Threads: two groups of warps multiply, each half of the columns, or half of more than 64 rows. One more thread copies k-blocks into
// a ring of slots. It begins with weights, which no kernel writes, while the kernel before this one runs.
//
// Shared memory: an SM has no room for two blocks, because then other SMs would have none; but it has room for a block beside some of
// the norm or attention before or after, so that weights are read while those wait for each other.
//
// Precision of e4m3: tensor cores sum a k-block, with the few bits of Float8 (hopper.cuh); these sums are added in float32.
//
// Invariant: bit for bit, a row of the result depends only on its row of x, the weight and CLUSTER.
//
// Compiled with
//   TYPE         Float16 or Bfloat16
//   WEIGHT_BITS  16, or 8 for e4m3
#include "decoder/common.cuh"
#include "hopper.cuh"
#include "silu.cuh"

#ifndef WEIGHT_BITS
#define WEIGHT_BITS 16
#endif

struct WideMatmul {
  TensorMap weight;  // (width, depth); gated: (2 width, depth), gates then values. Boxes: a k-block of a quarter
  TensorMap x;       // (batch, depth). Boxes: a k-block of ROWS rows
  const float* weight_scales;  // of the rows; not read with 16 bits, as are those of x
  const float* x_scales;
  Bits* output;      // (batch, width), rows `stride` elements apart. Both are even
  const Bits* bias;  // of the weight's rows; may be null
  u64 batch;
  u64 width;
  u64 depth;
  u64 stride;
  u64 gated;
};

#if WEIGHT_BITS == 8
typedef Float8 Operand;
#else
typedef T Operand;
#endif
const bool NARROW = WEIGHT_BITS == 8;
const int BOX_BYTES = 128;
const int K = BOX_BYTES * 8 / WEIGHT_BITS;  // columns of a k-block
const int GROUP_ROWS = 64;
const int CONSUMERS = 8;  // warps that multiply
const int THREADS = CONSUMERS * WARP + WARP;
// Of a ring. Measured with whole layers: with 220 KB they take 5 % longer if there are 64 rows, and 3 % if there are 128.
const int FEW_ROWS_BYTES = 144 << 10;  // with GROUP_ROWS rows
const int RING_BYTES = 192 << 10;

template <int ROWS, int COLUMNS>
struct Slot {
  char weight[COLUMNS][BOX_BYTES];
  char x[ROWS][BOX_BYTES];
};

// A ring in shared memory.
template <int ROWS, int COLUMNS>
struct Ring {
  static const int SLOTS = (ROWS == GROUP_ROWS ? FEW_ROWS_BYTES : RING_BYTES) / sizeof(Slot<ROWS, COLUMNS>);
  Slot<ROWS, COLUMNS>* slots;
  Barrier *loaded, *emptied;  // of the slots
};

// The first row of the weight of a quarter.
template <int COLUMNS>
__device__ __forceinline__ u32 first_row_of(const WideMatmul& args, u32 tile, u32 quarter) {
  const u32 QUARTER = COLUMNS / 4;
  return args.gated ? quarter % 2 * (u32)args.width + (tile * 2 + quarter / 2) * QUARTER : (tile * 4 + quarter) * QUARTER;
}

// Copies the k-blocks from `begin` to `end`. One thread calls it.
template <int ROWS, int COLUMNS>
__device__ __forceinline__ void copy_k_blocks(const WideMatmul& args, const Ring<ROWS, COLUMNS>& ring, u32 tile, u32 begin, u32 end) {
  const int SLOTS = Ring<ROWS, COLUMNS>::SLOTS;
  auto copy_weight = [&](u32 slot, u32 k) {
    Barrier& loaded = ring.loaded[slot];
    loaded.arrive_expecting(sizeof(Slot<ROWS, COLUMNS>));
#pragma unroll
    for (int quarter = 0; quarter < 4; quarter++) {
      char(*to)[BOX_BYTES] = ring.slots[slot].weight + quarter * (COLUMNS / 4);
      load_box_once(to, args.weight, loaded, k * K, first_row_of<COLUMNS>(args, tile, quarter));
    }
  };
  auto copy_x = [&](u32 slot, u32 k) { load_box(ring.slots[slot].x, args.x, ring.loaded[slot], k * K, 0); };
  u32 first = min(SLOTS, end - begin);
  for (u32 slot = 0; slot < first; slot++) copy_weight(slot, begin + slot);
  wait_for_primary();
  for (u32 slot = 0; slot < first; slot++) copy_x(slot, begin + slot);
  Stage next = {0, 0};
#pragma unroll 1
  for (u32 k = begin + first; k < end; k++) {
    ring.emptied[next.index].wait(next.parity);
    copy_weight(next.index, k);
    copy_x(next.index, k);
    next.skip(1, SLOTS);
  }
}

// Two adjacent columns of a row.
struct Sums {
  float values[2];

  __device__ __forceinline__ void scale(float x_scale, float2 scales) {
    values[0] *= x_scale * scales.x;
    values[1] *= x_scale * scales.y;
  }
  __device__ __forceinline__ void add_bias(const Bits* bias, u32 column) {
#pragma unroll
    for (int i = 0; i < 2; i++) values[i] += T::load(bias[column + i]);
  }
};

// Stores sums of an even quarter, and those of the same columns of the next quarter. column: of the output.
template <int COLUMNS>
__device__ __forceinline__ void store(const WideMatmul& args, u32 row, u32 column, Sums even, Sums odd) {
  bool gated = args.gated;
  u32 width = args.width, odd_column = column + (gated ? width : COLUMNS / 4);  // row of the weight
  bool has_odd = gated || odd_column < width;
  if (row >= args.batch || column >= width) return;
  if (args.bias) {
    even.add_bias(args.bias, column);
    if (has_odd) odd.add_bias(args.bias, odd_column);
  }
  Bits* to = args.output + row * args.stride;
  if (gated) {
    float first = silu_fast(even.values[0]) * odd.values[0], second = silu_fast(even.values[1]) * odd.values[1];
    *(u32*)(to + column) = pack(T(), first, second);
    return;
  }
  *(u32*)(to + column) = pack(T(), even.values[0], even.values[1]);
  if (has_odd) *(u32*)(to + odd_column) = pack(T(), odd.values[0], odd.values[1]);
}

template <int ROWS, int COLUMNS, int CLUSTER>
__device__ __forceinline__ void wide_matmul(const WideMatmul& args) {
  const int SLOTS = Ring<ROWS, COLUMNS>::SLOTS;
  const int PASSES = ROWS / GROUP_ROWS;         // of a group over its columns: pairs of quarters
  const int QUARTER_SUMS = COLUMNS / 8;         // of a thread: two rows and two of each eight columns
  const int OWN_SUMS = QUARTER_SUMS / CLUSTER;  // of those, the sums that this block adds up
  static_assert(QUARTER_SUMS % (2 * CLUSTER) == 0, "the same block adds up adjacent columns");
  extern __shared__ __align__(1024) char memory[];
  __shared__ Barrier loaded[SLOTS], emptied[SLOTS];
  __shared__ __align__(8) float scales[2][2][COLUMNS / 4];  // NARROW: of the rows of the weight, by pairs of quarters
  Ring<ROWS, COLUMNS> ring = {(Slot<ROWS, COLUMNS>*)memory, loaded, emptied};
  u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  u32 tile = blockIdx.x / CLUSTER, rank = blockIdx.x % CLUSTER;
  u32 k_blocks = ((u32)args.depth + K - 1) / K, begin = k_blocks * rank / CLUSTER, end = k_blocks * (rank + 1) / CLUSTER;
  if (threadIdx.x == 0) {
    for (int i = 0; i < SLOTS; i++) {
      loaded[i].init(1);
      emptied[i].init(CONSUMERS);
    }
    publish_barriers();
  }
  __syncthreads();
  launch_dependents();
  if (warp == CONSUMERS) {
    if (lane == 0) copy_k_blocks(args, ring, tile, begin, end);
    return;
  }

  if (NARROW && threadIdx.x < COLUMNS) {
    u32 of = first_row_of<COLUMNS>(args, tile, threadIdx.x / (COLUMNS / 4)) + threadIdx.x % (COLUMNS / 4);
    (&scales[0][0][0])[threadIdx.x] = of < (args.gated ? 2 : 1) * args.width ? args.weight_scales[of] : 0;
  }
  // Step 1: multiply.
  u32 group = warp / 4, x_row = PASSES == 1 ? 0 : group * GROUP_ROWS, first_pass = PASSES == 1 ? group : 0;
  float sums[PASSES][2 * QUARTER_SUMS] = {};
  Stage next = {0, 0};
#pragma unroll 1
  for (u32 k = begin; k < end; k++) {
    loaded[next.index].wait(next.parity);
    const Slot<ROWS, COLUMNS>& slot = ring.slots[next.index];
    u32 x = shared_address(slot.x[x_row]);
#pragma unroll
    for (int pass = 0; pass < PASSES; pass++) {
      u32 weight = shared_address(slot.weight[(first_pass + pass) * COLUMNS / 2]);
      float of_k_block[2 * QUARTER_SUMS];
      float(&products)[2 * QUARTER_SUMS] = NARROW ? of_k_block : sums[pass];
      begin_products();
#pragma unroll
      for (int step = 0; step < BOX_BYTES / 32; step++) {
        product<true>(Operand(), products, matrix(x + step * 32, 16, 1024), matrix(weight + step * 32, 16, 1024), !NARROW || step);
      }
      commit_products();
      if (NARROW || pass == PASSES - 1) wait_products<0>();
#pragma unroll
      for (int i = 0; NARROW && i < 2 * QUARTER_SUMS; i++) sums[pass][i] += products[i];
    }
    if (lane == 0) emptied[next.index].arrive();
    next.skip(1, SLOTS);
  }

  // Step 2: store. The layout of a quarter's sums is that of wgmma: sums i and i + 1, for even i, are of adjacent columns.
  u32 first_row = x_row + warp % 4 * 16 + lane / 4, half = args.gated ? COLUMNS / 4 : COLUMNS / 2;  // columns of two quarters
  float x_scales[2] = {1, 1};  // of the thread's rows
  if (NARROW) {
    wait_for_primary();  // it writes x_scales
#pragma unroll
    for (int r = 0; r < 2; r++) x_scales[r] = first_row + r * 8 < args.batch ? args.x_scales[first_row + r * 8] : 0;
    barrier<1, CONSUMERS>();  // `scales` are complete
  }
  auto store_sums = [&](u32 pass, u32 i, Sums even, Sums odd) {
    u32 pair = first_pass + pass, in_quarter = i / 4 * 8 + lane % 4 * 2;
    if (NARROW) {
      even.scale(x_scales[i % 4 / 2], *(const float2*)&scales[pair][0][in_quarter]);
      odd.scale(x_scales[i % 4 / 2], *(const float2*)&scales[pair][1][in_quarter]);
    }
    store<COLUMNS>(args, first_row + i % 4 / 2 * 8, (tile * 2 + pair) * half + in_quarter, even, odd);
  };
  if (CLUSTER == 1) {
#pragma unroll
    for (int pass = 0; pass < PASSES; pass++)
#pragma unroll
      for (int i = 0; i < QUARTER_SUMS; i += 2) {
        const float *even = sums[pass] + i, *odd = even + QUARTER_SUMS;
        store_sums(pass, i, {even[0], even[1]}, {odd[0], odd[1]});
      }
    return;
  }
  // A thread sends sums to the same thread of the block that adds them up.
  typedef float Exchange[CLUSTER][PASSES][2][OWN_SUMS][CONSUMERS * WARP];
  static_assert(CLUSTER == 1 || sizeof(Exchange) <= SLOTS * sizeof(Slot<ROWS, COLUMNS>), "sums are exchanged where the ring was");
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
    for (int i = 0; i < OWN_SUMS; i += 2) {
      Sums both[2] = {};  // of the even and the odd quarter
#pragma unroll
      for (int block = 0; block < CLUSTER; block++)
#pragma unroll
        for (int j = 0; j < 4; j++) both[j / 2].values[j % 2] += exchange[block][pass][j / 2][i + j % 2][threadIdx.x];
      store_sums(pass, rank * OWN_SUMS + i, both[0], both[1]);
    }
}

#define WIDE_MATMUL(rows, columns, cluster)                                                            \
  extern "C" __global__ void __cluster_dims__(cluster, 1, 1) __launch_bounds__(THREADS, 1)             \
      decode_wide_matmul_##rows##_##columns##_##cluster(const __grid_constant__ WideMatmul args) {     \
    wide_matmul<rows, columns, cluster>(args);                                                         \
  }

// ROWS, COLUMNS and CLUSTER. Clusters of 4 do not use all SMs of a Hopper GPU. WideMatmul of Java reads these lines.
WIDE_MATMUL(64, 64, 2)
WIDE_MATMUL(64, 128, 2)
WIDE_MATMUL(64, 224, 1)
WIDE_MATMUL(128, 64, 2)
WIDE_MATMUL(128, 128, 2)
WIDE_MATMUL(128, 224, 1)
