//! Test twins for the emitter: `eth`, `vlan`, `ip`, `udp` and `dport`, each a plain `fn`. The
//! module `rust_judge` makes the same decisions in ordinary Rust, and `frames` provides frames for
//! both.

#![allow(dead_code, reason = "each test binary uses some of the helpers")]
#![allow(unreachable_pub, reason = "shared by test binaries")]

pub mod frames;
pub mod rust_judge;

use ebpf::emit::{
    self, Answer, Cmp, EmitFn, Exit, Layers, MetadataField, ReturnConversion, Scope, Target,
    Transport, UnfitReason, be16, byte,
};
use ebpf::{FilterSpan, Hook, Program};

/// Maximum number of extension headers that the `ip` twin follows.
pub const EXTENSION_HEADERS_MAX: usize = 4;
/// Length in bytes that a twin assumes for an IP packet whose header specifies none (segmentation
/// offload, jumbograms).
pub const LENGTH_IF_UNSPECIFIED: u32 = 1 << 20;

/// A filter in a test chain. This module contains the twin of each such filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestFilter {
    Eth,
    Vlan,
    Ip,
    Udp,
    Dport,
}

impl TestFilter {
    pub fn name(self) -> &'static str {
        match self {
            Self::Eth => "eth",
            Self::Vlan => "vlan",
            Self::Ip => "ip",
            Self::Udp => "udp",
            Self::Dport => "dport",
        }
    }

    fn twin(self) -> EmitFn<()> {
        match self {
            Self::Eth => eth,
            Self::Vlan => vlan,
            Self::Ip => ip,
            Self::Udp => udp,
            Self::Dport => dport,
        }
    }
}

/// Chains of filters whose twins the tests compare with plain Rust. Each twin is the last in at
/// least one chain, because the class of the last twin is the class of the chain.
pub const CHAINS: &[&[TestFilter]] = &[
    &[TestFilter::Eth],
    &[TestFilter::Eth, TestFilter::Vlan],
    &[TestFilter::Eth, TestFilter::Vlan, TestFilter::Vlan],
    &[TestFilter::Eth, TestFilter::Ip],
    &[TestFilter::Eth, TestFilter::Ip, TestFilter::Udp],
    &[TestFilter::Eth, TestFilter::Ip, TestFilter::Dport],
    &[TestFilter::Eth, TestFilter::Ip, TestFilter::Udp, TestFilter::Dport],
    &[TestFilter::Eth, TestFilter::Vlan, TestFilter::Ip, TestFilter::Dport],
];

/// Targets for which the chains are compiled: every hook except cgroups, and TC and XDP a second
/// time without CAP_PERFMON, where programs have no packet pointers.
pub const TARGETS: [Target; 5] = [
    Target { hook: Hook::Tc, hardened: false, redirects: false, single_buffer: false },
    Target { hook: Hook::Xdp, hardened: false, redirects: false, single_buffer: false },
    Target { hook: Hook::Socket, hardened: false, redirects: false, single_buffer: false },
    Target::without_perfmon(Hook::Tc),
    Target::without_perfmon(Hook::Xdp),
];

/// Formats the chain as the text of a request.
pub fn format_request(chain: &[TestFilter]) -> String {
    chain.iter().map(|step| step.name()).collect::<Vec<_>>().join(" | ")
}

/// Compiles the twins of the chain into one eBPF program. `finish` converts the chain's answer to
/// the return value of the program.
pub fn compile_chain(
    chain: &[TestFilter],
    target: impl Into<Target>,
    finish: ReturnConversion,
) -> Result<Program, UnfitReason> {
    emit::program(target, finish, |s, on, out| {
        let mut answer = Answer::new(emit::NO_ANSWER_CLASS, on);
        let mut at = 0;
        for step in chain {
            let word = FilterSpan::new(step.name(), at, step.name().len());
            at += step.name().len() + " | ".len();
            answer = s.emit_twin(word, step.twin(), &(), answer.layers, out)?;
        }
        Ok(answer)
    })
}

type EmitResult<'s> = Result<Answer<'s>, UnfitReason>;

