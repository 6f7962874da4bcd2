//! Header access for twins: the eBPF counterpart of [`crate::layers`].
//!
//! Input: the layers known from previous twins. Output: handles to the network and transport
//! headers. Twins parse Ethernet frames. In rare or complex cases, a twin is unsure and leaves the
//! block to the user implementation. If a twin answers, its answer is the same as that of the user
//! implementation (CONTRACT 18). The complex cases are fragments, more than two tags, 802.3 with a
//! length, IP without a length (offload, jumbograms), truncated options, and all IPv6 extension
//! headers except two or fewer short hop-by-hop, routing or destination headers.
//!
//! A tag that the kernel stores outside the frame is read as if it were inline (CONTRACT 3).
//!
//! Emitted code that cannot continue jumps to an [`Exit`]: the exit for a reason why the block has
//! no class, or `unsure`, which leaves the block to the user implementation.

use ebpf::emit::{
    Answer, Cmp, Exit, FramePos, Layers, MetadataField, Num, Scope, Transport, UnfitReason, Window,
    be16, byte,
};
use wire::ethernet::{ETHERTYPE_FIELD_OFFSET, LOWEST_ETHERTYPE, ethertype};
use wire::ip::protocol;
use wire::{ethernet, ipv4, ipv6, ports, udp, vlan};

/// The result of emitting a twin.
pub(crate) type EmitResult<'s> = Result<Answer<'s>, UnfitReason>;

/// The exits of a twin that parses headers: one for each reason for a missing class, and `unsure`.
#[derive(Clone, Copy)]
pub(crate) struct TwinExits<'s> {
    pub(crate) not_ip: Exit<'s>,
    pub(crate) malformed: Exit<'s>,
    pub(crate) cut: Exit<'s>,
    pub(crate) unsure: Exit<'s>,
}

impl<'s> TwinExits<'s> {
    /// Creates the exits of a twin. The exit for a reason counts the block under this reason and
    /// continues at `out`.
    pub(crate) fn new(s: &mut Scope<'s, '_>, out: Exit<'s>) -> Self {
        Self {
            not_ip: s.absent("not ip", out),
            malformed: s.absent("malformed", out),
            cut: s.absent("cut", out),
            unsure: s.unsure(),
        }
    }
}

/// Maximum number of tags that a twin parses.
const TAGS_MAX: u8 = 2;
/// Maximum number of IPv6 extension headers that a twin parses.
const EXTENSIONS_MAX: usize = 2;
const EXTENSION_LENGTH: usize = 8;
/// Maximum length of an IPv4 header in bytes.
const IPV4_HEADER_MAX: u16 = ipv4::HEADER_LENGTH_MAX as u16;

/// Parses the link header, unless a previous twin has parsed it. Returns the EtherType, and the
/// position of the first header in view.
pub(crate) fn parse_link<'s>(
    s: &mut Scope<'s, '_>,
    on: Layers<'s>,
    cut: Exit<'s>,
) -> (Num<'s>, FramePos<'s>) {
    if let Some(kind) = on.next {
        return (kind, on.at);
    }
    if !s.hook().has_link_header() {
        return (parse_ip_version(s, on, cut), on.frame);
    }
    let header = s.need::<{ ethernet::HEADER_LENGTH }>(on.frame, cut);
    let inside = s.load(header, be16::<ETHERTYPE_FIELD_OFFSET>());
    let at = s.advance(on.frame, ethernet::HEADER_LENGTH as u16);
    if !s.may_have_stored_tag() {
        return (inside, at);
    }
    let kind = s.var(inside);
    s.arm(|t, untagged| {
        let present = t.load_metadata(MetadataField::TagPresent);
        t.only(present, Cmp::Ne, 0, untagged);
        let beside = t.load_metadata(MetadataField::TagProtocol);
        t.set(kind, beside);
    });
    (s.get(kind), at)
}

