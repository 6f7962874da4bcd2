//! Replacement of a capture's filter, in the kernel and while frames arrive.
//!
//! The programs for the new filter are verified and loaded first, which needs the rights of the
//! capture, and then replace the old ones, which needs none: programs that use libpcap drop their
//! rights in between. Each frame is processed by exactly one of the two programs. Frames that the
//! old program has copied stay readable before those of the new one.

use super::{Capture, CaptureSettings, Direction, Planned, plan_source};
use crate::error::OpenError;
use engine::kernel::SwitchError;
use engine::kernel::direct::DirectSuccessor;
use std::sync::Arc;

/// The frames of a capture, and the number of bytes of each that are copied.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CaptureFilter {
    /// A pcap-filter(7) expression, or a program in the numbers of `tcpdump -ddd`, as the filter
    /// `bpf` takes it; `None` for all frames.
    pub expression: Option<String>,
    /// Maximum number of bytes to copy of a frame, at least 64; smaller values count as 64. `None`
    /// for whole frames.
    pub bytes: Option<u32>,
}

/// A filter whose programs are loaded.
#[derive(Debug)]
pub struct PreparedFilter {
    filter: CaptureFilter,
    successors: Vec<DirectSuccessor>,
}

impl PreparedFilter {
    /// Returns the filter whose programs are loaded.
    #[must_use]
    pub const fn filter(&self) -> &CaptureFilter {
        &self.filter
    }
}

impl Capture {
    /// Returns the filter in the kernel.
    #[must_use]
    pub const fn filter(&self) -> &CaptureFilter {
        &self.settings.filter
    }

    /// Loads the programs for another filter, which [`Self::switch_filter`] then activates.
    ///
    /// # Errors
    ///
    /// Fails if the kernel, the daemon or the rights of this process do not permit it. The capture
    /// continues with its filter.
    pub fn prepare_filter(&self, filter: CaptureFilter) -> Result<PreparedFilter, OpenError> {
        let settings = CaptureSettings { filter: filter.clone(), ..self.settings.clone() };
        let prepare = |direction: &Direction| {
            let Planned { text, plan, .. } =
                plan_source(direction.source, &settings, &self.options)?;
            let prepared = direction.attached.prepare_successor(&plan, &self.options.steps);
            prepared.map_err(|error| OpenError::Build {
                text,
                plan: Box::new(plan),
                error: Box::new(error),
            })
        };
        let current = self.directions.iter().filter(|direction| !direction.is_replaced);
        let successors = current.map(prepare).collect::<Result<_, _>>()?;
        Ok(PreparedFilter { filter, successors })
    }

    /// Activates a prepared filter. Frames that were captured before are still read first.
    ///
    /// # Errors
    ///
    /// Fails if a program cannot be replaced, for example because the daemon has ended. If
    /// [`Self::filter`] is still the old filter then, no program was replaced.
    pub fn switch_filter(&mut self, prepared: PreparedFilter) -> Result<(), SwitchError> {
        let current: Vec<usize> =
            (0..self.directions.len()).filter(|at| !self.directions[*at].is_replaced).collect();
        for (at, successor) in current.into_iter().zip(prepared.successors) {
            let attached = successor.switch()?;
            self.settings.filter = prepared.filter.clone();
            let Some(old) = self.directions.get_mut(at) else { continue };
            old.is_replaced = true;
            let new = Direction::new(old.source, attached, Arc::clone(&old.host));
            self.directions.push(new);
        }
        Ok(())
    }

    /// Forgets replaced directions whose frames have all been read, and keeps their losses.
    pub(super) fn forget_replaced(&mut self) {
        let mut lost = 0;
        self.directions.retain_mut(|direction| {
            let is_over = direction.is_replaced && direction.reader.front_frame().is_none();
            if is_over {
                lost += direction.reader.exit_losses().iter().map(|exit| exit.lost).sum::<u64>();
            }
            !is_over
        });
        self.lost_before += lost;
    }
}
