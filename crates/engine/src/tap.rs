//! Taps of a running path: the node that a request names is found, and the space in which it runs.

use crate::live::Live;
use filter::Kind;
use pipeline::plan::SpaceKind;
use runtime::commands::NotTaken;
use runtime::space::taps::{Began, Policy, Since, Tap};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Parses the beginning of a tap: `-5s`, `block:100` or `oldest`.
pub fn parse_since(text: &str) -> Result<Since, String> {
    if text == "oldest" {
        return Ok(Since::Oldest);
    }
    let block = text.strip_prefix("block:").and_then(|number| number.parse().ok());
    if let Some(block) = block {
        return Ok(Since::Block(block));
    }
    let ago = text.strip_prefix('-').map(pipeline::explain::time);
    let usage = || format!("`{text}` is not a place to begin: write -5s, block:100 or oldest");
    ago.and_then(Result::ok).map(Since::Ago).ok_or_else(usage)
}

/// The reason that a node cannot be tapped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Untapped {
    /// There is no such node, or several.
    Which(String),
    /// Its output is not accessible, for this reason.
    Closed(String),
    /// Its space did not come to it.
    NotTaken(NotTaken),
    /// The machine refuses a thread.
    Machine(sys::Error),
}

impl std::fmt::Display for Untapped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Which(why) | Self::Closed(why) => f.write_str(why),
            Self::NotTaken(why) => why.fmt(f),
            Self::Machine(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Untapped {}

/// A tap that somebody wants.
#[derive(Debug)]
pub struct Wanted {
    /// At which node, by its name, mark or number (`tcp`, `#X`, `count:2`); none: the source.
    pub node: Option<String>,
    /// From where on; none: from now on.
    pub since: Option<Since>,
    /// The policy for blocks that it does not take in time.
    pub policy: Policy,
    /// Time without progress after which the tap ends.
    pub patience: Duration,
    /// The output of the capture: the writing end of a pipe.
    pub pipe: OwnedFd,
}

impl Live {
    /// Begins a tap.
    pub fn tap(&self, wanted: Wanted, limit: Duration) -> Result<(Tap, Began), Untapped> {
        let Wanted { node, since, policy, patience, pipe } = wanted;
        let number = self.tapped_node(node.as_deref())?;
        let here = (0..self.spaces().len()).find(|space| {
            let asked = self.order(*space, limit, move |space| space.can_tap(number));
            asked.unwrap_or(false)
        });
        let Some(space) = here else {
            let why = "no thread gives out blocks there: it is a sink, or has copies that share it";
            return Err(Untapped::Closed(why.to_owned()));
        };
        let (tap, feed) = Tap::new(pipe, policy, patience).map_err(Untapped::Machine)?;
        let began = self.order(space, limit, move |space| space.tap(number, since, feed));
        match began.map_err(Untapped::NotTaken)? {
            Some(began) => Ok((tap, began)),
            None => Err(Untapped::Closed("it was changed at this moment: try again".to_owned())),
        }
    }

    /// The number of the node that is meant.
    fn tapped_node(&self, wanted: Option<&str>) -> Result<usize, Untapped> {
        let unknown = || Untapped::Closed("this path was not built from a plan".to_owned());
        let whole = self.whole().ok_or_else(unknown)?;
        let state = whole.state();
        let plan = &state.plan;
        let at = match wanted {
            Some(wanted) => {
                let text = state.text.as_deref().ok_or_else(unknown)?;
                let span = pipeline::edit::place(text, wanted);
                let span = span.map_err(|why| Untapped::Which(why.to_string()))?;
                let mut ids = plan.graph.ids();
                ids.find(|(_, node)| node.span.start == span.start).map(|(id, _)| id)
            }
            None => {
                let mut sources = plan.graph.ids();
                sources.find(|(_, node)| node.kind() == Some(Kind::Source)).map(|(id, _)| id)
            }
        };
        let at = at.ok_or_else(|| Untapped::Which("there is no such node".to_owned()))?;
        let node = plan.graph.node(at);
        let source = node.kind() == Some(Kind::Source);
        if !source && plan.space_of(at).kind == SpaceKind::Kernel {
            let why = "runs in the kernel: tap what follows it there, or move it out first";
            return Err(Untapped::Closed(format!(
                "`{}` {why} (`streamline set PATH move {} process`)",
                node.name(),
                node.name()
            )));
        }
        Ok(state.ids.nodes[at.0])
    }
}
