/*
 * Two processes share a named stream: one writes numbers, the other adds them up.
 *
 *     cc -o count examples/c/count.c -lstreamline && ./count
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include "streamline.h"

static void failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, streamline_error());
    exit(1);
}

/* Opens the stream of the other process and adds up its numbers. */
static int reader(const char *name, int started)
{
    int numbers = streamline_open(name, STREAMLINE_READ);
    if (numbers < 0)
        failed("open");
    /* A reader receives only what is written from now on, so the writer waits for this byte. */
    if (write(started, "s", 1) != 1)
        return 1;
    unsigned long sum = 0, number;
    for (;;) {
        ssize_t got = streamline_read(numbers, &number, sizeof number);
        if (got < 0)
            failed("read");
        if (got == 0)
            break;
        sum += number;
    }
    printf("the sum is %lu\n", sum);
    return streamline_close(numbers);
}

int main(void)
{
    char name[32];
    int created[2], started[2];
    char word;

    /* A thread of its creator serves the name, so it is created after the fork. */
    snprintf(name, sizeof name, "count-%d", (int)getpid());
    if (pipe(created) || pipe(started))
        return 1;
    if (fork() == 0) {
        if (read(created[0], &word, 1) != 1)
            _exit(1);
        int status = reader(name, started[1]);
        fflush(stdout);
        _exit(status);
    }
    struct streamline_config config = { .capacity = 1 << 16, .every = 32 };
    int numbers = streamline_create(name, &config);
    if (numbers < 0)
        failed("create");
    if (write(created[1], "t", 1) != 1 || read(started[0], &word, 1) != 1)
        return 1;
    for (unsigned long number = 1; number <= 100000; number++)
        if (streamline_write(numbers, &number, sizeof number) != sizeof number)
            failed("write");
    streamline_close(numbers);
    int status;
    wait(&status);
    return status != 0;
}
