//! What planner, help, completion, man page, counters and tests know about a filter: one `Description`.
//!
//! It is data. A source or sink is described in the same way; what opens it stands beside its
//! description in `endpoint`. The kind fixes what a filter may touch: [Th Table 5.1].

use super::{Arguments, Counter, Filter, Mistake, Reason};
use ebpf::emit::Emit;

/// The strongest right that a filter uses. [Th Table 5.1], with the sink that the table leaves out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// Reads rich pointers, sees no bytes.
    Statistics,
    /// Reads bytes, changes nothing.
    Inspection,
    /// Reads bytes, writes the class.
    Classification,
    /// Also writes offset, length and order.
    Reordering,
    /// Also writes bytes, through the gateway.
    Editing,
    /// Appends blocks.
    Source,
    /// Ends the path.
    Sink,
}

impl Kind {
    /// The name as it is printed.
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

    /// Whether a filter of this kind may stand in a Boolean section (CONTRACT 10).
    #[must_use]
    pub const fn answers_only(self) -> bool {
        matches!(self, Self::Statistics | Self::Inspection | Self::Classification)
    }
}

/// How deep a filter looks into the frame (CONTRACT 14).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reads {
    /// No byte.
    Nothing,
    /// At most this many bytes from the start of the frame.
    Head(u16),
    /// All of it.
    All,
}

/// What a stream carries (CONTRACT 5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// A frame as the host's stack sees it, viewed from the link header on.
    Frame,
    /// A packet, viewed from a network header on.
    Packet,
    /// A segment or datagram, viewed from its transport header or its payload on, in order of arrival.
    Segment,
    /// Bytes of a connection in order.
    Stream,
    /// A message of an application protocol, or fragments of one.
    Message,
    /// A record that means something by itself (a line, a log entry).
    Record,
    /// Bytes without a frame.
    Bytes,
}

impl Form {
    /// All forms, from the wire inwards.
    pub const ALL: [Self; 7] = [
        Self::Frame,
        Self::Packet,
        Self::Segment,
        Self::Stream,
        Self::Message,
        Self::Record,
        Self::Bytes,
    ];

    /// The name as it is printed.
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

/// A set of forms: what a filter takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forms(u8);

impl Forms {
    /// Nothing: a source.
    pub const NONE: Self = Self(0);
    /// Whatever comes.
    pub const ANY: Self = Self(0x7f);
    /// What still lies in a frame, so that headers can be read through the marks.
    pub const FRAMED: Self = Self::of(&[Form::Frame, Form::Packet, Form::Segment, Form::Stream]);

    /// The set of these forms.
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

    /// Whether `form` is in the set.
    #[must_use]
    pub const fn has(self, form: Form) -> bool {
        self.0 & (1 << form as u8) != 0
    }
}

/// What a filter gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gives {
    /// What it took.
    Same,
    /// Blocks of this form.
    Form(Form),
    /// Nothing: a sink.
    Nothing,
}

/// A filter's classes as data, so that an impossible arc is refused (CONTRACT 9).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Classes {
    /// Leaves the class as it came: statistics, inspection.
    Same,
    /// Answers 1 or nothing.
    YesNo,
    /// Answers a number in this range (a natural 0 as `zero`); some numbers have names.
    Number {
        /// What the number is.
        what: &'static str,
        /// Which values can occur.
        range: ValueRange,
        /// Names of values, for arcs and for printing.
        names: &'static [(&'static str, u32)],
    },
}

/// A range of values, both ends included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ValueRange {
    /// The smallest value.
    pub low: u32,
    /// The largest value.
    pub high: u32,
}

/// What state a filter keeps between blocks (CONTRACT 15).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keeps {
    /// None: it can be replicated freely.
    Nothing,
    /// One private session.
    Private,
    /// One session per connection, flow or datagram.
    Sessions,
    /// State that cannot move, and why.
    Pinned(&'static str),
}

/// What values a parameter takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Type {
    /// A whole number in this range.
    Number {
        /// The smallest value.
        low: u64,
        /// The largest value.
        high: u64,
    },
    /// Bytes: `4096`, `64k`, `16M`, `1G` (powers of 1,024).
    Size,
    /// A time: `250ns`, `10us`, `1ms`, `2s`, `5m`; a number alone is seconds.
    Duration,
    /// `yes` or `no`.
    Flag,
    /// Any text.
    Text,
    /// The name of a file; `-` for a standard stream.
    Path,
    /// One of these words.
    OneOf(&'static [&'static str]),
}

/// One parameter of a filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parameter {
    /// Its name, as in `name=value`.
    pub name: &'static str,
    /// What values it takes.
    pub kind: Type,
    /// Whether it may stand without its name, in the order of the list.
    pub positional: bool,
    /// The value when it is not given; `None`: it must be given, unless `optional`.
    pub default: Option<&'static str>,
    /// Whether it may be absent without a default.
    pub optional: bool,
    /// Whether it may be given several times; all values are kept, in order.
    pub many: bool,
    /// One line for help.
    pub help: &'static str,
}

