// A pattern whose every 64-bit word depends on its place: word i is splitmix64's output number i + 1 for the seed.
// Its twin on the host is iobench/gpu/pattern.py.

__device__ __forceinline__ unsigned long long word(unsigned long long seed, unsigned long long index) {
    unsigned long long z = seed + (index + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

__device__ __forceinline__ unsigned char byte_of(unsigned long long seed, unsigned long long place) {
    return static_cast<unsigned char>(word(seed, place >> 3) >> ((place & 7) * 8));
}

// The whole words go as words, which need an aligned start; what is left over goes as bytes.
__device__ __forceinline__ unsigned long long whole_words(const void* start, unsigned long long nbytes) {
    return (reinterpret_cast<unsigned long long>(start) & 7) == 0 ? nbytes / 8 : 0;
}

extern "C" __global__ void pattern_fill(unsigned char* start, unsigned long long nbytes, unsigned long long seed) {
    const unsigned long long first = blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x;
    const unsigned long long step = gridDim.x * static_cast<unsigned long long>(blockDim.x);
    const unsigned long long words = whole_words(start, nbytes);
    unsigned long long* data = reinterpret_cast<unsigned long long*>(start);
    for (unsigned long long i = first; i < words; i += step) {
        data[i] = word(seed, i);
    }
    for (unsigned long long i = words * 8 + first; i < nbytes; i += step) {
        start[i] = byte_of(seed, i);
    }
}

__device__ __forceinline__ void wrong(unsigned long long* found, unsigned long long place) {
    atomicAdd(&found[0], 1ull);
    atomicMin(&found[1], place);
}

// found[0] counts the bytes that differ, found[1] becomes the lowest place of one (start it at the highest number).
// found[2] counts the bytes that were looked at: nbytes, or the check itself is broken.
extern "C" __global__ void pattern_check(const unsigned char* start, unsigned long long nbytes,
                                         unsigned long long seed, unsigned long long* found) {
    const unsigned long long first = blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x;
    const unsigned long long step = gridDim.x * static_cast<unsigned long long>(blockDim.x);
    const unsigned long long words = whole_words(start, nbytes);
    const volatile unsigned long long* data = reinterpret_cast<const volatile unsigned long long*>(start);
    const volatile unsigned char* bytes = start;
    unsigned long long looked = 0;
    for (unsigned long long i = first; i < words; i += step) {
        const unsigned long long difference = data[i] ^ word(seed, i);
        looked += 8;
        if (difference != 0) {
            for (unsigned long long k = 0; k < 8; ++k) {
                if ((difference >> (k * 8)) & 0xFF) {
                    wrong(found, i * 8 + k);
                }
            }
        }
    }
    for (unsigned long long i = words * 8 + first; i < nbytes; i += step) {
        looked += 1;
        if (bytes[i] != byte_of(seed, i)) {
            wrong(found, i);
        }
    }
    if (looked != 0) {
        atomicAdd(&found[2], looked);
    }
}
