//! Memory that a writer holds until its readers have passed it: segments of pools, and entries of
//! rings that this process reads itself. [SL §5.3.3] An output *follows* an input when it writes,
//! as pointers, blocks that the caller has peeked from the input (`Output::follow`).
//!
//! Invariants, cited here and in `output`:
//! - F1 An entry is published only after a hold on its bytes has been recorded here, with the
//!   position after the last entry that needs it: a lease on the segment (M4 of `pool`), or a claim
//!   on an entry of a ring that this process reads.
//! - F2 A hold is dropped only when every reader that has not left, died, or been evicted has
//!   published a cursor at or beyond that position (Acquire; *block released* of `cursor`); or, on
//!   a ring that overwrites, when it has been announced to readers that the entry may be
//!   overwritten (*writing begins*), which they check after their copy.
//! - F3 A dropped writer leaves its holds to [`sweep_held_segments`], which keeps them until F2
//!   permits dropping them.
//! - F4 A reader that violates the protocol reads bytes written later, in pools that it may read
//!   anyway, and so damages only its own data.
//! - F5 A ring that this process reads is released only up to the oldest entry under a claim
//!   ([`FollowedInputState`]). Thus the ring's writer holds the bytes for this process (F1, in the
//!   writer's process), and this process holds them for its readers.

use abi::RichPointer;
use abi::ring::{STATE_CLOSED, reader, writer};
use buffer::Fault;
use buffer::atomic::{AtomicU64, Ordering, load_acquire};
use buffer::cursor::RingMemory;
use buffer::doorbells::{DepartedReaders, Doorbells};
use buffer::pool::Lease;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The memory that one writer holds for its readers: segments of pools, and claims on entries of
/// input rings.
#[derive(Debug)]
pub(super) struct HeldSegments {
    shared: Arc<SharedHeldSegments>,
    upstream: Vec<Upstream>,
}

/// The segments that one writer holds, and the state that shows which of them readers still need.
/// This state is shared so that another writer of the process that is short of memory can release
/// segments that are no longer needed.
#[derive(Debug)]
struct SharedHeldSegments {
    segments: Mutex<VecDeque<SegmentHold>>,
    store: Arc<RingMemory>,
    departed: Arc<DepartedReaders>,
}

#[derive(Debug)]
struct SegmentHold {
    lease: Lease,
    until: u64,
}

impl HeldSegments {
    pub(super) fn new(store: &Arc<RingMemory>, departed: &Arc<DepartedReaders>) -> Self {
        let segments = Mutex::new(VecDeque::new());
        let shared = Arc::new(SharedHeldSegments {
            segments,
            store: store.clone(),
            departed: departed.clone(),
        });
        let mut all = lock(&HELD_SEGMENTS);
        all.live.push(Arc::downgrade(&shared));
        Self { shared, upstream: Vec::new() }
    }

    /// Holds the segment of the next pointer to be published, until readers have passed position
    /// `until`. The segment becomes the last one in the list. The hold on the previous last segment
    /// is extended to `until`. Calls `lease` only if the segment is not held yet. Returns a lease
    /// on the segment.
    pub(super) fn hold_segment(
        &self,
        pointer: RichPointer,
        until: u64,
        lease: impl FnOnce() -> Result<Lease, Fault>,
    ) -> Result<Lease, Fault> {
        let mut segments = self.lock();
        if let Some(last) = segments.back_mut() {
            last.until = last.until.max(until);
        }
        let covers = |kept: &SegmentHold| kept.lease.keeps_in_place(pointer);
        let kept = segments.iter().rposition(covers).and_then(|at| segments.remove(at));
        let kept = match kept {
            Some(kept) => SegmentHold { until: kept.until.max(until), ..kept },
            None => SegmentHold { lease: lease()?, until },
        };
        let lease = kept.lease.clone();
        segments.push_back(kept);
        Ok(lease)
    }

    /// Extends the hold on the last segment in the list until readers have passed position `until`.
    pub(super) fn extend_last_hold(&self, until: u64) {
        if let Some(last) = self.lock().back_mut() {
            last.until = last.until.max(until);
        }
    }

    /// Releases the holds that end at or before position `passed`. All readers have passed this
    /// position (F2). Returns true if the last segment in the list is still held.
    pub(super) fn release_passed(&mut self, passed: u64) -> bool {
        self.upstream.iter_mut().for_each(|upstream| upstream.release_passed_claims(passed));
        let mut segments = self.lock();
        let last = segments.back().map(|last| last.until);
        segments.retain(|kept| kept.until > passed);
        last.is_some_and(|until| until > passed)
    }

