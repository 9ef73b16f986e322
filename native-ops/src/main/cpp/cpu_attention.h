// SPDX-License-Identifier: Apache-2.0
// Attention of rows of a token each, and of adjacent tokens of one sequence; cpu_kernels.h includes this file.

// Normalises and rotates the heads of a token's queries and keys in place, and writes its key and value to the cache.
template <class T> void rotate_and_cache(const Attention& a, int64_t row) {
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
  const int block = 64, strip = 64;
  int64_t group = a.query_heads / a.kv_heads, size = a.head_size, position = a.positions[row];
  const float* queries = a.qkv + (row * (a.query_heads + 2 * a.kv_heads) + kv_head * group) * size;
  float* out = a.out + (row * a.query_heads + kv_head * group) * size;
  const int* slots = a.slots + row * a.max_length;
  int64_t start = a.window && position >= a.window ? position - a.window + 1 : 0;
  float largest[group], total[group];
  for (int64_t g = 0; g < group; g++) largest[g] = -INFINITY, total[g] = 0;
  for (int64_t i = 0; i < group * size; i++) out[i] = 0;
  for (int64_t first = start; first <= position; first += block) {
    int count = position + 1 - first < block ? position + 1 - first : block;
    // offsets: of this block's keys and values. ahead: of the next block or, for the last block, of the next head's first. For the last KV
    // head that is unused or past the end, which a prefetch ignores.
    int64_t offsets[block], ahead[block];
    for (int t = 0; t < count; t++) {
      int64_t next = first + t + block;
      offsets[t] = (slots[first + t] * a.kv_heads + kv_head) * size;
      ahead[t] = next <= position ? (slots[next] * a.kv_heads + kv_head) * size : (slots[start + t] * a.kv_heads + kv_head + 1) * size;
    }
    for (int64_t g = 0; g < group; g++) {
      float p[block];  // scores, then their exponentials
      for (int t = 0; t < count; t++) {
        if (g == 0)
          for (int64_t i = 0; i < size; i += 64 / sizeof(T)) {  // into L2, from which the step's weights have evicted them
            __builtin_prefetch((const T*)a.keys + ahead[t] + i, 0, 2);
            __builtin_prefetch((const T*)a.values + ahead[t] + i, 0, 2);
          }
        p[t] = a.scale * dot(queries + g * size, (const T*)a.keys + offsets[t], size);
      }
      for (int t = count; t < block; t++) p[t] = 0;  // the last vector is read whole
      if (a.cap > 0)
        for (int t = 0; t < count; t += LANES) store(p + t, a.cap * tanh(load(p + t) / a.cap));
      for (int t = count; t < block; t++) p[t] = -INFINITY;
      float before = largest[g];
      for (int t = 0; t < count; t++) largest[g] = p[t] > largest[g] ? p[t] : largest[g];
      Floats sums = {};
      for (int t = 0; t < count; t += LANES) {
        Floats s = load(p + t), e = exponential(s - largest[g]);
        e = s < -3e38f ? broadcast(0) : e;  // past the last token: e^-infinity, where `exponential` gives e^-87
        sums += e;
        store(p + t, e);
      }
      float decay = total[g] == 0 ? 0 : exponential(broadcast(before - largest[g]))[0];
      total[g] = total[g] * decay + sum(sums);
      float* acc = out + g * size;
      int64_t i = 0;
      for (; i + strip <= size; i += strip) {  // The sums of a strip are in registers, independent of each other.
        Floats v[strip / LANES];
        for (int j = 0; j < strip / LANES; j++) v[j] = load(acc + i + j * LANES) * decay;
        for (int t = 0; t < count; t++)
          for (int j = 0; j < strip / LANES; j++) v[j] += p[t] * load((const T*)a.values + offsets[t] + i + j * LANES);
        for (int j = 0; j < strip / LANES; j++) store(acc + i + j * LANES, v[j]);
      }
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

const int QUERIES = 2 * LANES, TOKENS = 64;  // of a block
const int AT_A_TIME = LANES / 2;             // keys, or elements of values, whose sums are in registers

// A block of adjacent tokens of one sequence attends: a query token is a lane of two vectors. Its results do not depend on the block.
struct Block {
  int64_t first, rows, size, group;  // rows `first` to first + rows; query heads that share a KV head
  float *keys, *values;              // (TOKENS, size)
  float *queries, *out;              // (group, size, QUERIES)
  float *largest, *total;            // (group, QUERIES)
  float* scores;                     // (TOKENS, QUERIES), then their exponentials

  Block(int64_t size, int64_t group) : size(size), group(group) {
    int64_t wide = QUERIES * size * group, narrow = QUERIES * group;
    keys = (float*)aligned_alloc(64, 4 * (2 * TOKENS * size + 2 * wide + 2 * narrow + TOKENS * QUERIES));
    values = keys + TOKENS * size;
    queries = values + TOKENS * size;
    out = queries + wide;
    largest = out + wide;
    total = largest + narrow;
    scores = total + narrow;
  }
  ~Block() { free(keys); }

  // Computes the scores of `count` keys; those up to the next multiple of AT_A_TIME are computed, too.
  void score(int64_t head, int count) const {
    for (int t = 0; t < count; t += AT_A_TIME) {
      Floats sums[AT_A_TIME][2] = {};
      const float *q = queries + head * size * QUERIES, *k = keys + t * size;
      for (int64_t i = 0; i < size; i++, q += QUERIES)
        for (int j = 0; j < AT_A_TIME; j++)
          for (int v = 0; v < 2; v++) sums[j][v] += load(q + v * LANES) * k[j * size + i];
      for (int j = 0; j < AT_A_TIME; j++)
        for (int v = 0; v < 2; v++) store(scores + (t + j) * QUERIES + v * LANES, sums[j][v]);
    }
  }

  // Adds elements i to i + N of the values, multiplied by the exponentials.
  template <int N> inline __attribute__((always_inline)) void add_elements(int64_t head, int64_t i, int count, const Floats* decay) const {
    float* to = out + (head * size + i) * QUERIES;
    Floats sums[N][2];
    for (int j = 0; j < N; j++)
      for (int v = 0; v < 2; v++) sums[j][v] = load(to + j * QUERIES + v * LANES) * decay[v];
    for (int t = 0; t < count; t++)
      for (int j = 0; j < N; j++)
        for (int v = 0; v < 2; v++) sums[j][v] += load(scores + t * QUERIES + v * LANES) * values[t * size + i + j];
    for (int j = 0; j < N; j++)
      for (int v = 0; v < 2; v++) store(to + j * QUERIES + v * LANES, sums[j][v]);
  }

  void add_values(int64_t head, int count, const Floats* decay) const {
    int64_t i = 0;
    for (; i + AT_A_TIME <= size; i += AT_A_TIME) add_elements<AT_A_TIME>(head, i, count, decay);
    for (; i < size; i++) add_elements<1>(head, i, count, decay);
  }
};

// Turns scores of tokens `start` to start + count into exponentials, and returns by how much earlier sums decay. start: relative to the
// first query token of the vector.
INLINE Floats softmax(const Attention& a, float* scores, int64_t start, int count, float* largest, float* total) {
  Ints lanes;
  for (int i = 0; i < LANES; i++) lanes[i] = i;
  const Floats before = load(largest);
  Floats most = before, sums = {};
  for (int t = 0; t < count; t++) {
    Floats s = load(scores + t * QUERIES);
    if (a.cap > 0) s = a.cap * tanh(s / a.cap);
    Ints behind = lanes - (int)(start + t);  // how many tokens the query is behind the key
    s = behind < 0 ? broadcast(-INFINITY) : s;
    if (a.window) s = behind >= (int)a.window ? broadcast(-INFINITY) : s;
    store(scores + t * QUERIES, s);
    most = s > most ? s : most;
  }
  for (int t = 0; t < count; t++) {
    Floats s = load(scores + t * QUERIES), e = exponential(s - most);
    e = s < -3e38f ? broadcast(0) : e;  // hidden tokens: e^-infinity, where `exponential` gives e^-87
    sums += e;
    store(scores + t * QUERIES, e);
  }
  Floats decay = exponential(before - most);
  store(largest, most);
  store(total, load(total) * decay + sums);
  return decay;
}

template <class T> void attend_block(const Attention& a, Block& b, int64_t kv_head) {
  const int64_t width = (a.query_heads + 2 * a.kv_heads) * b.size, head = kv_head * b.group;
  const int64_t position = a.positions[b.first], end = position + b.rows;
  const int64_t begin = a.window && position >= a.window ? position - a.window + 1 : 0;
  for (int64_t i = 0; i < b.group * b.size; i++)
    for (int64_t r = 0; r < QUERIES; r++) {
      b.queries[i * QUERIES + r] = r < b.rows ? a.scale * a.qkv[(b.first + r) * width + head * b.size + i] : 0;
      b.out[i * QUERIES + r] = 0;
    }
  for (int64_t i = 0; i < b.group * QUERIES; i++) b.largest[i] = -3e38f, b.total[i] = 0;
  for (int64_t first = begin / TOKENS * TOKENS; first < end; first += TOKENS) {  // the same blocks for every query
    const int64_t from = first > begin ? first : begin, to = first + TOKENS < end ? first + TOKENS : end;
    const int count = to - from, filled = (count + AT_A_TIME - 1) / AT_A_TIME * AT_A_TIME;
    for (int t = 0; t < filled; t++)
      for (int64_t i = 0; i < b.size; i += LANES) {
        const int64_t at = t < count ? (a.slots[from + t] * a.kv_heads + kv_head) * b.size + i : 0;
        const bool whole = i + LANES <= b.size;
        Floats k = {}, v = {};
        if (t < count && whole) k = load((const T*)a.keys + at), v = load((const T*)a.values + at);
        else if (t < count) k = load_first((const T*)a.keys + at, b.size - i), v = load_first((const T*)a.values + at, b.size - i);
        float *key = b.keys + t * b.size + i, *value = b.values + t * b.size + i;
        if (whole) store(key, k), store(value, v);
        for (int j = 0; !whole && i + j < b.size; j++) key[j] = k[j], value[j] = v[j];
      }
    for (int64_t g = 0; g < b.group; g++) {
      b.score(g, count);
      Floats decay[2];
      for (int v = 0; v < 2; v++) {
        const int64_t at = g * QUERIES + v * LANES;
        decay[v] = softmax(a, b.scores + v * LANES, from - position - v * LANES, count, b.largest + at, b.total + at);
      }
      b.add_values(g, count, decay);
    }
  }
  for (int64_t r = 0; r < b.rows; r++)
    for (int64_t i = 0; i < b.group * b.size; i++)
      a.out[((b.first + r) * a.query_heads + head) * b.size + i] = b.out[i * QUERIES + r] / b.total[i / b.size * QUERIES + r];
}

// The longest blocks come first.
template <class T> void attend_blocks(const Attention& a, int64_t from, int64_t to) {
  const int64_t count = (a.rows + QUERIES - 1) / QUERIES;
  Block b(a.head_size, a.query_heads / a.kv_heads);
  for (int64_t i = from; i < to; i++) {
    b.first = (count - 1 - i / a.kv_heads) * QUERIES;
    b.rows = a.rows - b.first < QUERIES ? a.rows - b.first : QUERIES;
    attend_block<T>(a, b, i % a.kv_heads);
  }
}

template <class T> void rotate_rows(const Attention& a, int64_t from, int64_t to) {
  for (int64_t row = from; row < to; row++) rotate_and_cache<T>(a, row);
}

void rotate(const void* arguments, int64_t from, int64_t to) {
  const Attention& a = *(const Attention*)arguments;
  a.type == FLOAT32 ? rotate_rows<float>(a, from, to) : a.type == FLOAT16 ? rotate_rows<Half>(a, from, to) : rotate_rows<Bf16>(a, from, to);
}

// Attention of the KV heads of all rows or, if rows share their slots, of all blocks of rows.
template <class T> void attend_heads(const Attention& a, int64_t from, int64_t to) {
  if (a.max_length == 0) return attend_blocks<T>(a, from, to);
  for (int64_t i = from; i < to; i++) attend_head<T>(a, i / a.kv_heads, i % a.kv_heads);
}

void attend(const void* arguments, int64_t from, int64_t to) {
  const Attention& a = *(const Attention*)arguments;
  a.type == FLOAT32 ? attend_heads<float>(a, from, to) : a.type == FLOAT16 ? attend_heads<Half>(a, from, to) : attend_heads<Bf16>(a, from, to);
}

int64_t attention_parts(const Attention& a) {
  return (a.max_length == 0 ? (a.rows + QUERIES - 1) / QUERIES : a.rows) * a.kv_heads;
}
