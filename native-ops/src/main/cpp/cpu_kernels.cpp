// SPDX-License-Identifier: Apache-2.0
// The CPU's kernels of decode steps: products of few rows at the speed of memory, quantization, RMSNorm, gates, attention over a paged
// KV cache, argmax. Updates of optimizers. Dense layers and attention of encoders.
// Activations are float32; cache and weights are float32, float16 or bfloat16, weights also int8, int4 or packed blocks. Called by
// org.djlx.nativeops.host.CpuKernels. Needs AVX2, FMA and F16C, and uses AVX-512 and AMX where the CPU has them. Links to libc only.
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define INLINE static inline __attribute__((always_inline))

typedef _Float16 Half;
struct Bf16 {
  uint16_t bits;
};
enum { INT8 = 1, FLOAT16 = 5, FLOAT32 = 6, BFLOAT16 = 15, INT4 = 16, INT4_ZEROS = 17 };  // c10::ScalarType, but for the last two
enum { Q4_0 = 34, Q4_1 = 35, Q5_0 = 38, Q5_1 = 39, Q8_0 = 40, Q2_K = 42, Q3_K = 43, Q4_K = 44, Q5_K = 45, Q6_K = 46 };  // 32 + ggml_type
const int GROUP = 128, PANEL = 16, MATRIX = 16;  // MATRIX: rows of a tile of AMX
// How many bytes ahead of a weight another is prefetched, because the hardware's prefetchers stop at the end of a page. The fastest:
const int FAR_AHEAD = 16384;   // for 16-bit weights, and for float32 weights with several rows of x
static int near_ahead = 1024;  // for other weights; on Intel's CPUs 4096, which is much slower on AMD's

union Bits {
  float number;
  uint32_t bits;
};
INLINE float widen(float x) { return x; }
INLINE float widen(Half x) { return x; }
INLINE float widen(Bf16 x) {
  Bits wide;
  wide.bits = (uint32_t)x.bits << 16;
  return wide.number;
}
INLINE void narrow(float x, float* out) { *out = x; }
INLINE void narrow(float x, Half* out) { *out = (Half)x; }
INLINE void narrow(float x, Bf16* out) {  // to nearest, ties to even; NaN stays NaN
  Bits wide;
  wide.number = x;
  out->bits = x != x ? 0x7fc0 : (wide.bits + 0x7fff + (wide.bits >> 16 & 1)) >> 16;
}

// Quantized weights: panels of 16 outputs. A panel has groups of 128 inputs, a group a header with its scales, then blocks of 64 bytes with
// 4 inputs of each output. Inputs and outputs are filled up with zeros. The header of INT8 and INT4 is a scale for each output in float32.
// INT8: block 2 b has inputs 4 b to 4 b + 3, block 2 b + 1 those 64 further on; a byte is q + 128, q from -127 to 127.
// INT4: block b has the inputs of both in nibbles, the first ones in the lower nibble: q + 8, q from -8 to 7.
INLINE int64_t groups(int64_t inputs) { return (inputs + GROUP - 1) / GROUP; }

// Blocks of GGUF, and INT4_ZEROS, are packed without rounding. Their numbers q, unsigned, have the layout of INT8 or INT4. The header has, for
// each output of the panel:
// - K types: the superblock's scale d and scale of minimums m (0 if the type has no minimums), in float16; then a scale (int8) for each set
//   of 16 or 32 inputs; then, if the type has minimums, a minimum (uint8) for each set. A weight is d * scale * (q - zero) - m * minimum.
// - Other types: a scale for each set; then, if has_minimums, an addend for each set, in float16. A weight is scale * (q - zero) + addend.
// - INT4_ZEROS: as Q4_1, but a set has its zero in place of the addend. A weight is scale * (q - zero).
struct Blocks {
  int bits, set, zero;
  bool is_k, has_minimums;
  constexpr int header() const {
    int sets = GROUP / set;
    return sets == 1 ? 4 * PANEL : is_k ? PANEL * (4 + sets * (has_minimums ? 2 : 1)) : PANEL * sets * (has_minimums ? 4 : 2);
  }
};
constexpr Blocks blocks(int type) {
  switch (type) {
    case INT8: return {8, GROUP, 128, false, false};
    case INT4: return {4, GROUP, 8, false, false};
    case Q4_0: return {4, 32, 8, false, false};
    case Q4_1: case INT4_ZEROS: return {4, 32, 0, false, true};
    case Q5_0: return {8, 32, 16, false, false};
    case Q5_1: return {8, 32, 0, false, true};
    case Q8_0: return {8, 32, 128, false, false};
    case Q2_K: return {4, 16, 0, true, true};
    case Q3_K: return {4, 16, 4, true, false};
    case Q4_K: return {4, 32, 0, true, true};
    case Q5_K: return {8, 32, 0, true, true};
    default: return {8, 16, 32, true, false};  // Q6_K
  }
}

