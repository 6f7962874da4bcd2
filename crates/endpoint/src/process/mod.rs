//! `exec`: an ordinary program in a process of its own, anywhere in a line. [SL §3, §4.1]
//!
//! In: blocks, whose viewed bytes the program reads as one stream on its standard input
//! (`input`). Out: what it writes to its standard output, as blocks (`output`). The two halves run
//! in different spaces, so that the program may read and write in any order: neither waits for the
//! other. At the head of a line there is only the second half, at its end only the first, and the
//! standard output is ours.
//!
//! The program is a space that we start and do not see into: why it is no filter, and what that
//! costs, is told in docs/book/decisions/0010-exec.md.

mod input;
mod output;

use crate::fail::reason;
use crate::source::input::Input as Pipe;
use crate::{Failure, Opening, ProcessEntry, Sink, Source};
use filter::{
    Classes, Description, EndpointFacts, Form, Forms, Gives, Kind, Mistake, Parameter, Reads,
    StateFacts, Type,
};
use input::Input;
use output::Output;
use std::fmt;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use sys::process_group::{ProcessEnd, ProcessGroup};
use sys::steps::Resource;

/// The shell that understands a command.
const SHELL: &str = "/bin/sh";

/// The description of `exec`.
pub const EXEC: Description = Description {
    name: "exec",
    summary: "run a program, as between the pipes of a shell",
    details: "\
Starts `sh -c COMMAND` in a process of its own. It reads the bytes in view of all blocks, one behind
the other, on its standard input; what it writes to its standard output comes back as blocks of
bytes of up to 64 KB, as soon as it is there. Where one block ends and the next begins is lost on
the way, and so is all that travels beside the bytes: times, sessions, classes, frames.

At the head of a line it reads nothing and is a source. At the end of a line its standard output is
that of this program. Errors go where ours go; environment, directory and rights are ours too. The
terminal stays with this program: what wants to read from it, such as a pager, is stopped.

When what comes has ended, its standard input is closed, what it still writes is taken, and its end
is waited for. If it ends before, or closes its standard input, the rest of what comes is dropped
(`program ended`), and if nobody else wants it, the path ends. If it ends by a signal or with
another status than 0, the path fails; write `|| true` where another status is no mistake (`grep`
answers 1 when nothing matched). A program whose output nobody wants any more, or that stands at the
head when the run is stopped, is asked to end (SIGTERM).",
    example: "replay web.pcap | tcp |http exec \"grep -a Host\" | print",
    kind: Kind::Editing,
    takes: Forms::ANY,
    gives: Gives::Form(Form::Bytes),
    reads: Reads::All,
    parameters: &[Parameter::needed("command", Type::Text, "what the shell is to run, in quotes")],
    classes: Classes::YesNo,
    state: StateFacts::pinned("the program keeps what it likes"),
    ..Description::EMPTY
};

/// `exec` where no stream comes to it.
const HEAD: Description = Description { kind: Kind::Source, takes: Forms::NONE, ..EXEC };

/// The line in the catalogue.
pub const ENTRY: ProcessEntry = ProcessEntry {
    description: &EXEC,
    head: &HEAD,
    facts: EndpointFacts { process: true, ..EndpointFacts::NONE },
    refuses,
    start,
};

/// The position of a program in its line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stands {
    /// Nothing comes to it.
    Head,
    /// Blocks come to it, and what it writes goes on.
    Middle,
    /// Nothing follows it.
    End,
}

/// A program that was started, and its halves.
pub struct Started {
    /// Takes blocks; nothing at the head of a line.
    pub input: Option<Box<dyn Sink>>,
    /// Gives blocks; nothing at the end of a line.
    pub output: Option<Box<dyn Source>>,
}

impl fmt::Debug for Started {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (input, output) = (self.input.is_some(), self.output.is_some());
        f.debug_struct("Started").field("input", &input).field("output", &output).finish()
    }
}

/// A program that runs, or did. It is killed when nobody knows it any more and nobody has waited
/// for its end.
#[derive(Debug)]
pub struct Process {
    command: String,
    /// None: it ran elsewhere, and what it wrote comes from a record.
    group: Option<Mutex<ProcessGroup>>,
    stands: Stands,
    /// It takes no input any more.
    deaf: AtomicBool,
    /// We want nothing of it any more, so that it may end as it likes.
    released: AtomicBool,
    /// It is no program, but something else that runs in a process of its own.
    apart: Option<Arc<dyn Apart>>,
}

/// A process other than an ordinary program, as far as a path must know it.
pub trait Apart: fmt::Debug + Send + Sync {
    /// Returns true if it takes no more input, although there may be some.
    fn is_deaf(&self) -> bool;

    /// Waits for its end, and answers what is to be told of it, if it was not a good one.
    fn finish(&self) -> Option<String>;

    /// The number of its process; none: it has ended.
    fn number(&self) -> Option<u32>;
}

/// A program that did not end well.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadEnd {
    /// The command.
    pub command: String,
    /// Its end.
    pub ended: ProcessEnd,
    /// Its output was ours, and whoever read that has gone: nobody needs to be told.
    pub quiet: bool,
    /// The message in place of its end, if it is no program.
    pub told: Option<String>,
}

