// SPDX-License-Identifier: Apache-2.0
// The kernels of cpu_kernels.cpp, which includes this file once for each instruction set; so it has no include guard. The includer
// defines ISA, the namespace; LANES, the floats of a vector; and TILE, the most rows of x that are multiplied at a time (quantized: 2 TILE).
namespace ISA {

typedef float Floats __attribute__((vector_size(LANES * 4), may_alias));
typedef int Ints __attribute__((vector_size(LANES * 4), may_alias));
typedef int AnyInt __attribute__((may_alias, aligned(1)));
typedef float FloatsAnywhere __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

INLINE Floats load(const float* p) { return *(const FloatsAnywhere*)p; }
#if LANES == 16
INLINE Floats broadcast(float x) { return (Floats)_mm512_set1_ps(x); }
INLINE Floats load(const Bf16* p) { return (Floats)((Ints)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)) << 16); }
INLINE Floats load(const Half* p) { return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
INLINE Floats load(const int8_t* p) { return (Floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p))); }
INLINE Floats load(const uint8_t* p) { return (Floats)_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p))); }
#else
INLINE Floats broadcast(float x) { return (Floats)_mm256_set1_ps(x); }
INLINE Floats load(const Bf16* p) { return (Floats)((Ints)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)) << 16); }
INLINE Floats load(const Half* p) { return (Floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
INLINE Floats load(const int8_t* p) { return (Floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadu_si64(p))); }
INLINE Floats load(const uint8_t* p) { return (Floats)_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadu_si64(p))); }
#endif
INLINE void store(float* p, Floats v) { *(FloatsAnywhere*)p = v; }
#if LANES == 16
INLINE void store(int8_t* p, Ints v) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8((__m512i)v)); }
#else
INLINE void store(int8_t* p, Ints v) {
  __m128i shorts = _mm_packs_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
  _mm_storeu_si64(p, _mm_packs_epi16(shorts, shorts));
}
#endif
const int VECTORS = PANEL / LANES;

// x + y z and x - y z, rounded once, whatever the compiler makes of other sums.
#if LANES == 16
INLINE Floats plus(Floats x, Floats y, Floats z) { return (Floats)_mm512_fmadd_ps((__m512)y, (__m512)z, (__m512)x); }
INLINE Floats minus(Floats x, Floats y, Floats z) { return (Floats)_mm512_fnmadd_ps((__m512)y, (__m512)z, (__m512)x); }
INLINE float sum(Floats v) { return _mm512_reduce_add_ps((__m512)v); }
INLINE int sum(Ints v) { return _mm512_reduce_add_epi32((__m512i)v); }
INLINE int maximum(Ints v) { return _mm512_reduce_max_epi32((__m512i)v); }
#else
INLINE Floats plus(Floats x, Floats y, Floats z) { return (Floats)_mm256_fmadd_ps((__m256)y, (__m256)z, (__m256)x); }
INLINE Floats minus(Floats x, Floats y, Floats z) { return (Floats)_mm256_fnmadd_ps((__m256)y, (__m256)z, (__m256)x); }
INLINE float sum(Floats v) {
  __m128 four = _mm256_castps256_ps128((__m256)v) + _mm256_extractf128_ps((__m256)v, 1);
  __m128 two = four + _mm_movehl_ps(four, four);
  return two[0] + two[1];
}
INLINE int sum(Ints v) {
  for (int i = 1; i < LANES; i++) v[0] += v[i];
  return v[0];
}
INLINE int maximum(Ints v) {
  for (int i = 1; i < LANES; i++) v[0] = v[i] > v[0] ? v[i] : v[0];
  return v[0];
}
#endif

