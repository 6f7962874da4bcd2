/* What the header promises, from C: `exam PART`. Ends with 0, or says which line is not so. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "streamline.h"

#define MUST(what)                                                                      \
    do {                                                                                \
        if (!(what)) {                                                                  \
            fprintf(stderr, "exam.c:%d: not so: %s (errno %d: %s)\n", __LINE__, #what,   \
                    errno, streamline_error());                                         \
            exit(1);                                                                    \
        }                                                                               \
    } while (0)
#define FAILS(number, what)                                                             \
    do {                                                                                \
        errno = 0;                                                                      \
        MUST((what) == -1);                                                             \
        MUST(errno == (number));                                                        \
        MUST(strlen(streamline_error()) > 0);                                           \
    } while (0)

static char name[64];

static void arguments(void)
{
    char buf[64] = { 0 };
    const char *at;
    int fds[4], pipes[2], pair[2];

    for (int fd = -2; fd < 3000; fd += fd < 5 ? 1 : 500) {
        FAILS(EBADF, streamline_read(fd, buf, 8));
        FAILS(EBADF, streamline_write(fd, buf, 8));
        FAILS(EBADF, streamline_peek(fd, &at, 8));
        FAILS(EBADF, streamline_release(fd, 8));
        FAILS(EBADF, streamline_commit(fd, 8));
        FAILS(EBADF, streamline_flush(fd));
        FAILS(EBADF, streamline_evicted(fd));
        FAILS(EBADF, streamline_wait(fd, 0));
        FAILS(EBADF, streamline_nonblock(fd, 1));
        FAILS(EBADF, streamline_close(fd));
        FAILS(EBADF, streamline_accept(fd, 0));
        FAILS(EBADF, streamline_pread(fd, buf, 8, 0));
        FAILS(EBADF, streamline_state_columns(fd));
        FAILS(EBADF, streamline_state_look(fd));
        FAILS(EBADF, streamline_state_name(fd, 0, buf, 8));
        MUST(streamline_reserve(fd, 8) == NULL && errno == EBADF);
    }
    FAILS(EBADF, streamline_read(0x7fffffff, buf, 8));
    /* Not ours, and left as they were. */
    MUST(pipe(pipes) == 0 && write(pipes[1], "here", 4) == 4);
    FAILS(EBADF, streamline_read(pipes[0], buf, 8));
    FAILS(EBADF, streamline_write(pipes[1], buf, 8));
    FAILS(EBADF, streamline_close(pipes[0]));
    MUST(read(pipes[0], buf, 8) == 4);
    MUST(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0 && write(pair[0], "a word", 6) == 6);
    FAILS(EBADF, streamline_read(pair[1], buf, 8));
    FAILS(EBADF, streamline_write(pair[1], buf, 8));
    MUST(read(pair[1], buf, 8) == 6);

    FAILS(EFAULT, streamline_create(NULL, NULL));
    FAILS(EFAULT, streamline_open(NULL, 0));
    FAILS(EFAULT, streamline_mpipe(NULL, 2));
    FAILS(EINVAL, streamline_create("", NULL));
    FAILS(EINVAL, streamline_create("a b", NULL));
    FAILS(EINVAL, streamline_create("\xff\xfe", NULL));
    FAILS(EINVAL, streamline_open("x/y", 0));
    FAILS(EINVAL, streamline_open("x", 64));
    FAILS(ENOENT, streamline_open("exam-nobody-has-this", 0));
    MUST(strstr(streamline_error(), "exam-nobody-has-this") != NULL);
    FAILS(EINVAL, streamline_create_region("x", 0, 0600));
    FAILS(EINVAL, streamline_create_region("x", (size_t)-1, 0600));
    FAILS(EINVAL, streamline_mpipe(fds, -1));
    FAILS(EINVAL, streamline_mpipe(fds, 0));
    FAILS(EINVAL, streamline_mpipe(fds, 1));
    FAILS(EINVAL, streamline_mpipe(fds, 1000000));
    struct streamline_config config = { .policy = 9 };
    FAILS(EINVAL, streamline_create(name, &config));
    config.policy = 0, config.capacity = ~0ull;
    FAILS(EINVAL, streamline_create(name, &config));

    int w = streamline_create(name, NULL);
    MUST(w >= 0);
    FAILS(EEXIST, streamline_create(name, NULL));
    int r = streamline_open(name, STREAMLINE_READ);
    MUST(r >= 0);
    FAILS(EBADF, streamline_open(name, STREAMLINE_WRITE));
    FAILS(EFAULT, streamline_write(w, NULL, 8));
    FAILS(EFAULT, streamline_read(r, NULL, 8));
    FAILS(EFAULT, streamline_peek(r, NULL, 8));
    FAILS(EINVAL, streamline_write(w, buf, (size_t)-1));
    FAILS(EBADF, streamline_write(r, buf, 8));
    FAILS(EBADF, streamline_read(w, buf, 8));
    FAILS(EINVAL, streamline_commit(w, 8));
    FAILS(EINVAL, streamline_splice(r, r, 8));
    FAILS(EBADF, streamline_splice(w, r, 8));
    MUST(streamline_reserve(w, 16) != NULL);
    FAILS(EINVAL, streamline_commit(w, 17));
    MUST(streamline_reserve(w, (size_t)1 << 40) == NULL && errno == EMSGSIZE);
    FAILS(EINVAL, streamline_mpipe(fds, 66));
    MUST(streamline_write(w, NULL, 0) == 0);
    MUST(streamline_close(w) == 0);
    FAILS(EBADF, streamline_close(w));
    FAILS(EBADF, streamline_write(w, buf, 8));
    MUST(streamline_read(r, buf, 8) == 0);
    MUST(streamline_close(r) == 0);
    FAILS(EBADF, streamline_close(r));
}