/// Returns the EtherType of a packet without a link header, derived from the version field in the
/// first byte of the packet. The emitted code yields 0 for an unknown version.
fn parse_ip_version<'s>(s: &mut Scope<'s, '_>, on: Layers<'s>, cut: Exit<'s>) -> Num<'s> {
    let first = s.need::<1>(on.frame, cut);
    let first = s.load(first, byte::<0>());
    let version = s.shr(first, 4);
    let kind = s.var(0);
    for (number, ethertype) in [(4, ethertype::IPV4), (6, ethertype::IPV6)] {
        s.arm(|t, other| {
            t.only(version, Cmp::Eq, number, other);
            t.set(kind, u32::from(ethertype));
        });
    }
    s.get(kind)
}

/// Emits code that continues if `kind` is the EtherType of a tag, and otherwise jumps to `other`.
/// At a hook without link headers there are no tags, so the code always jumps.
pub(crate) fn require_tag<'s>(s: &mut Scope<'s, '_>, kind: Num<'s>, other: Exit<'s>) {
    if !s.hook().has_link_header() {
        return s.leave(other);
    }
    s.only_one_of(kind, [vlan::CUSTOMER_TAG, vlan::SERVICE_TAG, vlan::STACKED_TAG], other);
}

/// Parses a VLAN tag. `read_before` is the number of tags read so far. If it is 0 and the kernel
/// stores a tag outside the frame, parses that tag; otherwise, parses the tag at `at`. Returns the
/// control information of the tag, the EtherType after it, and the position after it (`at` if the
/// tag is outside the frame).
pub(crate) fn parse_tag<'s>(
    s: &mut Scope<'s, '_>,
    (frame, at): (FramePos<'s>, FramePos<'s>),
    read_before: u8,
    cut: Exit<'s>,
) -> (Num<'s>, Num<'s>, FramePos<'s>) {
    let (control, next, behind) = (s.var(0), s.var(0), s.position_var(at));
    s.arm(|t, done| {
        if read_before == 0 && t.may_have_stored_tag() {
            t.arm(|u, inside| {
                let present = u.load_metadata(MetadataField::TagPresent);
                u.only(present, Cmp::Ne, 0, inside);
                let beside = u.load_metadata(MetadataField::TagTci);
                u.set(control, beside);
                let header = u.need::<{ ethernet::HEADER_LENGTH }>(frame, cut);
                let kind = u.load(header, be16::<ETHERTYPE_FIELD_OFFSET>());
                u.set(next, kind);
                u.leave(done);
            });
        }
        let tag = t.need::<{ vlan::TAG_LENGTH }>(at, cut);
        let inside = t.load(tag, be16::<{ vlan::CONTROL_OFFSET }>());
        t.set(control, inside);
        let kind = t.load(tag, be16::<{ vlan::NEXT_ETHERTYPE_OFFSET }>());
        t.set(next, kind);
        let after = t.advance(at, vlan::TAG_LENGTH as u16);
        t.set_position(behind, after);
    });
    (s.get(control), s.get(next), s.get_position(behind))
}

/// Emits a jump to `unsure`, taken if `kind` is the EtherType of a VLAN tag, or the length field of
/// an 802.3 frame.
pub(crate) fn require_untagged<'s>(s: &mut Scope<'s, '_>, kind: Num<'s>, unsure: Exit<'s>) {
    for tag in [vlan::CUSTOMER_TAG, vlan::SERVICE_TAG, vlan::STACKED_TAG] {
        s.only(kind, Cmp::Ne, u32::from(tag), unsure);
    }
    s.only(kind, Cmp::Ge, u32::from(LOWEST_ETHERTYPE), unsure);
}

