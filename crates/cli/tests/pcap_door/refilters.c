/* Replaces its filter while frames pass, and checks the numbers in those to port 5300, which all
 * filters accept: none may be missing between the first and the last one, and none may come twice. */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

struct bpf_insn;
struct bpf_program {
  unsigned length;
  struct bpf_insn *instructions;
};
struct header {
  long seconds, fraction;
  unsigned captured, length;
};
typedef struct pcap pcap_t;
pcap_t *pcap_open_live(const char *, int, int, int, char *);
int pcap_compile(pcap_t *, struct bpf_program *, const char *, int, unsigned);
int pcap_setfilter(pcap_t *, struct bpf_program *);
int pcap_next_ex(pcap_t *, struct header **, const unsigned char **);
char *pcap_geterr(pcap_t *);
void pcap_close(pcap_t *);

int main(int count, char **words) {
  char error[256];
  pcap_t *handle = count > 1 ? pcap_open_live(words[1], 65535, 0, 10, error) : NULL;
  if (!handle) return fprintf(stderr, "no handle: %s\n", error), 1;
  static const char *filters[] = {"udp port 5300", "udp port 5300 or udp port 9", "", "udp",
                                  "udp dst port 5300", "udp[2:2] = 5300"};
  static const int others[] = {0, 0, 1, 1, 0, 0};
  int missing = 0, twice = 0, wrong = 0;
  long last = -1;
  for (int filter = 0; filter < 6; filter++) {
    struct bpf_program program;
    if (pcap_compile(handle, &program, filters[filter], 1, 0) || pcap_setfilter(handle, &program))
      return fprintf(stderr, "no filter: %s\n", pcap_geterr(handle)), 1;
    if (filter == 0) fprintf(stderr, "ready\n");
    for (int seen = 0; seen < 500;) {
      struct header *header;
      const unsigned char *frame;
      int result = pcap_next_ex(handle, &header, &frame);
      if (result < 0) return fprintf(stderr, "no frame: %s\n", pcap_geterr(handle)), 1;
      if (result == 0 || header->captured < 46) continue;
      unsigned number;
      memcpy(&number, frame + 42, 4);
      number = ntohl(number);
      if ((frame[36] << 8 | frame[37]) != 5300) {
        wrong += !others[filter];
        continue;
      }
      if (last >= 0 && number > last + 1) missing += number - last - 1;
      if (last >= 0 && number <= last) twice++;
      last = number;
      seen++;
    }
  }
  printf("6 filters, %d missing, %d twice, %d wrong\n", missing, twice, wrong);
  pcap_close(handle);
  return 0;
}
