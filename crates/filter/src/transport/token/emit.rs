//! The twin of `token`, which computes the tag without loops.
//!
//! The twin hashes the bytes that the token covers in units of eight bytes (words). It loads the
//! last of these bytes as a word that ends with them, and shifts the bytes out that it has already
//! hashed. If the token covers fewer than eight bytes, the word begins within the token. The twin
//! therefore never loads single bytes, nor bytes after the datagram.

use super::{COVERED_BYTES_MAX, NUMBER_SIZE, RESIDUE_COUNT, TOKEN_SIZE, TokenArguments};
use crate::prelude::*;
use crate::twin::{self, EmitResult, TwinExits};
use ebpf::emit::{
    Answer, Cmp, DynWindow, Exit, FramePos, Layers, Num, Scope, SiphashState, Transport,
    UnfitReason, WideNum, Window, be32, byte,
};
use wire::ip::protocol;
use wire::{ipv4, ipv6, ports, udp};

/// Maximum number of bytes that the token covers in a kernel program. At the tc hook, a program can
/// directly read at most the first 256 bytes of a frame.
const TWIN_COVERED_BYTES_MAX: u16 = 128;
const _: () = assert!(TWIN_COVERED_BYTES_MAX <= COVERED_BYTES_MAX);
/// Size in bytes of a word, the unit of data that the hash function processes.
const WORD_BYTES: usize = 8;
/// Offset of the addresses within the bytes from which the tag is computed.
const ADDRESSES_OFFSET: u32 = NUMBER_SIZE as u32 + 8;

/// Emits the twin of `token`, which validates tokens.
pub(super) fn emit_twin<'s>(
    a: &Arguments,
    s: &mut Scope<'s, '_>,
    on: Layers<'s>,
    out: Exit<'s>,
) -> EmitResult<'s> {
    let TokenArguments { key, covers } =
        TokenArguments::from_arguments(a).map_err(|why| UnfitReason::new(why.to_string()))?;
    if covers > TWIN_COVERED_BYTES_MAX {
        return Err(UnfitReason::new(format!(
            "it covers more than {TWIN_COVERED_BYTES_MAX} bytes"
        )));
    }
    let exits = TwinExits::new(s, out);
    let [not_udp, no_token, forged, replayed] =
        ["not udp", "no token", "forged", "replayed"].map(|reason| s.absent(reason, out));
    // Intermediate values are local to arms, because the stack has only 512 bytes.
    let found = [s.position_var(on.frame), s.position_var(on.frame)];
    let [rest, payload] = [s.var(0), s.var(0)];
    s.arm(|t, _| {
        let (l3, l4) = twin::reparse_packet(t, on, exits)?;
        let (_, stated) = twin::parse_datagram(t, l4, exits, not_udp);
        t.only(stated, Cmp::Ge, TOKEN_SIZE as u32, no_token);
        t.set_position(found[0], l3);
        t.set_position(found[1], l4.at);
        t.set(rest, l4.length);
        t.set(payload, stated);
        Ok::<(), UnfitReason>(())
    })?;
    let [l3, l4] = found.map(|at| s.get_position(at));
    let payload = s.get(payload);
    let length = s.sub(payload, TOKEN_SIZE as u32);
    let token = s.advance(l4, udp::HEADER_LENGTH as u16);
    let right = emit_tag(s, &key, covers, &TagInput { l3, l4, token, length }, exits)?;
    let both = s.need::<TOKEN_SIZE>(token, exits.cut);
    let tag = load_word(s, both, NUMBER_SIZE as u16)?;
    s.only_if_wide(tag, Cmp::Eq, right, forged);
    let number = load_word(s, both, 0)?;
    let used_numbers = s.declare_state((RESIDUE_COUNT * WORD_BYTES) as u16);
    let low = s.narrow(number);
    let place = s.and(low, RESIDUE_COUNT as u32 - 1);
    s.raise_nth_number(used_numbers, (0, RESIDUE_COUNT as u16), place, number, replayed);
    let at = s.advance(token, TOKEN_SIZE as u16);
    let (protocol, rest) = (s.constant(protocol::UDP.into()), s.get(rest));
    let l4 = Some(Transport { at: l4, protocol, length: rest });
    Ok(Answer::new(Class::YES.0, Layers { at, length: Some(length), l4, ..on }))
}

/// Positions in the frame of the bytes from which the tag of a token is computed.
struct TagInput<'s> {
    l3: FramePos<'s>,
    l4: FramePos<'s>,
    token: FramePos<'s>,
    /// Length in bytes of the data after the token, including data that the tag does not cover.
    length: Num<'s>,
}

