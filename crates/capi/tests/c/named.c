/* The named ends of a request: a program reads what `user` gives, and writes what `buffer` takes. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "streamline.h"

static void must(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "%s: %s (errno %d)\n", what, streamline_error(), errno);
        exit(1);
    }
}

/* Returns the number of bytes that the readers of `name` get. */
static long read_all(const char *request, const char *name)
{
    char bytes[4096];
    long total = 0;
    ptrdiff_t got;
    int run = streamline_run(request, NULL);
    must(run >= 0, "run");
    int fd = streamline_open(name, STREAMLINE_READ);
    must(fd >= 0, "open to read");
    while ((got = streamline_read(fd, bytes, sizeof bytes)) > 0)
        total += got;
    must(got == 0, "read to the end");
    must(streamline_close(fd) == 0, "close");
    must(streamline_finish(run) == 0, "finish");
    must(streamline_close(run) == 0, "close the run");
    return total;
}

static void write_blocks(const char *request, const char *name, int blocks)
{
    char report[16384];
    int run = streamline_run(request, NULL);
    must(run >= 0, "run");
    int fd = streamline_open(name, STREAMLINE_WRITE);
    must(fd >= 0, "open to write");
    for (int i = 0; i < blocks; i++)
        must(streamline_write(fd, "a block", 7) == 7, "write");
    must(streamline_close(fd) == 0, "close");
    must(streamline_finish(run) == 0, "finish");
    must(streamline_report(run, report, sizeof report) > 0, "report");
    must(strstr(report, "\"given\":{\"blocks\":1000,\"bytes\":7000}") != NULL, report);
    must(streamline_close(run) == 0, "close the run");
}

int main(int argc, char **argv)
{
    must(argc == 3, "a capture and a name");
    char request[512];
    must(streamline_open(argv[2], STREAMLINE_READ) < 0 && errno == ENOENT, "no such name");
    snprintf(request, sizeof request, "replay %s | bpf tcp | user %s full=wait", argv[1], argv[2]);
    printf("%ld\n", read_all(request, argv[2]));
    snprintf(request, sizeof request, "buffer %s link=none last=yes | count", argv[2]);
    write_blocks(request, argv[2], 1000);
    return 0;
}
