/* Aeron between two processes: an exclusive publication over `aeron:ipc`, which offers blocks, and a subscription, whose
 * fragments are copied out. The media driver is a third process, as Aeron wants it: it moves no byte, but without its
 * look the writer gets no room. It stays on no processor, so that it finds one where the other two have one together.
 *
 *     aeron aeron CORES BLOCK
 *
 * For each number on standard input it moves so many blocks and answers how many ns that took. */
#include "common.h"
#if !__has_include(<aeronc.h>) || !__has_include(<aeronmd.h>)
#error "Aeron is not there: STREAMLINE_AERON names a checkout of github.com/aeron-io/aeron, in which its driver is built: cmake -B build && cmake --build build -t aeron_driver"
#else
#include <aeronc.h>
#include <aeronmd.h>
#include <errno.h>
#include <sys/wait.h>

/* Three terms of 64 MB, as Aeron makes them unasked: with shorter ones both wait for the driver's look more often, and
 * all that were tried (256 KB to 16 MB) are slower. A fragment has at most this many bytes with its header; fewer and
 * longer ones are faster. */
#define CHANNEL "aeron:ipc?mtu=65504"

enum { STREAM = 1001, FRAGMENTS = 64 };

static char folder[64];
static volatile sig_atomic_t ended;

static void check(int ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "aeron: %s: %s\n", what, aeron_errmsg());
    exit(1);
}

static void end(int signal) {
    (void)signal;
    ended = 1;
}

/* The media driver, one thread for all its work, idle in its usual way. It outlives whoever started it long enough to
 * remove its folder. */
static void drive(int ready) {
    aeron_driver_context_t *context = NULL;
    aeron_driver_t *driver = NULL;
    signal(SIGTERM, end);
    if (prctl(PR_SET_PDEATHSIG, SIGTERM)) exit(1);
    check(aeron_driver_context_init(&context) == 0, "driver");
    aeron_driver_context_set_dir(context, folder);
    aeron_driver_context_set_dir_delete_on_start(context, true);
    aeron_driver_context_set_dir_delete_on_shutdown(context, true);
    aeron_driver_context_set_term_buffer_sparse_file(context, false);
    aeron_driver_context_set_threading_mode(context, AERON_THREADING_MODE_SHARED);
    check(aeron_driver_init(&driver, context) == 0, "driver");
    check(aeron_driver_start(driver, true) == 0, "driver");
    if (write(ready, "", 1) != 1) exit(1);
    while (!ended) aeron_driver_main_idle_strategy(driver, aeron_driver_main_do_work(driver));
    aeron_driver_close(driver);
    aeron_driver_context_close(context);
    exit(0);
}

static aeron_t *join(void) {
    aeron_context_t *context = NULL;
    aeron_t *client = NULL;
    check(aeron_context_init(&context) == 0, "client");
    check(aeron_context_set_dir(context, folder) == 0, "client");
    /* Its ring is larger than what one measurement moves: nobody is to meet a new page then. */
    check(aeron_context_set_pre_touch_mapped_memory(context, true) == 0, "client");
    check(aeron_init(&client, context) == 0, "client");
    check(aeron_start(client) == 0, "client");
    return client;
}

struct out {
    unsigned char *bytes;
    size_t block, at;
    long left;
};

/* A block of more than one fragment arrives in order. */
static void copy_out(void *to, const uint8_t *from, size_t length, aeron_header_t *header) {
    struct out *out = to;
    (void)header;
    memcpy(out->bytes + out->at, from, length);
    __asm__ volatile("" : : "r"(out->bytes) : "memory");
    out->at += length;
    if (out->at == out->block) out->at = 0, out->left--;
}

static void take(size_t block, int orders, int answers) {
    aeron_async_add_subscription_t *adding = NULL;
    aeron_subscription_t *subscription = NULL;
    struct out out = {aligned_alloc(4096, block > 4096 ? block : 4096), block, 0, 0};
    end_with_parent();
    aeron_t *client = join();
    check(aeron_async_add_subscription(&adding, client, CHANNEL, STREAM, NULL, NULL, NULL, NULL) == 0, CHANNEL);
    while (!subscription) {
        check(aeron_async_add_subscription_poll(&subscription, adding) >= 0, CHANNEL);
        usleep(1000);
    }
    if (!out.bytes || write(answers, &out.left, sizeof out.left) != sizeof out.left) exit(1);
    keep_on(cores - 1);
    /* It sleeps between orders: others are measured then. */
    while (read(orders, &out.left, sizeof out.left) == sizeof out.left) {
        while (out.left > 0) {
            int got = aeron_subscription_poll(subscription, copy_out, &out, FRAGMENTS);
            check(got >= 0, "poll");
            if (got == 0) idle();
        }
        if (write(answers, &out.left, sizeof out.left) != sizeof out.left) exit(1);
    }
    exit(0);
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    cores = atoi(argv[2]);
    size_t block = (size_t)atol(argv[3]);
    unsigned char *mine = aligned_alloc(4096, block > 4096 ? block : 4096);
    int orders[2], answers[2];
    long n;
    if (!mine || pipe(orders) || pipe(answers)) return 1;
    memset(mine, 7, block);
    snprintf(folder, sizeof folder, "/dev/shm/streamline-bench-aeron-%d", (int)getpid());
    if (fork() == 0) drive(answers[1]);
    if (read(answers[0], &n, 1) != 1) return 1;
    end_with_parent();
    if (fork() == 0) {
        close(orders[1]);
        take(block, orders[0], answers[1]);
    }
    if (read(answers[0], &n, sizeof n) != sizeof n) return 1;
    aeron_t *client = join();
    aeron_async_add_exclusive_publication_t *adding = NULL;
    aeron_exclusive_publication_t *publication = NULL;
    check(aeron_async_add_exclusive_publication(&adding, client, CHANNEL, STREAM) == 0, CHANNEL);
    while (!publication) {
        check(aeron_async_add_exclusive_publication_poll(&publication, adding) >= 0, CHANNEL);
        usleep(1000);
    }
    while (!aeron_exclusive_publication_is_connected(publication)) usleep(1000);
    keep_on(0);
    while (scanf("%ld", &n) == 1) {
        uint64_t begin = now();
        if (write(orders[1], &n, sizeof n) != sizeof n) return 1;
        for (; n > 0; n--) {
            int64_t at;
            __asm__ volatile("" : : "r"(mine) : "memory");
            while ((at = aeron_exclusive_publication_offer(publication, mine, block, NULL, NULL)) < 0) {
                /* No room yet, or the next term begins: both go by. */
                check(at == AERON_PUBLICATION_BACK_PRESSURED || at == AERON_PUBLICATION_ADMIN_ACTION, "offer");
                idle();
            }
        }
        if (read(answers[0], &n, sizeof n) != sizeof n) return 1;
        printf("%lu\n", (unsigned long)(now() - begin));
        fflush(stdout);
    }
    return 0;
}
#endif
