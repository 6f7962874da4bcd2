//! Reassembly of IP datagrams. The state is plain data and can move (CONTRACT 15).
//!
//! Input: fragments. Output: complete datagrams as new frames. The number of datagrams, the number
//! of fragments per datagram and the time are limited; IP limits the size. Intervals are computed
//! from block timestamps, so they do not depend on batching. The path's clock is used only to
//! expire datagrams for which no more fragments arrive.
//!
//! A datagram that cannot be completed (overlaps, contradictions, too many fragments) is remembered
//! until it expires, so that its remaining fragments do not begin a new datagram.

use super::coverage::Coverage;
use super::fragment::IpFragment;
use super::overlap::{FragmentPolicy, FragmentRange};
use super::{
    DATAGRAM_TOO_BIG, DUPLICATE, EVICTED_DATAGRAMS, FRAGMENTS_MISSING, JOINED_DATAGRAMS, OVERLAP,
    OVERLAPPING_DATAGRAMS, TOO_MANY_FRAGMENTS,
};
use crate::prelude::*;
use std::ops::Range;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Maximum number of fragments of a datagram. It allows 65,535 bytes in fragments of 64 bytes.
pub(super) const FRAGMENTS_MAX: u32 = 1024;

/// Minimum interval between scans for expired datagrams, in ns.
const EXPIRY_SCAN_INTERVAL: Time = 1_000_000_000;

/// Limits on incomplete datagrams.
#[derive(Clone, Copy, Debug)]
pub(super) struct DatagramLimits {
    /// Maximum number of incomplete datagrams.
    pub(super) datagrams_max: usize,
    /// Timeout of an incomplete datagram, in ns.
    pub(super) timeout: Time,
}

/// The table of incomplete datagrams.
#[derive(Debug)]
pub(super) struct DatagramTable {
    table: Sessions<Datagram>,
    limits: DatagramLimits,
    policy: FragmentPolicy,
}

/// The state of an incomplete datagram. The table's private session uses only the field `seed`.
#[derive(FromBytes, IntoBytes, Immutable, Default, Debug)]
#[repr(C)]
pub(super) struct Datagram {
    /// Hash seed of the datagrams' keys; used in the private session only.
    seed: u64,
    /// Latest timestamp at which the datagram accepts another fragment.
    accept_until: Time,
    /// Time on the path's clock at which the datagram expires.
    deadline: Time,
    /// Held fragments, with [`FragmentKey`] as the key.
    held: HeldList,
    /// Length of the datagram's data in bytes; 0 until the last fragment arrives.
    length: u32,
    /// Number of fragments received, duplicates included.
    arrived_fragments: u32,
    /// Nonzero if the datagram cannot be completed: the number that stands for the reason
    /// ([`Reason::to_code`]).
    failure_reason: u8,
    /// Nonzero if any fragments of the datagram overlapped.
    has_overlaps: u8,
    spare: [u8; 2],
    covered: Coverage,
}

impl Session for Datagram {
    fn held_lists(&mut self) -> Vec<&mut HeldList> {
        vec![&mut self.held]
    }
}

/// The relation of a newly arrived fragment to the earlier fragments of its datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OverlapKind {
    /// The fragment overlaps no fragment that arrived earlier.
    Disjoint,
    /// The fragment overlaps an earlier fragment, or both are the last fragment of the datagram.
    Overlapping,
    /// The fragment and the earlier fragments disagree about the end of the datagram.
    Contradictory,
}

impl DatagramTable {
    /// Creates an empty table. `seed` is the seed of the hash from which the datagrams' keys are
    /// computed.
    pub(super) fn new(limits: DatagramLimits, policy: FragmentPolicy, seed: u64) -> Self {
        let mut table = Sessions::<Datagram>::default();
        table.get_or_create(PRIVATE_SESSION_KEY).seed = seed;
        Self { table, limits, policy }
    }

    /// Returns the table as the state of the filter, so that it can be saved and moved.
    pub(super) fn state(&mut self) -> &mut dyn FilterState {
        &mut self.table
    }

