//! The step of a build that opens the endpoints of a path: sources, sinks and programs.
//!
//! Input: nodes of the plan. Output: operators for these nodes. Endpoints that an embedding program
//! registers take precedence over the catalog.

use super::builder::Builder;
use crate::error::BuildError;
use crate::numbering::PlanNumbers;
use crate::path::origins::PathOrigins;
use crate::path::{PathOptions, RunSettings};
use crate::record::RecordMode;
use crate::record::event_player::{RecordedInput, RecordedSource, Replay};
use crate::sandbox::{self, FilterContext};
use endpoint::permitted_readers::PermittedReaders;
use endpoint::process::{Process, ProcessRole, StartedProcess};
use endpoint::{Failure, OpenArguments, Sink, Source};
use filter::{Arguments, FilterKind, Form, ParameterType, Value};
use pipeline::graph::{FilterUse, NodeId};
use pipeline::plan::Plan;
use runtime::space::node::{Operator, SinkOperator, SourceOperator};
use std::collections::HashSet;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use sys::memory::SegmentLender;
use sys::rollback::StepResource;

impl<'p> Builder<'p> {
    /// Returns the context in which this component's sources, sinks and programs are opened.
    pub(super) fn endpoint_context(&self) -> EndpointContext<'p> {
        let Self { plan, ids, origins, settings, extras, ref control, .. } = *self;
        EndpointContext { plan, ids, origins, settings, extras, stopped: control.stop_flag() }
    }
}

/// The context in which the sources, sinks and programs of a path are opened.
pub(super) struct EndpointContext<'p> {
    pub(super) plan: &'p Plan,
    pub(super) ids: &'p PlanNumbers,
    pub(super) origins: &'p PathOrigins,
    pub(super) settings: RunSettings,
    pub(super) extras: &'p PathOptions,
    /// True once the path has been stopped. Endpoints that wait while they are being opened check
    /// this flag and give up.
    pub(super) stopped: Arc<AtomicBool>,
}

impl EndpointContext<'_> {
    /// Opens a source. A replay opens a substitute that emits the recorded blocks instead.
    pub(super) fn open_source(&self, id: NodeId, used: &FilterUse) -> Result<Operator, BuildError> {
        if let RecordMode::Replay(replay) = &self.extras.record_mode {
            let (replay, planned) = (Arc::clone(replay), self.ids.nodes[id.0]);
            let source = Box::new(RecordedSource { replay, planned, process: None });
            return Ok(Operator::Source(SourceOperator::new(source)));
        }
        let name = used.description.name;
        self.extras.steps.announce_creation(StepResource::Descriptor, name)?;
        let own = self.settings.sources.iter().find(|entry| entry.description.name == name);
        let entry = own
            .or_else(|| endpoint::catalog::find_source(name))
            .ok_or_else(|| missing_entry_error("source", name))?;
        let source = (entry.open)(&self.open_arguments(id, used)).map_err(endpoint_error(id))?;
        Ok(Operator::Source(SourceOperator::new(source)))
    }

    /// Starts a program of the request. In a replay, starts no program, and returns substitutes for
    /// the nodes that write its input and read its output.
    pub(super) fn start_program(
        &self,
        id: NodeId,
        used: &FilterUse,
        stands: ProcessRole,
    ) -> Result<StartedProcess, BuildError> {
        let name = used.description.name;
        if let RecordMode::Replay(replay) = &self.extras.record_mode {
            return Ok(recorded_program_halves(replay, self.ids.nodes[id.0], used, stands));
        }
        let entry = endpoint::catalog::find_process(name)
            .ok_or_else(|| missing_entry_error("program", name))?;
        (entry.start)(&self.open_arguments(id, used), stands).map_err(endpoint_error(id))
    }

    /// Starts an untrusted filter in a process of its own. Blocks until the filter is ready. In a
    /// replay, starts no process, and returns substitutes for the nodes that write its input and
    /// read its output.
    pub(super) fn start_untrusted_filter(
        &self,
        id: NodeId,
        used: &FilterUse,
        about: FilterContext,
    ) -> Result<StartedProcess, BuildError> {
        if let RecordMode::Replay(replay) = &self.extras.record_mode {
            return Ok(recorded_program_halves(
                replay,
                self.ids.nodes[id.0],
                used,
                sandbox::PROCESS_ROLE,
            ));
        }
        let with = (self.extras.helper.as_deref(), &self.extras.steps);
        sandbox::start(used, (about, &self.origins.published), with).map_err(endpoint_error(id))
    }

    /// Opens a sink. Opens `discard` instead if the sinks of the path discard their output
    /// ([`PathOptions::discards_output`]), or if this is a replay and the sink would send frames or
    /// blocks to others.
    pub(super) fn open_sink(
        &self,
        id: NodeId,
        lent: &[Arc<dyn SegmentLender>],
    ) -> Result<Operator, BuildError> {
        let graph = &self.plan.graph;
        let node = graph.node(id);
        let Some(used) = node.filter() else {
            return Err(BuildError::Unexpected("a sink without a filter".to_owned()));
        };
        let into = self.extras.output_directory.as_deref();
        let arguments = into
            .map(|into| confine_file_arguments(used, into))
            .transpose()
            .map_err(endpoint_error(id))?;
        let readers = self.source_file_readers(id);
        let opening = OpenArguments {
            form: node.input_forms.first().copied().unwrap_or(Form::Bytes),
            other_forms: node.input_forms.get(1..).unwrap_or_default(),
            classes: &graph.input_classes(id),
            origins: self.origins.published.clone(),
            latency: self.plan.graph.options.number("latency"),
            lent,
            readers: &readers,
            live: matches!(self.extras.record_mode, RecordMode::Off) && self.has_live_source(),
            stopped: Arc::clone(&self.stopped),
            rollback_log: &self.extras.steps,
            ..OpenArguments::new(arguments.as_ref().unwrap_or(&used.arguments))
        };
        let silent = self.extras.discards_output
            || self.is_replay() && is_sending_sink(used.description.name);
        let name = if silent { "discard" } else { used.description.name };
        let own = self.settings.sinks.iter().find(|entry| entry.description.name == name);
        self.extras.steps.announce_creation(StepResource::Descriptor, name)?;
        let entry = own
            .or_else(|| endpoint::catalog::find_sink(name))
            .ok_or_else(|| missing_entry_error("sink", name))?;
        let sink = (entry.open)(&opening).map_err(endpoint_error(id))?;
        Ok(Operator::Sink(SinkOperator::new(sink)))
    }

    /// Returns true if the path has a source attached to an interface. Such a source never waits
    /// for the path.
    fn has_live_source(&self) -> bool {
        let graph = &self.plan.graph;
        let mut used = graph.nodes_with_ids().filter_map(|(id, _)| graph.node(id).filter());
        used.any(|used| used.endpoint.attach_point.is_some())
    }

    /// Returns the users who may read every source file whose blocks reach this node.
    fn source_file_readers(&self, id: NodeId) -> PermittedReaders {
        let graph = &self.plan.graph;
        let (mut readers, mut visited, mut open) =
            (PermittedReaders::default(), HashSet::new(), vec![id]);
        while let Some(id) = open.pop() {
            if !visited.insert(id.0) {
                continue;
            }
            open.extend(graph.edges.iter().filter(|edge| edge.to == id).map(|edge| edge.from));
            let Some(used) =
                graph.node(id).filter().filter(|used| used.description.kind == FilterKind::Source)
            else {
                continue;
            };
            let files =
                used.description.parameters.iter().filter(|p| p.kind == ParameterType::Path);
            let files = files.filter_map(|parameter| used.arguments.text(parameter.name));
            files.for_each(|file| readers.restrict_to_readers_of(file));
        }
        readers
    }

    /// Returns true if all input of the path comes from a recording.
    const fn is_replay(&self) -> bool {
        matches!(self.extras.record_mode, RecordMode::Replay(_))
    }

    /// Returns the parameters with which a source or a program of this path is opened.
    pub(super) fn open_arguments<'o>(
        &'o self,
        id: NodeId,
        used: &'o FilterUse,
    ) -> OpenArguments<'o> {
        OpenArguments {
            form: Form::Bytes,
            origin: self.origins.origin_of_node(self.ids.nodes[id.0]),
            origins: self.origins.published.clone(),
            pushed_filter: self.plan.pushed_filter(id),
            latency: self.plan.latency.as_ref().and_then(|latency| latency.source_share(id)),
            force: self.plan.graph.options.flag("force"),
            stopped: Arc::clone(&self.stopped),
            rollback_log: &self.extras.steps,
            ..OpenArguments::new(&used.arguments)
        }
    }
}

