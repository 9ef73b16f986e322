// Conversions between 16-bit elements and the weights of 8 and 4 bits that decoder/weights.cuh describes.
//
//   quantize_fp8        rows of weights, or of activations, to e4m3 with a scale for each row
//   activate_fp8        silu(gates) * values, rounded to 16 bits, then as quantize_fp8
//   norm_fp8            RMSNorm of a residual plus addend, rounded to 16 bits, then as quantize_fp8
//   quantize_int4       rows of weights to groups of 4 bits with a scale for each group
//   dequantize_int4     back to 16 bits
//
// A number is rounded to the nearest, ties to even. If a number is NaN or infinite, so is its scale.
// Synchronisation: none between blocks. Kernels of activations wait for the primary kernel.
#include "block_sum.cuh"
#include "e4m3.cuh"
#include "element.cuh"
#include "rms_norm.cuh"
#include "silu.cuh"

#ifdef HAS_BFLOAT16

const int ROW_THREADS = 512;    // the most threads of a row that becomes e4m3
static_assert(NORM_THREADS <= ROW_THREADS, "round_row has room for the warps of both");
const int GROUP_THREADS = 256;  // of a block of groups
const int GROUP = 128;

// `rows` rows of `depth` elements, a multiple of 8.
struct Quantized {
  void* elements;   // of 16 bits; gates, then values, of each row for activate_fp8
  void* quantized;
  float* scales;
  u64 rows;
  u64 depth;
};

// Rows of `hidden` elements of 16 bits, a multiple of 8; the norm's weight is one row.
struct Normed {
  void* new_residual;  // residual + addend; may be the addend
  void* quantized;
  float* scales;
  const void* addend;  // in float32 times the scales of its rows and columns, if there are any
  const float* row_scales;  // may be `scales`
  const float* column_scales;
  const void* residual;
  const void* weight;
  u64 hidden;
  float epsilon;
};

// Rounds a row in shared memory to e4m3. `most`: the bits of the largest magnitude of a thread's elements; NaN is larger than all
// numbers.
template <typename T>
__device__ __forceinline__ void round_row(const uint4* row, u32 packs, u32 most, void* quantized, float* scales) {
  __shared__ u32 of_warps[ROW_THREADS / WARP];
  u32 lane = threadIdx.x % WARP;
  most = __reduce_max_sync(~0u, most);
  if (lane == 0) of_warps[threadIdx.x / WARP] = most;
  __syncthreads();
  most = __reduce_max_sync(~0u, lane < blockDim.x / WARP ? of_warps[lane] : 0);
  float largest = __uint_as_float(most), inverse = inverse_scale(largest);
  if (threadIdx.x == 0) scales[blockIdx.x] = largest / E4M3_MAX;
  for (u32 i = threadIdx.x; i < packs; i += blockDim.x) {
    FloatPack<T> x;
    x.set(row[i]);
    u32 words[2] = {};
#pragma unroll
    for (int e = 0; e < Pack<T>::COUNT; e += 2) words[e / 4] |= to_e4m3(x.values[e] * inverse, x.values[e + 1] * inverse) << e % 4 * 8;
    ((uint2*)quantized)[(u64)blockIdx.x * packs + i] = make_uint2(words[0], words[1]);
  }
}

template <typename T>
__device__ __forceinline__ u32 most_of(u32 most, const uint4& pack) {
  FloatPack<T> x;
  x.set(pack);
#pragma unroll
  for (int e = 0; e < Pack<T>::COUNT; e++) most = max(most, magnitude_bits(x.values[e]));
  return most;
}

// One block per row.
template <typename T, bool GATED>
__device__ __forceinline__ void quantize_fp8(const Quantized& args) {
  extern __shared__ uint4 row[];
  launch_dependents();
  wait_for_primary();
  u32 packs = args.depth / Pack<T>::COUNT;
  const uint4* from = (const uint4*)args.elements + (u64)blockIdx.x * (GATED ? 2 : 1) * packs;
  u32 most = 0;
  for (u32 i = threadIdx.x; i < packs; i += blockDim.x) {
    Pack<T> x, values;
    x.vector = from[i];
    if (GATED) values.vector = from[packs + i];
#pragma unroll
    for (int e = 0; GATED && e < Pack<T>::COUNT; e++) {
      x.elements[e] = T::store(silu_fast(T::load(x.elements[e])) * T::load(values.elements[e]));
    }
    most = most_of<T>(most, x.vector);
    row[i] = x.vector;
  }
  round_row<T>(row, packs, most, args.quantized, args.scales);
}

