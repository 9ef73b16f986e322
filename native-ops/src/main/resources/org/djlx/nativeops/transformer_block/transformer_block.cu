// What a transformer block computes between its matmuls, and the gradients of that, each in one pass: RMSNorm, the rotation of
// queries and keys, and the gate of an MLP; and the conversion of weights. libtorch takes an operator, and so a pass, for each step of these. Computed in
// float32 and rounded once. Results depend on the sizes and the number of blocks alone, not on their order. No synchronisation
// with anybody.
#include "block_sum.cuh"
#include "element.cuh"
#include "rms_norm.cuh"
#include "rotary.cuh"
#include "silu.cuh"

const int MAX_THREADS = 512;
const int MAX_WARPS = MAX_THREADS / WARP;

// Blocks of norms that a multiprocessor is to have room for; from before compute capability 8.0 some have 1024 threads.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
const int NORM_BLOCKS = 2;
#else
const int NORM_BLOCKS = 3;
#endif

// ---------------------------------------------------------------------------------------------------------------------------
// RMSNorm: y = x / sqrt(mean(x^2) + epsilon) * weight, for `rows` rows of `size` elements. With r = 1 / sqrt(...),
//   dx      = r (dy weight - x r^2 mean(dy weight x))
//   dweight = sum of dy x r over the rows
// Of a residual connection the rows are the sum of two, rounded before they are normalised, and other gradients reach that
// sum, which are added to dx. A block has a row at a time. If a thread has no more than a pack of it, that stays in registers, and
// the next row is on its way while the block adds up this one; otherwise what is read twice is in the block's cache.

template <typename T>
struct Norm {
  typename T::Bits* y;
  typename T::Bits* sum;  // where the rows go; null if there is nothing to add
  const typename T::Bits* x;
  const typename T::Bits* addend;
  const typename T::Bits* weight;
  u64 rows;
  u64 size;
};

template <typename T>
struct NormGradient {
  typename T::Bits* dx;
  float* parts;  // of the weight's gradient, a row of `size` for each block
  const typename T::Bits* dy;
  const typename T::Bits* dsum;  // what is added; null for nothing
  const typename T::Bits* x;
  const typename T::Bits* weight;
  u64 rows;
  u64 size;
};

template <typename T>
struct WeightGradient {
  typename T::Bits* dweight;
  const float* parts;
  u64 count;  // of parts
  u64 size;
};

template <typename T>
__device__ __forceinline__ void load(FloatPack<T>& values, const typename T::Bits* row, u64 size, u32 pack) {
  values.set(load_pack<T>(row, size, pack));
}

template <typename T>
__device__ __forceinline__ void rms_norm_short(const Norm<T>& of, float epsilon) {
  __shared__ float sums[2][1][MAX_WARPS];
  u32 pack = threadIdx.x;
  bool any = pack * Pack<T>::COUNT < of.size;
  auto read = [&](const typename T::Bits* rows, u64 row) {
    return any && row < of.rows ? load_pack<T>(rows + row * of.size, of.size, pack) : zeros();
  };
  uint4 weight = read(of.weight, 0);
  uint4 next = read(of.x, blockIdx.x), next_addend = of.sum ? read(of.addend, blockIdx.x) : next;
  u32 turn = 0;
  for (u64 row = blockIdx.x; row < of.rows; row += gridDim.x, turn ^= 1) {
    uint4 x = next;
    if (of.sum) {
      x = add_packs<T>(next, next_addend);
      if (any) store_pack<T>(of.sum + row * of.size, of.size, pack, x);
      next_addend = read(of.addend, row + gridDim.x);
    }
    next = read(of.x, row + gridDim.x);
    FloatPack<T> values;
    values.set(x);
    float squares[1] = {add_squares<T>(0, values)};
    block_sums(squares, sums[turn]);
    float scale = norm_scale(squares[0], of.size, epsilon);
    if (any) store_pack<T>(of.y + row * of.size, of.size, pack, normalize_pack<T>(values, scale, weight));
  }
}

