//! One block with its bytes, in the form in which a filter receives it.

use abi::{BlockMetadata, Class, Entry, Marks, RichPointer};

/// Maximum length in bytes of the headers that are copied from a block into a new block that
/// replaces it. Enough for IPv6 with extension headers and TCP.
const HEADER_BYTES_MAX: u16 = 256;

/// One block: a frame, a view into it, and its metadata.
///
/// `frame` contains the bytes that are present. If the ring may overwrite the block, only the start
/// of the frame is present ([`Description::reads`](crate::Description::reads)). A filter must
/// therefore take lengths from `pointer` and `marks`, never from the slices.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    /// Rich pointer to the view. It also contains the class.
    pub pointer: RichPointer,
    /// The bytes of the frame that are present.
    pub frame: &'a [u8],
    /// Offsets of the view and the headers in the frame.
    pub marks: Marks,
    /// Metadata of the block: time, session, origin and flags.
    pub context: BlockMetadata,
}

impl<'a> Block<'a> {
    /// Returns the bytes in view that are present.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        let from = self.marks.view as usize;
        let to = from + self.pointer.length() as usize;
        self.frame.get(from..to.min(self.frame.len())).unwrap_or_default()
    }

    /// Returns the byte of the view at offset `at`, or `None` if this byte is not present. Equal to
    /// `bytes().get(at)`, but faster.
    #[inline]
    #[must_use]
    pub fn byte(&self, at: usize) -> Option<u8> {
        if at >= self.pointer.length() as usize {
            return None;
        }
        self.frame.get(self.marks.view as usize + at).copied()
    }

    /// Returns the length of the view in bytes, including bytes that are not present.
    #[inline]
    #[must_use]
    pub fn length(&self) -> u32 {
        self.pointer.length()
    }

    /// Returns true if the block is a hole of length 0, which marks the end of a stream or message.
    #[inline]
    #[must_use]
    pub fn is_end_marker(&self) -> bool {
        self.length() == 0 && self.pointer.is_hole()
    }

    /// Returns true if every byte in view is present.
    #[inline]
    #[must_use]
    pub fn has_all_bytes(&self) -> bool {
        self.bytes().len() == self.pointer.length() as usize
    }

    /// Narrows the view to `length` bytes from offset `from`, clamped to the current view.
    #[inline]
    #[must_use]
    pub fn narrow(mut self, from: u32, length: u32) -> Self {
        let from = from.min(self.length());
        let length = length.min(self.length() - from);
        self.pointer = self.pointer.subrange(from, length);
        self.marks.view += from;
        self
    }

    /// Moves the view to `length` bytes from offset `from` in the frame, clamped to the captured
    /// length.
    #[inline]
    #[must_use]
    pub fn view_at(mut self, from: u32, length: u32) -> Self {
        let from = from.min(self.marks.captured);
        let length = length.min(self.marks.captured - from);
        let frame = self.entry().frame();
        self.pointer = frame.subrange(from, length);
        self.marks.view = from;
        self
    }

    /// Removes the first `bytes` bytes of the frame, without copying. Adjusts the offsets of the
    /// remaining headers; the offsets of removed headers become unknown.
    #[must_use]
    pub fn without_leading_bytes(mut self, bytes: u32) -> Self {
        let bytes = bytes.min(self.marks.captured);
        let from = self.marks.view.max(bytes);
        let end = self.marks.view + self.length();
        let frame = self.entry().frame();
        let view = frame.subrange(from, end.saturating_sub(from));
        let less = |mark: u16| match u32::from(mark).checked_sub(bytes) {
            Some(left) if mark != Marks::UNKNOWN_OFFSET => {
                u16::try_from(left).unwrap_or(Marks::UNKNOWN_OFFSET)
            }
            _ => Marks::UNKNOWN_OFFSET,
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

    /// Returns the network and transport headers of the frame, which identify the endpoints of the
    /// flow. The slice is empty if the offsets of the headers are unknown, if the headers are
    /// longer than 256 bytes, or if some of their bytes are not present.
    #[must_use]
    pub fn headers(&self) -> &'a [u8] {
        let Marks { network, transport, payload, .. } = self.marks;
        if network == Marks::UNKNOWN_OFFSET || transport == Marks::UNKNOWN_OFFSET {
            return &[];
        }
        if payload == Marks::UNKNOWN_OFFSET || payload.saturating_sub(network) > HEADER_BYTES_MAX {
            return &[];
        }
        self.frame.get(usize::from(network)..usize::from(payload)).unwrap_or_default()
    }

    /// Returns the marks for a new block that replaces this one. The new block consists of a copy
    /// of the [headers](Self::headers) and of `length` bytes in view. It is not a captured frame,
    /// but filters can read its addresses.
    #[must_use]
    pub fn marks_after_headers(&self, length: u32) -> Marks {
        let headers = self.headers().len() as u32;
        let mut marks = Marks::for_plain_block(headers + length);
        if headers > 0 {
            marks.view = headers;
            marks.network = 0;
            marks.transport = self.marks.transport.saturating_sub(self.marks.network);
            marks.payload = headers as u16;
        }
        marks
    }

    /// Returns the block with the given class.
    #[inline]
    #[must_use]
    pub fn with_class(mut self, class: Class) -> Self {
        self.pointer.class = class;
        self
    }

    /// Converts the block to a ring entry.
    #[inline]
    #[must_use]
    pub fn entry(&self) -> Entry {
        Entry::new(self.pointer, self.context, self.marks)
    }
}
