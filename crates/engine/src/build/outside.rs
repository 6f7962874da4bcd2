//! Opening what lies outside: sources, sinks, programs.
//!
//! In: nodes of the plan. Out: what runs in the nodes of spaces. Each is looked for among what an
//! embedding program brought along, then in the catalogue.

use super::{BuildError, Settings, sources};
use crate::space::node::{Part, SinkPart, SourcePart};
use endpoint::process::{Stands, Started};
use endpoint::{Failure, Opening};
use filter::{Classes, Form};
use pipeline::graph::{NodeId, Use};
use pipeline::plan::Plan;
use std::sync::Arc;
use sys::memory::Lender;

/// What is needed to open anything.
pub(super) struct Outside<'p> {
    pub(super) plan: &'p Plan,
    pub(super) origins: &'p [String],
    pub(super) settings: Settings,
}

impl Outside<'_> {
    /// Opens a source.
    pub(super) fn source(&self, id: NodeId, used: &Use) -> Result<Part, BuildError> {
        let name = used.description.name;
        let own = self.settings.sources.iter().find(|entry| entry.description.name == name);
        let entry = own
            .or_else(|| endpoint::catalog::source(name))
            .ok_or_else(|| missing("source", name))?;
        let source = (entry.open)(&self.giving(id, used)).map_err(at(id))?;
        Ok(Part::Source(SourcePart { source, ended: false }))
    }

    /// Starts a program.
    pub(super) fn program(
        &self,
        id: NodeId,
        used: &Use,
        stands: Stands,
    ) -> Result<Started, BuildError> {
        let name = used.description.name;
        let entry = endpoint::catalog::process(name).ok_or_else(|| missing("program", name))?;
        (entry.start)(&self.giving(id, used), stands).map_err(at(id))
    }

    /// Opens a sink.
    pub(super) fn sink(&self, id: NodeId, lent: &[Arc<dyn Lender>]) -> Result<Part, BuildError> {
        let graph = &self.plan.graph;
        let node = graph.node(id);
        let Some(used) = node.filter() else {
            return Err(BuildError::Unexpected("a sink without a filter".to_owned()));
        };
        let classes = node.classifiers.iter().filter_map(|id| graph.node(*id).filter()).next();
        let opening = Opening {
            arguments: &used.arguments,
            form: node.comes.first().copied().unwrap_or(Form::Bytes),
            classes: classes.map_or(Classes::Same, |used| used.description.classes),
            origin: 0,
            origins: self.origins,
            ahead: None,
            latency: self.plan.graph.options.number("latency"),
            force: false,
            lent,
        };
        let name = used.description.name;
        let own = self.settings.sinks.iter().find(|entry| entry.description.name == name);
        let entry =
            own.or_else(|| endpoint::catalog::sink(name)).ok_or_else(|| missing("sink", name))?;
        let sink = (entry.open)(&opening).map_err(at(id))?;
        Ok(Part::Sink(SinkPart { sink, report: None }))
    }

    /// What is told to whoever gives blocks of its own.
    fn giving<'o>(&'o self, id: NodeId, used: &'o Use) -> Opening<'o> {
        let origin = sources(&self.plan.graph).position(|(other, _)| other == id).unwrap_or(0);
        Opening {
            arguments: &used.arguments,
            form: Form::Bytes,
            classes: Classes::Same,
            origin: u16::try_from(origin).unwrap_or(u16::MAX),
            origins: self.origins,
            ahead: self.plan.ahead(id),
            latency: self.plan.graph.options.number("latency"),
            force: self.plan.graph.options.flag("force"),
            lent: &[],
        }
    }
}

fn missing(what: &str, name: &str) -> BuildError {
    BuildError::Unexpected(format!("no {what} is called `{name}`"))
}

fn at(node: NodeId) -> impl Fn(Failure) -> BuildError {
    move |failure| BuildError::Outside { node, failure }
}
