// Matmul of up to 128 rows and a weight of 16 bits, for decode steps on Hopper GPUs: output = x weight^T + bias in float32, rounded
// once; gated: silu(x gates) * (x values). Takes little longer than to read the weight.
//
// Terms
//   tile     COLUMNS rows of the weight, the right operand of wgmma; gated: as many gates as values. The left operand is x, ROWS rows
//   k-block  K columns of x and of the weight
//   cluster  CLUSTER thread blocks that share a tile, each a range of its k-blocks. Then each adds up and stores the sums of a part
//            of the columns. With wider tiles x is copied less often; blocks of narrow tiles would wait for x, not for the weight
//   quarter  a quarter of the columns of a tile. Gated: gates, their values, gates, their values. A thread that has sums of a column
//            of an even quarter also has those of the same column of the next quarter
//
// Threads: two groups of warps multiply, each half of the columns, or half of more than 64 rows. One more thread copies k-blocks into
// a ring of slots. It begins with weights, which no kernel writes, while the kernel before this one runs. A block fills an SM: if two
// shared one, others would be idle.
//
// Invariant: bit for bit, a row of the result depends only on its row of x, the weight and CLUSTER.
//
// Compiled with
//   TYPE  Float16 or Bfloat16
#include "decoder/common.cuh"
#include "hopper.cuh"
#include "silu.cuh"

struct WideMatmul {
  TensorMap weight;  // (width, depth); gated: (2 width, depth), gates then values. Boxes: a k-block of a tile; gated: of a quarter
  TensorMap x;       // (batch, depth). Boxes: a k-block of ROWS rows
  Bits* output;      // (batch, width), rows `stride` elements apart. Both are even
  const Bits* bias;  // of the weight's rows; may be null
  u64 batch;
  u64 width;
  u64 depth;  // a multiple of 8
  u64 stride;
  u64 gated;
};

const int K = 64;
const int GROUP_ROWS = 64;
const int CONSUMERS = 8;  // warps that multiply
const int THREADS = CONSUMERS * WARP + WARP;
const int SHARED_BYTES = 220 << 10;  // of a block, for the ring

template <int ROWS, int COLUMNS>
struct Slot {
  Bits weight[COLUMNS][K];
  Bits x[ROWS][K];
};

// A ring in shared memory.
template <int ROWS, int COLUMNS>
struct Ring {
  static const int SLOTS = SHARED_BYTES / sizeof(Slot<ROWS, COLUMNS>);
  Slot<ROWS, COLUMNS>* slots;
  Barrier *loaded, *emptied;  // of the slots
};

