//! Catalog entry of a filter, from which the planner, help, completion, man page, counters and
//! tests are derived.
//!
//! Sources and sinks have entries of the same type. The crate `endpoint` contains these entries,
//! and the functions that open sources and sinks.

use super::signature::{
    Classes, Effect, FilterKind, Form, Forms, OutputForm, ReadDepth, Right, ValueRange,
};
use super::{
    Arguments, COMMON, Column, Counter, Filter, Mistake, Parameter, Reason, SESSION, StateScope,
};
use super::{PublishedSessions, StateFacts, WorkerRule};
use ebpf::emit::Emit;
use wire::LinkType;

/// The blocks of one upstream filter that a filter or sink can use. Needed where the form of blocks
/// is too coarse: a response alone is a message, but a web server's log has no line for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UsableInput {
    /// Name of the upstream filter.
    pub giver: &'static str,
    /// Classes of its usable blocks.
    pub classes: ValueRange,
    /// True if the upstream filter produces these blocks only for an arc that selects one of the
    /// classes.
    pub on_request: bool,
    /// A valid request, shown to the user as a hint.
    pub hint: &'static str,
}

/// Creates a filter from its arguments.
pub type MakeFilter = fn(&Arguments) -> Result<Filter, Mistake>;

/// Tests if the socket filter of a source can do the work of the filter, before frames reach the
/// process. Returns a note on frames that bypass the socket filter (`None` if no frame does), or
/// the reason why it cannot.
pub type PushdownTest = fn(&Arguments) -> Result<Option<&'static str>, String>;

/// Returns the link types of the filter's output frames. `None` means that they are those of the
/// input. An empty list means that they are unknown before the first frame, or that the output has
/// no frames.
pub type OutputLinks = fn(&Arguments) -> Option<&'static [LinkType]>;

/// Returns a warning for arguments that are valid but match nothing, or less than the user may
/// expect.
pub type ArgumentWarning = fn(&Arguments) -> Option<Mistake>;

/// Returns a parameter and a value to insert into the request, which fix its meaning on every
/// machine and at every time. Returns `None` if all such parameters are present.
pub type FixParameter = fn(&Arguments) -> Option<(&'static str, String)>;

/// Static facts about a filter, source or sink.
///
/// Rarely needed facts are grouped: [`InputNeeds`], [`StateFacts`], [`Analysis`].
#[derive(Clone, Copy, Debug)]
pub struct Description {
    /// The name in a request: `[a-z][a-z0-9_]*`.
    pub name: &'static str,
    /// Summary of one line, at most 72 columns.
    pub summary: &'static str,
    /// The full help text: purpose, classes, every reason for a drop.
    pub details: &'static str,
    /// An example request.
    pub example: &'static str,

    /// The strongest right that the filter uses with any arguments.
    pub kind: FilterKind,
    /// Forms of input that the filter accepts.
    pub input_forms: Forms,
    /// Form of the output, unless `effect` returns another.
    pub output_form: OutputForm,
    /// The part of a frame that the filter reads, unless `effect` returns another.
    pub reads: ReadDepth,
    /// Returns kind, output form and read depth for given arguments; `None` if they do not depend
    /// on the arguments. Callers use [`Description::effect_of`]. The kind of a source or sink is
    /// always [`Description::kind`].
    pub effect: Option<fn(&Arguments) -> Effect>,
    /// Restrictions on the input beyond its form.
    pub needs: InputNeeds,

    /// Parameters of the filter, positional ones in their order.
    pub parameters: &'static [Parameter],
    /// Classes that the filter gives to blocks.
    pub classes: Classes,
    /// Names for ranges of classes, which an arc can select: `|request`.
    pub groups: &'static [(&'static str, ValueRange)],
    /// Reasons for a missing class or a drop. A [`Reason`] is an index into this list.
    pub reasons: &'static [&'static str],
    /// Names of further counters. A [`Counter`] is an index into this list.
    pub counters: &'static [&'static str],

    /// The state that the filter keeps between blocks.
    pub state: StateFacts,
    /// True if the filter prints a report when the path stops
    /// ([`Description::ends_with_report`]).
    pub reports: bool,
    /// Functions of the filter's arguments, called by the checks and the planner.
    pub analysis: Analysis,

    /// Creates the user-space filter. `None` for sources and sinks, which the crate `endpoint`
    /// opens.
    pub user: Option<MakeFilter>,
    /// Emits the filter's twin as eBPF, for Ethernet frames (CONTRACT 18); `None` if the filter has
    /// no twin.
    pub kernel: Option<Emit<Arguments>>,
    /// Right that an unprivileged user needs to run the filter in the kernel; `None` if no right is
    /// needed.
    pub right: Option<Right>,
    /// Argument texts for the tests of the twin, each as written after the filter's name in a
    /// request. If empty, the tests use the arguments of the example.
    pub examined: &'static [&'static str],
}

/// Restrictions on the input of a filter or sink beyond its form.
#[derive(Clone, Copy, Debug)]
pub struct InputNeeds {
    /// Usable blocks per emitting filter; empty if every block is usable.
    pub usable: &'static [UsableInput],
    /// Description of the required input, for the warning that no usable block arrives. If empty,
    /// blocks of filters that `usable` does not list are usable too.
    pub otherwise: &'static str,
    /// Classes that require both directions of a connection in the input; `None` if no class does.
    pub both_ways: Option<ValueRange>,
}

