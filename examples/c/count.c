/*
 * Two processes and a stream with a name: one writes numbers, the other one adds them up.
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

/* Opens the stream that the other process creates, and adds up what comes. */
static int reader(const char *name, int started)
{
    int numbers = streamline_open(name, STREAMLINE_READ);
    if (numbers < 0)
        failed("open");
    /* A reader that comes late starts at now: the writer waits for this word. */
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
    int told[2], started[2];
    char word;

    /* The name is answered by a thread of its creator, so it is created after the fork. */
    snprintf(name, sizeof name, "count-%d", (int)getpid());
    if (pipe(told) || pipe(started))
        return 1;
    if (fork() == 0) {
        if (read(told[0], &word, 1) != 1)
            _exit(1);
        int status = reader(name, started[1]);
        fflush(stdout);
        _exit(status);
    }
    struct streamline_config config = { .capacity = 1 << 16, .every = 32 };
    int numbers = streamline_create(name, &config);
    if (numbers < 0)
        failed("create");
    if (write(told[1], "t", 1) != 1 || read(started[0], &word, 1) != 1)
        return 1;
    for (unsigned long number = 1; number <= 100000; number++)
        if (streamline_write(numbers, &number, sizeof number) != sizeof number)
            failed("write");
    streamline_close(numbers);
    int status;
    wait(&status);
    return status != 0;
}