// Copies the k-blocks from `begin` to `end`. One thread calls it.
template <int ROWS, int COLUMNS>
__device__ __forceinline__ void copy_k_blocks(const WideMatmul& args, const Ring<ROWS, COLUMNS>& ring, u32 tile, u32 begin, u32 end) {
  const int SLOTS = Ring<ROWS, COLUMNS>::SLOTS, QUARTER = COLUMNS / 4;
  u32 width = args.width;
  auto copy_weight = [&](u32 slot, u32 k) {
    Barrier& loaded = ring.loaded[slot];
    loaded.arrive_expecting(sizeof(Slot<ROWS, COLUMNS>));
    auto to = ring.slots[slot].weight;
    if (!args.gated) {
      load_box_once(to, args.weight, loaded, k * K, tile * COLUMNS);
      return;
    }
#pragma unroll
    for (int quarter = 0; quarter < 4; quarter++) {
      u32 gate = tile * (COLUMNS / 2) + quarter / 2 * QUARTER;
      load_box_once(to + quarter * QUARTER, args.weight, loaded, k * K, quarter % 2 * width + gate);
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
  const int QUARTERS = ROWS == GROUP_ROWS ? 2 : 4;  // of a group
  const int QUARTER_SUMS = COLUMNS / 8;             // of a thread: two rows and two of each eight columns
  const int OWN_SUMS = QUARTER_SUMS / CLUSTER;      // of those, the sums that this block adds up
  static_assert(QUARTER_SUMS % (2 * CLUSTER) == 0, "the same block adds up adjacent columns");
  extern __shared__ __align__(1024) char memory[];
  __shared__ Barrier loaded[SLOTS], emptied[SLOTS];
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

  // Step 1: multiply.
  u32 group = warp / 4, x_row = ROWS == GROUP_ROWS ? 0 : group * GROUP_ROWS, weight_row = ROWS == GROUP_ROWS ? group * COLUMNS / 2 : 0;
  float sums[QUARTERS * QUARTER_SUMS] = {};
  Stage next = {0, 0};
#pragma unroll 1
  for (u32 k = begin; k < end; k++) {
    loaded[next.index].wait(next.parity);
    const Slot<ROWS, COLUMNS>& slot = ring.slots[next.index];
    u32 x = shared_address(slot.x[x_row]), weight = shared_address(slot.weight[weight_row]);
    begin_products();
#pragma unroll
    for (int step = 0; step < K / 16; step++) {
      product<true>(T(), sums, matrix(x + step * 32, 16, 1024), matrix(weight + step * 32, 16, 1024), 1);
    }
    commit_products();
    wait_products<0>();
    if (lane == 0) emptied[next.index].arrive();
    next.skip(1, SLOTS);
  }

  // Step 2: store. The layout of a quarter's sums is that of wgmma: sums i and i + 1, for even i, are of adjacent columns.
  u32 first_row = x_row + warp % 4 * 16 + lane / 4, tile_column = tile * (args.gated ? COLUMNS / 2 : COLUMNS);
  auto store_sums = [&](u32 quarter, u32 i, Sums even, Sums odd) {
    u32 pair = ROWS == GROUP_ROWS ? group : quarter / 2;  // of quarters
    u32 column = pair * (args.gated ? COLUMNS / 4 : COLUMNS / 2) + i / 4 * 8 + lane % 4 * 2;
    store<COLUMNS>(args, first_row + i % 4 / 2 * 8, tile_column + column, even, odd);
  };
  if (CLUSTER == 1) {
#pragma unroll
    for (int q = 0; q < QUARTERS; q += 2)
#pragma unroll
      for (int i = 0; i < QUARTER_SUMS; i += 2) {
        const float *even = sums + q * QUARTER_SUMS + i, *odd = even + QUARTER_SUMS;
        store_sums(q, i, {even[0], even[1]}, {odd[0], odd[1]});
      }
    return;
  }
  // A thread sends sums to the same thread of the block that adds them up.
  typedef float Exchange[CLUSTER][QUARTERS][OWN_SUMS][CONSUMERS * WARP];
  static_assert(CLUSTER == 1 || sizeof(Exchange) <= SHARED_BYTES, "sums are exchanged where the ring was");
  Exchange& exchange = *(Exchange*)memory;
  cluster_barrier();  // The rings of all blocks have been read.
#pragma unroll
  for (int q = 0; q < QUARTERS; q++)
#pragma unroll
    for (int i = 0; i < QUARTER_SUMS; i++) {
      *of_block(&exchange[rank][q][i % OWN_SUMS][threadIdx.x], i / OWN_SUMS) = sums[q * QUARTER_SUMS + i];
    }
  cluster_barrier();
#pragma unroll
  for (int q = 0; q < QUARTERS; q += 2)
#pragma unroll
    for (int i = 0; i < OWN_SUMS; i += 2) {
      Sums even = {}, odd = {};
#pragma unroll
      for (int block = 0; block < CLUSTER; block++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
          even.values[j] += exchange[block][q][i + j][threadIdx.x];
          odd.values[j] += exchange[block][q + 1][i + j][threadIdx.x];
        }
      store_sums(q, rank * OWN_SUMS + i, even, odd);
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
