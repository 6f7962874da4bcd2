//! A flood of frames, sent at full rate or at a given rate from the first processor over a veth
//! pair between two network namespaces.
//!
//! A veth pair delivers frames in the sender's context, so the kernel's cost of observation is part
//! of the sender's processor time. This time is reported instead of the elapsed time, which other
//! processes would inflate. [SL fig. 15]
//!
//! Processor time also varies, with the clock frequency and the contents of caches. Therefore,
//! frames are sent alternately to two identical veth pairs ([`FloodPair`]), of which only one is
//! observed. The difference is the cost of observation.

use crate::harness::median;
use std::net::UdpSocket;
use std::ops::Range;
use std::sync::Arc;
use sys::clock;
use sys::net::RouteSocket;
use sys::packet::{PacketSender, QdiscMode, SendStopReason};
use testkit::Frame;
use testkit::net::{
    CLIENT, CLIENT_DEVICE, DevicePairSettings, NamespacePair, SERVER, SERVER_DEVICE,
};
use testkit::packet::{SOURCE_MAC, TARGET_MAC};

/// Number of frames that one system call sends at full rate.
const BATCH_FRAMES: usize = 64;
/// Number of frames per system call at a given rate: a burst of 160 us at 100,000 per second.
const PACED_BATCH_FRAMES: usize = 16;
/// Number of frames in a group. Sending a group takes some milliseconds, long enough for several
/// doorbells.
pub(crate) const FRAMES_PER_GROUP: usize = 2_500;
/// Destination port of the frames of a flood that the measured programs select.
pub(crate) const WANTED_PORT: u16 = 53;
/// Destination port of the other frames of a flood.
pub(crate) const UNWANTED_PORT: u16 = 4053;

/// A flood: the frames, and the veth pair over which they are sent.
pub(crate) struct Flood {
    pub(crate) pair: Arc<NamespacePair>,
    sender: PacketSender,
    frames: Vec<Vec<u8>>,
    /// Number of frames to send per second, or `None` for the full rate.
    rate: Option<f64>,
    _full: Option<UdpSocket>,
}

/// Maximum number of frames sent over one veth pair before the other pair is used. The number is at
/// most a tenth of a second of traffic. It exceeds the capacity of any ring in the benches, so that
/// a slow reader loses frames.
const SEND_BATCH_FRAMES: usize = 25_000;

/// Two identical veth pairs to which frames are sent alternately, of which only one is observed.
pub(crate) struct FloodPair {
    /// The veth pair on which the measured programs observe frames.
    pub(crate) observed: Flood,
    /// The veth pair on which no program observes frames.
    unobserved: Flood,
}

/// Processor times in ns for sending the same number of frames over each veth pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SendTimes {
    pub(crate) observed: u64,
    pub(crate) unobserved: u64,
}

/// The treatment of a flood's frames by the receiving host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReceivingHost {
    /// The frames are addressed to the host: they pass its whole stack, up to a socket whose buffer
    /// is full.
    Receives,
    /// The frames are addressed to another host: the stack drops them at once.
    Ignores,
}

impl FloodPair {
    /// Creates two floods with the arguments of [`Flood::new`].
    pub(crate) fn new(length: usize, one_in: usize, host: ReceivingHost) -> Result<Self, String> {
        let flood = || Flood::new(length, one_in, host);
        Ok(Self { observed: flood()?, unobserved: flood()? })
    }

    /// Creates two floods with the arguments of [`Flood::with_ports`].
    pub(crate) fn with_ports(
        ports: &[u16],
        length: usize,
        host: ReceivingHost,
    ) -> Result<Self, String> {
        let flood = || Flood::with_ports(ports, length, host);
        Ok(Self { observed: flood()?, unobserved: flood()? })
    }

    /// Sets the number of frames per second, or `None` for the full rate.
    pub(crate) fn set_rate(&mut self, rate: Option<f64>) {
        self.observed.set_rate(rate);
        self.unobserved.set_rate(rate);
    }

    /// Sends `count` frames over each veth pair, alternating between the two.
    pub(crate) fn send(&mut self, count: usize) -> Result<SendTimes, String> {
        let mut took = SendTimes::default();
        let mut left = count;
        while left > 0 {
            let batch = left.min(SEND_BATCH_FRAMES);
            took.unobserved += self.unobserved.send(batch)?;
            took.observed += self.observed.send(batch)?;
            left -= batch;
        }
        Ok(took)
    }
}

impl Flood {
    /// Creates a veth pair that carries only the flood. Frames have `length` bytes; one in `one_in`
    /// is for [`WANTED_PORT`], the others are for [`UNWANTED_PORT`].
    pub(crate) fn new(length: usize, one_in: usize, host: ReceivingHost) -> Result<Self, String> {
        let others = std::iter::repeat_n(UNWANTED_PORT, one_in.saturating_sub(1));
        let ports: Vec<u16> = std::iter::once(WANTED_PORT).chain(others).collect();
        Self::with_ports(&ports, length, host)
    }

