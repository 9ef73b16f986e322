// LoRA adapters of the rows of a decode step: to the product x weight^T of a row, its adapter adds (x A^T) B^T. Two kernels:
//
//   lora_shrink  low = x A^T, in float32: a sum for each part of the inputs
//   lora_expand  addend = low B^T, in float32, which a matmul adds to its sums before it rounds them; or adds low B^T to a product
//
// Which rows have which adapters is read from memory, so a CUDA graph serves all mixes of adapters. Rows without an adapter are neither
// read nor written.
//
// Terms
//   group   up to GROUP_ROWS rows with the same adapter, which read its matrices together. Blocks take groups in turn, along y
//   slice   the outputs of one of the projections that are fused: queries, keys, values; or gates, values of the MLP
//   part    the inputs that a block of lora_shrink multiplies
//
// Latency is what counts: beside a matmul, which reads memory at full speed, a load takes 1 to 2 us. Both kernels use programmatic
// dependent launch, and load the matrices, which no kernel writes, into registers while the previous kernel still runs. Then each waits
// for one load: of x, or of low. The matmul starts when all blocks of lora_expand have started. lora_shrink signals when x is complete
// (addend.cuh), so the matmul multiplies beside both kernels, and adds the addend last.
//
// lora_shrink uses tensor cores: the left operand is a tile of A, 16 rows; the right operand is the group's rows of x. A lane loads
// 16 bytes of each; mma takes them for other inputs, but the same ones in both operands, so the sum does not change.
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
const int TILE_ROWS = 16;         // of A
const int RANK_STEP = 8;          // ranks are filled up with zeros to a multiple of it
const int MAX_LOW = 3 * 256;      // the most rows of A
const int MAX_PARTS = 16;
const int PART_PACKS = 128;       // the fewest packs of a part, unless the inputs have fewer
const int PARTS_AT_ONCE = 8;
const int SHRINK_PACKS = 8;       // of x, that a lane loads at a time
const int TURN_PACKS = 4 * LORA_WARPS;  // of a row; 4 lanes of each warp have one each
const int EXPAND_OUTPUTS = 2;     // of a thread at a time
const int EXPAND_RANK = 16;       // of b, that a thread multiplies at a time
static_assert(RANK_STEP % PACK == 0, "a thread multiplies whole packs of a rank");
static_assert(MAX_LOW % TILE_ROWS == 0, "a tile is stored whole");
static_assert(LORA_THREADS == GROUP_ROWS * TILE_ROWS && TILE_ROWS == EXPAND_RANK, "a thread for each element of low in a tile");

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
  float* low;                 // (MAX_PARTS, batch, MAX_LOW)
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

// The packs of a part, a multiple of TURN_PACKS.
__device__ __forceinline__ u32 part_packs(u32 packs) {
  u32 most = (packs + MAX_PARTS - 1) / MAX_PARTS;
  return (max(most, (u32)PART_PACKS) + TURN_PACKS - 1) / TURN_PACKS * TURN_PACKS;
}

// Calls f(matrices, group) for each group of this block, with copies in registers: memory would be read again after each store.
template <typename F>
__device__ __forceinline__ void for_groups(const Lora& args, F f) {
  for (u32 group = blockIdx.y; group < args.batch; group += gridDim.y) {
    const AdaptedRows of = args.groups[group];
    if (!of.projections) return;
    const LowRank matrices = of.projections[args.projection];
    f(matrices, of);
  }
}

// A row of a group, without indexing registers.
__device__ __forceinline__ int row_of(const AdaptedRows& group, u32 i) {
  int row = group.rows[0];
#pragma unroll
  for (int k = 1; k < GROUP_ROWS; k++) row = i == k ? group.rows[k] : row;
  return row;
}

