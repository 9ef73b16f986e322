// Matmul of up to 128 rows for decode steps on Hopper GPUs, by one weight (wide_matmul.cuh).
#include "decoder/wide_matmul.cuh"
#include "hopper.cuh"

const int MAX_PARTIAL_SUMS = 128 * 64;  // of a block if CLUSTERS = 2: 128 rows and half of 128 columns

// The work of a block: a tile of the weight times all rows.
template <int CLUSTER, int CLUSTERS>
struct WeightTile {
  const WideMatmul& args;
  u32 tile, first_row, rows;

  __device__ __forceinline__ explicit WeightTile(const WideMatmul& matmul)
      : args(matmul), tile(blockIdx.x / (CLUSTER * CLUSTERS)), first_row(0), rows(matmul.batch) {}
  __device__ __forceinline__ void load_weight(void* to, Barrier& loaded, int x, int y) const { load_box_once(to, args.weight, loaded, x, y); }
  __device__ __forceinline__ u64 output_row(u32 b) const { return b; }

  // Each block of the two writes its partial sums, then counts itself. The second one adds those of the first. It may be either block: a + b
  // has the bits of b + a.
  template <int PASSES, int SUMS>
  __device__ __forceinline__ bool add_other_cluster(float (&sums)[PASSES][2][SUMS]) const {
    typedef float2 Partial[PASSES][2][SUMS / 2][CONSUMERS * WARP];
    static_assert(sizeof(Partial) <= MAX_PARTIAL_SUMS * sizeof(float), "a block has more than MAX_PARTIAL_SUMS");
    static_assert(CLUSTER == 2, "^ finds the other block of the same columns");
    __shared__ bool is_second;
    Partial& own = *(Partial*)(args.partial_sums + blockIdx.x * (MAX_PARTIAL_SUMS / 2));
    const Partial& other = *(const Partial*)(args.partial_sums + (blockIdx.x ^ CLUSTER) * (MAX_PARTIAL_SUMS / 2));
    for_pairs(sums, [&](float* two, int pass, int odd, int i) { own[pass][odd][i][threadIdx.x] = make_float2(two[0], two[1]); });
    barrier<1, CONSUMERS>();
    if (threadIdx.x == 0) {
      u32& written = args.partial_sums_written[tile * CLUSTER + blockIdx.x % CLUSTER];
      __threadfence();
      is_second = atomicAdd(&written, 1) == 1;
      if (is_second) written = 0;
      __threadfence();
    }
    barrier<1, CONSUMERS>();
    if (!is_second) return false;
    for_pairs(sums, [&](float* two, int pass, int odd, int i) { add(two, __ldcg(&other[pass][odd][i][threadIdx.x])); });
    return true;
  }

 private:
  template <int PASSES, int SUMS, typename F>
  __device__ __forceinline__ static void for_pairs(float (&sums)[PASSES][2][SUMS], const F& f) {
#pragma unroll
    for (int pass = 0; pass < PASSES; pass++)
#pragma unroll
      for (int odd = 0; odd < 2; odd++)
#pragma unroll
        for (int i = 0; i < SUMS; i += 2) f(sums[pass][odd] + i, pass, odd, i / 2);
  }
};

// With 64 rows of 16 bits a block takes at most half of an SM's registers, so blocks of other kernels can run beside it. e4m3 needs more.
#define WIDE_MATMUL(rows, columns, cluster, clusters)                                                                         \
  extern "C" __global__ void __cluster_dims__(cluster, 1, 1) __launch_bounds__(THREADS, rows == GROUP_ROWS && !E4M3 ? 2 : 1)  \
      decode_wide_matmul_##rows##_##columns##_##cluster##_##clusters(const __grid_constant__ WideMatmul args) {               \
    wide_matmul<rows, columns, cluster, clusters>(WeightTile<cluster, clusters>(args));                                       \
  }

// ROWS, COLUMNS, CLUSTER, CLUSTERS; WideMatmul.java reads these lines. Clusters of 4 are slow: an H100 runs only 30 at a time.
WIDE_MATMUL(64, 64, 2, 1)
WIDE_MATMUL(64, 128, 2, 1)
WIDE_MATMUL(64, 128, 2, 2)
WIDE_MATMUL(64, 224, 1, 1)
WIDE_MATMUL(64, 224, 2, 1)
#if WEIGHT_BITS == 16
WIDE_MATMUL(128, 64, 2, 1)
WIDE_MATMUL(128, 128, 2, 1)
WIDE_MATMUL(128, 128, 2, 2)
WIDE_MATMUL(128, 224, 1, 1)
WIDE_MATMUL(128, 224, 2, 1)
#endif
