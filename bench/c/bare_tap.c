// The barest tap that somebody would write by hand: the limit in `bench capture`.
//
// In: a frame at traffic control. Out: a copy of its first MOST bytes in a ring of RING bytes, which
// a process can map, and a rich pointer beside it. No bell, no tag, no second processor, and nobody
// is told when it comes round: what is left is what copying itself costs, and with CLOCK to ask
// the clock once for each frame.
//
//     clang -target bpf -mcpu=v3 -O2 -DRING=4194304 -DMOST=2048 -c bare_tap.c

#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))
#define POINTERS 16384
#define NEXT (-1)

#ifdef CLOCK
static __u64 (*time_ns)(void) = (void *)5;
#endif
static long (*load_bytes)(const void *, __u32, void *, __u32) = (void *)26;

struct pointer { __u64 position; __u32 length, class; };

struct memory {
    __u64 position, count, time;
    struct pointer pointers[POINTERS];
    __u8 bytes[RING + MOST];
};

struct memory memory SEC(".bss") = {};

SEC("program") int bare_tap(struct __sk_buff *skb)
{
    __u32 length = skb->len;
    if (length > MOST)
        length = MOST;
    if (length == 0)
        return NEXT;
    __u64 position = memory.position, count = memory.count;
    if (load_bytes(skb, 0, memory.bytes + (position & (RING - 1)), length))
        return NEXT;
    struct pointer *pointer = &memory.pointers[count & (POINTERS - 1)];
    pointer->position = position;
    pointer->length = length;
    pointer->class = 1;
#ifdef CLOCK
    memory.time = time_ns();
#endif
    memory.position = position + ((length + 15) & ~15u);
    memory.count = count + 1;
    return NEXT;
}
