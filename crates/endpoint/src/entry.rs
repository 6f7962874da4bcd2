//! Catalog entries of sources, sinks and programs.

use crate::contract::{OpenArguments, Sink, Source, StartedProcess};
use crate::failure::Failure;
use crate::process::child::ProcessRole;
use filter::{Arguments, Description, EndpointFacts, Mistake, StandardOutput};
use wire::LinkType;

/// Catalog entry of a source.
#[derive(Clone, Copy, Debug)]
pub struct SourceEntry {
    /// Name, parameters and help of the source.
    pub description: &'static Description,
    /// Opens the source. A failed call leaves no side effects.
    pub open: fn(&OpenArguments<'_>) -> Result<Box<dyn Source>, Failure>,
    /// Returns the link types of the frames for these arguments without opening the source, or
    /// `None` if they are unknown until the first frame.
    pub link_types: fn(&Arguments) -> Option<Vec<LinkType>>,
    /// Facts about the source, for the planner.
    pub facts: EndpointFacts,
}

impl SourceEntry {
    /// Creates the entry of a source with unknown link types and no facts.
    #[must_use]
    pub const fn new(
        description: &'static Description,
        open: fn(&OpenArguments<'_>) -> Result<Box<dyn Source>, Failure>,
    ) -> Self {
        Self { description, open, link_types: |_| None, facts: EndpointFacts::NONE }
    }

    /// Sets the function that predicts the link types of a source, without opening it
    /// ([`Self::link_types`]).
    #[must_use]
    pub const fn with_link_type_prediction(
        self,
        links: fn(&Arguments) -> Option<Vec<LinkType>>,
    ) -> Self {
        Self { link_types: links, ..self }
    }

    /// Sets the facts about the source ([`Self::facts`]), which the planner uses.
    #[must_use]
    pub const fn with_facts(self, facts: EndpointFacts) -> Self {
        Self { facts, ..self }
    }
}

/// Catalog entry of a sink.
#[derive(Clone, Copy, Debug)]
pub struct SinkEntry {
    /// Name, parameters and help of the sink.
    pub description: &'static Description,
    /// Opens the sink. A failed call leaves no side effects.
    pub open: fn(&OpenArguments<'_>) -> Result<Box<dyn Sink>, Failure>,
    /// Facts about the sink, for the planner.
    pub facts: EndpointFacts,
}

impl SinkEntry {
    /// Creates the entry of a sink without facts.
    #[must_use]
    pub const fn new(
        description: &'static Description,
        open: fn(&OpenArguments<'_>) -> Result<Box<dyn Sink>, Failure>,
    ) -> Self {
        Self { description, open, facts: EndpointFacts::NONE }
    }

    /// Sets the facts about the sink ([`Self::facts`]), which the planner uses.
    #[must_use]
    pub const fn with_facts(self, facts: EndpointFacts) -> Self {
        Self { facts, ..self }
    }

    /// Marks the sink as one that writes files. Such a sink runs in its own space, so that a slow
    /// disk delays no other branch.
    #[must_use]
    pub const fn with_file_writes(self) -> Self {
        self.with_facts(EndpointFacts { writes_files: true, ..self.facts })
    }

    /// Sets the function that returns how a sink with given arguments uses standard output
    /// ([`EndpointFacts::standard_output`]).
    #[must_use]
    pub const fn with_standard_output(self, used: fn(&Arguments) -> StandardOutput) -> Self {
        self.with_facts(EndpointFacts { standard_output: Some(used), ..self.facts })
    }

    /// Sets the predicate for sinks that write files. It returns true if a sink with these
    /// arguments only appends to one open file ([`EndpointFacts::only_appends`]).
    #[must_use]
    pub const fn with_append_only(self, appends: fn(&Arguments) -> bool) -> Self {
        self.with_facts(EndpointFacts { only_appends: Some(appends), ..self.facts })
    }
}

/// Returns how a sink that writes lines to the file named in its argument `file` uses standard
/// output.
pub(crate) fn standard_output_use(arguments: &Arguments) -> StandardOutput {
    match is_file_standard_output(arguments) {
        true => StandardOutput::Lines,
        false => StandardOutput::Unused,
    }
}

/// Returns true if the argument `file` of a sink stands for standard output.
pub(crate) fn is_file_standard_output(arguments: &Arguments) -> bool {
    arguments.text("file").is_some_and(is_standard_output)
}

/// Returns true if `path`, the name of an output file, stands for standard output.
pub(crate) fn is_standard_output(path: &str) -> bool {
    matches!(path, "-" | "/dev/stdout" | "/dev/fd/1" | "/proc/self/fd/1")
}

/// Catalog entry of a child program, which is allowed at any position in a request.
#[derive(Clone, Copy, Debug)]
pub struct ProcessEntry {
    /// Description of the program at any position of a request except the first.
    pub description: &'static Description,
    /// Description of the program at the head of a request, where it acts as a source.
    pub head_description: &'static Description,
    /// Facts about the program, for the planner.
    pub facts: EndpointFacts,
    /// Checks the text of a command. Returns a mistake if no shell can run the command, otherwise
    /// `None`.
    pub command_error: fn(&str) -> Option<Mistake>,
    /// Starts the program. After a failure no process is running.
    pub start: fn(&OpenArguments<'_>, ProcessRole) -> Result<StartedProcess, Failure>,
}
