/* Rings of others between two threads, whose elements have one size: one element a block, copied in and copied out.
 *
 *     NAME NAME CORES BLOCK
 *
 * Which one is said when this is compiled: BOOST (boost::lockfree::spsc_queue), RIGTORP (rigtorp::SPSCQueue) or FOLLY
 * (folly::ProducerConsumerQueue). BLOCK is one of the sizes below, since an element has a size that is known then, too.
 * For each number on standard input it moves so many blocks and answers how many ns that took. */
#include "common.h"
#include <atomic>
#include <memory>
#include <thread>

#if defined BOOST
#if !__has_include(<boost/lockfree/spsc_queue.hpp>)
#error "the headers of Boost are not there (on Debian: apt install libboost-dev)"
#else
#include <boost/lockfree/spsc_queue.hpp>
template <typename T> struct ring {
    boost::lockfree::spsc_queue<T> of;
    explicit ring(size_t elements) : of(elements) {}
    bool push(const T &from) { return of.push(from); }
    bool pop(T &to) { return of.pop(to); }
};
#endif
#elif defined RIGTORP
#if !__has_include(<rigtorp/SPSCQueue.h>)
#error "rigtorp/SPSCQueue.h is not there: STREAMLINE_RIGTORP names a checkout of github.com/rigtorp/SPSCQueue"
#else
#include <rigtorp/SPSCQueue.h>
template <typename T> struct ring {
    rigtorp::SPSCQueue<T> of;
    explicit ring(size_t elements) : of(elements) {}
    bool push(const T &from) { return of.try_push(from); }
    bool pop(T &to) {
        T *front = of.front();
        if (!front) return false;
        to = *front;
        of.pop();
        return true;
    }
};
#endif
#elif defined FOLLY
#if !__has_include(<folly/ProducerConsumerQueue.h>)
#error "folly/ProducerConsumerQueue.h is not there: STREAMLINE_FOLLY names a checkout of github.com/facebook/folly"
#else
#include <folly/ProducerConsumerQueue.h>
template <typename T> struct ring {
    folly::ProducerConsumerQueue<T> of;
    /* One place of it stays empty. */
    explicit ring(size_t elements) : of((uint32_t)elements + 1) {}
    bool push(const T &from) { return of.write(from); }
    bool pop(T &to) { return of.read(to); }
};
#endif
#endif

enum { RING = 4 << 20 };

template <size_t N> struct block {
    unsigned char bytes[N];
};

template <size_t N> static int move() {
    auto between = std::make_unique<ring<block<N>>>(RING / N);
    auto mine = std::make_unique<block<N>>(), theirs = std::make_unique<block<N>>();
    memset(mine->bytes, 7, N);
    int orders[2], answers[2];
    if (pipe(orders) || pipe(answers)) return 1;
    /* It sleeps between orders: others are measured then. */
    std::thread reader([&] {
        keep_on(cores - 1);
        for (long n; read(orders[0], &n, sizeof n) == sizeof n;) {
            for (; n > 0; n--) {
                while (!between->pop(*theirs)) idle();
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
            while (!between->push(*mine)) idle();
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
