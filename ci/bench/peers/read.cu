// Measures how fast a Hopper GPU reads its memory by the access patterns of the decode kernels: the limit of a decode step, which
// reads all weights once. Prints GB/s, medians of 20 launches over 4 GiB; with the argument `once` launches each kernel once, for a
// profiler. `ci/bench.sh read` compiles and runs it.
//
//   bulk    contiguous 16 KiB by cp.async.bulk, 2 to 12 copies of a block under way
//   boxes   8 rows of 1 KiB of a matrix with rows of 8 KiB by tensor maps, 2 to 12 stages of 16 KiB of a block under way: decode_chain
//   lanes   16 bytes a lane by cp.async.cg with L2::256B, 16 rows of 64 bytes a warp, 24 KiB of a warp under way: decode_matmul
//   loads   16 bytes a thread by plain loads, 8 under way
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "hopper.cuh"

#define CHECK(call)                                                                        \
  do {                                                                                     \
    cudaError_t error = (call);                                                            \
    if (error != cudaSuccess) {                                                            \
      fprintf(stderr, "error: line %d: %s\n", __LINE__, cudaGetErrorString(error));        \
      exit(1);                                                                             \
    }                                                                                      \
  } while (0)

const u64 BYTES = 4ull << 30;
const u32 STAGE = 16384, MOST = 12;
const u32 ROW = 8192, SEGMENT = 1024, TILE = 16;  // bytes of a row, of a row in a stage; rows of a stage
const u32 WARPS = 8, SLOTS = 24, SLOT = 1024;     // of `lanes`

// One thread of a block copies stage after stage; `count` are under way.
__device__ void wait_oldest(Barrier* loaded, u64 stage, u32 count) { loaded[stage % count].wait(stage / count & 1); }

__device__ void init(Barrier* loaded) {
  for (u32 i = 0; i < MOST; i++) loaded[i].init(1);
  publish_barriers();
}

__global__ void bulk(const char* data, u32 count) {
  extern __shared__ __align__(128) char ring[];
  __shared__ Barrier loaded[MOST];
  init(loaded);
  u64 stage = 0;
  for (u64 at = blockIdx.x; at < BYTES / STAGE; at += gridDim.x, stage++) {
    if (stage >= count) wait_oldest(loaded, stage - count, count);
    loaded[stage % count].arrive_expecting(STAGE);
    load_bytes(ring + stage % count * STAGE, data + at * STAGE, STAGE, loaded[stage % count]);
  }
  for (u64 i = stage > count ? stage - count : 0; i < stage; i++) wait_oldest(loaded, i, count);
}

__global__ void boxes(const __grid_constant__ TensorMap map, u32 count) {
  extern __shared__ __align__(128) char ring[];
  __shared__ Barrier loaded[MOST];
  init(loaded);
  u64 stage = 0;
  for (u32 tile = blockIdx.x; tile < BYTES / ROW / TILE; tile += gridDim.x) {
    for (u32 segment = 0; segment < ROW / SEGMENT; segment++, stage++) {
      if (stage >= count) wait_oldest(loaded, stage - count, count);
      Barrier& barrier = loaded[stage % count];
      char* to = ring + stage % count * STAGE;
      barrier.arrive_expecting(STAGE);
      load_box(to, map, barrier, segment * SEGMENT / 4, tile * TILE);
      load_box(to + STAGE / 2, map, barrier, segment * SEGMENT / 4, tile * TILE + TILE / 2);
    }
  }
  for (u64 i = stage > count ? stage - count : 0; i < stage; i++) wait_oldest(loaded, i, count);
}

__global__ void lanes(const char* data) {
  extern __shared__ __align__(128) char ring[];
  u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, slot = 0;
  u32 own = shared_address(ring) + warp * SLOTS * SLOT + lane * 16;
  for (u32 tile = blockIdx.x; tile < BYTES / ROW / TILE; tile += gridDim.x) {
    for (u32 load = 0; load < ROW / (WARPS * 64); load++) {
      const char* from = data + (u64)(tile * TILE + lane / 4) * ROW + (load / 2 * 2 * WARPS + warp * 2 + load % 2) * 64 + lane % 4 * 16;
      for (u32 half = 0; half < 2; half++) {
        asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(own + slot * SLOT + half * 512), "l"(from + half * 8 * ROW)
                     : "memory");
      }
      asm volatile("cp.async.commit_group;\n cp.async.wait_group %0;" ::"n"(SLOTS - 1) : "memory");
      slot = slot == SLOTS - 1 ? 0 : slot + 1;
    }
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory");
}