    /// Handles a completely captured fragment. If it completes its datagram, returns the datagram,
    /// which replaces the fragment in the output. Otherwise holds, drops or consumes the fragment.
    pub(super) fn reassemble_fragment<'a>(
        &mut self,
        piece: &IpFragment,
        block: Block<'a>,
        cx: &mut StreamContext<'_, 'a>,
    ) -> FragmentResult<'a> {
        let key = piece.datagram_key(
            &block,
            self.table.get(PRIVATE_SESSION_KEY).map_or(0, |shared| shared.seed),
        );
        if piece.head.would_exceed_packet_length(piece.end()) {
            cx.drop(&block, DATAGRAM_TOO_BIG);
            return FragmentResult::Absorbed;
        }
        self.ensure_datagram(key, block.context.time, cx);
        let datagram = self.table.get_or_create(key);
        if let Some(reason) = Reason::from_code(datagram.failure_reason) {
            cx.drop(&block, reason);
            return FragmentResult::Absorbed;
        }
        if datagram.arrived_fragments >= FRAGMENTS_MAX {
            return self.abandon_datagram(key, TOO_MANY_FRAGMENTS, &block, cx);
        }
        let fit = datagram.overlap_with_earlier(piece);
        let place = FragmentKey::new(datagram.arrived_fragments, piece);
        if fit != OverlapKind::Disjoint {
            let alike: Vec<Block<'_>> = cx
                .held_blocks(&datagram.held)
                .filter(|(at, other)| place.covers_same_bytes(&block, *at, other))
                .map(|(_, other)| other)
                .collect();
            let mut alike = alike.into_iter().filter_map(|other| cx.complete_block(other));
            if alike.any(|other| other.bytes() == block.bytes()) {
                // The search for a duplicate costs time, so duplicates count towards the limit.
                datagram.arrived_fragments = datagram.arrived_fragments.saturating_add(1);
                cx.drop(&block, DUPLICATE);
                return FragmentResult::Absorbed;
            }
            if piece.is_ipv6() || must_abandon_datagram(self.policy, fit) {
                return self.abandon_datagram(key, OVERLAP, &block, cx);
            }
            cx.count(OVERLAPPING_DATAGRAMS, u64::from(datagram.has_overlaps == 0));
            datagram.has_overlaps = 1;
        }
        datagram.add_fragment(piece, self.policy);
        if datagram.is_complete() {
            return self.complete_datagram(key, place, &block, cx);
        }
        if !cx.hold(&mut datagram.held, &block, place.0) {
            self.drop_held_fragments(key, FRAGMENTS_MISSING, cx);
        }
        FragmentResult::Absorbed
    }

    /// Drops the datagrams that have expired.
    pub(super) fn tick(&mut self, cx: &mut StreamContext<'_, '_>) {
        let mut next = None;
        for key in self.table.keys().into_iter().filter(|key| *key != PRIVATE_SESSION_KEY) {
            let Some(deadline) = self.table.get(key).map(|datagram| datagram.deadline) else {
                continue;
            };
            if deadline <= cx.now {
                self.remove_datagram(key, cx);
            } else {
                next = Some(next.map_or(deadline, |sooner: Time| sooner.min(deadline)));
            }
        }
        if let Some(next) = next {
            cx.wake_at(next.max(cx.now.saturating_add(EXPIRY_SCAN_INTERVAL)));
        }
    }

    /// Drops all datagrams, because no more fragments will arrive.
    pub(super) fn finish(&mut self, cx: &mut StreamContext<'_, '_>) {
        for key in self.table.keys().into_iter().filter(|key| *key != PRIVATE_SESSION_KEY) {
            self.remove_datagram(key, cx);
        }
    }

    /// Ensures that the table contains the datagram with this key, and requests a tick at its
    /// deadline. Creates the datagram if it is not in the table. Replaces the datagram by an empty
    /// one if it accepts no more fragments at `time`. If the table is full, first evicts another
    /// datagram.
    fn ensure_datagram(&mut self, key: u64, time: Time, cx: &mut StreamContext<'_, '_>) {
        match self.table.get(key) {
            Some(known) if time <= known.accept_until => return cx.wake_at(known.deadline),
            Some(_) => self.remove_datagram(key, cx),
            // `len` includes the private session.
            None if self.table.len() > self.limits.datagrams_max => {
                if let Some((_, mut oldest)) = self.table.evict() {
                    cx.count(EVICTED_DATAGRAMS, u64::from(!oldest.held.is_empty()));
                    oldest.drop_all_fragments(FRAGMENTS_MISSING, cx);
                }
            }
            None => {}
        }
        let begun = self.table.get_or_create(key);
        begun.accept_until = time.saturating_add(self.limits.timeout);
        begun.deadline = cx.now.saturating_add(self.limits.timeout);
        cx.wake_at(begun.deadline);
    }

    /// Removes a datagram, and drops its held fragments for the reason [`FRAGMENTS_MISSING`].
    fn remove_datagram(&mut self, key: u64, cx: &mut StreamContext<'_, '_>) {
        if let Some(mut ended) = self.table.remove(key) {
            ended.drop_all_fragments(FRAGMENTS_MISSING, cx);
        }
    }

    /// Gives up a datagram: drops `block` and all held fragments for this reason, and records the
    /// reason, so that later fragments of the datagram are dropped too.
    fn abandon_datagram<'a>(
        &mut self,
        key: u64,
        reason: Reason,
        block: &Block<'a>,
        cx: &mut StreamContext<'_, 'a>,
    ) -> FragmentResult<'a> {
        cx.drop(block, reason);
        self.drop_held_fragments(key, reason, cx);
        FragmentResult::Absorbed
    }

    fn drop_held_fragments(&mut self, key: u64, reason: Reason, cx: &mut StreamContext<'_, '_>) {
        let datagram = self.table.get_or_create(key);
        datagram.drop_all_fragments(reason, cx);
        datagram.failure_reason = reason.to_code();
    }

    /// Completes a datagram with the fragment in `block`, which arrived last. If bytes of any
    /// fragment have been overwritten, or if the packet would be too long, drops all fragments of
    /// the datagram instead.
    fn complete_datagram<'a>(
        &mut self,
        key: u64,
        place: FragmentKey,
        block: &Block<'a>,
        cx: &mut StreamContext<'_, 'a>,
    ) -> FragmentResult<'a> {
        let Some(mut datagram) = self.table.remove(key) else { return FragmentResult::Absorbed };
        let mut parts: Vec<(u32, Block<'a>)> = cx
            .held_blocks(&datagram.held)
            .map(|(at, held)| (FragmentKey(at).offset(), held))
            .collect();
        for (_, part) in &mut parts {
            *part = cx.complete_block(*part).unwrap_or(*part);
        }
        parts.push((place.offset(), *block));
        if parts.iter().any(|(_, part)| !part.has_all_bytes()) {
            cx.drop(block, FRAGMENTS_MISSING);
            datagram.drop_all_fragments(FRAGMENTS_MISSING, cx);
            return FragmentResult::Absorbed;
        }
        let joined = build_datagram(&parts, datagram.length, self.policy, block.context.time, cx);
        if joined.is_none() {
            cx.drop(block, DATAGRAM_TOO_BIG);
            datagram.drop_all_fragments(DATAGRAM_TOO_BIG, cx);
            return FragmentResult::Absorbed;
        }
        while !datagram.held.is_empty() {
            cx.consume_merged_block(&mut datagram.held, &block.marks);
        }
        match joined.flatten() {
            Some(whole) => {
                cx.count(JOINED_DATAGRAMS, 1);
                let marks = whole.marks.with_section_ticket(block.marks.section_ticket());
                FragmentResult::Complete(Block { marks, ..whole })
            }
            None => {
                cx.consume(block);
                FragmentResult::Absorbed
            }
        }
    }
}

