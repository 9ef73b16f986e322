// SPDX-License-Identifier: Apache-2.0
// Dense layers in float32 on AMX, which multiplies bfloat16. Three bfloat16 numbers add up to a float32: its upper, middle and lower 8 bits.
// A product is the sum of the six products of them that float32 can hold; AMX adds in float32. Results are as close to the exact ones as
// float32's own are, except that denormal numbers count as 0, and numbers within 0.4 % of the largest as infinite.
// cpu_kernels.cpp includes this file for AVX-512 with AMX.
namespace avx512 {

// Numbers are split into tiles of 16 rows of 32 inputs: three tiles next to each other. Tiles of weights have rows of 16 outputs' pairs of
// inputs; a panel has 32 outputs and for each 32 inputs six tiles, lower bits first: the order of use, which the hardware's prefetcher follows.
// Inputs and outputs are filled up with zeros.
const int STEP = 32, TILE_BYTES = 1024, SPLIT = 3 * TILE_BYTES, WIDE = 2 * MATRIX;
const int64_t BLOCK_STEPS = 24;  // of inputs that all outputs are multiplied by before the next ones: rows and weights of so many fit into L2
const int64_t BLOCK_ROWS = 192;  // that a thread computes at a time
static inline int64_t steps(int64_t inputs) { return (inputs + STEP - 1) / STEP; }
static inline int64_t up(int64_t count) { return (count + WIDE - 1) / WIDE * WIDE; }

typedef __m256i Upper;  // 16 bfloat16
INLINE Upper round_bf16(Floats x) { return (Upper)_mm512_cvtneps_pbh((__m512)x); }
INLINE Floats wide(Upper x) { return (Floats)((Ints)_mm512_cvtepu16_epi32(x) << 16); }

// Writes 16 inputs of a row, from `input` on, of the rows split in tiles.
INLINE void put_split(char* tiles, int64_t steps, uint64_t row, uint64_t input, Floats x) {
  char* to = tiles + (row / MATRIX * steps + input / STEP) * SPLIT + row % MATRIX * 64 + input % STEP * 2;
  for (int i = 0; i < 3; i++) {
    Upper part = round_bf16(x);
    _mm256_store_si256((Upper*)(to + i * TILE_BYTES), part);
    x -= wide(part);
  }
}

// Splits panels of 32 outputs of weights, of shape (outputs, inputs).
static void split_weights(const void* conversion, int64_t from, int64_t to) {
  const Conversion& c = *(const Conversion*)conversion;
  int64_t count = steps(c.inputs);
  for (int64_t output = from * WIDE; output < to * WIDE; output++)
    for (int64_t input = 0; input < count * STEP; input += LANES) {
      int64_t rest = output < c.outputs ? c.inputs - input : 0;
      const float* w = (const float*)c.weights + output * c.inputs + input;
      Floats x = rest >= LANES ? load(w) : load_first(w, rest);
      char* to = (char*)c.quantized + (output / WIDE * count + input / STEP) * 2 * SPLIT + output % WIDE / MATRIX * TILE_BYTES +
                 input % STEP / 2 * 64 + output % MATRIX * 4;
      for (int i = 2; i >= 0; i--) {
        Upper part = round_bf16(x);
        for (int k = 0; k < 8; k++) *(AnyInt*)(to + 2 * i * TILE_BYTES + k * 64) = ((AnyInt*)&part)[k];
        x -= wide(part);
      }
    }
}

// c += a b^T, or c = a b^T if is_first, for ROWS of 16 or 32 rows and 32 outputs, the smallest products of a step first. The tiles of a step are
// next to each other; in `a`, those of 16 rows `stride` apart. between() is called PARTS times a step, to compute while AMX multiplies.
const int PARTS = 3;
template <int ROWS, class Between>
INLINE void multiply_tiles(const char* a, const char* b, int64_t steps, int64_t stride, bool is_first, float* c, Between between) {
  if (is_first) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, c, WIDE * 4);
    _tile_loadd(1, c + MATRIX, WIDE * 4);
    if (ROWS > MATRIX) {
      _tile_loadd(2, c + MATRIX * WIDE, WIDE * 4);
      _tile_loadd(3, c + MATRIX * WIDE + MATRIX, WIDE * 4);
    }
  }
#define LOAD_A(part)                                                                  \
  _tile_loadd(4, a + part * TILE_BYTES, 64);                                          \
  if (ROWS > MATRIX) { _tile_loadd(5, a + stride + part * TILE_BYTES, 64); }
#define LOAD_B(part)                                   \
  _tile_loadd(6, b + (4 - 2 * part) * TILE_BYTES, 64); \
  _tile_loadd(7, b + (5 - 2 * part) * TILE_BYTES, 64);
