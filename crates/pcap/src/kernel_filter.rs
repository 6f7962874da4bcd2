//! The filter that the application sets on a handle, run in the kernel program of the capture.
//!
//! The filter is loaded into the kernel when the application compiles it (`pcap_compile`), because
//! many applications drop their privileges before they set it (`pcap_setfilter`). Setting the
//! filter only activates it, which needs no privileges. The application's thread also runs the
//! filter on each frame that it reads. It thereby decides on frames about which the kernel was
//! unsure or that arrived before the activation, and determines the number of bytes to keep. A
//! filter that cannot run in the kernel runs only in the application's thread.

use crate::filter::Filter;
use streamline::capture::{Capture, CaptureFilter, PreparedFilter};

/// The capture filter that runs in the kernel, and a loaded filter that may replace it.
#[derive(Debug, Default)]
pub(crate) struct KernelFilter {
    /// The filter that runs in the kernel.
    active: CaptureFilter,
    /// Filter whose programs are loaded into the kernel and that can be activated without
    /// privileges; `None` if there is none.
    prepared: Option<PreparedFilter>,
    /// Reason why the program's filter does not run in the kernel; `None` if it does.
    pub(crate) refusal: Option<String>,
}

/// Minimum number of bytes that the kernel copies from a frame. Larger numbers are rounded up to a
/// power of two, so that captures with similar numbers copy the same number of bytes and can share
/// one ring.
const COPIED_BYTES_MIN: usize = 256;
/// Number of bytes to copy per frame from which on the kernel copies whole frames instead.
const WHOLE_FRAME_BYTES_MIN: usize = 1500;

/// Returns the settings for the kernel part of a capture: the filter as an expression, and the
/// number of bytes to copy from each frame (`None` for whole frames). `filter` and `snapshot` are
/// the filter and the snapshot length of the application. If the kernel cannot run the filter, the
/// expression is `None`, so that the kernel copies all frames.
pub(crate) fn kernel_capture_filter(filter: &Filter, snapshot: usize) -> CaptureFilter {
    let bytes = snapshot.max(filter.examined_bytes);
    let bytes =
        (bytes < WHOLE_FRAME_BYTES_MIN).then(|| bytes.next_power_of_two().max(COPIED_BYTES_MIN));
    CaptureFilter {
        expression: filter.expression().ok().filter(|_| !filter.accepts_all()),
        bytes: bytes.and_then(|bytes| u32::try_from(bytes).ok()),
    }
}

impl KernelFilter {
    /// Loads the programs for a filter that the caller may set later ([`Self::set_kernel_filter`]),
    /// unless this filter already runs in the kernel.
    pub(crate) fn prepare(&mut self, capture: &Capture, wanted: CaptureFilter) {
        if *capture.filter() != wanted {
            // After a failure, `set` tries again and stores the reason.
            self.prepared = capture.prepare_filter(wanted).ok();
        }
    }

    /// Makes `wanted` the filter that runs in the kernel. `capture` is `None` while the handle is
    /// being read; the filter then stays as it is. Fails with the reason if the filter that remains
    /// in the kernel could reject frames that `filter` accepts. If no filter remains in the kernel,
    /// which then copies all frames, succeeds, and stores the reason in `refusal`.
    pub(crate) fn set_kernel_filter(
        &mut self,
        capture: Option<&mut Capture>,
        (filter, wanted): (&Filter, CaptureFilter),
    ) -> Result<(), String> {
        let replaced = match capture {
            Some(capture) => {
                let replaced = replace(capture, self.prepared.take(), wanted);
                self.active = capture.filter().clone();
                replaced
            }
            None if self.active == wanted => Ok(()),
            None => Err("it was set while the handle was read".to_owned()),
        };
        match replaced {
            Ok(()) => self.refusal = filter.expression().err(),
            Err(why) if self.active == CaptureFilter::default() => self.refusal = Some(why),
            Err(why) => return Err(format!("the filter in the kernel was not replaced: {why}")),
        }
        Ok(())
    }
}

/// Replaces the filter of a capture, unless the capture already has this filter.
fn replace(
    capture: &mut Capture,
    prepared: Option<PreparedFilter>,
    wanted: CaptureFilter,
) -> Result<(), String> {
    if *capture.filter() == wanted {
        return Ok(());
    }
    let fits =
        |prepared: &PreparedFilter| *prepared.filter() == wanted && capture.can_switch_to(prepared);
    let prepared = match prepared.filter(fits) {
        Some(prepared) => prepared,
        None => capture.prepare_filter(wanted).map_err(|error| error.to_string())?,
    };
    capture.switch_filter(prepared).map_err(|error| error.to_string())
}