/// Returns true if the policy requires that a datagram be given up. `fit` is the relation of a new
/// fragment to the earlier ones. The policy `drop` gives up after overlaps and contradictory ends,
/// the policy `linux` only after contradictory ends.
fn must_abandon_datagram(policy: FragmentPolicy, fit: OverlapKind) -> bool {
    match policy {
        FragmentPolicy::Drop => fit != OverlapKind::Disjoint,
        FragmentPolicy::Linux => fit == OverlapKind::Contradictory,
        FragmentPolicy::First
        | FragmentPolicy::Last
        | FragmentPolicy::Bsd
        | FragmentPolicy::Windows
        | FragmentPolicy::Solaris => false,
    }
}

/// The result of handling a fragment.
#[derive(Debug)]
pub(super) enum FragmentResult<'a> {
    /// The fragment was held, dropped or consumed.
    Absorbed,
    /// The fragment completed this datagram, which is a new frame that has not been counted yet.
    Complete(Block<'a>),
}

/// Builds the frame of a complete datagram from the headers of its first fragment and the data of
/// all fragments. Returns `None` if the data is too long for these headers. If memory runs out,
/// counts the loss and returns `Some(None)`.
fn build_datagram<'a>(
    parts: &[(u32, Block<'a>)],
    end: u32,
    policy: FragmentPolicy,
    now: Time,
    cx: &mut StreamContext<'_, 'a>,
) -> Option<Option<Block<'a>>> {
    let ends = parts.iter().map(|(offset, part)| (*offset, *offset + part.length()));
    let segments = policy.resolve_overlaps(ends);
    let (_, first) = segments.first().and_then(|segment| parts.get(segment.fragment))?;
    let head = IpFragment::find(first, policy)?.ok()?.head;
    if head.would_exceed_packet_length(end) {
        return None;
    }
    let before = first.frame.get(..head.end())?;
    let context = BlockMetadata { time: now, ..first.context };
    let made = cx.append_block(before.len() + end as usize, Class::YES, context, |room| {
        let Some((front, data)) = room.split_at_mut_checked(before.len()) else { return 0 };
        front.copy_from_slice(before);
        head.write_unfragmented_headers(front, end);
        segments.iter().for_each(|segment| copy_segment(data, segment, parts));
        room.len()
    });
    Some(made.map(|made| {
        let length = made.length();
        Block { marks: Marks::frame(first.marks.link, length, length), ..made }
    }))
}

