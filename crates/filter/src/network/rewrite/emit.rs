//! The twin of `rewrite`. It parses the headers, checks that all requested fields can be edited,
//! saves their old values, and then edits them.

use super::{CHECKSUM_PROTOCOLS, RewriteFields, UNSUPPORTED_CHECKSUM_PROTOCOLS};
use crate::prelude::*;
use crate::twin::{self, EmitResult, TwinExits};
use ebpf::Hook;
use ebpf::emit::{
    Answer, ChecksumCoverage, Cmp, DynWindow, Exit, FrameOffset, FramePos, Layers, Num, Scope,
    Transport, UnfitReason, be16, be32, byte,
};
use wire::ip::protocol;
use wire::{ethernet, ipv4, ipv6, ports};

/// Emits the twin of `rewrite`, which overwrites header fields in the frame.
pub(super) fn emit_twin<'s>(
    a: &Arguments,
    s: &mut Scope<'s, '_>,
    on: Layers<'s>,
    out: Exit<'s>,
) -> EmitResult<'s> {
    let wanted = RewriteFields::from_arguments(a)
        .map_err(|mistake| UnfitReason::new(mistake.to_string()))?;
    if wanted.needs_link_header() && !on.has_link_header {
        return Err(UnfitReason::new("the link header is cut off"));
    }
    let exits = TwinExits::new(s, out);
    if wanted.needs_link_header() {
        s.need::<{ ethernet::HEADER_LENGTH }>(on.frame, exits.cut);
    }
    let found = if wanted.needs_ip_header() {
        Some(OldHeaders::read(s, &wanted, on, exits, out)?)
    } else {
        None
    };
    let kept = s.save_layers(on);
    let link = FrameOffset::from_start(ethernet::HEADER_LENGTH as u16);
    let end = found.as_ref().map_or(link, |found| found.edit_end);
    s.make_writable(end);
    for (at, mac) in [ethernet::DST_OFFSET, ethernet::SRC_OFFSET].into_iter().zip(wanted.macs) {
        if let Some(mac) = mac {
            s.put_bytes(FrameOffset::from_start(at as u16), &mac);
        }
    }
    if let Some(found) = found {
        found.emit_edits(s, &wanted);
    }
    let layers = s.restore_layers(kept);
    Ok(Answer::new(on.class, layers))
}