/// Emits the code that parses the headers of a frame up to the IP header. Returns the position of
/// the IP header, and what follows it: protocol, position and length. Jumps to an exit in `exits`
/// if the frame has no IP header, or if this code cannot decide.
pub(crate) fn parse_packet<'s>(
    s: &mut Scope<'s, '_>,
    on: Layers<'s>,
    exits: TwinExits<'s>,
) -> (FramePos<'s>, Transport<'s>) {
    let (kind, l3) = parse_network(s, on, exits);
    let (number, length, data) = (s.var(0), s.var(0), s.position_var(l3));
    s.arm(|t, done| {
        t.arm(|four, six| {
            four.only(kind, Cmp::Eq, u32::from(ethertype::IPV4), six);
            let (protocol, rest, behind) = parse_ipv4(four, l3, exits);
            four.set(number, protocol);
            four.set(length, rest);
            four.set_position(data, behind);
            four.leave(done);
        });
        t.only(kind, Cmp::Eq, u32::from(ethertype::IPV6), exits.not_ip);
        let (protocol, rest, behind) = parse_ipv6(t, l3, exits);
        t.set(number, protocol);
        t.set(length, rest);
        t.set_position(data, behind);
    });
    let (protocol, length, at) = (s.get(number), s.get(length), s.get_position(data));
    // Most packets are IPv4 without options.
    let usual = (ethernet::HEADER_LENGTH + ipv4::HEADER_LENGTH_MIN) as u16;
    let at = if on.has_link_header { s.hint_usual_distance(at, usual) } else { at };
    (l3, Transport { at, protocol, length })
}

/// Parses the IP packet like [`parse_packet`], but from the first byte of the frame, because the
/// network header that previous twins have found may be a VLAN tag. Fails if a previous twin has
/// cut off the link header and the EtherType is not known.
pub(crate) fn reparse_packet<'s>(
    s: &mut Scope<'s, '_>,
    on: Layers<'s>,
    exits: TwinExits<'s>,
) -> Result<(FramePos<'s>, Transport<'s>), UnfitReason> {
    let next = if on.has_link_header { None } else { on.next };
    if next.is_none() && !on.has_link_header && s.hook().has_link_header() {
        return Err(UnfitReason::new("the rest of the frame is not a packet"));
    }
    Ok(parse_packet(s, Layers { at: on.frame, length: None, next, tags: 0, ..on }, exits))
}

/// Emits a jump to `unsure`, taken if the view includes a VLAN tag that the kernel stores outside
/// the frame.
pub(crate) fn require_inline_tag<'s>(s: &mut Scope<'s, '_>, on: Layers<'s>) {
    if on.length.is_none() && on.tags == 0 && s.may_have_stored_tag() {
        let unsure = s.unsure();
        let present = s.load_metadata(MetadataField::TagPresent);
        s.only(present, Cmp::Eq, 0, unsure);
    }
}

/// Returns the transport header, either found by previous twins or parsed from the IP header.
pub(crate) fn parse_transport<'s>(
    s: &mut Scope<'s, '_>,
    on: Layers<'s>,
    exits: TwinExits<'s>,
) -> Transport<'s> {
    match on.l4 {
        Some(known) => known,
        None => parse_packet(s, on, exits).1,
    }
}

/// Returns the validated UDP header and the payload length of a datagram.
pub(crate) fn parse_datagram<'s>(
    s: &mut Scope<'s, '_>,
    l4: Transport<'s>,
    exits: TwinExits<'s>,
    not_udp: Exit<'s>,
) -> (Window<'s, { udp::HEADER_LENGTH }>, Num<'s>) {
    const HEADER_LENGTH: u32 = udp::HEADER_LENGTH as u32;
    s.only(l4.protocol, Cmp::Eq, u32::from(protocol::UDP), not_udp);
    s.only(l4.length, Cmp::Ge, HEADER_LENGTH, exits.malformed);
    let header = s.need::<{ udp::HEADER_LENGTH }>(l4.at, exits.cut);
    let length = s.load(header, be16::<{ udp::UDP_LENGTH_OFFSET }>());
    let stated = s.var(l4.length);
    s.arm(|t, to_the_end| {
        t.only(length, Cmp::Ne, 0, to_the_end);
        t.only(length, Cmp::Ge, HEADER_LENGTH, exits.malformed);
        t.only(length, Cmp::Le, l4.length, exits.malformed);
        t.set(stated, length);
    });
    let stated = s.get(stated);
    (header, s.sub(stated, HEADER_LENGTH))
}

