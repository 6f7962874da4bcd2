//! Sharding key of a block, which assigns the blocks of a session to the same replica of a filter.
//!
//! Input: a block. Output: a number that is the same for all blocks of a session, in both
//! directions, on every machine. [Par §IV-A], [Th §5.4; CONTRACT 16]
//!
//! For a filter that assigns sessions itself, the key is a hash of addresses and ports. If the
//! filter also reassembles fragments, which have no ports, the key is a hash of the addresses
//! alone. If an earlier filter has assigned sessions, the key is a hash of the session number. All
//! blocks without a session have the same key.

use crate::contract::Block;
use crate::layers;
use crate::transport::flows::{FlowIdentity, FlowTable};
use crate::twin::{self, TwinExits};
use ebpf::emit::{
    Cmp, Layers, Num, Scope, Transport, UnfitReason, WideNum, WideVar, be16, be32, byte,
};
use wire::flow::Flow;
use wire::{ipv4, ipv6, ports};

/// The properties of a block that form its sharding key. All blocks of a session agree in these
/// properties.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShardKey {
    /// The two addresses of the packet.
    Addresses,
    /// The two addresses and ports of the packet, and its protocol.
    Flow,
    /// The session number that an earlier filter assigned to the block.
    Session,
}

/// Seed of the hash for sharding keys. The seed is constant, because every process must compute the
/// same key.
pub(crate) const SHARD_HASH_SEED: u64 = 0;

impl ShardKey {
    /// Returns the sharding key of a block. All blocks of a session have the same key, and so do
    /// all blocks without a session.
    #[inline]
    #[must_use]
    pub fn hash(self, block: &Block<'_>) -> u64 {
        match self {
            Self::Session => mix_bits(block.context.session.into()),
            Self::Flow => block_flow(block).map_or(0, |flow| flow.hash(SHARD_HASH_SEED)),
            Self::Addresses => block_flow(block)
                .map_or(0, |flow| Flow { ports: None, protocol: 0, ..flow }.hash(SHARD_HASH_SEED)),
        }
    }

    /// Returns the key of a block's session in the tables of filters with this seed
    /// ([`Arguments::seed`](crate::Arguments::seed)). Like [`ShardKey::hash`], the key is the same
    /// for all blocks of a session. Unlike the hash, it can be computed without a block
    /// ([`ShardKey::key_of_session`]).
    #[inline]
    #[must_use]
    pub fn session_key(self, block: &Block<'_>, seed: u64) -> u64 {
        match self {
            Self::Session => mix_bits(block.context.session.into()),
            Self::Flow => block_flow(block)
                .map_or(0, |flow| FlowTable::<FlowIdentity>::flow_key_and_direction(&flow, seed).0),
            Self::Addresses => block_flow(block)
                .map_or(0, |flow| Flow { ports: None, protocol: 0, ..flow }.hash(seed)),
        }
    }

    /// Returns the key that [`ShardKey::session_key`] computes for the blocks of a session, without
    /// a block. `key` and `number` identify the session in the first filter that has sessions.
    /// Returns `None` for [`ShardKey::Addresses`]: the hash of the addresses cannot be derived from
    /// `key`, which includes the ports.
    #[must_use]
    pub const fn key_of_session(self, key: u64, number: u64) -> Option<u64> {
        match self {
            Self::Session => Some(mix_bits(number)),
            Self::Flow => Some(key),
            Self::Addresses => None,
        }
    }

    /// Returns true if all state of a session can be found by its key, so that the session can move
    /// to another replica.
    #[must_use]
    pub const fn can_find_sessions(self) -> bool {
        self.key_of_session(0, 0).is_some()
    }

