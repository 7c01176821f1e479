// Streams over device memory, and the pointer chase. No header is included: NVRTC needs none on the machine.
//
// Every stream handles every element for every grid: a block takes every gridDim.x-th tile of blockDim.x * U vectors of
// 16 bytes; the tile that n cuts off is walked with a check per vector, the odd word at the end belongs to the first
// thread of the first block. No 64-bit division: above 2^32 vectors one takes longer than a tile.
//
// One launch makes `passes` passes; pass p works on slot p % slots, `stride` words after the one before, so that the
// slots together can be larger than the L2 cache.

typedef unsigned long long word;

struct __align__(16) Pair { word x, y; };
struct __align__(16) Real { double x, y; };

#define STEP 0x9E3779B97F4A7C15ull  // word i of a pattern holds STEP * i + seed

#ifndef IOBENCH_ON_HOST
// Loads skip L1: the SMs' L1 caches together hold tens of MB, and a repeated pass shall not hit them.
__device__ __forceinline__ Pair load(const Pair* p) {
  ulonglong2 v = __ldcg(reinterpret_cast<const ulonglong2*>(p));
  return Pair{v.x, v.y};
}
__device__ __forceinline__ Real load(const Real* p) {
  double2 v = __ldcg(reinterpret_cast<const double2*>(p));
  return Real{v.x, v.y};
}
__device__ __forceinline__ void store(Pair* p, Pair v) {
  *reinterpret_cast<ulonglong2*>(p) = make_ulonglong2(v.x, v.y);
}
__device__ __forceinline__ void store(Real* p, Real v) { *reinterpret_cast<double2*>(p) = make_double2(v.x, v.y); }

// Adds every thread's value to *total with one atomic per block: many on one address would outlast a short kernel.
__device__ __forceinline__ void add_up(word* total, word value) {
  __shared__ word of_block;
  if (threadIdx.x == 0) of_block = 0;
  __syncthreads();
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_down_sync(0xffffffffu, value, offset);
  if ((threadIdx.x & 31) == 0) atomicAdd(&of_block, value);
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(total, of_block);
}
#endif

// FETCH, then USE, for the U vectors i of every tile; full tiles without a check and with all their fetches before the
// first use, so that loads overlap.
#define WALK(U, FETCH, USE)                                                                                  \
  do {                                                                                                       \
    const word tile = (word)blockDim.x * U;                                                                  \
    for (word first = blockIdx.x * tile; first < n; first += gridDim.x * tile) {                             \
      const word at = first + threadIdx.x;                                                                   \
      if (first + tile <= n) {                                                                               \
        _Pragma("unroll") for (int u = 0; u < U; ++u) { word i = at + (word)u * blockDim.x; (void)i; FETCH; } \
        _Pragma("unroll") for (int u = 0; u < U; ++u) { word i = at + (word)u * blockDim.x; (void)i; USE; }   \
      } else {                                                                                               \
        _Pragma("unroll") for (int u = 0; u < U; ++u) {                                                      \
          word i = at + (word)u * blockDim.x;                                                                \
          if (i < n) { FETCH; USE; }                                                                         \
        }                                                                                                    \
      }                                                                                                      \
    }                                                                                                        \
  } while (0)

#define ODD_WORD (words & 1 && blockIdx.x == 0 && threadIdx.x == 0)
#define SLOT(base) ((base) + (word)(pass % slots) * stride)

template <int U>
__device__ __forceinline__ void read_words(const word* a, word words, word stride, unsigned slots, unsigned passes,
                                           word* total) {
  const word n = words / 2;
  word sum = 0;
  for (unsigned pass = 0; pass < passes; ++pass) {
    const Pair* from = reinterpret_cast<const Pair*>(SLOT(a));
    Pair v[U];
    WALK(U, v[u] = load(from + i), sum += v[u].x + v[u].y);
    if (ODD_WORD) sum += SLOT(a)[words - 1];
  }
  add_up(total, sum);
}

template <int U>
__device__ __forceinline__ void write_words(word* a, word words, word stride, unsigned slots, unsigned passes,
                                            word seed) {
  const word n = words / 2;
  for (unsigned pass = 0; pass < passes; ++pass) {
    Pair* to = reinterpret_cast<Pair*>(SLOT(a));
    WALK(U, , word x = STEP * (2 * i) + seed; store(to + i, Pair{x, x + STEP}));
    if (ODD_WORD) SLOT(a)[words - 1] = STEP * (words - 1) + seed;
  }
}