/// Emits the code that computes the tag of a valid token. `of` locates the bytes from which the tag
/// is computed.
fn emit_tag<'s>(
    s: &mut Scope<'s, '_>,
    key: &Key,
    covers: u16,
    of: &TagInput<'s>,
    exits: TwinExits<'s>,
) -> Result<WideNum<'s>, UnfitReason> {
    let covered = s.constant(u32::from(covers));
    let covered = s.min(of.length, covered);
    let (low, high) = key.0.split_at(WORD_BYTES);
    let key = [low, high].map(|half| half.iter().rfold(0, |key, b| key << 8 | u64::from(*b)));
    let sip = s.begin_siphash(key);
    s.arm(|t, _| {
        let token = t.need::<TOKEN_SIZE>(of.token, exits.cut);
        let number = load_word(t, token, 0)?;
        t.absorb_siphash_word(sip, number);
        let header = t.need::<{ udp::HEADER_LENGTH }>(of.l4, exits.cut);
        let ports = t.load(header, be32::<{ ports::SRC_PORT_OFFSET }>());
        let known = t.join_halves([ports, of.length]);
        t.absorb_siphash_word(sip, known);
        Ok::<(), UnfitReason>(())
    })?;
    let before = emit_address_hash(s, sip, of.l3, exits)?;
    let data = s.advance(of.token, TOKEN_SIZE as u16);
    s.arm(|t, rest| {
        for at in (0..covers / WORD_BYTES as u16).map(|nth| nth * WORD_BYTES as u16) {
            t.only(covered, Cmp::Ge, u32::from(at) + WORD_BYTES as u32, rest);
            t.arm(|u, _| {
                let place = u.advance(data, at);
                let whole = u.need::<WORD_BYTES>(place, exits.cut);
                let next = load_word(u, whole, 0)?;
                u.absorb_siphash_word(sip, next);
                Ok::<(), UnfitReason>(())
            })?;
        }
        Ok::<(), UnfitReason>(())
    })?;
    let zero = s.wide_constant(0);
    let tag = s.wide_var(zero);
    s.arm(|t, _| {
        let last = emit_last_word(t, of.token, (covered, covers, before), exits)?;
        let right = t.finish_siphash(sip, last);
        t.set_wide(tag, right);
        Ok::<(), UnfitReason>(())
    })?;
    Ok(s.get_wide(tag))
}

/// Emits code that computes the last word of the hash input: the last bytes that the token covers,
/// followed by the length of the input.
fn emit_last_word<'s>(
    s: &mut Scope<'s, '_>,
    token: FramePos<'s>,
    (covered, covers, before): (Num<'s>, u16, Num<'s>),
    exits: TwinExits<'s>,
) -> Result<WideNum<'s>, UnfitReason> {
    let behind = s.advance(token, NUMBER_SIZE as u16);
    let place = s.advance_by(behind, covered, covers, exits.unsure);
    let last = s.need::<WORD_BYTES>(place, exits.cut);
    let last = load_word(s, last, 0)?;
    // Bytes that were absorbed with the previous word are shifted out. The last byte is reserved
    // for the length.
    let left = s.and(covered, WORD_BYTES as u32 - 1);
    let left = s.shl(left, 3);
    let bits = s.constant(56);
    let others = s.sub(bits, left);
    let last = s.shl_wide_by(last, others);
    let last = s.shl_wide(last, 8);
    let bytes = s.add(before, covered);
    let bytes = s.and(bytes, 0xff);
    let bytes = s.widen(bytes);
    Ok(s.or_wide(last, bytes))
}

/// Emits code that hashes the addresses. Returns the offset past the addresses within the bytes
/// from which the tag is computed.
fn emit_address_hash<'s>(
    s: &mut Scope<'s, '_>,
    sip: SiphashState<'s>,
    l3: FramePos<'s>,
    exits: TwinExits<'s>,
) -> Result<Num<'s>, UnfitReason> {
    const IPV4_ADDRESSES_SIZE: u16 = (ipv4::HEADER_LENGTH_MIN - ipv4::SRC_OFFSET) as u16;
    const IPV6_ADDRESSES_SIZE: u16 = (ipv6::HEADER_LENGTH - ipv6::SRC_OFFSET) as u16;
    let bytes = s.var(ADDRESSES_OFFSET + u32::from(IPV4_ADDRESSES_SIZE));
    s.arm(|t, done| {
        t.arm(|four, six| {
            let header = four.need::<{ ipv4::HEADER_LENGTH_MIN }>(l3, exits.cut);
            let first = four.load(header, byte::<{ ipv4::VERSION_IHL_OFFSET }>());
            let version = four.shr(first, 4);
            four.only(version, Cmp::Eq, 4, six);
            let both = load_word(four, header, ipv4::SRC_OFFSET as u16)?;
            four.absorb_siphash_word(sip, both);
            four.leave(done);
            Ok::<(), UnfitReason>(())
        })?;
        let header = t.need::<{ ipv6::HEADER_LENGTH }>(l3, exits.cut);
        for at in (0..IPV6_ADDRESSES_SIZE).step_by(WORD_BYTES) {
            let part = load_word(t, header, ipv6::SRC_OFFSET as u16 + at)?;
            t.absorb_siphash_word(sip, part);
        }
        t.set(bytes, ADDRESSES_OFFSET + u32::from(IPV6_ADDRESSES_SIZE));
        Ok::<(), UnfitReason>(())
    })?;
    Ok(s.get(bytes))
}

/// Loads the eight bytes at an offset as a number in network byte order.
fn load_word<'s, const N: usize>(
    s: &mut Scope<'s, '_>,
    window: Window<'s, N>,
    at: u16,
) -> Result<WideNum<'s>, UnfitReason> {
    let span = DynWindow::from(window);
    let halves = [s.load_dyn::<u32>(span, at)?, s.load_dyn::<u32>(span, at + 4)?];
    Ok(s.join_halves(halves))
}
