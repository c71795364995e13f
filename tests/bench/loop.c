/* Times calls without an interpreter between them. Built by worker.py into a shared library.
 *
 * A sample is the mean of `batch` calls in a row, with `batch` chosen so that a sample takes at least 20 microseconds:
 * the clock then costs less than a thousandth of it. */
#define _POSIX_C_SOURCE 199309L
#include <stddef.h>
#include <stdint.h>
#include <time.h>

typedef int32_t (*onnxc_call)(const void *, const void *, const void *, const void *, const void *, void *, const void *);
typedef int (*call1)(void *);

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* a[0] is the function; with 7 arguments one of onnxc's `call`, with 1 any function of one pointer. */
static int once(int arguments, void *const *a) {
    if (arguments == 7) {
        return ((onnxc_call)(uintptr_t)a[0])(a[1], a[2], a[3], a[4], a[5], a[6], a[7]);
    }
    return ((call1)(uintptr_t)a[0])(a[1]);
}

/* Fills `samples` with seconds per call until `seconds` have passed or `cap` is reached (at least one sample); returns
 * the status of the first call that failed, or 0. */
int bench_loop(int arguments, void *const *a, double seconds, double *samples, size_t cap, size_t *count) {
    size_t batch = 1, n = 0;
    double end;
    *count = 0;
    /* Warm-up, and the length of a batch. */
    end = now() + seconds / 5;
    for (;;) {
        double t = now();
        for (size_t i = 0; i < batch; i++) {
            int status = once(arguments, a);
            if (status) {
                return status;
            }
        }
        t = now() - t;
        if (t < 20e-6) {
            batch *= 2;
        } else if (now() >= end) {
            break;
        }
    }
    end = now() + seconds;
    do {
        double t = now();
        for (size_t i = 0; i < batch; i++) {
            int status = once(arguments, a);
            if (status) {
                return status;
            }
        }
        samples[n++] = (now() - t) / (double)batch;
    } while (n < cap && now() < end);
    *count = n;
    return 0;
}
