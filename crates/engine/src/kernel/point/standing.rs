//! A line that is at its point: what it has come to, another in its place, and its end.

use super::line::New;
use super::{Point, successor};
use crate::error::BuildError;
use crate::kernel::ended::Ended;
use crate::kernel::host::{Asked, Held, Successor};
use std::sync::{Arc, OnceLock};

/// A line that is at its point, until it leaves.
#[derive(Debug)]
pub(crate) struct Standing {
    pub(super) point: Arc<Point>,
    pub(super) number: u32,
    pub(super) ended: OnceLock<Ended>,
}

impl Held for Standing {
    fn ended(&self) -> &Ended {
        self.ended.get_or_init(|| self.point.remove(self.number))
    }

    fn so_far(&self) -> Option<Ended> {
        let counted = self.point.counted(self.number)?;
        Some(Ended { counted, ..Ended::default() })
    }

    fn number(&self) -> Option<u32> {
        Some(self.number)
    }

    fn successor(
        self: Arc<Self>,
        asked: &Asked<'_>,
        stays: &[(usize, usize)],
    ) -> Result<Successor, BuildError> {
        self.successor_about(asked, stays, "")
    }

    fn successor_about(
        self: Arc<Self>,
        asked: &Asked<'_>,
        stays: &[(usize, usize)],
        about: &str,
    ) -> Result<Successor, BuildError> {
        let owner = self.point.owner_of(self.number);
        let owner = owner.unwrap_or_else(|| sys::process::identity().0);
        let new = asked.sending(&self.point.place, asked.new_line(owner)?)?;
        let new = New { about: about.to_owned(), ..new };
        successor::prepare(self, new, stays).map_err(BuildError::Refused)
    }
}

impl endpoint::source::kernel::Standing for Standing {
    fn leave(&self) {
        let _ = self.ended();
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        let _ = self.ended();
    }
}
