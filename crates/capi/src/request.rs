//! A request that runs in threads of the calling program, as an object of the file interface.

use std::time::Duration;
use streamline::{RunResults, Running};

/// A running request, or its results.
#[derive(Debug)]
pub(crate) enum Run {
    Running(Box<Running>),
    Ended(Box<RunResults>),
    /// The request failed, for the reason in the message.
    Failed(String),
}

impl Run {
    /// Blocks until the run has ended, for at most `limit` (`None` means no limit). Returns true if
    /// the run has ended.
    pub(crate) fn wait(&self, limit: Option<Duration>) -> bool {
        match self {
            Self::Running(running) => {
                sys::poll::wait_until_readable_despite_signals(
                    &[running.run_end_descriptor()],
                    limit,
                ) == [true]
            }
            Self::Ended(_) | Self::Failed(_) => true,
        }
    }

    pub(crate) fn join(&mut self) {
        if !matches!(self, Self::Running(_)) {
            return;
        }
        let taken = std::mem::replace(self, Self::Failed("a bug in libstreamline".to_owned()));
        if let Self::Running(running) = taken {
            *self = match running.wait() {
                Ok(results) => Self::Ended(Box::new(results)),
                Err(error) => Self::Failed(error.to_string()),
            };
        }
    }
}
