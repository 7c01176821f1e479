// The sum modulo 2^64 of the 64-bit words of each 512 bytes, as if zeros followed the last byte; one warp per unit.
// Its twin on the host is iobench/storage/verify.py. The start must be a multiple of 8.

#ifndef IOBENCH_ON_HOST
// Adds up what the 32 lanes of a warp bring and writes it once.
__device__ static void sum_of_warp(unsigned long long sum, unsigned int lane, unsigned long long* out) {
    for (int distance = 16; distance > 0; distance /= 2) {
        sum += __shfl_down_sync(0xFFFFFFFFu, sum, distance);
    }
    if (lane == 0) {
        *out = sum;
    }
}
#endif

extern "C" __global__ void sums_of_units(const unsigned char* start, unsigned long long nbytes,
                                         unsigned long long* out) {
    const unsigned long long first = (blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x) / 32;
    const unsigned long long step = gridDim.x * static_cast<unsigned long long>(blockDim.x) / 32;
    const unsigned int lane = threadIdx.x % 32;
    const unsigned long long units = (nbytes + 511) / 512;
    for (unsigned long long unit = first; unit < units; unit += step) {
        unsigned long long sum = 0;
        for (unsigned int half = 0; half < 2; ++half) {
            const unsigned long long at = unit * 512 + (half * 32 + lane) * 8ull;
            if (at + 8 <= nbytes) {
                sum += *reinterpret_cast<const volatile unsigned long long*>(start + at);
            } else {
                for (unsigned long long k = 0; at + k < nbytes; ++k) {
                    sum += static_cast<unsigned long long>(start[at + k]) << (8 * k);
                }
            }
        }
        sum_of_warp(sum, lane, out + unit);
    }
}
