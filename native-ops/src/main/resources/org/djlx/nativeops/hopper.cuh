// PTX of Hopper GPUs (sm_90a) without a C++ counterpart: mbarriers in shared memory, bulk copies (TMA) and matrix products of a
// warp group. See the PTX ISA: mbarrier, cp.async.bulk, wgmma.
#pragma once

#include "element.cuh"

// A CUtensorMap made by cuTensorMapEncodeTiled: a tensor's address, shape and strides, and the box that one copy moves.
struct alignas(64) TensorMap {
  u64 opaque[16];
};

__device__ __forceinline__ u32 shared_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }

struct Barrier {
  u64 state;

  __device__ void init(u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)), "r"(arrivals) : "memory");
  }
  __device__ __forceinline__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(this)) : "memory");
  }
  // Arrives, and adds `bytes` to the transaction count: the phase ends only after these bytes have been copied.
  __device__ __forceinline__ void arrive_expecting(u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(this)), "r"(bytes) : "memory");
  }
  // Waits for the end of the phase of a parity. The first phase has parity 0; a wait for parity 1 of a new barrier returns immediately.
  __device__ __forceinline__ void wait(u32 parity) {
    asm volatile(
        "{\n .reg .pred done;\n AGAIN:\n mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n @done bra DONE;\n"
        " bra AGAIN;\n DONE:\n}" ::"r"(shared_address(this)), "r"(parity) : "memory");
  }
};

// A position in a ring of stages in shared memory.
struct Stage {
  u32 index, parity;  // parity: of the phase of the stage's barriers

  // Moves on by `count` stages, at most the ring's size `stages`.
  __device__ __forceinline__ void skip(u32 count, u32 stages) {
    index += count;
    if (index < stages) return;
    index -= stages;
    parity ^= 1;
  }
};

__device__ __forceinline__ void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Proxy fences: order ordinary memory accesses (also reads of data acquired from peers) with TMA copies, in both directions.
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async;" ::: "memory"); }
__device__ __forceinline__ void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// TMA copies of a box between a tensor and shared memory. x is the innermost coordinate.
__device__ __forceinline__ void load_box(void* to, const TensorMap& map, Barrier& loaded, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(to)),
      "l"(&map), "r"(shared_address(&loaded)), "r"(x), "r"(y)
      : "memory");
}
// A box that is read once: its lines leave the L2 cache before others.
__device__ __forceinline__ void load_box_once(void* to, const TensorMap& map, Barrier& loaded, int x, int y) {
  const u64 EVICT_FIRST = 0x12f0000000000000;  // as createpolicy.fractional.L2::evict_first makes it
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(
          shared_address(to)),
      "l"(&map), "r"(shared_address(&loaded)), "r"(x), "r"(y), "l"(EVICT_FIRST)
      : "memory");
}
__device__ __forceinline__ void load_box(void* to, const TensorMap& map, Barrier& loaded, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(to)),
      "l"(&map), "r"(shared_address(&loaded)), "r"(x), "r"(y), "r"(z)
      : "memory");
}
__device__ __forceinline__ void store_box(const TensorMap& map, const void* from, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map), "r"(shared_address(from)),
               "r"(x), "r"(y)
               : "memory");
}
__device__ __forceinline__ void store_box(const TensorMap& map, const void* from, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(&map),
               "r"(shared_address(from)), "r"(x), "r"(y), "r"(z)
               : "memory");
}
// TMA copies of contiguous bytes, and to the L2 cache; addresses and size are multiples of 16.
__device__ __forceinline__ void load_bytes(void* to, const void* from, u32 bytes, Barrier& loaded) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(&loaded))
               : "memory");
}
__device__ __forceinline__ void prefetch_bytes(const void* from, u32 bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void store_bytes(void* to, const void* from, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)), "r"(bytes)
               : "memory");
}
// A thread's TMA stores form bulk groups. wait_stores_read waits until all but the last N groups have been read from shared memory;
// wait_stores_written, until all are visible in memory.
__device__ __forceinline__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void wait_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
__device__ __forceinline__ void wait_stores_written() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Moves registers between the warp groups of a block (setmaxnreg).
template <int REGISTERS>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// The wgmma descriptor of a matrix in shared memory in the 128-byte swizzled layout of TMA. `leading` and `stride` are the leading
// and stride byte offsets between its cores of 8 rows of 128 bytes; see "matrix descriptor" in the PTX ISA.
__device__ __forceinline__ u64 matrix(u32 address, u32 leading, u32 stride) {
  return (u64)((address & 0x3ffff) >> 4) | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32 | 1ull << 62;
}

