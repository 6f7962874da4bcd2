//! The catalog entry of a filter, which the planner and the checks of requests read. Help,
//! completion, man page, counters and tests are derived from it.
//!
//! Sources and sinks have entries of the same type. The crate `endpoint` contains these entries,
//! and the functions that open sources and sinks.

use super::signature::{
    Classes, Effect, FilterKind, FilterRight, Form, Forms, OutputForm, ReadDepth, ValueRange,
};
use super::{
    Arguments, COMMON_PARAMETERS, Column, Counter, Filter, Mistake, Parameter, Reason,
    SESSION_COLUMN, StateScope,
};
use super::{PublishedSessions, StateFacts, WorkerRule};
use ebpf::emit::EmitFn;
use wire::LinkType;

/// Those blocks from one upstream filter that a filter or sink can use. A description needs this if
/// the form of the blocks does not decide. For example, a response without its request is a
/// message, but a sink for web server logs cannot record it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UsableInput {
    /// Name of the upstream filter.
    pub upstream: &'static str,
    /// Classes of the upstream filter's blocks that can be used.
    pub classes: ValueRange,
    /// Suggestion for the user if no usable block arrives, such as "put `udp` before it".
    pub hint: &'static str,
}

/// A function that creates a filter from its arguments.
pub type FilterConstructor = fn(&Arguments) -> Result<Filter, Mistake>;

/// A function that tests whether the socket filter of a source can do the work of a filter, so that
/// the kernel discards the frames that the filter rejects. Returns a note on frames that bypass the
/// socket filter (`None` if no frame does). Fails with the reason if the socket filter cannot do
/// the work.
pub type PushdownTest = fn(&Arguments) -> Result<Option<&'static str>, String>;

/// A function that returns the link types of the frames that a filter emits. `None` means that they
/// are the link types of the input. An empty list means that they are unknown before the first
/// frame, or that the output has no frames.
pub type OutputLinkTypesFn = fn(&Arguments) -> Option<&'static [LinkType]>;

/// A function that checks the combination of a filter's or source's arguments, each of which is
/// valid by itself. Returns the mistake in the combination, or `None` if there is none. If the
/// function checks for errors, the mistake makes the combination invalid. If it checks for
/// warnings, the arguments match nothing, or less than the user may expect.
pub type ArgumentCheck = fn(&Arguments) -> Option<Mistake>;

/// A function that returns a parameter, and the value that a check inserts for it into the request,
/// so that the request means the same on every machine and at any time. Returns `None` if no
/// parameter needs to be inserted.
pub type FixedParameterFn = fn(&Arguments) -> Option<(&'static str, String)>;

/// Static facts about a filter, source or sink.
///
/// Facts that few filters need are grouped: [`InputNeeds`], [`StateFacts`], [`ArgumentAnalysis`].
#[derive(Clone, Copy, Debug)]
pub struct Description {
    /// Name of the filter in requests, of the form `[a-z][a-z0-9_]*`.
    pub name: &'static str,
    /// Summary of the filter in one line of at most 72 columns.
    pub summary: &'static str,
    /// Full help text of the filter: purpose, classes, and every reason for a drop.
    pub details: &'static str,
    /// An example request that uses the filter.
    pub example: &'static str,

    /// The strongest right that the filter uses with any arguments.
    pub kind: FilterKind,
    /// Forms of input that the filter accepts.
    pub input_forms: Forms,
    /// Form of the output, unless `effect` returns another.
    pub output_form: OutputForm,
    /// Advice for users of a source that emits streams or messages outside of frames: the argument
    /// with which the source emits frames instead. `None` for all other entries.
    pub frames_hint: Option<&'static str>,
    /// The part of a frame that the filter reads, unless `effect` returns another.
    pub reads: ReadDepth,
    /// Function that returns the kind, the output form and the read depth of the filter with the
    /// given arguments. `None` if they do not depend on the arguments. Callers use
    /// [`Description::effect_of`] instead. The kind of a source or sink is always
    /// [`Description::kind`].
    pub effect: Option<fn(&Arguments) -> Effect>,
    /// Restrictions on the filter's input, in addition to its form.
    pub needs: InputNeeds,

    /// Parameters of the filter. Positional values are assigned to them in this order.
    pub parameters: &'static [Parameter],
    /// Classes that the filter may assign to blocks.
    pub classes: Classes,
    /// Classes that an arc selects only by naming them: `|`, `|all` and `|!get` do not select them.
    /// The filter assigns these classes only if an arc names them. `None` if the filter has no such
    /// classes.
    pub classes_on_request: Option<ValueRange>,
    /// Names of class ranges that an arc can select, as in `|request`.
    pub class_groups: &'static [(&'static str, ValueRange)],
    /// Reasons for a missing class or a drop. A [`Reason`] is an index into this list.
    pub reasons: &'static [&'static str],
    /// Names of the filter's own counters. A [`Counter`] is an index into this list.
    pub counters: &'static [&'static str],

    /// The state that the filter keeps between blocks.
    pub state: StateFacts,
    /// True if the filter has a report, which is printed when the path stops.
    pub has_report: bool,
    /// Names of the report rows that are totals; all other rows are the buckets of a histogram.
    /// `None` if the report is not a histogram.
    pub histogram_totals: Option<&'static [&'static str]>,
    /// Functions that compute facts from the filter's arguments, for the checks and the planner.
    pub analysis: ArgumentAnalysis,

    /// Function that creates the filter in user space. `None` for sources and sinks, which the
    /// crate `endpoint` opens.
    pub constructor: Option<FilterConstructor>,
    /// Function that emits the filter's twin as eBPF, for Ethernet frames (CONTRACT 18). `None` if
    /// the filter has no twin.
    pub emit_twin: Option<EmitFn<Arguments>>,
    /// Right that an unprivileged user needs to run the filter's twin in the kernel. `None` if the
    /// user needs no right.
    pub twin_right: Option<FilterRight>,
    /// Arguments for the tests of the twin, each entry as written after the filter's name in a
    /// request. If empty, the tests use the arguments of the example.
    pub twin_test_arguments: &'static [&'static str],
}

