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

/* The widest vector that has a non-temporal store, and that store. */
#if defined(__AVX512F__)
typedef double vector __attribute__((vector_size(64)));
static void stream(vector *t, vector x) { _mm512_stream_pd((double *)t, (__m512d)x); }
#elif defined(__AVX__)
typedef double vector __attribute__((vector_size(32)));
static void stream(vector *t, vector x) { _mm256_stream_pd((double *)t, (__m256d)x); }
#elif defined(__SSE2__)
typedef double vector __attribute__((vector_size(16)));
static void stream(vector *t, vector x) { _mm_stream_pd((double *)t, (__m128d)x); }
#elif defined(__aarch64__)
typedef double vector __attribute__((vector_size(16)));
static void stream(vector *t, vector x)
{
    __asm__ volatile("stnp %d0, %d1, [%2]" ::"w"(x[0]), "w"(x[1]), "r"(t) : "memory");
}
#else
#error "no non-temporal store is known for this CPU"
#endif

enum { LANES = sizeof(vector) / sizeof(double), PER_LINE = 64 / sizeof(vector) };

/* Non-temporal stores fill one line after the other, so that its write-combining buffer leaves whole. */
#define EACH_LINE(value) \
    for (int64_t i = 0; i < count; i += PER_LINE) \
        for (int64_t k = i; k < i + PER_LINE; k++) stream(t + k, value)

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

/* Eight accumulators: one alone would wait for the latency of every addition. */
static double sum(const double *t, int64_t n)
{
    const vector *x = (const vector *)t;
    vector a = {0}, b = {0}, c = {0}, d = {0}, e = {0}, f = {0}, g = {0}, h = {0};
    int64_t i = 0, count = n / LANES;
    for (; i + 8 <= count; i += 8) {
        a += x[i], b += x[i + 1], c += x[i + 2], d += x[i + 3];
        e += x[i + 4], f += x[i + 5], g += x[i + 6], h += x[i + 7];
    }
    for (; i < count; i++) a += x[i];
    a += b + c + d + e + f + g + h;
    double all = 0;
    for (int k = 0; k < LANES; k++) all += a[k];
    return all;
}

static void run_nt(int64_t code, double *target, const double *a, const double *b, double s, int64_t n)
{
    vector *t = (vector *)target;
    const vector *x = (const vector *)a, *y = (const vector *)b;
    vector spread = (vector){0} + s;
    int64_t count = n / LANES;
    switch (code) {
    case COPY: EACH_LINE(x[k]); break;
    case SCALE: EACH_LINE(spread * x[k]); break;
    case ADD: EACH_LINE(x[k] + y[k]); break;
    case TRIAD: EACH_LINE(x[k] + spread * y[k]); break;
    case WRITE: EACH_LINE(spread); break;
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

/* A walk over blocks in the order of a table, as iobench/kernels/walk.py has it: chunks of 512 bytes. */
enum { CHUNK = 512, LINE = 64 };

typedef uint64_t words __attribute__((vector_size(32), aligned(8)));

static uint64_t sum_chunk(const char *place)
{
    const words *x = (const words *)place;
    words a = {0}, b = {0}, c = {0}, d = {0};
    for (int i = 0; i < CHUNK / 32; i += 4) a += x[i], b += x[i + 1], c += x[i + 2], d += x[i + 3];
    a += b + c + d;
    return a[0] + a[1] + a[2] + a[3];
}

static uint64_t gather(const char *base, const uint64_t *table, uint64_t n, uint64_t chunks, uint64_t ahead)
{
    uint64_t total = 0, block = chunks * CHUNK;
    for (uint64_t k = 0; k < n; k++) {
        const char *place = base + table[k] * block, *following = base + table[k + 1 < n ? k + 1 : 0] * block;
        uint64_t sums = 0;
        for (uint64_t at = 0; at < block; at += CHUNK) {
            if (ahead) {
                uint64_t far = at + ahead * CHUNK;
                const char *there = far < block ? place + far : following + (far - block);
                for (int line = 0; line < CHUNK; line += LINE) __builtin_prefetch(there + line, 0, 3);
            }
            sums += sum_chunk(place + at);
        }
        total = total * 31 + sums;
    }
    return total;
}

void walk_drive(const char *base, const uint64_t *table, int64_t n, int64_t chunks, int64_t ahead, int64_t passes,
                int64_t *barrier, int64_t threads, int64_t count, int64_t *starts, int64_t *ends, uint64_t *sums)
{
    for (int64_t k = 0; k < count; k++) {
        meet(barrier, (k + 1) * threads);
        uint64_t total = 0;
        starts[k] = now();
        for (int64_t r = 0; r < passes; r++) {
            total += gather(base, table, n, chunks, ahead);
            __asm__ volatile("" ::: "memory");
        }
        ends[k] = now();
        sums[k] = total;
    }
}

/* Whole KV blocks copied out of a pool in the order of a table, as iobench/kernels/gather.py has it. */
static void copy_block(double *t, const double *a, int64_t n)
{
    for (int64_t i = 0; i < n; i++) t[i] = a[i];
}

void gather_drive(double *target, const double *pool, const uint64_t *table, int64_t n, int64_t block, int64_t passes,
                  int64_t *barrier, int64_t threads, int64_t count, int64_t *starts, int64_t *ends)
{
    int64_t each = block / sizeof(double);
    for (int64_t k = 0; k < count; k++) {
        meet(barrier, (k + 1) * threads);
        starts[k] = now();
        for (int64_t r = 0; r < passes; r++) {
            for (int64_t i = 0; i < n; i++) copy_block(target + i * each, pool + table[i] * each, each);
            __asm__ volatile("" ::: "memory");
        }
        ends[k] = now();
    }
}