/// Copies the bytes in the range `segment` from the fragment in `parts` that supplies them to
/// `data`, the data of the datagram. Ignores bytes after the end of `data`.
fn copy_segment(data: &mut [u8], segment: &FragmentRange, parts: &[(u32, Block<'_>)]) {
    let Some((offset, part)) = parts.get(segment.fragment) else { return };
    let (from, to) = (segment.start as usize, (segment.end as usize).min(data.len()));
    let taken = from - *offset as usize..to.max(from) - *offset as usize;
    if let (Some(room), Some(bytes)) = (data.get_mut(from..to), part.bytes().get(taken)) {
        room.copy_from_slice(bytes);
    }
}

impl Datagram {
    /// Returns the relation of a fragment to the fragments that arrived earlier.
    fn overlap_with_earlier(&self, piece: &IpFragment) -> OverlapKind {
        let ends = self.length != 0;
        let against = match piece.is_last {
            true => {
                (ends && piece.end() != self.length)
                    || self.covered.covers_any_from(piece.end() / 8)
            }
            false => ends && piece.end() > self.length,
        };
        match against {
            true => OverlapKind::Contradictory,
            false if self.covered.covers_any(piece.units()) || (piece.is_last && ends) => {
                OverlapKind::Overlapping
            }
            false => OverlapKind::Disjoint,
        }
    }

    fn add_fragment(&mut self, piece: &IpFragment, policy: FragmentPolicy) {
        self.arrived_fragments = self.arrived_fragments.saturating_add(1);
        self.covered.add(piece.units());
        if piece.is_last && (self.length == 0 || policy == FragmentPolicy::Last) {
            self.length = piece.end();
        }
    }

    /// Returns true if all bytes of the datagram have arrived: every complete unit of 8 bytes, and
    /// the last fragment, which contains the rest.
    fn is_complete(&self) -> bool {
        self.length != 0 && self.covered.covers_all_before(self.length / 8)
    }

    fn drop_all_fragments(&mut self, reason: Reason, cx: &mut StreamContext<'_, '_>) {
        while !self.held.is_empty() {
            cx.drop_front_block(&mut self.held, reason);
        }
    }
}

/// Key of a held fragment. It combines the fragment's number in order of arrival, the flag of the
/// last fragment and the offset. A list sorted by this key is in order of arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct FragmentKey(u32);

impl FragmentKey {
    const LAST_FRAGMENT_FLAG: u32 = 1 << 13;

    fn new(arrived: u32, piece: &IpFragment) -> Self {
        let last = if piece.is_last { Self::LAST_FRAGMENT_FLAG } else { 0 };
        Self((arrived << 16) | last | (piece.offset / 8))
    }

    const fn offset(self) -> u32 {
        (self.0 & (Self::LAST_FRAGMENT_FLAG - 1)) * 8
    }

    /// Returns true if two fragments cover the same bytes of the datagram. The first fragment is
    /// `block` with the key `self`, the second one is `other` with the key `at`.
    const fn covers_same_bytes(self, block: &Block<'_>, at: u32, other: &Block<'_>) -> bool {
        self.0 & 0xffff == at & 0xffff && block.pointer.length() == other.pointer.length()
    }
}

impl IpFragment {
    /// Returns the units of 8 bytes that the fragment covers entirely.
    const fn units(&self) -> Range<u32> {
        self.offset / 8..self.end() / 8
    }
}
