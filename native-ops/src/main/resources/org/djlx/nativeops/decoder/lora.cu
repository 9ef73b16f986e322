// LoRA adapters of the rows of a decode step: to the product x weight^T of a row, its adapter adds (x A^T) B^T. Two kernels:
//
//   lora_shrink  low = x A^T, in float32
//   lora_expand  addend = low B^T, in float32, which a matmul adds to its sums before it rounds them; or adds low B^T to a product
//
// Which rows have which adapters is read from memory, so a CUDA graph serves all mixes of adapters. Rows without an adapter are neither
// read nor written.
//
// Terms
//   group   up to GROUP_ROWS rows with the same adapter, which read its matrices together. Blocks take groups in turn, along y
//   slice   the outputs of one of the projections that are fused: queries, keys, values; or gates, values of the MLP
//
// Both kernels use programmatic dependent launch: they copy the matrices, which no kernel writes, into L2 while the previous kernel still
// runs. The matmul starts when all blocks of lora_expand have started. lora_shrink signals when x is complete (addend.cuh), so the matmul
// multiplies beside both kernels, and adds the addend last. A matmul's block must fit on an SM beside their blocks: few and small ones.
//
// Invariant: bit for bit, the addend of a row depends neither on the other rows nor on their number.
// Synchronisation: none between blocks.
//
// Compiled with
//   TYPE  Float16 or Bfloat16
#include "decoder/common.cuh"

#ifdef HAS_BFLOAT16

const int LORA_WARPS = 4;
const int LORA_THREADS = LORA_WARPS * WARP;
const int GROUP_ROWS = 8;
const int MAX_SLICES = 3;
const int SHRINK_ROWS = 2;        // of A, that a block multiplies at a time
const int RANK_STEP = 8;          // ranks are filled up with zeros to a multiple of it
const int MAX_LOW = 3 * 256;      // the most rows of A
const int LINE_BYTES = 128;       // of L2
static_assert(RANK_STEP % PACK == 0, "a thread multiplies whole packs of a rank");

// An adapter's matrices for one projection.
struct LowRank {
  const Bits* a;            // (depth, inputs)
  const Bits* b;            // (outputs, depth): `rank` elements of a row belong to its slice, the others are 0
  int rank;                 // a multiple of RANK_STEP
  int depth;                // the rank of all slices together; 0 if the projection has no adapter
  int ends[MAX_SLICES];     // of the slices: outputs
  int columns[MAX_SLICES];  // of b, at which the elements of a slice begin; -1 if the slice has no adapter
};

struct AdaptedRows {
  const LowRank* projections;  // of the adapter; null: neither this group nor a later one has rows
  int rows[GROUP_ROWS];        // -1: none
};

struct Lora {
  const Bits* x;              // (batch, inputs)
  float* low;                 // (batch, MAX_LOW)
  float* addend;              // (batch, outputs)
  Bits* output;               // (batch, outputs), rows `stride` elements apart: added to, in place of storing an addend; may be null
  const AdaptedRows* groups;  // (batch)
  u64 projection;             // its index
  u64 batch;
  u64 inputs;                 // a multiple of PACK
  u64 outputs;
  u64 stride;
  u32* x_ready;               // set to 1 when x is complete; 0 before
};

__device__ __forceinline__ void prefetch(const void* line) { asm volatile("prefetch.global.L2 [%0];" ::"l"(line)); }

// Calls f(matrices, rows) for each group of this block.
template <typename F>
__device__ __forceinline__ void for_groups(const Lora& args, F f) {
  for (u32 group = blockIdx.y; group < args.batch; group += gridDim.y) {
    const AdaptedRows& of = args.groups[group];
    if (!of.projections) return;
    f(of.projections[args.projection], of.rows);
  }
}

