//! The frames that a sink has received recently. A sink uses this list to count or write each frame
//! only once.
//!
//! Several blocks of a stream or message may view the same frame, for example requests that arrived
//! in one segment, or the parts of overlapping segments.

use crate::OpenArguments;
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
    /// The latest view of each of these frames.
    views: [RichPointer; RECENT_FRAME_COUNT],
    /// True if blocks of forms that share no frames arrive, too. They have no session, or view the
    /// same bytes as an equal block before, which the blocks of a stream do not.
    has_other_forms: bool,
    next: usize,
}

impl RecentFrames {
    /// Creates an empty list of recent frames, for blocks of the forms in these arguments.
    pub(crate) fn new(opening: &OpenArguments<'_>) -> Self {
        let shares = |form| matches!(form, Form::Stream | Form::Message);
        let is_shared = opening.forms().any(shares);
        Self {
            frames: is_shared.then_some([(RichPointer::default(), 0); RECENT_FRAME_COUNT]),
            views: Default::default(),
            has_other_forms: !opening.forms().all(shares),
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
        if self.has_other_forms && block.context.session == 0 {
            return true;
        }
        let frame = (block.entry().frame().with_class(Class::NONE), block.context.time);
        let view = block.pointer.with_class(Class::NONE);
        let known = recent.iter().zip(&mut self.views).find(|(known, _)| **known == frame);
        if let Some((_, latest)) = known {
            let is_equal = std::mem::replace(latest, view) == view && block.length() > 0;
            return self.has_other_forms && is_equal;
        }
        let place = self.next % RECENT_FRAME_COUNT;
        if let (Some(known), Some(latest)) = (recent.get_mut(place), self.views.get_mut(place)) {
            (*known, *latest) = (frame, view);
        }
        self.next += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{checked_arguments, frame_block, sink_opening};

    #[test]
    fn frames_of_messages_are_recognized_among_other_forms() {
        let given = checked_arguments(&crate::sink::print::PRINT, &[]);
        let opening =
            |form, other_forms| OpenArguments { form, other_forms, ..sink_opening(&given, &[]) };
        let frame = frame_block(b"two requests");
        let in_session = |mut block: Block<'static>| {
            block.context.session = 1;
            block
        };
        let views = [frame.narrow(0, 3), frame.narrow(3, 9)].map(in_session);
        let are_new = |opening: &OpenArguments<'_>, blocks: [Block<'static>; 2]| {
            let mut recent = RecentFrames::new(opening);
            blocks.map(|block| recent.add(&block))
        };
        for mixed in [
            opening(Form::Message, &[]),
            opening(Form::Segment, &[Form::Message]),
            opening(Form::Frame, &[Form::Stream]),
        ] {
            assert_eq!(are_new(&mixed, views), [true, false], "{mixed:?}");
        }
        // Blocks without a session are frames, of which each is new.
        assert_eq!(are_new(&opening(Form::Frame, &[Form::Stream]), [frame; 2]), [true; 2]);
        assert_eq!(are_new(&opening(Form::Segment, &[]), views), [true; 2]);
        // Segments of generated frames, which are one frame in memory, view the same bytes of it.
        assert_eq!(are_new(&opening(Form::Segment, &[Form::Stream]), [views[1]; 2]), [true; 2]);
        assert_eq!(are_new(&opening(Form::Stream, &[]), [views[1]; 2]), [true, false]);
    }
}