    /// Emits eBPF code that computes [`ShardKey::hash`] for blocks with a flow, and jumps to one of
    /// `exits` for other blocks. Not available for session numbers, because the kernel does not
    /// have them.
    pub(crate) fn emit_hash<'s>(
        self,
        s: &mut Scope<'s, '_>,
        on: Layers<'s>,
        exits: TwinExits<'s>,
    ) -> Result<WideNum<'s>, UnfitReason> {
        let (l3, l4) = twin::reparse_packet(s, on, exits)?;
        let ends = match self {
            Self::Session => {
                return Err(UnfitReason::new("sessions are identified in threads only"));
            }
            Self::Flow => emit_ports(s, l4, exits).map(Some),
            Self::Addresses => [None; 2],
        };
        let zero = s.wide_constant(0);
        let sum = s.wide_var(zero);
        s.arm(|t, done| {
            let first = t.need::<{ ipv4::HEADER_LENGTH_MIN }>(l3, exits.unsure);
            let version = t.load(first, byte::<0>());
            let version = t.shr(version, 4);
            t.arm(|four, six| {
                four.only(version, Cmp::Eq, 4, six);
                let high = four.wide_constant(0);
                let source = four.load(first, be32::<{ ipv4::SRC_OFFSET }>());
                let target = four.load(first, be32::<{ ipv4::DST_OFFSET }>());
                let halves = [source, target].map(|address| (high, four.widen(address)));
                emit_endpoint_sum(four, halves, ends, sum);
                four.leave(done);
            });
            let header = t.need::<{ ipv6::HEADER_LENGTH }>(l3, exits.unsure);
            let source = [
                [t.load(header, be32::<8>()), t.load(header, be32::<12>())],
                [t.load(header, be32::<16>()), t.load(header, be32::<20>())],
            ];
            let target = [
                [t.load(header, be32::<24>()), t.load(header, be32::<28>())],
                [t.load(header, be32::<32>()), t.load(header, be32::<36>())],
            ];
            let halves =
                [source, target].map(|[high, low]| (t.join_halves(high), t.join_halves(low)));
            emit_endpoint_sum(t, halves, ends, sum);
        });
        let mut sum = s.get_wide(sum);
        if self == Self::Flow {
            let protocol = s.widen(l4.protocol);
            sum = s.xor_wide(sum, protocol);
        }
        Ok(s.mix_bits(sum))
    }
}

/// Emits code that loads the source and destination ports; both are zero for protocols without
/// ports.
fn emit_ports<'s>(
    s: &mut Scope<'s, '_>,
    l4: Transport<'s>,
    exits: TwinExits<'s>,
) -> [WideNum<'s>; 2] {
    let (source, target) = (s.var(0), s.var(0));
    s.arm(|t, done| {
        t.arm(|u, without| {
            u.only_one_of(l4.protocol, ports::PROTOCOLS_WITH_PORTS, without);
            u.only(l4.length, Cmp::Ge, 4, exits.unsure);
            let both = u.need::<4>(l4.at, exits.unsure);
            let number = u.load(both, be16::<{ ports::SRC_PORT_OFFSET }>());
            u.set(source, number);
            let number = u.load(both, be16::<{ ports::DST_PORT_OFFSET }>());
            u.set(target, number);
        });
        t.leave(done);
    });
    [s.get(source), s.get(target)].map(|port: Num<'s>| s.widen(port))
}

/// Emits code that sums the hashes of the two endpoints of a flow. Each hash is that of
/// `hash_endpoint` in `wire::flow`. If `ports` lacks a port, the hash covers the address only.
fn emit_endpoint_sum<'s>(
    s: &mut Scope<'s, '_>,
    halves: [(WideNum<'s>, WideNum<'s>); 2],
    ports: [Option<WideNum<'s>>; 2],
    sum: WideVar<'s>,
) {
    let mut end = |(high, low): (WideNum<'s>, WideNum<'s>), port: Option<WideNum<'s>>| {
        let mixed = s.mix_bits(high);
        let mut end = s.add_wide(mixed, low);
        if let Some(port) = port {
            let port = s.shl_wide(port, 40);
            end = s.xor_wide(end, port);
        }
        s.mix_bits(end)
    };
    let ends = [end(halves[0], ports[0]), end(halves[1], ports[1])];
    let total = s.add_wide(ends[0], ends[1]);
    s.set_wide(sum, total);
}