// Blocks along x: parts. Blocks along z take tiles of A in turn.
extern "C" __global__ void __launch_bounds__(LORA_THREADS) lora_shrink(const __grid_constant__ Lora args) {
  __shared__ float sums[LORA_WARPS][GROUP_ROWS][TILE_ROWS];
  launch_dependents();
  u32 packs = args.inputs / PACK, part = blockIdx.x, begin = part * part_packs(packs), end = min(packs, begin + part_packs(packs));
  if (begin >= packs) return;  // not the first block, which signals
  u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  u32 row = lane / 4;  // of both operands
  bool waited = false;
  auto wait_for_inputs = [&] {
    if (waited) return;
    waited = true;
    wait_for_primary();
    bool signals = blockIdx.x + blockIdx.y + blockIdx.z + threadIdx.x == 0;
    if (signals) asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(args.x_ready), "r"(1) : "memory");
  };
  for_groups(args, [&](const LowRank& of, const AdaptedRows& group) {
    int x_row = row_of(group, row), low_row = row_of(group, threadIdx.x / TILE_ROWS);
    const uint4* x = (const uint4*)args.x + (u64)max(x_row, 0) * packs;
    for (u32 tile = blockIdx.z * TILE_ROWS; tile < of.depth; tile += gridDim.z * TILE_ROWS) {
      bool is_upper = tile + row < of.depth, is_lower = tile + 8 + row < of.depth;
      const uint4 *upper = (const uint4*)of.a + (u64)(tile + row) * packs, *lower = upper + 8 * (u64)packs;
      float sum[4] = {};
      for (u32 turn = begin + warp * 4; turn < end; turn += SHRINK_PACKS * TURN_PACKS) {
        uint4 a[SHRINK_PACKS][2], right[SHRINK_PACKS];
        u32 pack = turn + lane % 4;
#pragma unroll
        for (int i = 0; i < SHRINK_PACKS; i++) {
          bool there = pack + i * TURN_PACKS < end;
          a[i][0] = there && is_upper ? upper[pack + i * TURN_PACKS] : zeros();
          a[i][1] = there && is_lower ? lower[pack + i * TURN_PACKS] : zeros();
        }
        wait_for_inputs();
#pragma unroll
        for (int i = 0; i < SHRINK_PACKS; i++) right[i] = x_row >= 0 && pack + i * TURN_PACKS < end ? x[pack + i * TURN_PACKS] : zeros();
#pragma unroll
        for (int i = 0; i < SHRINK_PACKS; i++) {
          mma(sum, a[i][0].x, a[i][1].x, a[i][0].y, a[i][1].y, right[i].x, right[i].y);
          mma(sum, a[i][0].z, a[i][1].z, a[i][0].w, a[i][1].w, right[i].z, right[i].w);
        }
      }
      wait_for_inputs();
#pragma unroll
      for (int i = 0; i < 4; i++) sums[warp][lane % 4 * 2 + i % 2][row + i / 2 * 8] = sum[i];
      __syncthreads();
      float total = 0;
#pragma unroll
      for (int w = 0; w < LORA_WARPS; w++) total += sums[w][threadIdx.x / TILE_ROWS][threadIdx.x % TILE_ROWS];
      if (low_row >= 0) args.low[((u64)part * args.batch + low_row) * MAX_LOW + tile + threadIdx.x % TILE_ROWS] = total;
      __syncthreads();
    }
  });
  wait_for_inputs();
}

__device__ __forceinline__ int slice_of(const LowRank& of, u32 output) { return output < of.ends[0] ? 0 : output < of.ends[1] ? 1 : 2; }

// The column of b at which the elements of a slice begin; -1 if it has no adapter.
__device__ __forceinline__ int column_of(const LowRank& of, int slice) {
  int column = slice == 0 ? of.columns[0] : slice == 1 ? of.columns[1] : of.columns[2];
  return of.depth == 0 ? -1 : column;
}

