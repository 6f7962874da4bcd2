//! Supervision of a sandbox process: its progress and its exit.
//!
//! **Deadlines.** A filter must make progress while blocks wait for it, while it owes a reply, and
//! while it is to exit. If it makes none, it is killed: after [`CPU_NS_WITHOUT_PROGRESS_MAX`] of
//! its own processor time or, if it has room for output, after [`STALL_MAX`]. The second limit is
//! long, because a busy machine may give the filter no processor.

use super::limits::ADDRESS_SPACE_BYTES_MAX;
use abi::text::VisibleText;
use endpoint::process::ProcessControl;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use sys::confine::{
    REFUSED_CALL_EXIT_STATUS, REFUSED_CALL_REPORT_BYTE, TEXT_REPORT_BYTE, syscall_name,
};
use sys::helper::HelperProcess;
use sys::process_group::ProcessOutcome;

/// Interval between two checks of a process's progress.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum processor time that a filter may use without progress, in ns. The filter is killed if it
/// exceeds this time.
const CPU_NS_WITHOUT_PROGRESS_MAX: u64 = 2_000_000_000;
/// Maximum time without progress although the filter has pending work and room for output.
const STALL_MAX: Duration = Duration::from_secs(20);
/// Time limit for a process to exit after its output has ended.
const EXIT_TIMEOUT: Duration = Duration::from_secs(20);

/// The supervisor of a sandbox process, shared by its entrance and its exit.
#[derive(Debug)]
pub(super) struct Supervisor {
    name: &'static str,
    process: HelperProcess,
    /// The socket on which the process sends its final message.
    message_socket: OwnedFd,
    /// The reason for killing the process; unset if it was not killed.
    why: OnceLock<String>,
    /// The final message of the process; unset until it has been read.
    final_message: OnceLock<Vec<u8>>,
    /// True once the path no longer needs the process, so that its exit is not reported.
    released: AtomicBool,
    /// True once the input of the process has ended.
    input_ended: AtomicBool,
    /// True while the process owes the path a reply. The reply is the filter's state, or the
    /// confirmation that a state is restored.
    owes_reply: AtomicBool,
    /// True once the output of the process has ended without a fault.
    output_ended: AtomicBool,
    /// Number of messages that the path has written to the process's input ring.
    messages_written: AtomicU64,
    taken: AtomicU64,
    given: AtomicU64,
    latest_progress: Mutex<LatestProgress>,
}

/// The state of a sandbox process when it last made progress, for the check of its deadlines.
#[derive(Debug)]
struct LatestProgress {
    /// Numbers of messages that the process had consumed and produced when it last made progress.
    message_counts: (u64, u64),
    /// Processor time that the process had used when it last made progress, in ns.
    processor_ns: u64,
    /// Time since which the process has made no progress although it has room for output. `None` if
    /// it lacks room or makes progress.
    stalled: Option<Instant>,
}

impl Supervisor {
    pub(super) fn new(name: &'static str, process: HelperProcess, words: OwnedFd) -> Self {
        let last = LatestProgress { message_counts: (0, 0), processor_ns: 0, stalled: None };
        Self {
            name,
            process,
            message_socket: words,
            why: OnceLock::new(),
            final_message: OnceLock::new(),
            released: AtomicBool::new(false),
            input_ended: AtomicBool::new(false),
            owes_reply: AtomicBool::new(false),
            output_ended: AtomicBool::new(false),
            messages_written: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            given: AtomicU64::new(0),
            latest_progress: Mutex::new(last),
        }
    }

    /// Kills the process. If this is called more than once, the first reason is reported.
    pub(super) fn kill(&self, why: impl Into<String>) {
        // Later reasons follow from the first one.
        let _ = self.why.set(why.into());
        self.process.kill();
    }

    /// Kills the process without a report, because its filter is no longer needed.
    pub(super) fn kill_without_report(&self) {
        self.released.store(true, Ordering::Relaxed);
        self.process.kill();
    }

    /// Returns true if the process has exited or [`Self::kill`] has been called.
    pub(super) fn is_over(&self) -> bool {
        self.why.get().is_some() || self.process.outcome().is_some()
    }

    /// Waits for a twentieth of [`CHECK_INTERVAL`], but no longer than until the process has
    /// exited.
    pub(super) fn wait_short_interval(&self) {
        let _ = self.process.wait(CHECK_INTERVAL / 20);
    }

    /// Records that the input has ended and the process must therefore exit soon.
    pub(super) fn record_input_end(&self) {
        self.input_ended.store(true, Ordering::Relaxed);
    }

    /// Records whether the process owes a reply. A reply is its state, or the confirmation that a
    /// state is restored.
    pub(super) fn set_owes_reply(&self, asks: bool) {
        self.owes_reply.store(asks, Ordering::Relaxed);
    }

    /// Stores the number of messages written to the process's input ring, and the number that the
    /// process reports as consumed.
    pub(super) fn set_input_counts(&self, put: u64, taken: u64) {
        self.messages_written.store(put, Ordering::Relaxed);
        self.taken.store(taken.min(put), Ordering::Relaxed);
    }

    /// Records that the output of the process has ended without a fault.
    pub(super) fn record_output_end(&self) {
        self.output_ended.store(true, Ordering::Relaxed);
    }

