//! `streamline sh`, which runs a pipeline of unmodified programs with streams in place of the
//! pipes, and `streamline exec`, which runs one program with preloaded libraries. [SL §5.1, §9.2.4;
//! FEATURES C9, D19]
//!
//! Each edge starts as a kernel pipe. If the library can be preloaded into both programs, each
//! program also inherits one end of a rendezvous socket (`abi`, `edge_variable`), over which the
//! library replaces the pipe with a ring. If a command is not a plain pipeline, `/bin/sh` runs it
//! unchanged.

mod edge_counters;
pub(crate) mod exec_description;
mod message_descriptor;
mod parse;
mod preload_libraries;

use crate::arguments::shell::{ExecArguments, PreloadPart, ShellArguments};
use crate::terminal;
use abi::edge::{
    EDGE_COUNTS_VARIABLE, EDGES_VARIABLE, Edge, INHERITED_DESCRIPTOR_MIN, LAZY_COPIES_VARIABLE,
    PipeEnd,
};
use edge_counters::EdgeCounters;
use parse::Stage;
use preload_libraries::PreloadLibrary;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

/// Exit status with which shells report a missing program.
const NOT_FOUND_STATUS: u8 = 127;
/// Exit status with which shells report that a program cannot be executed.
const NOT_EXECUTABLE_STATUS: u8 = 126;
/// The shell for commands that are not plain pipelines.
const SHELL: &str = "/bin/sh";

/// Runs a shell command or a script, and returns its exit status in the convention of shells.
pub(crate) fn run_shell(arguments: &ShellArguments) -> ExitCode {
    let text = match (&arguments.command, &arguments.script) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) => match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) => {
                let what = format!("{}: {}", path.display(), terminal::describe_io_error(&error));
                return print_error(&what, NOT_FOUND_STATUS);
            }
        },
        (None, None) => return print_error("give a command (-c) or a script", 2),
    };
    // The first line of a script specifies the interpreter and is skipped.
    let body = if arguments.command.is_none() { strip_shebang(&text) } else { text.as_str() };
    let stages = match parse::parse_pipeline(body) {
        Ok(stages) => stages,
        Err(why) => {
            report_edge(
                arguments,
                &format!("not a plain pipeline ({why}): {SHELL} runs it, with kernel pipes"),
            );
            return exec_plain_shell(arguments, &text);
        }
    };
    match run_pipeline(arguments, &stages) {
        Ok(status) => {
            sys::children::exit_by_received_signal(status);
            ExitCode::from(status)
        }
        Err(why) => print_error(&why, NOT_EXECUTABLE_STATUS),
    }
}

/// Replaces this process with a program, with libraries preloaded. Returns only on failure.
pub(crate) fn run_preloaded(arguments: &ExecArguments) -> ExitCode {
    let Some((program, words)) = arguments.words.split_first() else {
        return print_error("name a program", 2);
    };
    let name = program.to_string_lossy();
    if let Some(why) = preload_libraries::preload_refusal(&name) {
        return match preload_libraries::find_executable(&name) {
            None => print_error(&why, NOT_FOUND_STATUS),
            Some(_) => print_error(
                &format!("the library cannot be preloaded: {why}"),
                NOT_EXECUTABLE_STATUS,
            ),
        };
    }
    let libraries = match find_libraries(arguments) {
        Ok(libraries) => libraries,
        Err(why) => return print_error(&why, NOT_EXECUTABLE_STATUS),
    };
    for note in capture_preload_notes(arguments) {
        terminal::print_note(&note);
    }
    let mut command = Command::new(program);
    command.args(words);
    let _kept = set_preload(&mut command, &libraries, arguments.lazy);
    let _messages = message_descriptor::pass_stderr_duplicate(&mut command);
    let error = command.exec();
    print_error(&format!("{name}: {}", terminal::describe_io_error(&error)), NOT_EXECUTABLE_STATUS)
}

/// Returns notes about the programs in the command into which libraries cannot be preloaded, such
/// as `sudo` in `timeout 5 sudo tcpdump`. Returns no notes unless `exec` takes over live captures
/// and one of the programs uses libpcap.
fn capture_preload_notes(arguments: &ExecArguments) -> Vec<String> {
    let pcap = PreloadPart::Pcap;
    let is_asked = arguments.with.is_empty() && pcap.is_default() || arguments.with.contains(&pcap);
    let named =
        if is_asked { preload_libraries::named_programs(&arguments.words) } else { Vec::new() };
    if !named.iter().any(|program| preload_libraries::uses_libpcap(program)) {
        return Vec::new();
    }
    let refused = named.iter().filter_map(|program| preload_libraries::preload_refusal(program));
    refused
        .map(|why| format!("{why}: libpcap reads its captures, without the shared rings"))
        .collect()
}

