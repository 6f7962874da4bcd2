//! `exec`: runs an ordinary program in a child process, at any position in a request. [SL §3, §4.1]
//!
//! The program reads the viewed bytes of the blocks as one stream from its standard input
//! (`input`). Its standard output becomes blocks (`output`). The two halves run in different
//! spaces, so that the program may read and write in any order without deadlock. At the head of a
//! request there is only the output half. At the end there is only the input half, and the program
//! inherits standard output.
//!
//! In the graph, the program is a space that this process starts but cannot inspect.
//! docs/book/decisions/0010-exec.md explains why a program is not a filter, and the cost of this
//! decision.

pub(crate) mod child;
mod input;
mod output;

pub use crate::contract::StartedProcess;
use crate::failure::reason_text;
use crate::source::input::Input as Pipe;
use crate::stop_limit::StopFlag;
use crate::{Failure, OpenArguments, ProcessEntry, Sink, Source};
pub use child::{Process, ProcessControl, ProcessFailure, ProcessRole};
use filter::{
    Classes, Description, EndpointFacts, FilterKind, Form, Forms, Mistake, OutputForm, Parameter,
    ParameterType, ReadDepth, StateFacts,
};
use input::ProgramInput;
use output::ProgramOutput;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use sys::process_group::ProcessGroup;
use sys::rollback::StepResource;

/// Path of the shell that runs the commands of `exec`.
const SHELL: &str = "/bin/sh";

/// Description of `exec`, which runs a program between two nodes or at the end of a request.
pub const EXEC: Description = Description {
    name: "exec",
    summary: "run a program, as in a pipeline of the shell",
    details: "\
Runs `sh -c COMMAND` in a process of its own. The program reads the viewed bytes of all blocks,
without separators, on its standard input. Its standard output returns as blocks of up to 64 KB of
bytes, as soon as it is written. The boundaries of blocks are lost, as are times, sessions, classes
and frames.

At the start of a request `exec` is a source and reads nothing. At the end, its standard output is
that of streamline. Standard error, environment, directory and rights are inherited. The terminal
stays with streamline, so a program that reads from it, such as a pager, is stopped.

At the end of the input, its standard input is closed, and streamline reads its remaining output and
waits for its exit. If it exits or closes its standard input before, the rest of the input is
dropped (`program ended`), and the path ends unless another branch needs the input. If a signal
kills it or its status is not 0, the path fails; append `|| true` where another status is normal
(`grep` returns 1 without a match). A program whose output is no longer needed, or that is the
source of a stopped run, gets SIGTERM. In a stopped run, a program that reads nothing of waiting
input for 5 s, or is suspended for 5 s, is killed, and the path fails.",
    example: "replay web.pcap | tcp |http exec \"grep -a Host\" | print",
    kind: FilterKind::Editing,
    input_forms: Forms::ANY,
    output_form: OutputForm::Form(Form::Bytes),
    reads: ReadDepth::All,
    parameters: &[Parameter::required(
        "command",
        ParameterType::Text,
        "the command for the shell, in quotes",
    )],
    classes: Classes::YesNo,
    state: StateFacts::pinned_to_space("its state is inside the program"),
    ..Description::FILTER_DEFAULTS
};

/// Description of `exec` at the head of a request, where the program is a source.
const EXEC_AT_HEAD: Description =
    Description { kind: FilterKind::Source, input_forms: Forms::NONE, ..EXEC };

/// The catalog entry of `exec`.
pub const ENTRY: ProcessEntry = ProcessEntry {
    description: &EXEC,
    head_description: &EXEC_AT_HEAD,
    facts: EndpointFacts { is_program: true, ..EndpointFacts::NONE },
    command_error: find_command_mistake,
    start,
};

/// Checks the text of a command. Returns a mistake if the text is blank or contains a byte 0, else
/// `None`.
fn find_command_mistake(command: &str) -> Option<Mistake> {
    if command.trim().is_empty() {
        let mistake = Mistake::new("command", "the command is empty");
        return Some(mistake.with_hint("name a program, with its arguments, in quotes"));
    }
    command
        .contains('\0')
        .then(|| Mistake::new("command", "the command contains a NUL byte".to_owned()))
}

/// Minimum descriptor number at which a program inherits the counter of dbuf ids that it shares
/// with this process. Programs rarely use such high numbers themselves.
const DBUF_ID_COUNTER_FD_MIN: i32 = 700;

/// Lock that is held while a descriptor of the shared counter of dbuf ids is inheritable. Without
/// the lock, another program that starts at the same time could inherit the descriptor too.
static INHERITANCE_LOCK: Mutex<()> = Mutex::new(());

/// Starts a program. Fails if the program or one of its halves cannot be created. The program is
/// killed if all of its halves are dropped before it has exited.
fn start(opening: &OpenArguments<'_>, role: ProcessRole) -> Result<StartedProcess, Failure> {
    let command = opening.arguments.text("command").unwrap_or_default();
    let pipe_at = |end, otherwise: fn() -> Stdio| {
        if role == end { otherwise() } else { Stdio::piped() }
    };
    let mut shell = Command::new(SHELL);
    shell.arg("-c").arg(command);
    // Without the shared counter, the program's dbuf ids could collide with those of this process.
    let inheritable = INHERITANCE_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let ids = buffer::ids::duplicate_id_counter(DBUF_ID_COUNTER_FD_MIN).ok();
    if let Some((variable, _)) = &ids {
        shell.env(buffer::ids::ID_COUNTER_VARIABLE, variable);
    }
    shell.stdin(pipe_at(ProcessRole::Head, Stdio::null));
    shell.stdout(pipe_at(ProcessRole::End, Stdio::inherit));
    let refused = |error: sys::Error| {
        let errno = Some(error.errno);
        Failure::new("start", SHELL, reason_text(&error.into())).with_errno(errno)
    };
    opening.rollback_log.announce_creation(StepResource::Thread, command).map_err(refused)?;
    let mut group = ProcessGroup::start(&mut shell).map_err(refused)?;
    drop((ids, inheritable));
    let (input, output) = (group.take_stdin(), group.take_stdout());
    let limit = StopFlag::new(&opening.stopped);
    let process = Arc::new(Process::new_started(command, group, role, limit));
    opening
        .rollback_log
        .announce_creation(StepResource::Descriptor, "access to its pipes")
        .map_err(refused)?;
    let input = input.map(|pipe| ProgramInput::new(pipe, Arc::clone(&process)));
    let output = output.map(|pipe| {
        let target = format!("what {command:?} writes");
        let pipe = Pipe::from_file(File::from(OwnedFd::from(pipe)), target)?;
        Ok(ProgramOutput::new(pipe, Arc::clone(&process), opening.origin))
    });
    Ok(StartedProcess {
        input: input.map(|input| Box::new(input) as Box<dyn Sink>),
        output: output.transpose()?.map(|output| Box::new(output) as Box<dyn Source>),
    })
}

#[cfg(test)]
mod tests;
