/* Streams as a program in C uses them, over libstreamline: one process writes, the other reads.
 *
 *     streams WAY CORES BLOCK
 *
 * WAY is LOOK, or LOOK:CAPACITY with the size of the ring in bytes, 0 for a ring that sizes itself. LOOK is read (out of
 * the ring, and look at the first word), read-all (and look at each word), peek (look at the first word, in place) or
 * peek-all (at each word, in place).
 *
 * For each number on standard input it moves so many blocks and answers how many ns that took. */
#include "common.h"
#include "streamline.h"

enum { CAPACITY = 4 << 20, EVERY = 32 };

static void must(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "%s: %s\n", what, streamline_error());
    exit(1);
}

/* Reads so many bytes for each number that comes in, and answers with one byte. */
static void read_all(int from, int requests, int replies, const char *way, size_t block) {
    char *mine = aligned_alloc(4096, block > 4096 ? block : 4096);
    int peeks = strncmp(way, "peek", 4) == 0;
    size_t look = strstr(way, "all") ? block : 8;
    must(mine != NULL, "memory");
    for (long left; read(requests, &left, sizeof left) == sizeof left;) {
        while (left > 0) {
            const char *at = mine;
            ptrdiff_t got = peeks ? streamline_peek(from, &at, block) : streamline_read(from, mine, block);
            must(got > 0, "reading");
            uint64_t total = sum(at, look < (size_t)got ? look : (size_t)got);
            __asm__ volatile("" : : "r"(total) : "memory");
            if (peeks) must(streamline_release(from, got) == 0, "streamline_release");
            left -= got;
        }
        if (write(replies, "d", 1) != 1) exit(1);
    }
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    end_with_parent();
    cores = atoi(argv[2]);
    size_t block = (size_t)atol(argv[3]);
    const char *size = strchr(argv[1], ':');
    struct streamline_config config = { .capacity = size ? strtoull(size + 1, 0, 10) : CAPACITY, .every = EVERY };
    int ends[2], requests[2], replies[2];
    must(streamline_mpipe_with(ends, 2, &config) == 0, "streamline_mpipe_with");
    must(pipe(requests) == 0 && pipe(replies) == 0, "pipe");
    if (fork() == 0) {
        end_with_parent();
        keep_on(cores - 1);
        close(requests[1]);
        must(streamline_close(ends[0]) == 0, "streamline_close");
        read_all(ends[1], requests[0], replies[1], argv[1], block);
        return 0;
    }
    keep_on(0);
    close(replies[1]);
    must(streamline_close(ends[1]) == 0, "streamline_close");
    char *mine = aligned_alloc(4096, block > 4096 ? block : 4096), done;
    must(mine != NULL, "memory");
    memset(mine, 7, block);
    for (long n; scanf("%ld", &n) == 1;) {
        uint64_t begin = now();
        long bytes = n * (long)block;
        must(write(requests[1], &bytes, sizeof bytes) == sizeof bytes, "write");
        for (; n > 0; n--) {
            __asm__ volatile("" : : "r"(mine) : "memory");
            must(streamline_write(ends[0], mine, block) == (ptrdiff_t)block, "streamline_write");
        }
        must(streamline_flush(ends[0]) == 0, "streamline_flush");
        must(read(replies[0], &done, 1) == 1, "the reader");
        printf("%lu\n", (unsigned long)(now() - begin));
        fflush(stdout);
    }
    return 0;
}