constexpr bool is_quantized(int type) { return type == INT8 || type >= INT4; }

// The bytes of a panel's group: its scales and numbers.
INLINE int64_t group_bytes(int type) {
  return blocks(type).header() + PANEL * GROUP * blocks(type).bits / 8;
}

// Rows of x, quantized to 8 bits in groups of 128 numbers. For INT8 and INT4 weights, a group has one scale; for blocks, each 32 numbers have
// one. A total is that of a set of numbers, to correct for the weights' zero; a sum is a total times the scale, for minimums. Sets of 16 and
// of 32 numbers come one after the other; a set of 128 has the first place.
// Groups of tile_rows rows, 1 or MATRIX for AMX, lie together: 64 numbers of each row, then 64 others; the first scale of each row, and so on.
const int SCALES = 4, SUMS = GROUP / 16 + GROUP / 32;  // of a group
constexpr int sum_index(int set_size, int set) { return set + (set_size == 32 ? GROUP / 16 : 0); }
struct Quantized {
  int64_t tile_rows;
  int8_t* numbers;
  float *scales, *totals, *sums;

  // Returns the index of a group of a tile's first row, where a row has `count` groups.
  int64_t place(int64_t row, int64_t count, int64_t group) const { return (row / tile_rows * count + group) * tile_rows; }
};

// Some columns of a product: weights of shape (outputs, inputs), rows stride elements apart, or quantized; bias may be null.
struct Part {
  int64_t type, outputs, stride;
  const void* weights;
  const float* bias;
};

// out = x weights^T + bias, or out += factor (x weights^T + bias) if factor is not 0, with the columns of all parts next to each other.
// x: (rows, inputs), contiguous; out: (rows, outputs), rows width apart.
struct Product {
  int64_t rows, inputs, width;
  const float* x;
  float factor;
  Quantized quantized;
  const Part* parts;
  float* out;
  Part part;  // the part that is multiplied, at first parts[0]; out is its first column

  inline __attribute__((always_inline)) void put(int64_t row, int64_t column, float sum) const {
    float value = part.bias ? sum + part.bias[column] : sum;
    float* to = out + row * width + column;
    *to = factor == 0 ? value : *to + factor * value;
  }
};

// Floating-point weights to be quantized: (outputs, inputs), contiguous.
struct Conversion {
  int type, from;
  int64_t outputs, inputs;
  const void* weights;
  void* quantized;
};

// Rows of blocks to be packed: rows has the address of each output's first block, null for an output of zeros.
struct Packing {
  int type;
  int64_t outputs, inputs;
  const uint8_t* const* rows;
  char* packed;
};

// Rows of a token each, also of several tokens of a sequence: all keys and values are written before a row attends. type: of keys and
// values; window: 0 is none; cap: 0 is none; query_norm, key_norm: may be null. qkv: (rows, query heads + 2 KV heads, head size);
// positions: (rows); slots: (rows, max length), or with a max length of 0 those of all rows, which are adjacent tokens; cosines, sines:
// (positions, head size / 2); keys, values: (slots, KV heads, head size), faster if aligned to 64 bytes; out: (rows, query heads, head size).
struct Attention {
  int type;
  int64_t rows, query_heads, kv_heads, head_size, max_length, window;
  float scale, cap, epsilon;
  float* qkv;
  const float *query_norm, *key_norm, *cosines, *sines;
  const int *positions, *slots;
  void *keys, *values;
  float* out;
};

