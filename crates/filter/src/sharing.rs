//! Which of several copies of a filter gets a block, so that no session is split.
//!
//! In: a block. Out: a number that is the same for all blocks of a session, both ways, on every
//! machine. [Par §IV-A], [Th §5.4; CONTRACT 16]
//!
//! Where the filter itself tells sessions apart, that is a hash of addresses and ports, or of the
//! addresses alone if it also joins fragments, which have no ports. Behind a filter that has told
//! sessions apart it is the number of the session. What belongs to no session may go anywhere: all
//! of it has one number.

use crate::contract::Block;
use crate::layers;
use wire::flow::Flow;

/// What blocks of one session have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// The two addresses.
    Addresses,
    /// The two addresses and ports, and the protocol.
    Flow,
    /// The number that a filter before gave them.
    Session,
}

/// Everybody shares out alike.
const SEED: u64 = 0;

impl Sharing {
    /// The number that blocks of one session have in common.
    #[inline]
    #[must_use]
    pub fn number(self, block: &Block<'_>) -> u64 {
        match self {
            Self::Session => spread(block.context.session.into()),
            Self::Flow => flow(block).map_or(0, |flow| flow.hash(SEED)),
            Self::Addresses => {
                flow(block).map_or(0, |flow| Flow { ports: None, protocol: 0, ..flow }.hash(SEED))
            }
        }
    }
}

#[inline]
fn flow(block: &Block<'_>) -> Option<Flow> {
    let mut block = *block;
    match layers::plain_segment(&mut block) {
        Some(segment) => Some(segment.flow),
        None => layers::any_flow(&mut block).ok(),
    }
}

/// Numbers that follow each other, spread over all bits.
const fn spread(number: u64) -> u64 {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Arena, Frame, Space};

    fn numbers(by: Sharing, frames: &[Frame]) -> Vec<u64> {
        let arena = Arena::new(64);
        let space = Space::new(&arena);
        let batch = space.batch(frames);
        batch.blocks().map(|(_, block)| by.number(&block)).collect()
    }

    #[test]
    fn n2_both_ways_of_a_flow_have_one_number() {
        for by in [Sharing::Flow, Sharing::Addresses] {
            let frames = |swapped: bool| -> Vec<Frame> {
                let frame = |port: u16| match port % 2 {
                    0 => Frame::udp(port, 53, b"x"),
                    _ => Frame::tcp(port, 80, b"x"),
                };
                let back = |port: u16| match port % 2 {
                    0 => Frame::udp(53, port, b"x").swapped(),
                    _ => Frame::tcp(80, port, b"x").swapped(),
                };
                (1..60).map(|port| if swapped { back(port) } else { frame(port) }).collect()
            };
            let there = numbers(by, &frames(false));
            assert_eq!(there, numbers(by, &frames(true)), "{by:?}");
            let mut different = there;
            different.sort_unstable();
            different.dedup();
            assert_eq!(different.len(), if by == Sharing::Flow { 59 } else { 1 }, "{by:?}");
        }
    }

    #[test]
    fn what_belongs_to_no_flow_goes_one_way() {
        let frames = [Frame::ethernet(&[8, 6, 0]), Frame::ethernet(&[0, 0])];
        assert_eq!(numbers(Sharing::Flow, &frames), [0, 0]);
    }
}