/// Selects the port whose number a twin returns as the class.
#[derive(Clone, Copy)]
pub(crate) enum PortField {
    Source,
    Target,
}

/// Emits the twin of `sport` or `dport`.
pub(crate) fn emit_port<'s>(
    s: &mut Scope<'s, '_>,
    on: Layers<'s>,
    out: Exit<'s>,
    port: PortField,
) -> EmitResult<'s> {
    let exits = TwinExits::new(s, out);
    let no_port = s.absent("no port", out);
    let l4 = parse_transport(s, on, exits);
    s.only_one_of(l4.protocol, ports::PROTOCOLS_WITH_PORTS, no_port);
    s.only(l4.length, Cmp::Ge, 4, exits.malformed);
    let both = s.need::<4>(l4.at, exits.cut);
    let number = match port {
        PortField::Source => s.load(both, be16::<{ ports::SRC_PORT_OFFSET }>()),
        PortField::Target => s.load(both, be16::<{ ports::DST_PORT_OFFSET }>()),
    };
    Ok(Answer::new(s.natural_class(number), Layers { l4: Some(l4), ..on }))
}

/// Parses the link header and all tags. Returns the EtherType of the network header, and its
/// position.
fn parse_network<'s>(
    s: &mut Scope<'s, '_>,
    on: Layers<'s>,
    exits: TwinExits<'s>,
) -> (Num<'s>, FramePos<'s>) {
    parse_network_with_exit(s, on, exits.cut)
}

/// Works like [`parse_network`], with a separate exit for truncated frames.
pub(crate) fn parse_network_with_exit<'s>(
    s: &mut Scope<'s, '_>,
    on: Layers<'s>,
    cut: Exit<'s>,
) -> (Num<'s>, FramePos<'s>) {
    let unsure = s.unsure();
    let (outer, at) = parse_link(s, on, cut);
    if !s.hook().has_link_header() {
        require_untagged(s, outer, unsure);
        return (outer, at);
    }
    let (kind, l3) = (s.var(outer), s.position_var(at));
    s.arm(|t, untagged| {
        for depth in on.tags..TAGS_MAX.max(on.tags) {
            let (here, at) = (t.get(kind), t.get_position(l3));
            require_tag(t, here, untagged);
            let (_, next, behind) = parse_tag(t, (on.frame, at), depth, cut);
            t.set(kind, next);
            t.set_position(l3, behind);
        }
    });
    let (kind, l3) = (s.get(kind), s.get_position(l3));
    require_untagged(s, kind, unsure);
    // Most frames have no inline tag.
    (
        kind,
        if on.has_link_header {
            s.hint_usual_distance(l3, ethernet::HEADER_LENGTH as u16)
        } else {
            l3
        },
    )
}

