//! Exit statuses of the command.

use std::process::ExitCode;

/// The exit status: 0 done, 1 failed, 2 wrong words, 3 nothing there, 141 nobody reads the output
/// any more. (A second ^C ends the process with 130 at once, wherever it is.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// All went as it should.
    Done,
    /// A path failed, the ledger does not balance, blocks were lost and must not, or this machine
    /// refuses.
    Failed,
    /// Mistakes in the command or in the line.
    Usage,
    /// A named thing does not exist: a file, a filter, a program.
    Nothing,
    /// The reader of standard output has gone. What a shell reports for a program that SIGPIPE
    /// ended, as it does most filters of Unix.
    Unread,
}

impl Status {
    /// The status as a number.
    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Nothing => 3,
            Self::Unread => 128 + 13,
        }
    }

    /// The status of another process of ours.
    pub(crate) fn numbered(number: u8) -> Self {
        let all = [Self::Done, Self::Usage, Self::Nothing, Self::Unread];
        all.into_iter().find(|status| status.number() == number).unwrap_or(Self::Failed)
    }
}

impl From<Status> for ExitCode {
    fn from(status: Status) -> Self {
        Self::from(status.number())
    }
}