/// Restrictions on the input of a filter or sink, in addition to the form of the input.
#[derive(Clone, Copy, Debug)]
pub struct InputNeeds {
    /// Usable blocks of each upstream filter. Empty if every block is usable.
    pub usable_inputs: &'static [UsableInput],
    /// Description of the input that the filter needs, for the warning that no usable block
    /// arrives. If the text is empty, blocks of upstream filters that `usable_inputs` does not list
    /// are usable too.
    pub required_input: &'static str,
    /// Classes that exist only if the input contains both directions of a connection, or `None` if
    /// there are no such classes.
    pub two_way_classes: Option<ValueRange>,
}

impl InputNeeds {
    /// Needs of a filter or sink without restrictions on its input.
    pub const NONE: Self = Self { usable_inputs: &[], required_input: "", two_way_classes: None };

    /// Creates the needs of a filter or sink that can use only these blocks of upstream filters.
    #[must_use]
    pub const fn from_usable_inputs(usable: &'static [UsableInput]) -> Self {
        Self { usable_inputs: usable, ..Self::NONE }
    }
}

/// Functions that compute facts from a filter's arguments. The checks and the planner call them.
#[derive(Clone, Copy, Debug)]
pub struct ArgumentAnalysis {
    /// Tests whether the socket filter of a source can do the work of the filter. Set only for
    /// filters whose class depends on the frame alone, otherwise `None`.
    pub pushdown: Option<PushdownTest>,
    /// Returns the link types of output frames. This field is `None` if the output always has the
    /// link types of the input.
    pub output_links: Option<OutputLinkTypesFn>,
    /// Returns a parameter whose value depends on the machine, and the value on this machine. The
    /// check of a request inserts both into the request. `None` if the filter has no such
    /// parameter.
    pub fix_parameter: Option<FixedParameterFn>,
    /// Returns the mistake if each argument of a source is valid but their combination is not.
    /// `None` for sources without such a check, and for filters, which report such a mistake when
    /// they are created.
    pub argument_error: Option<ArgumentCheck>,
    /// Function that returns a warning about the arguments, which `check`, `explain` and the start
    /// of a run print. `None` for a filter without such warnings.
    pub warning: Option<ArgumentCheck>,
    /// Returns a remark that `explain` prints, or `None` if there is nothing to remark.
    pub remark: Option<fn(&Arguments) -> Option<String>>,
    /// Returns a setting of the filter that depends on its position in the graph: on the classes
    /// that its arcs select, on the form of its input, or on its twin in the kernel. If a change of
    /// the running path changes the setting, a new instance of the filter takes over the state of
    /// the old one. `None` if the filter has no such setting.
    pub context_setting: Option<fn(&Arguments) -> bool>,
}

