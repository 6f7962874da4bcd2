//! Description of a filter for planner, help, completion, man page, counters and tests.
//!
//! It is data. A source or sink is described in the same way; what opens it stands beside its
//! description in `endpoint`. The kind fixes what a filter may touch: [Th Table 5.1].

use crate::sharing::Sharing;

use super::{Arguments, COMMON, Column, Counter, Filter, Mistake, Parameter, Reason, SESSION};
use super::{Session, Whose, columns};
use ebpf::emit::Emit;
use wire::LinkType;

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

    /// Returns true for a source.
    #[must_use]
    pub const fn is_source(self) -> bool {
        matches!(self, Self::Source)
    }

    /// Returns true if a filter of this kind leaves blocks as they are, in their order, and answers
    /// at once.
    #[must_use]
    pub const fn answers_only(self) -> bool {
        matches!(self, Self::Statistics | Self::Inspection | Self::Classification)
    }

    /// Returns true if a filter of this kind changes no byte, so that it may be asked about a block
    /// that goes on unchanged: the operands of Boolean sections (CONTRACT 10).
    #[must_use]
    pub const fn reads_only(self) -> bool {
        self.answers_only() || matches!(self, Self::Reordering)
    }
}

/// Depth to which a filter reads the frame (CONTRACT 14).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reads {
    /// No byte.
    Nothing,
    /// At most this many bytes from the start of the frame.
    Head(u16),
    /// All of it.
    All,
}

/// Form of the blocks in a stream (CONTRACT 5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// A frame as the host's stack sees it, viewed from the link header on.
    Frame,
    /// A packet, viewed from a network header on.
    Packet,
    /// A segment or datagram, viewed from its transport header or its payload on, in order of
    /// arrival.
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
    /// Any form.
    pub const ANY: Self = Self(0x7f);
    /// Forms that still lie in a frame, so that headers can be read through the marks.
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

    /// Returns true if `form` is in the set.
    #[must_use]
    pub const fn has(self, form: Form) -> bool {
        self.0 & (1 << form as u8) != 0
    }
}

/// Form of a filter's output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gives {
    /// The form of its input.
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
        /// Meaning of the number.
        what: &'static str,
        /// Range of its values.
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

impl ValueRange {
    /// Every class.
    pub const ALL: Self = Self { low: 0, high: u32::MAX };
}

/// State that a filter keeps between blocks (CONTRACT 15).
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

/// Equivalence of several worker processes that each run the filter, each with its share of the
/// sessions, to a single one (`--engines`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Several {
    /// As far as what it keeps is of one block or session ([`Keeps`]).
    AsItKeeps,
    /// It keeps something of all blocks, which it only reports: added up, that is what one reports.
    Sums,
    /// Each of them writes into a folder of its own, beside the one that this parameter names.
    Folder(&'static str),
    /// Not: why, and what to do instead.
    Not(&'static str, &'static str),
}

impl Several {
    /// Default advice where no better is known.
    pub const LEAVE: &'static str =
        "leave `--engines` out; `--parallel=N` gives copies to what costs most";
}

/// Blocks of one giver that a filter or sink can use, where their form does not tell: a response is
/// a message as an exchange is, and no line of a web server's log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usable {
    /// The filter that gives them.
    pub giver: &'static str,
    /// The classes of those blocks.
    pub classes: ValueRange,
    /// The giver makes them only where an arc names one of these classes.
    pub on_request: bool,
    /// The request that works, as a hint.
    pub hint: &'static str,
}

/// Effect of a filter on a stream, as far as it may depend on its arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Effect {
    /// The strongest right that it uses.
    pub kind: Kind,
    /// Form of its output.
    pub gives: Gives,
    /// Depth to which it reads.
    pub reads: Reads,
}

/// Makes a filter from its arguments.
pub type Make = fn(&Arguments) -> Result<Filter, Mistake>;

/// A function that tests whether a source can evaluate ahead what a filter asks with these
/// arguments: `Ok` with a sentence on the frames that are excluded, or the reason why not.
pub type Ahead = fn(&Arguments) -> Result<Option<&'static str>, String>;

/// The link types of the frames that a filter gives with these arguments, where they are not those
/// that come; `None`: those that come. An empty list: nobody knows which, or it gives no frames.
pub type Relinks = fn(&Arguments) -> Option<&'static [LinkType]>;

/// A function that returns a warning for arguments that are valid but can never answer, or not for
/// everything that comes.
pub type Warns = fn(&Arguments) -> Option<Mistake>;

