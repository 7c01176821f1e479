// KV-cache reads as the attention of a decode step does them, one launch per layer.
//
// Values are whole numbers from -8 to 7, weights (the query's place) 1 to 3 and scales 1, 1/2, 1/4 or 1/8: every
// product and every sum is exact in each format, so the sum over a sequence and head is compared for equality.
// No header is included: NVRTC needs none on the machine.

typedef unsigned long long word;

struct __align__(16) Vector { unsigned part[4]; };

#define DIM 128u      // of one head
#define FRACTION 8.0f  // sums are kept in eighths, the finest scale
#define MOST_HEADS 64

enum Format { FP16, INT8, FP8 };

// One layer of the cache, keys (0) and values (1). `table` is null where the tokens of a sequence lie in order.
struct Layer {
  char* data[2];      // [sequence, token] or [block, token of the block], then [head, dim]
  float* scales[2];   // [block, head]
  const int* table;   // [sequence, block of the sequence] -> block of the pool
  unsigned number, layers, sequences, tokens, heads;
  unsigned shift, blocks;  // tokens per block: 1 << shift; blocks of one sequence
};

// A layer as a kernel's parameters: plain ones, which every cupy can pass.
#define LAYER_PARAMETERS                                                                                   \
  char *keys, char *values, float *key_scales, float *value_scales, const int *table, unsigned number,     \
      unsigned layers, unsigned sequences, unsigned tokens, unsigned heads, unsigned shift, unsigned blocks
#define LAYER                                                                                              \
  Layer {                                                                                                  \
    {keys, values}, {key_scales, value_scales}, table, number, layers, sequences, tokens, heads, shift, blocks \
  }

__device__ __forceinline__ unsigned vectors_of(int format) { return format == FP16 ? DIM * 2 / 16 : DIM / 16; }

// The block of the pool that holds a token, and the token's row in the layer. 32 bits: a layer of 2^32 rows of one
// head would take 512 GiB, and wider numbers cost more instructions than the values themselves.
__device__ __forceinline__ unsigned block_of(const Layer& layer, unsigned sequence, unsigned token) {
  const unsigned at = sequence * layer.blocks + (token >> layer.shift);
  return layer.table ? (unsigned)layer.table[at] : at;
}

__device__ __forceinline__ unsigned row_of(const Layer& layer, unsigned sequence, unsigned token, unsigned block) {
  if (!layer.table) return sequence * layer.tokens + token;
  return (block << layer.shift) + (token & ((1u << layer.shift) - 1));
}

// ---- the content, from the logical coordinates alone

__device__ __forceinline__ word mix(word x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ x >> 27) * 0x94D049BB133111EBull;
  return x ^ x >> 31;
}

// Sixteen values of four bits: dims 16 * part ... of one head of one token.
__device__ __forceinline__ word sixteen(const Layer& layer, unsigned kind, unsigned sequence, unsigned token,
                                        unsigned head, unsigned part) {
  word row = (word)(kind * layer.layers + layer.number) * layer.sequences + sequence;
  row = (row * layer.tokens + token) * layer.heads + head;
  return mix(row * (DIM / 16) + part);
}

__device__ __forceinline__ int value_of(word bits, unsigned n) { return (int)(bits >> 4 * n & 15) - 8; }

__device__ __forceinline__ int weight_of(unsigned dim) { return 1 + (int)(dim % 3); }

// Two to the power of minus this is the scale of a block and head.
__device__ __forceinline__ unsigned scale_exponent(const Layer& layer, unsigned kind, unsigned sequence, unsigned block,
                                                   unsigned head) {
  word at = (word)(kind * layer.layers + layer.number) * layer.sequences + sequence;
  return (unsigned)mix(~((at * layer.blocks + block) * layer.heads + head)) & 3;
}

__device__ __forceinline__ unsigned floating(int value, unsigned bias, unsigned mantissa) {
  unsigned size = value < 0 ? -value : value, exponent = size >= 8 ? 3 : size >= 4 ? 2 : size >= 2 ? 1 : 0;
  if (size == 0) return 0;
  unsigned bits = (bias + exponent) << mantissa | ((size << (mantissa - exponent)) & ((1u << mantissa) - 1));
  return value < 0 ? bits | 1u << (mantissa == 10 ? 15 : 7) : bits;
}

__device__ __forceinline__ unsigned encoded(int format, int value) {
  return format == FP16 ? floating(value, 15, 10) : format == FP8 ? floating(value, 7, 3) : (unsigned)value & 255;
}

