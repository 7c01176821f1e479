// The pointer chase: one thread, each load's address is what the load before it returned.

typedef unsigned long long word;

// Nodes lie at base + lines[k] * line_nbytes; each holds the address of the next, the last that of the first.
extern "C" __global__ void link_nodes(char* base, const unsigned* lines, word nodes, word line_nbytes) {
  for (word k = (word)blockIdx.x * blockDim.x + threadIdx.x; k < nodes; k += (word)gridDim.x * blockDim.x) {
    word next = k + 1 < nodes ? k + 1 : 0;
    *reinterpret_cast<word*>(base + lines[k] * line_nbytes) = reinterpret_cast<word>(base + lines[next] * line_nbytes);
  }
}

#ifndef IOBENCH_ON_HOST
__device__ __forceinline__ word cycles_now() {
  word now;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(now)::"memory");
  return now;
}

__device__ __forceinline__ word nanoseconds_now() {
  word now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
  return now;
}

__device__ __forceinline__ unsigned sm_number() {
  unsigned number;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(number));
  return number;
}

#define NEXT(cache, p) asm volatile("ld.global." cache ".u64 %0, [%0];" : "+l"(p)::"memory")
#endif
#define BATCH 16

// Walks `warm` loads, then `loads` (rounded down to whole batches of 16) between two readings of both clocks.
// out: where it stopped, SM cycles, nanoseconds, loads made, number of the SM. The branch on p holds the second
// reading back until the last load has returned (no node lies at address 0).
#define CHASE(name, cache)                                                                \
  extern "C" __global__ void chase_##name(word p, word warm, word loads, word* out) {     \
    for (word k = 0; k < warm; ++k) NEXT(cache, p);                                       \
    if (p == 0) out[5] = 1;                                                               \
    word ns = nanoseconds_now();                                                          \
    word cycles = cycles_now();                                                           \
    for (word k = 0; k < loads / BATCH; ++k) {                                            \
      _Pragma("unroll") for (int b = 0; b < BATCH; ++b) NEXT(cache, p);                   \
    }                                                                                     \
    if (p == 0) out[5] = 2;                                                               \
    cycles = cycles_now() - cycles;                                                       \
    ns = nanoseconds_now() - ns;                                                          \
    out[0] = p;                                                                           \
    out[1] = cycles;                                                                      \
    out[2] = ns;                                                                          \
    out[3] = loads / BATCH * BATCH;                                                       \
    out[4] = sm_number();                                                                 \
  }                                                                                       \
  /* The cycles of single loads, a clock reading around each: shows the levels that a mean hides. */ \
  extern "C" __global__ void single_##name(word p, word warm, unsigned loads, word* out, unsigned short* each) { \
    __shared__ unsigned short taken[4096];                                                \
    for (word k = 0; k < warm; ++k) NEXT(cache, p);                                       \
    for (unsigned k = 0; k < loads; ++k) {                                                \
      word start = cycles_now();                                                          \
      NEXT(cache, p);                                                                     \
      if (p == 0) out[5] = 3;                                                             \
      word took = cycles_now() - start;                                                   \
      taken[k & 4095] = took < 65535 ? (unsigned short)took : 65535;                      \
    }                                                                                     \
    for (unsigned k = 0; k < loads && k < 4096; ++k) each[k] = taken[k];                  \
    out[0] = p;                                                                           \
    out[3] = loads;                                                                       \
    out[4] = sm_number();                                                                 \
  }

CHASE(ca, "ca")
CHASE(cg, "cg")
