/* What the rings in C and C++ share: on which processor they run, what they do when there is nothing to do, and how long
 * something took. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { LINE = 128 };

/* How many processors both sides have: who shares one gives it away, others look again. */
static int cores;

static void idle(void) {
    if (cores == 1) sched_yield();
    else __builtin_ia32_pause();
}

static void keep_on(int processor) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    if (sched_setaffinity(0, sizeof set, &set)) exit(1);
}

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Ends with whoever started this process, however that ends: nobody is left spinning behind a bench that was
 * killed. */
static void end_with_parent(void) {
    if (prctl(PR_SET_PDEATHSIG, SIGKILL)) exit(1);
}

typedef uint64_t words_t __attribute__((vector_size(16), aligned(1), may_alias));

/* Returns the sum of all words, read 64 bytes at a time: a loop of single words is slower than the memory it reads. */
static inline uint64_t sum(const void *from, size_t bytes) {
    const char *at = (const char *)from;
    words_t a = { 0 }, b = { 0 }, c = { 0 }, d = { 0 };
    size_t i = 0;
    for (; i + 64 <= bytes; i += 64) {
        a += *(const words_t *)(at + i);
        b += *(const words_t *)(at + i + 16);
        c += *(const words_t *)(at + i + 32);
        d += *(const words_t *)(at + i + 48);
    }
    a += b + c + d;
    uint64_t total = a[0] + a[1], word;
    for (; i + sizeof word <= bytes; i += sizeof word) {
        memcpy(&word, at + i, sizeof word);
        total += word;
    }
    return total;
}
