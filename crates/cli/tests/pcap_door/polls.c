/* A program that polls the descriptor of a capture and reads without blocking, one packet per call.
 * It reads the number of packets that its second argument says, sends a frame, and prints what it
 * has done. Built without pcap.h, which may not be installed. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct program { unsigned length; void *instructions; };
void *pcap_open_live(const char *, int, int, int, char *);
int pcap_compile(void *, struct program *, const char *, int, unsigned);
int pcap_setfilter(void *, struct program *);
void pcap_freecode(struct program *);
int pcap_setnonblock(void *, int, char *);
int pcap_getnonblock(void *, char *);
int pcap_get_selectable_fd(void *);
int pcap_next_ex(void *, void **, const unsigned char **);
int pcap_inject(void *, const void *, size_t);
int pcap_sendpacket(void *, const unsigned char *, int);
char *pcap_geterr(void *);
void pcap_close(void *);

int main(int count, char **words) {
    char errors[256] = "";
    int wanted = count > 2 ? atoi(words[2]) : 0, read = 0;
    void *handle = pcap_open_live(words[1], 65535, 1, 100, errors);
    if (!handle) {
        fprintf(stderr, "%s\n", errors);
        return 1;
    }
    struct program filter;
    if (pcap_compile(handle, &filter, "udp port", 1, 0) == 0 || !strstr(pcap_geterr(handle), "syntax")) {
        fprintf(stderr, "no error: %s\n", pcap_geterr(handle));
        return 1;
    }
    if (pcap_compile(handle, &filter, "udp port 5300", 1, 0) || pcap_setfilter(handle, &filter)) {
        fprintf(stderr, "%s\n", pcap_geterr(handle));
        return 1;
    }
    pcap_freecode(&filter);
    pcap_setnonblock(handle, 1, errors);
    struct pollfd one = {.fd = pcap_get_selectable_fd(handle), .events = POLLIN};
    fprintf(stderr, "ready\n");
    while (read < wanted) {
        void *header;
        const unsigned char *data;
        if (poll(&one, 1, -1) < 0)
            return 1;
        /* One packet for each time that the descriptor is readable. */
        int result = pcap_next_ex(handle, &header, &data);
        if (result < 0) {
            fprintf(stderr, "%s\n", pcap_geterr(handle));
            return 1;
        }
        read += result;
    }
    unsigned char frame[60] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 0x88, 0xb5};
    int sent = pcap_inject(handle, frame, sizeof frame);
    if (pcap_sendpacket(handle, frame, sizeof frame))
        return 1;
    printf("read %d, sent %d, nonblocking %d\n", read, sent, pcap_getnonblock(handle, errors));
    pcap_close(handle);
    return 0;
}
