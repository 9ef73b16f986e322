// Element types, 16-byte packs of elements, warp sums and programmatic dependent launch.
//
// Elements are read as float32, computed in float32 and rounded once when they are stored. Includes no header of the CUDA
// toolkit, so NVRTC alone compiles it.
#pragma once

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct Float32 {
  typedef u32 Bits;
  static __device__ float load(Bits bits) { return __uint_as_float(bits); }
  static __device__ Bits store(float value) { return __float_as_uint(value); }
};

struct Float16 {
  static const bool IS_BFLOAT16 = false;
  typedef u16 Bits;
  static __device__ float load(Bits bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
  }
  static __device__ Bits store(float value) {
    Bits bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
  }
};

// GPUs before compute capability 8.0 have no instruction that rounds to bfloat16: their modules have no bfloat16 kernels, and
// the host looks up which kernels exist. The host pass of nvcc needs all declarations.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define HAS_BFLOAT16
struct Bfloat16 {
  static const bool IS_BFLOAT16 = true;
  typedef u16 Bits;
  static __device__ float load(Bits bits) { return __uint_as_float((u32)bits << 16); }
  static __device__ Bits store(float value) {
    Bits bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
  }
};
#endif

// Programmatic dependent launch. A dependent kernel starts once every block of the primary kernel has called
// launch_dependents() or ended. It must not access memory that the primary, or any kernel before, reads or writes until
// wait_for_primary() has returned. Both are no-ops without such a launch.
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ void wait_for_primary() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Thread block clusters (Hopper). A barrier orders accesses to shared and global memory of all threads of the cluster.
__device__ __forceinline__ void cluster_barrier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;\n barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

// The address of a variable in the shared memory of the block `rank` of the cluster.
template <typename V>
__device__ __forceinline__ V* of_block(V* variable, u32 rank) {
  u64 address = (u64)variable;
#if __CUDA_ARCH__ >= 900
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(address) : "l"(variable), "r"(rank));
#endif
  return (V*)address;
}

const int WARP = 32;

// Sums a value over the lanes of a warp. All lanes get the same result, bit for bit.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int distance = WARP / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(~0u, value, distance);
  return value;
}

// Skips the division by 1, which takes longer than all other work on an element.
__device__ __forceinline__ float divide(float sum, float divisor) { return divisor == 1 ? sum : sum / divisor; }

// 16 bytes of elements: the widest access of a thread.
template <typename T>
union Pack {
  static const int COUNT = 16 / sizeof(typename T::Bits);
  uint4 vector;
  typename T::Bits elements[COUNT];
};

__device__ __forceinline__ uint4 zeros() { return make_uint4(0, 0, 0, 0); }

// How many packs hold `count` elements.
template <typename T>
__device__ __forceinline__ u64 pack_count(u64 count) {
  return (count + Pack<T>::COUNT - 1) / Pack<T>::COUNT;
}

// The elements of a pack in float32. Sums: set() to the pack of rank 0, add() the packs of the other ranks in rank order, then
// rounded().
template <typename T>
struct FloatPack {
  float values[Pack<T>::COUNT];

  __device__ void set(const uint4& first) {
    Pack<T> pack;
    pack.vector = first;
#pragma unroll
    for (int i = 0; i < Pack<T>::COUNT; i++) values[i] = T::load(pack.elements[i]);
  }
  __device__ void add(const uint4& next) {
    Pack<T> pack;
    pack.vector = next;
#pragma unroll
    for (int i = 0; i < Pack<T>::COUNT; i++) values[i] += T::load(pack.elements[i]);
  }
  __device__ uint4 rounded(float divisor) const {
    Pack<T> pack;
#pragma unroll
    for (int i = 0; i < Pack<T>::COUNT; i++) pack.elements[i] = T::store(divide(values[i], divisor));
    return pack.vector;
  }
};

// Loads pack `i` of a tensor of `count` elements at any alignment. Elements past the end read as 0.
template <typename T>
__device__ uint4 load_pack(const typename T::Bits* tensor, u64 count, u64 i) {
  u64 begin = i * Pack<T>::COUNT;
  if (begin + Pack<T>::COUNT <= count && ((u64)tensor & 15) == 0) return ((const uint4*)tensor)[i];
  Pack<T> pack;
#pragma unroll
  for (int k = 0; k < Pack<T>::COUNT; k++) pack.elements[k] = begin + k < count ? tensor[begin + k] : 0;
  return pack.vector;
}

// Stores pack `i` of a tensor of `count` elements at any alignment. Elements past the end are not stored.
template <typename T>
__device__ void store_pack(typename T::Bits* tensor, u64 count, u64 i, const uint4& value) {
  u64 begin = i * Pack<T>::COUNT;
  if (begin + Pack<T>::COUNT <= count && ((u64)tensor & 15) == 0) {
    ((uint4*)tensor)[i] = value;
    return;
  }
  Pack<T> pack;
  pack.vector = value;
#pragma unroll
  for (int k = 0; k < Pack<T>::COUNT; k++)
    if (begin + k < count) tensor[begin + k] = pack.elements[k];
}