static void calls(void)
{
    char buf[200];
    const char *at;
    int w = streamline_create(name, NULL), r = streamline_open(name, STREAMLINE_NONBLOCK);
    MUST(w >= 0 && r >= 0);
    struct pollfd ready = { .fd = r, .events = POLLIN };
    FAILS(EAGAIN, streamline_read(r, buf, 100));
    MUST(poll(&ready, 1, 0) == 0);
    MUST(streamline_write(w, "hello", 5) == 5);
    MUST(poll(&ready, 1, 5000) == 1);
    MUST(streamline_peek(r, &at, 100) == 5 && memcmp(at, "hello", 5) == 0);
    MUST(streamline_release(r, 2) == 0);
    MUST(streamline_read(r, buf, 100) == 3 && memcmp(buf, "llo", 3) == 0);
    FAILS(EAGAIN, streamline_peek(r, &at, 100));
    char *room = streamline_reserve(w, 100);
    MUST(room != NULL);
    memset(room, 'x', 50);
    MUST(streamline_commit(w, 50) == 0);
    MUST(poll(&ready, 1, 5000) == 1 && streamline_wait(r, 0) == 1);
    MUST(streamline_read(r, buf, 100) == 50 && buf[0] == 'x' && buf[49] == 'x');
    MUST(streamline_wait(r, 1) == 0);

    /* From one stream to another. */
    char other[80];
    snprintf(other, sizeof other, "%s-2", name);
    int w2 = streamline_create(other, NULL), r2 = streamline_open(other, STREAMLINE_READ);
    MUST(streamline_write(w, "to be moved", 11) == 11);
    MUST(streamline_splice(r, w2, 1000) == 11);
    FAILS(EAGAIN, streamline_splice(r, w2, 1000));
    MUST(streamline_read(r2, buf, 100) == 11 && memcmp(buf, "to be moved", 11) == 0);

    /* Until nobody reads. */
    MUST(streamline_close(r2) == 0);
    MUST(streamline_close(w) == 0 && streamline_close(w2) == 0);
    MUST(poll(&ready, 1, 5000) == 1 && streamline_read(r, buf, 100) == 0);
    MUST(streamline_close(r) == 0);

    /* A full ring that never waits. */
    struct streamline_config config = { .capacity = 4096 };
    w = streamline_create(name, &config), r = streamline_open(name, STREAMLINE_READ);
    MUST(w >= 0 && r >= 0 && streamline_nonblock(w, 1) == 0);
    int blocks = 0;
    while (streamline_write(w, buf, 100) == 100)
        blocks++;
    MUST(errno == EAGAIN && blocks > 20);
    MUST(streamline_reserve(w, 100) == NULL && errno == EAGAIN);
    w2 = streamline_create(other, NULL), r2 = streamline_open(other, STREAMLINE_READ);
    MUST(streamline_write(w2, buf, 100) == 100);
    FAILS(EAGAIN, streamline_splice(r2, w, 100));
    MUST(streamline_read(r2, buf, 100) == 100);
    MUST(streamline_close(w2) == 0 && streamline_close(r2) == 0);
    while (blocks-- > 0)
        MUST(streamline_read(r, buf, 100) == 100);
    MUST(streamline_wait(r, 0) == 0 && streamline_wait(w, -1) == 1);
    MUST(streamline_write(w, buf, 100) == 100);
    MUST(streamline_close(w) == 0 && streamline_close(r) == 0);

    /* A long write to a full ring that drops: the result says how much was written. */
    static char longer[20000];
    struct streamline_counts counts;
    struct streamline_config dropping = { .capacity = 4096, .policy = STREAMLINE_DROP_NEW };
    w = streamline_create(name, &dropping), r = streamline_open(name, STREAMLINE_NONBLOCK);
    MUST(w >= 0 && r >= 0);
    ptrdiff_t written = streamline_write(w, longer, sizeof longer), got, all = 0;
    MUST(written > 0 && written < (ptrdiff_t)sizeof longer);
    FAILS(ENOBUFS, streamline_write(w, longer, sizeof longer));
    MUST(streamline_count(w, &counts) == 0);
    MUST(counts.bytes == (uint64_t)written && counts.dropped == 2);
    while ((got = streamline_read(r, longer, sizeof longer)) > 0)
        all += got;
    MUST(all == written);
    MUST(streamline_close(w) == 0 && streamline_close(r) == 0);
}

