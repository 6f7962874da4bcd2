/* A filter as a Unix process: reads blocks of 1 KB from standard input, passes on those whose first byte
 * is 2, or those in which no byte is 0xff ("whole"). The first of a chain makes the blocks ("source N"),
 * the last counts them ("sink"). [Th fig. 5.1] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 1024 };

static int fill(char *block) {
    size_t have = 0;
    while (have < BLOCK) {
        ssize_t got = read(0, block + have, BLOCK - have);
        if (got <= 0) return 0;
        have += (size_t)got;
    }
    return 1;
}

static int pass(const char *block) {
    size_t put = 0;
    while (put < BLOCK) {
        ssize_t n = write(1, block + put, BLOCK - put);
        if (n <= 0) return 0;
        put += (size_t)n;
    }
    return 1;
}

int main(int argc, char **argv) {
    static char block[BLOCK] __attribute__((aligned(64)));
    if (argc > 2 && strcmp(argv[1], "source") == 0) {
        memset(block, 2, BLOCK);
        for (long n = atol(argv[2]); n > 0; n--)
            if (!pass(block)) return 1;
        return 0;
    }
    int sink = argc > 1 && strcmp(argv[1], "sink") == 0;
    int whole = argc > 1 && strcmp(argv[1], "whole") == 0;
    long count = 0;
    while (fill(block)) {
        if (sink) count++;
        else if ((whole ? !memchr(block, 0xff, BLOCK) : block[0] == 2) && !pass(block)) return 1;
    }
    if (sink) printf("%ld\n", count);
    return 0;
}