// x += delta unless it is null; out = norm of x unless that is null. x: (rows, size).
struct Norm {
  int64_t size;
  float* x;
  const float *delta, *weight;
  float epsilon;
  float* out;
};

// gate_up: (rows, gates then values, inner); out: (rows, inner).
struct Gate {
  int64_t inner;
  int gelu;
  const float* gate_up;
  float* out;
};

// For each row of x, (rows, size): the first index of its maximum, the maximum, and the sum of e^(element - maximum), which is NaN if an
// element is NaN or the maximum infinite.
struct ArgMax {
  int64_t size;
  const float* x;
  int64_t* indices;
  float *maxima, *sums;
};

// A dense layer: activation(x weights^T + bias). weights: split by djlx_cpu_split; bias may be null.
enum { NONE, GELU, GELU_TANH, RELU, SILU };
struct Layer {
  int64_t inputs, outputs, activation;
  const char* weights;
  const float* bias;
};

// out = norm(layers(x) + residual), with layers one after the other. x: (rows, inputs); residual, out: (rows, outputs); residual and
// norm_weight may be null. block: the rows that a thread computes at a time.
struct Layers {
  int64_t rows, count;
  const Layer* layers;
  const float *x, *residual, *norm_weight, *norm_bias;
  float epsilon;
  float* out;
  int64_t block;
};

// Attention within sequences, in both directions. starts: the first token of each sequence, then the number of all tokens. qkv: (tokens,
// queries then keys then values, heads, size); out: (tokens, heads, size).
struct EncoderAttention {
  int64_t heads, size;
  const int64_t* starts;
  float scale;
  const float* qkv;
  float* out;
};

// A group of a row of blocks.
struct Group {
  uint8_t numbers[GROUP];  // without a sign
  uint16_t scales[4], minimums[4], super_scale, super_minimum;
  int8_t k_scales[GROUP / 16];
  uint8_t k_minimums[GROUP / 16];
};

// Reads 32 numbers of 4 bits, the first 16 from the lower halves of bytes; `fifth` has a fifth bit of each number, or is null.
static void read_nibbles(const uint8_t* low, const uint8_t* fifth, uint8_t* out) {
  for (int i = 0; i < 32; i++) out[i] = (low[i % 16] >> i / 16 * 4 & 15) | (fifth ? (fifth[i / 8] >> i % 8 & 1) << 4 : 0);
}

static void read_block(int type, const uint8_t* b, int set, Group* g) {
  int begin = type == Q4_1 || type == Q5_1 || type == INT4_ZEROS ? 4 : 2;
  uint8_t* out = g->numbers + 32 * set;
  __builtin_memcpy(g->scales + set, b, 2);
  __builtin_memcpy(g->minimums + set, b + begin - 2, 2);
  if (type == Q8_0) for (int i = 0; i < 32; i++) out[i] = b[2 + i] ^ 128;
  else if (type == Q4_0 || type == Q4_1 || type == INT4_ZEROS) read_nibbles(b + begin, 0, out);
  else read_nibbles(b + begin + 4, b + begin, out);
}