static void on_alarm(int signal)
{
    (void)signal;
}

/* A signal handler does not end a wait before its limit. */
static void waits(void)
{
    struct sigaction action = { .sa_handler = on_alarm };
    struct itimerval often = { { 0, 20000 }, { 0, 20000 } }, never = { { 0, 0 }, { 0, 0 } };
    struct timespec begin, end;
    char box[80];
    int w = streamline_create(name, NULL), r = streamline_open(name, STREAMLINE_READ);
    snprintf(box, sizeof box, "%s-box", name);
    int inbox = streamline_create_inbox(box, 0600);
    MUST(w >= 0 && r >= 0 && inbox >= 0 && sigaction(SIGALRM, &action, NULL) == 0);
    MUST(setitimer(ITIMER_REAL, &often, NULL) == 0);
    for (int round = 0; round < 3; round++) {
        clock_gettime(CLOCK_MONOTONIC, &begin);
        if (round == 0)
            MUST(streamline_wait(r, 150) == 0);
        else if (round == 1)
            MUST(streamline_wait(inbox, 150) == 0);
        else
            FAILS(EAGAIN, streamline_accept(inbox, 150));
        clock_gettime(CLOCK_MONOTONIC, &end);
        MUST((end.tv_sec - begin.tv_sec) * 1000 + (end.tv_nsec - begin.tv_nsec) / 1000000 >= 149);
    }
    MUST(setitimer(ITIMER_REAL, &never, NULL) == 0);
    MUST(streamline_close(w) == 0 && streamline_close(r) == 0 && streamline_close(inbox) == 0);
}

