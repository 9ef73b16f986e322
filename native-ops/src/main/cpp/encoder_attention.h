// SPDX-License-Identifier: Apache-2.0
// Attention of encoders; see EncoderAttention. cpu_kernels.cpp includes this file once for each instruction set, after cpu_kernels.h.
namespace ISA {

// Copies keys, transposed to (size, keys), and values to (keys, dims), with zeros at the end.
static void copy_head(const float* key, const float* value, int64_t stride, int64_t length, int64_t size, int64_t keys, int64_t dims, float* kt,
                      float* v) {
  for (int64_t t = 0; t < keys; t++) {
    for (int64_t i = 0; i < size; i++) kt[i * keys + t] = t < length ? key[t * stride + i] : 0;
    for (int64_t i = 0; i < dims; i++) v[t * dims + i] = t < length && i < size ? value[t * stride + i] : 0;
  }
}

// Replaces scores by the exponentials of their differences from the largest one, zeros from `length` on; returns the sum.
INLINE float exponentials(float* scores, int64_t length, int64_t keys) {
  for (int64_t t = length; t < keys; t++) scores[t] = -INFINITY;
  Floats most = load(scores), total = {};
  for (int64_t t = LANES; t < keys; t += LANES) most = load(scores + t) > most ? load(scores + t) : most;
  for (int i = 1; i < LANES; i++) most[0] = most[i] > most[0] ? most[i] : most[0];
  for (int64_t t = 0; t < keys; t += LANES) {
    Floats s = load(scores + t), e = exponential(s - most[0]);
    e = s < -3e38f ? broadcast(0) : e;
    total += e;
    store(scores + t, e);
  }
  return sum(total);
}

// out = left right for ROWS rows, left being rows of count numbers, and two vectors of columns.
template <int ROWS> INLINE void multiply_rows(const float* const* left, int64_t count, const float* right, int64_t stride, Floats (*out)[2]) {
  Floats acc[ROWS][2] = {};
  for (int64_t i = 0; i < count; i++, right += stride) {
    Floats first = load(right), second = load(right + LANES);
    for (int r = 0; r < ROWS; r++) {
      Floats x = broadcast(left[r][i]);
      acc[r][0] = plus(acc[r][0], x, first);
      acc[r][1] = plus(acc[r][1], x, second);
    }
  }
  for (int r = 0; r < ROWS; r++) out[r][0] = acc[r][0], out[r][1] = acc[r][1];
}

// Attention of heads `from` to `to`, counted over all sequences.
static void attend_encoder(const void* arguments, int64_t from, int64_t to) {
  const EncoderAttention& a = *(const EncoderAttention*)arguments;
  const int ROWS = LANES == 16 ? 8 : 4, WIDTH = 2 * LANES;
  int64_t width = a.heads * a.size, dims = (a.size + WIDTH - 1) / WIDTH * WIDTH, longest = 0;
  for (int64_t i = from / a.heads; i <= (to - 1) / a.heads; i++)
    longest = a.starts[i + 1] - a.starts[i] > longest ? a.starts[i + 1] - a.starts[i] : longest;
  longest = (longest + WIDTH - 1) / WIDTH * WIDTH;
  float* kt = (float*)aligned_alloc(64, longest * (a.size + dims + ROWS) * 4);
  float *v = kt + longest * a.size, *scores = v + longest * dims;
  for (int64_t item = from; item < to; item++) {
    int64_t first = a.starts[item / a.heads], length = a.starts[item / a.heads + 1] - first, keys = (length + WIDTH - 1) / WIDTH * WIDTH;
    const float* q = a.qkv + first * 3 * width + item % a.heads * a.size;
    float* out = a.out + first * width + item % a.heads * a.size;
    copy_head(q + width, q + 2 * width, 3 * width, length, a.size, keys, dims, kt, v);
    for (int64_t row = 0; row < length; row += ROWS) {
      const float *queries[ROWS], *shares[ROWS];
      float factors[ROWS];
      Floats tile[ROWS][2];
      for (int r = 0; r < ROWS; r++) {  // rows after the last repeat it
        queries[r] = q + (row + r < length ? row + r : length - 1) * 3 * width;
        shares[r] = scores + r * keys;
      }
      for (int64_t t = 0; t < keys; t += WIDTH) {
        multiply_rows<ROWS>(queries, a.size, kt + t, keys, tile);
        for (int r = 0; r < ROWS; r++)
          for (int j = 0; j < 2; j++) store(scores + r * keys + t + j * LANES, tile[r][j] * a.scale);
      }
      for (int r = 0; r < ROWS; r++) factors[r] = 1 / exponentials(scores + r * keys, length, keys);
      for (int64_t d = 0; d < dims; d += WIDTH) {
        multiply_rows<ROWS>(shares, length, v + d, dims, tile);
        for (int r = 0; r < ROWS && row + r < length; r++)
          for (int j = 0; j < 2; j++) {
            Floats x = tile[r][j] * factors[r];
            int64_t at = d + j * LANES;
            float* to = out + (row + r) * width + at;
            if (at + LANES <= a.size) store(to, x);
            else
              for (int64_t i = 0; at + i < a.size; i++) to[i] = x[i];
          }
      }
    }
  }
  free(kt);
}

}  // namespace ISA
