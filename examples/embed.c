/* Counts the URLs in a capture, `embed 'replay web.pcap'`, or in live traffic, `embed 'rx eth0' 100`
 * (stops after 100 exchanges). cc embed.c $(pkg-config --cflags --libs streamline) */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <streamline.h>

#define URLS 1024

static struct { char *url; unsigned long times; } urls[URLS];
static size_t known;

static int by_url(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void count(const char *url)
{
    size_t at = 0;
    while (at < known && strcmp(urls[at].url, url) != 0)
        at++;
    if (at == URLS)
        return;
    if (at == known)
        urls[known++].url = strdup(url);
    urls[at].times++;
}

int main(int argc, char **argv)
{
    char path[32], request[1024], line[8192], report[1 << 16];
    long left = argc > 2 ? atol(argv[2]) : 0;
    if (argc < 2) {
        fprintf(stderr, "usage: embed SOURCE [EXCHANGES]\n");
        return 2;
    }

    int end = streamline_end(STREAMLINE_READ, path, sizeof path);
    FILE *log = end < 0 ? NULL : fdopen(end, "r");
    snprintf(request, sizeof request, "%s | tcp | http |exchange weblog %s", argv[1], path);
    int run = log ? streamline_run(request, NULL) : -1;
    if (run < 0) {
        fprintf(stderr, "%s\n", streamline_error());
        return 1;
    }

    while (fgets(line, sizeof line, log)) {
        if (--left == 0)
            streamline_stop(run);
        /* 10.0.0.1 - - [23/Nov/2026:15:00:00 +0000] "GET /index.html HTTP/1.1" 200 ... */
        char *word = strtok(line, " ");
        for (int at = 0; word && at < 6; at++)
            word = strtok(NULL, " ");
        count(word ? word : "-");
    }
    fclose(log);
    int failed = streamline_finish(run);
    if (failed)
        fprintf(stderr, "%s\n", streamline_error());
    qsort(urls, known, sizeof *urls, by_url);
    for (size_t at = 0; at < known; at++)
        printf("%lu %s\n", urls[at].times, urls[at].url);
    if (streamline_report(run, report, sizeof report) > 0)
        fprintf(stderr, "%s\n", report);
    streamline_close(run);
    return failed ? 1 : 0;
}