template <typename T>
__device__ __forceinline__ void rms_norm(const Norm<T>& of, float epsilon) {
  if (of.size <= (u64)blockDim.x * Pack<T>::COUNT) {
    rms_norm_short(of, epsilon);
    return;
  }
  __shared__ float sums[2][1][MAX_WARPS];
  u32 packs = pack_count<T>(of.size);
  u32 turn = 0;
  for (u64 row = blockIdx.x; row < of.rows; row += gridDim.x, turn ^= 1) {
    const typename T::Bits* x = of.x + row * of.size;
    float squares[1] = {};
    for (u32 i = threadIdx.x; i < packs; i += blockDim.x) {
      uint4 pack = load_pack<T>(x, of.size, i);
      if (of.sum) {
        pack = add_packs<T>(pack, load_pack<T>(of.addend + row * of.size, of.size, i));
        store_pack<T>(of.sum + row * of.size, of.size, i, pack);
      }
      squares[0] = add_squares<T>(squares[0], pack);
    }
    block_sums(squares, sums[turn]);
    float scale = norm_scale(squares[0], of.size, epsilon);
    if (of.sum) x = of.sum + row * of.size;  // Each thread reads what it has written.
    for (u32 i = threadIdx.x; i < packs; i += blockDim.x) {
      uint4 pack = normalize_pack<T>(load_pack<T>(x, of.size, i), scale, load_pack<T>(of.weight, of.size, i));
      store_pack<T>(of.y + row * of.size, of.size, i, pack);
    }
  }
}

template <typename T>
__device__ __forceinline__ void rms_norm_gradient_short(const NormGradient<T>& of, float epsilon) {
  __shared__ float sums[2][2][MAX_WARPS];
  u32 pack = threadIdx.x;
  bool any = pack * Pack<T>::COUNT < of.size;
  auto read = [&](const typename T::Bits* rows, u64 row) {
    return any && row < of.rows ? load_pack<T>(rows + row * of.size, of.size, pack) : zeros();
  };
  uint4 weight = read(of.weight, 0);
  uint4 next_x = read(of.x, blockIdx.x), next_dy = read(of.dy, blockIdx.x);
  float of_weight[Pack<T>::COUNT] = {};
  u32 turn = 0;
  for (u64 row = blockIdx.x; row < of.rows; row += gridDim.x, turn ^= 1) {
    FloatPack<T> values, gradients, factors;
    values.set(next_x);
    gradients.set(next_dy);
    factors.set(weight);
    uint4 dsum = of.dsum ? read(of.dsum, row) : weight;
    next_x = read(of.x, row + gridDim.x);
    next_dy = read(of.dy, row + gridDim.x);
    float products[2] = {};  // x^2, and dy weight x
#pragma unroll
    for (int k = 0; k < Pack<T>::COUNT; k++) {
      products[0] += values.values[k] * values.values[k];
      products[1] += gradients.values[k] * factors.values[k] * values.values[k];
    }
    block_sums(products, sums[turn]);
    float scale = norm_scale(products[0], of.size, epsilon);
    float slope = scale * scale * (products[1] / of.size);
#pragma unroll
    for (int k = 0; k < Pack<T>::COUNT; k++) {
      of_weight[k] += gradients.values[k] * (values.values[k] * scale);
      gradients.values[k] = scale * (gradients.values[k] * factors.values[k] - values.values[k] * slope);
    }
    if (of.dsum) gradients.add(dsum);
    if (any) store_pack<T>(of.dx + row * of.size, of.size, pack, gradients.rounded(1));
  }
#pragma unroll
  for (int k = 0; k < Pack<T>::COUNT; k++) {
    u64 element = (u64)pack * Pack<T>::COUNT + k;
    if (element < of.size) of.parts[blockIdx.x * of.size + element] = of_weight[k];
  }
}

