/* The same kernels in C, for `iobench crosscheck dram` only: gcc -O3 -march=native, never part of a measurement.
 *
 * Each function has the arguments of its twin in iobench/kernels: samples are taken between two reads of
 * CLOCK_MONOTONIC after all threads have met at a spinning barrier.
 */
#include <stdint.h>
#include <time.h>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

enum { COPY, SCALE, ADD, TRIAD, READ, WRITE };

typedef double line __attribute__((vector_size(64)));

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static void meet(int64_t *barrier, int64_t arrivals)
{
    __atomic_fetch_add(barrier, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(barrier, __ATOMIC_ACQUIRE) < arrivals)
        ;
}

static void copy(double *t, const double *a, int64_t n)
{
    for (int64_t i = 0; i < n; i++) t[i] = a[i];
}

static void scale(double *t, const double *a, double s, int64_t n)
{
    for (int64_t i = 0; i < n; i++) t[i] = s * a[i];
}

static void add(double *t, const double *a, const double *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) t[i] = a[i] + b[i];
}

static void triad(double *t, const double *a, const double *b, double s, int64_t n)
{
    for (int64_t i = 0; i < n; i++) t[i] = a[i] + s * b[i];
}

static void fill(double *t, double s, int64_t n)
{
    for (int64_t i = 0; i < n; i++) t[i] = s;
}

/* Four accumulators of a line each: one alone would wait for the latency of every addition. */
static double sum(const double *t, int64_t n)
{
    line total[4] = {{0}};
    const line *lines = (const line *)t;
    int64_t i = 0, count = n / 8;
    for (; i + 4 <= count; i += 4)
        for (int k = 0; k < 4; k++) total[k] += lines[i + k];
    for (; i < count; i++) total[0] += lines[i];
    total[0] += total[1] + (total[2] + total[3]);
    double all = 0;
    for (int k = 0; k < 8; k++) all += total[0][k];
    return all;
}

#if defined(__AVX512F__)
static void stream(double *t, line x) { _mm512_stream_pd(t, (__m512d)x); }
#elif defined(__AVX__)
static void stream(double *t, line x)
{
    _mm256_stream_pd(t, (__m256d){x[0], x[1], x[2], x[3]});
    _mm256_stream_pd(t + 4, (__m256d){x[4], x[5], x[6], x[7]});
}
#elif defined(__SSE2__)
static void stream(double *t, line x)
{
    for (int k = 0; k < 8; k += 2) _mm_stream_pd(t + k, (__m128d){x[k], x[k + 1]});
}
#elif defined(__aarch64__)
static void stream(double *t, line x)
{
    typedef double pair __attribute__((vector_size(16)));
    for (int k = 0; k < 8; k += 4) {
        pair low = {x[k], x[k + 1]}, high = {x[k + 2], x[k + 3]};
        __asm__ volatile("stnp %q0, %q1, [%2]" ::"w"(low), "w"(high), "r"(t + k) : "memory");
    }
}
#else
#error "no non-temporal store is known for this CPU"
#endif

static void run_nt(int64_t code, double *t, const double *a, const double *b, double s, int64_t n)
{
    const line *x = (const line *)a, *y = (const line *)b;
    line spread = {s, s, s, s, s, s, s, s};
    int64_t count = n / 8;
    switch (code) {
    case COPY: for (int64_t i = 0; i < count; i++) stream(t + 8 * i, x[i]); break;
    case SCALE: for (int64_t i = 0; i < count; i++) stream(t + 8 * i, spread * x[i]); break;
    case ADD: for (int64_t i = 0; i < count; i++) stream(t + 8 * i, x[i] + y[i]); break;
    case TRIAD: for (int64_t i = 0; i < count; i++) stream(t + 8 * i, x[i] + spread * y[i]); break;
    case WRITE: for (int64_t i = 0; i < count; i++) stream(t + 8 * i, spread); break;
    }
}

static double run_plain(int64_t code, double *t, const double *a, const double *b, double s, int64_t n)
{
    switch (code) {
    case COPY: copy(t, a, n); break;
    case SCALE: scale(t, a, s, n); break;
    case ADD: add(t, a, b, n); break;
    case TRIAD: triad(t, a, b, s, n); break;
    case READ: return sum(t, n);
    case WRITE: fill(t, s, n); break;
    }
    return 0.0;
}

void stream_drive(int64_t code, int64_t nt, double *t, const double *a, const double *b, int64_t n, double s,
                  int64_t reps, int64_t *barrier, int64_t threads, int64_t count, int64_t *starts, int64_t *ends,
                  double *sums)
{
    for (int64_t k = 0; k < count; k++) {
        meet(barrier, (k + 1) * threads);
        double total = 0.0;
        starts[k] = now();
        for (int64_t r = 0; r < reps; r++) {
            if (nt)
                run_nt(code, t, a, b, s, n);
            else
                total += run_plain(code, t, a, b, s, n);
            __asm__ volatile("" ::: "memory");
        }
        if (nt) __atomic_thread_fence(__ATOMIC_SEQ_CST);
        ends[k] = now();
        sums[k] = total;
    }
}

void chase_drive(void **place, int64_t loads, int64_t count, int64_t *starts, int64_t *ends, void **places)
{
    for (int64_t k = 0; k < count; k++) {
        starts[k] = now();
        for (int64_t i = 0; i < loads; i++) place = (void **)*place;
        __asm__ volatile("" : "+r"(place)::"memory");
        places[k] = place;
        ends[k] = now();
    }
}
