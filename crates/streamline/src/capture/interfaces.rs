//! The interfaces of a capture, which may be added and removed while frames arrive.

use super::Capture;
use super::direction::{CapturedInterface, DirectionCapture};
use crate::error::OpenError;

impl Capture {
    /// Captures the frames of another interface from now on, with the same settings and the current
    /// filter.
    ///
    /// # Errors
    ///
    /// Fails if the kernel or the daemon refuses, or if this process lacks the privileges. The
    /// capture of the other interfaces continues.
    pub fn add_interface(&mut self, name: &str) -> Result<(), OpenError> {
        let found = sys::net::interface(name).ok();
        let is_loopback = found.as_ref().is_some_and(|interface| interface.flags.is_loopback());
        // The plan refuses an interface that does not exist.
        let index = found.map_or(0, |interface| interface.index);
        let interface = CapturedInterface { name: name.to_owned(), index };
        // Each packet on loopback is both sent and received, so one direction suffices.
        let only_received =
            is_loopback || self.settings.received_only || self.settings.take_filter.is_some();
        let sources: &[&str] = if only_received { &["rx"] } else { &["rx", "tx"] };
        let mut added = Vec::new();
        for source in sources {
            let context = (&self.settings, &self.options);
            let (direction, wait_ns) = DirectionCapture::open(source, interface.clone(), context)?;
            self.notification_interval_ns = self.notification_interval_ns.max(wait_ns);
            added.push(direction);
        }
        self.directions.append(&mut added);
        self.interface_changes += 1;
        Ok(())
    }

    /// Returns the indices of the captured interfaces. An interface that is captured in two
    /// directions occurs twice.
    pub fn interfaces(&self) -> impl Iterator<Item = u32> {
        self.directions.iter().filter(|one| !one.has_ended).map(|one| one.interface.index)
    }

    /// Ends the capture of the interfaces that have been removed or that the daemon no longer
    /// captures. Frames captured earlier can still be read.
    pub fn forget_failed_interfaces(&mut self) {
        let failed = |one: &&DirectionCapture| !one.has_ended && one.check_for_failure().is_err();
        let failed: Vec<u32> =
            self.directions.iter().filter(failed).map(|one| one.interface.index).collect();
        for direction in &mut self.directions {
            if failed.contains(&direction.interface.index) && !direction.has_ended {
                direction.attached.handle.detach();
                direction.has_ended = true;
                self.interface_changes += 1;
            }
        }
    }
}
