//! The peer of `bench chain`: the same filters as Unix processes that are connected by pipes.

use crate::peers::CompiledPeer;
use std::io::Read;
use std::process::{Child, Command, Stdio};

/// The C program that acts as source, filter or sink of a chain of processes.
pub(crate) struct PipedMatcher(CompiledPeer);

/// The part of a block that a filter of the chain reads.
#[derive(Clone, Copy)]
pub(crate) enum FilterExtent {
    First,
    Whole,
}

const MATCHER_SOURCE: &str = include_str!("../peers/matcher.c");

impl PipedMatcher {
    /// Compiles the C program that acts as source, filter or sink. Fails with the reason.
    pub(crate) fn compile() -> Result<Self, String> {
        CompiledPeer::new("matcher", MATCHER_SOURCE).map(Self)
    }

    /// Sends `blocks` blocks of 1 KB through `filters` processes between a source and a sink. Each
    /// filter reads the part `look` of each block. Returns blocks per second.
    pub(crate) fn measure(
        &self,
        filters: usize,
        look: FilterExtent,
        blocks: u64,
    ) -> Result<f64, String> {
        let begin = sys::clock::monotonic_ns();
        let mut children: Vec<Child> = Vec::new();
        let count = blocks.to_string();
        for place in 0..filters + 2 {
            let mut command = Command::new(self.0.program());
            match place {
                0 => command.args(["source", &count]).stdin(Stdio::null()),
                n if n == filters + 1 => command.arg("sink"),
                _ => match look {
                    FilterExtent::First => &mut command,
                    FilterExtent::Whole => command.arg("whole"),
                },
            };
            if let Some(before) = children.last_mut().and_then(|child| child.stdout.take()) {
                command.stdin(before);
            }
            children.push(command.stdout(Stdio::piped()).spawn().map_err(|why| why.to_string())?);
        }
        let mut text = String::new();
        if let Some(mut out) = children.last_mut().and_then(|child| child.stdout.take()) {
            out.read_to_string(&mut text).map_err(|why| why.to_string())?;
        }
        for child in &mut children {
            child.wait().map_err(|why| why.to_string())?;
        }
        let elapsed = sys::clock::monotonic_ns() - begin;
        if text.trim() != count {
            return Err(format!("{count} blocks went in, {} came out", text.trim()));
        }
        Ok(blocks as f64 * 1e9 / elapsed as f64)
    }
}