impl fmt::Display for BadEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(told) = &self.told {
            return f.write_str(told);
        }
        write!(f, "the program {:?} {}", self.command, self.ended)?;
        match self.ended {
            ProcessEnd::Status(126) => f.write_str(": the shell may not run it"),
            ProcessEnd::Status(127) => f.write_str(": the shell did not find it"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for BadEnd {}

/// Refuses texts that no shell can run.
fn refuses(command: &str) -> Option<Mistake> {
    if command.trim().is_empty() {
        let mistake = Mistake::new("command", "the command is empty");
        return Some(mistake.hint("name a program, with its arguments, in quotes"));
    }
    command.contains('\0').then(|| Mistake::new("command", "the command holds a byte 0".to_owned()))
}

/// Starts a program. What is started and not taken up by anybody is killed.
fn start(opening: &Opening<'_>, stands: Stands) -> Result<Started, Failure> {
    let command = opening.arguments.text("command").unwrap_or_default();
    let pipe_at = |end, otherwise: fn() -> Stdio| {
        if stands == end { otherwise() } else { Stdio::piped() }
    };
    let mut shell = Command::new(SHELL);
    shell.arg("-c").arg(command);
    shell.stdin(pipe_at(Stands::Head, Stdio::null));
    shell.stdout(pipe_at(Stands::End, Stdio::inherit));
    let refused = |error: sys::Error| {
        let errno = Some(error.errno);
        Failure::new("start", SHELL, reason(&error.into())).errno(errno)
    };
    opening.steps.take(Resource::Thread, command).map_err(refused)?;
    let mut group = ProcessGroup::start(&mut shell).map_err(refused)?;
    let (input, output) = (group.take_input(), group.take_output());
    let process = Arc::new(Process {
        command: command.to_owned(),
        group: Some(Mutex::new(group)),
        stands,
        deaf: AtomicBool::new(false),
        released: AtomicBool::new(false),
        apart: None,
    });
    opening.steps.take(Resource::Descriptor, "a way to its pipes").map_err(refused)?;
    let input = input.map(|pipe| Input::new(pipe, Arc::clone(&process)));
    let output = output.map(|pipe| {
        let target = format!("what {command:?} writes");
        let pipe = Pipe::over(File::from(OwnedFd::from(pipe)), target)?;
        Ok(Output::new(pipe, Arc::clone(&process), opening.origin))
    });
    Ok(Started {
        input: input.map(|input| Box::new(input) as Box<dyn Sink>),
        output: output.transpose()?.map(|output| Box::new(output) as Box<dyn Source>),
    })
}

impl Process {
    /// A program that is not run here: somebody wrote down what it did.
    #[must_use]
    pub fn recorded(command: &str, stands: Stands) -> Self {
        let (deaf, released) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { command: command.to_owned(), group: None, stands, deaf, released, apart: None }
    }

    /// Resource a process in the middle of a line that is no ordinary program.
    #[must_use]
    pub fn apart(name: &str, apart: Arc<dyn Apart>) -> Self {
        Self { apart: Some(apart), ..Self::recorded(name, Stands::Middle) }
    }

    /// Returns true if it takes no more input, although there is some.
    #[must_use]
    pub fn is_deaf(&self) -> bool {
        match &self.apart {
            Some(apart) => apart.is_deaf(),
            None => self.deaf.load(Ordering::Relaxed),
        }
    }

    /// The number of its process; none: it has ended, or was never started here.
    #[must_use]
    pub fn number(&self) -> Option<u32> {
        match &self.apart {
            Some(apart) => apart.number(),
            None => self.group().map(|group| group.number()),
        }
    }

    /// Returns true if it has no input.
    #[must_use]
    pub fn is_head(&self) -> bool {
        self.stands == Stands::Head
    }

    /// Returns its end; `None` while it runs. For a process that is no program only
    /// [`Process::finish`] returns it: the path goes on.
    #[must_use]
    pub fn ended(&self) -> Option<Result<(), BadEnd>> {
        // A program that cannot be looked at is told by `finish`.
        let Some(group) = self.group() else { return Some(Ok(())) };
        let ended = group.ended().ok().flatten()?;
        drop(group);
        Some(self.judge(ended))
    }

    /// Waits for its end. Both halves must have been closed.
    pub fn finish(&self) -> sys::Result<Result<(), BadEnd>> {
        if let Some(told) = self.apart.as_ref().and_then(|apart| apart.finish()) {
            let (command, ended) = (self.command.clone(), ProcessEnd::Status(1));
            return Ok(Err(BadEnd { command, ended, quiet: false, told: Some(told) }));
        }
        let Some(mut group) = self.group() else { return Ok(Ok(())) };
        let ended = group.wait()?;
        drop(group);
        Ok(self.judge(ended))
    }

    /// It has closed its standard input.
    fn hear_no_more(&self) {
        self.deaf.store(true, Ordering::Relaxed);
    }

    /// Wants nothing of it any more, and asks it to end.
    fn release(&self) {
        if !self.released.swap(true, Ordering::Relaxed)
            && let Some(group) = self.group()
        {
            group.ask_to_end();
        }
    }

    fn judge(&self, ended: ProcessEnd) -> Result<(), BadEnd> {
        if ended.is_success() || self.released.load(Ordering::Relaxed) {
            return Ok(());
        }
        let quiet = self.stands == Stands::End && ended.is_broken_pipe();
        Err(BadEnd { command: self.command.clone(), ended, quiet, told: None })
    }

    fn group(&self) -> Option<MutexGuard<'_, ProcessGroup>> {
        let group = self.group.as_ref()?;
        Some(group.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests;
