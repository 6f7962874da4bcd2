/* Splices by pointer, from C: `splice FILE`, with a file of at least 1 MB. A writer, a process in the middle and a reader,
 * each of its own; nobody but the reader touches a byte, which the counts prove. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "streamline.h"

#define MUST(what)                                                                      \
    do {                                                                                \
        if (!(what)) {                                                                  \
            fprintf(stderr, "splice.c:%d: not so: %s (errno %d: %s)\n", __LINE__, #what, \
                    errno, streamline_error());                                         \
            exit(1);                                                                    \
        }                                                                               \
    } while (0)

enum { BLOCKS = 3000, BLOCK = 1000, FROM_FILE = 1 << 20, PIECE = 4096 };

static const struct streamline_config pointers = { .capacity = 1 << 20, .pointers = 1 };
static char *contents;

static struct streamline_counts counts_of(int fd)
{
    struct streamline_counts counts;
    MUST(streamline_count(fd, &counts) == 0);
    return counts;
}

static void succeeds(pid_t child)
{
    int status;
    MUST(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Copies blocks into the pipe, and lends it a file in the middle. */
static void write_both(int w, const char *path)
{
    char block[BLOCK];
    int file = streamline_open_file(path, PIECE);
    MUST(file >= 0);
    for (unsigned number = 0; number < BLOCKS; number++) {
        memset(block, number % 251, sizeof block);
        MUST(streamline_write(w, block, sizeof block) == sizeof block);
        if (number == BLOCKS / 2)
            for (size_t done = 0; done < FROM_FILE;) {
                ptrdiff_t moved = streamline_splice(file, w, FROM_FILE - done);
                MUST(moved > 0);
                done += moved;
            }
    }
    struct streamline_counts counts = counts_of(w);
    MUST(counts.copied == BLOCKS && counts.by_pointer == FROM_FILE / PIECE);
    MUST(counts.bytes == BLOCKS * BLOCK + FROM_FILE && counts.dropped == 0);
    MUST(streamline_close(w) == 0 && streamline_close(file) == 0);
}

/* Moves everything on, as pointers. */
static void forward(int r, int w)
{
    ptrdiff_t moved, all = 0;
    while ((moved = streamline_splice(r, w, (size_t)1 << 40)) > 0)
        all += moved;
    MUST(moved == 0 && all == BLOCKS * BLOCK + FROM_FILE);
    struct streamline_counts in = counts_of(r), out = counts_of(w);
    MUST(out.copied == 0 && out.by_pointer == BLOCKS + FROM_FILE / PIECE);
    MUST(in.blocks == out.blocks && in.bytes == out.bytes && out.bytes == (uint64_t)all);
    MUST(in.dropped == 0 && out.dropped == 0);
    MUST(streamline_close(r) == 0 && streamline_close(w) == 0);
}

static void get(int r, const char *expected, size_t count, int peeks)
{
    static char copy[FROM_FILE];
    const char *at = copy;
    for (size_t done = 0; done < count;) {
        ptrdiff_t got = peeks ? streamline_peek(r, &at, count - done) : streamline_read(r, copy, count - done);
        MUST(got > 0 && memcmp(at, expected + done, got) == 0);
        MUST(!peeks || streamline_release(r, got) == 0);
        done += got;
    }
}

static void read_both(int r)
{
    char expected[BLOCK];
    for (unsigned number = 0; number < BLOCKS; number++) {
        memset(expected, number % 251, sizeof expected);
        get(r, expected, sizeof expected, number % 2);
        if (number == BLOCKS / 2)
            get(r, contents, FROM_FILE, 1);
    }
    char end;
    MUST(streamline_read(r, &end, 1) == 0);
    struct streamline_counts counts = counts_of(r);
    MUST(counts.bytes == BLOCKS * BLOCK + FROM_FILE && counts.dropped == 0);
    MUST(streamline_close(r) == 0);
}

