//! Exits of a walk: sinks, rings to other spaces, replicas elsewhere, and failing filters.

use super::{Ran, Walk, add};
use crate::copies::last_of;
use crate::failure::PathFailure;
use crate::space::node::{NodeId, Part};
use crate::space::turn::Claims;
use filter::{Amount, Batch, LaneMask, lanes};
use std::panic::{AssertUnwindSafe, catch_unwind};

impl<'a> Walk<'_, 'a> {
    pub(super) fn sink(&mut self, at: NodeId, batch: &mut Batch<'a>) -> Ran<'a> {
        let came = batch.live();
        let amount = batch.amount(came);
        let now = self.now;
        let node = &mut self.nodes[at];
        let Part::Sink(part) = &mut node.part else { return Ran::Ended };
        match catch_unwind(AssertUnwindSafe(|| part.sink.take(batch, now))) {
            Ok(Ok(())) => {
                add(&mut node.flow.sunk, amount);
                part.age.iter().for_each(|age| age.took(batch, came));
            }
            Ok(Err(failure)) => {
                add(&mut node.flow.failed, amount);
                let name = node.name.clone();
                self.turn.failure = Some(PathFailure::outside(name, failure));
            }
            Err(panic) => self.failed(at, Some(batch), came, &*panic),
        }
        Ran::Ended
    }

    /// Ends the lanes behind the number of blocks that was asked for.
    pub(super) fn cut_to_count(&mut self, at: NodeId, batch: &mut Batch<'a>) {
        let Some(left) = &self.turn.left else { return };
        let live = batch.live();
        let may = match &mut self.turn.claims {
            Claims::Free => left.claim(live.count_ones()),
            Claims::Noted(noted) => {
                let may = left.claim(live.count_ones());
                noted.push(may);
                may
            }
            Claims::Scripted(rest) => {
                let may = live.count_ones().min(*rest);
                *rest -= may;
                may
            }
        };
        let taken: LaneMask = lanes(live).take(may as usize).map(|l| 1 << l).sum();
        if taken != live {
            let beyond = batch.amount(live & !taken);
            add(&mut self.nodes[at].flow.beyond_count, beyond);
            batch.keep(taken);
        }
    }

    pub(super) fn export(&mut self, at: NodeId, batch: &mut Batch<'a>) -> Ran<'a> {
        let node = &mut self.nodes[at];
        let Part::Export(export) = &mut node.part else { return Ran::Ended };
        let came = batch.live();
        let amount = batch.amount(came);
        let before = export.counted();
        export.step = self.turn.step;
        match export.put(batch, self.memory, self.turn.last) {
            Ok(()) => add(&mut node.flow.routed, amount),
            Err(failure) => {
                // What of the batch was put before is in the ring, which accounts for it.
                let after = export.counted();
                let put = Amount {
                    blocks: after.blocks + after.dropped - before.blocks - before.dropped,
                    bytes: after.bytes + after.dropped_bytes - before.bytes - before.dropped_bytes,
                };
                add(&mut node.flow.routed, put);
                let Amount { blocks, bytes } = amount;
                let lost = Amount { blocks: blocks - put.blocks, bytes: bytes - put.bytes };
                add(&mut node.flow.failed, lost);
                let name = node.name.clone();
                self.turn.failure = Some(PathFailure::ring(name, failure));
            }
        }
        Ran::Ended
    }

    /// Shares a batch out among the copies of what follows: those elsewhere first, so that they
    /// work on it while the one here does.
    pub(super) fn deal(&mut self, at: NodeId, batch: &mut Batch<'a>) -> Ran<'a> {
        let (before, here) = self.nodes.split_at_mut(at);
        let Some((node, behind)) = here.split_first_mut() else { return Ran::Ended };
        let Part::Deal(deal) = &mut node.part else { return Ran::Ended };
        let arcs = &node.arcs;
        let mut load = |copy: usize| {
            let to = arcs.get(copy).map_or(at, |arc| arc.to);
            let far = if to < at { before.get_mut(to) } else { behind.get_mut(to - at - 1) };
            match far.map(|node| &mut node.part) {
                Some(Part::Export(export)) => export.waiting(),
                _ => 0,
            }
        };
        let (burst, hands) = deal.deal(batch, &mut load);
        let here = deal.here();
        self.leave(at, batch, batch.live());
        self.turn.order = last_of(burst);
        if let [(copy, mask)] = hands.as_slice() {
            self.along_alone((at, *copy), *mask, batch, 0);
            return Ran::Ended;
        }
        let (own, others): (Vec<_>, Vec<_>) = hands.into_iter().partition(|(c, _)| *c == here);
        for (copy, mask) in others.into_iter().chain(own) {
            let mut part = batch.duplicate();
            self.along_alone((at, copy), mask, &mut part, 0);
        }
        Ran::Ended
    }

    pub(super) fn failed(
        &mut self,
        at: NodeId,
        batch: Option<&mut Batch<'a>>,
        came: LaneMask,
        panic: &(dyn std::any::Any + Send),
    ) {
        let block = batch.map(|batch| {
            let lost = batch.amount(came);
            add(&mut self.nodes[at].flow.failed, lost);
            batch.block(batch.at())
        });
        let name = self.nodes[at].name.clone();
        self.turn.failure = Some(PathFailure::panicked(name, panic, block.as_ref()));
    }
}
