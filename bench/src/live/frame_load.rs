//! A sender that replays a capture at a given rate, for `bench live`.

use std::io::Result;
use std::ops::Range;
use std::path::Path;
use sys::clock;
use sys::packet::{PacketSender, QdiscMode, SendStopReason};
use testkit::net::{CLIENT_DEVICE, NamespacePair};

/// Number of frames that one system call sends.
const BATCH_FRAMES: usize = 16;

/// The rate at which frames are sent.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Rate {
    Unthrottled,
    PerSecond(f64),
}

impl Rate {
    /// Returns nine tenths of this rate. If this rate is unlimited, returns nine tenths of
    /// `reached`, the number of frames per second that was achieved with it.
    pub(crate) fn lowered(self, reached: f64) -> Self {
        match self {
            Self::Unthrottled => Self::PerSecond(reached * 0.9),
            Self::PerSecond(rate) => Self::PerSecond(rate * 0.9),
        }
    }

    /// Compares two rates; the unlimited rate is the highest.
    pub(crate) fn total_cmp(self, other: Self) -> std::cmp::Ordering {
        let number = |rate| match rate {
            Self::Unthrottled => f64::INFINITY,
            Self::PerSecond(rate) => rate,
        };
        number(self).total_cmp(&number(other))
    }
}

/// The frames of a capture, which are sent to the observed programs.
pub(crate) struct FrameLoad {
    capture: Vec<u8>,
    frames: Vec<Range<usize>>,
    /// Number of HTTP requests in the capture.
    pub(crate) requests: u64,
}

/// The result of sending a [`FrameLoad`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendResult {
    pub(crate) frames: u64,
    /// Time from the first frame to the last, in ns.
    elapsed_ns: u64,
    /// Time spent in system calls that send, in ns.
    pub(crate) busy_ns: u64,
}

impl SendResult {
    /// Returns the rate at which the frames were actually sent, in frames per second.
    pub(crate) fn rate(&self) -> f64 {
        self.frames as f64 * 1e9 / self.elapsed_ns.max(1) as f64
    }
}

impl FrameLoad {
    /// Reads a capture that [`crate::replay`] has written.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let requests = crate::replay::requests_in(path)?;
        let capture = std::fs::read(path)?;
        let begin = capture.as_ptr() as usize;
        let frames = wire::capture::packets(&capture).map_while(std::result::Result::ok);
        let place = |frame: &[u8]| {
            let from = frame.as_ptr() as usize - begin;
            from..from + frame.len()
        };
        let frames = frames.map(|(_, frame)| place(frame)).collect();
        Ok(Self { capture, frames, requests })
    }

    /// Returns the number of frames in the capture.
    pub(crate) fn frame_count(&self) -> usize {
        self.frames.len()
    }

    /// Sends the first `most` frames of the capture, or all if there are fewer, but at least one.
    /// Sends from the client's device and on the first processor.
    pub(crate) fn send(
        &self,
        pair: &NamespacePair,
        rate: Rate,
        most: usize,
    ) -> std::result::Result<SendResult, String> {
        let listing = pair.client.run_ip(&format!("-o link show dev {CLIENT_DEVICE}"));
        let index = listing.split(':').next().and_then(|number| number.parse().ok()).unwrap_or(0);
        pair.client.run_in_network_namespace(|| {
            // On a machine with one processor, the sender shares it with the observer.
            let _ = sys::process::pin_to_processor(0);
            let sender =
                PacketSender::open(index, QdiscMode::Through).map_err(|why| why.to_string())?;
            let most = most.clamp(1, self.frames.len());
            self.send_frames_at_rate(sender, rate, &self.frames[..most])
        })
    }

    fn send_frames_at_rate(
        &self,
        mut sender: PacketSender,
        rate: Rate,
        places: &[Range<usize>],
    ) -> std::result::Result<SendResult, String> {
        let begin = clock::monotonic_ns();
        let mut busy_ns = 0;
        let mut batch: Vec<&[u8]> = Vec::with_capacity(BATCH_FRAMES);
        for (number, frames) in places.chunks(BATCH_FRAMES).enumerate() {
            if let Rate::PerSecond(rate) = rate {
                let due = begin + ((number * BATCH_FRAMES) as f64 * 1e9 / rate) as u64;
                while clock::monotonic_ns() < due {
                    std::hint::spin_loop();
                }
            }
            batch.clear();
            batch.extend(frames.iter().map(|place| &self.capture[place.clone()]));
            let before = clock::monotonic_ns();
            let mut rest = &batch[..];
            while !rest.is_empty() {
                let sent = sender.send(rest);
                rest = &rest[sent.frames..];
                if let Some(SendStopReason::Refused(errno)) = sent.stopped {
                    return Err(format!("the cable takes no frames: error {errno}"));
                }
            }
            busy_ns += clock::monotonic_ns() - before;
        }
        let elapsed_ns = clock::monotonic_ns() - begin;
        Ok(SendResult { frames: places.len() as u64, elapsed_ns, busy_ns })
    }
}
