// Path PIPELINED: reduces the parts of all ranks after copies have brought them into this GPU's memory.
//
// Memory: parts at equal distances, in rank order. Synchronisation: none; one pass, one thread per pack.
// Sums are in float32, in rank order, rounded once.
#include "element.cuh"

const int REDUCE_THREADS = 512;

// Part r begins at parts + r * stride bytes, aligned to 16 bytes.
template <typename T>
__device__ void reduce(typename T::Bits* result, const char* parts, u64 stride, u64 count, int ranks, float divisor) {
  u64 packs = pack_count<T>(count);
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < packs; i += (u64)gridDim.x * blockDim.x) {
    FloatPack<T> sum;
    sum.set(((const uint4*)parts)[i]);
    for (int rank = 1; rank < ranks; rank++) sum.add(((const uint4*)(parts + rank * stride))[i]);
    store_pack<T>(result, count, i, sum.rounded(divisor));
  }
}

#define REDUCE(name, T)                                                                                     \
  extern "C" __global__ void __launch_bounds__(REDUCE_THREADS)                                              \
      reduce_##name(T::Bits* result, const char* parts, u64 stride, u64 count, int ranks, float divisor) {  \
    reduce<T>(result, parts, stride, count, ranks, divisor);                                                \
  }

REDUCE(float32, Float32)
REDUCE(float16, Float16)
#ifdef HAS_BFLOAT16
REDUCE(bfloat16, Bfloat16)
#endif
