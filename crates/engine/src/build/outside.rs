//! Opening what lies outside: sources, sinks, programs.
//!
//! In: nodes of the plan. Out: what runs in the nodes of spaces. Each is looked for among what an
//! embedding program brought along, then in the catalogue.

use super::builder::Builder;
use crate::error::BuildError;
use crate::numbering::Ids;
use crate::path::origins::Origins;
use crate::path::{Extras, Settings};
use crate::record::Tape;
use crate::record::play::{Deaf, Played, Replay};
use crate::sandbox::{self, About};
use endpoint::process::{Process, Stands, Started};
use endpoint::readers::{EVERYBODY, Readers};
use endpoint::{Failure, Opening, Sink, Source};
use filter::{Arguments, Classes, Form, Kind, Type, Value};
use pipeline::graph::{NodeId, Use};
use pipeline::plan::Plan;
use runtime::space::node::{Part, SinkPart, SourcePart};
use std::collections::HashSet;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use sys::memory::Lender;
use sys::steps::Resource;

impl<'p> Builder<'p> {
    /// Returns the context in which this part opens its endpoints.
    pub(super) fn outside(&self) -> Outside<'p> {
        let Self { plan, ids, origins, settings, extras, .. } = *self;
        Outside { plan, ids, origins, settings, extras }
    }
}

/// The context in which endpoints are opened.
pub(super) struct Outside<'p> {
    pub(super) plan: &'p Plan,
    pub(super) ids: &'p Ids,
    pub(super) origins: &'p Origins,
    pub(super) settings: Settings,
    pub(super) extras: &'p Extras,
}

