// The operators of a transformer block between its matmuls, for training: RMSNorm, rotary embedding and SwiGLU's gate, their
// gradients, and the conversion of weights. Each kernel makes one pass over memory; libtorch makes one for each step of a formula.
//
// Computed in float32, rounded once. Results depend on the sizes and the number of blocks, not on the order in which blocks run.
// Synchronisation: none between blocks.
//
// Experiments: docs/design/experiments/training.md.
#include "block_sum.cuh"
#include "element.cuh"
#include "rms_norm.cuh"
#include "rotary.cuh"
#include "silu.cuh"

const int MAX_THREADS = 512;
const int MAX_WARPS = MAX_THREADS / WARP;

// Resident blocks of the norm kernels per SM. Before compute capability 8.0 some SMs hold 1024 threads only.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
const int NORM_BLOCKS_PER_SM = 2;
#else
const int NORM_BLOCKS_PER_SM = 3;
#endif

// ---------------------------------------------------------------------------------------------------------------------------
// RMSNorm: y = x / sqrt(mean(x^2) + epsilon) * weight, for `rows` rows of `size` elements. With r = 1 / sqrt(...),
//   dx      = r (dy weight - x r^2 mean(dy weight x))
//   dweight = sum of dy x r over the rows
// With a residual connection, x is the rounded sum of two arrays, and the gradient of that sum (dsum) is added to dx.
// A block has one row at a time. If a thread has at most one pack of a row ("short"), the pack stays in registers and the next row's
// loads are in flight during the block sum. Otherwise the second read comes from the L1 cache.

template <typename T>
struct Norm {
  typename T::Bits* y;
  typename T::Bits* sum;  // output x + addend; null: no addend
  const typename T::Bits* x;
  const typename T::Bits* addend;
  const typename T::Bits* weight;
  u64 rows;
  u64 size;
};

template <typename T>
struct NormGradient {
  typename T::Bits* dx;
  float* parts;  // partial dweight, a row of `size` per block
  const typename T::Bits* dy;
  const typename T::Bits* dsum;  // gradient of the residual sum; null: none
  const typename T::Bits* x;
  const typename T::Bits* weight;
  u64 rows;
  u64 size;
};

template <typename T>
struct WeightGradient {
  typename T::Bits* dweight;
  const float* parts;
  u64 count;  // parts
  u64 size;
};

template <typename T>
__device__ __forceinline__ void load(FloatPack<T>& values, const typename T::Bits* row, u64 size, u32 pack) {
  values.set(load_pack<T>(row, size, pack));
}

template <typename T>
__device__ __forceinline__ void rms_norm_short(const Norm<T>& args, float epsilon) {
  __shared__ float sums[2][1][MAX_WARPS];
  u32 pack = threadIdx.x;
  bool any = pack * Pack<T>::COUNT < args.size;
  auto read = [&](const typename T::Bits* rows, u64 row) {
    return any && row < args.rows ? load_pack<T>(rows + row * args.size, args.size, pack) : zeros();
  };
  uint4 weight = read(args.weight, 0);
  uint4 next = read(args.x, blockIdx.x), next_addend = args.sum ? read(args.addend, blockIdx.x) : next;
  u32 parity = 0;
  for (u64 row = blockIdx.x; row < args.rows; row += gridDim.x, parity ^= 1) {
    uint4 x = next;
    if (args.sum) {
      x = add_packs<T>(next, next_addend);
      if (any) store_pack<T>(args.sum + row * args.size, args.size, pack, x);
      next_addend = read(args.addend, row + gridDim.x);
    }
    next = read(args.x, row + gridDim.x);
    FloatPack<T> values;
    values.set(x);
    float squares[1] = {add_squares<T>(0, values)};
    block_sums(squares, sums[parity]);
    float scale = norm_scale(squares[0], args.size, epsilon);
    if (any) store_pack<T>(args.y + row * args.size, args.size, pack, normalize_pack<T>(values, scale, weight));
  }
}

