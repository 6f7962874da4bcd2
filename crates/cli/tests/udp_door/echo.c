/* A UDP server that answers each datagram with its own bytes, in one of several ways. `quit` ends it
 * after the answer; after `fork` a child serves, and the parent waits for the child. With `threads`
 * two threads receive from the socket, of which one pauses after each datagram that begins with
 * `pause`. With `nested` the socket's epoll set is a member of another one. With `late` a thread
 * sleeps in an epoll set, to which the socket is added after the datagram `late`, and which then
 * serves alone. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BATCH = 8, ROOM = 65536 };
static char bytes[BATCH][ROOM];
static struct sockaddr_in from[BATCH];
static int lengths[BATCH];
static int ends;

/* Receives by the given call; returns the number of datagrams, 0 if there is none. */
static int receive(int socket, const char *call, int flags) {
  socklen_t size = sizeof from[0];
  if (!strcmp(call, "recvfrom")) {
    ssize_t length = recvfrom(socket, bytes[0], ROOM, flags, (void *)&from[0], &size);
    if (length < 0) return errno == EAGAIN ? 0 : -1;
    lengths[0] = length;
    return size == sizeof from[0] ? 1 : -1;
  }
  struct iovec pieces[BATCH][2];
  struct mmsghdr messages[BATCH];
  memset(messages, 0, sizeof messages);
  for (int i = 0; i < BATCH; i++) {
    pieces[i][0] = (struct iovec){bytes[i], 5};
    pieces[i][1] = (struct iovec){bytes[i] + 5, ROOM - 5};
    messages[i].msg_hdr = (struct msghdr){&from[i], size, pieces[i], 2, 0, 0, 0};
  }
  if (!strcmp(call, "recvmsg")) {
    ssize_t length = recvmsg(socket, &messages[0].msg_hdr, flags);
    if (length < 0) return errno == EAGAIN ? 0 : -1;
    lengths[0] = length;
    return messages[0].msg_hdr.msg_namelen == size ? 1 : -1;
  }
  int count = !strcmp(call, "syscall")
                  ? (int)syscall(SYS_recvmmsg, socket, messages, BATCH, flags | MSG_WAITFORONE, 0)
                  : recvmmsg(socket, messages, BATCH, flags | MSG_WAITFORONE, NULL);
  if (count < 0) return errno == EAGAIN ? 0 : -1;
  for (int i = 0; i < count; i++) lengths[i] = messages[i].msg_len;
  return count;
}

/* Receives and answers once; returns the number of datagrams. */
static int serve(int socket, const char *call, int flags) {
  int count = receive(socket, call, flags);
  if (count < 0) perror(call), exit(1);
  for (int i = 0; i < count; i++) {
    if (sendto(socket, bytes[i], lengths[i], 0, (void *)&from[i], sizeof from[i]) < 0)
      perror("sendto"), exit(1);
    if (lengths[i] == 4 && !memcmp(bytes[i], "quit", 4)) ends = 1;
    if (lengths[i] == 4 && !memcmp(bytes[i], "fork", 4)) {
      pid_t child = fork();
      if (child) {
        waitpid(child, NULL, 0);
        ends = 1;
      }
    }
  }
  return count;
}

static int thread_socket;

static void *serve_in_thread(void *nothing) {
  static __thread char room[ROOM];
  while (1) {
    struct sockaddr_in peer;
    socklen_t size = sizeof peer;
    ssize_t length = recvfrom(thread_socket, room, ROOM, 0, (void *)&peer, &size);
    if (length < 0) perror("recvfrom"), exit(1);
    if (length >= 5 && !memcmp(room, "pause", 5)) usleep(1000000);
    if (sendto(thread_socket, room, length, 0, (void *)&peer, size) < 0) perror("sendto"), exit(1);
    if (length == 4 && !memcmp(room, "quit", 4)) exit(0);
  }
  return nothing;
}

static int late_set;
static const char *late_call;

static void *serve_late(void *nothing) {
  while (!ends) {
    struct epoll_event event;
    int ready = epoll_wait(late_set, &event, 1, -1);
    if (ready != 1 || event.data.u64 != 77 || event.events != EPOLLIN)
      fprintf(stderr, "%d events: %x\n", ready, event.events), exit(1);
    serve(thread_socket, late_call, MSG_DONTWAIT);
  }
  exit(0);
  return nothing;
}

int main(int count, char **words) {
  if (count < 4) return 2;
  const char *wait = words[2], *call = words[3];
  int socket_fd = socket(AF_INET, SOCK_DGRAM, 0);
  struct sockaddr_in own = {.sin_family = AF_INET, .sin_port = htons(atoi(words[1]))};
  if (bind(socket_fd, (void *)&own, sizeof own)) return perror("bind"), 1;
  fprintf(stderr, "ready\n");
  int is_edge = !strcmp(wait, "edge");
  if (!strcmp(wait, "threads")) {
    pthread_t thread;
    thread_socket = socket_fd;
    if (pthread_create(&thread, NULL, serve_in_thread, NULL)) return 1;
    serve_in_thread(NULL);
  } else if (!strcmp(wait, "none")) {
    while (!ends) serve(socket_fd, call, 0);
  } else if (!strcmp(wait, "late")) {
    pthread_t thread;
    thread_socket = socket_fd, late_call = call, late_set = epoll_create1(EPOLL_CLOEXEC);
    if (pthread_create(&thread, NULL, serve_late, NULL)) return 1;
    while (lengths[0] != 4 || memcmp(bytes[0], "late", 4)) serve(socket_fd, "recvfrom", 0);
    /* The next datagrams arrive meanwhile. */
    usleep(100000);
    struct epoll_event event = {EPOLLIN, {.u64 = 77}};
    if (epoll_ctl(late_set, EPOLL_CTL_ADD, socket_fd, &event)) return perror("epoll_ctl"), 1;
    pthread_join(thread, NULL);
  } else if (!strcmp(wait, "poll")) {
    while (!ends) {
      struct pollfd entry = {socket_fd, POLLIN, 0};
      if (poll(&entry, 1, -1) == 1 && entry.revents & POLLIN) serve(socket_fd, call, MSG_DONTWAIT);
    }
  } else if (!strcmp(wait, "select")) {
    while (!ends) {
      fd_set set;
      FD_ZERO(&set);
      FD_SET(socket_fd, &set);
      if (select(socket_fd + 1, &set, NULL, NULL, NULL) == 1 && FD_ISSET(socket_fd, &set))
        serve(socket_fd, call, MSG_DONTWAIT);
    }
  } else {
    fcntl(socket_fd, F_SETFL, O_NONBLOCK);
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {EPOLLIN | (is_edge ? EPOLLET : 0), {.u64 = 77}};
    if (epoll_ctl(set, EPOLL_CTL_ADD, socket_fd, &event)) return perror("epoll_ctl"), 1;
    if (!strcmp(wait, "nested")) {
      int outer = epoll_create1(EPOLL_CLOEXEC);
      if (epoll_ctl(outer, EPOLL_CTL_ADD, set, &event)) return perror("epoll_ctl"), 1;
      set = outer;
    }
    while (!ends) {
      struct epoll_event events[4];
      int ready = epoll_wait(set, events, 4, -1);
      if (ready != 1 || events[0].data.u64 != 77) return fprintf(stderr, "%d events\n", ready), 1;
      /* Once, if the set goes on reporting what remains. */
      do
        count = serve(socket_fd, call, 0);
      while (is_edge && count > 0 && !ends);
    }
  }
  close(socket_fd);
  return 0;
}
