/* The plain ring that goals are judged by: slots of one size in memory that two processes share, a remembered
 * copy of the other's position, each position on lines of its own, shown after 32 blocks or 64 KB. It checks
 * nothing, wakes nobody (who finds nothing spins, or yields where both share a processor), and keeps no ledger.
 *
 *     ring LOOK CORES BLOCK
 *
 * LOOK is copy (out of the ring), copy-all (and look at each word of the copy), first (look at the first word, in
 * place), all (at each word, in place) or none (at nothing: what the writer alone can do).
 *
 * For each number on standard input it moves so many blocks and answers how many ns that took. */
#include "common.h"
#include <stdatomic.h>

enum { RING = 4 << 20, EVERY = 32, EVERY_BYTES = 64 << 10 };

struct shared {
    _Alignas(LINE) _Atomic uint64_t head;
    _Alignas(LINE) _Atomic uint64_t tail;
    _Alignas(4096) unsigned char slots[RING];
};

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    end_with_parent();
    cores = atoi(argv[2]);
    size_t block = (size_t)atol(argv[3]);
    uint64_t slots = RING / block, every = EVERY * block > EVERY_BYTES ? EVERY_BYTES / block : EVERY;
    if (every == 0) every = 1;
    struct shared *s = mmap(0, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    unsigned char *mine = aligned_alloc(4096, block > 4096 ? block : 4096);
    if (s == MAP_FAILED || !mine) return 1;
    int orders[2];
    if (pipe(orders)) return 1;
    memset(s->slots, 1, RING);
    memset(mine, 7, block);
    if (fork() == 0) {
        end_with_parent();
        close(orders[1]);
        keep_on(cores - 1);
        int copies = strncmp(argv[1], "copy", 4) == 0;
        size_t look = strstr(argv[1], "all") ? block : strcmp(argv[1], "none") ? 8 : 0;
        uint64_t head = 0, shown = 0, seen = 0;
        /* It sleeps between orders: others are measured then. */
        for (long n; read(orders[0], &n, sizeof n) == sizeof n;) {
            for (; n > 0; n--) {
                while (seen == head) {
                    if (shown != head) atomic_store_explicit(&s->tail, shown = head, memory_order_release);
                    if ((seen = atomic_load_explicit(&s->head, memory_order_acquire)) == head) idle();
                }
                unsigned char *at = s->slots + (head & (slots - 1)) * block;
                if (copies) {
                    memcpy(mine, at, block);
                    __asm__ volatile("" : : "r"(mine) : "memory");
                    at = mine;
                }
                uint64_t total = sum(at, look);
                __asm__ volatile("" : : "r"(total));
                if (++head - shown >= every) atomic_store_explicit(&s->tail, shown = head, memory_order_release);
            }
            atomic_store_explicit(&s->tail, shown = head, memory_order_release);
        }
        return 0;
    }
    keep_on(0);
    uint64_t tail = 0, shown = 0, seen = 0;
    for (long n; scanf("%ld", &n) == 1;) {
        uint64_t begin = now();
        if (write(orders[1], &n, sizeof n) != sizeof n) return 1;
        for (; n > 0; n--) {
            while (tail - seen == slots) {
                if (shown != tail) atomic_store_explicit(&s->head, shown = tail, memory_order_release);
                if (tail - (seen = atomic_load_explicit(&s->tail, memory_order_acquire)) == slots) idle();
            }
            __asm__ volatile("" : : "r"(mine) : "memory");
            memcpy(s->slots + (tail & (slots - 1)) * block, mine, block);
            if (++tail - shown >= every) atomic_store_explicit(&s->head, shown = tail, memory_order_release);
        }
        atomic_store_explicit(&s->head, shown = tail, memory_order_release);
        while (atomic_load_explicit(&s->tail, memory_order_acquire) != tail) idle();
        printf("%lu\n", (unsigned long)(now() - begin));
        fflush(stdout);
    }
    return 0;
}