template <typename T>
__device__ __forceinline__ void rms_norm(const Norm<T>& args, float epsilon) {
  if (args.size <= (u64)blockDim.x * Pack<T>::COUNT) {
    rms_norm_short(args, epsilon);
    return;
  }
  __shared__ float sums[2][1][MAX_WARPS];
  u32 packs = pack_count<T>(args.size);
  u32 parity = 0;
  for (u64 row = blockIdx.x; row < args.rows; row += gridDim.x, parity ^= 1) {
    const typename T::Bits* x = args.x + row * args.size;
    float squares[1] = {};
    for (u32 i = threadIdx.x; i < packs; i += blockDim.x) {
      uint4 pack = load_pack<T>(x, args.size, i);
      if (args.sum) {
        pack = add_packs<T>(pack, load_pack<T>(args.addend + row * args.size, args.size, i));
        store_pack<T>(args.sum + row * args.size, args.size, i, pack);
      }
      squares[0] = add_squares<T>(squares[0], pack);
    }
    block_sums(squares, sums[parity]);
    float scale = norm_scale(squares[0], args.size, epsilon);
    if (args.sum) x = args.sum + row * args.size;  // each thread reads its own stores
    for (u32 i = threadIdx.x; i < packs; i += blockDim.x) {
      uint4 pack = normalize_pack<T>(load_pack<T>(x, args.size, i), scale, load_pack<T>(args.weight, args.size, i));
      store_pack<T>(args.y + row * args.size, args.size, i, pack);
    }
  }
}

template <typename T>
__device__ __forceinline__ void rms_norm_gradient_short(const NormGradient<T>& args, float epsilon) {
  __shared__ float sums[2][2][MAX_WARPS];
  u32 pack = threadIdx.x;
  bool any = pack * Pack<T>::COUNT < args.size;
  auto read = [&](const typename T::Bits* rows, u64 row) {
    return any && row < args.rows ? load_pack<T>(rows + row * args.size, args.size, pack) : zeros();
  };
  uint4 weight = read(args.weight, 0);
  uint4 next_x = read(args.x, blockIdx.x), next_dy = read(args.dy, blockIdx.x);
  float weight_gradient[Pack<T>::COUNT] = {};
  u32 parity = 0;
  for (u64 row = blockIdx.x; row < args.rows; row += gridDim.x, parity ^= 1) {
    FloatPack<T> values, gradients, factors;
    values.set(next_x);
    gradients.set(next_dy);
    factors.set(weight);
    uint4 dsum = args.dsum ? read(args.dsum, row) : weight;
    next_x = read(args.x, row + gridDim.x);
    next_dy = read(args.dy, row + gridDim.x);
    float products[2] = {};  // x^2, and dy weight x
#pragma unroll
    for (int k = 0; k < Pack<T>::COUNT; k++) {
      products[0] += values.values[k] * values.values[k];
      products[1] += gradients.values[k] * factors.values[k] * values.values[k];
    }
    block_sums(products, sums[parity]);
    float scale = norm_scale(products[0], args.size, epsilon);
    float slope = scale * scale * (products[1] / args.size);
#pragma unroll
    for (int k = 0; k < Pack<T>::COUNT; k++) {
      weight_gradient[k] += gradients.values[k] * (values.values[k] * scale);
      gradients.values[k] = scale * (gradients.values[k] * factors.values[k] - values.values[k] * slope);
    }
    if (args.dsum) gradients.add(dsum);
    if (any) store_pack<T>(args.dx + row * args.size, args.size, pack, gradients.rounded(1));
  }
#pragma unroll
  for (int k = 0; k < Pack<T>::COUNT; k++) {
    u64 element = (u64)pack * Pack<T>::COUNT + k;
    if (element < args.size) args.parts[blockIdx.x * args.size + element] = weight_gradient[k];
  }
}