static void region(void)
{
    char buf[200];
    int c = streamline_create_region(name, 1000, 0644);
    int o = streamline_open(name, STREAMLINE_READ);
    MUST(c >= 0 && o >= 0);
    MUST(streamline_pwrite(c, "there", 5, 500) == 5);
    MUST(streamline_pread(o, buf, 5, 500) == 5 && memcmp(buf, "there", 5) == 0);
    MUST(streamline_pread(o, buf, 200, 900) == 100 && streamline_pread(o, buf, 1, 1000) == 0);
    FAILS(ENOSPC, streamline_pwrite(c, "x", 1, 1000));
    FAILS(ENOSPC, streamline_pwrite(c, "x", 1, ~0ull));
    FAILS(EBADF, streamline_pwrite(o, "x", 1, 0));
    MUST(streamline_write(c, "sequence", 8) == 8 && streamline_write(c, "!", 1) == 1);
    MUST(streamline_read(o, buf, 100) == 100 && memcmp(buf, "sequence!", 9) == 0);
    int w = streamline_open(name, STREAMLINE_WRITE);
    MUST(w >= 0 && streamline_pwrite(w, "both", 4, 0) == 4);
    MUST(streamline_pread(o, buf, 4, 0) == 4 && memcmp(buf, "both", 4) == 0);
    MUST(streamline_close(c) == 0 && streamline_close(o) == 0 && streamline_close(w) == 0);
}

static void inbox(void)
{
    char buf[20];
    int in = streamline_create_inbox(name, 0600);
    MUST(in >= 0);
    FAILS(EAGAIN, streamline_accept(in, 0));
    if (fork() == 0) {
        int out = streamline_open(name, STREAMLINE_WRITE);
        MUST(out >= 0 && streamline_write(out, "from a child", 12) == 12);
        MUST(streamline_close(out) == 0);
        exit(0);
    }
    int from = streamline_accept(in, -1);
    MUST(from >= 0 && streamline_read(from, buf, 20) == 12 && memcmp(buf, "from a", 6) == 0);
    MUST(streamline_read(from, buf, 20) == 0);
    MUST(streamline_close(from) == 0 && streamline_close(in) == 0);
    int status;
    MUST(wait(&status) > 0 && status == 0);
}

enum { READERS = 3, BLOCKS = 20000 };

static void mpipe(void)
{
    int fds[READERS + 1], status;
    MUST(streamline_mpipe(fds, READERS + 1) == 0);
    for (int i = 1; i <= READERS; i++) {
        if (fork() != 0)
            continue;
        for (int other = 0; other <= READERS; other++)
            if (other != i)
                MUST(streamline_close(fds[other]) == 0);
        unsigned seen = 0, buf[64];
        ssize_t got;
        while ((got = streamline_read(fds[i], buf, i * 16)) > 0)
            for (unsigned at = 0; at < got / sizeof buf[0]; at++, seen++)
                MUST(buf[at] == seen);
        MUST(got == 0 && seen == BLOCKS * 4);
        MUST(streamline_close(fds[i]) == 0);
        exit(0);
    }
    for (int i = 1; i <= READERS; i++)
        MUST(streamline_close(fds[i]) == 0);
    for (unsigned at = 0; at < BLOCKS * 4; at += 4) {
        unsigned block[4] = { at, at + 1, at + 2, at + 3 };
        MUST(streamline_write(fds[0], block, sizeof block) == sizeof block);
    }
    MUST(streamline_close(fds[0]) == 0);
    for (int i = 1; i <= READERS; i++)
        MUST(wait(&status) > 0 && status == 0);
    /* All readers leave, one of them killed. */
    MUST(streamline_mpipe(fds, 3) == 0);
    pid_t child = fork();
    if (child == 0) {
        char block[8];
        MUST(streamline_close(fds[0]) == 0 && streamline_close(fds[2]) == 0);
        MUST(streamline_read(fds[1], block, 8) == 8);
        pause();
    }
    MUST(streamline_close(fds[1]) == 0 && streamline_close(fds[2]) == 0);
    MUST(streamline_write(fds[0], "to you", 8) == 8);
    MUST(kill(child, SIGKILL) == 0 && wait(&status) > 0);
    char block[4000] = { 0 };
    while (streamline_write(fds[0], block, sizeof block) == sizeof block)
        ;
    MUST(errno == EPIPE);
    MUST(streamline_close(fds[0]) == 0);
    FAILS(EBADF, streamline_close(fds[0]));
}

