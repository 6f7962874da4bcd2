/* A UDP server that answers each datagram with its own bytes, one by one. Ends by SIGINT. */
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

static volatile sig_atomic_t ends;
static void end(int signal) { ends = signal; }

int main(int count, char **words) {
  if (count != 2) return 2;
  struct sigaction action = {.sa_handler = end};
  sigaction(SIGINT, &action, NULL);
  int server = socket(AF_INET, SOCK_DGRAM, 0);
  struct sockaddr_in own = {.sin_family = AF_INET, .sin_port = htons(atoi(words[1]))};
  if (server < 0 || bind(server, (void *)&own, sizeof own)) return perror("bind"), 1;
  fprintf(stderr, "ready\n");
  static char bytes[65536];
  while (!ends) {
    struct sockaddr_in from;
    socklen_t size = sizeof from;
    ssize_t length = recvfrom(server, bytes, sizeof bytes, 0, (void *)&from, &size);
    if (length >= 0) sendto(server, bytes, length, 0, (void *)&from, size);
  }
  return 0;
}