// Long rows: each thread adds up dweight of its own elements in shared memory of `size` floats, in whole packs. Element k of pack i is
// at k * packs + i, so a warp's accesses are contiguous.
template <typename T>
__device__ __forceinline__ void rms_norm_gradient(const NormGradient<T>& args, float epsilon) {
  if (args.size <= (u64)blockDim.x * Pack<T>::COUNT) {
    rms_norm_gradient_short(args, epsilon);
    return;
  }
  extern __shared__ float weight_gradient[];
  __shared__ float sums[2][2][MAX_WARPS];
  u32 packs = pack_count<T>(args.size);
  for (u32 i = threadIdx.x; i < packs; i += blockDim.x) {
#pragma unroll
    for (int k = 0; k < Pack<T>::COUNT; k++) weight_gradient[k * packs + i] = 0;
  }
  u32 parity = 0;
  for (u64 row = blockIdx.x; row < args.rows; row += gridDim.x, parity ^= 1) {
    const typename T::Bits* x = args.x + row * args.size;
    const typename T::Bits* dy = args.dy + row * args.size;
    FloatPack<T> values, gradients, factors;
    float products[2] = {};  // x^2, and dy weight x
    for (u32 i = threadIdx.x; i < packs; i += blockDim.x) {
      load(values, x, args.size, i);
      load(gradients, dy, args.size, i);
      load(factors, args.weight, args.size, i);
#pragma unroll
      for (int k = 0; k < Pack<T>::COUNT; k++) {
        products[0] += values.values[k] * values.values[k];
        products[1] += gradients.values[k] * factors.values[k] * values.values[k];
      }
    }
    block_sums(products, sums[parity]);
    float scale = norm_scale(products[0], args.size, epsilon);
    float slope = scale * scale * (products[1] / args.size);
    for (u32 i = threadIdx.x; i < packs; i += blockDim.x) {
      load(values, x, args.size, i);
      load(gradients, dy, args.size, i);
      load(factors, args.weight, args.size, i);
#pragma unroll
      for (int k = 0; k < Pack<T>::COUNT; k++) {
        float value = values.values[k];
        float gradient = gradients.values[k];
        weight_gradient[k * packs + i] += gradient * (value * scale);
        gradients.values[k] = scale * (gradient * factors.values[k] - value * slope);
      }
      if (args.dsum) gradients.add(load_pack<T>(args.dsum + row * args.size, args.size, i));
      store_pack<T>(args.dx + row * args.size, args.size, i, gradients.rounded(1));
    }
  }
  for (u32 i = threadIdx.x; i < packs; i += blockDim.x) {
#pragma unroll
    for (int k = 0; k < Pack<T>::COUNT; k++) {
      u64 element = (u64)i * Pack<T>::COUNT + k;
      if (element < args.size) args.parts[blockIdx.x * args.size + element] = weight_gradient[k * packs + i];
    }
  }
}

// Sums the partial dweight. Lanes have neighbouring elements; each of PART_WARPS warps has every PART_WARPS-th part.
const int PART_WARPS = 8;

template <typename T>
__device__ __forceinline__ void rms_norm_weight_gradient(const WeightGradient<T>& args) {
  __shared__ float sums[PART_WARPS][WARP];
  u32 lane = threadIdx.x % WARP;
  u32 warp = threadIdx.x / WARP;
  u64 element = (u64)blockIdx.x * WARP + lane;
  float sum = 0;
  if (element < args.size) {
#pragma unroll 8
    for (u64 part = warp; part < args.count; part += PART_WARPS) sum += args.parts[part * args.size + element];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp == 0 && element < args.size) {
    for (int i = 1; i < PART_WARPS; i++) sum += sums[i][lane];
    args.dweight[element] = T::store(sum);
  }
}

// ---------------------------------------------------------------------------------------------------------------------------
// Rotary embedding of heads (rotary.cuh; RotaryEmbedding in Java). The gradient rotates by the negative angle.
//
// A block has one token: its queries, keys and values, in three arrays or in one; values are copied. Or queries only.

template <typename T>
struct Heads {
  typename T::Bits* y;
  const typename T::Bits* x;
  u64 y_distance;  // elements from a token to the next; the heads of a token are contiguous
  u64 x_distance;
  u32 count;
  u32 rotated;  // 1: rotate, 0: copy
};

const int HEAD_KINDS = 3;

template <typename T>
struct Rotation {
  Heads<T> heads[HEAD_KINDS];
  const typename T::Bits* cosines;  // (positions, half)
  const typename T::Bits* sines;
  u64 positions;  // tokens of a sequence; sequences are contiguous
  u64 half;       // elements of half a head
};

