// SPDX-License-Identifier: Apache-2.0
// The CPU's kernels of decode steps: products of few rows at the speed of memory, quantization, RMSNorm, gates, attention over a paged
// KV cache, argmax. Updates of optimizers.
// Activations are float32; cache and weights are float32, float16 or bfloat16, weights also int8 or int4. Called by
// org.djlx.nativeops.host.CpuKernels. Needs AVX2, FMA and F16C, and uses AVX-512 where the CPU has it. Links to libc only.
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#define INLINE static inline __attribute__((always_inline))

typedef _Float16 Half;
struct Bf16 {
  uint16_t bits;
};
enum { INT8 = 1, FLOAT16 = 5, FLOAT32 = 6, BFLOAT16 = 15, INT4 = 16 };  // c10::ScalarType
const int GROUP = 128, PANEL = 16;
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

// Quantized weights: panels of 16 outputs. A panel has groups of 128 inputs, a group a scale for each output in float32, then blocks
// of 64 bytes with 4 inputs of each output. Inputs and outputs are filled up with zeros.
// INT8: block 2 b has inputs 4 b to 4 b + 3, block 2 b + 1 those 64 further on; a byte is q + 128, q from -127 to 127.
// INT4: block b has the inputs of both in nibbles, the first ones in the lower nibble: q + 8, q from -8 to 7.
INLINE int64_t groups(int64_t inputs) { return (inputs + GROUP - 1) / GROUP; }
// The bytes of a panel's group: its scales and numbers.
INLINE int64_t group_bytes(int type) { return PANEL * (sizeof(float) + (type == INT8 ? GROUP : GROUP / 2)); }

// Rows of x in 8 bits, in groups of 128 with a scale each; offsets, -128 (INT8) or -8 (INT4) times the sum of a group, cancel what
// is added to each weight.
struct Quantized {
  int8_t* numbers;
  float* scales;
  int* offsets;
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
    float value = sum + (part.bias ? part.bias[column] : 0);
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

// Rows of a token each, also of several tokens of a sequence: all keys and values are written before a row attends. type: of keys and
// values; window: 0 is none; cap: 0 is none; query_norm, key_norm: may be null. qkv: (rows, query heads + 2 KV heads, head size);
// positions: (rows); slots: (rows, max length); cosines, sines: (positions, head size / 2); keys, values: (slots, KV heads, head size),
// faster if aligned to 64 bytes; out: (rows, query heads, head size).
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

// For each row of x, (rows, size): the first index of its maximum, the maximum, and the sum of e^(element - maximum), which is NaN if an
// element is NaN or the maximum infinite.
struct ArgMax {
  int64_t size;
  const float* x;
  int64_t* indices;
  float *maxima, *sums;
};

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c,prefer-vector-width=512")
#define ISA avx512
#define LANES 16
#define TILE 4
#include "cpu_kernels.h"
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
#pragma GCC optimize("fp-contract=off")
#include "optimizer.h"
#pragma GCC pop_options

typedef void (*Parallel)(void (*)(void*), void*, unsigned, unsigned);

static bool use_avx512;
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

#pragma GCC visibility push(default)
extern "C" {

// Chooses the instruction set, at most AVX2 if narrow; returns the floats of a vector, 0 if the CPU lacks AVX2, FMA or F16C.
int djlx_cpu_init(Parallel gomp_parallel, Sqrt vms_sqrt, int narrow) {
  parallel = gomp_parallel;
  mkl_sqrt = vms_sqrt;
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c")) return 0;
  if (__builtin_cpu_is("intel")) near_ahead = 4096;
  use_avx512 = !narrow && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vnni");
  return use_avx512 ? 16 : 8;
}

// See Product. Quantized parts have one type, and all but the last a multiple of PANEL outputs.
void djlx_cpu_products(int threads, int64_t rows, int64_t inputs, int64_t count, const Part* parts, int64_t width, const float* x,
                       float factor, float* out) {
  Product p = {rows, inputs, width, x, factor, {}, parts, out, *parts};
  char* scratch = 0;
  bool quantized = parts->type == INT8 || parts->type == INT4;
  if (quantized) {
    int64_t x_groups = rows * groups(inputs);
    scratch = (char*)aligned_alloc(64, (x_groups * (GROUP + 8) + 63) / 64 * 64);
    p.quantized = {(int8_t*)scratch, (float*)(scratch + x_groups * GROUP), (int*)(scratch + x_groups * (GROUP + 4))};
    run(rows < 32 ? 1 : threads, 64, x_groups, use_avx512 ? avx512::quantize_rows : avx2::quantize_rows, &p);
  }
  int64_t outputs = 0;
  for (int64_t i = 0; i < count; i++) outputs += parts[i].outputs;
  int64_t step = quantized ? PANEL : 4;  // a multiple of the outputs that `columns` multiplies at a time
  run(rows * inputs * outputs < 1 << 18 ? 1 : threads, step, outputs, use_avx512 ? avx512::products : avx2::products, &p);
  free(scratch);
}

void djlx_cpu_product(int threads, int type, int64_t rows, int64_t inputs, int64_t outputs, int64_t stride, int64_t width,
                      const float* x, const void* weights, const float* bias, float factor, float* out) {
  Part part = {type, outputs, stride, weights, bias};
  djlx_cpu_products(threads, rows, inputs, 1, &part, width, x, factor, out);
}

// Quantizes weights; see Conversion.
void djlx_cpu_quantize(int threads, int type, int from, int64_t outputs, int64_t inputs, const void* weights, void* quantized) {
  Conversion c = {type, from, outputs, inputs, weights, quantized};
  run(threads, 1, (outputs + PANEL - 1) / PANEL, use_avx512 ? avx512::quantize : avx2::quantize, &c);
}

// x += delta unless it is null; out = norm of x unless that is null. x: (rows, size).
void djlx_cpu_rms_norm(int64_t rows, int64_t size, float* x, const float* delta, const float* weight, float epsilon, float* out) {
  for (int64_t i = 0; delta && i < rows * size; i++) x[i] += delta[i];
  for (int64_t row = 0; out && row < rows; row++)
    (use_avx512 ? avx512::rms_norm : avx2::rms_norm)(size, x + row * size, weight, epsilon, out + row * size);
}

// gate_up: (rows, gates then values, inner); out: (rows, inner).
void djlx_cpu_gate(int64_t rows, int64_t inner, int gelu, const float* gate_up, float* out) {
  (use_avx512 ? avx512::gate : avx2::gate)(rows, inner, gelu, gate_up, out);
}

// Normalises heads unless query_norm is null, rotates, writes keys and values to the cache, and attends.
void djlx_cpu_attention(int threads, int type, int64_t rows, int64_t query_heads, int64_t kv_heads, int64_t head_size,
                        int64_t max_length, int64_t window, float scale, float cap, float epsilon, float* qkv,
                        const float* query_norm, const float* key_norm, const float* cosines, const float* sines,
                        const int* positions, const int* slots, void* keys, void* values, float* out) {
  Attention a = {type,       rows,     query_heads, kv_heads, head_size, max_length, window, scale, cap,    epsilon, qkv,
                 query_norm, key_norm, cosines,     sines,    positions, slots,      keys,   values, out};
  (use_avx512 ? avx512::rotate : avx2::rotate)(a);
  run(threads, 1, rows * kv_heads, use_avx512 ? avx512::attend : avx2::attend, &a);
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
