//! Replacement of a capture's filter in the kernel while frames arrive.
//!
//! The replacement has two steps. First, the kernel programs for the new filter are verified and
//! loaded, which requires the same privileges as opening the capture. Then, they replace the old
//! kernel programs, which requires no privileges. A program that uses libpcap may thus drop its
//! privileges between the two steps. Each frame is processed by either the old or the new kernel
//! program. The frames that the old program has copied are read first.

use super::direction::{DirectionCapture, PlannedDirection, plan_direction};
use super::{Capture, CaptureSettings};
use crate::error::OpenError;
use engine::kernel::SwitchError;
use engine::kernel::direct_attachment::DirectSuccessor;
use std::sync::Arc;

/// The filter of a capture, and the number of bytes copied from each frame.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CaptureFilter {
    /// A pcap-filter(7) expression, or a program in the numeric form of `tcpdump -ddd`, as accepted
    /// by the filter `bpf`; `None` for all frames.
    pub expression: Option<String>,
    /// Maximum number of bytes to copy from a frame. Values less than 64 count as 64. `None` for
    /// whole frames.
    pub bytes: Option<u32>,
}

/// A filter whose programs have been loaded.
#[derive(Debug)]
pub struct PreparedFilter {
    filter: CaptureFilter,
    successors: Vec<DirectSuccessor>,
    /// Value of [`Capture::interface_changes`] when the programs of this filter were loaded.
    interface_changes: u64,
}

impl PreparedFilter {
    /// Returns the filter whose programs have been loaded.
    #[must_use]
    pub const fn filter(&self) -> &CaptureFilter {
        &self.filter
    }
}

impl Capture {
    /// Returns the filter that is active in the kernel.
    #[must_use]
    pub const fn filter(&self) -> &CaptureFilter {
        &self.settings.filter
    }

    /// Loads the programs for another filter, which [`Self::switch_filter`] then activates.
    ///
    /// # Errors
    ///
    /// Fails if the kernel or the daemon refuses, or if this process lacks the privileges. The
    /// capture then continues with its current filter.
    pub fn prepare_filter(&self, filter: CaptureFilter) -> Result<PreparedFilter, OpenError> {
        let settings = CaptureSettings { filter: filter.clone(), ..self.settings.clone() };
        let prepare = |direction: &DirectionCapture| {
            let source = (direction.source, &direction.interface);
            let PlannedDirection { text, plan, .. } =
                plan_direction(source, &settings, &self.options)?;
            let prepared = direction.attached.prepare_successor(&plan, &self.options.steps);
            prepared.map_err(|error| OpenError::Build {
                text,
                plan: Box::new(plan),
                error: Box::new(error),
            })
        };
        let current = self.directions.iter().filter(|direction| !direction.has_ended);
        let successors = current.map(prepare).collect::<Result<_, _>>()?;
        Ok(PreparedFilter { filter, successors, interface_changes: self.interface_changes })
    }

    /// Returns true if [`Self::switch_filter`] can activate a prepared filter, because no interface
    /// was added or removed since the filter was prepared.
    #[must_use]
    pub const fn can_switch_to(&self, prepared: &PreparedFilter) -> bool {
        prepared.interface_changes == self.interface_changes
    }

    /// Activates a prepared filter for which [`fits`](Self::can_switch_to) returns true. Frames
    /// captured earlier are read first.
    ///
    /// # Errors
    ///
    /// Fails if a program cannot be replaced, for example because the daemon has ended. If
    /// [`Self::filter`] still returns the old filter, no program was replaced.
    pub fn switch_filter(&mut self, prepared: PreparedFilter) -> Result<(), SwitchError> {
        let current: Vec<usize> =
            (0..self.directions.len()).filter(|at| !self.directions[*at].has_ended).collect();
        for (at, successor) in current.into_iter().zip(prepared.successors) {
            let attached = successor.switch()?;
            self.settings.filter = prepared.filter.clone();
            let Some(old) = self.directions.get_mut(at) else { continue };
            old.has_ended = true;
            let interface = old.interface.clone();
            let new = DirectionCapture::new(old.source, interface, attached, Arc::clone(&old.host));
            self.directions.push(new);
        }
        Ok(())
    }

    /// Removes the directions of interfaces whose capture has ended and whose frames have all been
    /// read. Their numbers of lost frames remain in the counts of the capture.
    pub(super) fn forget_ended_directions(&mut self) {
        let mut lost = 0;
        self.directions.retain_mut(|direction| {
            let is_over = direction.has_ended && direction.reader.front_frame().is_none();
            if is_over {
                lost += direction.reader.exit_losses().iter().map(|exit| exit.lost).sum::<u64>();
            }
            !is_over
        });
        self.lost_in_ended_directions += lost;
    }
}
