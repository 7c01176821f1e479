// Blocks a stream until the host says go, so that what is enqueued behind it starts without any launch cost.

#ifndef IOBENCH_ON_HOST
__device__ __forceinline__ unsigned long long nanoseconds() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}
#endif

// Waits until *flag (mapped host memory) reaches `ticket`. Gives up after `timeout_ns`, so that a launch queue that is
// full can never hang the process, and writes the ticket to *late then. One thread of one block.
extern "C" __global__ void gate(const volatile unsigned int* flag, volatile unsigned int* late, unsigned int ticket,
                                unsigned long long timeout_ns) {
    if (blockIdx.x != 0 || threadIdx.x != 0) {
        return;
    }
    const unsigned long long start = nanoseconds();
    while (*flag < ticket) {
        if (nanoseconds() - start > timeout_ns) {
            *late = ticket;
            __threadfence_system();
            return;
        }
#if __CUDA_ARCH__ >= 700
        __nanosleep(200);  // each look crosses the bus: not more often than needed
#endif
    }
}
