//! Status of attach points, for `streamline doctor`, `streamline ps` and tests.

use super::program_version::ProgramVersion;
use super::request::{SharedFrameRing, SharingDomain};
use super::{AttachPoints, AttachedRequest, PointState, SharedAttachPoint};
use filter::{Amount, AttachTarget};
use std::sync::{Arc, PoisonError, Weak};

/// The status of an attach point: its program, requests and rings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PointStatus {
    /// The user whose sockets the attach point covers; `None` for an attach point at an interface.
    pub user: Option<u32>,
    /// Kernel id of the program that runs at the point.
    pub program: u32,
    /// Number of program runs. The kernel counts runs only while its statistics are enabled.
    pub runs: u64,
    /// Number of requests that the program serves.
    pub request_count: usize,
    /// Number of rings of frames at the attach point. A sharing domain has one ring for each layout
    /// that its requests use.
    pub frame_rings: usize,
    /// Number of times the program was replaced.
    pub replaced: u64,
    /// The filters of the program: name, number of requests that use the filter, and number of
    /// blocks that have arrived at it since the program was installed.
    pub steps: Vec<(String, usize, u64)>,
    /// Number of frames processed so far by all programs of the point.
    pub frames: u64,
    /// The requests, in order of attachment.
    pub requests: Vec<RequestStatus>,
    /// The rings of frames.
    pub rings: Vec<FrameRingStatus>,
}

/// A ring of frames: its sharing domain, its size in bytes, and the number of requests that use it.
pub type FrameRingStatus = (SharingDomain, u64, usize);

/// The status of a request at an attach point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestStatus {
    /// Number of the request among all requests ever attached.
    pub number: u32,
    /// User id of the request's owner.
    pub owner: u32,
    /// Frames that the programs of the point processed while the request was attached.
    pub processed: Amount,
    /// Frames delivered to the reader of the request, summed over all exits.
    pub delivered: Amount,
    /// Number of frames that the program could not copy to user space for the request.
    pub lost: u64,
    /// Number of the request's taps that are open.
    pub taps: usize,
    /// The filters of the request: name, number of requests that use the filter, and number of
    /// blocks that have arrived at it for this request.
    pub steps: Vec<(String, usize, u64)>,
}

impl AttachPoints {
    /// Returns the status of all attach points.
    #[must_use]
    pub fn status(&self) -> Vec<(AttachTarget, PointStatus)> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let points = known.iter().filter_map(Weak::upgrade);
        points.filter_map(|point| Some((point.site.attach.clone(), point.status()?))).collect()
    }
}

impl SharedAttachPoint {
    /// Returns the status of this attach point. Returns `None` if no program runs at the point.
    pub(super) fn status(&self) -> Option<PointStatus> {
        let state = self.lock_state();
        let version = &state.running.as_ref()?.version;
        let owned = state.requests.iter().map(|line| &line.owner);
        let mut rings: Vec<(*const SharedFrameRing, FrameRingStatus)> = Vec::new();
        for owner in owned {
            let at = Arc::as_ptr(owner);
            match rings.iter_mut().find(|(known, _)| *known == at) {
                Some((_, (.., lines))) => *lines += 1,
                None => {
                    let bytes = owner.records.own_layout().size().map_or(0, u64::from);
                    rings.push((at, (owner.domain.clone(), bytes, 1)));
                }
            }
        }
        let info = version.program.info().ok()?;
        let retired = state.retired.iter().map(ProgramVersion::processed_frame_count).sum::<u64>();
        Some(PointStatus {
            user: self.site.sockets.as_ref().map(|sockets| sockets.user_and_namespace().0),
            program: info.id,
            runs: info.runs,
            request_count: state.requests.len(),
            frame_rings: rings.len(),
            replaced: state.replaced,
            steps: version.filter_statuses(),
            frames: state.frames + retired + version.processed_frame_count(),
            requests: state
                .requests
                .iter()
                .map(|line| state.request_status(line, version))
                .collect(),
            rings: rings.into_iter().map(|(_, ring)| ring).collect(),
        })
    }
}

impl PointState {
    /// Returns the status of a request, including its current counters.
    fn request_status(&self, line: &AttachedRequest, running: &ProgramVersion) -> RequestStatus {
        let counted = self.current_counters(line, Some(running));
        RequestStatus {
            number: line.number,
            owner: line.uid,
            processed: counted.ran,
            delivered: counted.handed.iter().copied().sum(),
            lost: line.failed_copy_count(),
            taps: running.open_taps(line.number).iter().count(),
            steps: running.request_statuses(line.number, &counted.entered),
        }
    }
}
