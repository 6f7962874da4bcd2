//! Exit statuses of the command `streamline`.

use std::process::ExitCode;

/// The exit status: 0 done, 1 failed, 2 usage error, 3 not found, 4 an alarm was raised, 141
/// standard output closed. A second ^C ends the process immediately with status 130, which has no
/// variant here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// The command was successful.
    Done,
    /// Any other failure: a path failed, the ledger does not balance, blocks were lost although
    /// `--no-loss` was given, a replay differs, or a system call failed.
    Failed,
    /// Mistakes in the command line or in the request.
    Usage,
    /// A named file, filter, program or path does not exist, or there is no daemon.
    NotFound,
    /// The run was successful, but an alarm of `--alarm` was raised.
    Alarmed,
    /// The reader of standard output has closed the pipe. Shells report the same status for a
    /// program killed by SIGPIPE.
    OutputClosed,
}

impl Status {
    /// Returns the numeric exit status.
    pub(crate) const fn exit_code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::NotFound => 3,
            Self::Alarmed => 4,
            Self::OutputClosed => 128 + 13,
        }
    }

    /// Returns `Alarmed` instead of `Done` if an alarm was raised.
    pub(crate) const fn with_alarm(self, raised: bool) -> Self {
        match self {
            Self::Done if raised => Self::Alarmed,
            other => other,
        }
    }

    /// Converts the exit status of another streamline process. A number without a variant becomes
    /// `Failed`.
    pub(crate) fn from_exit_code(number: u8) -> Self {
        let all = [Self::Done, Self::Usage, Self::NotFound, Self::Alarmed, Self::OutputClosed];
        all.into_iter().find(|status| status.exit_code() == number).unwrap_or(Self::Failed)
    }
}

impl From<Status> for ExitCode {
    fn from(status: Status) -> Self {
        Self::from(status.exit_code())
    }
}
