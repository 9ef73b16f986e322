// SPDX-License-Identifier: Apache-2.0
// The kernels of cpu_kernels.cpp, which includes this file once for each instruction set; so it has no include guard. Before, it
// defines ISA, the namespace; LANES, the floats of a vector; and TILE, the most rows of x that are multiplied at a time.
namespace ISA {

typedef float Floats __attribute__((vector_size(LANES * 4), may_alias));
typedef int Ints __attribute__((vector_size(LANES * 4), may_alias));
typedef float FloatsAnywhere __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

INLINE Floats load(const float* p) { return *(const FloatsAnywhere*)p; }
#if LANES == 16
INLINE Floats load(const Bf16* p) { return (Floats)((Ints)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)) << 16); }
INLINE Floats load(const Half* p) { return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
#else
INLINE Floats load(const Bf16* p) { return (Floats)((Ints)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)) << 16); }
INLINE Floats load(const Half* p) { return (Floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
#endif
INLINE void store(float* p, Floats v) { *(FloatsAnywhere*)p = v; }
INLINE Floats all(float x) { return Floats{} + x; }

INLINE float sum(Floats v) {
  float total = 0;
  for (int i = 0; i < LANES; i++) total += v[i];
  return total;
}

// e^x, within 2 units in the last place: 2^n times a polynomial of the rest (Cephes' expf). x is limited to +-87.
INLINE Floats exponential(Floats x) {
  x = x > 87.0f ? all(87.0f) : x < -87.0f ? all(-87.0f) : x;
  Ints n = __builtin_convertvector(x * 1.44269504f + (x < 0.0f ? all(-0.5f) : all(0.5f)), Ints);
  Floats f = __builtin_convertvector(n, Floats);
  Floats r = x - f * 0.693359375f + f * 2.12194440e-4f;
  Floats p = all(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return p * (Floats)((n + 127) << 23);
}

INLINE Floats tanh(Floats x) { return 1.0f - 2.0f / (exponential(2.0f * x) + 1.0f); }

// The first n elements of a vector; zeros after them.
template <class T> INLINE Floats head(const T* p, int64_t n) {
  float some[LANES] = {};
  for (int64_t i = 0; i < n; i++) some[i] = widen(p[i]);
  return load(some);
}

template <class T> INLINE float dot(const float* x, const T* y, int64_t size) {
  Floats acc = {};
  int64_t i = 0;
  for (; i + LANES <= size; i += LANES) acc += load(x + i) * load(y + i);
  if (i < size) acc += head(x + i, size - i) * head(y + i, size - i);
  return sum(acc);
}

// s += the products of 4 adjacent bytes, unsigned and signed, summed up in each lane.
#if LANES == 16
typedef __m512i Bytes;
INLINE Bytes bytes(const void* p) { return _mm512_loadu_si512(p); }
INLINE Bytes halves(Bytes b, int shift) { return _mm512_and_si512(_mm512_srli_epi16(b, shift), _mm512_set1_epi8(15)); }
INLINE Ints dot4(Ints s, Bytes w, Bytes x) { return (Ints)_mm512_dpbusd_epi32((__m512i)s, w, x); }
#else
typedef __m256i Bytes;
INLINE Bytes bytes(const void* p) { return _mm256_loadu_si256((const __m256i*)p); }
INLINE Bytes halves(Bytes b, int shift) { return _mm256_and_si256(_mm256_srli_epi16(b, shift), _mm256_set1_epi8(15)); }
INLINE Ints dot4(Ints s, Bytes w, Bytes x) {  // the even and the odd bytes, in 16 bits
  Bytes even = _mm256_madd_epi16(_mm256_and_si256(w, _mm256_set1_epi16(255)), _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8));
  Bytes odd = _mm256_madd_epi16(_mm256_srli_epi16(w, 8), _mm256_srai_epi16(x, 8));
  return s + (Ints)even + (Ints)odd;
}
#endif

void quantize_rows(const Product& p) {
  int64_t count = groups(p.inputs);
  for (int64_t i = 0; i < p.rows * count; i++) {
    int64_t first = i % count * GROUP, size = p.inputs - first < GROUP ? p.inputs - first : GROUP;
    const float* x = p.x + i / count * p.inputs + first;
    float most = fabsf(largest(x, size)), inverse = 127 / most;
    int total = 0;
    for (int64_t k = 0; k < GROUP; k++) {
      int q = k < size ? round8(x[k] * inverse) : 0;
      p.quantized.numbers[i * GROUP + k] = q;
      total += q;
    }
    p.quantized.scales[i] = most / 127;
    p.quantized.offsets[i] = (p.type == INT8 ? -128 : -8) * total;
  }
}

// As tile, for quantized weights and rows: sums of a group are exact.
template <int TYPE, int COLUMNS, int N> INLINE void tile_quantized(const Product& p, int64_t row, int64_t column) {
  const int size = LANES * 4, vectors = GROUP / size;
  int64_t count = groups(p.inputs), stride = row_bytes(TYPE, p.inputs);
  const char* w = (const char*)p.weights + column * stride;
  const float* scales = (const float*)((const char*)p.weights + p.outputs * stride);
  Floats acc[N][COLUMNS] = {};
  for (int64_t g = 0; g < count; g++) {
    for (int c = 0; c < COLUMNS; c++) {
      Bytes v[vectors];
      const char* group = w + c * stride + g * (TYPE == INT8 ? GROUP : GROUP / 2);
      for (int i = 0; i < vectors; i++) {
        if (TYPE == INT8) v[i] = bytes(group + i * size);
        else v[i] = halves(bytes(group + i % (vectors / 2) * size), i < vectors / 2 ? 0 : 4);
        if (row == 0) __builtin_prefetch(group + COLUMNS * stride + i * size, 0, 2);
      }
      for (int r = 0; r < N; r++) {
        int64_t at = (row + r) * count + g;
        Ints s = {p.quantized.offsets[at]};
        for (int i = 0; i < vectors; i++) s = dot4(s, v[i], bytes(p.quantized.numbers + at * GROUP + i * size));
        float scale = p.quantized.scales[at] * (TYPE == INT8 ? 1 : scales[(column + c) * count + g]);
        acc[r][c] += __builtin_convertvector(s, Floats) * scale;
      }
    }
  }
  for (int r = 0; r < N; r++)
    for (int c = 0; c < COLUMNS; c++) p.put(row + r, column + c, sum(acc[r][c]) * (TYPE == INT8 ? scales[column + c] : 1));
}

template <class T> void quantize_output(const Conversion& c, int64_t output) {
  const T* w = (const T*)c.weights + output * c.inputs;
  int64_t count = groups(c.inputs), stride = row_bytes(c.type, c.inputs), step = c.type == INT8 ? count * GROUP : GROUP;
  uint8_t* out = (uint8_t*)c.quantized + output * stride;
  float* scales = (float*)((char*)c.quantized + c.outputs * stride) + output * (c.type == INT8 ? 1 : count);
  for (int64_t first = 0; first < count * GROUP; first += step) {
    float most = largest(w + first, c.inputs - first < step ? c.inputs - first : step);
    float scale = c.type == INT8 ? fabsf(most) / 127 : most / -8;  // the largest of a group is -8, which has no opposite
    scales[first / step] = scale;
    for (int64_t k = first; k < first + step; k++) {
      int q = k < c.inputs ? round8(widen(w[k]) / scale) : 0;
      if (c.type == INT8) {
        out[k] = q + 128;
      } else {
        int64_t i = k % GROUP, at = k / GROUP * (GROUP / 2) + i % (GROUP / 2);
        q = (q > 7 ? 7 : q) + 8;
        out[at] = i < GROUP / 2 ? q : out[at] | q << 4;
      }
    }
  }
}

void quantize(const void* conversion, int64_t from, int64_t to) {
  const Conversion& c = *(const Conversion*)conversion;
  for (int64_t i = from; i < to; i++)
    c.from == FLOAT32   ? quantize_output<float>(c, i)
    : c.from == FLOAT16 ? quantize_output<Half>(c, i)
                        : quantize_output<Bf16>(c, i);
}

// Multiplies N rows of x by COLUMNS rows of weights. A sum has the same order in every tile, so a row's results do not depend on the
// number of rows. Prefetches the next tile: the hardware's prefetchers stop at the end of a page.
template <class T, int COLUMNS, int N> INLINE void tile(const Product& p, int64_t row, int64_t column) {
  Floats acc[N][COLUMNS] = {};
  const float* x = p.x + row * p.inputs;
  const T* w = (const T*)p.weights + column * p.stride;
  int64_t k = 0;
  for (; k + LANES <= p.inputs; k += LANES) {
    Floats v[COLUMNS];
    for (int c = 0; c < COLUMNS; c++) {
      v[c] = load(w + c * p.stride + k);
      if (row == 0) __builtin_prefetch(w + (c + COLUMNS) * p.stride + k, 0, 2);
    }
    for (int r = 0; r < N; r++) {
      Floats u = load(x + r * p.inputs + k);
      for (int c = 0; c < COLUMNS; c++) acc[r][c] += u * v[c];
    }
  }
  for (int r = 0; r < N; r++)
    for (int c = 0; c < COLUMNS; c++) {
      if (k < p.inputs) acc[r][c] += head(x + r * p.inputs + k, p.inputs - k) * head(w + c * p.stride + k, p.inputs - k);
      p.put(row + r, column + c, sum(acc[r][c]));
    }
}

template <int TYPE, int COLUMNS, int N> INLINE void tile(const Product& p, int64_t row, int64_t column) {
  if (TYPE == INT8 || TYPE == INT4) tile_quantized<TYPE, COLUMNS, N>(p, row, column);
  else if (TYPE == FLOAT32) tile<float, COLUMNS, N>(p, row, column);
  else if (TYPE == FLOAT16) tile<Half, COLUMNS, N>(p, row, column);
  else tile<Bf16, COLUMNS, N>(p, row, column);
}

template <int TYPE, int COLUMNS> INLINE void tiles(const Product& p, int64_t column) {
  int64_t row = 0;
  for (; row + TILE <= p.rows; row += TILE) tile<TYPE, COLUMNS, TILE>(p, row, column);
  for (; row < p.rows; row++) tile<TYPE, COLUMNS, 1>(p, row, column);
}

template <int TYPE> void multiply(const Product& p, int64_t from, int64_t to) {
  int64_t column = from;
  for (; column + 4 <= to; column += 4) tiles<TYPE, 4>(p, column);
  for (; column < to; column++) tiles<TYPE, 1>(p, column);
}

void products(const void* product, int64_t from, int64_t to) {
  const Product& p = *(const Product*)product;
  switch (p.type) {
    case INT8: return multiply<INT8>(p, from, to);
    case INT4: return multiply<INT4>(p, from, to);
    case FLOAT32: return multiply<FLOAT32>(p, from, to);
    case FLOAT16: return multiply<FLOAT16>(p, from, to);
    default: return multiply<BFLOAT16>(p, from, to);
  }
}

void rms_norm(int64_t size, const float* x, const float* weight, float epsilon, float* out) {
  float factor = 1 / __builtin_sqrtf(dot(x, x, size) / size + epsilon);
  for (int64_t i = 0; i < size; i++) out[i] = x[i] * factor * weight[i];
}

void gate(int64_t rows, int64_t inner, bool gelu, const float* gate_up, float* out) {
  for (int64_t row = 0; row < rows; row++, gate_up += 2 * inner, out += inner)
    for (int64_t i = 0; i < inner; i += LANES) {
      bool whole = i + LANES <= inner;
      Floats g = whole ? load(gate_up + i) : head(gate_up + i, inner - i);
      Floats up = whole ? load(gate_up + inner + i) : head(gate_up + inner + i, inner - i);
      Floats y = gelu ? 0.5f * g * (1.0f + tanh(0.7978845608f * g * (1.0f + 0.044715f * g * g))) : g / (1.0f + exponential(-g));
      y *= up;
      if (whole) store(out + i, y);
      for (int j = 0; !whole && i + j < inner; j++) out[i + j] = y[j];
    }
}

// Normalises and rotates the heads of a token's queries and keys in place, and writes its key and value to the cache.
template <class T> void place(const Attention& a, int64_t row) {
  float* heads = a.qkv + row * (a.query_heads + 2 * a.kv_heads) * a.head_size;
  int64_t half = a.head_size / 2, position = a.positions[row];
  const float *cosines = a.cosines + position * half, *sines = a.sines + position * half;
  for (int64_t h = 0; h < a.query_heads + a.kv_heads; h++) {
    float* x = heads + h * a.head_size;
    if (a.query_norm) rms_norm(a.head_size, x, h < a.query_heads ? a.query_norm : a.key_norm, a.epsilon, x);
    for (int64_t i = 0; i < half; i++) {
      float first = x[i], second = x[half + i];
      x[i] = first * cosines[i] - second * sines[i];
      x[half + i] = second * cosines[i] + first * sines[i];
    }
  }
  int64_t width = a.kv_heads * a.head_size, slot = a.slots[row * a.max_length + position];
  const float* key = heads + a.query_heads * a.head_size;
  for (int64_t i = 0; i < width; i++) {
    narrow(key[i], (T*)a.keys + slot * width + i);
    narrow(key[width + i], (T*)a.values + slot * width + i);
  }
}

// Attention of the query heads of one token that share a KV head, by online softmax over blocks of tokens.
template <class T> void attend_head(const Attention& a, int64_t row, int64_t kv_head) {
  const int block = 64;
  int64_t group = a.query_heads / a.kv_heads, size = a.head_size, position = a.positions[row];
  const float* queries = a.qkv + (row * (a.query_heads + 2 * a.kv_heads) + kv_head * group) * size;
  float* out = a.out + (row * a.query_heads + kv_head * group) * size;
  const int* slots = a.slots + row * a.max_length;
  int64_t first = a.window && position >= a.window ? position - a.window + 1 : 0;
  float largest[group], total[group];
  for (int64_t g = 0; g < group; g++) largest[g] = -INFINITY, total[g] = 0;
  for (int64_t i = 0; i < group * size; i++) out[i] = 0;
  for (; first <= position; first += block) {
    int count = position + 1 - first < block ? position + 1 - first : block;
    int64_t offsets[block];
    for (int t = 0; t < count; t++) offsets[t] = (slots[first + t] * a.kv_heads + kv_head) * size;
    for (int64_t g = 0; g < group; g++) {
      float p[block];
      for (int t = 0; t < block; t++) p[t] = t < count ? a.scale * dot(queries + g * size, (const T*)a.keys + offsets[t], size) : -INFINITY;
      if (a.cap > 0)
        for (int t = 0; t < count; t += LANES) store(p + t, a.cap * tanh(load(p + t) / a.cap));
      for (int t = count; t < block; t++) p[t] = -INFINITY;
      float before = largest[g];
      for (int t = 0; t < count; t++) largest[g] = p[t] > largest[g] ? p[t] : largest[g];
      Floats sums = {};
      for (int t = 0; t < count; t += LANES) {
        Floats s = load(p + t), e = exponential(s - largest[g]);
        e = s < -3e38f ? all(0) : e;
        sums += e;
        store(p + t, e);
      }
      float decay = total[g] == 0 ? 0 : exponential(all(before - largest[g]))[0];
      total[g] = total[g] * decay + sum(sums);
      float* acc = out + g * size;
      int64_t i = 0;
      for (; i + LANES <= size; i += LANES) {
        Floats v = load(acc + i) * decay;
        for (int t = 0; t < count; t++) v += p[t] * load((const T*)a.values + offsets[t] + i);
        store(acc + i, v);
      }
      for (; i < size; i++) {
        acc[i] *= decay;
        for (int t = 0; t < count; t++) acc[i] += p[t] * widen(((const T*)a.values)[offsets[t] + i]);
      }
    }
  }
  for (int64_t i = 0; i < group * size; i++) out[i] /= total[i / size];
}

template <class T> void tokens(const Attention& a, bool places, int64_t from, int64_t to) {
  for (int64_t i = from; i < to; i++) places ? place<T>(a, i) : attend_head<T>(a, i / a.kv_heads, i % a.kv_heads);
}

void attention(const void* arguments, bool places, int64_t from, int64_t to) {
  const Attention& a = *(const Attention*)arguments;
  a.type == FLOAT32   ? tokens<float>(a, places, from, to)
  : a.type == FLOAT16 ? tokens<Half>(a, places, from, to)
                      : tokens<Bf16>(a, places, from, to);
}

void attend(const void* arguments, int64_t from, int64_t to) { attention(arguments, false, from, to); }

}  // namespace ISA