// Of longer rows each thread adds up the weight's gradient of its own elements in shared memory of `size` floats, in whole
// packs: element k of pack i is number i of part k, so that a warp's lie side by side.
template <typename T>
__device__ __forceinline__ void rms_norm_gradient(const NormGradient<T>& of, float epsilon) {
  if (of.size <= (u64)blockDim.x * Pack<T>::COUNT) {
    rms_norm_gradient_short(of, epsilon);
    return;
  }
  extern __shared__ float of_weight[];
  __shared__ float sums[2][2][MAX_WARPS];
  u32 packs = pack_count<T>(of.size);
  for (u32 i = threadIdx.x; i < packs; i += blockDim.x) {
#pragma unroll
    for (int k = 0; k < Pack<T>::COUNT; k++) of_weight[k * packs + i] = 0;
  }
  u32 turn = 0;
  for (u64 row = blockIdx.x; row < of.rows; row += gridDim.x, turn ^= 1) {
    const typename T::Bits* x = of.x + row * of.size;
    const typename T::Bits* dy = of.dy + row * of.size;
    FloatPack<T> values, gradients, factors;
    float products[2] = {};  // x^2, and dy weight x
    for (u32 i = threadIdx.x; i < packs; i += blockDim.x) {
      load(values, x, of.size, i);
      load(gradients, dy, of.size, i);
      load(factors, of.weight, of.size, i);
#pragma unroll
      for (int k = 0; k < Pack<T>::COUNT; k++) {
        products[0] += values.values[k] * values.values[k];
        products[1] += gradients.values[k] * factors.values[k] * values.values[k];
      }
    }
    block_sums(products, sums[turn]);
    float scale = norm_scale(products[0], of.size, epsilon);
    float slope = scale * scale * (products[1] / of.size);
    for (u32 i = threadIdx.x; i < packs; i += blockDim.x) {
      load(values, x, of.size, i);
      load(gradients, dy, of.size, i);
      load(factors, of.weight, of.size, i);
#pragma unroll
      for (int k = 0; k < Pack<T>::COUNT; k++) {
        float value = values.values[k];
        float gradient = gradients.values[k];
        of_weight[k * packs + i] += gradient * (value * scale);
        gradients.values[k] = scale * (gradient * factors.values[k] - value * slope);
      }
      if (of.dsum) gradients.add(load_pack<T>(of.dsum + row * of.size, of.size, i));
      store_pack<T>(of.dx + row * of.size, of.size, i, gradients.rounded(1));
    }
  }
  for (u32 i = threadIdx.x; i < packs; i += blockDim.x) {
#pragma unroll
    for (int k = 0; k < Pack<T>::COUNT; k++) {
      u64 element = (u64)i * Pack<T>::COUNT + k;
      if (element < of.size) of.parts[blockIdx.x * of.size + element] = of_weight[k * packs + i];
    }
  }
}

// A warp's lanes have neighbouring elements, and its warps some of the parts each. Launched with WARP times SUMMING threads.
const int SUMMING = 8;

template <typename T>
__device__ __forceinline__ void rms_norm_weight_gradient(const WeightGradient<T>& of) {
  __shared__ float sums[SUMMING][WARP];
  u32 lane = threadIdx.x % WARP;
  u32 warp = threadIdx.x / WARP;
  u64 element = (u64)blockIdx.x * WARP + lane;
  float sum = 0;
  if (element < of.size) {
#pragma unroll 8
    for (u64 part = warp; part < of.count; part += SUMMING) sum += of.parts[part * of.size + element];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp == 0 && element < of.size) {
    for (int i = 1; i < SUMMING; i++) sum += sums[i][lane];
    of.dweight[element] = T::store(sum);
  }
}

// ---------------------------------------------------------------------------------------------------------------------------
// The rotation of heads, by pairs of an element of the first half and the one at the same place of the second (RotaryEmbedding
// in Java). The gradient is the rotation back. A block has a token: its queries, keys and values, each of them in an array of
// its own or beside the others; values are copied. Or queries alone.

template <typename T>
struct Heads {
  typename T::Bits* y;
  const typename T::Bits* x;
  u64 y_distance;  // from a token to the next, in elements; its heads lie one after the other, each as two halves
  u64 x_distance;
  u32 count;
  u32 turned;  // 1, or 0 for what is copied
};

const int KINDS = 3;

template <typename T>
struct Rotation {
  Heads<T> heads[KINDS];
  const typename T::Bits* cosines;  // positions, half of a head
  const typename T::Bits* sines;
  u64 positions;  // of a sequence; sequences of tokens, one after the other
  u64 half;
};

