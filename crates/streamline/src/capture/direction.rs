//! The frames of an interface in one direction, and the request that captures them.

use super::CaptureSettings;
use crate::error::OpenError;
use crate::hosts::KernelHosts;
use crate::options::Options;
use crate::prepared::PreparedRequest;
use endpoint::Failure;
use endpoint::source::kernel::reader::KernelRingReader;
use engine::kernel::direct_attachment::{DirectAttachment, attach_directly};
use pipeline::plan::Plan;
use std::fmt::Write as _;
use std::sync::Arc;

/// The capture of the frames of one interface in one direction: received or sent.
#[derive(Debug)]
pub(super) struct DirectionCapture {
    /// Name of the source in the request for this direction: `rx` or `tx`.
    pub(super) source: &'static str,
    pub(super) interface: CapturedInterface,
    pub(super) reader: KernelRingReader,
    pub(super) attached: DirectAttachment,
    /// True if the kernel program of this direction has ended or has been replaced. Frames that the
    /// program has copied can still be read.
    pub(super) has_ended: bool,
    /// Handle to the host, either the daemon or this process, that runs the kernel program of this
    /// direction. The handle is kept until the program is detached.
    pub(super) host: Arc<KernelHosts>,
}

/// The name and the index of a captured interface.
#[derive(Clone, Debug)]
pub(super) struct CapturedInterface {
    pub(super) name: String,
    pub(super) index: u32,
}

impl DirectionCapture {
    /// Plans and attaches the capture of one direction of an interface. `source` is `rx` or `tx`.
    /// Returns the capture of this direction, and the minimum time between two notifications about
    /// arriving frames, in nanoseconds.
    pub(super) fn open(
        source: &'static str,
        interface: CapturedInterface,
        (settings, options): (&CaptureSettings, &Options),
    ) -> Result<(Self, u64), OpenError> {
        let PlannedDirection { text, plan, host } =
            plan_direction((source, &interface), settings, options)?;
        let wait_ns = plan.programs.first().map_or(0, |program| program.ring.signal_ns);
        let attached = attach_directly(&plan, &host, &options.steps).map_err(|error| {
            options.steps.roll_back();
            OpenError::Build { text, plan: Box::new(plan), error: Box::new(error) }
        })?;
        Ok((Self::new(source, interface, attached, Arc::new(host)), wait_ns))
    }

    pub(super) fn new(
        source: &'static str,
        interface: CapturedInterface,
        attached: DirectAttachment,
        host: Arc<KernelHosts>,
    ) -> Self {
        let sinks = attached.exits.iter().map(|exit| exit.sink).collect();
        let reader = KernelRingReader::new(Arc::clone(&attached.rings), sinks);
        Self { source, interface, reader, attached, has_ended: false, host }
    }

    /// Fails with the reason if the kernel program of this direction is no longer attached.
    pub(super) fn check_for_failure(&self) -> Result<(), Failure> {
        let Self { attached, .. } = self;
        if attached.place.is_gone() {
            return Err(attached.place.failure_for_removed_interface(None));
        }
        attached.handle.export_failure().map_or(Ok(()), Err)
    }
}

/// The plan of the request that captures one direction of an interface.
pub(super) struct PlannedDirection {
    pub(super) text: String,
    pub(super) plan: Plan,
    pub(super) host: KernelHosts,
}

/// Plans the request for one direction.
pub(super) fn plan_direction(
    (source, interface): (&str, &CapturedInterface),
    settings: &CaptureSettings,
    options: &Options,
) -> Result<PlannedDirection, OpenError> {
    let request = request_text(source, &interface.name, settings);
    let PreparedRequest { text, mut plan, hosts: host, .. } =
        PreparedRequest::read(&request, options)?;
    for program in &mut plan.programs {
        if let Some(delay) = settings.delay_ns {
            program.ring.signal_ns = delay.clamp(NOTIFICATION_DELAY_MIN_NS, program.ring.signal_ns);
            program.ring.interval_min_ns = program.ring.signal_ns / 2;
        }
        if settings.host_wakes {
            program.ring.signal_blocks = 0;
        }
        if let Some(bytes) = settings.filter.bytes {
            program.ring.record_max = program.ring.record_max.min(bytes.max(RECORD_LIMIT_MIN));
        }
    }
    Ok(PlannedDirection { text, plan, host })
}

/// Minimum number of bytes that the kernel program copies from each frame. Smaller settings are
/// raised to this number.
const RECORD_LIMIT_MIN: u32 = 64;
/// Minimum of [`CaptureSettings::delay_ns`], in nanoseconds; smaller settings are raised to it.
const NOTIFICATION_DELAY_MIN_NS: u64 = 1_000_000;

/// Returns the request for one direction. The sink of the request stands for the calling program,
/// which reads the ring itself.
fn request_text(source: &str, interface: &str, settings: &CaptureSettings) -> String {
    let CaptureSettings { filter, ring_bytes: ring, take_filter: take, .. } = settings;
    let mut text = format!("{source} {}", quote(interface));
    if let Some(expression) = take {
        let _ = write!(text, " take {}", quote(expression));
    }
    if let Some(bytes) = ring {
        let _ = write!(text, " ring={bytes}");
    }
    text.push_str(" @kernel");
    if let Some(expression) = &filter.expression {
        let _ = write!(text, " | bpf {}", quote(expression));
    }
    text.push_str(" | pcap /dev/null");
    text
}

/// Quotes a word for use in the text of a request.
fn quote(word: &str) -> String {
    let mut quoted = String::with_capacity(word.len() + 2);
    quoted.push('"');
    for letter in word.chars() {
        if matches!(letter, '"' | '\\') {
            quoted.push('\\');
        }
        quoted.push(letter);
    }
    quoted.push('"');
    quoted
}