/// Emits the twin of `eth`, whose class is the EtherType. A VLAN tag in the packet metadata counts
/// as if it were in the frame.
fn eth<'s>(_: &(), s: &mut Scope<'s, '_>, on: Layers<'s>, out: Exit<'s>) -> EmitResult<'s> {
    let short = s.absent("short", out);
    let header = s.need::<14>(on.at, short);
    let inline = s.load(header, be16::<12>());
    let kind = if s.may_have_stored_tag() {
        let kind = s.var(inline);
        s.arm(|t, untagged| {
            let present = t.load_metadata(MetadataField::TagPresent);
            t.only(present, Cmp::Ne, 0, untagged);
            let protocol = t.load_metadata(MetadataField::TagProtocol);
            t.set(kind, protocol);
        });
        s.get(kind)
    } else {
        inline
    };
    let at = s.advance(on.at, 14);
    Ok(Answer::new(kind, Layers { at, next: Some(kind), l3: Some(at), ..on }))
}

/// Emits the twin of `vlan`, whose class is the VLAN id. The first tag may be in the packet
/// metadata instead of the frame.
fn vlan<'s>(_: &(), s: &mut Scope<'s, '_>, on: Layers<'s>, out: Exit<'s>) -> EmitResult<'s> {
    let kind =
        on.next.ok_or_else(|| UnfitReason::new("no link layer before `vlan`: put `eth` there"))?;
    let untagged = s.absent("untagged", out);
    let short = s.absent("short", out);
    s.arm(|t, is_tag| {
        t.only(kind, Cmp::Ne, 0x8100, is_tag);
        t.only(kind, Cmp::Ne, 0x88a8, is_tag);
        t.leave(untagged);
    });
    let (tci, next, at) = (s.var(0), s.var(0), s.position_var(on.at));
    s.arm(|t, done| {
        t.arm(|u, inline| {
            if on.tags > 0 || !u.may_have_stored_tag() {
                return u.leave(inline);
            }
            let present = u.load_metadata(MetadataField::TagPresent);
            u.only(present, Cmp::Ne, 0, inline);
            let from_metadata = u.load_metadata(MetadataField::TagTci);
            u.set(tci, from_metadata);
            let header = u.need::<14>(on.frame, short);
            let inner = u.load(header, be16::<12>());
            u.set(next, inner);
            u.leave(done);
        });
        let tag = t.need::<4>(on.at, short);
        let inline = t.load(tag, be16::<0>());
        t.set(tci, inline);
        let inner = t.load(tag, be16::<2>());
        t.set(next, inner);
        let behind = t.advance(on.at, 4);
        t.set_position(at, behind);
    });
    let tci = s.get(tci);
    let number = s.and(tci, 0xfff);
    let class = s.natural_class(number);
    let (next, at) = (s.get(next), s.get_position(at));
    Ok(Answer::new(class, Layers { at, next: Some(next), l3: Some(at), tags: on.tags + 1, ..on }))
}