// One block per row, of as many threads as add_rms_norm has: the sum of squares has the same bits.
template <typename T>
__device__ __forceinline__ void norm_fp8(const Normed& args) {
  extern __shared__ uint4 row[];
  __shared__ float sums[NORM_THREADS / WARP];
  launch_dependents();
  wait_for_primary();
  u32 packs = args.hidden / Pack<T>::COUNT;
  u64 begin = (u64)blockIdx.x * packs;
  float of_row = args.row_scales ? args.row_scales[blockIdx.x] : 1, squares = 0;
  for (u32 i = threadIdx.x; i < packs; i += blockDim.x) {
    FloatPack<T> sum, addend;
    sum.set(((const uint4*)args.residual)[begin + i]);
    addend.set(((const uint4*)args.addend)[begin + i]);
#pragma unroll
    for (int e = 0; e < Pack<T>::COUNT; e++) {
      if (args.column_scales) addend.values[e] *= of_row * args.column_scales[i * Pack<T>::COUNT + e];
      sum.values[e] += addend.values[e];
    }
    row[i] = sum.rounded(1);
    ((uint4*)args.new_residual)[begin + i] = row[i];
    squares = add_squares<T>(squares, row[i]);
  }
  store_warp_sum(squares, sums, threadIdx.x / WARP);
  __syncthreads();
  float scale = norm_scale(sum_of_warps(sums, blockDim.x / WARP), args.hidden, args.epsilon);
  u32 most = 0;
  for (u32 i = threadIdx.x; i < packs; i += blockDim.x) {
    row[i] = normalize_pack<T>(row[i], scale, ((const uint4*)args.weight)[i]);
    most = most_of<T>(most, row[i]);
  }
  round_row<T>(row, packs, most, args.quantized, args.scales);
}

// One warp per group; a lane has elements 2 lane and 2 lane + 1 of both halves.
template <typename T>
__device__ __forceinline__ void quantize_int4(const Quantized& args) {
  u32 lane = threadIdx.x % WARP;
  u64 groups = (args.depth + GROUP - 1) / GROUP, group = (u64)blockIdx.x * (GROUP_THREADS / WARP) + threadIdx.x / WARP;
  if (group >= args.rows * groups) return;
  u64 row = group / groups, first = group % groups * GROUP;
  const typename T::Bits* from = (const typename T::Bits*)args.elements + row * args.depth + first;
  float x[4];
  u64 most = 0;  // magnitude, then the first position with it, then the sign
#pragma unroll
  for (int i = 0; i < 4; i++) {
    u32 k = lane * 2 + i % 2 + i / 2 * (GROUP / 2);
    x[i] = first + k < args.depth ? T::load(from[k]) : 0;
    most = max(most, (u64)magnitude_bits(x[i]) << 8 | (GROUP - 1 - k) << 1 | (x[i] < 0));
  }
  for (int distance = WARP / 2; distance > 0; distance /= 2) most = max(most, __shfl_xor_sync(~0u, most, distance));
  float scale = __uint_as_float((u32)(most >> 8) | (u32)most << 31) / -8;  // the largest is -8, which has no opposite
  u32 q[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    float quotient = x[i] / scale;
    q[i] = min(fabsf(quotient) < GROUP ? __float2int_rn(quotient) : 0, 7) + 8;
  }
  ((u16*)args.quantized)[group * WARP + lane] = q[0] | q[2] << 4 | q[1] << 8 | q[3] << 12;
  if (lane == 0) args.scales[group] = scale;
}

// One thread per pack of elements.
template <typename T>
__device__ __forceinline__ void dequantize_int4(const Quantized& args) {
  u64 packs = args.depth / Pack<T>::COUNT, groups = (args.depth + GROUP - 1) / GROUP;
  u64 i = (u64)blockIdx.x * GROUP_THREADS + threadIdx.x;
  if (i >= args.rows * packs) return;
  u32 k = i % packs * Pack<T>::COUNT;
  u64 group = i / packs * groups + k / GROUP;
  const unsigned char* bytes = (const unsigned char*)args.quantized + group * (GROUP / 2) + k % (GROUP / 2);
  float scale = args.scales[group];
  Pack<T> pack;
#pragma unroll
  for (int e = 0; e < Pack<T>::COUNT; e++) {
    u32 q = k % GROUP < GROUP / 2 ? bytes[e] & 15 : bytes[e] >> 4;
    pack.elements[e] = T::store(((int)q - 8) * scale);
  }
  ((uint4*)args.elements)[i] = pack.vector;
}

#define KERNEL(name, threads, type, of, ...)                                                                        \
  extern "C" __global__ void __launch_bounds__(threads) name##_##type(const __grid_constant__ of args) { __VA_ARGS__(args); }

#define QUANTIZE(name, T)                                                       \
  KERNEL(quantize_fp8, ROW_THREADS, name, Quantized, quantize_fp8<T, false>)  \
  KERNEL(activate_fp8, ROW_THREADS, name, Quantized, quantize_fp8<T, true>)   \
  KERNEL(norm_fp8, NORM_THREADS, name, Normed, norm_fp8<T>)                    \
  KERNEL(quantize_int4, GROUP_THREADS, name, Quantized, quantize_int4<T>)      \
  KERNEL(dequantize_int4, GROUP_THREADS, name, Quantized, dequantize_int4<T>)

QUANTIZE(float16, Float16)
QUANTIZE(bfloat16, Bfloat16)

#endif