// Blocks along x take EXPAND_OUTPUTS * LORA_THREADS outputs in turn.
extern "C" __global__ void __launch_bounds__(LORA_THREADS, 8) lora_expand(const __grid_constant__ Lora args) {
  __shared__ __align__(16) float low[MAX_SLICES][GROUP_ROWS][EXPAND_RANK];  // the sums of all parts
  launch_dependents();
  const u32 BLOCK_OUTPUTS = EXPAND_OUTPUTS * LORA_THREADS;
  u32 outputs = args.outputs, packs = args.inputs / PACK, parts = (packs + part_packs(packs) - 1) / part_packs(packs);
  u32 own_row = threadIdx.x / EXPAND_RANK, own_column = threadIdx.x % EXPAND_RANK;  // of an element of low
  bool waited = false;
  auto wait_for_low = [&] {
    if (!waited) wait_for_primary();
    waited = true;
  };
  for_groups(args, [&](const LowRank& of, const AdaptedRows& group) {
    int low_row = row_of(group, own_row);
    for (u32 first = blockIdx.x * BLOCK_OUTPUTS, to_next = gridDim.x * BLOCK_OUTPUTS; first < outputs; first += to_next) {
      const Bits* b[EXPAND_OUTPUTS];  // null: no adapter
      int slices[EXPAND_OUTPUTS];
      float sum[EXPAND_OUTPUTS][GROUP_ROWS] = {};
#pragma unroll
      for (int i = 0; i < EXPAND_OUTPUTS; i++) {
        u32 output = first + i * LORA_THREADS + threadIdx.x;
        slices[i] = slice_of(of, min(output, outputs - 1));
        int column = column_of(of, slices[i]);
        b[i] = output < outputs && column >= 0 ? of.b + (u64)output * of.depth + column : nullptr;
      }
      int first_slice = slice_of(of, first), last_slice = slice_of(of, min(first + BLOCK_OUTPUTS, outputs) - 1);
      for (int r = 0; r < of.rank; r += EXPAND_RANK) {
        uint4 factors[EXPAND_OUTPUTS][EXPAND_RANK / PACK];
#pragma unroll
        for (int i = 0; i < EXPAND_OUTPUTS; i++)
#pragma unroll
          for (int p = 0; p < EXPAND_RANK / PACK; p++) {
            int at = r + p * PACK;
            factors[i][p] = b[i] && at < of.rank ? *(const uint4*)(b[i] + at) : zeros();
            if (p == 0 && b[i] && first + i * LORA_THREADS + threadIdx.x + to_next < outputs) prefetch(b[i] + (u64)to_next * of.depth + r);
          }
        wait_for_low();
        for (int slice = first_slice; slice <= last_slice; slice++) {
          int column = column_of(of, slice);
          bool there = column >= 0 && low_row >= 0 && r + own_column < of.rank;
          const float* sums = args.low + (there ? (u64)low_row * MAX_LOW + column + r + own_column : 0);
          float total = 0;
          for (u32 part = 0; part < parts; part += PARTS_AT_ONCE) {
            float loaded[PARTS_AT_ONCE];  // without conditions, so together
#pragma unroll
            for (u32 i = 0; i < PARTS_AT_ONCE; i++) loaded[i] = sums[(u64)min(part + i, parts - 1) * args.batch * MAX_LOW];
#pragma unroll
            for (u32 i = 0; i < PARTS_AT_ONCE; i++) total += part + i < parts ? loaded[i] : 0;
          }
          low[slice][own_row][own_column] = there ? total : 0;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < EXPAND_OUTPUTS; i++)
#pragma unroll
          for (int p = 0; p < EXPAND_RANK / PACK; p++) {
            FloatPack<T> f;
            f.set(factors[i][p]);
#pragma unroll
            for (int g = 0; g < GROUP_ROWS; g++) {
              const float4* of_row = (const float4*)&low[slices[i]][g][p * PACK];
              float4 left = of_row[0], right = of_row[1];
              sum[i][g] += f.values[0] * left.x + f.values[1] * left.y + f.values[2] * left.z + f.values[3] * left.w;
              sum[i][g] += f.values[4] * right.x + f.values[5] * right.y + f.values[6] * right.z + f.values[7] * right.w;
            }
          }
        __syncthreads();
      }
      wait_for_low();
#pragma unroll
      for (int i = 0; i < EXPAND_OUTPUTS; i++) {
        u32 output = first + i * LORA_THREADS + threadIdx.x;
#pragma unroll
        for (int g = 0; g < GROUP_ROWS; g++) {
          u64 row = group.rows[g];
          if (group.rows[g] < 0 || output >= outputs) continue;
          if (args.output) {
            Bits* to = args.output + row * args.stride + output;
            *to = T::store(T::load(*to) + sum[i][g]);
          } else {
            args.addend[row * args.outputs + output] = sum[i][g];
          }
        }
      }
    }
  });
  wait_for_low();
}

#endif
