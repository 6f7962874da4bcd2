//! Sizing of memory that a writer uses segment by segment, such as the pool behind a ring of
//! pointers. [SL §5.4, deck-cut]
//!
//! The window is the number of segments that may be in use at a time. A writer that always opens
//! the lowest free segment then stays within the memory of the window, whatever the size of the
//! pool. A round ends when the window is used up, or when as many segments have been opened as the
//! window has. The rules are those of a ring ([`super::SizingState`]).

use super::{Scaler, ScalingParameters, SidePlacement, SizingState};

/// The number of segments that a writer may use at a time, which adapts to the demand of the
/// readers.
#[derive(Debug)]
pub struct SegmentWindow {
    scaler: Scaler,
    /// Size of a segment in bytes.
    segment: usize,
    /// Size of the window: the number of segments that may be in use at a time.
    segments: usize,
    /// Number of segments opened so far, which takes the place of the writer's position in the
    /// sizing rules.
    opened: u64,
    /// Value of `opened` at the start of this round.
    round_start: u64,
}

impl SegmentWindow {
    /// Creates a window of about `bytes` bytes, within the bounds of `scaling`. The window has at
    /// least two segments, so that one can be written while another is read.
    #[must_use]
    pub fn new(scaling: ScalingParameters, segment: usize, bytes: usize) -> Self {
        let scaling = scaling.with_minimum_size(SEGMENTS_MIN * segment);
        let (least, most) = scaling.size_bounds();
        let segments = bytes.clamp(least, most) / segment.max(1);
        Self { scaler: Scaler::new(scaling), segment, segments, opened: 0, round_start: 0 }
    }

    /// Returns the number of segments in a window of maximum size. The pool needs at least this
    /// many.
    #[must_use]
    pub fn segments_max(&self) -> usize {
        self.scaler.scale.size_bounds().1 / self.segment.max(1)
    }

    /// Returns the current size of the window in bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.segments * self.segment
    }

    /// Returns the state of the window's automatic sizing.
    #[must_use]
    pub const fn state(&self) -> &SizingState {
        &self.scaler.scale
    }

    /// Counts a segment that the writer opens. `held` is the number of segments in use; if they
    /// fill the window, counts nothing and returns false.
    pub const fn try_count_opened_segment(&mut self, held: usize) -> bool {
        let has_room = self.has_room(held);
        self.opened += has_room as u64;
        has_room
    }

    /// Returns true if `held` segments in use do not fill the window.
    #[must_use]
    pub const fn has_room(&self, held: usize) -> bool {
        held < self.segments
    }

    /// Returns true if as many segments were opened in this round as the window has. A window whose
    /// segments are released by others, as readers pass them, is never used up.
    #[must_use]
    pub const fn is_round_over(&self) -> bool {
        self.opened - self.round_start >= self.segments as u64
    }

    /// Ends a round, and decides on the size of the window. `held` is the
    /// number of segments that readers still need. Returns true if the window has grown.
    pub fn end_round(&mut self, held: usize, sides: SidePlacement) -> bool {
        self.round_start = self.opened;
        if held >= self.segments {
            self.scaler.record_wait();
        }
        let before = self.bytes();
        let distance = || held * self.segment;
        let step = self.scaler.end_lap(self.opened, before, sides, distance);
        if let Some(step) = step.filter(|step| step.capacity != before) {
            self.segments = step.capacity / self.segment;
            self.scaler.scale.count_applied_change();
        }
        self.bytes() > before
    }
}

/// Minimum number of segments of a window.
const SEGMENTS_MIN: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT_SIZE: usize = 64 << 10;

    fn window() -> SegmentWindow {
        let scaling = ScalingParameters::for_in_place_resizing(&[32 << 10, 1 << 20, 32 << 20]);
        SegmentWindow::new(scaling, SEGMENT_SIZE, 1 << 20)
    }

    /// Opens segments until the window is used up; readers then need `held` of them. Returns true
    /// if the window has grown.
    fn use_up_window(window: &mut SegmentWindow, held: usize, sides: SidePlacement) -> bool {
        let mut used = 0;
        while window.try_count_opened_segment(used) {
            used += 1;
        }
        window.end_round(held.min(used), sides)
    }

    #[test]
    fn f1_window_follows_pressure_between_its_bounds() {
        let mut window = window();
        assert_eq!((window.bytes(), window.segments_max()), (1 << 20, 64));
        // With readers that keep up, the window shrinks to a quarter of the level 2 cache.
        for _ in 0..20 {
            use_up_window(&mut window, 0, SidePlacement::SameProcessor);
        }
        assert_eq!((window.bytes(), window.state().shrunk), (256 << 10, 2));
        assert!(window.state().last_change_reason().contains("below"), "{:?}", window.state());
        // With readers that need all segments, it grows to an eighth of the level 3 cache.
        assert!(use_up_window(&mut window, 64, SidePlacement::SameProcessor));
        assert_eq!(window.bytes(), 512 << 10);
        while use_up_window(&mut window, 64, SidePlacement::SameProcessor) {}
        assert_eq!((window.bytes(), window.state().grown), (4 << 20, 4));
        assert_eq!(window.state().last_change_reason(), "the ring was full");
        assert!(!window.try_count_opened_segment(64) && window.try_count_opened_segment(63));
    }

    #[test]
    fn f5_two_processors_get_one_size_at_any_pressure() {
        let mut window = window();
        for _ in 0..4 {
            use_up_window(&mut window, 1, SidePlacement::DifferentProcessors);
        }
        assert_eq!(window.bytes(), 4 << 20);
    }

    #[test]
    fn f1_window_decides_once_per_round() {
        let mut window = window();
        assert!(use_up_window(&mut window, 64, SidePlacement::SameProcessor));
        let size = window.bytes();
        assert!(!window.end_round(64, SidePlacement::SameProcessor), "nothing was opened since");
        assert_eq!(window.bytes(), size);
    }
}
