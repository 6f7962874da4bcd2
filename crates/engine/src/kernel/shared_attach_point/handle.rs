//! Handles of requests at an attach point. A handle reads the counters of its request, and replaces
//! or removes it.

use super::request::NewRequest;
use super::{SharedAttachPoint, successor};
use crate::error::BuildError;
use crate::kernel::final_counters::FinalCounters;
use crate::kernel::host::{AttachmentHandle, KernelRequest, PreparedSuccessor};
use crate::kernel::taps::OpenTaps;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A handle to a request at an attach point. Dropping the handle removes the request.
#[derive(Debug)]
pub(crate) struct RequestHandle {
    pub(super) point: Arc<SharedAttachPoint>,
    pub(super) number: u32,
    /// True once a caller has begun to remove the request from its attach point.
    pub(super) leaving: AtomicBool,
    pub(super) ended: OnceLock<FinalCounters>,
}

impl RequestHandle {
    pub(super) const fn new(point: Arc<SharedAttachPoint>, number: u32) -> Self {
        Self { point, number, leaving: AtomicBool::new(false), ended: OnceLock::new() }
    }
}

impl AttachmentHandle for RequestHandle {
    fn final_counters(&self) -> &FinalCounters {
        self.leaving.store(true, Ordering::Release);
        self.ended.get_or_init(|| self.point.remove_request(self.number))
    }

    fn current_counters(&self) -> Option<FinalCounters> {
        let current = self.point.current_counters(self.number);
        // A request that is not attached is being removed or was never attached.
        current
            .or_else(|| self.leaving.load(Ordering::Acquire).then(|| self.final_counters().clone()))
    }

    fn request_number(&self) -> Option<u32> {
        Some(self.number)
    }

    fn set_taps(&self, open: &OpenTaps, _: Duration) -> Result<(), String> {
        self.point.set_taps(self.number, open)
    }

    fn prepare_successor(
        self: Arc<Self>,
        asked: &KernelRequest<'_>,
        stays: &[(usize, usize)],
        about: &str,
    ) -> Result<PreparedSuccessor, BuildError> {
        let owner = self.point.request_owner(self.number);
        let owner = owner.unwrap_or_else(|| sys::process::effective_ids().0);
        let new =
            asked.with_egress_interfaces(&self.point.site.place, asked.new_request(owner)?)?;
        let new = NewRequest { about: about.to_owned(), ..new };
        successor::prepare_request_successor(self, new, stays).map_err(BuildError::Refused)
    }
}

impl endpoint::source::kernel::Attachment for RequestHandle {
    fn detach(&self) {
        let _ = self.final_counters();
    }
}

impl Drop for RequestHandle {
    fn drop(&mut self) {
        let _ = self.final_counters();
    }
}