// Blocks along x take SHRINK_ROWS rows of A in turn.
extern "C" __global__ void __launch_bounds__(LORA_THREADS) lora_shrink(const __grid_constant__ Lora args) {
  __shared__ float sums[LORA_WARPS][SHRINK_ROWS * GROUP_ROWS];
  launch_dependents();
  u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  u32 inputs = args.inputs, packs = inputs / PACK;
  for_groups(args, [&](const LowRank& of, const int*) {
    for (u32 row = blockIdx.x * SHRINK_ROWS; row < of.depth; row += gridDim.x * SHRINK_ROWS) {
      const char* from = (const char*)(of.a + (u64)row * inputs);
      for (u32 byte = threadIdx.x * LINE_BYTES; byte < SHRINK_ROWS * inputs * sizeof(Bits); byte += LORA_THREADS * LINE_BYTES)
        prefetch(from + byte);
    }
  });
  wait_for_primary();
  if (blockIdx.x + blockIdx.y + threadIdx.x == 0) asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(args.x_ready), "r"(1) : "memory");
  for_groups(args, [&](const LowRank& of, const int* group_rows) {
    int rows[GROUP_ROWS];
#pragma unroll
    for (int i = 0; i < GROUP_ROWS; i++) rows[i] = group_rows[i];
    for (u32 row = blockIdx.x * SHRINK_ROWS; row < of.depth; row += gridDim.x * SHRINK_ROWS) {
      const uint4* a = (const uint4*)(of.a + (u64)row * inputs);
      float sum[SHRINK_ROWS][GROUP_ROWS] = {};
      for (u32 pack = threadIdx.x; pack < packs; pack += LORA_THREADS) {
        FloatPack<T> factors[SHRINK_ROWS];
        uint4 x[GROUP_ROWS];  // all loads are in flight together
#pragma unroll
        for (int i = 0; i < GROUP_ROWS; i++) x[i] = rows[i] < 0 ? zeros() : ((const uint4*)args.x)[(u64)rows[i] * packs + pack];
#pragma unroll
        for (int k = 0; k < SHRINK_ROWS; k++) factors[k].set(a[k * packs + pack]);
#pragma unroll
        for (int i = 0; i < GROUP_ROWS; i++) {
          if (rows[i] < 0) continue;
          FloatPack<T> values;
          values.set(x[i]);
#pragma unroll
          for (int k = 0; k < SHRINK_ROWS; k++)
#pragma unroll
            for (int e = 0; e < PACK; e++) sum[k][i] += factors[k].values[e] * values.values[e];
        }
      }
#pragma unroll
      for (int k = 0; k < SHRINK_ROWS; k++)
#pragma unroll
        for (int i = 0; i < GROUP_ROWS; i++) {
          float of_warp = warp_sum(sum[k][i]);
          if (lane == 0) sums[warp][k * GROUP_ROWS + i] = of_warp;
        }
      __syncthreads();
      if (threadIdx.x < SHRINK_ROWS * GROUP_ROWS) {
        int to = group_rows[threadIdx.x % GROUP_ROWS];
        float total = 0;
#pragma unroll
        for (int w = 0; w < LORA_WARPS; w++) total += sums[w][threadIdx.x];
        if (to >= 0) args.low[(u64)to * MAX_LOW + row + threadIdx.x / GROUP_ROWS] = total;
      }
      __syncthreads();
    }
  });
}

// The elements of b for an output; null if its slice has no adapter. `column`: that of the first one, and the index of its factor in `low`.
__device__ __forceinline__ const Bits* elements_of(const LowRank& of, u32 output, int& column) {
  column = of.depth == 0 ? -1 : of.columns[MAX_SLICES - 1];
#pragma unroll
  for (int slice = MAX_SLICES - 2; slice >= 0; slice--)
    if (of.depth > 0 && output < of.ends[slice]) column = of.columns[slice];
  return column < 0 ? nullptr : of.b + (u64)output * of.depth + column;
}

// A thread for each output; blocks along x take outputs in turn.
extern "C" __global__ void __launch_bounds__(LORA_THREADS) lora_expand(const __grid_constant__ Lora args) {
  launch_dependents();
  u32 first = blockIdx.x * LORA_THREADS + threadIdx.x, to_next = gridDim.x * LORA_THREADS, outputs = args.outputs;
  int column;
  for_groups(args, [&](const LowRank& of, const int*) {
    for (u32 output = first; output < outputs; output += to_next) {
      const Bits* b = elements_of(of, output, column);
      if (b) prefetch(b);
    }
  });
  wait_for_primary();
  for_groups(args, [&](const LowRank& of, const int* rows) {
    for (u32 output = first; output < outputs; output += to_next) {
      const Bits* b = elements_of(of, output, column);
      float sum[GROUP_ROWS] = {};
      for (int r = 0; b && r < of.rank; r += PACK) {
        FloatPack<T> factors;
        factors.set(*(const uint4*)(b + r));
#pragma unroll
        for (int i = 0; i < GROUP_ROWS; i++) {
          if (rows[i] < 0) continue;
          const float4* low = (const float4*)(args.low + (u64)rows[i] * MAX_LOW + column + r);
          float4 first = low[0], second = low[1];
          sum[i] += factors.values[0] * first.x + factors.values[1] * first.y + factors.values[2] * first.z + factors.values[3] * first.w;
          sum[i] += factors.values[4] * second.x + factors.values[5] * second.y + factors.values[6] * second.z + factors.values[7] * second.w;
        }
      }
#pragma unroll
      for (int i = 0; i < GROUP_ROWS; i++) {
        if (rows[i] < 0) continue;
        if (args.output) {
          Bits* to = args.output + rows[i] * args.stride + output;
          *to = T::store(T::load(*to) + sum[i]);
        } else {
          args.addend[rows[i] * args.outputs + output] = sum[i];
        }
      }
    }
  });
}

#endif