// Reads one half of a block of 256 numbers. The order of the bits is that of ggml's dequantize_row functions.
static void read_half(int type, const uint8_t* b, int half, Group* g) {
  const uint8_t* scales = b + (type == Q3_K ? 96 : type == Q6_K ? 192 : type == Q2_K ? 0 : 4);
  int at = type == Q2_K ? 80 : type == Q3_K ? 108 : type == Q6_K ? 208 : 0;
  __builtin_memcpy(&g->super_scale, b + at, 2);
  if (blocks(type).has_minimums) __builtin_memcpy(&g->super_minimum, b + at + 2, 2);
  for (int j = 0; j < GROUP / blocks(type).set; j++) {
    int set = j + half * GROUP / blocks(type).set;
    if (type == Q2_K) {
      g->k_scales[j] = scales[set] & 15, g->k_minimums[j] = scales[set] >> 4;
    } else if (type == Q3_K) {
      g->k_scales[j] = ((scales[set % 8] >> set / 8 * 4 & 15) | (scales[8 + set % 4] >> set / 4 * 2 & 3) << 4) - 32;
    } else if (type == Q6_K) {
      g->k_scales[j] = (int8_t)scales[set];
    } else {
      uint8_t scale = scales[set % 4], minimum = scales[4 + set % 4], rest = scales[4 + set];  // the last is for set >= 4
      g->k_scales[j] = set < 4 ? scale & 63 : (rest & 15) | scale >> 6 << 4;
      g->k_minimums[j] = set < 4 ? minimum & 63 : rest >> 4 | minimum >> 6 << 4;
    }
  }
  for (int i = 0; i < GROUP; i++) {
    int set = 4 * half + i / 32, low = b[48 + set / 2 * 32 + i % 32] >> set % 2 * 4 & 15;
    if (type == Q2_K) low = b[16 + half * 32 + i % 32] >> i / 32 * 2 & 3;
    if (type == Q3_K) low = (b[32 + half * 32 + i % 32] >> i / 32 * 2 & 3) | (b[i % 32] >> set & 1) << 2;
    if (type == Q4_K) low = b[16 + set / 2 * 32 + i % 32] >> set % 2 * 4 & 15;
    if (type == Q5_K) low |= (b[16 + i % 32] >> set & 1) << 4;
    if (type == Q6_K) low = (b[half * 64 + i % 64] >> i / 64 * 4 & 15) | (b[128 + half * 32 + i % 32] >> i / 32 * 2 & 3) << 4;
    g->numbers[i] = low;
  }
}

// Packs one group of an output of a panel. A null row, and inputs after a row's end, get scales of 0.
template <int TYPE> static void pack_group(const uint8_t* row, int64_t inputs, int64_t index, int output, char* out) {
  const Blocks b = blocks(TYPE);
  const int sets = GROUP / b.set, bytes = TYPE == Q4_0 ? 18 : TYPE == Q4_1 || TYPE == INT4_ZEROS ? 20 : TYPE == Q5_0 ? 22 : TYPE == Q5_1 ? 24 : TYPE == Q8_0 ? 34
      : TYPE == Q2_K ? 84 : TYPE == Q3_K ? 110 : TYPE == Q4_K ? 144 : TYPE == Q5_K ? 176 : 210;
  Group g = {};
  if (row && b.is_k) read_half(TYPE, row + index / 2 * bytes, index % 2, &g);
  for (int i = 0; row && !b.is_k && i < 4; i++)
    if (index * GROUP + i * 32 < inputs) read_block(TYPE, row + (index * 4 + i) * bytes, i, &g);
  if (b.is_k) {
    ((uint16_t*)out)[output] = g.super_scale, ((uint16_t*)out)[PANEL + output] = g.super_minimum;
    for (int i = 0; i < sets; i++) {
      out[PANEL * (4 + i) + output] = g.k_scales[i];
      if (b.has_minimums) out[PANEL * (4 + sets + i) + output] = g.k_minimums[i];
    }
  } else {
    for (int i = 0; i < sets; i++) {
      ((uint16_t*)out)[PANEL * i + output] = g.scales[i];
      if (b.has_minimums) ((uint16_t*)out)[PANEL * (sets + i) + output] = g.minimums[i];
    }
  }
  out += b.header() + 4 * output;
  for (int i = 0; i < GROUP / 2; i += 4, out += 4 * PANEL) {
    const uint8_t *first = g.numbers + i, *second = first + GROUP / 2;
    for (int j = 0; j < 4; j++)
      if (b.bits == 4) out[j] = first[j] | second[j] << 4;
      else out[j] = first[j], out[4 * PANEL + j] = second[j];
    if (b.bits == 8) out += 4 * PANEL;
  }
}

