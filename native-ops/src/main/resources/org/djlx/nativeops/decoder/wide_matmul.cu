// Matmul of up to 128 rows for decode steps on Hopper GPUs, by one weight (wide_matmul.cuh).
#include "decoder/wide_matmul.cuh"
#include "hopper.cuh"

// The work of a block: a tile of the weight times all rows.
struct WeightTile {
  const WideMatmul& args;
  u32 tile, first_row, rows;

  __device__ __forceinline__ WeightTile(const WideMatmul& matmul, u32 cluster)
      : args(matmul), tile(blockIdx.x / cluster), first_row(0), rows(matmul.batch) {}
  __device__ __forceinline__ void load_weight(void* to, Barrier& loaded, int x, int y) const { load_box_once(to, args.weight, loaded, x, y); }
  __device__ __forceinline__ u64 output_row(u32 b) const { return b; }
};

// With 64 rows of 16 bits a block takes at most half of an SM's registers, so blocks of other kernels can run beside it. e4m3 needs more.
#define WIDE_MATMUL(rows, columns, cluster)                                                                                   \
  extern "C" __global__ void __cluster_dims__(cluster, 1, 1) __launch_bounds__(THREADS, rows == GROUP_ROWS && !E4M3 ? 2 : 1)  \
      decode_wide_matmul_##rows##_##columns##_##cluster(const __grid_constant__ WideMatmul args) {                            \
    wide_matmul<rows, columns, cluster>(WeightTile(args, cluster));                                                           \
  }

// ROWS, COLUMNS, CLUSTER; WideMatmul.java reads these lines. Clusters of 4 are slow: an H100 runs only 30 at a time.
WIDE_MATMUL(64, 64, 2)
WIDE_MATMUL(64, 128, 2)
WIDE_MATMUL(64, 224, 1)
WIDE_MATMUL(64, 224, 2)
#if WEIGHT_BITS == 16
WIDE_MATMUL(128, 64, 2)
WIDE_MATMUL(128, 128, 2)
WIDE_MATMUL(128, 224, 1)
WIDE_MATMUL(128, 224, 2)
#endif