// e^x, within 2 units in the last place: 2^n times a polynomial of the rest (Cephes' expf). x is limited to +-87.
INLINE Floats exponential(Floats x) {
  x = x > 87.0f ? broadcast(87.0f) : x < -87.0f ? broadcast(-87.0f) : x;
  Ints n = __builtin_convertvector(x * 1.44269504f + (x < 0.0f ? broadcast(-0.5f) : broadcast(0.5f)), Ints);
  Floats f = __builtin_convertvector(n, Floats);
  Floats r = x - f * 0.693359375f + f * 2.12194440e-4f;
  Floats p = broadcast(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return p * (Floats)((n + 127) << 23);
}

INLINE Floats tanh(Floats x) { return 1.0f - 2.0f / (exponential(2.0f * x) + 1.0f); }

// Loads the first n elements of a vector; zeros after them.
template <class T> INLINE Floats load_first(const T* p, int64_t n) {
  float some[LANES] = {};
  for (int64_t i = 0; i < n; i++) some[i] = widen(p[i]);
  return load(some);
}

template <class T> INLINE float dot(const float* x, const T* y, int64_t size) {
  Floats acc = {};
  int64_t i = 0;
  for (; i + LANES <= size; i += LANES) acc += load(x + i) * load(y + i);
  if (i < size) acc += load_first(x + i, size - i) * load_first(y + i, size - i);
  return sum(acc);
}

// dot4: in each lane, s plus the products of 4 adjacent bytes, w unsigned and x signed. dot4_small: the same for w below 64. dot4_int4: adds
// such products of INT4 weights to *s0 and *s1; with AVX2, adds all of them to *s0.
#if LANES == 16
typedef __m512i Bytes;
INLINE Bytes bytes(const void* p) { return _mm512_loadu_si512(p); }
INLINE Bytes nibbles(Bytes b, int shift) { return _mm512_and_si512(_mm512_srli_epi16(b, shift), _mm512_set1_epi8(15)); }
INLINE Bytes broadcast4(const int8_t* p) { return _mm512_set1_epi32(*(const AnyInt*)p); }
INLINE Ints nearest(Floats x) { return (Ints)_mm512_cvtps_epi32((__m512)x); }
INLINE Ints dot4(Ints s, Bytes w, Bytes x) { return (Ints)_mm512_dpbusd_epi32((__m512i)s, w, x); }
INLINE Ints dot4_small(Ints s, Bytes w, Bytes x) { return dot4(s, w, x); }
INLINE void dot4_int4(Ints* s0, Ints* s1, Bytes w0, Bytes w1, Bytes x0, Bytes x1) {
  *s0 = dot4(*s0, w0, x0);
  *s1 = dot4(*s1, w1, x1);
}
#else
typedef __m256i Bytes;
INLINE Bytes bytes(const void* p) { return _mm256_loadu_si256((const __m256i*)p); }
INLINE Bytes nibbles(Bytes b, int shift) { return _mm256_and_si256(_mm256_srli_epi16(b, shift), _mm256_set1_epi8(15)); }
INLINE Bytes broadcast4(const int8_t* p) { return _mm256_set1_epi32(*(const AnyInt*)p); }
INLINE Ints nearest(Floats x) { return (Ints)_mm256_cvtps_epi32((__m256)x); }
INLINE Ints dot4(Ints s, Bytes w, Bytes x) {  // the even and the odd bytes, in 16 bits
  Bytes even = _mm256_madd_epi16(_mm256_and_si256(w, _mm256_set1_epi16(255)), _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8));
  Bytes odd = _mm256_madd_epi16(_mm256_srli_epi16(w, 8), _mm256_srai_epi16(x, 8));
  return s + (Ints)even + (Ints)odd;
}
INLINE Ints dot4_small(Ints s, Bytes w, Bytes x) { return s + (Ints)_mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1)); }
INLINE void dot4_int4(Ints* s0, Ints*, Bytes w0, Bytes w1, Bytes x0, Bytes x1) {
  __m256i fours = _mm256_add_epi16(_mm256_maddubs_epi16(w0, x0), _mm256_maddubs_epi16(w1, x1));  // at most 4 * 15 * 127: exact in 16 bits
  *s0 += (Ints)_mm256_madd_epi16(fours, _mm256_set1_epi16(1));
}
#endif

// The element of a group with the largest magnitude; NaN if the group has one, so that its scale, and all sums with it, are NaN.
INLINE float largest(const float* p) {
  Floats high = {}, low = {};
  Ints magnitudes = {};  // of the bits, where NaN are above infinity
  for (int i = 0; i < GROUP; i += LANES) {
    Floats x = load(p + i);
    Ints magnitude = (Ints)x & 0x7fffffff;
    high = x > high ? x : high;
    low = x < low ? x : low;
    magnitudes = magnitude > magnitudes ? magnitude : magnitudes;
  }
  for (int i = 1; i < LANES; i++) {
    high[0] = high[i] > high[0] ? high[i] : high[0];
    low[0] = low[i] < low[0] ? low[i] : low[0];
    magnitudes[0] = magnitudes[i] > magnitudes[0] ? magnitudes[i] : magnitudes[0];
  }
  return magnitudes[0] > 0x7f800000 ? NAN : high[0] < -low[0] ? low[0] : high[0];
}

