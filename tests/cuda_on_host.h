// Runs CUDA C kernels on the CPU, one thread after another: what a grid covers needs no GPU to be checked.
#pragma once
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