// `direction` is 1, or -1 to rotate back.
template <typename T>
__device__ __forceinline__ void rotate(const Rotation<T>& of, float direction) {
  u32 packs = pack_count<T>(of.half);
  u64 of_position = blockIdx.x % of.positions * of.half;
  u32 count = 0;
#pragma unroll
  for (int kind = 0; kind < KINDS; kind++) count += of.heads[kind].count;
  for (u32 i = threadIdx.x; i < count * packs; i += blockDim.x) {
    u32 pack = i % packs;
    u32 head = i / packs;
    int kind = 0;
    while (kind + 1 < KINDS && head >= of.heads[kind].count) head -= of.heads[kind++].count;
    const Heads<T>& heads = of.heads[kind];
    const typename T::Bits* x = heads.x + blockIdx.x * heads.x_distance + head * 2 * of.half;
    typename T::Bits* y = heads.y + blockIdx.x * heads.y_distance + head * 2 * of.half;
    FloatPack<T> first, second;
    load(first, x, of.half, pack);
    load(second, x + of.half, of.half, pack);
    if (heads.turned) {
      FloatPack<T> cosines, sines;
      load(cosines, of.cosines + of_position, of.half, pack);
      load(sines, of.sines + of_position, of.half, pack);
#pragma unroll
      for (int k = 0; k < Pack<T>::COUNT; k++) {
        rotate_pair<false>(first.values[k], second.values[k], cosines.values[k], direction * sines.values[k]);
      }
    }
    store_pack<T>(y, of.half, pack, first.rounded(1));
    store_pack<T>(y + of.half, of.half, pack, second.rounded(1));
  }
}

// ---------------------------------------------------------------------------------------------------------------------------
// The gate of SwiGLU: y = silu(gate) value, with silu(gate) = gate s and s = 1 / (1 + exp(-gate)). So
//   dvalue = dy silu(gate)
//   dgate  = dy value s (1 + gate (1 - s))

// The packs of some rows, which the threads of a grid take in turn: each divides once, not for each pack.
struct Turns {
  u64 rows, packs;  // packs of a row
  u64 row, pack;    // the thread's next
  u64 row_step, pack_step;

  __device__ __forceinline__ Turns(u64 rows, u64 packs) : rows(rows), packs(packs) {
    u64 first = blockIdx.x * (u64)blockDim.x + threadIdx.x;
    u64 step = (u64)gridDim.x * blockDim.x;
    row = first / packs;
    pack = first % packs;
    row_step = step / packs;
    pack_step = step % packs;
  }
  __device__ __forceinline__ bool left() const { return row < rows; }
  __device__ __forceinline__ void next() {
    row += row_step;
    pack += pack_step;
    if (pack >= packs) {
      pack -= packs;
      row++;
    }
  }
};

// Gates and values are two arrays, or the halves of the rows of one; so are their gradients.
template <typename T>
struct Gate {
  typename T::Bits* y;
  const typename T::Bits* gate;
  const typename T::Bits* value;
  u64 rows;
  u64 size;
  u64 distance;  // from a row of gates or values to the next, in elements
};

template <typename T>
struct GateGradient {
  typename T::Bits* dgate;
  typename T::Bits* dvalue;
  const typename T::Bits* dy;
  const typename T::Bits* gate;
  const typename T::Bits* value;
  u64 rows;
  u64 size;
  u64 distance;  // also of gradients
};

// A thread reads two packs at once, so that more is on its way.
template <typename T>
__device__ __forceinline__ void gate(const Gate<T>& of) {
  const int AT_ONCE = 2;
  Turns turn(of.rows, pack_count<T>(of.size));
  while (turn.left()) {
    uint4 gates[AT_ONCE], values[AT_ONCE];
    typename T::Bits* y[AT_ONCE];
    u64 pack[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
      y[i] = turn.left() ? of.y + turn.row * of.size : nullptr;
      pack[i] = turn.pack;
      if (!turn.left()) continue;
      gates[i] = load_pack<T>(of.gate + turn.row * of.distance, of.size, turn.pack);
      values[i] = load_pack<T>(of.value + turn.row * of.distance, of.size, turn.pack);
      turn.next();
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
      if (!y[i]) continue;
      FloatPack<T> gate, result;
      gate.set(gates[i]);
      result.set(values[i]);
#pragma unroll
      for (int k = 0; k < Pack<T>::COUNT; k++) result.values[k] *= silu(gate.values[k]);
      store_pack<T>(y[i], of.size, pack[i], result.rounded(1));
    }
  }
}