/* The parent keeps the table: columns blocks and bytes, rows 1 2 and 3 4, and 5 6 when we ask. */
static void state(const char *of)
{
    char text[8] = { 0 };
    uint64_t value = 0;
    FAILS(ENOENT, streamline_state_open("exam-nobody-shows-this"));
    FAILS(EFAULT, streamline_state_open(NULL));
    int fd = streamline_state_open(of);
    MUST(fd >= 0 && streamline_state_columns(fd) == 2);
    MUST(streamline_state_name(fd, 1, text, sizeof text) == 5 && strcmp(text, "bytes") == 0);
    MUST(streamline_state_name(fd, 0, text, 4) == 6 && strcmp(text, "blo") == 0);
    MUST(streamline_state_unit(fd, 0, text, sizeof text) == 3 && strcmp(text, "pcs") == 0);
    FAILS(ENOENT, streamline_state_name(fd, 2, text, sizeof text));
    FAILS(EINVAL, streamline_state_number(fd, 0, 0, &value));
    MUST(streamline_state_look(fd) == 2);
    MUST(streamline_state_number(fd, 1, 0, &value) == 0 && value == 3);
    MUST(streamline_state_number(fd, 1, 1, &value) == 0 && value == 4);
    FAILS(ENOENT, streamline_state_number(fd, 2, 0, &value));
    FAILS(ENOENT, streamline_state_number(fd, 0, 2, &value));
    FAILS(EFAULT, streamline_state_number(fd, 0, 0, NULL));
    FAILS(EBADF, streamline_read(fd, text, sizeof text));
    FAILS(EBADF, streamline_write(fd, text, sizeof text));
    MUST(streamline_wait(fd, 0) == 0);
    MUST(puts("looked") >= 0 && fflush(stdout) == 0 && getchar() == '5');
    MUST(streamline_state_look(fd) == 3);
    MUST(streamline_state_number(fd, 2, 1, &value) == 0 && value == 6);
    MUST(puts("again") >= 0 && fflush(stdout) == 0);
    /* Until it is gone; what it had shown stays. */
    MUST(streamline_wait(fd, -1) == 1);
    MUST(streamline_state_look(fd) == 3);
    MUST(streamline_close(fd) == 0);
    FAILS(EBADF, streamline_state_look(fd));
}

/* The page that this process writes as a reader: its cursor is the first word. */
static volatile unsigned long long *cursor(void)
{
    char line[512];
    unsigned long at = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    MUST(maps != NULL);
    while (at == 0 && fgets(line, sizeof line, maps) != NULL)
        if (strstr(line, "streamline-cursor") != NULL)
            at = strtoul(line, NULL, 16);
    fclose(maps);
    MUST(at != 0);
    return (volatile unsigned long long *)at;
}

/* The name of the mapping that holds an address, as /proc/self/maps shows it. */
static const char *mapping(const void *at)
{
    static char line[512];
    unsigned long from, to;
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    MUST(maps != NULL);
    while (!found && fgets(line, sizeof line, maps) != NULL)
        found = sscanf(line, "%lx-%lx", &from, &to) == 2 && (unsigned long)at >= from
            && (unsigned long)at < to;
    fclose(maps);
    MUST(found);
    return line;
}

