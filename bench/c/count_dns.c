// What `rx | ip | udp | dport |53 count` does, written by hand: the reference of `bench kernel`.
//
// In: a frame at traffic control, or with -DXDP at XDP. Out: the port for frames that are counted
// (blocks, and the bytes of their payload), 0 for all others, with the reason counted, and UNSURE
// where user space must look: as the program that is generated, so that both can be compared frame
// by frame. It knows what one who writes it by hand knows: that whoever has passed `udp` has ports.
//
//     clang -target bpf -mcpu=v3 -O2 -c count_dns.c        (-DXDP)

#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
#define ADD(what, amount) __sync_fetch_and_add(&(what), amount)
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define NET16(x) ((__u16)__builtin_bswap16(x))
#else
#define NET16(x) ((__u16)(x))
#endif

#define UNSURE 0xffffffffu
#define WANTED 53

// How deep the headers that are read can end: Ethernet, two tags, IPv6 with two extension headers,
// UDP; and the longest IPv4 header.
#define REACH (14 + 2 * 4 + 60 + 8)

struct totals {
    __u64 blocks, bytes;
    __u64 not_ip, ip_malformed, ip_cut;
    __u64 not_udp, udp_malformed, udp_cut;
};

struct totals totals SEC(".bss") = {};

struct eth { __u8 target[6], source[6]; __u16 type; } __attribute__((packed));
struct vlan { __u16 tci, type; } __attribute__((packed));
struct ip4 {
    __u8 version_ihl, tos;
    __u16 length, id, fragment;
    __u8 ttl, protocol;
    __u16 check;
    __u32 source, target;
} __attribute__((packed));
struct ip6 {
    __u32 version_flow;
    __u16 length;
    __u8 next, hops;
    __u8 source[16], target[16];
} __attribute__((packed));
struct extension { __u8 next, longer, rest[6]; } __attribute__((packed));
struct udp { __u16 source, target, length, check; } __attribute__((packed));

INLINE int is_tag(__u16 type)
{
    return type == 0x8100 || type == 0x88a8 || type == 0x9100;
}

// The frame once its first bytes are at hand: how long it is in all, and whether a tag lies beside.
INLINE __u32 decide(void *data, void *end, __u32 whole, int tags)
{
    struct eth *eth = data;
    void *at = eth + 1;
    if (at > end) {
        ADD(totals.ip_cut, 1);
        return 0;
    }
    __u16 type = NET16(eth->type);
#pragma unroll
    for (int depth = 0; depth < 2; depth++) {
        if (tags < 2 && is_tag(type)) {
            struct vlan *vlan = at;
            at = vlan + 1;
            if (at > end) {
                ADD(totals.ip_cut, 1);
                return 0;
            }
            type = NET16(vlan->type);
            tags++;
        }
    }
    if (UNLIKELY(is_tag(type) || type < 0x600))
        return UNSURE;

    __u8 protocol;
    __u32 length;
    if (type == 0x0800) {
        struct ip4 *ip = at;
        if ((void *)(ip + 1) > end) {
            ADD(totals.ip_cut, 1);
            return 0;
        }
        __u32 header = (ip->version_ihl & 0x0f) * 4, total = NET16(ip->length);
        if (ip->version_ihl >> 4 != 4 || header < sizeof *ip) {
            ADD(totals.ip_malformed, 1);
            return 0;
        }
        if (UNLIKELY(total == 0))
            return UNSURE;
        if (total < header) {
            ADD(totals.ip_malformed, 1);
            return 0;
        }
        if (ip->fragment & NET16(0x3fff))
            return UNSURE;
        // Options that were cut.
        if (header > sizeof *ip && at + header > end)
            return UNSURE;
        protocol = ip->protocol;
        length = total - header;
        at += header;
    } else if (type == 0x86dd) {
        struct ip6 *ip = at;
        at = ip + 1;
        if (at > end) {
            ADD(totals.ip_cut, 1);
            return 0;
        }
        if (*(__u8 *)ip >> 4 != 6) {
            ADD(totals.ip_malformed, 1);
            return 0;
        }
        length = NET16(ip->length);
        if (UNLIKELY(length == 0))
            return UNSURE;
        protocol = ip->next;
#pragma unroll
        for (int number = 0; number < 3; number++) {
            switch (protocol) {
            case 44: case 51: case 135: case 139: case 140:
                return UNSURE;
            case 0: case 43: case 60:
                break;
            default:
                goto transport;
            }
            struct extension *extension = at;
            at = extension + 1;
            if (number == 2 || length < sizeof *extension || at > end || extension->longer)
                return UNSURE;
            protocol = extension->next;
            length -= sizeof *extension;
        }
    } else {
        ADD(totals.not_ip, 1);
        return 0;
    }

transport:
    if (protocol != 17) {
        ADD(totals.not_udp, 1);
        return 0;
    }
    struct udp *udp = at;
    if (length < sizeof *udp) {
        ADD(totals.udp_malformed, 1);
        return 0;
    }
    if ((void *)(udp + 1) > end) {
        ADD(totals.udp_cut, 1);
        return 0;
    }
    __u32 stated = NET16(udp->length);
    if (stated == 0)
        stated = length;
    if (stated < sizeof *udp || stated > length) {
        ADD(totals.udp_malformed, 1);
        return 0;
    }
    if (udp->target != NET16(WANTED))
        return 0;
    __u32 payload = stated - sizeof *udp, there = whole - (__u32)((void *)(udp + 1) - data);
    ADD(totals.blocks, 1);
    ADD(totals.bytes, payload < there ? payload : there);
    return WANTED;
}

#ifdef XDP

SEC("program") int count(struct xdp_md *context)
{
    void *data = (void *)(long)context->data, *end = (void *)(long)context->data_end;
    return decide(data, end, end - data, 0);
}

#else

static long (*pull)(struct __sk_buff *, __u32) = (void *)BPF_FUNC_skb_pull_data;

SEC("program") int count(struct __sk_buff *context)
{
    void *data = (void *)(long)context->data, *end = (void *)(long)context->data_end;
    __u32 wanted = context->len < REACH ? context->len : REACH;
    if (UNLIKELY(data + wanted > end)) {
        if (pull(context, wanted))
            return UNSURE;
        data = (void *)(long)context->data;
        end = (void *)(long)context->data_end;
    }
    return decide(data, end, context->len, context->vlan_present != 0);
}

#endif