#[inline]
fn block_flow(block: &Block<'_>) -> Option<Flow> {
    let mut block = *block;
    match layers::fast_path_segment(block.frame, &mut block.marks) {
        Some(segment) => Some(segment.flow),
        None => layers::packet_flow(&mut block).ok(),
    }
}

/// Mixes the bits of a number, so that the results for consecutive numbers differ throughout the
/// word.
const fn mix_bits(number: u64) -> u64 {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Arena, Frame, Node, Space};

    fn key_hashes(by: ShardKey, frames: &[Frame]) -> Vec<u64> {
        let arena = Arena::new(64);
        let space = Space::new(&arena);
        let batch = space.batch(frames);
        batch.blocks().map(|(_, block)| by.hash(&block)).collect()
    }

    #[test]
    fn n2_flow_has_one_key_in_both_directions() {
        for by in [ShardKey::Flow, ShardKey::Addresses] {
            let frames = |swapped: bool| -> Vec<Frame> {
                let frame = |port: u16| match port % 2 {
                    0 => Frame::udp(port, 53, b"x"),
                    _ => Frame::tcp(port, 80, b"x"),
                };
                let back = |port: u16| match port % 2 {
                    0 => Frame::udp(53, port, b"x").with_swapped_addresses(),
                    _ => Frame::tcp(80, port, b"x").with_swapped_addresses(),
                };
                (1..60).map(|port| if swapped { back(port) } else { frame(port) }).collect()
            };
            let there = key_hashes(by, &frames(false));
            assert_eq!(there, key_hashes(by, &frames(true)), "{by:?}");
            let mut different = there;
            different.sort_unstable();
            different.dedup();
            assert_eq!(different.len(), if by == ShardKey::Flow { 59 } else { 1 }, "{by:?}");
        }
    }

    /// The session key of a block equals the key in the session table of `tcp` or `udp`, in both
    /// directions, with and without a VLAN tag.
    #[test]
    fn n3_session_key_equals_the_key_in_the_filters_table() {
        use crate::transport::{tcp::TCP, udp::UDP};
        use crate::{Arguments, PRIVATE_SESSION_KEY};
        let seed = 77;
        for (description, frames) in [
            (&UDP, vec![Frame::udp(7, 53, b"x"), Frame::udp(53, 7, b"y").with_swapped_addresses()]),
            (&TCP, vec![Frame::tcp(7, 80, b"x"), Frame::tcp(80, 7, b"y").with_swapped_addresses()]),
        ] {
            let tagged = frames.iter().map(|frame| Frame {
                bytes: [&frame.bytes[..12], &[0x81, 0, 0, 5], &frame.bytes[12..]].concat(),
                ..frame.clone()
            });
            let tagged: Vec<Frame> = tagged.collect();
            for frames in [&frames, &tagged] {
                let arguments = Arguments::from_parameter_defaults(description.parameters)
                    .with_seed(Some(seed));
                let mut node = Node::new(description, &[]).unwrap();
                node.filter = description.constructor.unwrap()(&arguments).unwrap();
                let arena = Arena::new(64);
                let mut space = Space::new(&arena);
                let batch = space.batch(frames);
                node.process_batch(batch, &mut space, 0);
                let keys = node.filter.state().unwrap().session_keys();
                for (_, block) in space.batch(frames).blocks() {
                    let key = ShardKey::Flow.session_key(&block, seed);
                    assert_eq!(keys, [PRIVATE_SESSION_KEY, key], "{}", description.name);
                    assert_eq!(ShardKey::Flow.key_of_session(key, 1), Some(key));
                }
            }
        }
    }

    #[test]
    fn blocks_without_flow_share_a_key() {
        let frames = [Frame::ethernet(&[8, 6, 0]), Frame::ethernet(&[0, 0])];
        assert_eq!(key_hashes(ShardKey::Flow, &frames), [0, 0]);
    }
}