/* The reader is another process; what it looks at lies in the memory that the writer wrote. */
static void peek_blocking(void)
{
    int ready[2], status, w = streamline_create(name, NULL);
    MUST(w >= 0 && pipe(ready) == 0);
    pid_t child = fork();
    if (child == 0) {
        const char *at, *again;
        char copy[8];
        int r = streamline_open(name, STREAMLINE_READ);
        MUST(r >= 0 && write(ready[1], "r", 1) == 1);
        for (unsigned block = 0; block < 20000; block++) {
            MUST(streamline_peek(r, &at, 1000) == 12 && memcmp(at, &block, sizeof block) == 0);
            MUST(block % 1000 != 0 || strstr(mapping(at), "streamline-ring") != NULL);
            MUST(streamline_peek(r, &again, 4) == 4 && again == at);
            MUST(streamline_release(r, 4) == 0);
            MUST(streamline_peek(r, &again, 1000) == 8 && again == at + 4);
            if (block % 3 == 0)
                MUST(streamline_read(r, copy, 8) == 8 && memcmp(copy, "the rest", 8) == 0);
            else
                MUST(memcmp(again, "the rest", 8) == 0 && streamline_release(r, 8) == 0);
        }
        MUST(streamline_peek(r, &at, 8) == 0 && streamline_close(r) == 0);
        exit(0);
    }
    char block[13] = "....the rest";
    MUST(read(ready[0], block, 1) == 1);
    for (unsigned number = 0; number < 20000; number++) {
        memcpy(block, &number, sizeof number);
        MUST(streamline_write(w, block, 12) == 12);
    }
    MUST(streamline_close(w) == 0 && wait(&status) == child && status == 0);
    close(ready[0]), close(ready[1]);
}

/* A ring that overwrites: a block that is overtaken while it is looked at is not released. */
static void peek_overwriting(void)
{
    struct streamline_config config = { .capacity = 4096, .policy = STREAMLINE_OVERWRITE };
    const char *at;
    unsigned number, last = 0;
    char block[100] = { 0 };
    int w = streamline_create(name, &config), r = streamline_open(name, STREAMLINE_NONBLOCK);
    MUST(w >= 0 && r >= 0);
    FAILS(EAGAIN, streamline_peek(r, &at, 100));
    for (number = 1; number <= 10; number++) {
        memcpy(block, &number, sizeof number);
        MUST(streamline_write(w, block, sizeof block) == sizeof block);
    }
    FAILS(EMSGSIZE, streamline_peek(r, &at, 99));
    MUST(streamline_peek(r, &at, 100) == 100 && *(const unsigned *)at == 1);
    MUST(strstr(mapping(at), "streamline-ring") != NULL);
    MUST(streamline_release(r, 100) == 0);
    MUST(streamline_peek(r, &at, 100) == 100 && *(const unsigned *)at == 2);
    for (; number <= 200; number++) {
        memcpy(block, &number, sizeof number);
        MUST(streamline_write(w, block, sizeof block) == sizeof block);
    }
    FAILS(ESTALE, streamline_release(r, 100));
    while (streamline_peek(r, &at, 100) == 100) {
        number = *(const unsigned *)at;
        MUST(streamline_release(r, 100) == 0 && number > 2 && number > last);
        last = number;
    }
    MUST(errno == EAGAIN && last == 200);
    MUST(streamline_close(w) == 0 && streamline_peek(r, &at, 100) == 0);
    MUST(streamline_close(r) == 0);
}

static void peek(void)
{
    peek_blocking();
    peek_overwriting();
}

