/* The ring of Boost, between two threads: boost::lockfree::spsc_queue, one element a block, copied in and copied out.
 *
 *     boost boost CORES BLOCK
 *
 * BLOCK is one of the sizes below, since an element has a size that is known when this is compiled. For each number
 * on standard input it moves so many blocks and answers how many ns that took. */
#include "common.h"

#if !__has_include(<boost/lockfree/spsc_queue.hpp>)
#error "the headers of Boost are not there (on Debian: apt install libboost-dev)"
#else
#include <atomic>
#include <boost/lockfree/spsc_queue.hpp>
#include <memory>
#include <thread>

enum { RING = 4 << 20 };

template <size_t N> struct block {
    unsigned char bytes[N];
};

template <size_t N> static int move() {
    boost::lockfree::spsc_queue<block<N>> ring(RING / N);
    auto mine = std::make_unique<block<N>>(), theirs = std::make_unique<block<N>>();
    memset(mine->bytes, 7, N);
    int orders[2], answers[2];
    if (pipe(orders) || pipe(answers)) return 1;
    /* It sleeps between orders: others are measured then. */
    std::thread reader([&] {
        keep_on(cores - 1);
        for (long n; read(orders[0], &n, sizeof n) == sizeof n;) {
            for (; n > 0; n--) {
                while (!ring.pop(*theirs)) idle();
                __asm__ volatile("" : : "r"(theirs.get()) : "memory");
            }
            if (write(answers[1], &n, sizeof n) != sizeof n) exit(1);
        }
    });
    keep_on(0);
    for (long n; scanf("%ld", &n) == 1;) {
        uint64_t begin = now();
        if (write(orders[1], &n, sizeof n) != sizeof n) return 1;
        for (; n > 0; n--) {
            __asm__ volatile("" : : "r"(mine.get()) : "memory");
            while (!ring.push(*mine)) idle();
        }
        if (read(answers[0], &n, sizeof n) != sizeof n) return 1;
        printf("%lu\n", (unsigned long)(now() - begin));
        fflush(stdout);
    }
    close(orders[1]);
    reader.join();
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    end_with_parent();
    cores = atoi(argv[2]);
    switch (atol(argv[3])) {
    case 64: return move<64>();
    case 256: return move<256>();
    case 1024: return move<1024>();
    case 4096: return move<4096>();
    case 16384: return move<16384>();
    case 65536: return move<65536>();
    default: return 2;
    }
}
#endif
