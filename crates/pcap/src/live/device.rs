//! The kinds of devices: their link types, the settings of their captures, and the frames that they
//! have dropped.

use crate::settings::Settings;
use streamline::capture::CaptureSettings;

/// Link type of Ethernet frames (`DLT_EN10MB`).
const DLT_EN10MB: i32 = 1;
/// Link type that libpcap also offers for interfaces with Ethernet frames (`DLT_DOCSIS`).
const DLT_DOCSIS: i32 = 143;
/// Link type of packets with a cooked header of version 1 (`DLT_LINUX_SLL`).
const DLT_LINUX_SLL: i32 = 113;
/// Link type of packets with a cooked header of version 2 (`DLT_LINUX_SLL2`).
const DLT_LINUX_SLL2: i32 = 276;

/// The kind of a device.
#[derive(Clone, Copy, Debug)]
pub(super) enum CaptureDevice {
    /// A single network interface.
    Interface {
        /// Index of the interface.
        index: u32,
        is_loopback: bool,
    },
    /// The device `any`.
    All,
}

impl CaptureDevice {
    /// Returns the link types that the device supports, as `DLT_` numbers. The default is the
    /// first.
    pub(super) const fn datalinks(self) -> &'static [i32] {
        match self {
            Self::Interface { is_loopback: true, .. } => &[DLT_EN10MB],
            Self::Interface { is_loopback: false, .. } => &[DLT_EN10MB, DLT_DOCSIS],
            Self::All => &[DLT_LINUX_SLL, DLT_LINUX_SLL2],
        }
    }
}

/// Returns the settings of the capture.
pub(super) fn capture_settings(settings: &Settings) -> CaptureSettings {
    let timeout_ms = u64::try_from(settings.timeout_ms).unwrap_or(0);
    let delay_ns = match settings.is_immediate {
        true => Some(0),
        false => (timeout_ms > 0).then(|| timeout_ms.saturating_mul(1_000_000)),
    };
    CaptureSettings {
        interface: settings.device.clone(),
        ring_bytes: u64::try_from(settings.buffer).ok().filter(|bytes| *bytes > 0).map(ring_size),
        delay_ns,
        ..CaptureSettings::default()
    }
}

/// Returns the total size of the rings in bytes, given the buffer size that the program has
/// requested.
fn ring_size(buffer: u64) -> u64 {
    buffer.clamp(512 << 10, 4 << 30)
}

/// Returns the number of frames that the interface has dropped, as libpcap counts them.
pub(super) fn interface_drops(device: &str) -> u64 {
    let count = |name| {
        let text = std::fs::read_to_string(format!("/sys/class/net/{device}/statistics/{name}"));
        text.ok().and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    count("rx_missed_errors") + count("rx_fifo_errors")
}