__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// An operand of e4m3: 4 exponent bits, 3 fraction bits.
struct Float8 {};

// d = A B + (sum ? d : 0) in float32, for a matrix A of 64 rows of 32 bytes and a matrix B of N columns in shared memory.
// K_MAJOR: the columns of B are contiguous, as float8 needs it; otherwise its rows are.
// Float8: products and d are aligned to the largest of them, and 13 bits below its leading bit are kept.
#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D8(i) D4(i), D4(i + 4)
#define D16(i) D8(i), D8(i + 8)
#define D32(i) D16(i), D16(i + 16)
#define R0_15 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define R0_31 R0_15 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define R0_55 R0_31 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55"
#define R0_63 R0_55 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define R64_95 "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define R0_127 R0_63 "," R64_95 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define WGMMA(n, k, type, registers, a_operand, b_operand, sum_operand, majors, outputs)                                            \
  asm volatile("{\n .reg .pred sum;\n setp.ne.b32 sum, " sum_operand ", 0;\n wgmma.mma_async.sync.aligned.m64n" #n "k" #k ".f32." type \
               "." type " {" registers "}, " a_operand ", " b_operand ", sum, 1, 1" majors ";\n}"                                   \
               : outputs                                                                                                            \
               : "l"(a), "l"(b), "r"(sum), "n"(K_MAJOR ? 0 : 1))
#define COMMA ,
#define PRODUCTS(T, type, k, MAJORS)                                                                                                \
  template <bool K_MAJOR>                                                                                                           \
  __device__ __forceinline__ void product(T, float (&d)[16], u64 a, u64 b, u32 sum) {                                               \
    WGMMA(32, k, type, R0_15, "%16", "%17", "%18", MAJORS("%19"), D16(0));                                                          \
  }                                                                                                                                 \
  template <bool K_MAJOR>                                                                                                           \
  __device__ __forceinline__ void product(T, float (&d)[32], u64 a, u64 b, u32 sum) {                                               \
    WGMMA(64, k, type, R0_31, "%32", "%33", "%34", MAJORS("%35"), D32(0));                                                          \
  }                                                                                                                                 \
  template <bool K_MAJOR>                                                                                                           \
  __device__ __forceinline__ void product(T, float (&d)[56], u64 a, u64 b, u32 sum) {                                               \
    WGMMA(112, k, type, R0_55, "%56", "%57", "%58", MAJORS("%59"), D32(0) COMMA D16(32) COMMA D8(48));                              \
  }                                                                                                                                 \
  template <bool K_MAJOR>                                                                                                           \
  __device__ __forceinline__ void product(T, float (&d)[64], u64 a, u64 b, u32 sum) {                                               \
    WGMMA(128, k, type, R0_63, "%64", "%65", "%66", MAJORS("%67"), D32(0) COMMA D32(32));                                           \
  }                                                                                                                                 \
  template <bool K_MAJOR>                                                                                                           \
  __device__ __forceinline__ void product(T, float (&d)[128], u64 a, u64 b, u32 sum) {                                              \
    WGMMA(256, k, type, R0_127, "%128", "%129", "%130", MAJORS("%131"), D32(0) COMMA D32(32) COMMA D32(64) COMMA D32(96));          \
  }
#define MAJORS_OF_BOTH(b) ", 0, " b
#define K_MAJORS(b) ""
PRODUCTS(Float16, "f16", 16, MAJORS_OF_BOTH)
PRODUCTS(Bfloat16, "bf16", 16, MAJORS_OF_BOTH)
PRODUCTS(Float8, "e4m3", 32, K_MAJORS)
#undef PRODUCTS
#undef MAJORS_OF_BOTH
#undef K_MAJORS
#undef COMMA
#undef WGMMA
#undef D4
#undef D8
#undef D16
#undef D32

// Rounds two floats to 16 bits and packs them into a word, the first in the lower half.
__device__ __forceinline__ u32 pack(Float16, float first, float second) {
  u32 both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  return both;
}
__device__ __forceinline__ u32 pack(Bfloat16, float first, float second) {
  u32 both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  return both;
}

// Moves four 8 x 8 matrices of 16-bit elements between shared memory and a warp (stmatrix, ldmatrix). Lane i passes the address of
// row i % 8 of matrix i / 8. The lane holds columns 2 (i % 4) and 2 (i % 4) + 1 of row i / 4 of each matrix: the layout of wgmma's sums.
__device__ __forceinline__ void store_matrices(u32 address, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}
__device__ __forceinline__ void load_matrices(u32 address, u32 (&values)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(values[0]), "=r"(values[1]), "=r"(values[2]), "=r"(values[3])
               : "r"(address)
               : "memory");
}
