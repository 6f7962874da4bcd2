/* A UDP server that answers each datagram with its own bytes, and is woken by an epoll set in which
 * its socket is registered once. The second word says how: `both` for EPOLLIN and EPOLLOUT,
 * edge-triggered; `once` for EPOLLONESHOT; `exclusive` for EPOLLEXCLUSIVE. `turning` registers the
 * socket level-triggered, and for one event at a time after the datagram `hold`. After `hold` the
 * server leaves further datagrams unread, until it receives `go` on the next port. It answers each
 * datagram on that port with the numbers of returns of epoll_wait, of events EPOLLIN and of events
 * EPOLLOUT. `quit` ends it after the answer. */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ROOM = 65536, DATA = 77, CONTROL = 78 };
static char bytes[ROOM];
static struct sockaddr_in from;
static unsigned long returns, ins, outs;
static int data, control, set, holds, ends;

static int bound(int port) {
  int made = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
  struct sockaddr_in own = {.sin_family = AF_INET, .sin_port = htons(port)};
  if (bind(made, (void *)&own, sizeof own)) perror("bind"), exit(1);
  return made;
}

static void change(int what, int number, unsigned events, int word) {
  struct epoll_event event = {events, {.u64 = word}};
  if (epoll_ctl(set, what, number, &event)) perror("epoll_ctl"), exit(1);
}

/* Receives a datagram; returns its length, or -1 if there is none. */
static ssize_t receive(int number) {
  socklen_t size = sizeof from;
  ssize_t length = recvfrom(number, bytes, ROOM, 0, (void *)&from, &size);
  if (length < 0 && errno != EAGAIN) perror("recvfrom"), exit(1);
  return length;
}

static void answer(int number, ssize_t length) {
  if (sendto(number, bytes, length, 0, (void *)&from, sizeof from) < 0) perror("sendto"), exit(1);
}

static int is(const char *word, ssize_t length) {
  return length == (ssize_t)strlen(word) && !memcmp(bytes, word, length);
}

int main(int count, char **words) {
  if (count < 3) return 2;
  int is_turning = !strcmp(words[2], "turning");
  unsigned once = !strcmp(words[2], "once") ? EPOLLONESHOT : 0;
  unsigned events = !strcmp(words[2], "both")        ? EPOLLIN | EPOLLOUT | EPOLLET
                    : !strcmp(words[2], "exclusive") ? EPOLLIN | EPOLLEXCLUSIVE
                                                     : EPOLLIN;
  set = epoll_create1(EPOLL_CLOEXEC);
  data = bound(atoi(words[1])), control = bound(atoi(words[1]) + 1);
  change(EPOLL_CTL_ADD, data, events | once, DATA);
  change(EPOLL_CTL_ADD, control, EPOLLIN, CONTROL);
  fprintf(stderr, "ready\n");
  while (!ends) {
    struct epoll_event ready[4];
    int found = epoll_wait(set, ready, 4, -1), is_readable = 0;
    if (found < 1) return perror("epoll_wait"), 1;
    returns++;
    for (int i = 0; i < found; i++) {
      if (ready[i].data.u64 == CONTROL) {
        ssize_t length = receive(control);
        if (length < 0) continue;
        /* What was left unread. */
        if (is("go", length)) holds = 0, is_readable = 1;
        length = snprintf(bytes, ROOM, "%lu %lu %lu", returns, ins, outs);
        answer(control, length);
        continue;
      }
      if (ready[i].data.u64 != DATA || ready[i].events & ~(events & (EPOLLIN | EPOLLOUT)))
        return fprintf(stderr, "event %x\n", ready[i].events), 1;
      ins += !!(ready[i].events & EPOLLIN), outs += !!(ready[i].events & EPOLLOUT);
      is_readable |= ready[i].events & EPOLLIN;
    }
    while (is_readable && !holds && !ends) {
      ssize_t length = receive(data);
      if (length < 0) break;
      answer(data, length);
      ends = is("quit", length), holds = is("hold", length);
    }
    if (holds && is_turning && !once) once = EPOLLONESHOT, change(EPOLL_CTL_MOD, data, events | once, DATA);
    else if (once && is_readable && !holds) change(EPOLL_CTL_MOD, data, events | once, DATA);
  }
  return 0;
}