/// A function that returns a parameter, and its value, that must be written into a request so that
/// it means the same wherever and whenever it is read. `None`: nothing is missing.
pub type Settles = fn(&Arguments) -> Option<(&'static str, String)>;

/// Everything that is known about a filter outside of its code.
///
/// What most authors write stands here; what few need is one value by itself: [`Needs`],
/// [`StateFacts`], [`Analysis`].
#[derive(Clone, Copy, Debug)]
pub struct Description {
    /// The word in a request: `[a-z][a-z0-9_]*`.
    pub name: &'static str,
    /// One line of at most 72 columns.
    pub summary: &'static str,
    /// The whole help text: purpose, classes, every reason for a drop.
    pub details: &'static str,
    /// A request that shows it.
    pub example: &'static str,

    /// The strongest right it uses, whatever its arguments.
    pub kind: Kind,
    /// The forms it takes.
    pub takes: Forms,
    /// The form it gives, unless `effect` says otherwise.
    pub gives: Gives,
    /// The deepest byte it reads.
    pub reads: Reads,
    /// Kind, form and depth with these arguments, where they differ; ask
    /// [`Description::effect_of`]. A source stays a source, a sink a sink.
    pub effect: Option<fn(&Arguments) -> Effect>,
    /// Restrictions on its input beyond the form.
    pub needs: Needs,

    /// Its parameters, positional ones in their order.
    pub parameters: &'static [Parameter],
    /// Its classes.
    pub classes: Classes,
    /// Names for ranges of its classes, for arcs: `|request`.
    pub groups: &'static [(&'static str, ValueRange)],
    /// Reasons for answering nothing or dropping; their order numbers them.
    pub reasons: &'static [&'static str],
    /// Its other counters.
    pub counters: &'static [&'static str],

    /// The state it keeps between blocks.
    pub state: StateFacts,
    /// True if it reports when the path stops ([`Description::ends_with_report`]).
    pub reports: bool,
    /// Functions of its arguments that checks and planner call.
    pub analysis: Analysis,

    /// Makes the filter for a process; `None` for sources and sinks, which `endpoint` opens.
    pub user: Option<Make>,
    /// Emits the same decision as eBPF, for Ethernet frames (CONTRACT 18); `None`: no twin.
    pub kernel: Option<Emit<Arguments>>,
    /// Arguments with which the twin is examined, each as it would stand behind the name; empty:
    /// those of the example.
    pub examined: &'static [&'static str],
}

/// Restrictions on the input of a filter or sink beyond its form.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// The usable blocks of certain givers; of a giver that is not listed, all.
    pub usable: &'static [Usable],
    /// Reason for which blocks that no listed giver made are useless; empty: they are not.
    pub otherwise: &'static str,
    /// The classes that need both directions of a connection.
    pub both_ways: Option<ValueRange>,
}

impl Needs {
    /// No restriction.
    pub const NONE: Self = Self { usable: &[], otherwise: "", both_ways: None };

    /// These blocks of these givers.
    #[must_use]
    pub const fn of(usable: &'static [Usable]) -> Self {
        Self { usable, ..Self::NONE }
    }
}

/// The state of a filter between blocks: its lifetime, its size, its visibility.
#[derive(Clone, Copy, Debug)]
pub struct StateFacts {
    /// Scope of the state.
    pub keeps: Keeps,
    /// Scope where no block belongs to a session: nothing, if every block is then looked at by
    /// itself.
    pub keeps_alone: Keeps,
    /// The published columns (`state=NAME`); ask [`Description::shown`].
    pub shows: Option<fn() -> Vec<Column>>,
    /// Combination of several processes with these arguments, where `keeps` does not decide it.
    pub several: fn(&Arguments) -> Several,
    /// The key by which it tells sessions apart itself.
    pub sharing: Option<Sharing>,
    /// True if blocks leave it with the number of a session that it gave them (CONTRACT 8).
    pub numbers: bool,
    /// Maximum of held blocks, in all.
    pub held_max: u32,
}

impl StateFacts {
    /// No state: it can be replicated freely.
    pub const NONE: Self = Self {
        keeps: Keeps::Nothing,
        keeps_alone: Keeps::Private,
        shows: None,
        several: |_| Several::AsItKeeps,
        sharing: None,
        numbers: false,
        held_max: 0,
    };

    /// One private session, whose fields are published.
    #[must_use]
    pub const fn private<S: Session>() -> Self {
        Self { keeps: Keeps::Private, shows: shown::<S>(), ..Self::NONE }
    }