#define MULTIPLY           \
  _tile_dpbf16ps(0, 4, 6); \
  _tile_dpbf16ps(1, 4, 7); \
  if (ROWS > MATRIX) {     \
    _tile_dpbf16ps(2, 5, 6); \
    _tile_dpbf16ps(3, 5, 7); \
  }
  for (const char* end = a + steps * SPLIT; a < end; a += SPLIT, b += 2 * SPLIT) {
    LOAD_A(0) LOAD_B(2) MULTIPLY LOAD_B(1) MULTIPLY
    between();
    LOAD_A(1) MULTIPLY LOAD_B(0) MULTIPLY
    between();
    LOAD_A(2) MULTIPLY LOAD_A(0) MULTIPLY
    between();
  }
#undef LOAD_A
#undef LOAD_B
#undef MULTIPLY
  _tile_stored(0, c, WIDE * 4);
  _tile_stored(1, c + MATRIX, WIDE * 4);
  if (ROWS > MATRIX) {
    _tile_stored(2, c + MATRIX * WIDE, WIDE * 4);
    _tile_stored(3, c + MATRIX * WIDE + MATRIX, WIDE * 4);
  }
}

// x times the normal distribution's integral. erfc(t) is e^(-t^2) u P(u), u = 1 / (1 + 0.3 t), within 3e-8 of it.
INLINE Floats gelu(Floats x) {
  Floats divisor = 1.0f + 0.2121320344f * (Floats)((Ints)x & 0x7fffffff), u = (Floats)_mm512_rcp14_ps((__m512)divisor);
  u *= 2.0f - divisor * u;  // one step of Newton's, which takes less time than a division
  Floats p = broadcast(-0.13065014777567719f);
  const float c[] = {0.49119916558265686f, -0.5243023633956909f, 0.5619909763336182f, -0.10493683815002441f,
                     0.2195281982421875f,  0.1470930278301239f,  0.17090168595314026f, 0.16917620599269867f};
  for (int i = 0; i < 8; i++) p = plus(broadcast(c[i]), p, u);
  Floats tail = 0.5f * exponential(-0.5f * x * x) * u * p;
  return x * (x < 0.0f ? tail : 1.0f - tail);
}

INLINE Floats activate(int64_t activation, Floats x) {
  switch (activation) {
    case GELU: return gelu(x);
    case GELU_TANH: return gelu_tanh(x);
    case RELU: return x < 0.0f ? broadcast(0) : x;
    case SILU: return silu(x);
    default: return x;
  }
}

// What a layer does with rows that are split at `in`: writes its results to the next layer's split rows at `next`, or to the floats of `out`.
struct Panels {
  const Layer& layer;
  int64_t rows;
  const char* in;
  char* next;
  const float* residual;
  float* out;
  float* sums;  // of 32 rows by 32 outputs each, if there are several blocks of inputs
};

// A product of up to 32 rows, from `row` to `end`, by 32 outputs from `first` on.
struct Sums {
  int64_t row, end, first;
  const float* numbers;
};

// Adds bias, activates, and writes the results of the first `count` rows, if there are so many, and removes them.
static void finish_rows(const Panels& p, Sums* s, int64_t count) {
  const Layer& layer = p.layer;
  for (; count > 0 && s->row < s->end; count--, s->row++, s->numbers += WIDE)
    for (int i = 0; i < WIDE; i += LANES) {
      int64_t column = s->first + i, rest = layer.outputs - column, at = s->row * layer.outputs + column;
      Floats bias = !layer.bias ? Floats{} : rest >= LANES ? load(layer.bias + column) : load_first(layer.bias + column, rest);
      Floats x = activate(layer.activation, load(s->numbers + i) + bias);
      if (p.next) put_split(p.next, steps(layer.outputs), s->row, column, x);
      else if (rest >= LANES) store(p.out + at, p.residual ? x + load(p.residual + at) : x);
      else
        for (int j = 0; j < rest; j++) p.out[at + j] = p.residual ? x[j] + p.residual[at + j] : x[j];
    }
}

// While AMX multiplies, finishes the sums before, and prefetches the next panel.
static void multiply_panels(const void* arguments, int64_t from, int64_t to) {
  const Panels& p = *(const Panels*)arguments;
  const Layer& layer = p.layer;
  int64_t count = steps(layer.inputs), stride = count * SPLIT, rows = up(p.rows);
  alignas(64) float tiles[2][WIDE * WIDE];
  int turn = 0;
  Sums before = {};
  configure_tiles(64);
  for (int64_t begin = 0; begin < count; begin += BLOCK_STEPS) {
    bool is_last = begin + BLOCK_STEPS >= count;
    int64_t length = is_last ? count - begin : BLOCK_STEPS;
    for (int64_t panel = from; panel < to; panel++) {
      const char *b = layer.weights + 2 * (panel * stride + begin * SPLIT), *next = b + 2 * stride;
      for (int64_t row = 0; row < rows; row += WIDE) {
        const char* a = p.in + row / MATRIX * stride + begin * SPLIT;
        float* sums = p.sums ? p.sums + (panel * rows + row) * WIDE : tiles[turn ^= 1];
        auto between = [&] {
          const char* end = next + 2 * SPLIT / PARTS * WIDE / rows;
          for (const char* line = next; line < end; line += 64) __builtin_prefetch(line);
          next = end;
          finish_rows(p, &before, (WIDE + PARTS * length - 1) / (PARTS * length));
        };
        if (p.rows - row > MATRIX) multiply_tiles<WIDE>(a, b, length, stride, begin == 0, sums, between);
        else multiply_tiles<MATRIX>(a, b, length, stride, begin == 0, sums, between);
        written(sums);
        if (is_last) before = {row, row + WIDE < p.rows ? row + WIDE : p.rows, panel * WIDE, sums};
      }
    }
  }
  _tile_release();
  finish_rows(p, &before, WIDE);
}

