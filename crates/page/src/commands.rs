//! Execution of `streamline` commands for actions of the page. Each command runs as the same user,
//! in a separate process and with a time limit, so a request has the same meaning as in a terminal.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// File name of the program that the page runs for its actions.
const PROGRAM_NAME: &str = "streamline";
/// Maximum number of bytes read from each output of the program.
const OUTPUT_BYTES_MAX: u64 = 8 << 20;
/// Time after which a run of the program `streamline` is killed.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// The program `streamline`, which the actions of the page run.
#[derive(Clone, Debug)]
pub struct StreamlineProgram {
    path: OsString,
    /// Directory of the daemon, if it is not a standard one.
    daemon: Option<PathBuf>,
}

/// The exit status and the output of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommandOutcome {
    /// True if the exit status is 0.
    pub succeeded: bool,
    /// Text that the command wrote to standard output.
    pub output: String,
    /// Text that the command wrote to standard error, including mistakes in a request with their
    /// positions.
    pub messages: String,
}

impl StreamlineProgram {
    /// Finds the program `streamline` in the directory of the running program, or else in `PATH`.
    /// Does not check that the program exists in `PATH`.
    #[must_use]
    pub fn find(daemon: Option<PathBuf>) -> Self {
        let beside = std::env::current_exe().ok().map(|own| own.with_file_name(PROGRAM_NAME));
        let beside = beside.filter(|path| path.is_file());
        let path = beside.map_or_else(|| PROGRAM_NAME.into(), OsString::from);
        Self { path, daemon }
    }

    /// Returns a copy of this program that uses the directory `empty` in place of the daemon's
    /// directory. Paths that commands of the copy run do not appear in the daemon's list.
    #[must_use]
    pub fn with_empty_directory(&self, empty: PathBuf) -> Self {
        Self { daemon: Some(empty), ..self.clone() }
    }

    /// Runs the program with the arguments `words`. Blocks until the program has exited. Fails if
    /// the program cannot be started. If the program has not exited after 30 s, kills it and fails.
    pub fn run<W: AsRef<OsStr>>(&self, words: &[W]) -> io::Result<CommandOutcome> {
        let mut command = Command::new(&self.path);
        command.args(words).env("NO_COLOR", "1").stdin(Stdio::null());
        if let Some(daemon) = &self.daemon {
            command.env("STREAMLINE_DAEMON", daemon);
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let (output, messages) = (child.stdout.take(), child.stderr.take());
        let (output, messages, in_time) = std::thread::scope(|scope| {
            let output = scope.spawn(|| read_text(output));
            let messages = scope.spawn(|| read_text(messages));
            let in_time = wait_or_kill(&mut child);
            let text = |text: Result<String, _>| text.unwrap_or_default();
            (text(output.join()), text(messages.join()), in_time)
        });
        let status = child.wait()?;
        match in_time {
            true => Ok(CommandOutcome { succeeded: status.success(), output, messages }),
            false => Err(io::Error::new(io::ErrorKind::TimedOut, "it did not end in time")),
        }
    }
}

/// Waits until a process has exited, and kills the process after [`COMMAND_TIMEOUT`]. Returns true
/// if the process exited by itself.
fn wait_or_kill(child: &mut Child) -> bool {
    let number = i32::try_from(child.id()).unwrap_or_default();
    let ended = sys::local_socket::open_pidfd(number).is_ok_and(|process| {
        use std::os::fd::AsFd as _;
        sys::poll::wait_until_readable_despite_signals(&[process.as_fd()], Some(COMMAND_TIMEOUT))
            == [true]
    });
    if !ended {
        // An error means that the process has exited in the meantime.
        let _ = child.kill();
    }
    ended
}

fn read_text(stream: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    // If reading fails, the bytes read before the failure are returned.
    let _ = stream.map(|stream| stream.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Splits text into words at white space outside single and double quotes. Quotes are removed only
/// if they enclose the whole word, because requests themselves contain quotes.
#[must_use]
pub fn split_words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quote = None;
    for c in text.chars() {
        match quote {
            Some(open) if c == open => quote = None,
            None if c == '"' || c == '\'' => quote = Some(c),
            None if c.is_whitespace() => {
                words.push(std::mem::take(&mut word));
                continue;
            }
            _ => {}
        }
        word.push(c);
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words.into_iter().map(|word| strip_quotes(&word)).collect()
}

fn strip_quotes(word: &str) -> String {
    let inside = |quote: char| {
        let inside = word.strip_prefix(quote)?.strip_suffix(quote)?;
        (!inside.contains(quote)).then(|| inside.to_owned())
    };
    inside('\'').or_else(|| inside('"')).unwrap_or_else(|| word.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_an_edit_are_split_outside_quotes() {
        let split = |text: &str| split_words(text).join("/");
        assert_eq!(split("arg count every=1s"), "arg/count/every=1s");
        assert_eq!(
            split("insert 'bpf \"tcp port 80\"' after rx"),
            "insert/bpf \"tcp port 80\"/after/rx"
        );
        assert_eq!(split("  remove \"count#1\" "), "remove/count#1");
        assert_eq!(split("arg match text=\"a b\""), "arg/match/text=\"a b\"");
        assert!(split_words(" ").is_empty());
    }
}