impl Outside<'_> {
    /// Opens a source.
    pub(super) fn source(&self, id: NodeId, used: &Use) -> Result<Part, BuildError> {
        if let Tape::Play(replay) = &self.extras.tape {
            let (replay, planned) = (Arc::clone(replay), self.ids.nodes[id.0]);
            let source = Box::new(Played { replay, planned, process: None });
            return Ok(Part::Source(SourcePart::new(source)));
        }
        let name = used.description.name;
        self.extras.steps.take(Resource::Descriptor, name)?;
        let own = self.settings.sources.iter().find(|entry| entry.description.name == name);
        let entry = own
            .or_else(|| endpoint::catalog::source(name))
            .ok_or_else(|| missing("source", name))?;
        let source = (entry.open)(&self.giving(id, used)).map_err(at(id))?;
        Ok(Part::Source(SourcePart::new(source)))
    }

    /// Starts a program.
    pub(super) fn program(
        &self,
        id: NodeId,
        used: &Use,
        stands: Stands,
    ) -> Result<Started, BuildError> {
        let name = used.description.name;
        if let Tape::Play(replay) = &self.extras.tape {
            return Ok(recorded(replay, self.ids.nodes[id.0], used, stands));
        }
        let entry = endpoint::catalog::process(name).ok_or_else(|| missing("program", name))?;
        (entry.start)(&self.giving(id, used), stands).map_err(at(id))
    }

    /// Starts a filter in a process of its own.
    pub(super) fn apart(
        &self,
        id: NodeId,
        used: &Use,
        about: About,
    ) -> Result<Started, BuildError> {
        if let Tape::Play(replay) = &self.extras.tape {
            return Ok(recorded(replay, self.ids.nodes[id.0], used, sandbox::STANDS));
        }
        let with = (self.extras.helper.as_deref(), &self.extras.steps);
        sandbox::start(used, (about, self.origins.told()), with).map_err(at(id))
    }

    /// Opens a sink.
    pub(super) fn sink(&self, id: NodeId, lent: &[Arc<dyn Lender>]) -> Result<Part, BuildError> {
        let graph = &self.plan.graph;
        let node = graph.node(id);
        let Some(used) = node.filter() else {
            return Err(BuildError::Unexpected("a sink without a filter".to_owned()));
        };
        let classes = node.classifiers.iter().filter_map(|id| graph.node(*id).filter()).next();
        let into = self.extras.into.as_deref();
        let arguments = into.map(|into| within(used, into)).transpose().map_err(at(id))?;
        let readers = self.readers(id);
        let opening = Opening {
            arguments: arguments.as_ref().unwrap_or(&used.arguments),
            form: node.comes.first().copied().unwrap_or(Form::Bytes),
            classes: classes.map_or(Classes::Same, |used| used.description.classes),
            origin: 0,
            origins: self.origins.told().clone(),
            ahead: None,
            latency: self.plan.graph.options.number("latency"),
            force: false,
            lent,
            readers: &readers,
            steps: &self.extras.steps,
        };
        let silent = self.extras.silent || self.is_played() && is_sending(used.description.name);
        let name = if silent { "discard" } else { used.description.name };
        let own = self.settings.sinks.iter().find(|entry| entry.description.name == name);
        self.extras.steps.take(Resource::Descriptor, name)?;
        let entry =
            own.or_else(|| endpoint::catalog::sink(name)).ok_or_else(|| missing("sink", name))?;
        let sink = (entry.open)(&opening).map_err(at(id))?;
        Ok(Part::Sink(SinkPart::new(sink)))
    }

    /// Returns the users that may read all files from which blocks reach this node.
    fn readers(&self, id: NodeId) -> Readers {
        let graph = &self.plan.graph;
        let (mut readers, mut seen, mut open) = (Readers::default(), HashSet::new(), vec![id]);
        while let Some(id) = open.pop() {
            if !seen.insert(id.0) {
                continue;
            }
            open.extend(graph.edges.iter().filter(|edge| edge.to == id).map(|edge| edge.from));
            let Some(used) =
                graph.node(id).filter().filter(|used| used.description.kind == Kind::Source)
            else {
                continue;
            };
            let files = used.description.parameters.iter().filter(|p| p.kind == Type::Path);
            let files = files.filter_map(|parameter| used.arguments.text(parameter.name));
            files.for_each(|file| readers.and(file));
        }
        readers
    }

    /// Returns true if all input comes from a record.
    const fn is_played(&self) -> bool {
        matches!(self.extras.tape, Tape::Play(_))
    }

    /// Returns the arguments with which a source of blocks is opened.
    pub(super) fn giving<'o>(&'o self, id: NodeId, used: &'o Use) -> Opening<'o> {
        Opening {
            arguments: &used.arguments,
            form: Form::Bytes,
            classes: Classes::Same,
            origin: self.origins.at(self.ids.nodes[id.0]),
            origins: self.origins.told().clone(),
            ahead: self.plan.ahead(id),
            latency: self.plan.latency.as_ref().and_then(|latency| latency.of_source(id)),
            force: self.plan.graph.options.flag("force"),
            lent: &[],
            readers: &EVERYBODY,
            steps: &self.extras.steps,
        }
    }
}

/// The halves of a program that is not run again: what it wrote is in the record.
fn recorded(replay: &Arc<Replay>, planned: usize, used: &Use, stands: Stands) -> Started {
    let command = used.arguments.text("command").unwrap_or(used.description.name);
    let process = Arc::new(Process::recorded(command, stands));
    let input = (stands != Stands::Head).then(|| {
        let (replay, process) = (Arc::clone(replay), Arc::clone(&process));
        Box::new(Deaf { replay, planned, process }) as Box<dyn Sink>
    });
    let output = (stands != Stands::End).then(|| {
        let (replay, process) = (Arc::clone(replay), Some(Arc::clone(&process)));
        Box::new(Played { replay, planned, process }) as Box<dyn Source>
    });
    Started { input, output }
}

/// The arguments of a sink whose files are to lie in another folder, whatever they are called: no
/// name leads out of it.
fn within(used: &Use, into: &Path) -> Result<Arguments, Failure> {
    let mut arguments = used.arguments.clone();
    let paths = used.description.parameters.iter().filter(|known| known.kind == Type::Path);
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

fn missing(what: &str, name: &str) -> BuildError {
    BuildError::Unexpected(format!("no {what} is called `{name}`"))
}

fn at(node: NodeId) -> impl Fn(Failure) -> BuildError {
    move |failure| BuildError::Outside { node, failure }
}

/// Returns true if a sink sends frames into a network, which a replay must not do.
fn is_sending(name: &str) -> bool {
    [endpoint::sink::tx::TX.name, endpoint::sink::redirect::REDIRECT.name].contains(&name)
}