/// Positions and old values of the header fields, read before the edit.
struct OldHeaders<'s> {
    l3: FrameOffset<'s>,
    l4: FrameOffset<'s>,
    /// Offset past the last byte to be edited.
    edit_end: FrameOffset<'s>,
    version: Num<'s>,
    protocol: Num<'s>,
    /// Word that contains the time to live and the protocol, for IPv4.
    ttl_word: Num<'s>,
    addresses: [Num<'s>; 2],
    ports: [Num<'s>; 2],
}

impl<'s> OldHeaders<'s> {
    fn read(
        s: &mut Scope<'s, '_>,
        wanted: &RewriteFields,
        on: Layers<'s>,
        exits: TwinExits<'s>,
        out: Exit<'s>,
    ) -> Result<Self, UnfitReason> {
        let (l3, l4) = twin::reparse_packet(s, on, exits)?;
        let header = s.need::<{ ipv4::HEADER_LENGTH_MIN }>(l3, exits.unsure);
        let first = s.load(header, byte::<{ ipv4::VERSION_IHL_OFFSET }>());
        let version = s.shr(first, 4);
        if wanted.has_addresses() {
            let not_ipv4 = s.absent("not ipv4", out);
            s.only(version, Cmp::Eq, 4, not_ipv4);
        }
        let life = s.load(header, be16::<{ ipv4::TTL_OFFSET }>());
        let addresses = [
            s.load(header, be32::<{ ipv4::SRC_OFFSET }>()),
            s.load(header, be32::<{ ipv4::DST_OFFSET }>()),
        ];
        let end = s.position_var(l3);
        let behind = s.advance(l3, ipv4::HEADER_LENGTH_MIN as u16);
        s.set_position(end, behind);
        let (source, target) = (s.var(0), s.var(0));
        if wanted.has_addresses() || wanted.has_ports() {
            Self::require_editable_transport(s, wanted, (l3, l4, version), exits, out)?;
            s.arm(|t, none| {
                t.only_one_of(l4.protocol, CHECKSUM_PROTOCOLS.map(|(protocol, ..)| protocol), none);
                let both = t.need::<8>(l4.at, exits.unsure);
                let port = t.load(both, be16::<{ ports::SRC_PORT_OFFSET }>());
                t.set(source, port);
                let port = t.load(both, be16::<{ ports::DST_PORT_OFFSET }>());
                t.set(target, port);
                let short = t.advance(l4.at, CHECKSUM_PROTOCOLS[1].2 as u16);
                t.set_position(end, short);
                t.only(l4.protocol, Cmp::Eq, u32::from(protocol::TCP), none);
                let long = t.advance(l4.at, CHECKSUM_PROTOCOLS[0].2 as u16);
                t.set_position(end, long);
            });
        }
        let ports = [s.get(source), s.get(target)];
        let end = s.get_position(end);
        let (l3, protocol) = (s.to_frame_offset(l3), l4.protocol);
        let (l4, end) = (s.to_frame_offset(l4.at), s.to_frame_offset(end));
        Ok(Self { l3, l4, edit_end: end, version, protocol, ttl_word: life, addresses, ports })
    }

    /// Emits checks that the transport header can be edited. If a check fails, the code jumps to
    /// the exit for the reason.
    fn require_editable_transport(
        s: &mut Scope<'s, '_>,
        wanted: &RewriteFields,
        (l3, l4, version): (FramePos<'s>, Transport<'s>, Num<'s>),
        exits: TwinExits<'s>,
        out: Exit<'s>,
    ) -> Result<(), UnfitReason> {
        if wanted.has_addresses() {
            let other = s.absent("other checksum", out);
            for known in UNSUPPORTED_CHECKSUM_PROTOCOLS {
                s.only(l4.protocol, Cmp::Ne, u32::from(known), other);
            }
        }
        if wanted.has_ports() {
            let no_port = s.absent("no port", out);
            s.only_one_of(l4.protocol, CHECKSUM_PROTOCOLS.map(|(protocol, ..)| protocol), no_port);
        }
        s.arm(|t, done| -> Result<(), UnfitReason> {
            for (known, at, length, _) in CHECKSUM_PROTOCOLS {
                t.arm(|u, other| -> Result<(), UnfitReason> {
                    u.only(l4.protocol, Cmp::Eq, u32::from(known), other);
                    u.only(l4.length, Cmp::Ge, length as u32, exits.malformed);
                    let header = u.need_dyn(l4.at, length as u16, exits.cut)?;
                    if u.hook() == Hook::Xdp {
                        require_filled_checksum(
                            u,
                            (l3, l4, version),
                            (header, at as u16),
                            exits.unsure,
                        )?;
                    }
                    u.leave(done);
                    Ok(())
                })?;
            }
            Ok(())
        })
    }

    fn emit_edits(&self, s: &mut Scope<'s, '_>, wanted: &RewriteFields) {
        let header = self.l3.plus_bytes(ipv4::CHECKSUM_OFFSET as u16);
        if let Some(ttl) = wanted.ttl {
            s.arm(|t, done| {
                t.arm(|four, six| {
                    four.only(self.version, Cmp::Eq, 4, six);
                    let rest = four.and(self.ttl_word, 0xff);
                    let new = four.or(rest, u32::from(ttl) << 8);
                    four.update_checksum::<u16>(
                        header,
                        ChecksumCoverage::Header,
                        (self.ttl_word, new.into()),
                    );
                    four.put::<u8>(self.l3.plus_bytes(ipv4::TTL_OFFSET as u16), u32::from(ttl));
                    four.leave(done);
                });
                t.put::<u8>(self.l3.plus_bytes(ipv6::HOP_LIMIT_OFFSET as u16), u32::from(ttl));
            });
        }
        let addresses = [ipv4::SRC_OFFSET, ipv4::DST_OFFSET].into_iter().zip(wanted.addresses);
        for ((at, new), old) in addresses.zip(self.addresses) {
            let Some(new) = new else { continue };
            s.update_checksum::<u32>(header, ChecksumCoverage::Header, (old, new.into()));
            self.update_transport_checksum::<u32>(s, true, (old, new));
            s.put::<u32>(self.l3.plus_bytes(at as u16), new);
        }
        let ports = [ports::SRC_PORT_OFFSET, ports::DST_PORT_OFFSET].into_iter().zip(wanted.ports);
        for ((at, new), old) in ports.zip(self.ports) {
            let Some(new) = new else { continue };
            self.update_transport_checksum::<u16>(s, false, (old, new.into()));
            s.put::<u16>(self.l4.plus_bytes(at as u16), u32::from(new));
        }
    }

    fn update_transport_checksum<T: ebpf::emit::Width>(
        &self,
        s: &mut Scope<'s, '_>,
        pseudo: bool,
        (old, new): (Num<'s>, u32),
    ) {
        for (known, at, _, may_be_absent) in CHECKSUM_PROTOCOLS {
            s.arm(|t, other| {
                t.only(self.protocol, Cmp::Eq, u32::from(known), other);
                let covers = ChecksumCoverage::Transport { pseudo, may_be_absent };
                t.update_checksum::<T>(self.l4.plus_bytes(at as u16), covers, (old, new.into()));
            });
        }
    }
}

/// Emits a jump to `unsure`, taken if the checksum equals the sum of the pseudo header. The network
/// device may still have to fill in such a checksum.
fn require_filled_checksum<'s>(
    s: &mut Scope<'s, '_>,
    (l3, l4, version): (FramePos<'s>, Transport<'s>, Num<'s>),
    (header, at): (DynWindow<'s>, u16),
    unsure: Exit<'s>,
) -> Result<(), UnfitReason> {
    let found = s.load_dyn::<u16>(header, at)?;
    let first = s.add(l4.protocol, l4.length);
    let total = s.var(first);
    s.arm(|t, done| -> Result<(), UnfitReason> {
        t.arm(|four, six| -> Result<(), UnfitReason> {
            four.only(version, Cmp::Eq, 4, six);
            emit_word_sum(four, l3, (ipv4::SRC_OFFSET, ipv4::HEADER_LENGTH_MIN), total, unsure)?;
            four.leave(done);
            Ok(())
        })?;
        emit_word_sum(t, l3, (ipv6::SRC_OFFSET, ipv6::HEADER_LENGTH), total, unsure)
    })?;
    let total = s.get(total);
    let pseudo = s.fold_carries(total);
    s.only(found, Cmp::Ne, pseudo, unsure);
    Ok(())
}

fn emit_word_sum<'s>(
    s: &mut Scope<'s, '_>,
    l3: FramePos<'s>,
    (from, to): (usize, usize),
    total: ebpf::emit::Var<'s>,
    unsure: Exit<'s>,
) -> Result<(), UnfitReason> {
    let header = s.need_dyn(l3, to as u16, unsure)?;
    for at in (from..to).step_by(2) {
        s.arm(|t, _| -> Result<(), UnfitReason> {
            let word = t.load_dyn::<u16>(header, at as u16)?;
            let sum = t.get(total);
            let sum = t.add(sum, word);
            t.set(total, sum);
            Ok(())
        })?;
    }
    Ok(())
}
