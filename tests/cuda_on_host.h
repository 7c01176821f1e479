// Runs CUDA C kernels on the CPU, one thread after another: what a grid covers needs no GPU to be checked.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstring>
#define IOBENCH_ON_HOST
#define __global__
#define __device__
#define __shared__ static
#define __forceinline__ inline
#define __align__(n) alignas(n)
#define __restrict__
#define __launch_bounds__(...)
struct Index { unsigned x, y, z; };
static Index threadIdx, blockIdx, blockDim, gridDim;
static inline void __syncthreads() {}

template <class T> static T load(const T* p) { return *p; }
template <class T> static void store(T* p, T v) { *p = v; }
static void add_up(unsigned long long* total, unsigned long long value) { *total += value; }

// Calls body() once for each thread of the grid.
template <class Body> static void every_thread(Index grid, unsigned threads, Body body) {
  gridDim = grid;
  blockDim = Index{threads, 1, 1};
  for (blockIdx.z = 0; blockIdx.z < grid.z; ++blockIdx.z)
    for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y)
      for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x)
        for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) body();
}

// ---- CUDA's own functions and what kernels write in PTX

struct uint4 { unsigned x, y, z, w; };
static uint4 __ldcg(const uint4* p) { return *p; }
static void __stcg(uint4* p, uint4 v) { *p = v; }
static void __trap() {}
static void __threadfence_system() {}
static void atomicAdd(unsigned long long* p, unsigned long long value) { *p += value; }
static void atomicMin(unsigned long long* p, unsigned long long value) { if (value < *p) *p = value; }

// Clocks that go on with each look, and with each load of a chase by one's latency.
#ifndef HOST_LOOK_NS
#define HOST_LOOK_NS 1000
#endif
static unsigned long long host_ns;
static unsigned long long nanoseconds() { return host_ns += HOST_LOOK_NS; }
static unsigned long long nanoseconds_now() { return nanoseconds(); }
static long long clock64() { return (long long)(nanoseconds() * 1.98); }
static unsigned long long cycles_now() { return (unsigned long long)clock64(); }
static unsigned sm_number() { return 0; }
// A warp's lanes run one after another here: the first one begins the sum, the others add to it.
static void sum_of_warp(unsigned long long sum, unsigned lane, unsigned long long* out) { *out = lane ? *out + sum : sum; }
#define NEXT(cache, p) (p = *reinterpret_cast<unsigned long long*>(p), host_ns += 300)

// What kv.cu does in PTX, written from the formats' definitions (IEEE 754 half, OCP FP8 E4M3), not from kv.cu.
struct Weights { unsigned vector; };
static Weights weights_at(int, unsigned vector) { return Weights{vector}; }
static float half_at(unsigned bits) {
  int sign = bits >> 15 ? -1 : 1, exponent = bits >> 10 & 31, fraction = bits & 1023;
  return sign * (exponent ? std::ldexp(1024.f + fraction, exponent - 25) : std::ldexp((float)fraction, -24));
}
static float e4m3_at(unsigned bits) {
  int sign = bits >> 7 & 1 ? -1 : 1, exponent = bits >> 3 & 15, fraction = bits & 7;
  return sign * (exponent ? std::ldexp(8.f + fraction, exponent - 10) : std::ldexp((float)fraction, -9));
}
template <int FORMAT, class V> static float dot(const V& v, const Weights& weights) {
  float sum = 0;
  const unsigned count = FORMAT == 0 ? 8 : 16;
  for (unsigned n = 0; n < count; ++n) {
    unsigned bits;
    if (FORMAT == 0) bits = v.part[n / 2] >> 16 * (n % 2) & 0xffff; else bits = v.part[n / 4] >> 8 * (n % 4) & 255;
    float x = FORMAT == 0 ? half_at(bits) : FORMAT == 1 ? (float)(signed char)bits : e4m3_at(bits);
    sum += x * (1 + (weights.vector * count + n) % 3);
  }
  return sum;
}
template <class V> static V fetch(const V* p) { return *p; }
static int nearest(float x) { return (int)std::lrint(x); }
static void add(unsigned long long* total, unsigned long long value) { *total += value; }
