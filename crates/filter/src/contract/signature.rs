//! The effect of a filter on the stream of blocks: its kind, the forms of its input and output, the
//! depth to which it reads, and its classes.

use abi::Class;

/// The strongest right that a filter uses. The kinds are those of [Th Table 5.1], with `Sink`
/// added.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FilterKind {
    /// Reads rich pointers and metadata, but no bytes.
    Statistics,
    /// Reads rich pointers, metadata and bytes, but changes nothing.
    Inspection,
    /// Reads whole blocks and writes their class.
    Classification,
    /// Writes the class and the order of blocks, and the offset and length of their views.
    Reordering,
    /// Writes bytes through the gateway, and the class, order and views of blocks.
    Editing,
    /// Appends blocks and has no input.
    Source,
    /// Ends the path and has no output.
    Sink,
}

impl FilterKind {
    /// Returns the name of this kind that help and `explain` print.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Statistics => "statistics",
            Self::Inspection => "inspection",
            Self::Classification => "classification",
            Self::Reordering => "reordering",
            Self::Editing => "editing",
            Self::Source => "source",
            Self::Sink => "sink",
        }
    }

    /// Returns true if this is the kind of sources.
    #[must_use]
    pub const fn is_source(self) -> bool {
        matches!(self, Self::Source)
    }

    /// Returns true if filters of this kind pass every block without delay, and change at most the
    /// class of a block.
    #[must_use]
    pub const fn only_sets_class(self) -> bool {
        matches!(self, Self::Statistics | Self::Inspection | Self::Classification)
    }

    /// Returns true if filters of this kind change no bytes. Such filters can be operands of a
    /// Boolean section, which passes blocks unchanged (CONTRACT 10).
    #[must_use]
    pub const fn is_read_only(self) -> bool {
        self.only_sets_class() || matches!(self, Self::Reordering)
    }
}

/// The part of a frame that a filter reads (CONTRACT 14).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadDepth {
    /// The filter reads no bytes of the frame.
    Nothing,
    /// At most the given number of bytes from the start of the frame.
    Head(u16),
    /// The filter may read any byte of the frame.
    All,
}

/// Form of the blocks in a stream (CONTRACT 5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// A frame as the host's network stack sees it; the view starts at the link header.
    Frame,
    /// A packet; the view starts at a network header.
    Packet,
    /// A segment or datagram, in order of arrival; the view starts at the transport header or at
    /// the payload.
    Segment,
    /// Payload bytes of a connection, in sequence order.
    Stream,
    /// A message of an application protocol, or fragments of one.
    Message,
    /// A self-contained record, such as a line of text or a log entry.
    Record,
    /// Bytes that are not part of a frame.
    Bytes,
}

impl Form {
    /// All forms, from the outermost protocol layer inwards.
    pub const ALL: [Self; 7] = [
        Self::Frame,
        Self::Packet,
        Self::Segment,
        Self::Stream,
        Self::Message,
        Self::Record,
        Self::Bytes,
    ];

    /// Returns the name of this form that help and `explain` print.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Frame => "frame",
            Self::Packet => "packet",
            Self::Segment => "segment",
            Self::Stream => "stream",
            Self::Message => "message",
            Self::Record => "record",
            Self::Bytes => "bytes",
        }
    }
}

/// A set of forms: the valid input of a filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forms(u8);

impl Forms {
    /// The empty set of input forms, which sources have.
    pub const NONE: Self = Self(0);
    /// The set of all forms.
    pub const ANY: Self = Self(0x7f);
    /// The forms of blocks that lie inside a frame. The marks of such blocks locate the headers of
    /// the frame.
    pub const FRAMED: Self =
        Self::of(&[Form::Frame, Form::Packet, Form::Segment, Form::Stream]).inside_frames();

    /// Flag of a set of forms that [`Forms::inside_frames`] has restricted. The lower bits stand
    /// for the forms.
    const INSIDE_FRAMES_FLAG: u8 = 1 << 7;

    /// Creates the set of these forms.
    #[must_use]
    pub const fn of(forms: &[Form]) -> Self {
        let mut bits = 0;
        let mut i = 0;
        while i < forms.len() {
            bits |= 1 << forms[i] as u8;
            i += 1;
        }
        Self(bits)
    }

    /// Returns the same forms, restricted to blocks inside a frame. A filter that reads headers, or
    /// a sink that writes frames, cannot use streams and messages that did not arrive in frames.
    #[must_use]
    pub const fn inside_frames(self) -> Self {
        Self(self.0 | Self::INSIDE_FRAMES_FLAG)
    }