template <int TYPE> static void pack_panels(const void* packing, int64_t from, int64_t to) {
  const Packing& p = *(const Packing*)packing;
  int64_t count = groups(p.inputs);
  for (int64_t panel = from; panel < to; panel++)
    for (int i = 0; i < PANEL; i++) {
      int64_t output = panel * PANEL + i;
      for (int64_t g = 0; g < count; g++)
        pack_group<TYPE>(output < p.outputs ? p.rows[output] : 0, p.inputs, g, i, p.packed + (panel * count + g) * group_bytes(TYPE));
    }
}

static bool use_amx;  // with AVX-512 only
static bool has_amx_bf16;

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c,prefer-vector-width=512,amx-tile,amx-int8")
#define ISA avx512
#define LANES 16
#define TILE 4
#include "cpu_kernels.h"
#include "encoder_attention.h"
#undef ISA
#undef LANES
#undef TILE
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#define ISA avx2
#define LANES 8
#define TILE 2
#include "cpu_kernels.h"
#include "encoder_attention.h"
#pragma GCC optimize("fp-contract=off")
#include "optimizer.h"
#undef LANES
#pragma GCC pop_options

typedef void (*Parallel)(void (*)(void*), void*, unsigned, unsigned);

static bool use_avx512;
const int SHARED_ROWS = 32;  // from which on threads share what takes less time than a product
static Parallel parallel;  // GOMP_parallel of the OpenMP that libtorch uses: one pool of threads for both

// A loop that threads share as by OpenMP's schedule(guided): each takes a third of its share of the rest, in whole steps and at least one.
struct Loop {
  void (*body)(const void*, int64_t, int64_t);
  const void* arguments;
  int64_t threads, step, count, next;
};