// `direction` is 1, or -1 to rotate back.
template <typename T>
__device__ __forceinline__ void rotate(const Rotation<T>& args, float direction) {
  u32 packs = pack_count<T>(args.half);
  u64 table_row = blockIdx.x % args.positions * args.half;
  u32 count = 0;
#pragma unroll
  for (int kind = 0; kind < HEAD_KINDS; kind++) count += args.heads[kind].count;
  for (u32 i = threadIdx.x; i < count * packs; i += blockDim.x) {
    u32 pack = i % packs;
    u32 head = i / packs;
    int kind = 0;
    while (kind + 1 < HEAD_KINDS && head >= args.heads[kind].count) head -= args.heads[kind++].count;
    const Heads<T>& heads = args.heads[kind];
    const typename T::Bits* x = heads.x + blockIdx.x * heads.x_distance + head * 2 * args.half;
    typename T::Bits* y = heads.y + blockIdx.x * heads.y_distance + head * 2 * args.half;
    FloatPack<T> first, second;
    load(first, x, args.half, pack);
    load(second, x + args.half, args.half, pack);
    if (heads.rotated) {
      FloatPack<T> cosines, sines;
      load(cosines, args.cosines + table_row, args.half, pack);
      load(sines, args.sines + table_row, args.half, pack);
#pragma unroll
      for (int k = 0; k < Pack<T>::COUNT; k++) {
        rotate_pair<false>(first.values[k], second.values[k], cosines.values[k], direction * sines.values[k]);
      }
    }
    store_pack<T>(y, args.half, pack, first.rounded(1));
    store_pack<T>(y + args.half, args.half, pack, second.rounded(1));
  }
}

// ---------------------------------------------------------------------------------------------------------------------------
// SwiGLU's gate: y = silu(gate) value. With s = sigmoid(gate):
//   dvalue = dy silu(gate)
//   dgate  = dy value s (1 + gate (1 - s))

// Grid-stride loop over the packs of some rows, with one division per thread instead of one per pack.
struct PackLoop {
  u64 rows, packs;  // packs of a row
  u64 row, pack;    // the thread's current pack
  u64 row_step, pack_step;

  __device__ __forceinline__ PackLoop(u64 rows, u64 packs) : rows(rows), packs(packs) {
    u64 first = blockIdx.x * (u64)blockDim.x + threadIdx.x;
    u64 step = (u64)gridDim.x * blockDim.x;
    row = first / packs;
    pack = first % packs;
    row_step = step / packs;
    pack_step = step % packs;
  }
  __device__ __forceinline__ bool has_next() const { return row < rows; }
  __device__ __forceinline__ void next() {
    row += row_step;
    pack += pack_step;
    if (pack >= packs) {
      pack -= packs;
      row++;
    }
  }
};

// Gates and values are two arrays, or the two halves of each row of one array; their gradients likewise.
template <typename T>
struct Gate {
  typename T::Bits* y;
  const typename T::Bits* gate;
  const typename T::Bits* value;
  u64 rows;
  u64 size;
  u64 distance;  // elements between rows of gates or values
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
  u64 distance;  // also between rows of gradients
};

// A thread has two packs in flight.
template <typename T>
__device__ __forceinline__ void gate(const Gate<T>& args) {
  const int UNROLL = 2;
  PackLoop loop(args.rows, pack_count<T>(args.size));
  while (loop.has_next()) {
    uint4 gates[UNROLL], values[UNROLL];
    typename T::Bits* y[UNROLL];
    u64 pack[UNROLL];
#pragma unroll
    for (int i = 0; i < UNROLL; i++) {
      y[i] = loop.has_next() ? args.y + loop.row * args.size : nullptr;
      pack[i] = loop.pack;
      if (!loop.has_next()) continue;
      gates[i] = load_pack<T>(args.gate + loop.row * args.distance, args.size, loop.pack);
      values[i] = load_pack<T>(args.value + loop.row * args.distance, args.size, loop.pack);
      loop.next();
    }
#pragma unroll
    for (int i = 0; i < UNROLL; i++) {
      if (!y[i]) continue;
      FloatPack<T> gate, result;
      gate.set(gates[i]);
      result.set(values[i]);
#pragma unroll
      for (int k = 0; k < Pack<T>::COUNT; k++) result.values[k] *= silu(gate.values[k]);
      store_pack<T>(y[i], args.size, pack[i], result.rounded(1));
    }
  }
}

