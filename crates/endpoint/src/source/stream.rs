//! `stream`: a source without any input of its own. Its output consists of the blocks that other
//! programs write to it.
//!
//! A path that is created empty begins with this source. Programs write to the output of a node
//! through PipesFS. `stream` is a node that emits only the blocks written in this way.

use crate::{Failure, Intake, OpenArguments, Source, SourceCounters, SourceEntry, SourceStatus};
use filter::{
    Amount, Arguments, Description, Effect, Form, OutputForm, Parameter, ParameterType, StateFacts,
    WorkerRule,
};
use std::os::fd::{AsFd as _, BorrowedFd};
use sys::eventfd::EventFd;

/// Description of `stream`, the source of a path that begins empty.
pub const STREAM: Description = Description {
    name: "stream",
    summary: "emit what programs write to its file in PipesFS",
    details: "\
Emits nothing by itself. What programs write to the file `all` of its directory leaves it; each
opening of the file is a session of its own. `mkdir DIR/NAME` in PipesFS starts a path with this
source. The path runs until it is stopped.

`form` is that of the blocks: `stream` for the bytes of connections, which `http` and others read,
`frame` for captures, `record` for lines, `bytes` for blocks as they are written.",
    example: "stream | http |get count",
    effect: Some(effect),
    frames_hint: Some("write `stream form=frame`, which takes captures"),
    state: StateFacts::NONE.with_worker_rule(|_| {
        WorkerRule::Differs("programs write to one process", WorkerRule::DEFAULT_HINT)
    }),
    parameters: &[Parameter::with_default(
        "form",
        ParameterType::OneOf(&["stream", "frame", "record", "bytes"]),
        "stream",
        "form of what is written",
    )],
    ..Description::SOURCE_DEFAULTS
};

fn effect(arguments: &Arguments) -> Effect {
    let form = match arguments.text("form") {
        Some("frame") => Form::Frame,
        Some("record") => Form::Record,
        Some("bytes") => Form::Bytes,
        _ => Form::Stream,
    };
    Effect { output_form: OutputForm::Form(form), kind: STREAM.kind, reads: STREAM.reads }
}

/// Catalog entry of `stream`.
pub const ENTRY: SourceEntry = SourceEntry::new(&STREAM, open);

struct StreamSource {
    /// A descriptor that never becomes readable.
    never_ready: EventFd,
}

fn open(_: &OpenArguments<'_>) -> Result<Box<dyn Source>, Failure> {
    let never_ready = EventFd::new().map_err(|error| Failure::new("open", "a stream", error))?;
    Ok(Box::new(StreamSource { never_ready }))
}

impl Source for StreamSource {
    fn produce(&mut self, _: &mut Intake<'_>) -> Result<SourceStatus, Failure> {
        Ok(SourceStatus::AWAITS_INPUT)
    }

    fn counters(&self) -> SourceCounters {
        SourceCounters::lossless(Amount::default())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.never_ready.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{checked_arguments, produce_once, sink_opening, small_segment_pool};

    #[test]
    fn b3_stream_emits_nothing_and_waits() {
        for (form, expected) in [("stream", Form::Stream), ("frame", Form::Frame)] {
            let given = checked_arguments(&STREAM, &[("form", form)]);
            assert_eq!(effect(&given).output_form, OutputForm::Form(expected));
            let mut source = open(&sink_opening(&given, &[])).unwrap();
            let mut pool = small_segment_pool(1 << 16);
            let (status, blocks) = produce_once(&mut *source, &mut pool, 8, 5).unwrap();
            assert_eq!(status, SourceStatus::AWAITS_INPUT);
            assert!(blocks.is_empty());
            let waits = [source.descriptor().unwrap()];
            assert_eq!(
                sys::poll::wait_until_readable(&waits, Some(std::time::Duration::ZERO)),
                [false]
            );
        }
    }
}