/// Parses an IPv4 header. Returns the protocol, and the length and position of the payload.
fn parse_ipv4<'s>(
    s: &mut Scope<'s, '_>,
    l3: FramePos<'s>,
    exits: TwinExits<'s>,
) -> (Num<'s>, Num<'s>, FramePos<'s>) {
    let header = s.need::<{ ipv4::HEADER_LENGTH_MIN }>(l3, exits.cut);
    let first = s.load(header, byte::<{ ipv4::VERSION_IHL_OFFSET }>());
    let version = s.shr(first, 4);
    s.only(version, Cmp::Eq, 4, exits.malformed);
    let words = s.and(first, 0x0f);
    let bytes = s.shl(words, 2);
    s.only(bytes, Cmp::Ge, ipv4::HEADER_LENGTH_MIN as u32, exits.malformed);
    let total = s.load(header, be16::<{ ipv4::TOTAL_LENGTH_OFFSET }>());
    s.only(total, Cmp::Ne, 0, exits.unsure);
    s.only(total, Cmp::Ge, bytes, exits.malformed);
    let fragment = s.load(header, be16::<{ ipv4::FLAGS_FRAGMENT_OFFSET }>());
    let bits = u32::from(ipv4::IPV4_FRAGMENT_OFFSET_MASK | ipv4::MORE_FRAGMENTS);
    s.only(fragment, Cmp::NotAny, bits, exits.unsure);
    s.arm(|t, no_options| {
        t.only(bytes, Cmp::Ne, ipv4::HEADER_LENGTH_MIN as u32, no_options);
        let before = t.sub(bytes, 1);
        let last = t.advance_by(l3, before, IPV4_HEADER_MAX, exits.unsure);
        t.need::<1>(last, exits.unsure);
    });
    let protocol = s.load(header, byte::<{ ipv4::PROTOCOL_OFFSET }>());
    let rest = s.sub(total, bytes);
    (protocol, rest, s.advance_by(l3, bytes, IPV4_HEADER_MAX, exits.malformed))
}

/// Parses an IPv6 header and its extension headers. Returns the protocol after them, and the length
/// and position of the payload.
fn parse_ipv6<'s>(
    s: &mut Scope<'s, '_>,
    l3: FramePos<'s>,
    exits: TwinExits<'s>,
) -> (Num<'s>, Num<'s>, FramePos<'s>) {
    let header = s.need::<{ ipv6::HEADER_LENGTH }>(l3, exits.cut);
    let first = s.load(header, byte::<0>());
    let version = s.shr(first, 4);
    s.only(version, Cmp::Eq, 6, exits.malformed);
    let stated = s.load(header, be16::<{ ipv6::PAYLOAD_LENGTH_OFFSET }>());
    s.only(stated, Cmp::Ne, 0, exits.unsure);
    let next = s.load(header, byte::<{ ipv6::NEXT_HEADER_OFFSET }>());
    let behind = s.advance(l3, ipv6::HEADER_LENGTH as u16);
    let (number, length, data) = (s.var(next), s.var(stated), s.position_var(behind));
    s.arm(|t, upper| {
        for _ in 0..EXTENSIONS_MAX {
            let (kind, rest, at) = (t.get(number), t.get(length), t.get_position(data));
            require_extension_header(t, kind, exits.unsure, upper);
            t.only(rest, Cmp::Ge, EXTENSION_LENGTH as u32, exits.unsure);
            let header = t.need::<EXTENSION_LENGTH>(at, exits.unsure);
            let longer = t.load(header, byte::<1>());
            t.only(longer, Cmp::Eq, 0, exits.unsure);
            let following = t.load(header, byte::<0>());
            t.set(number, following);
            let rest = t.sub(rest, EXTENSION_LENGTH as u32);
            t.set(length, rest);
            let behind = t.advance(at, EXTENSION_LENGTH as u16);
            t.set_position(data, behind);
        }
        let kind = t.get(number);
        require_extension_header(t, kind, exits.unsure, upper);
        t.leave(exits.unsure);
    });
    (s.get(number), s.get(length), s.get_position(data))
}

/// Emits a test of the protocol number `kind`. If `kind` is a supported extension header, the code
/// after the test runs. If it is an unsupported extension header, the test jumps to `unsure`. For
/// any other protocol, it jumps to `upper`.
fn require_extension_header<'s>(
    s: &mut Scope<'s, '_>,
    kind: Num<'s>,
    unsure: Exit<'s>,
    upper: Exit<'s>,
) {
    use protocol::{AH, DESTINATION_OPTIONS, FRAGMENT, HIP, HOP_BY_HOP, MOBILITY, ROUTING, SHIM6};
    for other in [FRAGMENT, AH, MOBILITY, HIP, SHIM6] {
        s.only(kind, Cmp::Ne, u32::from(other), unsure);
    }
    s.only_one_of(kind, [HOP_BY_HOP, ROUTING, DESTINATION_OPTIONS], upper);
}