// Copies group g of a row; zeros after the row's end.
template <class T> INLINE void copy_group(const T* row, int64_t inputs, int64_t g, float* out) {
  for (int64_t i = 0, k = g * GROUP; i < GROUP; i += LANES, k += LANES)
    store(out + i, k + LANES <= inputs ? load(row + k) : k < inputs ? load_first(row + k, inputs - k) : Floats{});
}

// Rounds factor times `size` numbers to bytes of at most `limit`. NaN, infinity and magnitudes from 128 on become 0. Returns the sum of the bytes.
INLINE int round8(const float* p, int size, float factor, int limit, int8_t* out) {
  Ints total = {};
  for (int i = 0; i < size; i += LANES) {
    Floats x = load(p + i) * factor;
    Ints q = nearest((Floats)((Ints)x & 0x7fffffff) < 128.0f ? x : broadcast(0));
    q = q > limit ? Ints{} + limit : q;
    store(out + i, q);
    total += q;
  }
  return sum(total);
}

// Quantizes groups of rows of x.
void quantize_rows(const void* product, int64_t from, int64_t to) {
  const Product& p = *(const Product*)product;
  const int64_t count = groups(p.inputs), apart = p.quantized.tile_rows;
  for (int64_t i = from; i < to; i++) {
    float x[GROUP];
    copy_group(p.x + i / count * p.inputs, p.inputs, i % count, x);
    const int64_t row = i / count, place = p.quantized.place(row, count, i % count), in_tile = row % apart;
    int8_t* numbers = p.quantized.numbers + place * GROUP + in_tile * GROUP / 2;  // the second half is `apart` halves further on
    float *scales = p.quantized.scales + place * SCALES + in_tile, *totals = p.quantized.totals + place * SUMS + in_tile,
          *sums = p.quantized.sums + place * SUMS + in_tile;
    if (p.part.type <= INT4) {
      float most = fabsf(largest(x));
      int total = 0;
      for (int half = 0; half < 2; half++) total += round8(x + half * GROUP / 2, GROUP / 2, 127 / most, 127, numbers + half * apart * GROUP / 2);
      totals[0] = total;
      scales[0] = most / 127;
      continue;
    }
    for (int j = 0; j < GROUP; j += 32) {
      Ints magnitudes = {};  // of the bits, where NaN are above infinity
      for (int k = j; k < j + 32; k += LANES) {
        Ints magnitude = (Ints)load(x + k) & 0x7fffffff;
        magnitudes = magnitude > magnitudes ? magnitude : magnitudes;
      }
      Bits most;
      most.bits = maximum(magnitudes);
      const float scale = most.number / 127, factor = 127 / most.number;
      int8_t* to = numbers + j / 64 * apart * 64 + j % 64;
      float of16[2];
      for (int k = 0; k < 2; k++) of16[k] = round8(x + j + k * 16, 16, factor, 127, to + k * 16);
      scales[j / 32 * apart] = scale;
      for (int k = 0; k < 2; k++) totals[(j / 16 + k) * apart] = of16[k], sums[(j / 16 + k) * apart] = scale * of16[k];
      totals[sum_index(32, j / 32) * apart] = of16[0] + of16[1];
      sums[sum_index(32, j / 32) * apart] = scale * (of16[0] + of16[1]);
    }
  }
}

// Quantizes group g of an output of a panel; w is null after the last output.
template <class T> void quantize_group(const Conversion& c, const T* w, int64_t g, int64_t output, char* out) {
  float x[GROUP];
  int8_t q[GROUP];
  copy_group(w, w ? c.inputs : 0, g, x);
  float most = largest(x), scale = c.type == INT8 ? fabsf(most) / 127 : most / -8;  // the largest of 4 bits is -8
  round8(x, GROUP, 1 / scale, c.type == INT8 ? 127 : 7, q);
  ((float*)out)[output] = scale;
  for (int i = 0; i < GROUP / 2; i += 4) {  // 4 bytes at a time; flipping a sign bit adds 128 or 8
    AnyInt* to = (AnyInt*)(out + PANEL * (4 + i * (c.type == INT8 ? 2 : 1))) + output;
    uint32_t first = *(AnyInt*)(q + i), second = *(AnyInt*)(q + GROUP / 2 + i);
    if (c.type == INT8) to[0] = first ^ 0x80808080, to[PANEL] = second ^ 0x80808080;
    else to[0] = ((first & 0x0f0f0f0f) | (second & 0x0f0f0f0f) << 4) ^ 0x88888888;
  }
}