template <int U>
__device__ __forceinline__ void copy_words(word* a, const word* b, word words, word stride, unsigned slots,
                                           unsigned passes) {
  const word n = words / 2;
  for (unsigned pass = 0; pass < passes; ++pass) {
    Pair* to = reinterpret_cast<Pair*>(SLOT(a));
    const Pair* from = reinterpret_cast<const Pair*>(SLOT(b));
    Pair v[U];
    WALK(U, v[u] = load(from + i), store(to + i, v[u]));
    if (ODD_WORD) SLOT(a)[words - 1] = SLOT(b)[words - 1];
  }
}

template <int U>
__device__ __forceinline__ void triad_words(double* a, const double* b, const double* c, word words, word stride,
                                            unsigned slots, unsigned passes, double s) {
  const word n = words / 2;
  for (unsigned pass = 0; pass < passes; ++pass) {
    Real* to = reinterpret_cast<Real*>(SLOT(a));
    const Real* left = reinterpret_cast<const Real*>(SLOT(b));
    const Real* right = reinterpret_cast<const Real*>(SLOT(c));
    Real v[U], w[U];
    WALK(U, v[u] = load(left + i); w[u] = load(right + i),
         store(to + i, Real{v[u].x + s * w[u].x, v[u].y + s * w[u].y}));
    if (ODD_WORD) SLOT(a)[words - 1] = SLOT(b)[words - 1] + s * SLOT(c)[words - 1];
  }
}

#define STREAMS(U)                                                                                                     \
  extern "C" __global__ void read_##U(const word* a, word words, word stride, unsigned slots, unsigned passes,         \
                                      word* total) {                                                                   \
    read_words<U>(a, words, stride, slots, passes, total);                                                             \
  }                                                                                                                    \
  extern "C" __global__ void write_##U(word* a, word words, word stride, unsigned slots, unsigned passes, word seed) { \
    write_words<U>(a, words, stride, slots, passes, seed);                                                             \
  }                                                                                                                    \
  extern "C" __global__ void copy_##U(word* a, const word* b, word words, word stride, unsigned slots,                 \
                                      unsigned passes) {                                                               \
    copy_words<U>(a, b, words, stride, slots, passes);                                                                 \
  }                                                                                                                    \
  extern "C" __global__ void triad_##U(double* a, const double* b, const double* c, word words, word stride,           \
                                       unsigned slots, unsigned passes, double s) {                                    \
    triad_words<U>(a, b, c, words, stride, slots, passes, s);                                                          \
  }

STREAMS(1)
STREAMS(2)
STREAMS(4)
STREAMS(8)

// ---- patterns and their proof, outside the clock: one thread, one word at a time, written to be obviously right ----

#define EVERY_WORD                                                          \
  for (word i = (word)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += (word)gridDim.x * blockDim.x)

extern "C" __global__ void fill_words(word* a, word words, word seed) {
  EVERY_WORD a[i] = STEP * i + seed;
}

extern "C" __global__ void wrong_words(const word* a, word words, word seed, word* wrong) {
  word bad = 0;
  EVERY_WORD bad += a[i] != STEP * i + seed;
  add_up(wrong, bad);
}

// Every word equal to `value`: what memset left.
extern "C" __global__ void other_words(const word* a, word words, word value, word* wrong) {
  word bad = 0;
  EVERY_WORD bad += a[i] != value;
  add_up(wrong, bad);
}

// The triad's operands are whole numbers below 2^20: products and sums are exact, the check is for equality.
__device__ __forceinline__ double operand(word i, word seed) {
  return (double)(((i + seed) * 2654435761ull >> 7) & 0xfffff);
}

extern "C" __global__ void fill_reals(double* a, word words, word seed) {
  EVERY_WORD a[i] = operand(i, seed);
}

extern "C" __global__ void wrong_triad(const double* a, word words, word left, word right, double s, word* wrong) {
  word bad = 0;
  EVERY_WORD bad += a[i] != operand(i, left) + s * operand(i, right);
  add_up(wrong, bad);
}
