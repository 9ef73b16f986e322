// What the programs of ci/sanitize.sh have in common: tensors on GPUs, element types on the host, and ranks that are streams.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

// In a namespace, as names such as `raise` are taken on the host.
namespace kernels {
#include "signal.cuh"
}  // namespace kernels

using kernels::Status;
using kernels::u16;
using kernels::u32;
using kernels::u64;

enum Exit { RIGHT, WRONG, UNABLE };

const int MAX_GPUS = 8;
const u64 PATIENCE = 60'000'000'000;       // ns; kernels are slow when they are watched
const u64 PROBE_PATIENCE = 5'000'000'000;  // ns

// What the Java host takes for granted.
static_assert(offsetof(Status, stop) == 0 && offsetof(Status, missing) == 4, "the words of WaitStatus");

float load_float32(u32 bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

u32 store_float32(float value) {
  u32 bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

float load_float16(u32 bits) { return __half2float(__half(__half_raw{(u16)bits})); }

u32 store_float16(float value) { return __half_raw(__float2half_rn(value)).x; }

float load_bfloat16(u32 bits) { return __bfloat162float(__nv_bfloat16(__nv_bfloat16_raw{(u16)bits})); }

u32 store_bfloat16(float value) { return __nv_bfloat16_raw(__float2bfloat16_rn(value)).x; }

float load_float8(u32 bits) { return __half2float(__half(__nv_cvt_fp8_to_halfraw(bits, __NV_E4M3))); }

u32 store_float8(float value) { return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3); }

struct Type {
  const char* name;
  u64 size;
  float (*load)(u32 bits);
  u32 (*store)(float value);
};

#define ELEMENT(name, size) \
  { #name, size, load_##name, store_##name }

typedef std::vector<u32> Elements;  // the bits of each

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  exit(WRONG);
}

void use(int gpu) { check(cudaSetDevice(gpu), "cudaSetDevice"); }

u64 align(u64 bytes, u64 to) { return (bytes + to - 1) / to * to; }

// A tensor on a GPU, with as many elements before it and behind it as its distance from an alignment of 16 bytes. With
// no distance its allocation ends where it ends, so that memcheck sees what goes beyond.
class Tensor {
 public:
  Tensor(int gpu, const Type& type, u64 begin, const Elements& elements)
      : type(type), begin(begin), count(elements.size()) {
    use(gpu);
    check(cudaMalloc(&memory, (count + 2 * begin) * type.size), "cudaMalloc");
    Elements all(count + 2 * begin, MARGIN);
    std::copy(elements.begin(), elements.end(), all.begin() + begin);
    std::vector<char> bytes(all.size() * type.size);
    for (u64 i = 0; i < all.size(); i++) memcpy(&bytes[i * type.size], &all[i], type.size);
    check(cudaMemcpy(memory, bytes.data(), bytes.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  Tensor(const Tensor&) = delete;
  ~Tensor() { check(cudaFree(memory), "cudaFree"); }

  char* address() const { return memory + begin * type.size; }

  // Tells whether it has these elements, up to some units of their last place, and what is around it has not changed; says
  // where not.
  bool has(const Elements& expected, const std::string& name, int units = 0) const {
    std::vector<char> bytes((count + 2 * begin) * type.size);
    check(cudaMemcpy(bytes.data(), memory, bytes.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    u32 margin = 0;
    memcpy(&margin, &MARGIN, type.size);
    for (u64 i = 0; i < count + 2 * begin; i++) {
      u32 is = 0;
      memcpy(&is, &bytes[i * type.size], type.size);
      bool inside = i >= begin && i < begin + count;
      u32 wanted = inside ? expected[i - begin] : margin;
      if (std::abs((int)is - (int)wanted) > (inside ? units : 0)) {
        printf("WRONG %s: element %lld of %llu is %x, not %x\n", name.c_str(), (long long)(i - begin), count, is,
               wanted);
        return false;
      }
    }
    return true;
  }

 private:
  static constexpr u32 MARGIN = 0x3c3c;

  const Type& type;
  const u64 begin;
  const u64 count;
  char* memory;
};

std::mt19937 generator;  // seeded by begin

u64 random_up_to(u64 most) { return 1 + generator() % most; }

// Of both signs and many sizes, none of them large: sums are finite. In float16 some are subnormal.
Elements random_elements(const Type& type, u64 count) {
  Elements elements(count);
  for (u32& element : elements) {
    u32 bits = generator();
    float value = ((int)(bits & 0xffffff) - 0x800000) / float(0x400000);
    element = type.store(ldexpf(value, -(int)(bits >> 28)));
  }
  return elements;
}

// A rank is a stream of a GPU.
struct Rank {
  int gpu;
  cudaStream_t stream;
  char* region;  // what the others write into
  Status* status;

  void open(int on, u64 bytes) {
    gpu = on;
    use(gpu);
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    check(cudaMalloc(&region, bytes), "cudaMalloc");
    check(cudaMemset(region, 0, bytes), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaMemset");
    check(cudaHostAlloc(&status, 4096, cudaHostAllocPortable), "cudaHostAlloc");
    memset(status, 0, 4096);
  }
  void close() {
    use(gpu);
    check(cudaStreamDestroy(stream), "cudaStreamDestroy");
    check(cudaFree(region), "cudaFree");
    check(cudaFreeHost(status), "cudaFreeHost");
  }
};

// How many blocks of a waiting kernel each rank launches, if each block takes an SM; as P2pParts.waitingBlocks.
int blocks_of_each(const std::vector<int>& gpus) {
  int blocks = 1 << 20;
  for (int gpu : gpus) {
    int processors;
    check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, gpu), "cudaDeviceGetAttribute");
    int sharing = std::count(gpus.begin(), gpus.end(), gpu);
    blocks = std::min(blocks, sharing == 1 ? processors : std::max(1, processors / (2 * (sharing - 1))));
  }
  return blocks;
}

// Stands for a matmul of cuBLAS, which fills each SM that it takes and, on Hopper, launches clusters: such a cluster starts only
// when eight SMs of one GPC are free at once.
const int STAND_IN_CLUSTER = 8;
const int STAND_IN_BLOCKS = 96;
const int STAND_IN_THREADS = 384;

__global__ void __launch_bounds__(STAND_IN_THREADS, 1) stand_in() {
  u64 begin = kernels::global_time();
  while (kernels::global_time() - begin < 2000) {
  }
}

void enqueue_stand_in(int gpu, cudaStream_t stream) {
  use(gpu);
  int major, shared;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, gpu), "cudaDeviceGetAttribute");
  check(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, gpu), "cudaDeviceGetAttribute");
  check(cudaFuncSetAttribute((const void*)stand_in, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), "cudaFuncSetAttribute");
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = STAND_IN_CLUSTER;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(STAND_IN_BLOCKS);
  config.blockDim = dim3(STAND_IN_THREADS);
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = major >= 9;
  check(cudaLaunchKernelExC(&config, (const void*)stand_in, nullptr), "stand_in");
}

// Enqueues jobs for all ranks of a group, a stand-in before some launches. Who arrives first changes.
template <typename Jobs, typename Enqueue>
void enqueue_all(const std::vector<Rank>& ranks, const Jobs& jobs, Enqueue enqueue) {
  for (auto& job : jobs) {
    u64 first = generator() % ranks.size();
    for (u64 i = 0; i < ranks.size(); i++) {
      u64 rank = (first + i) % ranks.size();
      if (generator() % 2) enqueue_stand_in(ranks[rank].gpu, ranks[rank].stream);
      enqueue(*job, rank);
    }
  }
}

// Waits until all launches have ended. Returns false if a rank waited for another in vain, and names them.
bool finish(const std::vector<Rank>& ranks) {
  auto has_missed = [](const Rank& rank) { return rank.status->missing != 0; };
  auto missed = [&] { return std::any_of(ranks.begin(), ranks.end(), has_missed); };
  for (const Rank& rank : ranks) {
    cudaError_t state;
    while ((state = cudaStreamQuery(rank.stream)) == cudaErrorNotReady) {
      if (missed()) {
        for (const Rank& each : ranks) each.status->stop = 1;
      }
      usleep(1000);
    }
    check(state, "the kernels");
  }
  for (size_t rank = 0; rank < ranks.size(); rank++) {
    u32 missing = ranks[rank].status->missing;
    if (missing != 0) printf("rank %zu of %zu waited in vain for rank %u\n", rank, ranks.size(), missing - 1);
  }
  return !missed();
}

// The ranks dealt out to the GPUs in turn.
std::vector<int> placement(int ranks, int gpus) {
  std::vector<int> placed;
  for (int rank = 0; rank < ranks; rank++) placed.push_back(rank % gpus);
  return placed;
}

std::string in_words(int ranks, int gpus) {
  return std::to_string(ranks) + " ranks on " + std::to_string(std::min(ranks, gpus)) + " GPUs";
}

// Lets the first GPUs write into each other's memory; ends the program where they cannot.
void connect(int gpus) {
  int there = 0;
  cudaError_t error = cudaGetDeviceCount(&there);
  if (error != cudaSuccess || there < gpus) {
    printf("needs %d GPUs, has %d%s%s\n", gpus, there, error == cudaSuccess ? "" : ": ",
           error == cudaSuccess ? "" : cudaGetErrorString(error));
    exit(UNABLE);
  }
  for (int gpu = 0; gpu < gpus; gpu++) {
    for (int peer = 0; peer < gpus; peer++) {
      if (peer == gpu) continue;
      int can = 0;
      check(cudaDeviceCanAccessPeer(&can, gpu, peer), "cudaDeviceCanAccessPeer");
      if (!can) {
        printf("GPU %d cannot access GPU %d\n", gpu, peer);
        exit(UNABLE);
      }
      use(gpu);
      check(cudaDeviceEnablePeerAccess(peer, 0), "cudaDeviceEnablePeerAccess");
    }
  }
}

// Prepares the process, and returns the number of GPUs that the command line names; ends it where they cannot be used.
int begin(int argc, char** argv) {
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  // A stream each has a queue of its own; else a kernel may stand behind one that waits for it.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  setvbuf(stdout, nullptr, _IOLBF, 0);
  int gpus = argc > 1 ? atoi(argv[1]) : 2;
  if (gpus < 1 || gpus > MAX_GPUS) {
    printf("usage: %s [GPUS [SEED]], 1 to %d GPUs\n", argv[0], MAX_GPUS);
    exit(UNABLE);
  }
  u32 seed = argc > 2 ? strtoul(argv[2], nullptr, 10) : std::random_device()();
  printf("seed %u\n", seed);
  generator.seed(seed);
  connect(gpus);
  for (int gpu = 0; gpu < gpus; gpu++) {
    enqueue_stand_in(gpu, nullptr);  // loads it
    check(cudaDeviceSynchronize(), "stand_in");
  }
  return gpus;
}
