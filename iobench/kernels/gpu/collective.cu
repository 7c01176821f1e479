// Inputs of collective operations and the check of every element of their results.
// Its twin on the host is iobench/collectives/values.py: the same hash, the same rules.
// No header is included: NVRTC needs none on the machine. All values are whole numbers that the type holds exactly,
// so a type's bits follow from float's, and equal bits are equal values.

typedef unsigned long long u64;

__device__ __forceinline__ unsigned element(u64 index, unsigned rank, unsigned seed, unsigned levels) {
    unsigned x = static_cast<unsigned>(index ^ (index >> 32)) * 0x9E3779B9u + rank * 0x85EBCA6Bu + seed * 0xC2B2AE35u;
    x ^= x >> 16;
    x *= 0x7FEB352Du;
    x ^= x >> 15;
    x *= 0x846CA68Bu;
    x ^= x >> 16;
    return x % levels;
}

// Bits of a whole number in a narrow type: sign 0, `mantissa` bits kept of float's 23, exponent biased anew.
__device__ __forceinline__ unsigned narrow(unsigned value, int mantissa, int bias) {
    if (value == 0) {
        return 0;
    }
    const unsigned bits = __float_as_uint(static_cast<float>(value));
    const unsigned exponent = (bits >> 23) - 127 + bias;
    return (exponent << mantissa) | ((bits & 0x7FFFFFu) >> (23 - mantissa));
}

struct Float16 { unsigned short bits; };
struct BFloat16 { unsigned short bits; };
struct Float8 { unsigned char bits; };
struct Float32 { unsigned bits; };

__device__ __forceinline__ void put(Float32* at, unsigned value) { at->bits = __float_as_uint(static_cast<float>(value)); }
__device__ __forceinline__ void put(Float16* at, unsigned value) { at->bits = narrow(value, 10, 15); }
__device__ __forceinline__ void put(BFloat16* at, unsigned value) { at->bits = narrow(value, 7, 127); }
__device__ __forceinline__ void put(Float8* at, unsigned value) { at->bits = narrow(value, 3, 7); }

// rule 0: the sum over all ranks, from element `offset` on; 1: part s of the result is rank s's input from element
// `offset` on; 2: the input of one rank, `mine`.
__device__ __forceinline__ unsigned due(u64 i, int rule, unsigned ranks, u64 part, u64 offset, unsigned mine,
                                        unsigned seed, unsigned levels) {
    if (rule == 0) {
        unsigned total = 0;
        for (unsigned source = 0; source < ranks; ++source) {
            total += element(i + offset, source, seed, levels);
        }
        return total;
    }
    if (rule == 1) {
        return element(i % part + offset, static_cast<unsigned>(i / part), seed, levels);
    }
    return element(i, mine, seed, levels);
}

template <typename T>
__device__ void fill_as(T* start, u64 items, unsigned rank, unsigned seed, unsigned levels) {
    const u64 step = static_cast<u64>(gridDim.x) * blockDim.x;
    for (u64 i = blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x; i < items; i += step) {
        put(start + i, element(i, rank, seed, levels));
    }
}

// found[0] counts wrong elements, found[1] becomes the lowest place of one (start it at the highest number),
// found[2] counts the elements that were looked at: all of them, or the check itself is broken.
template <typename T>
__device__ void check_as(const T* start, u64 items, int rule, unsigned ranks, u64 part, u64 offset, unsigned mine,
                         unsigned seed, unsigned levels, u64* found) {
    const u64 step = static_cast<u64>(gridDim.x) * blockDim.x;
    u64 looked = 0;
    for (u64 i = blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x; i < items; i += step) {
        T right;
        put(&right, due(i, rule, ranks, part, offset, mine, seed, levels));
        looked += 1;
        if (start[i].bits != right.bits) {
            atomicAdd(&found[0], 1ull);
            atomicMin(&found[1], i);
        }
    }
    atomicAdd(&found[2], looked);
}

#define KERNELS(NAME, TYPE)                                                                                            \
    extern "C" __global__ void fill_##NAME(TYPE* start, u64 items, unsigned rank, unsigned seed, unsigned levels) {    \
        fill_as(start, items, rank, seed, levels);                                                                     \
    }                                                                                                                  \
    extern "C" __global__ void check_##NAME(const TYPE* start, u64 items, int rule, unsigned ranks, u64 part,          \
                                            u64 offset, unsigned mine, unsigned seed, unsigned levels, u64* found) {   \
        check_as(start, items, rule, ranks, part, offset, mine, seed, levels, found);                                  \
    }

KERNELS(float32, Float32)
KERNELS(float16, Float16)
KERNELS(bfloat16, BFloat16)
KERNELS(float8, Float8)