    /// A session per connection, flow or datagram, whose fields are published.
    #[must_use]
    pub const fn sessions<S: Session>() -> Self {
        Self { keeps: Keeps::Sessions, shows: shown::<S>(), ..Self::NONE }
    }

    /// State that cannot move, with the reason.
    #[must_use]
    pub const fn pinned(why: &'static str) -> Self {
        Self { keeps: Keeps::Pinned(why), ..Self::NONE }
    }

    /// The same, holding at most so many blocks.
    #[must_use]
    pub const fn held(self, held_max: u32) -> Self {
        Self { held_max, ..self }
    }

    /// The same, with sessions told apart by this key and numbered (CONTRACT 8).
    #[must_use]
    pub const fn numbered(self, key: Sharing) -> Self {
        Self { sharing: Some(key), numbers: true, ..self }
    }

    /// The same, with another rule for several processes.
    #[must_use]
    pub const fn several(self, several: fn(&Arguments) -> Several) -> Self {
        Self { several, ..self }
    }
}

/// The columns of a session, if it has any.
const fn shown<S: Session>() -> Option<fn() -> Vec<Column>> {
    if S::FIELDS.is_empty() { None } else { Some(columns::<S>) }
}

/// Functions of a filter's arguments that checks and planner call.
#[derive(Clone, Copy, Debug)]
pub struct Analysis {
    /// Translates it for the kernel's filter of a source. Its answer must depend on the frame
    /// alone.
    pub ahead: Option<Ahead>,
    /// The link types of the frames that it gives, where they differ from those it takes.
    pub relinks: Option<Relinks>,
    /// Resolves once what depends on the machine; the result is written into the request.
    pub settles: Option<Settles>,
    /// A warning for `check`, `explain` and the start of a run.
    pub warns: Option<Warns>,
    /// A remark for `explain`.
    pub remark: Option<fn(&Arguments) -> Option<String>>,
}

impl Analysis {
    /// No function.
    pub const NONE: Self =
        Self { ahead: None, relinks: None, settles: None, warns: None, remark: None };
}

impl Description {
    /// The defaults of all fields.
    pub const EMPTY: Self = Self {
        name: "",
        summary: "",
        details: "",
        example: "",
        kind: Kind::Inspection,
        takes: Forms::ANY,
        gives: Gives::Same,
        reads: Reads::All,
        effect: None,
        needs: Needs::NONE,
        parameters: &[],
        classes: Classes::Same,
        groups: &[],
        reasons: &[],
        counters: &[],
        state: StateFacts::NONE,
        reports: false,
        analysis: Analysis::NONE,
        user: None,
        kernel: None,
        examined: &[],
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

    /// Returns the equivalence of several worker processes with these arguments to a single one.
    #[must_use]
    pub fn several_of(&self, arguments: &Arguments) -> Several {
        (self.state.several)(arguments)
    }

    /// Returns the effect of the filter with these arguments (CONTRACT 13), on which checks and
    /// planner rely.
    #[must_use]
    pub fn effect_of(&self, arguments: &Arguments) -> Effect {
        let always = Effect { kind: self.kind, gives: self.gives, reads: self.reads };
        self.effect.map_or(always, |effect| effect(arguments))
    }

    /// Returns true if its report is the output at the end of a request: it has one, and the blocks
    /// that it gives are those that it took. A filter that gives other blocks has those printed.
    #[must_use]
    pub const fn ends_with_report(&self) -> bool {
        self.reports && matches!(self.gives, Gives::Same)
    }

    /// The columns of what others may see of its state, and of which sessions; nothing where it
    /// keeps nothing that it shows.
    #[must_use]
    pub fn shown(&self) -> Option<(Whose, Vec<Column>)> {
        let own = self.state.shows?();
        Some(match self.state.keeps {
            Keeps::Sessions => (Whose::Sessions, [vec![SESSION], own].concat()),
            Keeps::Private | Keeps::Nothing | Keeps::Pinned(_) => (Whose::Private, own),
        })
    }

    /// The parameter with this name: its own, or one that all filters have.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<&'static Parameter> {
        self.all_parameters().find(|p| p.name == name)
    }

    /// Its own parameters, then those that all filters have, if it is one.
    pub fn all_parameters(&self) -> impl Iterator<Item = &'static Parameter> + Clone {
        let common: &[Parameter] = if self.user.is_some() { COMMON } else { &[] };
        self.parameters.iter().chain(common)
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