    /// Counts an output message as progress of the process.
    pub(super) fn count_output_message(&self) {
        self.given.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns true if the process has something to do: input to consume, a reply to send, or to
    /// exit.
    pub(super) fn has_pending_work(&self) -> bool {
        let waits =
            self.messages_written.load(Ordering::Relaxed) > self.taken.load(Ordering::Relaxed);
        waits || self.input_ended.load(Ordering::Relaxed) || self.owes_reply.load(Ordering::Relaxed)
    }

    /// Checks the progress of the process, and kills it if it has made no progress for too long.
    /// `has_room` is true if the process has room for its output.
    pub(super) fn check_progress(&self, has_room: bool) {
        let Some(processor_ns) = self.process.cpu_time_ns() else { return };
        let moved = (self.taken.load(Ordering::Relaxed), self.given.load(Ordering::Relaxed));
        let mut last = self.lock_progress();
        if moved != last.message_counts || !self.has_pending_work() {
            *last = LatestProgress { message_counts: moved, processor_ns, stalled: None };
            return;
        }
        let busy = processor_ns.saturating_sub(last.processor_ns);
        if busy > CPU_NS_WITHOUT_PROGRESS_MAX {
            drop(last);
            let seconds = CPU_NS_WITHOUT_PROGRESS_MAX / 1_000_000_000;
            self.kill(format!("made no progress in {seconds} s of processor time, and was ended"));
            return;
        }
        // A process that sleeps for lack of room is not at fault.
        if !has_room {
            last.stalled = None;
            return;
        }
        let since = *last.stalled.get_or_insert_with(Instant::now);
        if since.elapsed() > STALL_MAX {
            drop(last);
            let seconds = STALL_MAX.as_secs();
            self.kill(format!(
                "slept for {seconds} s although blocks waited for it, and was ended"
            ));
        }
    }

    fn lock_progress(&self) -> MutexGuard<'_, LatestProgress> {
        self.latest_progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the reason why a process sends no more messages. The process has exited or is
    /// exiting. Blocks until it has exited, for at most [`EXIT_TIMEOUT`].
    pub(super) fn end_reason(&self) -> String {
        match (self.why.get(), self.process.wait(EXIT_TIMEOUT)) {
            (Some(why), _) => why.clone(),
            (None, Some(ProcessOutcome::Status(0))) => "ended by itself".to_owned(),
            (None, Some(ended)) => self.describe_end(ended),
            (None, None) => "does not end".to_owned(),
        }
    }

    /// Describes the exit of the process for the user. Returns `None` if the process exited
    /// normally or was released.
    fn end_report(&self, ended: ProcessOutcome) -> Option<String> {
        let describe_end = match (self.why.get(), ended) {
            (Some(why), _) => why.clone(),
            (None, _) if self.released.load(Ordering::Relaxed) => return None,
            (None, ProcessOutcome::Status(0)) if self.output_ended.load(Ordering::Relaxed) => {
                return None;
            }
            (None, ProcessOutcome::Status(0)) => {
                "ended by itself before it had processed all blocks".to_owned()
            }
            (None, ended) => self.describe_end(ended),
        };
        let name = self.name;
        Some(format!(
            "the filter `{name}`, in a process of its own, {describe_end}; its later input was \
             dropped"
        ))
    }

    /// Describes the exit of the process, including the process's final message.
    fn describe_end(&self, ended: ProcessOutcome) -> String {
        let words = self.final_message.get_or_init(|| {
            let mut words = [0; 512];
            let length = match sys::descriptor::try_receive(self.message_socket.as_fd(), &mut words)
            {
                Ok(Some((length, _))) => length,
                _ => 0,
            };
            words.get(..length).unwrap_or_default().to_vec()
        });
        match (ended, words.as_slice()) {
            (
                ProcessOutcome::Status(REFUSED_CALL_EXIT_STATUS),
                [REFUSED_CALL_REPORT_BYTE, number @ ..],
            ) => {
                let number = number.try_into().map_or(u32::MAX, u32::from_le_bytes);
                let name =
                    syscall_name(number).map_or_else(String::new, |name| format!("`{name}`, "));
                format!("was ended because it made a forbidden system call: {name}number {number}")
            }
            (ended, words) => match (printable_text(words), ended) {
                (Some(message), _) => format!("{ended}: {message}"),
                // The allocator aborts the process when memory runs out.
                (None, ProcessOutcome::Signal(6)) => {
                    let most = ADDRESS_SPACE_BYTES_MAX >> 20;
                    format!("{ended}, because it exceeded its memory limit of {most} MB")
                }
                (None, ended) => ended.to_string(),
            },
        }
    }
}

/// Returns the printable text of a process's final message, which is untrusted, or `None` if the
/// message is not a report.
pub(super) fn printable_text(words: &[u8]) -> Option<String> {
    let message = words.strip_prefix(&[TEXT_REPORT_BYTE])?;
    Some(VisibleText(&String::from_utf8_lossy(message)).to_string())
}

impl ProcessControl for Supervisor {
    fn has_closed_input(&self) -> bool {
        self.is_over() && !self.input_ended.load(Ordering::Relaxed)
    }

    fn finish(&self) -> Option<String> {
        let ended = self.process.wait(EXIT_TIMEOUT).or_else(|| {
            self.kill(format!("did not end for {} s, and was ended", EXIT_TIMEOUT.as_secs()));
            self.process.wait(EXIT_TIMEOUT)
        });
        self.end_report(ended.unwrap_or(ProcessOutcome::Signal(9)))
    }

    fn process_id(&self) -> Option<u32> {
        self.process.outcome().is_none().then(|| self.process.pid())
    }
}
