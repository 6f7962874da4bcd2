//! Dispatch of bursts to replicas, one burst after the other, by load or by session. [Th §5.4],
//! [Par §IV-A]
//!
//! - By **load**: a burst goes as a whole to the copy that has least to do. The copy in the space
//!   that shares out has always nothing to do but this, and works on a burst itself when all others
//!   have enough for the time that it takes.
//! - By **session**: what belongs together goes to one copy, both ways, for ever. A table has the
//!   copy of every class of sessions ([`filter::sharing`]); one that was never met goes to the copy
//!   that got least until then, so that big sessions do not all meet on one (RSS++ moves them
//!   later; a session with private state stays).

use super::{Board, after};
use filter::sharing::Sharing;
use filter::{Batch, LaneMask, lanes};
use std::sync::Arc;

/// Blocks queued at a replica in another space at which it counts as busy: four batches, so that it
/// goes on while the dispatching space works on one itself.
const ENOUGH: usize = 4 * filter::LANES;
/// Number of session classes.
const CLASSES: usize = 4096;
/// No copy yet; there are fewer (`pipeline::plan::COPIES_MAX`).
const NOBODY: u8 = u8::MAX;

/// Dispatch policy.
#[derive(Debug)]
enum By {
    Load,
    Session { what: Sharing, table: Box<[u8]>, dealt: Vec<u64> },
}

/// A dispatcher of bursts to replicas.
#[derive(Debug)]
pub struct Deal {
    by: By,
    /// Board shared by dispatcher, replicas and join.
    board: Arc<Board>,
    /// The number of the next burst.
    next: u64,
    /// The copy in this space.
    here: usize,
}

impl Deal {
    /// Shares out by session, or by load.
    pub fn new(sharing: Option<Sharing>, board: Arc<Board>, here: usize) -> Self {
        let copies = board.copies();
        let by = match sharing {
            None => By::Load,
            Some(what) => {
                By::Session { what, table: vec![NOBODY; CLASSES].into(), dealt: vec![0; copies] }
            }
        };
        Self { by, board, next: 0, here }
    }

    /// Gives a batch its numbers, and says which lanes go to which copy. `load` answers how many
    /// blocks wait before a copy.
    pub fn deal(
        &mut self,
        batch: &mut Batch<'_>,
        load: impl FnMut(usize) -> usize,
    ) -> (u64, Vec<(usize, LaneMask)>) {
        let burst = self.next;
        self.next = after(burst);
        batch.number_lanes(super::first_of(burst));
        let hands = match &mut self.by {
            By::Load => vec![(least(self.board.copies(), self.here, load), batch.live())],
            By::Session { what, table, dealt } => by_session(*what, table, dealt, batch),
        };
        self.board.share(burst, hands.iter().map(|(copy, _)| *copy));
        (burst, hands)
    }

    /// The copy in this space.
    pub const fn here(&self) -> usize {
        self.here
    }

    /// Returns the board shared by dispatcher, replicas and join.
    pub fn board(&self) -> &Board {
        &self.board
    }

    /// Says that nothing more is shared out, and what the newest time of a block is.
    pub fn close(&self, clock: u64) {
        self.board.close(clock);
    }

    /// Says that nobody need wait for the copy in this space any more.
    pub fn end(&self) {
        self.board.finish(self.here, u64::MAX);
    }

    /// Says that the copy in this space has finished all that it got.
    pub fn finish(&self) {
        self.board.finish(self.here, self.board.given(self.here));
    }
}

impl Drop for Deal {
    fn drop(&mut self) {
        if !self.board.is_closed() {
            self.board.close(0);
        }
        self.end();
    }
}

/// The copy with least to do: another one, as long as that has not enough.
fn least(copies: usize, here: usize, mut load: impl FnMut(usize) -> usize) -> usize {
    let others = (0..copies).filter(|copy| *copy != here).map(|copy| (load(copy), copy));
    match others.min() {
        Some((waiting, copy)) if waiting < ENOUGH => copy,
        _ => here,
    }
}

fn by_session(
    what: Sharing,
    table: &mut [u8],
    dealt: &mut [u64],
    batch: &Batch<'_>,
) -> Vec<(usize, LaneMask)> {
    let mut masks = vec![0 as LaneMask; dealt.len()];
    for l in lanes(batch.live()) {
        let class = what.number(&batch.block(l)) as usize % table.len();
        let copy = match table[class] {
            NOBODY => {
                let idle = (0..dealt.len()).min_by_key(|copy| dealt[*copy]).unwrap_or(0);
                table[class] = idle as u8;
                idle
            }
            copy => copy.into(),
        };
        dealt[copy] += 1;
        masks[copy] |= 1 << l;
    }
    masks.into_iter().enumerate().filter(|(_, mask)| *mask != 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n3_who_has_least_to_do_gets_the_next_burst() {
        let waits = |loads: [usize; 3]| least(3, 0, |copy| loads[copy]);
        assert_eq!(waits([0, 0, 0]), 1, "another one, before we are busy ourselves");
        assert_eq!(waits([0, 64, 0]), 2);
        assert_eq!(waits([0, ENOUGH, ENOUGH - 1]), 2);
        assert_eq!(waits([0, ENOUGH, 4096]), 0, "all others have enough");
        assert_eq!(least(1, 0, |_| 0), 0);
    }

    #[test]
    fn n3_a_new_session_goes_to_the_copy_that_got_least_and_stays() {
        use filter::testing::{Arena, Frame, Space};
        let (mut table, mut dealt) = ([NOBODY; CLASSES], [0; 3]);
        let mut hands = |ports: &[u16]| {
            let frames: Vec<_> = ports.iter().map(|port| Frame::udp(*port, 53, b"x")).collect();
            let arena = Arena::new(frames.len());
            let space = Space::new(&arena);
            let batch = space.batch(&frames);
            let hands = by_session(Sharing::Flow, &mut table, &mut dealt, &batch);
            let copy = |lane: usize| hands.iter().find(|(_, mask)| mask & 1 << lane != 0);
            (0..ports.len()).map(|lane| copy(lane).expect("somebody").0).collect::<Vec<_>>()
        };
        // One heavy session, then light ones: they keep away from who has the heavy one.
        let heavy = hands(&[7; 40])[0];
        let light = hands(&(100..120).collect::<Vec<_>>());
        assert!(light.iter().all(|copy| *copy != heavy), "{heavy}: {light:?}");
        assert_eq!(hands(&[7; 40]), [heavy; 40], "a session stays where it is");
        assert_eq!(hands(&(100..120).collect::<Vec<_>>()), light);
        assert_eq!(dealt.iter().sum::<u64>(), 120);
        assert!(dealt[heavy] == 80 && dealt.iter().all(|got| *got >= 20), "{dealt:?}");
    }
}