static void work(void* shared) {
  Loop* loop = (Loop*)shared;
  int64_t from = __atomic_load_n(&loop->next, __ATOMIC_RELAXED);
  while (from < loop->count) {
    int64_t steps = (loop->count - from) / (3 * loop->threads * loop->step);
    int64_t to = from + (steps > 1 ? steps : 1) * loop->step;
    if (!__atomic_compare_exchange_n(&loop->next, &from, to, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) continue;
    loop->body(loop->arguments, from, to < loop->count ? to : loop->count);
    from = __atomic_load_n(&loop->next, __ATOMIC_RELAXED);
  }
}

static void run(int threads, int64_t step, int64_t count, void (*body)(const void*, int64_t, int64_t), const void* arguments) {
  Loop loop = {body, arguments, threads, step, count, 0};
  if (threads > 1 && count > step && parallel) parallel(work, &loop, threads, 0);
  else body(arguments, 0, count);
}

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,avx2,fma,f16c,prefer-vector-width=512,amx-tile,amx-int8,amx-bf16")
#define LANES 16
#include "dense.h"
#undef LANES
#pragma GCC pop_options

// Asks Linux for the tiles' registers, once for all threads.
static bool allow_amx() {
  unsigned a = 7, b, c = 0, d;
  __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  has_amx_bf16 = (d >> 22 & 1) == 1 && __builtin_cpu_supports("avx512bf16");
  const int request_permission = 0x1023, tile_data = 18;
  return (d >> 24 & 3) == 3 /* AMX-TILE, AMX-INT8 */ && syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

#pragma GCC visibility push(default)
extern "C" {

// Chooses the instruction set: at most AVX2 if the level is 0, AVX-512 if it is 1, AMX, too, if it is 2. Returns the floats of a vector, 0 if
// the CPU lacks AVX2, FMA or F16C.
int djlx_cpu_init(Parallel gomp_parallel, Sqrt vms_sqrt, int level) {
  parallel = gomp_parallel;
  mkl_sqrt = vms_sqrt;
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c")) return 0;
  if (__builtin_cpu_is("intel")) near_ahead = 4096;
  use_avx512 = level > 0 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vnni");
  use_amx = use_avx512 && level > 1 && allow_amx();
  return use_avx512 ? 16 : 8;
}

// See Product. All parts are INT8, all are INT4, all are blocks, or all are floats. A quantized part before the last has a multiple of
// PANEL outputs.
void djlx_cpu_products(int threads, int64_t rows, int64_t inputs, int64_t count, const Part* parts, int64_t width, const float* x,
                       float factor, float* out) {
  Product p = {rows, inputs, width, x, factor, {}, parts, out, *parts};
  char* scratch = 0;
  bool quantized = is_quantized(parts->type);
  if (quantized) {
    int64_t tile_rows = use_amx && rows >= MATRIX ? MATRIX : 1, x_groups = (rows + tile_rows - 1) / tile_rows * tile_rows * groups(inputs);
    scratch = (char*)aligned_alloc(64, (x_groups * (GROUP + 4 * (SCALES + 2 * SUMS)) + 63) / 64 * 64);
    float* scales = (float*)(scratch + x_groups * GROUP);
    float* totals = scales + x_groups * SCALES;
    p.quantized = {tile_rows, (int8_t*)scratch, scales, totals, totals + x_groups * SUMS};
    run(rows < SHARED_ROWS ? 1 : threads, 64, rows * groups(inputs), use_avx512 ? avx512::quantize_rows : avx2::quantize_rows, &p);
  }
  int64_t outputs = 0;
  for (int64_t i = 0; i < count; i++) outputs += parts[i].outputs;
  int64_t step = p.quantized.tile_rows > 1 ? 2 * PANEL : quantized ? PANEL : 4;  // a multiple of the outputs that `columns` multiplies at a time
  run(rows * inputs * outputs < 1 << 18 ? 1 : threads, step, outputs, use_avx512 ? avx512::products : avx2::products, &p);
  free(scratch);
}

void djlx_cpu_product(int threads, int type, int64_t rows, int64_t inputs, int64_t outputs, int64_t stride, int64_t width,
                      const float* x, const void* weights, const float* bias, float factor, float* out) {
  Part part = {type, outputs, stride, weights, bias};
  djlx_cpu_products(threads, rows, inputs, 1, &part, width, x, factor, out);
}

int64_t djlx_cpu_quantized_bytes(int type, int64_t outputs, int64_t inputs) {
  return (outputs + PANEL - 1) / PANEL * groups(inputs) * group_bytes(type);
}

// Quantizes weights; see Conversion.
void djlx_cpu_quantize(int threads, int type, int from, int64_t outputs, int64_t inputs, const void* weights, void* quantized) {
  Conversion c = {type, from, outputs, inputs, weights, quantized};
  run(threads, 1, (outputs + PANEL - 1) / PANEL, use_avx512 ? avx512::quantize : avx2::quantize, &c);
}

// Packs blocks; see Packing.
void djlx_cpu_pack(int threads, int type, int64_t outputs, int64_t inputs, const uint8_t* const* rows, char* packed) {
  Packing p = {type, outputs, inputs, rows, packed};
  void (*pack)(const void*, int64_t, int64_t) = pack_panels<Q6_K>;
  switch (type) {
    case INT4_ZEROS: pack = pack_panels<INT4_ZEROS>; break;
    case Q4_0: pack = pack_panels<Q4_0>; break;
    case Q4_1: pack = pack_panels<Q4_1>; break;
    case Q5_0: pack = pack_panels<Q5_0>; break;
    case Q5_1: pack = pack_panels<Q5_1>; break;
    case Q8_0: pack = pack_panels<Q8_0>; break;
    case Q2_K: pack = pack_panels<Q2_K>; break;
    case Q3_K: pack = pack_panels<Q3_K>; break;
    case Q4_K: pack = pack_panels<Q4_K>; break;
    case Q5_K: pack = pack_panels<Q5_K>; break;
  }
  run(threads, 1, (outputs + PANEL - 1) / PANEL, pack, &p);
}

// The bytes of split weights; 0 if this CPU does not multiply them.
int64_t djlx_cpu_split_bytes(int64_t outputs, int64_t inputs) {
  return use_amx && has_amx_bf16 ? avx512::split_bytes(outputs, inputs) : 0;
}

// Splits float32 weights of shape (outputs, inputs).
void djlx_cpu_split(int threads, int64_t outputs, int64_t inputs, const float* weights, char* split) {
  Conversion c = {FLOAT32, FLOAT32, outputs, inputs, weights, split};
  run(threads, 1, avx512::up(outputs) / avx512::WIDE, avx512::split_weights, &c);
}

// See Layers.
void djlx_cpu_layers(int threads, int64_t rows, int64_t count, const Layer* layers, const float* x, const float* residual,
                     const float* norm_weight, const float* norm_bias, float epsilon, float* out) {
  Layers l = {rows, count, layers, x, residual, norm_weight, norm_bias, epsilon, out, 0};
  avx512::apply(threads, l);
}

// See Norm.
void djlx_cpu_rms_norm(int threads, int64_t rows, int64_t size, float* x, const float* delta, const float* weight, float epsilon, float* out) {
  Norm n = {size, x, delta, weight, epsilon, out};
  run(rows < SHARED_ROWS ? 1 : threads, 8, rows, use_avx512 ? avx512::rms_norms : avx2::rms_norms, &n);
}

// See Gate.
void djlx_cpu_gate(int threads, int64_t rows, int64_t inner, int gelu, const float* gate_up, float* out) {
  Gate g = {inner, gelu, gate_up, out};
  run(rows < SHARED_ROWS ? 1 : threads, 8, rows, use_avx512 ? avx512::gate : avx2::gate, &g);
}

// Normalises heads unless query_norm is null, rotates, writes keys and values to the cache, and attends.
void djlx_cpu_attention(int threads, int type, int64_t rows, int64_t query_heads, int64_t kv_heads, int64_t head_size,
                        int64_t max_length, int64_t window, float scale, float cap, float epsilon, float* qkv,
                        const float* query_norm, const float* key_norm, const float* cosines, const float* sines,
                        const int* positions, const int* slots, void* keys, void* values, float* out) {
  Attention a = {type,       rows,     query_heads, kv_heads, head_size, max_length, window, scale, cap,    epsilon, qkv,
                 query_norm, key_norm, cosines,     sines,    positions, slots,      keys,   values, out};
  run(rows < SHARED_ROWS ? 1 : threads, 8, rows, use_avx512 ? avx512::rotate : avx2::rotate, &a);
  run(threads, 1, use_avx512 ? avx512::attention_parts(a) : avx2::attention_parts(a), use_avx512 ? avx512::attend : avx2::attend, &a);
}

// See EncoderAttention.
void djlx_cpu_encoder_attention(int threads, int64_t sequences, int64_t heads, int64_t size, const int64_t* starts, float scale,
                                const float* qkv, float* out) {
  EncoderAttention a = {heads, size, starts, scale, qkv, out};
  run(threads, 1, sequences * heads, use_avx512 ? avx512::attend_encoder : avx2::attend_encoder, &a);
}

// See ArgMax.
void djlx_cpu_argmax(int threads, int64_t rows, int64_t size, const float* x, int64_t* indices, float* maxima, float* sums) {
  ArgMax a = {size, x, indices, maxima, sums};
  run(threads, 1, rows, use_avx512 ? avx512::argmax : avx2::argmax, &a);
}

// See Update. A null `second` is SGD, and a null `first` is SGD without momentum.
void djlx_cpu_update(int threads, int64_t size, float* weight, const float* gradient, float* first, float* second, float rate,
                     float corrected, float decay, float rescale, float clip, float beta1, float beta2, float epsilon, int decoupled) {
  Update u = {weight, gradient, first, second, rate, corrected, decay, rescale, clip, beta1, beta2, epsilon, decoupled};
  run(threads, 1 << 14, size, second ? adam : first ? momentum : sgd, &u);
}

// out = factor x.
void djlx_cpu_widen(int type, int64_t size, float factor, const void* x, float* out) {
  for (int64_t i = 0; i < size; i++)
    out[i] = factor * (type == FLOAT32 ? ((const float*)x)[i] : type == FLOAT16 ? widen(((const Half*)x)[i]) : widen(((const Bf16*)x)[i]));
}
}
