//! Frames into a ring of AF_XDP: those that lie in its memory as descriptors, all others by a copy
//! into it. [SL §5.5: the driver's own ring; FEATURES G1, E5]
//!
//! In: frames of a batch. Out: how many the kernel took, and why the next one stopped it, as a
//! packet socket says it ([`SendReport`]): who sends need not know by which way. A frame that lies
//! in the memory of the source before is kept there until it has left, and nothing of it is copied
//! here.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use sys::net::{Interface, RouteSocket};
use sys::packet::{SendReport, SendStop};
use sys::xdp::{Frames, SocketSettings, TxPacket, XdpSender};

/// Entries of the rings; enough for the retries of a second.
const ENTRIES: u32 = 4096;
/// Frames of memory where nobody lends any.
const FRAMES: u32 = 1024;
/// The interval at which the interface's abilities are queried.
const LOOK: Duration = Duration::from_millis(100);
/// Between two looks whether it has come back.
const PAUSE: Duration = Duration::from_micros(50);
/// The longest wait, at the end, for frames that the kernel has taken.
const LAST: Duration = Duration::from_secs(10);

/// Bytes of an Ethernet header, and of a tag.
const HEADER: usize = 14;
const TAG: usize = 4;

const EMSGSIZE: i32 = rustix::io::Errno::MSGSIZE.raw_os_error();
const EINVAL: i32 = rustix::io::Errno::INVAL.raw_os_error();
const EAGAIN: i32 = rustix::io::Errno::AGAIN.raw_os_error();
const ENOBUFS: i32 = rustix::io::Errno::NOBUFS.raw_os_error();

/// The way into an interface by AF_XDP.
#[derive(Debug)]
pub(super) struct Ring {
    sender: XdpSender,
    links: RouteSocket,
    index: u32,
    mtu: usize,
    looked: Instant,
    /// Frames that stayed where they were, and those that were copied into the memory.
    pub(super) moved: u64,
    pub(super) copied: u64,
    /// Number of frames sent again because the device had no room.
    pub(super) again: u64,
    /// Frames of this call; those not taken yet stay in the ring between two tries.
    given: usize,
    /// For each of them, true if it stayed in place.
    stayed: VecDeque<bool>,
}

impl Ring {
    /// Over memory that others use too.
    pub(super) fn open(
        frames: &Arc<Frames>,
        found: &Interface,
        links: RouteSocket,
    ) -> sys::Result<Self> {
        Self::over(frames, found, links)
    }

    /// Over memory of its own.
    pub(super) fn own(found: &Interface, links: RouteSocket) -> sys::Result<Self> {
        Self::over(&Frames::create("streamline-send", FRAMES)?, found, links)
    }

    fn over(frames: &Arc<Frames>, found: &Interface, links: RouteSocket) -> sys::Result<Self> {
        // Linux 6.6: also what shows how far the kernel has read.
        let settings =
            SocketSettings { fragments: true, ..SocketSettings::new(found.index, 0, ENTRIES) };
        let sender = XdpSender::open(frames, settings)?;
        let (index, mtu) = (found.index, found.mtu as usize);
        let looked = Instant::now();
        Ok(Self {
            sender,
            links,
            index,
            mtu,
            looked,
            moved: 0,
            copied: 0,
            again: 0,
            given: 0,
            stayed: VecDeque::new(),
        })
    }

    /// Sends frames, in order, as far as they are taken now. What was not taken is to be sent
    /// again, or [dropped](Ring::skip).
    pub(super) fn send(&mut self, frames: &[&[u8]]) -> SendReport {
        self.look();
        let mut stopped = None;
        while let Some(frame) = frames.get(self.given) {
            if frame.len() > self.longest(frame) {
                stopped = Some(SendStop::Refused(EMSGSIZE));
                break;
            }
            if frame.len() < HEADER {
                stopped = Some(SendStop::Refused(EINVAL));
                break;
            }
            match self.give(frame) {
                Ok(true) => self.given += 1,
                Ok(false) => {
                    stopped = Some(SendStop::Full(EAGAIN));
                    break;
                }
                Err(error) => return self.taken(0, Some(SendStop::Refused(error.errno))),
            }
        }
        let mut all = 0;
        loop {
            let pushed = match self.sender.push() {
                Ok(pushed) => pushed,
                Err(error) => return self.taken(all, Some(SendStop::Refused(error.errno))),
            };
            all += pushed.taken;
            self.again += u64::from(pushed.refused && pushed.lost == 0);
            if pushed.lost > 0 {
                // The frame is gone, and so is its place in the ring: it counts as dropped.
                let outcome = self.taken(all, Some(SendStop::Refused(ENOBUFS)));
                self.skip().ok();
                return outcome;
            }
            if self.sender.packets() == 0 {
                return self.taken(all, stopped);
            }
            if pushed.taken == 0 {
                return self.taken(all, Some(SendStop::Full(EAGAIN)));
            }
        }
    }

    /// The frame that stopped the last call is dropped: it is not in the ring any more, nor are
    /// those behind it, which are to be sent again.
    pub(super) fn skip(&mut self) -> sys::Result<()> {
        self.given = 0;
        self.stayed.clear();
        self.sender.take_back().map(drop)
    }

    /// Waits until all that the kernel has taken has left. Answers how many frames have not.
    pub(super) fn finish(&mut self) -> usize {
        let begin = Instant::now();
        while self.sender.away() > 0 && begin.elapsed() < LAST && self.sender.push().is_ok() {
            // Nothing tells when: to wait for the socket would send, unheard.
            std::thread::sleep(PAUSE);
        }
        self.sender.away()
    }

    fn taken(&mut self, frames: usize, stopped: Option<SendStop>) -> SendReport {
        self.given = self.given.saturating_sub(frames);
        for stayed in self.stayed.drain(..frames.min(self.stayed.len())) {
            self.moved += u64::from(stayed);
            self.copied += u64::from(!stayed);
        }
        SendReport { frames, stopped }
    }

    fn give(&mut self, frame: &[u8]) -> sys::Result<bool> {
        let here = self.sender.frames().find(frame);
        let given = self.sender.give(here.map_or(TxPacket::Copied(frame), TxPacket::InPlace))?;
        if given {
            self.stayed.push_back(here.is_some());
        }
        Ok(given)
    }

    /// The longest frame that the interface takes; a tag comes in addition (as packet(7) has it).
    fn longest(&self, frame: &[u8]) -> usize {
        let tagged =
            frame.get(12..14).is_some_and(|kind| kind == [0x81, 0] || kind == [0x88, 0xa8]);
        let most = self.mtu + HEADER + if tagged { TAG } else { 0 };
        most.min(self.sender.longest())
    }

    /// Asks now and then what the interface takes.
    fn look(&mut self) {
        if self.looked.elapsed() < LOOK {
            return;
        }
        self.looked = Instant::now();
        if let Ok(interface) = self.links.indexed(self.index) {
            self.mtu = interface.mtu as usize;
        }
    }
}
