//! Counters of a filter: blocks, bytes, reasons.

/// The number of a counter in a description.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counter(pub(crate) u8);

/// The number of a reason in a description.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reason(pub(crate) u8);

/// Counters of one filter, in blocks and bytes. The engine adds what it observed from outside; the
/// two are compared when the path stops (CONTRACT 19).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Blocks that left which were not among those that came.
    pub made: Amount,
    /// Blocks that came and ended here, used up.
    pub consumed: Amount,
    /// Blocks held now.
    pub held: Amount,
    /// Dropped amounts, by the description's reasons.
    pub dropped: Vec<Amount>,
    /// Number of blocks not answered (they left with class 0), by the description's reasons.
    pub unanswered: Vec<u64>,
    /// Further counters, by the description's counters.
    pub counters: Vec<u64>,
    /// Blocks evicted from a hold: bounds, age, or a ring that came near.
    pub evicted: Amount,
    /// Blocks lost because the space had no memory for them.
    pub no_room: Amount,
}

/// Blocks and the bytes in their views.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Amount {
    /// Number of blocks.
    pub blocks: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl Amount {
    /// One more block of this many bytes.
    #[inline]
    pub fn add(&mut self, bytes: u32) {
        self.blocks += 1;
        self.bytes += u64::from(bytes);
    }

    /// One block fewer.
    #[inline]
    pub fn take(&mut self, bytes: u32) {
        self.blocks = self.blocks.wrapping_sub(1);
        self.bytes = self.bytes.wrapping_sub(u64::from(bytes));
    }
}

impl Counts {
    /// Counts for a filter with this many reasons and counters.
    #[must_use]
    pub fn new(reasons: usize, counters: usize) -> Self {
        Self {
            dropped: vec![Amount::default(); reasons],
            unanswered: vec![0; reasons],
            counters: vec![0; counters],
            ..Self::default()
        }
    }

    pub(super) fn count(&mut self, counter: Counter, n: u64) {
        if let Some(c) = self.counters.get_mut(usize::from(counter.0)) {
            *c += n;
        }
    }

    pub(super) fn unanswered(&mut self, reason: Reason, blocks: u64) {
        if let Some(c) = self.unanswered.get_mut(usize::from(reason.0)) {
            *c += blocks;
        }
    }

    pub(super) fn dropped(&mut self, reason: Reason, bytes: u32) {
        if let Some(c) = self.dropped.get_mut(usize::from(reason.0)) {
            c.add(bytes);
        }
    }
}
