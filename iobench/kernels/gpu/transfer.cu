// Transfers by the SMs: copies between any two memories that a GPU reaches (its own, pinned host memory, a peer's),
// and a chase of pointers through them. The copy moves every byte for every size, grid and alignment.

typedef unsigned long long u64;

// Loads in flight per thread: 12 x 16 bytes x 512 threads per SM cover the round trip to the host.
#define DEPTH 12

__device__ void copy_vectors(uint4 *dst, const uint4 *src, u64 count, u64 first, u64 step) {
    u64 i = first;
    for (; i + (DEPTH - 1) * step < count; i += DEPTH * step) {
        uint4 held[DEPTH];
#pragma unroll
        for (int k = 0; k < DEPTH; k++) held[k] = src[i + k * step];
#pragma unroll
        for (int k = 0; k < DEPTH; k++) dst[i + k * step] = held[k];
    }
    for (; i < count; i += step) dst[i] = src[i];
}

__device__ void copy_one(char *dst, const char *src, u64 nbytes, u64 first, u64 step) {
    u64 done = 0;
    if (((u64)dst | (u64)src) % sizeof(uint4) == 0) {
        copy_vectors((uint4 *)dst, (const uint4 *)src, nbytes / sizeof(uint4), first, step);
        done = nbytes / sizeof(uint4) * sizeof(uint4);
    } else if (((u64)dst | (u64)src) % sizeof(unsigned) == 0) {
        for (u64 i = first; i < nbytes / sizeof(unsigned); i += step) ((unsigned *)dst)[i] = ((const unsigned *)src)[i];
        done = nbytes / sizeof(unsigned) * sizeof(unsigned);
    }
    for (u64 i = done + first; i < nbytes; i += step) dst[i] = src[i];
}

// Copies `repeats` messages, one after the other, from slots turn, turn + 1, ... (modulo the slots' count) of two pools.
extern "C" __global__ void __launch_bounds__(512, 1)
transfer_copy(char *dst, const char *src, u64 nbytes, u64 stride, u64 slots, u64 turn, u64 repeats) {
    const u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 r = 0; r < repeats; r++) {
        const u64 at = (turn + r) % slots * stride;
        copy_one(dst + at, src + at, nbytes, first, step);
    }
}

// Both directions in one kernel: even warps copy from src_a to dst_a, odd warps from src_b to dst_b, one vector after
// the other, so that neither direction gets ahead. Slots as above; slots start on multiples of 16 bytes.
extern "C" __global__ void transfer_exchange(char *dst_a, const char *src_a, char *dst_b, const char *src_b, u64 nbytes,
                                             u64 stride, u64 slots, u64 turn, u64 repeats) {
    const u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const u64 first = thread / 64 * 32 + thread % 32;
    const u64 step = (u64)gridDim.x * blockDim.x / 2;
    const bool odd = thread / 32 % 2;
    for (u64 r = 0; r < repeats; r++) {
        const u64 at = (turn + r) % slots * stride;
        char *dst = (odd ? dst_b : dst_a) + at;
        const char *src = (odd ? src_b : src_a) + at;
        const u64 count = nbytes / sizeof(uint4);
        for (u64 i = first; i < count; i += step) __stcg((uint4 *)dst + i, __ldcg((const uint4 *)src + i));
        for (u64 i = count * sizeof(uint4) + first; i < nbytes; i += step) dst[i] = src[i];
    }
}

// Node i of `count` lies at base + offsets[i] and points to node i + 1, the last one to the first.
extern "C" __global__ void transfer_link(char *base, const u64 *offsets, u64 count) {
    const u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        *(u64 *)(base + offsets[i]) = (u64)base + offsets[(i + 1) % count];
}

#ifndef IOBENCH_ON_HOST
__device__ u64 nanoseconds() {
    u64 now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}
#endif

__device__ u64 follow(u64 at, unsigned loads) {
    for (unsigned n = 0; n < loads; n++) at = *(const u64 *)at;
    // The last load must have arrived before a clock is read: the branch depends on it.
    if (at == 0) __trap();
    return at;
}

// One thread of block `target` follows `warm` pointers from `start` and then, between the clocks, `loads` more. found[0]
// is where it stopped, found[1] the SM's cycles and found[2] the nanoseconds that the `loads` took. The other blocks
// only fill the other SMs, so that `target` chooses the SM.
extern "C" __global__ void transfer_chase(u64 start, unsigned warm, unsigned loads, unsigned target, u64 *found) {
    if (blockIdx.x != target || threadIdx.x != 0) return;
    u64 at = follow(start, warm);
    const u64 began = nanoseconds();
    const long long cycles = clock64();
    at = follow(at, loads);
    found[1] = (u64)(clock64() - cycles);
    found[2] = nanoseconds() - began;
    found[0] = at;
}