    /// Returns the lowest position that releases a hold once readers have passed it. Returns `None`
    /// if nothing is held.
    pub(super) fn first_release_position(&self) -> Option<u64> {
        let ends = self.upstream.iter().filter_map(|up| up.claims.front().map(|claim| claim.until));
        self.lock().iter().map(|kept| kept.until).chain(ends).min()
    }

    /// Returns the number of held segments and claims.
    pub(super) fn len(&self) -> usize {
        self.lock().len() + self.upstream.iter().map(|up| up.claims.len()).sum::<usize>()
    }

    /// Returns the position that readers must pass to release `eighths`/8 of the held segments.
    /// Returns 0 if fewer are held.
    pub(super) fn release_position(&self, eighths: usize) -> u64 {
        let segments = self.lock();
        segments.get(segments.len() * eighths / 8).map_or(0, |kept| kept.until)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<SegmentHold>> {
        lock(&self.shared.segments)
    }

    /// Searches for the address of `slice` in the blocks that callers have peeked from followed
    /// inputs. Returns the index of the input in `upstream` and a pointer to the bytes, or `None`
    /// if no peeked block contains them.
    pub(super) fn find_peeked(&self, slice: &[u8]) -> Option<(usize, RichPointer)> {
        let found = |(at, up): (usize, &Upstream)| up.keeper.peeked_pointer(slice).map(|p| (at, p));
        self.upstream.iter().enumerate().find_map(found)
    }

    /// Follows an input, unless this output already follows it. Returns the index of the input in
    /// `upstream`, or `None` if the input already has [`FOLLOWERS_MAX`] followers.
    pub(super) fn follow_input(&mut self, keeper: &Arc<FollowedInputState>) -> Option<usize> {
        let is_same = |upstream: &Upstream| Arc::ptr_eq(&upstream.keeper, keeper);
        if let Some(at) = self.upstream.iter().position(is_same) {
            return Some(at);
        }
        let slot = keeper.claim_slot()?;
        self.upstream.push(Upstream { keeper: keeper.clone(), slot, claims: VecDeque::new() });
        Some(self.upstream.len() - 1)
    }

    /// Claims the ring entry that was peeked from the input with index `upstream`. The entry is
    /// then held until readers have passed `until` (F5). Claims nothing and returns false if this
    /// output already holds so many entries of the input that it could block the input's writer.
    /// For frozen bytes, claims nothing and returns true.
    pub(super) fn claim_entry(
        &mut self,
        upstream: usize,
        pointer: RichPointer,
        until: u64,
    ) -> bool {
        self.upstream.get_mut(upstream).is_some_and(|upstream| upstream.add_claim(pointer, until))
    }
}

/// A ring that this process reads, with the claims on its entries.
#[derive(Debug)]
struct Upstream {
    keeper: Arc<FollowedInputState>,
    slot: usize,
    claims: VecDeque<Claim>,
}

/// A claim on a run of adjacent ring entries, until readers have passed a position.
#[derive(Debug)]
struct Claim {
    first: u64,
    pointer: RichPointer,
    until: u64,
}

/// Maximum number of adjacent ring entries that one claim covers.
const CLAIM_ENTRIES_MAX: u64 = 32;

impl Upstream {
    fn add_claim(&mut self, pointer: RichPointer, until: u64) -> bool {
        if self.keeper.is_frozen.load(Ordering::Relaxed) {
            return true;
        }
        let position = self.keeper.position.load(Ordering::Relaxed);
        if let Some(oldest) = self.claims.front() {
            let bytes = pointer.place.position().wrapping_sub(oldest.pointer.place.position());
            let far = oldest.pointer.dbuf() != pointer.dbuf()
                || bytes > self.keeper.held_bytes_max.load(Ordering::Relaxed);
            let entries = position - oldest.first;
            if entries > self.keeper.entries_max || far && entries >= CLAIM_ENTRIES_MAX {
                return false;
            }
        }
        match self.claims.back_mut() {
            Some(last) if position - last.first < CLAIM_ENTRIES_MAX => last.until = until,
            _ => self.claims.push_back(Claim { first: position, pointer, until }),
        }
        self.publish_oldest_needed();
        true
    }