/// Finds the libraries for the parts in `--with` or, without this option, for the default parts.
/// Fails with the reason if a library is missing. The library for libpcap may be missing unless
/// `--with` requests it.
fn find_libraries(arguments: &ExecArguments) -> Result<Vec<PathBuf>, String> {
    let is_default = arguments.with.is_empty();
    let is_wanted =
        |part: PreloadPart| arguments.with.contains(&part) || is_default && part.is_default();
    let wants_pcap = arguments.with.contains(&PreloadPart::Pcap);
    let mut found = Vec::new();
    for part in [PreloadPart::Pipes, PreloadPart::Udp] {
        if is_wanted(part) {
            found.push(preload_libraries::find_library(exec_description::part_library(part))?);
        }
    }
    if is_wanted(PreloadPart::Pcap) {
        match preload_libraries::find_library(PreloadLibrary::Pcap) {
            Ok(library) => found.push(library),
            Err(why) if wants_pcap => return Err(why),
            Err(why) => {
                let named = preload_libraries::named_programs(&arguments.words);
                if named.iter().any(|program| preload_libraries::uses_libpcap(program)) {
                    terminal::print_note(&format!("libpcap reads the captures: {why}"));
                }
            }
        }
    }
    Ok(found)
}

fn print_error(what: &str, status: u8) -> ExitCode {
    terminal::print_error(what);
    ExitCode::from(status)
}

fn report_edge(arguments: &ShellArguments, what: &str) {
    if arguments.verbose {
        terminal::print_note(what);
    }
}

fn strip_shebang(text: &str) -> &str {
    match text.strip_prefix("#!") {
        Some(rest) => rest.split_once('\n').map_or("", |(_, rest)| rest),
        None => text,
    }
}

/// Replaces this process with `/bin/sh`. Returns only on failure.
fn exec_plain_shell(arguments: &ShellArguments, text: &str) -> ExitCode {
    let mut command = Command::new(SHELL);
    if arguments.pipefail {
        // A shell without this option reports an error.
        command.args(["-o", "pipefail"]);
    }
    command.arg("-c").arg(text).arg(shell_name(arguments)).args(&arguments.words);
    let error = command.exec();
    print_error(&format!("{SHELL}: {}", terminal::describe_io_error(&error)), NOT_EXECUTABLE_STATUS)
}

/// Returns the value of `$0` for a script or command.
fn shell_name(arguments: &ShellArguments) -> OsString {
    arguments.script.as_ref().map_or_else(|| "sh".into(), OsString::from)
}

/// The edge between two consecutive commands of a pipeline.
struct StageEdge {
    reader: OwnedFd,
    writer: OwnedFd,
    /// The ends of the rendezvous socket, one for each of the two programs, if the library can be
    /// preloaded into both.
    rendezvous: Option<(OwnedFd, OwnedFd)>,
}

fn run_pipeline(arguments: &ShellArguments, stages: &[Stage]) -> Result<u8, String> {
    let library = if stages.len() > 1 && !arguments.isolate {
        Some(preload_libraries::find_library(PreloadLibrary::Pipes)?)
    } else {
        None
    };
    let refusals: Vec<Option<String>> = stages.iter().map(kernel_pipe_reason).collect();
    sys::children::forward_signals().map_err(|error| error.to_string())?;
    let mut children: Vec<Result<Child, u8>> = Vec::new();
    let mut before: Option<StageEdge> = None;
    let mut noted = false;
    // Without counters, the edges work, but `-v` reports no amounts.
    let counts = library.as_ref().and_then(|_| EdgeCounters::create(stages.len() - 1).ok());
    for (at, stage) in stages.iter().enumerate() {
        let after = match stages.get(at + 1) {
            Some(next) => {
                let why = refusals[at].as_ref().or(refusals[at + 1].as_ref());
                let why =
                    if arguments.isolate { Some("--isolate") } else { why.map(String::as_str) };
                report_edge(arguments, &describe_edge(at, stage, next, why));
                let (edge, narrow) =
                    create_edge(why.is_none()).map_err(|error| error.to_string())?;
                narrow.filter(|_| !noted).iter().for_each(|why| {
                    noted = true;
                    terminal::print_note(why);
                });
                Some(edge)
            }
            None => None,
        };
        let program =
            StageStart { stage, index: at, library: library.as_deref(), counts: counts.as_ref() };
        children.push(start_program(arguments, &program, before.as_ref(), after.as_ref()));
        before = after;
    }
    drop(before);
    let wait = |child: Result<Child, u8>| match child {
        Ok(mut child) => sys::children::wait(&mut child),
        Err(status) => status,
    };
    let all: Vec<u8> = children.into_iter().map(wait).collect();
    if let Some(counts) = counts.filter(|_| arguments.verbose) {
        for (at, pair) in stages.windows(2).enumerate() {
            let [from, to] = pair else { continue };
            counts
                .describe(at, program_name(from), program_name(to))
                .iter()
                .for_each(|line| terminal::print_note(line));
        }
    }
    let last = all.last().copied().unwrap_or(0);
    let any = all.iter().rev().copied().find(|status| *status != 0).unwrap_or(0);
    Ok(if arguments.pipefail { any } else { last })
}

