//! The frames that a sink has received recently. A sink uses this list to count or write each frame
//! only once.
//!
//! Several blocks of a stream or message may view the same frame, for example requests that arrived
//! in one segment, or the parts of overlapping segments.

use abi::{Class, RichPointer};
use filter::{Block, Form, Time};

/// Number of recent frames that are remembered. Blocks that view the same frame arrive close
/// together, but not always consecutively.
const RECENT_FRAME_COUNT: usize = 16;

/// The frames that a sink has received most recently. Frames that occupied the same memory one
/// after the other are distinguished by their times.
#[derive(Debug)]
pub(crate) struct RecentFrames {
    /// Ring of the most recent frames, or `None` if blocks never share a frame in the form of the
    /// input.
    frames: Option<[(RichPointer, Time); RECENT_FRAME_COUNT]>,
    next: usize,
}

impl RecentFrames {
    /// Creates an empty list of recent frames, for blocks of this form.
    pub(crate) fn new(form: Form) -> Self {
        let shared = matches!(form, Form::Stream | Form::Message);
        Self {
            frames: shared.then_some([(RichPointer::default(), 0); RECENT_FRAME_COUNT]),
            next: 0,
        }
    }

    /// Returns true if several blocks may view the same frame.
    pub(crate) const fn may_have_shared_frames(&self) -> bool {
        self.frames.is_some()
    }

    /// Records the frame of a block, which must have one. Returns false if the frame is already
    /// among the recent frames. If each block has its own frame, records nothing and returns true.
    pub(crate) fn add(&mut self, block: &Block<'_>) -> bool {
        let Some(recent) = &mut self.frames else { return true };
        let frame = (block.entry().frame().with_class(Class::NONE), block.context.time);
        if recent.contains(&frame) {
            return false;
        }
        if let Some(place) = recent.get_mut(self.next % RECENT_FRAME_COUNT) {
            *place = frame;
        }
        self.next += 1;
        true
    }
}