impl ArgumentAnalysis {
    /// No functions: every field is `None`.
    pub const NONE: Self = Self {
        pushdown: None,
        output_links: None,
        fix_parameter: None,
        argument_error: None,
        warning: None,
        remark: None,
        context_setting: None,
    };
}

impl Description {
    /// Returns true if both descriptions are the same catalog entry. Names are compared rather than
    /// addresses, because each use of a constant may have its own address.
    #[must_use]
    pub fn is_same_entry(&self, other: &Self) -> bool {
        self.name == other.name && self.kind == other.kind
    }

    /// Default field values for the entry of a filter.
    pub const FILTER_DEFAULTS: Self = Self {
        name: "",
        summary: "",
        details: "",
        example: "",
        kind: FilterKind::Inspection,
        input_forms: Forms::ANY,
        output_form: OutputForm::Same,
        frames_hint: None,
        reads: ReadDepth::All,
        effect: None,
        needs: InputNeeds::NONE,
        parameters: &[],
        classes: Classes::Same,
        classes_on_request: None,
        class_groups: &[],
        reasons: &[],
        counters: &[],
        state: StateFacts::NONE,
        has_report: false,
        histogram_totals: None,
        analysis: ArgumentAnalysis::NONE,
        constructor: None,
        emit_twin: None,
        twin_right: None,
        twin_test_arguments: &[],
    };

    /// Default field values for the entry of a sink.
    pub const SINK_DEFAULTS: Self =
        Self { kind: FilterKind::Sink, output_form: OutputForm::Nothing, ..Self::FILTER_DEFAULTS };

    /// Default field values for the entry of a source that emits frames.
    pub const SOURCE_DEFAULTS: Self = Self {
        kind: FilterKind::Source,
        input_forms: Forms::NONE,
        output_form: OutputForm::Form(Form::Frame),
        ..Self::FILTER_DEFAULTS
    };

    /// Returns the reason with this name. Panics if the description lacks the name; in a constant,
    /// this is a compile error.
    #[must_use]
    pub const fn reason(&self, name: &str) -> Reason {
        Reason::from_name(self.reasons, name)
    }

    /// Returns the counter with this name. Panics if the description lacks the name; in a constant,
    /// this is a compile error.
    #[must_use]
    pub const fn counter(&self, name: &str) -> Counter {
        Counter::from_name(self.counters, name)
    }

    /// Returns the rule for running the filter, with these arguments, in several worker processes.
    #[must_use]
    pub fn worker_rule(&self, arguments: &Arguments) -> WorkerRule {
        (self.state.worker_rule)(arguments)
    }

    /// Returns the effect of the filter with these arguments (CONTRACT 13).
    #[must_use]
    pub fn effect_of(&self, arguments: &Arguments) -> Effect {
        let always = Effect { kind: self.kind, output_form: self.output_form, reads: self.reads };
        self.effect.map_or(always, |effect| effect(arguments))
    }

    /// Returns true if a request that ends with this filter prints the filter's report as its
    /// output. This is the case for a filter that has a report and passes its input unchanged. If a
    /// request ends with any other filter, it prints the blocks.
    #[must_use]
    pub const fn ends_with_report(&self) -> bool {
        self.has_report && matches!(self.output_form, OutputForm::Same)
    }

    /// Returns the kind of sessions that the filter publishes, and the columns of a published row.
    /// Returns `None` if the filter publishes nothing.
    #[must_use]
    pub fn published_state(&self) -> Option<(PublishedSessions, Vec<Column>)> {
        let own = self.state.published_columns?();
        Some(match self.state.scope {
            StateScope::Sessions => {
                (PublishedSessions::Sessions, [vec![SESSION_COLUMN], own].concat())
            }
            StateScope::Private | StateScope::Nothing | StateScope::Pinned(_) => {
                (PublishedSessions::Private, own)
            }
        })
    }

    /// Returns the parameter with this name, either the filter's own or one common to all filters,
    /// or `None` if the name is unknown.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<&'static Parameter> {
        self.all_parameters().find(|p| p.name == name)
    }

    /// Returns the parameters of this description, followed, for a filter, by the parameters common
    /// to all filters.
    pub fn all_parameters(&self) -> impl Iterator<Item = &'static Parameter> + Clone {
        let common: &[Parameter] = if self.constructor.is_some() { COMMON_PARAMETERS } else { &[] };
        self.parameters.iter().chain(common)
    }
}