/* Writer, middle and reader at the same time. */
static void three_processes(const char *path)
{
    int first[2], second[2];
    MUST(streamline_mpipe_with(first, 2, &pointers) == 0);
    MUST(streamline_mpipe_with(second, 2, &pointers) == 0);
    pid_t middle = fork();
    if (middle == 0) {
        MUST(streamline_close(first[0]) == 0 && streamline_close(second[1]) == 0);
        forward(first[1], second[0]);
        exit(0);
    }
    MUST(streamline_close(first[1]) == 0 && streamline_close(second[0]) == 0);
    pid_t reader = fork();
    if (reader == 0) {
        MUST(streamline_close(first[0]) == 0);
        read_both(second[1]);
        exit(0);
    }
    MUST(streamline_close(second[1]) == 0);
    write_both(first[0], path);
    succeeds(middle), succeeds(reader);
}

/* Writer and middle have exited before the reader opens its end: their memory is still there. */
static void late_reader(const char *path)
{
    int first[2], second[2];
    char out[100];
    MUST(streamline_mpipe_with(first, 2, &pointers) == 0);
    MUST(streamline_mpipe_with(second, 2, &pointers) == 0);
    pid_t writer = fork();
    if (writer == 0) {
        int file = streamline_open_file(path, 0);
        MUST(file >= 0 && streamline_write(first[0], "written", 7) == 7);
        MUST(streamline_splice(file, first[0], 50) == 50);
        MUST(streamline_close(first[0]) == 0 && streamline_close(file) == 0);
        exit(0);
    }
    succeeds(writer);
    MUST(streamline_close(first[0]) == 0);
    pid_t middle = fork();
    if (middle == 0) {
        MUST(streamline_splice(first[1], second[0], 100) == 57);
        MUST(counts_of(second[0]).copied == 0);
        exit(0);
    }
    succeeds(middle);
    MUST(streamline_close(first[1]) == 0 && streamline_close(second[0]) == 0);
    MUST(streamline_read(second[1], out, 100) == 57);
    MUST(memcmp(out, "written", 7) == 0 && memcmp(out + 7, contents, 50) == 0);
    MUST(streamline_close(second[1]) == 0);
}

/* Where one end carries bytes, they are copied once, and the counts say so. */
static void falls_back_to_copies(const char *path)
{
    int bytes[2], by_pointer[2], file = streamline_open_file(path, 0);
    char out[300];
    MUST(file >= 0 && streamline_mpipe(bytes, 2) == 0);
    MUST(streamline_mpipe_with(by_pointer, 2, &pointers) == 0);
    MUST(streamline_write(bytes[0], "plain", 5) == 5);
    MUST(streamline_splice(bytes[1], by_pointer[0], 100) == 5);
    MUST(streamline_splice(file, by_pointer[0], 100) == 100);
    struct streamline_counts counts = counts_of(by_pointer[0]);
    MUST(counts.copied == 1 && counts.by_pointer == 1 && counts.bytes == 105);
    MUST(streamline_splice(by_pointer[1], bytes[0], 5) == 5);
    MUST(streamline_splice(by_pointer[1], bytes[0], 100) == 100);
    MUST(streamline_seek(file, 3) == 0 && streamline_splice(file, bytes[0], 7) == 7);
    counts = counts_of(bytes[0]);
    MUST(counts.by_pointer == 0 && counts.copied == counts.blocks && counts.bytes == 117);
    size_t got = 0;
    while (got < 112) {
        ptrdiff_t count = streamline_read(bytes[1], out + got, sizeof out - got);
        MUST(count > 0);
        got += count;
    }
    MUST(got == 112 && memcmp(out, "plain", 5) == 0 && memcmp(out + 5, contents, 100) == 0);
    MUST(memcmp(out + 105, contents + 3, 7) == 0);
    MUST(counts_of(bytes[1]).blocks == counts.blocks && counts_of(bytes[1]).bytes == 117);
    MUST(streamline_nonblock(by_pointer[1], 1) == 0);
    MUST(streamline_splice(by_pointer[1], bytes[0], 1) == -1 && errno == EAGAIN);
    MUST(streamline_read(by_pointer[1], out, 1) == -1 && errno == EAGAIN);
    MUST(streamline_nonblock(by_pointer[0], 1) == -1 && errno == EINVAL);
    MUST(streamline_reserve(by_pointer[0], 8) == NULL && errno == EBADF);
    MUST(streamline_create("refused", &pointers) == -1 && errno == EINVAL);
    MUST(streamline_open_file("/nonexistent", 0) == -1 && errno == ENOENT);
    MUST(streamline_write(file, "x", 1) == -1 && errno == EBADF);
}