template <typename T>
__device__ __forceinline__ void gate_gradient(const GateGradient<T>& args) {
  for (PackLoop loop(args.rows, pack_count<T>(args.size)); loop.has_next(); loop.next()) {
    u64 begin = loop.row * args.distance;
    FloatPack<T> gates, values, gradients;
    load(gates, args.gate + begin, args.size, loop.pack);
    load(values, args.value + begin, args.size, loop.pack);
    load(gradients, args.dy + loop.row * args.size, args.size, loop.pack);
#pragma unroll
    for (int k = 0; k < Pack<T>::COUNT; k++) {
      float x = gates.values[k];
      float s = sigmoid(x);
      float gradient = gradients.values[k];
      gates.values[k] = gradient * values.values[k] * (s * (1 + x * (1 - s)));
      values.values[k] = gradient * (x * s);
    }
    store_pack<T>(args.dgate + begin, args.size, loop.pack, gates.rounded(1));
    store_pack<T>(args.dvalue + begin, args.size, loop.pack, values.rounded(1));
  }
}

// ---------------------------------------------------------------------------------------------------------------------------
// Converts a float32 matrix into some columns of a 16-bit matrix.

template <typename T>
struct Columns {
  typename T::Bits* y;
  const float* x;
  u64 rows;
  u64 size;
  u64 distance;  // elements between rows of y
};

template <typename T>
__device__ __forceinline__ void convert_columns(const Columns<T>& args) {
  const int PARTS = sizeof(float) / sizeof(typename T::Bits);
  for (PackLoop loop(args.rows, pack_count<T>(args.size)); loop.has_next(); loop.next()) {
    const u32* row = (const u32*)args.x + loop.row * args.size;
    FloatPack<T> values;
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
      FloatPack<Float32> floats;
      load(floats, row, args.size, loop.pack * PARTS + part);
#pragma unroll
      for (int k = 0; k < Pack<Float32>::COUNT; k++) values.values[part * Pack<Float32>::COUNT + k] = floats.values[k];
    }
    store_pack<T>(args.y + loop.row * args.distance, args.size, loop.pack, values.rounded(1));
  }
}

#define KERNELS(name, T)                                                                                            \
  extern "C" __global__ void __launch_bounds__(MAX_THREADS, NORM_BLOCKS_PER_SM)                                            \
      rms_norm_##name(const __grid_constant__ Norm<T> args, float epsilon) {                                          \
    rms_norm<T>(args, epsilon);                                                                                       \
  }                                                                                                                 \
  extern "C" __global__ void __launch_bounds__(MAX_THREADS, 2)                                                      \
      rms_norm_gradient_##name(const __grid_constant__ NormGradient<T> args, float epsilon) {                         \
    rms_norm_gradient<T>(args, epsilon);                                                                              \
  }                                                                                                                 \
  extern "C" __global__ void rms_norm_weight_gradient_##name(const __grid_constant__ WeightGradient<T> args) {        \
    rms_norm_weight_gradient<T>(args);                                                                                \
  }                                                                                                                 \
  extern "C" __global__ void rotate_##name(const __grid_constant__ Rotation<T> args, float direction) {               \
    rotate<T>(args, direction);                                                                                       \
  }                                                                                                                 \
  extern "C" __global__ void gate_##name(const __grid_constant__ Gate<T> args) { gate<T>(args); }                       \
  extern "C" __global__ void gate_gradient_##name(const __grid_constant__ GateGradient<T> args) { gate_gradient<T>(args); }

// 16-bit types only.
#define NARROW_KERNELS(name, T)                                                                                     \
  KERNELS(name, T)                                                                                                  \
  extern "C" __global__ void convert_columns_##name(const __grid_constant__ Columns<T> args) { convert_columns<T>(args); }

KERNELS(float32, Float32)
NARROW_KERNELS(float16, Float16)
#ifdef HAS_BFLOAT16
NARROW_KERNELS(bfloat16, Bfloat16)
#endif
