//! The layout of the words that open switched exits.

use super::ring_layout::SWITCHED_EXITS;

/// The layout of the switches in a map, in words of four bytes: a word for each place, then a list
/// for each pointer ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchLayout {
    /// Index of the map among the caller's maps.
    pub map: u32,
    /// Byte offset of the first word in the map.
    pub base: u32,
    /// Number of places.
    pub places: u32,
}

impl SwitchLayout {
    /// Number of words in the list of a pointer ring: a bit mask of the slots in it, and for each
    /// exit one more than its slot, or 0, and its exit number.
    pub const LIST: u32 = 1 + 2 * SWITCHED_EXITS;

    /// Returns the index of the first word in the list of a pointer ring.
    #[must_use]
    pub const fn list(&self, outlet: u32) -> u32 {
        self.places.saturating_add(outlet.saturating_mul(Self::LIST))
    }
}