// ---- dot products of 16 bytes with the weights of their dims

#ifndef IOBENCH_ON_HOST
struct Weights { unsigned part[8]; };

__device__ __forceinline__ unsigned pair_of_halves(int low, int high) {
  return floating(low, 15, 10) | floating(high, 15, 10) << 16;
}

__device__ __forceinline__ Weights weights_at(int format, unsigned vector) {
  Weights weights;
  const unsigned dim = vector * (format == FP16 ? 8 : 16);
  for (unsigned p = 0; p < 8; ++p) {
    if (format == INT8) {
      weights.part[p] = 0;
      for (unsigned k = 0; k < 4; ++k) weights.part[p] |= (unsigned)weight_of(dim + 4 * (p & 3) + k) << 8 * k;
    } else {
      weights.part[p] = pair_of_halves(weight_of(dim + 2 * p), weight_of(dim + 2 * p + 1));
    }
  }
  return weights;
}

__device__ __forceinline__ unsigned times_plus(unsigned a, unsigned b, unsigned c) {
  unsigned d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

__device__ __forceinline__ float both(unsigned halves) {
  float low, high;
  asm("{.reg .f16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b;}"
      : "=f"(low), "=f"(high)
      : "r"(halves));
  return low + high;
}

template <int FORMAT>
__device__ __forceinline__ float dot(const Vector& v, const Weights& weights) {
  if (FORMAT == INT8) {
    int sum = 0;
#pragma unroll
    for (int p = 0; p < 4; ++p) asm("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(v.part[p]), "r"(weights.part[p]));
    return (float)sum;
  }
  unsigned sum = 0;
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    if (FORMAT == FP16) {
      sum = times_plus(v.part[p], weights.part[p], sum);
    } else {
      unsigned low = 0, high = 0;
#if __CUDA_ARCH__ >= 890
      asm("{.reg .b16 a, b; mov.b32 {a, b}, %2; cvt.rn.f16x2.e4m3x2 %0, a; cvt.rn.f16x2.e4m3x2 %1, b;}"
          : "=r"(low), "=r"(high) : "r"(v.part[p]));
#endif
      sum = times_plus(high, weights.part[2 * p + 1], times_plus(low, weights.part[2 * p], sum));
    }
  }
  return both(sum);
}

__device__ __forceinline__ int nearest(float x) { return __float2int_rn(x); }

__device__ __forceinline__ Vector fetch(const Vector* p) {
  uint4 v = __ldcs(reinterpret_cast<const uint4*>(p));  // read once per step: the first to leave the caches
  return Vector{{v.x, v.y, v.z, v.w}};
}

__device__ __forceinline__ void add(word* total, word value) { atomicAdd(total, value); }
#endif

// Block (group of heads, keys or values, split of the tokens, sequence), heads fastest, so that blocks which run
// together read neighbouring rows. sums: [keys or values, sequence, head], in eighths.
template <int FORMAT, int U>
__device__ __forceinline__ void read_layer(const Layer& layer, unsigned group, unsigned splits, word* sums) {
  const unsigned vectors = vectors_of(FORMAT), groups = layer.heads / group;
  unsigned b = blockIdx.x;
  const unsigned head = b % groups * group + threadIdx.x / vectors % group;
  b /= groups;
  const unsigned kind = b & 1;
  b >>= 1;
  const unsigned split = b % splits, sequence = b / splits;
  const unsigned begin = (unsigned)((word)layer.tokens * split / splits);
  const unsigned end = (unsigned)((word)layer.tokens * (split + 1) / splits);
  const unsigned vector = threadIdx.x % vectors, together = blockDim.x / (vectors * group);
  const unsigned width = layer.heads * vectors;  // of a token's row, in vectors
  const char* plane = kind ? layer.data[1] : layer.data[0];
  const Vector* column = reinterpret_cast<const Vector*>(plane) + head * vectors + vector;
  const float* scales = kind ? layer.scales[1] : layer.scales[0];
  const Weights weights = weights_at(FORMAT, vector);
  int sum = 0;
  for (unsigned first = begin + threadIdx.x / (vectors * group); first < end; first += together * U) {
    Vector v[U];
    float scale[U];
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const unsigned token = first + u * together;
      if (token < end) {
        const unsigned block = block_of(layer, sequence, token);
        v[u] = fetch(column + (word)row_of(layer, sequence, token, block) * width);
        scale[u] = FORMAT == FP16 ? FRACTION : FRACTION * scales[block * layer.heads + head];
      }
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
      if (first + u * together < end) sum += nearest(dot<FORMAT>(v[u], weights) * scale[u]);
    }
  }
#ifdef IOBENCH_ON_HOST
  add(sums + ((word)kind * layer.sequences + sequence) * layer.heads + head, (word)(long long)sum);
#else
  __shared__ word of_head[MOST_HEADS];
  for (unsigned h = threadIdx.x; h < MOST_HEADS; h += blockDim.x) of_head[h] = 0;
  __syncthreads();
  for (unsigned offset = 1; offset < vectors; offset *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (vector == 0) add(of_head + head, (word)(long long)sum);
  __syncthreads();
  const unsigned mine = blockIdx.x % groups * group + threadIdx.x;
  if (threadIdx.x < group) add(sums + ((word)kind * layer.sequences + sequence) * layer.heads + mine, of_head[mine]);
#endif
}

#define BOUNDS __launch_bounds__(256, 4)  // kvcache.py cuts the tokens for so many blocks per SM

extern "C" __global__ void BOUNDS read_fp16(LAYER_PARAMETERS, unsigned group, unsigned splits, word* sums) {
  read_layer<FP16, 8>(LAYER, group, splits, sums);
}
extern "C" __global__ void BOUNDS read_int8(LAYER_PARAMETERS, unsigned group, unsigned splits, word* sums) {
  read_layer<INT8, 8>(LAYER, group, splits, sums);
}
extern "C" __global__ void BOUNDS read_fp8(LAYER_PARAMETERS, unsigned group, unsigned splits, word* sums) {
  read_layer<FP8, 6>(LAYER, group, splits, sums);
}

// ---- filling, and what the sums must be; both outside the clock

#define EVERY(n) \
  for (word i = (word)blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += (word)gridDim.x * blockDim.x)

extern "C" __global__ void fill_layer(LAYER_PARAMETERS, int format) {
  const Layer layer = LAYER;
  const unsigned vectors = vectors_of(format), each = format == FP16 ? 8 : 16, bits = 128 / each;
  EVERY((word)2 * layer.sequences * layer.tokens * layer.heads * vectors) {
    const unsigned vector = i % vectors, head = i / vectors % layer.heads;
    const word row = i / vectors / layer.heads;
    const unsigned token = row % layer.tokens, sequence = row / layer.tokens % layer.sequences;
    const unsigned kind = (unsigned)(row / layer.tokens / layer.sequences);
    const word content = sixteen(layer, kind, sequence, token, head, vector * each / 16);
    Vector v = {{0, 0, 0, 0}};
    for (unsigned n = 0; n < each; ++n)
      v.part[n * bits / 32] |= encoded(format, value_of(content, (vector * each + n) & 15)) << n * bits % 32;
    const unsigned block = block_of(layer, sequence, token);
    const word at = ((word)row_of(layer, sequence, token, block) * layer.heads + head) * vectors + vector;
    reinterpret_cast<Vector*>(layer.data[kind])[at] = v;
    if (format != FP16 && vector == 0 && (token & ((1u << layer.shift) - 1)) == 0)
      layer.scales[kind][block * layer.heads + head] =
          1.0f / (float)(1u << scale_exponent(layer, kind, sequence, token >> layer.shift, head));
  }
}

// Adds what one read of the layer must give to sums, without looking at the cache.
extern "C" __global__ void expect_layer(LAYER_PARAMETERS, int format, word* sums) {
  const Layer layer = LAYER;
  EVERY((word)2 * layer.sequences * layer.heads * layer.blocks) {
    const unsigned block = i % layer.blocks, head = i / layer.blocks % layer.heads;
    const unsigned sequence = i / layer.blocks / layer.heads % layer.sequences;
    const unsigned kind = (unsigned)(i / layer.blocks / layer.heads / layer.sequences);
    const unsigned last = (block + 1) << layer.shift;
    long long sum = 0;
    for (unsigned token = block << layer.shift; token < last && token < layer.tokens; ++token)
      for (unsigned part = 0; part < DIM / 16; ++part) {
        const word content = sixteen(layer, kind, sequence, token, head, part);
        for (unsigned n = 0; n < 16; ++n) sum += value_of(content, n) * weight_of(part * 16 + n);
      }
    const unsigned exponent = format == FP16 ? 0 : scale_exponent(layer, kind, sequence, block, head);
    add(sums + ((word)kind * layer.sequences + sequence) * layer.heads + head, (word)(sum * 8 >> exponent));
  }
}
