//! One block with its bytes: what a filter looks at.

use abi::{BlockMetadata, Class, Entry, Marks, RichPointer};

/// One block: a frame, a view into it, and what travels beside it.
///
/// `frame` holds the bytes of the frame that are here; of a ring that may lap that is only a head
/// (`Description::reads`). Lengths therefore come from `pointer` and `marks`, never from the
/// slices.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    /// The view, with the class.
    pub pointer: RichPointer,
    /// The bytes of the frame, as far as they are here.
    pub frame: &'a [u8],
    /// Offsets of the view and the layers in the frame.
    pub marks: Marks,
    /// Time, session and origin.
    pub context: BlockMetadata,
}

impl<'a> Block<'a> {
    /// The viewed bytes, as far as they are here.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        let from = self.marks.view as usize;
        let to = from + self.pointer.length() as usize;
        self.frame.get(from..to.min(self.frame.len())).unwrap_or_default()
    }

    /// One byte of the view, if it is here: what `bytes().get(at)` is, without making the slice.
    #[inline]
    #[must_use]
    pub fn byte(&self, at: usize) -> Option<u8> {
        if at >= self.pointer.length() as usize {
            return None;
        }
        self.frame.get(self.marks.view as usize + at).copied()
    }

    /// The number of viewed bytes, here or not.
    #[inline]
    #[must_use]
    pub fn length(&self) -> u32 {
        self.pointer.length()
    }

    /// Returns true if all viewed bytes are here.
    #[inline]
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.bytes().len() == self.pointer.length() as usize
    }

    /// The view moved `from` bytes inwards, `length` bytes long, cut to what the view had.
    #[inline]
    #[must_use]
    pub fn narrow(mut self, from: u32, length: u32) -> Self {
        let from = from.min(self.length());
        let length = length.min(self.length() - from);
        self.pointer = self.pointer.within(from, length);
        self.marks.view += from;
        self
    }

    /// The view as `length` bytes from offset `from` of the frame, cut to what was captured.
    #[inline]
    #[must_use]
    pub fn view_at(mut self, from: u32, length: u32) -> Self {
        let from = from.min(self.marks.captured);
        let length = length.min(self.marks.captured - from);
        let frame = self.entry().frame();
        self.pointer = frame.within(from, length);
        self.marks.view = from;
        self
    }

    /// The block as if its frame began so many bytes later: nothing is copied. The layers begin
    /// earlier by as much; those that were cut into are not known any more.
    #[must_use]
    pub fn without_front(mut self, bytes: u32) -> Self {
        let bytes = bytes.min(self.marks.captured);
        let from = self.marks.view.max(bytes);
        let end = self.marks.view + self.length();
        let frame = self.entry().frame();
        let view = frame.within(from, end.saturating_sub(from));
        let less = |mark: u16| match u32::from(mark).checked_sub(bytes) {
            Some(left) if mark != Marks::UNKNOWN => u16::try_from(left).unwrap_or(Marks::UNKNOWN),
            _ => Marks::UNKNOWN,
        };
        let marks = &mut self.marks;
        marks.view = from - bytes;
        marks.captured -= bytes;
        marks.wire_length = marks.wire_length.saturating_sub(bytes).max(marks.captured);
        marks.network = less(marks.network);
        marks.transport = less(marks.transport);
        marks.payload = less(marks.payload);
        self.pointer = view;
        self.frame = self.frame.get(bytes as usize..).unwrap_or_default();
        self
    }

    /// The same block with another class.
    #[inline]
    #[must_use]
    pub fn with_class(mut self, class: Class) -> Self {
        self.pointer.class = class;
        self
    }

    /// All lanes of this block as they cross a border.
    #[inline]
    #[must_use]
    pub fn entry(&self) -> Entry {
        Entry::new(self.pointer, self.context, self.marks)
    }
}