/// Returns substitutes for the two nodes that write the input of a program and read its output.
/// They serve a replay, in which the program does not run; its output comes from the recording.
fn recorded_program_halves(
    replay: &Arc<Replay>,
    planned: usize,
    used: &FilterUse,
    stands: ProcessRole,
) -> StartedProcess {
    let command = used.arguments.text("command").unwrap_or(used.description.name);
    let process = Arc::new(Process::new_recorded(command, stands));
    let input = (stands != ProcessRole::Head).then(|| {
        let (replay, process) = (Arc::clone(replay), Arc::clone(&process));
        Box::new(RecordedInput { replay, planned, process }) as Box<dyn Sink>
    });
    let output = (stands != ProcessRole::End).then(|| {
        let (replay, process) = (Arc::clone(replay), Some(Arc::clone(&process)));
        Box::new(RecordedSource { replay, planned, process }) as Box<dyn Source>
    });
    StartedProcess { input, output }
}

/// Returns a sink's arguments with its file names moved below `into`, and creates the directories
/// with mode 0700. Removes components such as `..`, so every file is below `into`. The name `-`
/// stays unchanged.
fn confine_file_arguments(used: &FilterUse, into: &Path) -> Result<Arguments, Failure> {
    let mut arguments = used.arguments.clone();
    let paths =
        used.description.parameters.iter().filter(|known| known.kind == ParameterType::Path);
    for known in paths {
        let Some(name) = arguments.text(known.name).filter(|name| *name != "-") else { continue };
        let plain = |part: &Component<'_>| matches!(part, Component::Normal(_));
        let path = into.join(Path::new(name).components().filter(plain).collect::<PathBuf>());
        let folder = path.parent().unwrap_or(into);
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|error| Failure::new("make", folder.to_string_lossy(), error))?;
        arguments.set(known.name, Value::Text(path.to_string_lossy().into_owned()));
    }
    Ok(arguments)
}

fn missing_entry_error(what: &str, name: &str) -> BuildError {
    BuildError::Unexpected(format!("no {what} is called `{name}`"))
}

fn endpoint_error(node: NodeId) -> impl Fn(Failure) -> BuildError {
    move |failure| BuildError::Outside { node, failure }
}

/// Returns true if a sink sends frames to a network or blocks to other programs; a replay must not
/// send.
fn is_sending_sink(name: &str) -> bool {
    let frames = [endpoint::sink::tx::TX.name, endpoint::sink::redirect::REDIRECT.name];
    let blocks = [
        endpoint::named_endpoints::ring_sinks::USER.name,
        endpoint::named_endpoints::ring_sinks::SOCKET.name,
    ];
    frames.contains(&name) || blocks.contains(&name)
}