/// Returns the reason why a stage needs kernel pipes, or `None` if the library can be preloaded
/// into its program.
fn kernel_pipe_reason(stage: &Stage) -> Option<String> {
    match stage {
        Stage::Program(words) => preload_libraries::preload_refusal(words.first()?),
        Stage::Shell { program, .. } => preload_libraries::preload_refusal(SHELL)
            .or_else(|| preload_libraries::preload_refusal(program.as_deref()?)),
    }
}

fn describe_edge(at: usize, stage: &Stage, next: &Stage, why: Option<&str>) -> String {
    let (from, to) = (program_name(stage), program_name(next));
    match why {
        None => format!(
            "edge {}, {from} → {to}: a pipe, and a ring once enough data has passed",
            at + 1
        ),
        Some(why) => format!("edge {}, {from} → {to}: a kernel pipe: {why}", at + 1),
    }
}

fn program_name(stage: &Stage) -> &str {
    match stage {
        Stage::Program(words) => words.first().map_or("", String::as_str),
        Stage::Shell { text, program } => program.as_deref().unwrap_or(text),
    }
}

/// Creates the edge between two commands. If `preloadable` is true, the library can be preloaded
/// into both programs, and the edge has rendezvous sockets. If the sockets cannot be created, the
/// edge is only a kernel pipe, and the function also returns the reason.
fn create_edge(preloadable: bool) -> sys::Result<(StageEdge, Option<String>)> {
    let (reader, writer) = sys::descriptor::pipe()?;
    let rendezvous = if preloadable { Some(create_rendezvous()) } else { None };
    let (rendezvous, why) = match rendezvous.transpose() {
        Ok(rendezvous) => (rendezvous, None),
        Err(error) => (
            None,
            Some(format!(
                "edges stay kernel pipes: {} (rings need descriptor numbers from \
                 {INHERITED_DESCRIPTOR_MIN}: `ulimit -n 1024` permits them)",
                terminal::describe_io_error(&error)
            )),
        ),
    };
    Ok((StageEdge { reader, writer, rendezvous }, why))
}

/// Creates the two connected rendezvous sockets of an edge. Fails if no descriptor number is free
/// at which a program could inherit one of them.
fn create_rendezvous() -> std::io::Result<(OwnedFd, OwnedFd)> {
    let (socket, peer) = sys::descriptor::socket_pair().map_err(std::io::Error::from)?;
    // This duplicate only checks that a descriptor number is free, before one of the two programs
    // runs.
    drop(sys::children::duplicate_inheritable(socket.as_fd(), INHERITED_DESCRIPTOR_MIN)?);
    Ok((socket, peer))
}

/// A program to start, with the descriptors and files that it shares with the other programs.
struct StageStart<'s> {
    stage: &'s Stage,
    /// Index of the program in the pipeline.
    index: usize,
    library: Option<&'s Path>,
    counts: Option<&'s EdgeCounters>,
}