__global__ void loads(const uint4* data, u32* sink) {
  u32 bits = 0;
  u64 threads = (u64)gridDim.x * blockDim.x, packs = BYTES / 16;
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i + 7 * threads < packs; i += 8 * threads) {
    uint4 pack[8];
#pragma unroll
    for (int k = 0; k < 8; k++) pack[k] = data[i + k * threads];
#pragma unroll
    for (int k = 0; k < 8; k++) bits ^= pack[k].x ^ pack[k].y ^ pack[k].z ^ pack[k].w;
  }
  if (bits == 1) *sink = bits;  // nearly never
}

__global__ void fill(uint4* data) {
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < BYTES / 16; i += (u64)gridDim.x * blockDim.x) {
    u32 x = (u32)i * 2654435761u;
    data[i] = make_uint4(x, x ^ x >> 15, x * 2246822519u, ~x);
  }
}

TensorMap map_of(void* data) {
  void* encode = nullptr;
  cudaDriverEntryPointQueryResult found;
  CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &found));
  TensorMap map;
  cuuint64_t sizes[] = {ROW / 4, BYTES / ROW}, strides[] = {ROW};
  cuuint32_t box[] = {SEGMENT / 4, TILE / 2}, steps[] = {1, 1};
  CUresult result = ((decltype(&cuTensorMapEncodeTiled))encode)(
      (CUtensorMap*)&map, CU_TENSOR_MAP_DATA_TYPE_INT32, 2, data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    fprintf(stderr, "error: cuTensorMapEncodeTiled: %d\n", result);
    exit(1);
  }
  return map;
}

static bool once = false;

template <typename F>
void time(const char* name, u32 count, F launch) {
  if (once) return launch();
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  std::vector<float> millis(25);
  for (float& time : millis) {
    CHECK(cudaEventRecord(begin));
    launch();
    CHECK(cudaGetLastError());
    CHECK(cudaEventRecord(end));
    CHECK(cudaEventSynchronize(end));
    CHECK(cudaEventElapsedTime(&time, begin, end));
  }
  std::sort(millis.begin() + 5, millis.end());  // after five to warm up
  printf("%-6s %9u %8.0f\n", name, count, BYTES / millis[15] / 1e6);
}

int main(int argc, char** argv) {
  once = argc > 1 && !strcmp(argv[1], "once");
  cudaDeviceProp device;
  CHECK(cudaGetDeviceProperties(&device, 0));
  if (device.major != 9) {
    fprintf(stderr, "error: %s is not a Hopper GPU\n", device.name);
    return 2;
  }
  void* data;
  CHECK(cudaMalloc(&data, BYTES + 16));
  u32 sms = device.multiProcessorCount, *sink = (u32*)((char*)data + BYTES);
  fill<<<8 * sms, 256>>>((uint4*)data);
  CHECK(cudaFuncSetAttribute(bulk, cudaFuncAttributeMaxDynamicSharedMemorySize, MOST * STAGE));
  CHECK(cudaFuncSetAttribute(boxes, cudaFuncAttributeMaxDynamicSharedMemorySize, MOST * STAGE));
  CHECK(cudaFuncSetAttribute(lanes, cudaFuncAttributeMaxDynamicSharedMemorySize, WARPS * SLOTS * SLOT));
  TensorMap map = map_of(data);
  printf("%s\n%-6s %9s %8s\n", device.name, "kernel", "under way", "GB/s");
  for (u32 count : {2, 3, 4, 8, 12}) time("bulk", count, [&] { bulk<<<sms, 1, MOST * STAGE>>>((char*)data, count); });
  for (u32 count : {2, 3, 4, 8, 12}) time("boxes", count, [&] { boxes<<<sms, 1, MOST * STAGE>>>(map, count); });
  time("lanes", SLOTS, [&] { lanes<<<sms, WARPS * WARP, WARPS * SLOTS * SLOT>>>((char*)data); });
  time("loads", 8, [&] { loads<<<8 * sms, 256>>>((uint4*)data, sink); });
  CHECK(cudaDeviceSynchronize());
}
