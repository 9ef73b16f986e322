// SPDX-License-Identifier: Apache-2.0
// Products of at least 16 rows of x by quantized weights, with AMX; cpu_kernels.h includes this file. Tiles of 32 rows by 32 outputs have
// the integer sums of a set; AVX-512 scales and adds them, in the order of tile_quantized, so the results have its bits.

// GCC 12's intrinsics of AMX do not say that they read memory, so stores before them might be left out.
INLINE void written(const void* memory) { __asm__ volatile("" : : "r"(memory) : "memory"); }

// A panel's group with signed numbers, q - zero: tiles of 64 inputs one after the other; and with its scales in float32.
template <int TYPE> struct MatrixGroup {
  static constexpr int SETS = GROUP / blocks(TYPE).set;
  int8_t numbers[GROUP * PANEL];
  Floats scales[SETS], minimums[SETS], scale, minimum;
};

template <int TYPE> void convert_group(const char* w, MatrixGroup<TYPE>* out) {
  constexpr Blocks of = blocks(TYPE);
  constexpr int sets = GROUP / of.set;
  const Bytes zero = _mm512_set1_epi8((char)of.zero);
  for (int b = 0; b < GROUP / 2; b += 4) {
    const char* block = w + of.header() + PANEL * b * (of.bits / 4);
    Bytes first = bytes(block), second = of.bits == 8 ? bytes(block + 4 * PANEL) : nibbles(first, 4);
    if (of.bits == 4) first = nibbles(first, 0);
    _mm512_store_si512(out->numbers + PANEL * b, _mm512_sub_epi8(first, zero));
    _mm512_store_si512(out->numbers + PANEL * (GROUP / 2 + b), _mm512_sub_epi8(second, zero));
  }
  for (int set = 0; set < sets; set++) load_scales<TYPE>(w, set, 0, &out->scales[set], &out->minimums[set]);
  load_super_scales<TYPE>(w, 0, &out->scale, &out->minimum);
}

// Adds the sums of 16 rows by a panel's group. scales, sums: of the rows' group.
template <int TYPE>
INLINE void add_matrix(const MatrixGroup<TYPE>& w, const float* scales, const float* sums, const Ints (*s)[MATRIX], Floats* acc) {
  constexpr Blocks of = blocks(TYPE);
  constexpr int sets = GROUP / of.set, at_a_time = 8;
  for (int r = 0; r < MATRIX; r += at_a_time) {
    Floats group[at_a_time] = {}, minimums[at_a_time] = {};
    for (int i = 0; i < sets; i++) {
      int set = i / 2 + i % 2 * (sets / 2);  // tile_quantized's order
      for (int q = r; q < r + at_a_time; q++) {
        Floats dot = __builtin_convertvector(s[set][q], Floats);
        group[q - r] = plus(group[q - r], dot, scales[set * of.set / 32 * MATRIX + q] * w.scales[set]);
        if (of.has_minimums) minimums[q - r] = plus(minimums[q - r], w.minimums[set], broadcast(sums[sum_index(of.set, set) * MATRIX + q]));
      }
    }
    for (int q = r; q < r + at_a_time; q++) {
      acc[q] = plus(acc[q], group[q - r], w.scale);
      if (of.has_minimums) acc[q] = minus(acc[q], minimums[q - r], w.minimum);
    }
  }
}

// Multiplies TILES times 16 rows by one panel or two; w: the groups of the first, then those of the second.
template <int TYPE, int TILES>
INLINE void multiply_matrix(const Product& p, int64_t row, int64_t column, int panels, const MatrixGroup<TYPE>* w) {
  constexpr Blocks of = blocks(TYPE);
  constexpr int sets = GROUP / of.set;
  const int64_t count = groups(p.inputs), next = panels == 2 ? count : 0;  // a single panel is multiplied twice
  Floats acc[TILES][2][MATRIX][VECTORS] = {};
  for (int64_t g = 0; g < count; g++) {
    const int64_t place = p.quantized.place(row, count, g), below = p.quantized.place(row + MATRIX, count, g);
    const int8_t *x = p.quantized.numbers + place * GROUP, *x_below = p.quantized.numbers + below * GROUP;
    const int8_t *left = w[g].numbers, *right = w[next + g].numbers;
    Ints s[TILES][2][sets][MATRIX];
    for (int set = 0; set < sets; set++) {
      _tile_zero(0);
      _tile_zero(1);
      if (TILES == 2) _tile_zero(2);
      if (TILES == 2) _tile_zero(3);
      for (int i = set * of.set; i < (set + 1) * of.set; i += 64) {
        const int at = i / 64 * 64 * MATRIX + i % 64;
        _tile_loadd(4, x + at, 64);
        _tile_loadd(6, left + i * PANEL, 64);
        _tile_loadd(7, right + i * PANEL, 64);
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        if (TILES == 2) {
          _tile_loadd(5, x_below + at, 64);
          _tile_dpbssd(2, 5, 6);
          _tile_dpbssd(3, 5, 7);
        }
      }
      _tile_stored(0, s[0][0][set], 64);
      _tile_stored(1, s[0][1][set], 64);
      if (TILES == 2) _tile_stored(2, s[1][0][set], 64);
      if (TILES == 2) _tile_stored(3, s[1][1][set], 64);
    }
    for (int t = 0; t < TILES; t++) {
      const int64_t at = t == 0 ? place : below;
      for (int i = 0; i < 2; i++)
        add_matrix<TYPE>(w[i * next + g], p.quantized.scales + at * SCALES, p.quantized.sums + at * SUMS, s[t][i], acc[t][i][0]);
    }
  }
  for (int t = 0; t < TILES; t++)
    for (int i = 0; i < panels; i++)
      for (int r = 0; r < MATRIX && row + t * MATRIX + r < p.rows; r++) put_panel<1>(p, row + t * MATRIX + r, column + i * PANEL, &acc[t][i][r]);
}

// Sets the shapes of tiles: 0 to 3 have sums, 4 and 5 `bytes` of each row of x, 6 and 7 those of weights.
INLINE void configure_tiles(uint16_t bytes) {
  const uint16_t sums = 4 * PANEL;
  const uint8_t inputs = bytes / 4;
  struct {
    uint8_t palette, start, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  } shapes = {1, 0, {}, {sums, sums, sums, sums, bytes, bytes, sums, sums}, {MATRIX, MATRIX, MATRIX, MATRIX, MATRIX, MATRIX, inputs, inputs}};
  written(&shapes);
  _tile_loadconfig(&shapes);
}

template <int TYPE> void multiply_matrices(const Product& p, int64_t from, int64_t to) {
  const int64_t count = groups(p.inputs), panel_bytes = count * group_bytes(TYPE);
  MatrixGroup<TYPE>* w = (MatrixGroup<TYPE>*)aligned_alloc(64, 2 * count * sizeof(MatrixGroup<TYPE>));
  configure_tiles(blocks(TYPE).set < 64 ? blocks(TYPE).set : 64);
  for (int64_t column = from; column < to; column += 2 * PANEL) {
    const char* panel = (const char*)p.part.weights + column / PANEL * panel_bytes;
    const int panels = column + PANEL < to ? 2 : 1;
    for (int64_t g = 0; g < panels * count; g++) convert_group<TYPE>(panel + g * group_bytes(TYPE), w + g);
    written(w);
    int64_t row = 0;
    for (; row + MATRIX < p.rows; row += 2 * MATRIX) multiply_matrix<TYPE, 2>(p, row, column, panels, w);
    if (row < p.rows) multiply_matrix<TYPE, 1>(p, row, column, panels, w);
  }
  _tile_release();
  free(w);
}