impl Parameter {
    /// A positional parameter that must be given.
    #[must_use]
    pub const fn needed(name: &'static str, kind: Type, help: &'static str) -> Self {
        Self { name, kind, positional: true, default: None, optional: false, many: false, help }
    }

    /// A named parameter with a default.
    #[must_use]
    pub const fn named(
        name: &'static str,
        kind: Type,
        default: &'static str,
        help: &'static str,
    ) -> Self {
        Self {
            name,
            kind,
            positional: false,
            default: Some(default),
            optional: false,
            many: false,
            help,
        }
    }

    /// A named parameter that may be absent.
    #[must_use]
    pub const fn optional(name: &'static str, kind: Type, help: &'static str) -> Self {
        Self { name, kind, positional: false, default: None, optional: true, many: false, help }
    }

    /// The same parameter, allowed without its name.
    #[must_use]
    pub const fn positional(self) -> Self {
        Self { positional: true, ..self }
    }

    /// The same parameter, allowed several times.
    #[must_use]
    pub const fn many(self) -> Self {
        Self { many: true, ..self }
    }
}

/// Makes a filter from its arguments.
pub type Make = fn(&Arguments) -> Result<Filter, Mistake>;

/// What everybody but the filter itself knows about it.
#[derive(Clone, Copy, Debug)]
pub struct Description {
    /// The word in a request: `[a-z][a-z0-9_]*`.
    pub name: &'static str,
    /// One line of at most 72 columns.
    pub summary: &'static str,
    /// The whole help text: what it does, what its class is, what it drops and why.
    pub details: &'static str,
    /// A request that shows it.
    pub example: &'static str,
    /// The strongest right it uses.
    pub kind: Kind,
    /// What it takes.
    pub takes: Forms,
    /// What it gives.
    pub gives: Gives,
    /// How deep it looks.
    pub reads: Reads,
    /// Its parameters, positional ones in their order.
    pub parameters: &'static [Parameter],
    /// Its classes.
    pub classes: Classes,
    /// Why it may answer nothing or drop; the order numbers them.
    pub reasons: &'static [&'static str],
    /// What else it counts.
    pub counters: &'static [&'static str],
    /// What state it keeps.
    pub keeps: Keeps,
    /// How many blocks it may hold at most, in all.
    pub held_max: u32,
    /// Whether it says something when the path stops: at the end of a line that is the output.
    pub reports: bool,
    /// Whether it writes files, so that it runs in a space of its own by default (CONTRACT 27).
    pub writes_files: bool,
    /// Makes the filter for a process; `None` for sources and sinks, which `endpoint` opens.
    pub user: Option<Make>,
    /// Says the same decision as eBPF, for Ethernet frames (CONTRACT 18); `None`: it has no twin.
    pub kernel: Option<Emit<Arguments>>,
}

impl Description {
    /// What a description starts from.
    pub const EMPTY: Self = Self {
        name: "",
        summary: "",
        details: "",
        example: "",
        kind: Kind::Inspection,
        takes: Forms::ANY,
        gives: Gives::Same,
        reads: Reads::All,
        parameters: &[],
        classes: Classes::Same,
        reasons: &[],
        counters: &[],
        keeps: Keeps::Nothing,
        held_max: 0,
        reports: false,
        writes_files: false,
        user: None,
        kernel: None,
    };

    /// The number of a reason; in a constant, a wrong name does not build.
    #[must_use]
    pub const fn reason(&self, name: &str) -> Reason {
        Reason(position(self.reasons, name))
    }

    /// The number of a counter; in a constant, a wrong name does not build.
    #[must_use]
    pub const fn counter(&self, name: &str) -> Counter {
        Counter(position(self.counters, name))
    }

    /// The parameter with this name.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<&'static Parameter> {
        self.parameters.iter().find(|p| p.name == name)
    }

    /// The class that has this name.
    #[must_use]
    pub fn class_named(&self, name: &str) -> Option<u32> {
        match self.classes {
            Classes::Number { names, .. } => {
                names.iter().find(|(n, _)| *n == name).map(|(_, value)| *value)
            }
            Classes::YesNo | Classes::Same => None,
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "descriptions have a handful of names")]
#[expect(clippy::panic, reason = "at build time only: every caller is a constant")]
const fn position(names: &[&str], name: &str) -> u8 {
    let mut i = 0;
    while i < names.len() {
        if same(names[i].as_bytes(), name.as_bytes()) {
            return i as u8;
        }
        i += 1;
    }
    panic!("the description has no such name")
}

const fn same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let mut i = 0;
    while i < a.len() {
        if a[i] != b[i] {
            return false;
        }
        i += 1;
    }
    true
}