/* A program that splices without waiting releases what the last reader has read: the first writer gets its room back. */
static void releases_without_waiting(void)
{
    enum { ROUNDS = 200, BYTES = 16 << 10 };
    const struct streamline_config small = { .capacity = 64 << 10, .pointers = 1 };
    static char block[BYTES], got[BYTES];
    int first[2], second[2];
    MUST(streamline_mpipe_with(first, 2, &small) == 0);
    MUST(streamline_mpipe_with(second, 2, &small) == 0);
    alarm(60);
    for (int round = 0; round < ROUNDS; round++) {
        memset(block, round, sizeof block);
        MUST(streamline_write(first[0], block, sizeof block) == sizeof block);
        MUST(streamline_splice(first[1], second[0], sizeof block) == sizeof block);
        for (size_t done = 0; done < sizeof got;) {
            ptrdiff_t count = streamline_read(second[1], got + done, sizeof got - done);
            MUST(count > 0);
            done += count;
        }
        MUST(memcmp(got, block, sizeof block) == 0);
        MUST(streamline_nonblock(first[1], 1) == 0 && streamline_nonblock(second[1], 1) == 0);
        MUST(streamline_read(second[1], got, 1) == -1 && errno == EAGAIN);
        MUST(streamline_splice(first[1], second[0], 1) == -1 && errno == EAGAIN);
    }
    alarm(0);
    MUST(streamline_close(first[0]) == 0 && streamline_close(first[1]) == 0);
    MUST(streamline_close(second[0]) == 0 && streamline_close(second[1]) == 0);
}

static struct streamline_ring_size size_of(int fd)
{
    struct streamline_ring_size size;
    MUST(streamline_size(fd, &size) == 0);
    return size;
}

/* Without a capacity, the memory of a pipe sizes itself; with one, it keeps it. */
static void sizes_itself(void)
{
    enum { BLOCKS = 30000 };
    const struct streamline_config own = { .pointers = 1, .every = 32 };
    struct streamline_ring_size size;
    char block[BLOCK], got[BLOCK];
    int fds[2];
    MUST(streamline_mpipe_with(fds, 2, &pointers) == 0);
    MUST(streamline_write(fds[0], "x", 1) == 1);
    size = size_of(fds[0]);
    MUST(size.bytes == 1 << 20 && size.grown == 0 && size.shrunk == 0);
    MUST(streamline_size(fds[1], &size) == -1 && errno == EBADF);
    MUST(streamline_close(fds[0]) == 0 && streamline_close(fds[1]) == 0);
    MUST(streamline_mpipe_with(fds, 2, &own) == 0);
    pid_t writer = fork();
    if (writer == 0) {
        for (unsigned number = 0; number < BLOCKS; number++) {
            memset(block, number % 251, sizeof block);
            MUST(streamline_write(fds[0], block, sizeof block) == sizeof block);
        }
        size = size_of(fds[0]);
        printf("%llu bytes, grown %llu times, shrunk %llu times\n", (unsigned long long)size.bytes,
               (unsigned long long)size.grown, (unsigned long long)size.shrunk);
        MUST(size.bytes >= 256 << 10 && counts_of(fds[0]).copied == BLOCKS);
        MUST(streamline_close(fds[0]) == 0);
        exit(0);
    }
    MUST(streamline_close(fds[0]) == 0);
    for (unsigned number = 0; number < BLOCKS; number++) {
        for (size_t done = 0; done < sizeof got;) {
            ptrdiff_t count = streamline_read(fds[1], got + done, sizeof got - done);
            MUST(count > 0);
            done += count;
        }
        memset(block, number % 251, sizeof block);
        MUST(memcmp(got, block, sizeof block) == 0);
    }
    MUST(streamline_read(fds[1], got, 1) == 0 && streamline_close(fds[1]) == 0);
    succeeds(writer);
}

int main(int argc, char **argv)
{
    MUST(argc == 2);
    FILE *file = fopen(argv[1], "r");
    contents = malloc(FROM_FILE);
    MUST(file && contents && fread(contents, 1, FROM_FILE, file) == FROM_FILE);
    fclose(file);
    three_processes(argv[1]);
    late_reader(argv[1]);
    falls_back_to_copies(argv[1]);
    releases_without_waiting();
    sizes_itself();
    return 0;
}