    /// Returns true if the set is restricted to blocks inside a frame.
    #[must_use]
    pub const fn are_inside_frames(self) -> bool {
        self.0 & Self::INSIDE_FRAMES_FLAG != 0
    }

    /// Returns true if `form` is in the set.
    #[must_use]
    pub const fn contains(self, form: Form) -> bool {
        self.0 & (1 << form as u8) != 0
    }
}

/// Form of a filter's output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OutputForm {
    /// The form of the filter's input.
    Same,
    /// The output always has this form.
    Form(Form),
    /// The filter has no output, because it is a sink.
    Nothing,
}

/// The classes that a filter assigns to blocks. The checks use them to reject an arc over which no
/// block can pass (CONTRACT 9).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Classes {
    /// The class of the input block. Used by statistics and inspection filters.
    Same,
    /// Class 1 for a match, otherwise no class.
    YesNo,
    /// The class is a number, such as a port. The number 0 is encoded as
    /// [`Class::ZERO`](abi::Class::ZERO).
    Number {
        /// Meaning of the number that the class stands for.
        meaning: &'static str,
        /// Range of the numbers that the filter may assign.
        range: ValueRange,
        /// Names of individual numbers, as used in arcs and in printed classes.
        names: &'static [(&'static str, u32)],
    },
}

impl Classes {
    /// Returns the names of individual numbers. The list is empty if the classes are not numbers.
    #[must_use]
    pub const fn names(self) -> &'static [(&'static str, u32)] {
        match self {
            Self::Number { names, .. } => names,
            Self::Same | Self::YesNo => &[],
        }
    }

    /// Returns the number that a class stands for if any of `classifiers` assigns numbers, and the
    /// class itself otherwise.
    #[must_use]
    pub fn number_of(classifiers: &[Self], class: Class) -> u32 {
        match class {
            Class::ZERO if classifiers.iter().any(|one| one.are_numbers()) => 0,
            Class(value) => value,
        }
    }

    /// Returns the name of a class that one of `classifiers` has assigned. Returns `None` if the
    /// class has no name, or if it has different meanings for the classifiers that can assign it.
    #[must_use]
    pub fn name_of(classifiers: &[Self], class: Class) -> Option<&'static str> {
        let value = Self::number_of(classifiers, class);
        let mut names = classifiers.iter().filter(|one| one.can_be(class)).map(|one| {
            one.names().iter().find(|(_, named)| *named == value).map(|(name, _)| *name)
        });
        let name = names.next()??;
        names.all(|other| other == Some(name)).then_some(name)
    }

    /// Returns true if the classes are numbers.
    #[must_use]
    pub const fn are_numbers(self) -> bool {
        matches!(self, Self::Number { .. })
    }

    /// Returns true if a filter with these classes can assign `class`. The class of a block that no
    /// filter has classified is [`Class::YES`].
    const fn can_be(self, class: Class) -> bool {
        match (self, class) {
            (_, Class::NONE) => false,
            (Self::Same | Self::YesNo, class) => class.0 == Class::YES.0,
            (Self::Number { range, .. }, Class::ZERO) => range.contains((0, 0)),
            (Self::Number { range, .. }, Class(value)) => range.contains((value, value)),
        }
    }
}

/// A range of values, both ends included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ValueRange {
    /// The smallest value in the range.
    pub low: u32,
    /// The largest value in the range.
    pub high: u32,
}

impl ValueRange {
    /// The range of all classes.
    pub const ALL: Self = Self { low: 0, high: u32::MAX };

    /// Returns true if this range contains all values from `low` to `high`.
    #[must_use]
    pub const fn contains(self, (low, high): (u32, u32)) -> bool {
        self.low <= low && high <= self.high
    }
}

/// The properties of a filter that can depend on its arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Effect {
    /// The strongest right that the filter uses.
    pub kind: FilterKind,
    /// Form of the filter's output.
    pub output_form: OutputForm,
    /// The part of a frame that the filter reads.
    pub reads: ReadDepth,
}

/// Right that an unprivileged user needs to run a filter in a kernel program of the daemon. The
/// daemon's policy grants the right for each filter by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FilterRight {
    /// Permits changing frames on their way to the host.
    ChangeFrames,
    /// Permits sending frames through an interface.
    SendFrames,
    /// Permits observing the frames that the host sends.
    ObserveSent,
    /// Permits storing a secret in the kernel.
    UseSecret,
}