template <class T> void quantize_panel(const Conversion& c, int64_t panel) {
  char* out = (char*)c.quantized + panel * groups(c.inputs) * group_bytes(c.type);
  for (int64_t i = 0; i < PANEL; i++) {
    int64_t output = panel * PANEL + i;
    const T* w = output < c.outputs ? (const T*)c.weights + output * c.inputs : 0;
    for (int64_t g = 0; g < groups(c.inputs); g++) quantize_group(c, w, g, i, out + g * group_bytes(c.type));
  }
}

void quantize(const void* conversion, int64_t from, int64_t to) {
  const Conversion& c = *(const Conversion*)conversion;
  for (int64_t i = from; i < to; i++)
    c.from == FLOAT32   ? quantize_panel<float>(c, i)
    : c.from == FLOAT16 ? quantize_panel<Half>(c, i)
                        : quantize_panel<Bf16>(c, i);
}

// Multiplies N rows of x by COLUMNS rows of weights. A sum has the same order in every tile, so a row's results do not depend on the
// number of rows.
template <class T, int COLUMNS, int N> INLINE void tile_float(const Product& p, int64_t row, int64_t column) {
  Floats acc[N][COLUMNS][2] = {};
  const float* x = p.x + row * p.inputs;
  const T* w = (const T*)p.part.weights + column * p.part.stride;
  int64_t k = 0;
  for (; k + 2 * LANES <= p.inputs; k += 2 * LANES)
    for (int c = 0; c < COLUMNS; c++) {
      const T* at = w + c * p.part.stride + k;
      Floats first = load(at), second = load(at + LANES);
      const char* next = (const char*)(w + COLUMNS * k + c * 2 * LANES) + (N > 1 || sizeof(T) == 2 ? FAR_AHEAD : near_ahead);
      if (row == 0) __builtin_prefetch(next, 0, 2);
      if (row == 0 && sizeof(T) * LANES == 64) __builtin_prefetch(next + 64, 0, 2);
      for (int r = 0; r < N; r++) {
        acc[r][c][0] += load(x + r * p.inputs + k) * first;
        acc[r][c][1] += load(x + r * p.inputs + k + LANES) * second;
      }
    }
  for (; k < p.inputs; k += LANES) {
    int64_t n = p.inputs - k < LANES ? p.inputs - k : LANES;
    for (int c = 0; c < COLUMNS; c++) {
      Floats rest = load_first(w + c * p.part.stride + k, n);
#pragma GCC unroll 8
      for (int r = 0; r < N; r++) acc[r][c][0] += load_first(x + r * p.inputs + k, n) * rest;
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < N; r++)
    for (int c = 0; c < COLUMNS; c++) p.put(row + r, column + c, sum(acc[r][c][0] + acc[r][c][1]));
}

// Loads the scale of a set for vector v of a group's outputs, and the minimum or addend if the type has them.
template <int TYPE> INLINE void load_scales(const char* w, int set, int v, Floats* scale, Floats* minimum) {
  constexpr Blocks of = blocks(TYPE);
  constexpr int sets = GROUP / of.set;
  *minimum = Floats{};
  if (sets == 1) {
    *scale = load((const float*)w + v * LANES);
  } else if (of.is_k) {
    const int8_t* scales = (const int8_t*)w + PANEL * (4 + set) + v * LANES;
    *scale = load(scales);
    if (of.has_minimums) *minimum = load((const uint8_t*)scales + PANEL * sets);
  } else {
    const Half* scales = (const Half*)w + PANEL * set + v * LANES;
    *scale = load(scales);
    if (of.has_minimums) *minimum = load(scales + PANEL * sets);
    if (TYPE == INT4_ZEROS) *minimum *= -*scale;
  }
}

// Loads what a group's sums are multiplied by; minimums of types other than K are addends.
template <int TYPE> INLINE void load_super_scales(const char* w, int v, Floats* scale, Floats* minimum) {
  *scale = blocks(TYPE).is_k ? load((const Half*)w + v * LANES) : broadcast(1);
  *minimum = blocks(TYPE).is_k ? load((const Half*)w + PANEL + v * LANES) : broadcast(-1);
}

// Adds the integer sums of a set, which are exact, to the group's sums of N rows. w: the group.
template <int TYPE, int N>
INLINE void add_set(const Product& p, int64_t row, int64_t g, const char* w, int set, const Ints (*s)[VECTORS], Floats (*group)[VECTORS],
                    Floats (*minimums)[VECTORS]) {
  constexpr Blocks of = blocks(TYPE);
  for (int v = 0; v < VECTORS; v++) {
    Floats scale, minimum;
    load_scales<TYPE>(w, set, v, &scale, &minimum);
    for (int r = 0; r < N; r++) {
      int64_t at = (row + r) * groups(p.inputs) + g, sum = at * SUMS + sum_index(of.set, set);
      Floats dot = __builtin_convertvector(s[r][v], Floats);
      if (of.zero) dot = minus(dot, broadcast(of.zero), broadcast(p.quantized.totals[sum]));  // exact
      group[r][v] = plus(group[r][v], dot, p.quantized.scales[at * SCALES + set * of.set / 32] * scale);
      if (of.has_minimums) minimums[r][v] = plus(minimums[r][v], minimum, broadcast(p.quantized.sums[sum]));
    }
  }
}

// Adds the sums of a group to those of N rows.
template <int TYPE, int N>
INLINE void add_group(const char* w, const Floats (*group)[VECTORS], const Floats (*minimums)[VECTORS], Floats (*acc)[VECTORS]) {
  for (int v = 0; v < VECTORS; v++) {
    Floats scale, minimum;
    load_super_scales<TYPE>(w, v, &scale, &minimum);
    for (int r = 0; r < N; r++) {
      acc[r][v] = plus(acc[r][v], group[r][v], scale);
      if (blocks(TYPE).has_minimums) acc[r][v] = minus(acc[r][v], minimums[r][v], minimum);
    }
  }
}

// Writes a panel of N rows.
template <int N> INLINE void put_panel(const Product& p, int64_t row, int64_t column, const Floats (*acc)[VECTORS]) {
  for (int r = 0; r < N; r++)
    for (int v = 0; v < VECTORS; v++, column += LANES) {
      float* to = p.out + (row + r) * p.width + column;
      Floats value = acc[r][v];
      if (column + LANES > p.part.outputs) {
        for (int i = 0; column + i < p.part.outputs; i++) p.put(row + r, column + i, value[i]);
      } else {
        if (p.part.bias) value += load(p.part.bias + column);
        store(to, p.factor == 0 ? value : load(to) + p.factor * value);
      }
      if (v == VECTORS - 1) column -= PANEL;
    }
}

// Multiplies N rows of x by a panel of quantized weights; groups are added up in the order of the inputs.
template <int TYPE, int N> INLINE void tile_quantized(const Product& p, int64_t row, int64_t column) {
  constexpr Blocks of = blocks(TYPE);
  constexpr int sets = GROUP / of.set, length = sets == 1 ? GROUP / 2 : of.set;
  int64_t count = groups(p.inputs);
  const char* w = (const char*)p.part.weights + column / PANEL * count * group_bytes(TYPE);
  Floats acc[N][VECTORS] = {};
  for (int64_t g = 0; g < count; g++, w += group_bytes(TYPE)) {
    Floats group[N][VECTORS] = {}, minimums[N][VECTORS] = {};
    for (int first = 0; first < GROUP / 2; first += length) {
      Ints s[2][N][VECTORS] = {};  // of the first and the second half of the group's inputs
      for (int b = first; b < first + length; b += 4)
        for (int v = 0; v < VECTORS; v++) {
          const char* block = w + of.header() + PANEL * b * (of.bits / 4) + v * LANES * 4;
          Bytes w0 = bytes(block), w1 = of.bits == 8 ? bytes(block + 4 * PANEL) : nibbles(w0, 4);
          if (of.bits == 4) w0 = nibbles(w0, 0);
          if (row == 0 && v == 0) __builtin_prefetch(block + near_ahead, 0, 2);  // the line of all vectors
          if (row == 0 && v == 0 && of.bits == 8) __builtin_prefetch(block + 4 * PANEL + near_ahead, 0, 2);
          if (row == 0 && v == 0 && PANEL * b < of.header()) __builtin_prefetch(w + PANEL * b + near_ahead, 0, 2);
          for (int r = 0; r < N; r++) {
            const int8_t* x = p.quantized.numbers + ((row + r) * count + g) * GROUP + b;
            Bytes x0 = broadcast4(x), x1 = broadcast4(x + GROUP / 2);
            if (TYPE == INT4) {
              dot4_int4(&s[0][r][v], &s[1][r][v], w0, w1, x0, x1);
            } else {
              s[0][r][v] = of.zero == 128 ? dot4(s[0][r][v], w0, x0) : dot4_small(s[0][r][v], w0, x0);
              s[1][r][v] = of.zero == 128 ? dot4(s[1][r][v], w1, x1) : dot4_small(s[1][r][v], w1, x1);
            }
          }
        }
      if (sets == 1)
        for (int r = 0; r < N; r++)
          for (int v = 0; v < VECTORS; v++) s[0][r][v] += s[1][r][v];
      add_set<TYPE, N>(p, row, g, w, first / of.set, s[0], group, minimums);
      if (sets > 1) add_set<TYPE, N>(p, row, g, w, (first + GROUP / 2) / of.set, s[1], group, minimums);
    }
    add_group<TYPE, N>(w, group, minimums, acc);
  }
  put_panel<N>(p, row, column, acc);
}

#if LANES == 16
#include "cpu_matrices.h"
#endif

template <int TYPE, int COLUMNS, int N> INLINE void tile(const Product& p, int64_t row, int64_t column) {
  if (is_quantized(TYPE)) tile_quantized<TYPE, N>(p, row, column);
  else if (TYPE == FLOAT32) tile_float<float, COLUMNS, N>(p, row, column);
  else if (TYPE == FLOAT16) tile_float<Half, COLUMNS, N>(p, row, column);
  else tile_float<Bf16, COLUMNS, N>(p, row, column);
}

// Multiplies rows of x, N at a time, then the rest of them.
template <int TYPE, int COLUMNS, int N> INLINE void tiles(const Product& p, int64_t row, int64_t to, int64_t column) {
  for (; row + N <= to; row += N) tile<TYPE, COLUMNS, N>(p, row, column);
  if constexpr (N > 1) tiles<TYPE, COLUMNS, N / 2>(p, row, to, column);
}

// Weights are read the fastest in the order of their addresses: one output at a time, or two next to each other if one row of x has 16-bit
// weights. From 4 rows of x on, more outputs at a time load x less often.
template <int TYPE, int COLUMNS> int64_t columns(const Product& p, int64_t from, int64_t to) {
  for (; from + COLUMNS <= to; from += COLUMNS) tiles<TYPE, COLUMNS, TILE>(p, 0, p.rows, from);
  return from;
}

template <int TYPE> void multiply_float(const Product& p, int64_t from, int64_t to) {
  if (p.rows >= 4) from = columns<TYPE, LANES / 4>(p, from, to);
  else if (p.rows == 1 && TYPE != FLOAT32) from = columns<TYPE, 2>(p, from, to);
  columns<TYPE, 1>(p, from, to);
}

// `from` is the first output of a panel.
template <int TYPE> void multiply_quantized(const Product& p, int64_t from, int64_t to) {
#if LANES == 16
  if (p.quantized.tile_rows > 1) return multiply_matrices<TYPE>(p, from, to);
#endif
  for (int64_t column = from; column < to; column += PANEL) tiles<TYPE, PANEL, (TYPE > INT4 ? TILE : 2 * TILE)>(p, 0, p.rows, column);
}

void multiply_part(const Product& p, int64_t from, int64_t to) {
  switch (p.part.type) {
    case INT8: return multiply_quantized<INT8>(p, from, to);
    case INT4: return multiply_quantized<INT4>(p, from, to);
    case FLOAT32: return multiply_float<FLOAT32>(p, from, to);
    case FLOAT16: return multiply_float<FLOAT16>(p, from, to);
    case INT4_ZEROS: return multiply_quantized<INT4_ZEROS>(p, from, to);
    case Q4_0: return multiply_quantized<Q4_0>(p, from, to);
    case Q4_1: return multiply_quantized<Q4_1>(p, from, to);
    case Q5_0: return multiply_quantized<Q5_0>(p, from, to);
    case Q5_1: return multiply_quantized<Q5_1>(p, from, to);
    case Q8_0: return multiply_quantized<Q8_0>(p, from, to);
    case Q2_K: return multiply_quantized<Q2_K>(p, from, to);
    case Q3_K: return multiply_quantized<Q3_K>(p, from, to);
    case Q4_K: return multiply_quantized<Q4_K>(p, from, to);
    case Q5_K: return multiply_quantized<Q5_K>(p, from, to);
    case Q6_K: return multiply_quantized<Q6_K>(p, from, to);
    default: return multiply_float<BFLOAT16>(p, from, to);
  }
}

// Computes outputs `from` to `to`, counted over all parts; in the loop, from the first output of p.part.
void products(const void* product, int64_t from, int64_t to) {
  Product p = *(const Product*)product;
  for (; to > 0; from -= p.part.outputs, to -= p.part.outputs, p.out += p.part.outputs, p.parts++) {
    p.part = *p.parts;
    if (from < p.part.outputs) multiply_part(p, from > 0 ? from : 0, to < p.part.outputs ? to : p.part.outputs);
  }
}

void rms_norm(int64_t size, const float* x, const float* weight, float epsilon, float* out) {
  float factor = 1 / __builtin_sqrtf(dot(x, x, size) / size + epsilon);
  for (int64_t i = 0; i < size; i++) out[i] = x[i] * factor * weight[i];
}

void rms_norms(const void* norm, int64_t from, int64_t to) {
  const Norm& n = *(const Norm*)norm;
  for (int64_t row = from; row < to; row++) {
    float* x = n.x + row * n.size;
    for (int64_t i = 0; n.delta && i < n.size; i++) x[i] += n.delta[row * n.size + i];
    if (n.out) rms_norm(n.size, x, n.weight, n.epsilon, n.out + row * n.size);
  }
}

INLINE Floats gelu_tanh(Floats x) { return 0.5f * x * (1.0f + tanh(0.7978845608f * x * (1.0f + 0.044715f * x * x))); }
INLINE Floats silu(Floats x) { return x / (1.0f + exponential(-x)); }

void gate(const void* arguments, int64_t from, int64_t to) {
  const Gate& a = *(const Gate*)arguments;
  for (int64_t row = from; row < to; row++) {
    const float *gates = a.gate_up + row * 2 * a.inner, *ups = gates + a.inner;
    float* out = a.out + row * a.inner;
    for (int64_t i = 0; i < a.inner; i += LANES) {
      bool whole = i + LANES <= a.inner;
      Floats g = whole ? load(gates + i) : load_first(gates + i, a.inner - i);
      Floats up = whole ? load(ups + i) : load_first(ups + i, a.inner - i);
      Floats y = (a.gelu ? gelu_tanh(g) : silu(g)) * up;
      if (whole) store(out + i, y);
      for (int j = 0; !whole && i + j < a.inner; j++) out[i + j] = y[j];
    }
  }
}

void argmax(const void* arguments, int64_t from, int64_t to) {
  const ArgMax& a = *(const ArgMax*)arguments;
  const int block = 4096;  // elements whose exponentials are added in float32; their sums are added in float64
  for (int64_t row = from; row < to; row++) {
    const float* x = a.x + row * a.size;
    int64_t whole = a.size / LANES * LANES;  // the elements in whole vectors
    Floats maxima = broadcast(-INFINITY);
    for (int64_t i = 0; i < whole; i += LANES) maxima = load(x + i) > maxima ? load(x + i) : maxima;
    float maximum = -INFINITY;
    for (int i = 0; i < LANES; i++) maximum = maxima[i] > maximum ? maxima[i] : maximum;
    for (int64_t i = whole; i < a.size; i++) maximum = x[i] > maximum ? x[i] : maximum;
    int64_t first = 0;
    while (first + 1 < a.size && x[first] != maximum) first++;
    double total = 0;
    for (int64_t i = 0; i < whole; i += block) {
      Floats sums = {};
      for (int64_t j = i; j < whole && j < i + block; j += LANES) sums += exponential(load(x + j) - maximum);
      total += sum(sums);
    }
    for (int64_t i = whole; i < a.size; i++) total += exponential(broadcast(x[i] - maximum))[0];
    a.indices[row] = first;
    a.maxima[row] = maximum;
    a.sums[row] = total;
  }
}

#include "cpu_attention.h"

}  // namespace ISA