    fn release_passed_claims(&mut self, passed: u64) {
        while self.claims.front().is_some_and(|claim| claim.until <= passed) {
            self.claims.pop_front();
        }
        self.publish_oldest_needed();
    }

    fn publish_oldest_needed(&self) {
        let needed = self.claims.front().map_or(u64::MAX, |claim| claim.first);
        if let Some(word) = self.keeper.oldest_needed.get(self.slot) {
            // SYNC POINT: claim released; pairs with the load in `FollowedInputState::needed`.
            word.store(needed, Ordering::Release);
        }
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.claims.clear();
        self.publish_oldest_needed();
        self.keeper.claimed.fetch_and(!(1 << self.slot), Ordering::Release);
    }
}

/// The state that an input shares with the outputs that follow it. An output follows an input of
/// the same process if it may forward blocks that were peeked from the input.
#[derive(Debug)]
pub(crate) struct FollowedInputState {
    /// Bit mask of the occupied elements of `oldest_needed`, one bit for each output that follows
    /// the input.
    claimed: AtomicU32,
    /// For each output that follows the input, the oldest ring position that the output needs;
    /// `u64::MAX` if none.
    oldest_needed: [AtomicU64; FOLLOWERS_MAX],
    /// Maximum number of entries of the input's ring that each of these outputs may hold.
    entries_max: u64,
    /// Ring position of the entry that was peeked last.
    position: AtomicU64,
    /// Pointer to the peeked bytes, as two words.
    words: [AtomicU64; 2],
    /// Address of the bytes of the peeked entry; 0 if the bytes are not peeked in place.
    address: AtomicUsize,
    /// Maximum number of bytes that one output may hold in the dbuf of the peeked entry.
    held_bytes_max: AtomicU64,
    /// True if the bytes of the peeked entry need no lease, as in frozen data and files.
    is_frozen: AtomicBool,
}

/// Maximum number of outputs that follow one input.
const FOLLOWERS_MAX: usize = 8;
/// Maximum number of bytes that may be held in a dbuf whose size is unknown.
const UNKNOWN_SIZE_HELD_MAX: u64 = 256 << 10;

impl FollowedInputState {
    pub(super) fn new(capacity: u64) -> Arc<Self> {
        Arc::new(Self {
            claimed: AtomicU32::new(0),
            oldest_needed: std::array::from_fn(|_| AtomicU64::new(u64::MAX)),
            entries_max: capacity / 2,
            position: AtomicU64::new(0),
            words: [AtomicU64::new(0), AtomicU64::new(0)],
            address: AtomicUsize::new(0),
            held_bytes_max: AtomicU64::new(UNKNOWN_SIZE_HELD_MAX),
            is_frozen: AtomicBool::new(false),
        })
    }

    /// Returns true if an output of this process may forward peeked blocks of this input.
    #[inline]
    pub(super) fn is_followed(&self) -> bool {
        self.claimed.load(Ordering::Relaxed) != 0
    }

    /// Returns the oldest ring position that an output of this process still needs, or `u64::MAX`
    /// if there is none.
    pub(super) fn oldest_needed_position(&self) -> u64 {
        // SYNC POINT: claim released; pairs with the store in `Upstream::publish`.
        let words = self.oldest_needed.iter().map(|word| word.load(Ordering::Acquire));
        words.min().unwrap_or(u64::MAX)
    }

    /// Publishes the entry that was peeked last, for the outputs that follow this input. `position`
    /// is the entry's position, and `pointer` names the peeked bytes. `address` is their address,
    /// or 0 if they are not peeked in place. `view` contains the length of the dbuf, and true if
    /// its bytes need no lease; it is `None` if the dbuf is not mapped.
    pub(super) fn set_peek(
        &self,
        position: u64,
        pointer: RichPointer,
        address: usize,
        view: Option<(usize, bool)>,
    ) {
        let [place, rest] = pointer.words();
        self.position.store(position, Ordering::Relaxed);
        self.words[0].store(place, Ordering::Relaxed);
        self.words[1].store(rest, Ordering::Relaxed);
        self.address.store(address, Ordering::Relaxed);
        let (length, frozen) = view.unwrap_or((0, false));
        let held_max = if length > 0 { length as u64 / 4 } else { UNKNOWN_SIZE_HELD_MAX };
        self.held_bytes_max.store(held_max, Ordering::Relaxed);
        self.is_frozen.store(frozen, Ordering::Relaxed);
    }

