// Probes of peer memory, when a group is created: 64 KiB by the accesses that the other kernels make. On some machines an IOMMU or PCIe
// ACS drops or delays what one GPU writes to another, without an error.
//
// Synchronisation: the hosts exchange a message between write_probe and check_probe.
#include "one_shot.cuh"
#if __CUDA_ARCH__ >= 900
#include "hopper.cuh"
#endif

const int PROBE_THREADS = 256;
const int PROBE_PACKS = 4096;

__device__ __forceinline__ uint4 probe_pack(u32 seed, u32 i) {
  u32 word = seed + 4 * i;
  return make_uint4(word, word + 1, word + 2, word + 3);
}

// Writes the first half as one-shot all-reduces do, the second half as fused matmuls do. One block.
extern "C" __global__ void __launch_bounds__(PROBE_THREADS) write_probe(uint4* to, u32 seed) {
  for (u32 i = threadIdx.x; i < PROBE_PACKS / 2; i += PROBE_THREADS) store_relaxed(to + i, probe_pack(seed, i));
#if __CUDA_ARCH__ >= 900
  const int PIECE_PACKS = 512;  // of a bulk copy
  __shared__ __align__(128) uint4 piece[PIECE_PACKS];
  for (u32 first = PROBE_PACKS / 2; first < PROBE_PACKS; first += PIECE_PACKS) {
    for (u32 i = threadIdx.x; i < PIECE_PACKS; i += PROBE_THREADS) piece[i] = probe_pack(seed, first + i);
    fence_async_shared();
    __syncthreads();
    if (threadIdx.x == 0) {
      store_bytes(to + first, piece, sizeof(piece));
      commit_stores();
      wait_stores_written();
    }
    __syncthreads();
  }
#else
  for (u32 i = PROBE_PACKS / 2 + threadIdx.x; i < PROBE_PACKS; i += PROBE_THREADS) to[i] = probe_pack(seed, i);
#endif
  __threadfence_system();
}

// Counts packs that are not as write_probe has written them. One block.
extern "C" __global__ void __launch_bounds__(PROBE_THREADS) check_probe(const uint4* from, u32 seed, u32* wrong) {
  for (u32 i = threadIdx.x; i < PROBE_PACKS; i += PROBE_THREADS) {
    uint4 value = load_relaxed(from + i), want = probe_pack(seed, i);
    if (value.x != want.x || value.y != want.y || value.z != want.z || value.w != want.w) atomicAdd(wrong, 1);
  }
}