static void layer_norm(const Layers& l, int64_t size, float* x) {
  float total = 0, squares = 0;
  int64_t whole = size / LANES * LANES;
  Floats sums = {};
  for (int64_t i = 0; i < whole; i += LANES) sums += load(x + i);
  for (int64_t i = whole; i < size; i++) total += x[i];
  float mean = (total + sum(sums)) / size;
  sums = Floats{};
  for (int64_t i = 0; i < whole; i += LANES) sums += (load(x + i) - mean) * (load(x + i) - mean);
  for (int64_t i = whole; i < size; i++) squares += (x[i] - mean) * (x[i] - mean);
  float factor = 1 / __builtin_sqrtf((squares + sum(sums)) / size + l.epsilon);
  for (int64_t i = 0; i < size; i++) x[i] = (x[i] - mean) * factor * l.norm_weight[i] + l.norm_bias[i];
}

static inline int64_t split_bytes(int64_t rows, int64_t inputs) { return up(rows) / MATRIX * steps(inputs) * SPLIT; }

// The bytes of rows that are split for the layers from `layer` on.
static int64_t row_bytes(const Layers& l, int64_t layer, int64_t rows) {
  int64_t bytes = 0;
  for (; layer < l.count; layer++) bytes += split_bytes(rows, l.layers[layer].inputs);
  return bytes;
}

// Allocates split rows of all layers, and behind them the sums of one layer with several blocks of inputs.
static char* allocate(const Layers& l, int64_t rows) {
  int64_t sums = 0;
  for (int64_t i = 0; i < l.count; i++) {
    int64_t own = steps(l.layers[i].inputs) > BLOCK_STEPS ? up(rows) * up(l.layers[i].outputs) * 4 : 0;
    if (own > sums) sums = own;
  }
  return (char*)aligned_alloc(64, row_bytes(l, 0, rows) + sums);
}

// Applies all layers to a block of rows. Threads share the outputs of a layer.
static void apply_layers(int threads, const Layers& l, int64_t first, int64_t rows, char* scratch) {
  int64_t inputs = l.layers->inputs, outputs = l.layers[l.count - 1].outputs;
  for (int64_t row = 0; row < rows; row++)
    for (int64_t i = 0; i < steps(inputs) * STEP; i += LANES) {
      const float* x = l.x + (first + row) * inputs + i;
      put_split(scratch, steps(inputs), row, i, i + LANES <= inputs ? load(x) : load_first(x, inputs - i));
    }
  float* out = l.out + first * outputs;
  for (int64_t i = 0; i < l.count; i++) {
    const Layer& layer = l.layers[i];
    bool last = i + 1 == l.count;
    char* next = last ? 0 : scratch + split_bytes(rows, layer.inputs);
    float* sums = steps(layer.inputs) > BLOCK_STEPS ? (float*)(scratch + row_bytes(l, i, rows)) : 0;
    Panels p = {layer, rows, scratch, next, last && l.residual ? l.residual + first * outputs : 0, out, sums};
    written(scratch);
    run(threads, 1, up(layer.outputs) / WIDE, multiply_panels, &p);
    scratch = next;
  }
  for (int64_t row = 0; l.norm_weight && row < rows; row++) layer_norm(l, outputs, out + row * outputs);
}

static void apply_to_blocks(const void* layers, int64_t from, int64_t to) {
  const Layers& l = *(const Layers*)layers;
  char* scratch = allocate(l, l.block);
  for (int64_t row = from * l.block; row < to * l.block && row < l.rows; row += l.block)
    apply_layers(1, l, row, l.rows - row < l.block ? l.rows - row : l.block, scratch);
  free(scratch);
}

// Few rows are one block, of which threads share the outputs. Otherwise a thread applies all layers to a block that fits into its L2.
static void apply(int threads, Layers& l) {
  if (l.rows <= BLOCK_ROWS) {
    char* scratch = allocate(l, l.rows);
    apply_layers(threads, l, 0, l.rows, scratch);
    free(scratch);
    return;
  }
  int64_t parts = threads * ((l.rows + threads * BLOCK_ROWS - 1) / (threads * BLOCK_ROWS));
  l.block = up((l.rows + parts - 1) / parts);
  run(threads, 1, (l.rows + l.block - 1) / l.block, apply_to_blocks, &l);
}

}  // namespace avx512
