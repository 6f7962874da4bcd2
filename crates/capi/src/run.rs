//! Calls that open, stop and report requests in threads of the calling program, and that create
//! pipes between the program and a request.

use crate::end::EndKind;
use crate::failure::{ECHILD, EINVAL, EIO, ENOTSUP, Failure, Outcome, wrong_end_error};
use crate::request::Run;
use crate::table::{self, duplicate_descriptor, register_end};
use engine::build::BuildError;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use streamline::report::ReportForm;
use streamline::{OpenError, Options, RegistryAdditions};
use sys::raw_fd;

/// The ends of pipes that [`create_pipe_end`] has created for requests and that no request has used
/// yet. Each is a descriptor, with the path by which a request names the pipe.
static UNUSED_PIPE_ENDS: Mutex<Vec<(String, OwnedFd)>> = Mutex::new(Vec::new());

/// Creates a pipe between the calling program and a request. Returns the path by which a request
/// names its end of the pipe, and the descriptor of the program's end. The program reads from the
/// pipe if `reads` is true, and writes to it otherwise.
pub(crate) fn create_pipe_end(reads: bool) -> Outcome<(String, i32)> {
    let (reading, writing) = sys::descriptor::pipe()?;
    let (local, remote) = if reads { (reading, writing) } else { (writing, reading) };
    let path = format!("/proc/self/fd/{}", remote.as_raw_fd());
    UNUSED_PIPE_ENDS.lock().unwrap_or_else(PoisonError::into_inner).push((path.clone(), remote));
    Ok((path, raw_fd::into_raw(local)))
}

/// Opens a request and returns a descriptor number, which becomes readable when the run has ended.
/// The run takes over the pipe ends of [`create_pipe_end`] whose paths the request names.
pub(crate) fn open(request: &str, options: Options) -> Outcome<i32> {
    let mut own = RegistryAdditions::default();
    let is_named = |path: &str| {
        let behind = |at: usize| request[at + path.len()..].chars().next();
        let mut places = request.match_indices(path);
        places.any(|(at, _)| !behind(at).is_some_and(|c| c.is_ascii_digit()))
    };
    let mut ends = UNUSED_PIPE_ENDS.lock().unwrap_or_else(PoisonError::into_inner);
    for (_, remote) in ends.extract_if(.., |(path, _)| is_named(path)) {
        own.add_descriptor(remote);
    }
    drop(ends);
    let running = streamline::open(request, Options { own, ..options })?;
    let ended = duplicate_descriptor(&running.run_end_descriptor())?;
    register_end(EndKind::Run(Run::Running(Box::new(running))), Some(ended))
}

fn with_run<T>(fd: i32, work: impl FnOnce(&mut Run) -> Outcome<T>) -> Outcome<T> {
    match &mut table::lock_entry(fd)?.require_end(fd)?.kind {
        EndKind::Run(run) => work(run),
        _ => Err(wrong_end_error("a request that runs")),
    }
}

/// Stops the sources of a request; blocks in transit are still processed.
pub(crate) fn stop(fd: i32) -> Outcome<()> {
    with_run(fd, |run| {
        if let Run::Running(running) = run {
            running.stop();
        }
        Ok(())
    })
}

/// Blocks until a request has ended. Fails with `EIO` if the run failed.
pub(crate) fn finish(fd: i32) -> Outcome<()> {
    with_run(fd, |run| {
        run.join();
        match run {
            Run::Ended(results) if results.has_failed() => {
                Err(Failure::new(EIO, results.sentence()))
            }
            Run::Failed(why) => Err(Failure::new(EIO, why)),
            Run::Ended(_) | Run::Running(_) => Ok(()),
        }
    })
}

/// Writes the report as a JSON string into `out`, truncated if it does not fit; returns its full
/// length. Fails with `EIO` if the request could not run.
pub(crate) fn report(fd: i32, out: &mut [u8]) -> Outcome<usize> {
    with_run(fd, |run| {
        if run.wait(Some(Duration::ZERO)) {
            run.join();
        }
        let text = match run {
            Run::Running(running) => {
                running.results_so_far().report().format_full_report(ReportForm::Json)
            }
            Run::Ended(results) => results.report().format_full_report(ReportForm::Json),
            Run::Failed(why) => return Err(Failure::new(EIO, why)),
        };
        let text = text.trim_end();
        write_c_string(text, out);
        Ok(text.len())
    })
}

/// Writes a string with its terminating zero into `out`, truncated if it does not fit.
pub(crate) fn write_c_string(text: &str, out: &mut [u8]) {
    let bytes = text.bytes().chain([0]);
    out.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
    if let Some(last) = out.last_mut() {
        *last = 0;
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        let errno = match &error {
            OpenError::Mistakes { .. } | OpenError::Unfit(_) => EINVAL,
            OpenError::Unplaceable { .. } => ENOTSUP,
            OpenError::Worker { .. } => ECHILD,
            OpenError::System(error) => error.errno,
            OpenError::Build { error, .. } => match error.as_ref() {
                BuildError::Mistake { .. } => EINVAL,
                BuildError::Outside { failure, .. } => failure.errno.unwrap_or(EIO),
                _ => EIO,
            },
            _ => EIO,
        };
        Self::new(errno, error)
    }
}