/// Emits the twin of `ip`, whose class is the IP version. The twin is unsure about fragments and
/// about chains of more than [`EXTENSION_HEADERS_MAX`] extension headers.
fn ip<'s>(_: &(), s: &mut Scope<'s, '_>, on: Layers<'s>, out: Exit<'s>) -> EmitResult<'s> {
    let kind =
        on.next.ok_or_else(|| UnfitReason::new("no link layer before `ip`: put `eth` there"))?;
    let (version, protocol, length) = (s.var(0), s.var(0), s.var(0));
    let l4 = s.position_var(on.at);
    let other = s.absent("other", out);
    let malformed = s.absent("malformed", out);
    let short = s.absent("short", out);
    let unsure = s.unsure();
    s.arm(|t, done| {
        t.arm(|v4, six| {
            v4.only(kind, Cmp::Eq, 0x0800, six);
            let header = v4.need::<20>(on.at, short);
            let first = v4.load(header, byte::<0>());
            let number = v4.shr(first, 4);
            v4.only(number, Cmp::Eq, 4, malformed);
            let words = v4.and(first, 15);
            let bytes = v4.shl(words, 2);
            v4.only(bytes, Cmp::Ge, 20, malformed);
            let fragment = v4.load(header, be16::<6>());
            v4.only(fragment, Cmp::NotAny, 0x3fff, unsure);
            let total = v4.load(header, be16::<2>());
            v4.set(length, LENGTH_IF_UNSPECIFIED);
            v4.arm(|u, unstated| {
                u.only(total, Cmp::Ne, 0, unstated);
                u.only(total, Cmp::Ge, bytes, malformed);
                let rest = u.sub(total, bytes);
                u.set(length, rest);
            });
            let number = v4.load(header, byte::<9>());
            v4.set(protocol, number);
            let behind = v4.advance_by(on.at, bytes, 60, malformed);
            v4.set_position(l4, behind);
            v4.set(version, 4);
            v4.leave(done);
        });
        t.only(kind, Cmp::Eq, 0x86dd, other);
        let header = t.need::<40>(on.at, short);
        let first = t.load(header, byte::<0>());
        let number = t.shr(first, 4);
        t.only(number, Cmp::Eq, 6, malformed);
        let stated = t.load(header, be16::<4>());
        t.set(length, LENGTH_IF_UNSPECIFIED);
        t.arm(|u, unstated| {
            u.only(stated, Cmp::Ne, 0, unstated);
            u.set(length, stated);
        });
        let next = t.load(header, byte::<6>());
        t.set(protocol, next);
        let behind = t.advance(on.at, 40);
        t.set_position(l4, behind);
        for _ in 0..EXTENSION_HEADERS_MAX {
            t.arm(|u, upper| {
                let kind = u.get(protocol);
                continue_after_extension(u, kind, unsure, upper);
                let at = u.get_position(l4);
                let header = u.need::<2>(at, short);
                let next = u.load(header, byte::<0>());
                let units = u.load(header, byte::<1>());
                let units = u.add(units, 1);
                let bytes = u.shl(units, 3);
                let rest = u.get(length);
                u.only(rest, Cmp::Ge, bytes, malformed);
                let rest = u.sub(rest, bytes);
                let behind = u.advance_by(at, bytes, 2048, malformed);
                u.set_position(l4, behind);
                u.set(length, rest);
                u.set(protocol, next);
            });
        }
        t.arm(|u, upper| {
            let kind = u.get(protocol);
            continue_after_extension(u, kind, unsure, upper);
            u.leave(unsure);
        });
        t.set(version, 6);
    });
    let (class, protocol, length) = (s.get(version), s.get(protocol), s.get(length));
    let at = s.get_position(l4);
    let l4 = Some(Transport { at, protocol, length });
    Ok(Answer::new(class, Layers { at, l3: Some(on.at), l4, ..on }))
}

/// Emits jumps that depend on the type `kind` of the next IPv6 header. Execution continues here if
/// it is an extension header that can be skipped. Otherwise it leaves through `fragment` for a
/// fragment header, or through `upper` for any other.
fn continue_after_extension<'s>(
    s: &mut Scope<'s, '_>,
    kind: emit::Num<'s>,
    fragment: Exit<'s>,
    upper: Exit<'s>,
) {
    s.only(kind, Cmp::Ne, 44, fragment);
    s.arm(|t, skipped| {
        for known in [0, 43, 60] {
            t.only(kind, Cmp::Ne, known, skipped);
        }
        t.leave(upper);
    });
}

/// Emits the twin of `udp`, which gives UDP datagrams class 1.
fn udp<'s>(_: &(), s: &mut Scope<'s, '_>, on: Layers<'s>, out: Exit<'s>) -> EmitResult<'s> {
    let l4 =
        on.l4.ok_or_else(|| UnfitReason::new("no network layer before `udp`: put `ip` there"))?;
    let other = s.absent("other", out);
    let short = s.absent("short", out);
    s.only(l4.protocol, Cmp::Eq, 17, other);
    s.only(l4.length, Cmp::Ge, 8, short);
    s.need::<8>(l4.at, short);
    let at = s.advance(l4.at, 8);
    Ok(Answer::new(1, Layers { at, ..on }))
}

/// Emits the twin of `dport`, whose class is the destination port of TCP or UDP.
fn dport<'s>(_: &(), s: &mut Scope<'s, '_>, on: Layers<'s>, out: Exit<'s>) -> EmitResult<'s> {
    let l4 =
        on.l4.ok_or_else(|| UnfitReason::new("no network layer before `dport`: put `ip` there"))?;
    let no_port = s.absent("no_port", out);
    s.arm(|t, has_ports| {
        for protocol in [6, 17] {
            t.only(l4.protocol, Cmp::Ne, protocol, has_ports);
        }
        t.leave(no_port);
    });
    s.only(l4.length, Cmp::Ge, 4, no_port);
    let ports = s.need::<4>(l4.at, no_port);
    let target = s.load(ports, be16::<2>());
    Ok(Answer::new(s.natural_class(target), on))
}