/* Every position that a reader cannot have: it is evicted, and two others get every byte. */
static void evict(void)
{
    static const unsigned long long lies[] = {
        1, 17, 4095, 1ull << 31, (1ull << 32) - 1, 1ull << 63, ~0ull, ~0ull - 7,
    };
    enum { BLOCKS = 20000 };
    for (unsigned i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        struct streamline_config config = { .capacity = 4096, .every = 1 };
        int w, ready[2], wrote[2], status, block;
        char buf[8];
        pid_t children[3];
        MUST(pipe(ready) == 0 && pipe(wrote) == 0);
        w = streamline_create(name, &config);
        MUST(w >= 0);
        for (int who = 0; who < 3; who++) {
            children[who] = fork();
            MUST(children[who] >= 0);
            if (children[who] == 0) {
                int r = streamline_open(name, STREAMLINE_READ);
                MUST(r >= 0 && write(ready[1], "r", 1) == 1);
                if (who == 0) {
                    close(wrote[1]);
                    MUST(read(wrote[0], buf, 1) == 1);
                    *cursor() = lies[i];
                    MUST(write(ready[1], "l", 1) == 1);
                    while (read(wrote[0], buf, 1) > 0)
                        ;
                    _exit(0);
                }
                for (int at = 0; at < BLOCKS; at++) {
                    MUST(streamline_read(r, (char *)&block, sizeof block) == sizeof block);
                    MUST(block == at);
                }
                MUST(streamline_read(r, buf, 8) == 0);
                _exit(0);
            }
        }
        for (int at = 0; at < 3; at++)
            MUST(read(ready[0], buf, 1) == 1);
        for (block = 0; block < BLOCKS; block++) {
            MUST(streamline_write(w, (const char *)&block, sizeof block) == sizeof block);
            if (block == 10)
                MUST(write(wrote[1], "w", 1) == 1 && read(ready[0], buf, 1) == 1);
        }
        MUST(streamline_evicted(w) == 1);
        MUST(streamline_close(w) == 0);
        close(wrote[1]);
        for (int who = 0; who < 3; who++) {
            MUST(waitpid(children[who], &status, 0) == children[who]);
            MUST(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        }
        close(wrote[0]), close(ready[0]), close(ready[1]);
    }
}

static int shared;

static void *blocked(void *unused)
{
    char buf[8];
    ssize_t got;
    (void)unused;
    while ((got = streamline_read(shared, buf, 8)) == -1 && errno == EBUSY)
        sched_yield();
    return (void *)got;
}

static void threads(void)
{
    char buf[8];
    void *got;
    pthread_t thread;
    int w = streamline_create(name, NULL);
    shared = streamline_open(name, STREAMLINE_READ);
    MUST(pthread_create(&thread, NULL, blocked, NULL) == 0);
    /* It is in the call as soon as we are refused; until then it needs turns when we are in none. */
    while (streamline_wait(shared, 0) == 0)
        sched_yield();
    MUST(errno == EBUSY);
    FAILS(EBUSY, streamline_read(shared, buf, 8));
    FAILS(EBUSY, streamline_close(shared));
    MUST(streamline_write(w, "go", 2) == 2);
    MUST(pthread_join(thread, &got) == 0 && got == (void *)2);
    MUST(streamline_close(shared) == 0 && streamline_close(w) == 0);
}

int main(int argc, char **argv)
{
    static const struct { const char *name; void (*run)(void); } parts[] = {
        { "arguments", arguments }, { "calls", calls }, { "region", region },
        { "inbox", inbox }, { "mpipe", mpipe }, { "threads", threads },
        { "evict", evict }, { "peek", peek }, { "waits", waits },
    };
    if (argc == 3 && strcmp(argv[1], "state") == 0) {
        state(argv[2]);
        return 0;
    }
    for (unsigned i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (argc == 2 && strcmp(argv[1], parts[i].name) == 0) {
            snprintf(name, sizeof name, "exam-%d-%s", (int)getpid(), argv[1]);
            parts[i].run();
            return 0;
        }
    fprintf(stderr, "which part?\n");
    return 2;
}