    /// Records that no bytes are peeked in place.
    #[inline]
    pub(super) fn clear_peek(&self) {
        self.address.store(0, Ordering::Relaxed);
    }

    /// Returns the pointer to a slice of the peeked block, or `None` if the slice is not part of
    /// that block. The slice borrows the input, so the peeked entry cannot have changed.
    fn peeked_pointer(&self, slice: &[u8]) -> Option<RichPointer> {
        let peeked = self.address.load(Ordering::Relaxed);
        let [place, rest] = self.words.each_ref().map(|word| word.load(Ordering::Relaxed));
        let whole = RichPointer::from_words([place, rest]);
        let from = slice.as_ptr().addr().checked_sub(peeked)?;
        if peeked == 0 || from.checked_add(slice.len())? > whole.length() as usize {
            return None;
        }
        Some(whole.subrange(u32::try_from(from).ok()?, u32::try_from(slice.len()).ok()?))
    }

    fn claim_slot(&self) -> Option<usize> {
        let is_free =
            |slot: &usize| self.claimed.fetch_or(1 << slot, Ordering::AcqRel) & 1 << slot == 0;
        (0..FOLLOWERS_MAX).find(is_free)
    }
}

/// The memory held by all writers of this process.
static HELD_SEGMENTS: Mutex<ProcessHeldSegments> =
    Mutex::new(ProcessHeldSegments { live: Vec::new(), dropped: Vec::new() });

#[derive(Debug)]
struct ProcessHeldSegments {
    live: Vec<Weak<SharedHeldSegments>>,
    /// Memory that dropped writers still hold for their readers (F3).
    dropped: Vec<DroppedWriterSegments>,
}

#[derive(Debug)]
struct DroppedWriterSegments {
    flights: HeldSegments,
    doorbells: Doorbells,
}

/// Releases memory that writers of this process, including dropped writers, hold for readers that
/// have passed the memory or have departed. Returns the number of dropped writers that still hold
/// memory. The library calls this function when an output is created, dropped, or short of memory.
/// A process in which none of these events occurs for a long time must call this function.
pub fn sweep_held_segments() -> usize {
    let mut all = lock(&HELD_SEGMENTS);
    all.live.retain(|live| {
        let live = live.upgrade();
        live.as_deref().inspect(|shared| shared.reap_all_but_last_segment()).is_some()
    });
    all.dropped.retain_mut(|left| {
        left.doorbells.mark_departed_readers();
        let passed = left.flights.shared.passed_position();
        left.flights.release_passed(passed);
        left.flights.first_release_position().is_some()
    });
    all.dropped.len()
}

/// Leaves the memory that a dropped writer still holds to [`sweep_held_segments`], which releases
/// it later.
pub(super) fn leave_segments_to_sweep(flights: HeldSegments, doorbells: Doorbells) {
    if flights.first_release_position().is_some() {
        lock(&HELD_SEGMENTS).dropped.push(DroppedWriterSegments { flights, doorbells });
    }
    sweep_held_segments();
}

impl SharedHeldSegments {
    /// Returns the position that all present readers have passed. A reader that publishes a false
    /// position harms only itself (F4).
    fn passed_position(&self) -> u64 {
        let pages = self.store.readers.iter().enumerate();
        let present = pages.filter(|(at, page)| {
            !self.departed.contains(*at) && load_acquire(page.word(reader::STATE)) != STATE_CLOSED
        });
        // SYNC POINT: block released; pairs with the store in `ReaderCursor::release`.
        let cursors = present.map(|(_, page)| load_acquire(page.word(reader::RELEASED_POSITION)));
        let passed = cursors.min().unwrap_or(u64::MAX);
        // On a ring that overwrites, announced entries count as passed.
        let reserved = self.store.writer.word(writer::RESERVED_POSITION).load(Ordering::Relaxed);
        passed.max(reserved.saturating_sub(self.store.capacity))
    }

    /// Releases the segments that a live writer no longer needs. Keeps the last segment, because
    /// only the writer can determine until which position that segment is needed.
    fn reap_all_but_last_segment(&self) {
        let passed = self.passed_position();
        let mut segments = lock(&self.segments);
        let last = segments.pop_back();
        segments.retain(|kept| kept.until > passed);
        segments.extend(last);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