fn start_program(
    arguments: &ShellArguments,
    program: &StageStart<'_>,
    input: Option<&StageEdge>,
    output: Option<&StageEdge>,
) -> Result<Child, u8> {
    let StageStart { stage, index, library, counts } = *program;
    let mut command = match stage {
        Stage::Program(words) => {
            let mut command = Command::new(words.first().map_or("", String::as_str));
            command.args(words.get(1..).unwrap_or_default());
            command
        }
        Stage::Shell { text, program } => {
            let mut command = Command::new(SHELL);
            // `exec` avoids a fork, before which the library would have to turn the edges back into
            // pipes.
            let text = if program.is_some() { format!("exec {text}") } else { text.clone() };
            command.arg("-c").arg(text).arg(shell_name(arguments)).args(&arguments.words);
            command
        }
    };
    // The child inherits these duplicates. This process closes them after the start.
    let (mut edges, mut copies) = (Vec::new(), Vec::new());
    let unable = |error: &dyn std::fmt::Display| {
        terminal::print_error(&format!("{}: {error}", program_name(stage)));
        NOT_EXECUTABLE_STATUS
    };
    if let Some(input) = input {
        command.stdin(Stdio::from(input.reader.try_clone().map_err(|e| unable(&e))?));
        if let Some((_, rendezvous)) = &input.rendezvous {
            edges.push(
                edge_variable((PipeEnd::Reads, index - 1), &input.reader, rendezvous, &mut copies)
                    .map_err(|e| unable(&e))?,
            );
        }
    }
    if let Some(output) = output {
        command.stdout(Stdio::from(output.writer.try_clone().map_err(|e| unable(&e))?));
        if let Some((rendezvous, _)) = &output.rendezvous {
            edges.push(
                edge_variable((PipeEnd::Writes, index), &output.writer, rendezvous, &mut copies)
                    .map_err(|e| unable(&e))?,
            );
        }
    }
    command.env_remove(EDGES_VARIABLE).env_remove(EDGE_COUNTS_VARIABLE);
    if let (Some(library), false) = (library, edges.is_empty()) {
        command.env(EDGES_VARIABLE, edges.join(","));
        if let Some(Ok((variable, copy))) = counts.map(EdgeCounters::inheritable_descriptor) {
            command.env(EDGE_COUNTS_VARIABLE, variable);
            copies.push(copy);
        }
        copies.extend(set_preload(&mut command, &[library.to_owned()], arguments.lazy));
    }
    match command.spawn() {
        Ok(child) => {
            sys::children::add(&child);
            Ok(child)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            terminal::print_error(&format!("{}: not found", program_name(stage)));
            Err(NOT_FOUND_STATUS)
        }
        Err(error) => Err(unable(&terminal::describe_io_error(&error))),
    }
}

/// Formats the value of the environment variable that describes one end of an edge to a program.
/// Duplicates `rendezvous`, so that the program inherits the duplicate, and adds it to `copies`.
fn edge_variable(
    (end, number): (PipeEnd, usize),
    pipe: &OwnedFd,
    rendezvous: &OwnedFd,
    copies: &mut Vec<OwnedFd>,
) -> Result<String, std::io::Error> {
    let inode = |fd: &OwnedFd| File::from(fd.try_clone()?).metadata().map(|meta| meta.ino());
    let copy = sys::children::duplicate_inheritable(rendezvous.as_fd(), INHERITED_DESCRIPTOR_MIN)?;
    let number = u32::try_from(number).unwrap_or(u32::MAX);
    let (pipe, inode) = (inode(pipe)?, inode(&copy)?);
    let edge = Edge { end, pipe, socket: copy.as_raw_fd(), inode, number };
    copies.push(copy);
    Ok(edge.to_string())
}

/// Prepends the libraries to the LD_PRELOAD of a command. Returns descriptors that must stay open
/// until the program has started.
fn set_preload(command: &mut Command, libraries: &[PathBuf], lazy: bool) -> Vec<OwnedFd> {
    const PRELOAD_VARIABLE: &str = "LD_PRELOAD";
    let mut list = libraries.iter().map(|path| path.clone().into_os_string()).collect::<Vec<_>>();
    list.extend(std::env::var_os(PRELOAD_VARIABLE).filter(|others| !others.is_empty()));
    command.env(PRELOAD_VARIABLE, list.join(OsStr::new(":")));
    if lazy {
        command.env(LAZY_COPIES_VARIABLE, "1");
    }
    // If the shared counter of ids is unavailable, the program assigns ids from a range of its own.
    let ids = streamline::ids::duplicate_id_counter(INHERITED_DESCRIPTOR_MIN).ok().map(
        |(variable, copy)| {
            command.env(streamline::ids::ID_COUNTER_VARIABLE, variable);
            copy
        },
    );
    ids.into_iter().collect()
}
