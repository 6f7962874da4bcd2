//! Layout of the memory words with which user space opens and closes switched exits.

use super::ring_layout::SWITCHED_EXITS_MAX;

/// The layout of the map with which user space opens and closes switched exits, in words of four
/// bytes: a word for each place in the filter tree, then a list for each pointer ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchLayout {
    /// Index of the map among the maps that the caller provides.
    pub map: u32,
    /// Byte offset in the map at which this layout begins.
    pub base: u32,
    /// Number of places in the filter tree at which requests have switched exits.
    pub places: u32,
}

impl SwitchLayout {
    /// Number of words in the list of open exits of a pointer ring: a bit mask of the exits' slots,
    /// and an entry ([`Self::encode_entry`]) for each exit.
    pub const OPEN_EXIT_LIST_WORDS: u32 = 1 + SWITCHED_EXITS_MAX;
    /// Bit position of the exit number in the entry of an open exit.
    pub(in crate::emit) const EXIT_SHIFT: u32 = 8;

    /// Returns the index of the first word in the list of open exits of pointer ring `outlet`,
    /// counted in words from the beginning of this layout.
    #[must_use]
    pub const fn list_index(&self, outlet: u32) -> u32 {
        self.places.saturating_add(outlet.saturating_mul(Self::OPEN_EXIT_LIST_WORDS))
    }

    /// Returns the entry of an open exit in the list of a pointer ring: the exit number, and the
    /// slot plus one. The entry of a closed exit is 0. Both numbers are in one word, so that a
    /// program that runs during a change never combines the slot of one exit with the number of
    /// another.
    #[must_use]
    pub const fn encode_entry(slot: u32, exit: u32) -> u32 {
        (exit << Self::EXIT_SHIFT) | (slot + 1)
    }
}
