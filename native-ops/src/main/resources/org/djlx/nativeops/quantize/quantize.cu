// Conversions between 16-bit elements and the weights of 8 and 4 bits that decoder/weights.cuh and int4.cuh describe.
//
//   quantize_fp8        rows of weights, or of activations, to e4m3 with a scale for each row
//   activate_fp8        silu(gates) * values, rounded to 16 bits, then as quantize_fp8
//   norm_fp8            RMSNorm of a residual plus addend, rounded to 16 bits, then as quantize_fp8
//   quantize_int4       rows of weights to groups of 128 numbers of 4 bits, with a scale for each group
//   dequantize_int4     back to 16 bits
//   pack_int4           blocks of numbers with zeros
//
// A number is rounded to the nearest, ties to even. If a number is NaN or infinite, so is its scale.
// Synchronisation: none between blocks. Kernels of activations wait for the primary kernel.
//
// Compiled with
//   ZERO_GROUP  of dequantize_int4 and pack_int4
#include "block_sum.cuh"
#include "e4m3_row.cuh"
#include "int4.cuh"
#include "rms_norm.cuh"
#include "silu.cuh"

#ifdef HAS_BFLOAT16

static_assert(NORM_THREADS <= ROW_THREADS, "round_row supports the block size");
const int GROUP_THREADS = 256;  // of a block of groups
const int BLOCK = 32;           // numbers of a block with a scale and a zero
const int BLOCK_WORDS = 5;

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
  round_row<T>(row, packs, most, (uint2*)args.quantized + (u64)blockIdx.x * packs, args.scales + blockIdx.x);
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
  round_row<T>(row, packs, most, (uint2*)args.quantized + (u64)blockIdx.x * packs, args.scales + blockIdx.x);
}

// One warp per set, a group; a lane has the numbers of two adjacent bytes.
template <typename T>
__device__ __forceinline__ void quantize_int4(const Quantized& args) {
  u32 lane = threadIdx.x % WARP;
  u64 groups = (args.depth + SET - 1) / SET, group = (u64)blockIdx.x * (GROUP_THREADS / WARP) + threadIdx.x / WARP;
  if (group >= args.rows * groups) return;
  u64 row = group / groups, first = group % groups * SET;
  u32 own = lane % 8 / 4 * 32 + lane / 8 * 8 + lane % 4 * 2;
  const typename T::Bits* from = (const typename T::Bits*)args.elements + row * args.depth + first;
  float x[4];
  u64 most = 0;  // magnitude, then the first position with it, then the sign
#pragma unroll
  for (int i = 0; i < 4; i++) {
    u32 k = own + i % 2 + i / 2 * (SET / 2);
    x[i] = first + k < args.depth ? T::load(from[k]) : 0;
    most = max(most, (u64)magnitude_bits(x[i]) << 8 | (SET - 1 - k) << 1 | (x[i] < 0));
  }
  for (int distance = WARP / 2; distance > 0; distance /= 2) most = max(most, __shfl_xor_sync(~0u, most, distance));
  float scale = __uint_as_float((u32)(most >> 8) | (u32)most << 31) / -8;  // the largest is -8, which has no opposite
  u32 q[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    float quotient = x[i] / scale;
    q[i] = min(fabsf(quotient) < SET ? __float2int_rn(quotient) : 0, 7) + 8;
  }
  ((u16*)args.quantized)[group * WARP + lane] = q[0] | q[2] << 4 | q[1] << 8 | q[3] << 12;
  if (lane == 0) args.scales[group] = scale;
}

// One thread per pack of elements.
template <typename T>
__device__ __forceinline__ void dequantize_int4(const Quantized& args) {
  u64 packs = args.depth / Pack<T>::COUNT, sets = (args.depth + SET - 1) / SET;
  u64 i = (u64)blockIdx.x * GROUP_THREADS + threadIdx.x;
  if (i >= args.rows * packs) return;
  u32 k = i % packs * Pack<T>::COUNT, in_set = k % SET;
  u64 set = i / packs * sets + k / SET;
  const unsigned char* bytes = (const unsigned char*)args.quantized + set * SET_BYTES + in_set % 32 / 8 * 16 + in_set / 32 % 2 * 8;
  u32 word = __float_as_uint(args.scales[set * (SET / GROUP) + in_set / GROUP]);
  float scale = group_scale(word);
  Pack<T> pack;
#pragma unroll
  for (int e = 0; e < Pack<T>::COUNT; e++) {
    u32 number = in_set < SET / 2 ? bytes[e] & 15 : bytes[e] >> 4;
    pack.elements[e] = T::store(((int)number - (int)group_zero(word)) * scale);
  }
  ((uint4*)args.elements)[i] = pack.vector;
}

// One thread per word of numbers. `elements`: rows of blocks of BLOCK_WORDS words each: scale and zero in float16, then 16 bytes; byte
// i has number i of the block in its lower half, and number i + 16 in its upper half.
extern "C" __global__ void __launch_bounds__(GROUP_THREADS) pack_int4(const __grid_constant__ Quantized args) {
  const int WORDS = SET_BYTES / 4;
  u64 sets = (args.depth + SET - 1) / SET, blocks = args.depth / BLOCK, i = (u64)blockIdx.x * GROUP_THREADS + threadIdx.x;
  if (i >= args.rows * sets * WORDS) return;
  u64 set = i / WORDS;
  u32 word = i % WORDS, first = word / 4 * 8 + word % 2 * 4;  // first: of the word's lower numbers, in their block
  u32 first_block = set % sets * (SET / BLOCK);
  const u32* row = (const u32*)args.elements + set / sets * blocks * BLOCK_WORDS;
  auto word_of = [&](u32 block, u32 index) { return block < blocks ? row[(u64)block * BLOCK_WORDS + index] : 0; };
  auto numbers_of = [&](u32 block) { return word_of(block, 1 + first % 16 / 4) >> first / 16 * 4 & 0x0f0f0f0f; };
  u32 lower = first_block + word % 4 / 2;
  ((u32*)args.quantized)[i] = numbers_of(lower) | numbers_of(lower + 2) << 4;
  if (word >= SET / GROUP) return;
  u32 both = word_of(first_block + word * GROUP_PARTS, 0);
  u32 zero = (u32)Float16::load(both >> 16);
  ((u32*)args.scales)[set * (SET / GROUP) + word] = __float_as_uint(Float16::load((u16)both)) | (zero ^ 8);
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