    /// Creates a veth pair that carries only UDP frames of `length` bytes to `ports` in rotation.
    pub(crate) fn with_ports(
        ports: &[u16],
        length: usize,
        host: ReceivingHost,
    ) -> Result<Self, String> {
        let cable = DevicePairSettings { addresses: false, ..DevicePairSettings::default() };
        let pair = NamespacePair::new(cable)
            .ok_or("needs root and `ip`: it creates two network namespaces")?;
        let (full, address) = match host {
            ReceivingHost::Receives => {
                pair.server.run_ip(&format!("address add {SERVER}/24 dev {SERVER_DEVICE}"));
                let socket =
                    pair.server.run_in_network_namespace(|| UdpSocket::bind((SERVER, WANTED_PORT)));
                (Some(socket.map_err(|why| why.to_string())?), mac_address(&pair)?)
            }
            ReceivingHost::Ignores => (None, TARGET_MAC),
        };
        let sender = pair.client.run_in_network_namespace(|| {
            let index = device_index(CLIENT_DEVICE)?;
            PacketSender::open(index, QdiscMode::Bypass).map_err(|why| why.to_string())
        })?;
        // The number of frames is a multiple of the batch size and of the number of ports.
        let ports = ports.iter().cycle().take(BATCH_FRAMES * ports.len());
        let frames = ports.map(|port| udp_frame_to(address, *port, length)).collect();
        Ok(Self { pair: Arc::new(pair), sender, frames, rate: None, _full: full })
    }

    /// Sets the number of frames per second, or `None` for the full rate.
    pub(crate) const fn set_rate(&mut self, rate: Option<f64>) {
        self.rate = rate;
    }

    /// Sends `count` frames; returns the processor time in ns. The calling thread stays pinned to
    /// the first processor.
    pub(crate) fn send(&mut self, count: usize) -> Result<u64, String> {
        // On a machine with one processor, the sender shares it with the observers.
        let _ = sys::process::pin_to_processor(0);
        if let Some(rate) = self.rate {
            return self.send_at_rate(rate, count);
        }
        let begin = clock::thread_cpu_ns();
        let mut left = count;
        while left > 0 {
            let group = left.min(self.frames.len());
            self.send_range(0..group)?;
            left -= group;
        }
        Ok(clock::thread_cpu_ns() - begin)
    }

    /// Sends `count` frames at `rate` per second, in batches of [`PACED_BATCH_FRAMES`]. Returns the
    /// processor time of sending in ns, without the waits.
    fn send_at_rate(&mut self, rate: f64, count: usize) -> Result<u64, String> {
        let (start, mut busy, mut sent) = (clock::monotonic_ns(), 0, 0);
        while sent < count {
            let due = start + (sent as f64 * 1e9 / rate) as u64;
            while clock::monotonic_ns() < due {
                std::hint::spin_loop();
            }
            let batch = PACED_BATCH_FRAMES.min(count - sent).min(self.frames.len());
            let begin = clock::thread_cpu_ns();
            self.send_range(0..batch)?;
            busy += clock::thread_cpu_ns() - begin;
            sent += batch;
        }
        Ok(busy)
    }

    /// Sends at least `count` frames in groups. Returns the processor time per frame of the median
    /// group, in ns. The median excludes the few groups that interrupts affect.
    pub(crate) fn measure_median_group_ns(&mut self, count: usize) -> Result<f64, String> {
        let mut groups = Vec::new();
        for _ in 0..count.div_ceil(FRAMES_PER_GROUP) {
            groups.push(self.send(FRAMES_PER_GROUP)? as f64 / FRAMES_PER_GROUP as f64);
        }
        Ok(median(&groups))
    }

    fn send_range(&mut self, part: Range<usize>) -> Result<(), String> {
        for frames in self.frames[part].chunks(BATCH_FRAMES) {
            let mut batch = [&[][..]; BATCH_FRAMES];
            for (place, frame) in batch.iter_mut().zip(frames) {
                *place = frame;
            }
            let mut rest = &batch[..frames.len()];
            while !rest.is_empty() {
                let sent = self.sender.send(rest);
                rest = &rest[sent.frames..];
                if let Some(SendStopReason::Refused(errno)) = sent.stopped {
                    return Err(format!("the cable takes no frames: error {errno}"));
                }
            }
        }
        Ok(())
    }

    /// Returns the index of the receiving device of the veth pair in its namespace.
    pub(crate) fn receiving_device_index(&self) -> Result<u32, String> {
        self.pair.server.run_in_network_namespace(|| device_index(SERVER_DEVICE))
    }
}

/// Returns a UDP frame of `length` bytes to the port `port`.
pub(crate) fn udp_frame(port: u16, length: usize) -> Vec<u8> {
    udp_frame_to(TARGET_MAC, port, length)
}

fn udp_frame_to(address: [u8; 6], port: u16, length: usize) -> Vec<u8> {
    const HEADERS_LENGTH: usize = 14 + 20 + 8;
    let payload = vec![0x5a; length.saturating_sub(HEADERS_LENGTH)];
    Frame::ethernet_between(SOURCE_MAC, address).ipv4(CLIENT, SERVER).udp(4000, port, &payload)
}

/// Returns the MAC address of the receiving device of a veth pair.
fn mac_address(pair: &NamespacePair) -> Result<[u8; 6], String> {
    let output = pair.server.run_ip(&format!("-o link show dev {SERVER_DEVICE}"));
    let mut words = output.split_whitespace().skip_while(|word| *word != "link/ether");
    let bytes = words.nth(1).unwrap_or("").split(':').map(|byte| u8::from_str_radix(byte, 16).ok());
    let bytes: Option<Vec<u8>> = bytes.collect();
    let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or_else(|| format!("{SERVER_DEVICE} has no address: {output}"))
}

fn device_index(device: &str) -> Result<u32, String> {
    let links = RouteSocket::open().map_err(|why| why.to_string())?;
    Ok(links.interface_by_name(device).map_err(|why| why.to_string())?.index)
}