template <typename T>
__device__ __forceinline__ void gate_gradient(const GateGradient<T>& of) {
  for (Turns turn(of.rows, pack_count<T>(of.size)); turn.left(); turn.next()) {
    u64 begin = turn.row * of.distance;
    FloatPack<T> gates, values, gradients;
    load(gates, of.gate + begin, of.size, turn.pack);
    load(values, of.value + begin, of.size, turn.pack);
    load(gradients, of.dy + turn.row * of.size, of.size, turn.pack);
#pragma unroll
    for (int k = 0; k < Pack<T>::COUNT; k++) {
      float x = gates.values[k];
      float s = sigmoid(x);
      float gradient = gradients.values[k];
      gates.values[k] = gradient * values.values[k] * (s * (1 + x * (1 - s)));
      values.values[k] = gradient * (x * s);
    }
    store_pack<T>(of.dgate + begin, of.size, turn.pack, gates.rounded(1));
    store_pack<T>(of.dvalue + begin, of.size, turn.pack, values.rounded(1));
  }
}

// ---------------------------------------------------------------------------------------------------------------------------
// A matrix of float32, rounded, as some columns of another.

template <typename T>
struct Columns {
  typename T::Bits* y;
  const float* x;
  u64 rows;
  u64 size;
  u64 distance;  // from a row of y to the next, in elements
};

template <typename T>
__device__ __forceinline__ void place(const Columns<T>& of) {
  const int PARTS = sizeof(float) / sizeof(typename T::Bits);
  for (Turns turn(of.rows, pack_count<T>(of.size)); turn.left(); turn.next()) {
    const u32* row = (const u32*)of.x + turn.row * of.size;
    FloatPack<T> values;
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
      FloatPack<Float32> floats;
      load(floats, row, of.size, turn.pack * PARTS + part);
#pragma unroll
      for (int k = 0; k < Pack<Float32>::COUNT; k++) values.values[part * Pack<Float32>::COUNT + k] = floats.values[k];
    }
    store_pack<T>(of.y + turn.row * of.distance, of.size, turn.pack, values.rounded(1));
  }
}

#define KERNELS(name, T)                                                                                            \
  extern "C" __global__ void __launch_bounds__(MAX_THREADS, NORM_BLOCKS)                                            \
      rms_norm_##name(const __grid_constant__ Norm<T> of, float epsilon) {                                          \
    rms_norm<T>(of, epsilon);                                                                                       \
  }                                                                                                                 \
  extern "C" __global__ void __launch_bounds__(MAX_THREADS, 2)                                                      \
      rms_norm_gradient_##name(const __grid_constant__ NormGradient<T> of, float epsilon) {                         \
    rms_norm_gradient<T>(of, epsilon);                                                                              \
  }                                                                                                                 \
  extern "C" __global__ void rms_norm_weight_gradient_##name(const __grid_constant__ WeightGradient<T> of) {        \
    rms_norm_weight_gradient<T>(of);                                                                                \
  }                                                                                                                 \
  extern "C" __global__ void rotate_##name(const __grid_constant__ Rotation<T> of, float direction) {               \
    rotate<T>(of, direction);                                                                                       \
  }                                                                                                                 \
  extern "C" __global__ void gate_##name(const __grid_constant__ Gate<T> of) { gate<T>(of); }                       \
  extern "C" __global__ void gate_gradient_##name(const __grid_constant__ GateGradient<T> of) { gate_gradient<T>(of); }

// Of what is narrower than float32.
#define NARROW_KERNELS(name, T)                                                                                     \
  KERNELS(name, T)                                                                                                  \
  extern "C" __global__ void place_##name(const __grid_constant__ Columns<T> of) { place<T>(of); }

KERNELS(float32, Float32)
NARROW_KERNELS(float16, Float16)
#ifdef HAS_BFLOAT16
NARROW_KERNELS(bfloat16, Bfloat16)
#endif
