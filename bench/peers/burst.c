/* A ring of pointers in bursts, as rte_ring of DPDK is with one producer and one consumer: each call looks at the
 * other's position, copies up to 32 pointers of 8 bytes, and shows its own. Between two processes; it checks
 * nothing, wakes nobody, and what a pointer leads to it does not know.
 *
 *     burst ENTRIES CORES 8
 *
 * ENTRIES, a power of two, is how many pointers the ring holds. For each number on standard input it moves so many
 * pointers and answers how many ns that took. */
#include "common.h"
#include <stdatomic.h>

enum { BURST = 32 };

/* Pointers that the ring holds. */
static uint64_t size;

struct shared {
    _Alignas(LINE) _Atomic uint64_t head;
    _Alignas(LINE) _Atomic uint64_t tail;
    _Alignas(LINE) uint64_t entries[];
};

static uint64_t enqueue(struct shared *s, uint64_t head, const uint64_t *from, uint64_t count) {
    uint64_t room = size - (head - atomic_load_explicit(&s->tail, memory_order_acquire));
    if (count > room) count = room;
    for (uint64_t i = 0; i < count; i++) s->entries[(head + i) & (size - 1)] = from[i];
    atomic_store_explicit(&s->head, head + count, memory_order_release);
    return count;
}

static uint64_t dequeue(struct shared *s, uint64_t tail, uint64_t *to, uint64_t count) {
    uint64_t there = atomic_load_explicit(&s->head, memory_order_acquire) - tail;
    if (count > there) count = there;
    for (uint64_t i = 0; i < count; i++) to[i] = s->entries[(tail + i) & (size - 1)];
    atomic_store_explicit(&s->tail, tail + count, memory_order_release);
    return count;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    end_with_parent();
    size = strtoull(argv[1], 0, 10), cores = atoi(argv[2]);
    if (size == 0 || size & (size - 1)) return 2;
    size_t bytes = sizeof(struct shared) + size * sizeof(uint64_t);
    struct shared *s = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int orders[2], answers[2];
    if (s == MAP_FAILED || pipe(orders) || pipe(answers)) return 1;
    uint64_t burst[BURST] = {0};
    if (fork() == 0) {
        end_with_parent();
        close(orders[1]);
        keep_on(cores - 1);
        uint64_t tail = 0;
        /* It sleeps between orders: others are measured then. */
        for (long n; read(orders[0], &n, sizeof n) == sizeof n;) {
            while (n > 0) {
                uint64_t got = dequeue(s, tail, burst, n < BURST ? (uint64_t)n : BURST);
                __asm__ volatile("" : : "r"(burst) : "memory");
                if (got == 0) idle();
                tail += got;
                n -= (long)got;
            }
            if (write(answers[1], &n, sizeof n) != sizeof n) return 1;
        }
        return 0;
    }
    keep_on(0);
    uint64_t head = 0;
    for (long n, left; scanf("%ld", &n) == 1;) {
        uint64_t begin = now();
        if (write(orders[1], &n, sizeof n) != sizeof n) return 1;
        for (left = n; left > 0;) {
            __asm__ volatile("" : : "r"(burst) : "memory");
            uint64_t put = enqueue(s, head, burst, left < BURST ? (uint64_t)left : BURST);
            if (put == 0) idle();
            head += put;
            left -= (long)put;
        }
        if (read(answers[0], &left, sizeof left) != sizeof left) return 1;
        printf("%lu\n", (unsigned long)(now() - begin));
        fflush(stdout);
    }
    return 0;
}