impl InputNeeds {
    /// No restriction.
    pub const NONE: Self = Self { usable: &[], otherwise: "", both_ways: None };

    /// Creates the restriction to these blocks.
    #[must_use]
    pub const fn of(usable: &'static [UsableInput]) -> Self {
        Self { usable, ..Self::NONE }
    }
}

/// Functions of a filter's arguments, called by the checks and the planner.
#[derive(Clone, Copy, Debug)]
pub struct Analysis {
    /// Tests if the socket filter of a source can do the work of the filter. Set only for filters
    /// whose class depends on nothing but the frame.
    pub pushdown: Option<PushdownTest>,
    /// Returns the link types of output frames; `None` if they always equal those of the input.
    pub output_links: Option<OutputLinks>,
    /// Returns the value of a machine-dependent parameter for insertion into the request, when the
    /// request is made.
    pub fix_parameter: Option<FixParameter>,
    /// Returns the mistake in arguments of a source that are valid one by one but not together. A
    /// filter reports such a mistake when it is created, but a source has no user implementation to
    /// create.
    pub refuses: Option<ArgumentWarning>,
    /// Returns a warning that `check`, `explain` and the start of a run print; `None` if there is
    /// none.
    pub warning: Option<ArgumentWarning>,
    /// Returns a remark that `explain` prints; `None` if there is nothing to remark.
    pub remark: Option<fn(&Arguments) -> Option<String>>,
}

impl Analysis {
    /// No functions.
    pub const NONE: Self = Self {
        pushdown: None,
        output_links: None,
        fix_parameter: None,
        refuses: None,
        warning: None,
        remark: None,
    };
}

impl Description {
    /// Returns true if both descriptions are the same catalog entry. Compares names, because each
    /// use of a constant may have an address of its own.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        self.name == other.name && self.kind == other.kind
    }

    /// Default values for the fields of a filter.
    pub const EMPTY: Self = Self {
        name: "",
        summary: "",
        details: "",
        example: "",
        kind: FilterKind::Inspection,
        input_forms: Forms::ANY,
        output_form: OutputForm::Same,
        reads: ReadDepth::All,
        effect: None,
        needs: InputNeeds::NONE,
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
        right: None,
        examined: &[],
    };

    /// Default values for the fields of a sink.
    pub const SINK: Self =
        Self { kind: FilterKind::Sink, output_form: OutputForm::Nothing, ..Self::EMPTY };

    /// Default values for the fields of a source; its output form is frames.
    pub const SOURCE: Self = Self {
        kind: FilterKind::Source,
        input_forms: Forms::NONE,
        output_form: OutputForm::Form(Form::Frame),
        ..Self::EMPTY
    };

    /// Returns the reason with this name. In a constant, an unknown name fails to compile.
    #[must_use]
    pub const fn reason(&self, name: &str) -> Reason {
        Reason::named(self.reasons, name)
    }

    /// Returns the counter with this name. In a constant, an unknown name fails to compile.
    #[must_use]
    pub const fn counter(&self, name: &str) -> Counter {
        Counter::named(self.counters, name)
    }

    /// Returns the rule for running the filter with these arguments in several worker processes.
    #[must_use]
    pub fn worker_rule(&self, arguments: &Arguments) -> WorkerRule {
        (self.state.several)(arguments)
    }

    /// Returns the effect of the filter with these arguments (CONTRACT 13).
    #[must_use]
    pub fn effect_of(&self, arguments: &Arguments) -> Effect {
        let always = Effect { kind: self.kind, output_form: self.output_form, reads: self.reads };
        self.effect.map_or(always, |effect| effect(arguments))
    }

    /// Returns true if a request that ends with this filter prints the filter's report as its
    /// output. This holds for a filter that has a report and passes its input unchanged. After
    /// other filters, the blocks are printed.
    #[must_use]
    pub const fn ends_with_report(&self) -> bool {
        self.reports && matches!(self.output_form, OutputForm::Same)
    }

    /// Returns which sessions the filter publishes, and the columns of a row; `None` if it
    /// publishes nothing.
    #[must_use]
    pub fn published(&self) -> Option<(PublishedSessions, Vec<Column>)> {
        let own = self.state.publishes?();
        Some(match self.state.scope {
            StateScope::Sessions => (PublishedSessions::Sessions, [vec![SESSION], own].concat()),
            StateScope::Private | StateScope::Nothing | StateScope::Pinned(_) => {
                (PublishedSessions::Private, own)
            }
        })
    }

    /// Returns the parameter with this name, either the filter's own or one common to all filters;
    /// `None` if the name is unknown.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<&'static Parameter> {
        self.all_parameters().find(|p| p.name == name)
    }

    /// Returns the parameters of this description, followed, for a filter, by the parameters common
    /// to all filters.
    pub fn all_parameters(&self) -> impl Iterator<Item = &'static Parameter> + Clone {
        let common: &[Parameter] = if self.user.is_some() { COMMON } else { &[] };
        self.parameters.iter().chain(common)
    }
}
