// Matmul of few rows by one weight (matmul.cuh).
//
// Groups: with 8 rows a block computes several groups of weight tiles. With more it computes one, because shared memory has no room
// for separate sums beside large tiles.
// Synchronisation: with an addend, x is complete before the primary has ended (addend.cuh).
//
// Compiled with
//   ROWS   8, 16, 32 or 64: the largest number of rows
// and with the macros of matmul.cuh.
#include "decoder/addend.cuh"
#include "decoder/matmul.cuh"

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

// The work of matmul(). Block i has the groups i, i + gridDim.x and so on.
struct OneWeight {
  const Matmul& args;
  const Bits* x;  // as in Rows. Arguments are copied before x is complete, because reading them takes time, too
  u32 depth, batch;

  struct Group {
    u32 column;
  };

  template <int X_TILES>
  struct Rows {
    const Bits* x;  // the lane's row of the first tile
    u32 depth, row, batch;
    __device__ __forceinline__ const Bits* at(int x_tile, u32 k) const { return x + (x_tile * 8 * depth + k); }
    __device__ __forceinline__ bool exists(int x_tile) const { return x_tile * 8 + row < batch; }
  };

  __device__ __forceinline__ explicit OneWeight(const Matmul& matmul)
      : args(matmul), x(matmul.x + threadIdx.x % WARP / 4 * matmul.depth), depth(matmul.depth), batch(matmul.batch) {}
  __device__ __forceinline__ Group first(u32 columns) const {
    launch_dependents();
    return {blockIdx.x * columns};
  }
  __device__ __forceinline__ void advance(Group& group, u32 columns) const { group.column += gridDim.x * columns; }
  __device__ __forceinline__ bool exists(const Group& group) const { return group.column < (u32)args.width; }
  __device__ __forceinline__ const char* weight(const Group&) const { return args.weight; }
  __device__ __forceinline__ const float* scales() const { return args.scales; }
  __device__ __forceinline__ void wait_for_x() const { ::wait_for_x(args.addend); }
  template <int X_TILES>
  __device__ __forceinline__ Rows<X_TILES> rows(const Group&, u32 row) const {
    return {x, depth, row, batch};
  }
  __device__ __forceinline__ void store(const Group&, float (&sum)[4], u32 n, u32 b) const {
    if (args.addend.elements) add_addend(args, sum, n, b);
    store_sums(args, batch, sum, n, b);
  }
};

#define MATMUL(rows, weight_tiles, max_stages)                                                            \
  extern "C" __global__ void __launch_bounds__(MATMUL_WARPS* WARP, 1)                          \
      decode_matmul_##rows##_##weight_tiles(const __grid_constant__ Matmul args) {                   \
    const bool separate = rows == 8;                                                           \
    matmul<rows / 8, weight_tiles, stages(rows / 8, weight_tiles, max_stages, separate), separate>(OneWeight(args)); \
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
