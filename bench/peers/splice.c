/* Blocks of a file in memory to a pipe of pointers, as a program in C moves them over libstreamline, in one process.
 *
 *     splice WAY CORES BLOCK
 *
 * WAY is splice (a call for each block), splice-64 (a call for 64 blocks) or copy (streamline_read and streamline_write).
 * The file has 256 KB. For each number on standard input it moves so many blocks and answers how many ns that took; the pipe
 * is drained in between, which is not counted. */
#include "common.h"
#include "streamline.h"

/* As many blocks as surely fit into the ring, and into its memory where they are copied. */
enum { FILE_SIZE = 256 << 10, PIECE = 1024, MEMORY = 512 << 10 };

static void must(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "%s: %s\n", what, streamline_error());
    exit(1);
}

static void drain(int from) {
    const char *at;
    ptrdiff_t got;
    while ((got = streamline_peek(from, &at, FILE_SIZE)) > 0) must(streamline_release(from, got) == 0, "streamline_release");
}

static int open_file(size_t block) {
    char path[] = "/tmp/streamline-bench-XXXXXX", *bytes = malloc(FILE_SIZE);
    int fd = mkstemp(path);
    must(fd >= 0 && bytes != NULL, "a temporary file");
    memset(bytes, 7, FILE_SIZE);
    must(write(fd, bytes, FILE_SIZE) == FILE_SIZE, "write");
    int file = streamline_open_file(path, block);
    must(file >= 0, "streamline_open_file");
    unlink(path);
    close(fd);
    free(bytes);
    return file;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    end_with_parent();
    keep_on(0);
    size_t block = (size_t)atol(argv[3]);
    int copies = strcmp(argv[1], "copy") == 0;
    size_t at_once = strcmp(argv[1], "splice-64") == 0 ? 64 : 1;
    if (at_once > FILE_SIZE / block) at_once = FILE_SIZE / block;
    long piece = copies && MEMORY / 2 / block < PIECE ? (long)(MEMORY / 2 / block) : PIECE;
    struct streamline_config config = { .capacity = MEMORY, .every = 32, .pointers = 1 };
    int ends[2], file = open_file(block);
    must(streamline_mpipe_with(ends, 2, &config) == 0, "streamline_mpipe_with");
    /* The first call opens an end; the reader waits for the writer. */
    char *mine = malloc(block), *first = malloc(1);
    must(mine != NULL && first != NULL && streamline_write(ends[0], "x", 1) == 1, "streamline_write");
    must(streamline_flush(ends[0]) == 0 && streamline_read(ends[1], first, 1) == 1, "streamline_read");
    must(streamline_nonblock(ends[1], 1) == 0, "streamline_nonblock");
    size_t left = FILE_SIZE;
    for (long n; scanf("%ld", &n) == 1;) {
        uint64_t ns = 0;
        while (n > 0) {
            long now_many = n < piece ? n : piece;
            uint64_t begin = now();
            for (long done = 0; done < now_many;) {
                size_t blocks = (long)at_once < now_many - done ? at_once : (size_t)(now_many - done);
                size_t bytes = blocks * block;
                if (left < bytes) {
                    must(streamline_seek(file, 0) == 0, "streamline_seek");
                    left = FILE_SIZE;
                }
                if (copies)
                    must(streamline_read(file, mine, block) == (ptrdiff_t)block
                             && streamline_write(ends[0], mine, block) == (ptrdiff_t)block, "copying");
                else must(streamline_splice(file, ends[0], bytes) == (ptrdiff_t)bytes, "streamline_splice");
                left -= bytes;
                done += (long)blocks;
            }
            ns += now() - begin;
            must(streamline_flush(ends[0]) == 0, "streamline_flush");
            drain(ends[1]);
            n -= now_many;
        }
        printf("%lu\n", (unsigned long)ns);
        fflush(stdout);
    }
    return 0;
}
