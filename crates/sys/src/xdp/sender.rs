//! One queue of an interface that sends frames of a memory.
//!
//! In: packets, as pieces that lie in frames of the memory (they stay where they are) or as bytes
//! that are copied into free frames. Out: what the kernel has taken, in order. Where the device has
//! no room, it drops the packet that it has just taken (EBUSY); that packet is put before the
//! others again and nothing is lost or overtaken. That is possible where the kernel copies, since
//! it reads the ring only while we call it; a device that reads the memory itself never drops so.
//!
//! Which packet that was: the kernel shows how far it has read when it has sent at least one
//! (`__xsk_tx_release`, Linux 6.6), so it is the last of those; or it has sent none and shows
//! nothing, so it is the first that waits. That one stays as a *ghost* until the kernel shows more.

use super::frames::Frames;
use super::ring::Descriptor;
use super::socket::{SocketSettings, XdpSocket, WakeOutcome};
use crate::error::Result;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// The most pieces of a packet (MAX_SKB_FRAGS and its head).
const PIECES_MAX: usize = 18;

/// The sending side of a queue.
#[derive(Debug)]
pub struct XdpSender {
    socket: XdpSocket,
    frames: Arc<Frames>,
    /// What lies in the send ring, the oldest first.
    waiting: VecDeque<Piece>,
    /// How many packets that is.
    packets: usize,
    /// Frames that are on their way, those that wait included.
    away: usize,
    back: Vec<u64>,
    /// The packet that the kernel has taken last.
    last: Vec<Descriptor>,
    fragments: bool,
}

/// What lies in the send ring.
#[derive(Clone, Copy, Debug)]
struct Piece {
    at: Descriptor,
    /// The kernel has read it already and not shown that; it is counted elsewhere.
    ghost: bool,
}

/// A packet to be sent.
#[derive(Clone, Copy, Debug)]
pub enum TxPacket<'a> {
    /// It lies in a frame that came ([`Frames::find`]): the frame is kept until it has left.
    InPlace(Descriptor),
    /// It lies somewhere else: it is copied.
    Copied(&'a [u8]),
}

/// What became of packets that were given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PushReport {
    /// So many more packets were taken by the kernel, the oldest ones.
    pub taken: usize,
    /// Whether the device had no room for the next one.
    pub refused: bool,
    /// Packets behind those that are lost, because the ring has no room to put them back.
    pub lost: usize,
}

impl XdpSender {
    /// Opens one in the name space of the calling thread, over this memory.
    pub fn open(frames: &Arc<Frames>, settings: SocketSettings) -> Result<Self> {
        // A ring that is not needed costs nothing but its memory, and is wanted by bind(2).
        let settings = SocketSettings { fill: settings.tx.min(FILL), rx: 0, ..settings };
        let socket = frames.bind(settings)?;
        Ok(Self {
            socket,
            frames: Arc::clone(frames),
            waiting: VecDeque::new(),
            packets: 0,
            away: 0,
            back: Vec::new(),
            last: Vec::new(),
            fragments: settings.fragments,
        })
    }

    /// The memory.
    #[must_use]
    pub const fn frames(&self) -> &Arc<Frames> {
        &self.frames
    }

    /// The longest packet that it can send.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.frames.frame() * if self.fragments { PIECES_MAX - 1 } else { 1 }
    }

    /// Packets that the kernel has not taken yet.
    #[must_use]
    pub const fn packets(&self) -> usize {
        self.packets
    }

    /// Frames that have not come back.
    #[must_use]
    pub const fn away(&self) -> usize {
        self.away
    }

    /// Whether the device reads the memory itself.
    #[must_use]
    pub const fn is_zero_copy(&self) -> bool {
        self.socket.is_zero_copy()
    }

    /// Puts a packet behind those that wait. Answers false where there is no room or no free frame
    /// for it now: after a [`XdpSender::push`] there may be.
    pub fn give(&mut self, packet: TxPacket<'_>) -> Result<bool> {
        let Some(tx) = self.socket.tx.as_mut() else { return Ok(false) };
        // Room for one packet is left, so that one which was dropped can be put back.
        if (tx.room()? as usize) < 2 * PIECES_MAX {
            return Ok(false);
        }
        let mut pieces = [Descriptor::default(); PIECES_MAX];
        let count = match packet {
            TxPacket::InPlace(descriptor) => {
                pieces[0] = Descriptor { continues: false, ..descriptor };
                usize::from(self.frames.keep(descriptor.address))
            }
            TxPacket::Copied(bytes) => copy(&self.frames, bytes, &mut pieces),
        };
        let pieces = pieces.get(..count).unwrap_or_default();
        if pieces.is_empty() {
            return Ok(false);
        }
        let given = tx.give(pieces)?;
        debug_assert_eq!(given, pieces.len(), "there was room");
        self.waiting.extend(pieces.iter().map(|at| Piece { at: *at, ghost: false }));
        self.packets += 1;
        self.away += pieces.len();
        Ok(true)
    }

    /// Has the kernel take what waits, as much as it can now. ENETDOWN: the interface is down;
    /// ENXIO: it is gone.
    pub fn push(&mut self) -> Result<PushReport> {
        self.collect()?;
        let woken = self.wake()?;
        self.last.clear();
        let mut pushed = PushReport { taken: self.settle()?, ..PushReport::default() };
        if woken == WakeOutcome::Refused && !self.is_zero_copy() {
            pushed.refused = true;
            // The last one that was shown, or else the first that waits.
            match self.last.is_empty() {
                false => pushed.taken -= 1,
                true => self.make_ghost(),
            }
            if !self.put_back()? {
                pushed.lost = 1;
            }
        }
        self.collect()?;
        Ok(pushed)
    }

    /// Takes out of the ring what the kernel has not taken; answers how many packets. The kernel
    /// finds nothing there that it could send.
    pub fn take_back(&mut self) -> Result<usize> {
        let Some(tx) = self.socket.tx.as_mut() else { return Ok(0) };
        let packets = std::mem::take(&mut self.packets);
        let ghosts = self.waiting.iter().take_while(|piece| piece.ghost).count();
        tx.forget(self.waiting.len() - ghosts)?;
        for piece in self.waiting.drain(ghosts..) {
            self.away -= usize::from(self.frames.let_go(piece.at.address));
        }
        Ok(packets)
    }

    /// Tells the kernel that there is something, if it wants to be told. Where it skips what was
    /// taken back, it stops at each.
    fn wake(&mut self) -> Result<WakeOutcome> {
        let Some(tx) = self.socket.tx.as_ref().filter(|tx| tx.needs_wakeup()) else {
            return Ok(WakeOutcome::Done);
        };
        let mut left = tx.waiting()?;
        while left > 0 {
            let woken = self.socket.wake_tx()?;
            let before = std::mem::replace(&mut left, tx.waiting()?);
            if woken != WakeOutcome::Done || left == before {
                return Ok(woken);
            }
        }
        Ok(WakeOutcome::Done)
    }

    /// Frames that were sent go back.
    fn collect(&mut self) -> Result<()> {
        let Some(completion) = self.socket.completion.as_mut() else { return Ok(()) };
        loop {
            self.back.clear();
            if completion.take(&mut self.back, 256)? == 0 {
                return Ok(());
            }
            for address in &self.back {
                self.away -= usize::from(self.frames.let_go(*address));
            }
        }
    }

    /// Forgets what the kernel has taken, but for the last one; answers how many packets that were.
    fn settle(&mut self) -> Result<usize> {
        let Some(tx) = self.socket.tx.as_ref() else { return Ok(0) };
        let left = tx.waiting()? as usize;
        let mut taken = 0;
        while self.waiting.len() > left {
            let Some(Piece { at, ghost: false }) = self.waiting.pop_front() else { continue };
            if self.last.last().is_none_or(|last| !last.continues) {
                self.last.clear();
            }
            self.last.push(at);
            taken += usize::from(!at.continues);
        }
        self.packets = self.packets.saturating_sub(taken);
        Ok(taken)
    }

    /// The first packet that waits was taken, and the kernel has not shown it.
    fn make_ghost(&mut self) {
        for piece in self.waiting.iter_mut().skip_while(|piece| piece.ghost) {
            piece.ghost = true;
            self.last.push(piece.at);
            if !piece.at.continues {
                self.packets -= 1;
                return;
            }
        }
    }

    /// Puts the packet that the kernel took last before all that wait. Answers whether there was
    /// room.
    fn put_back(&mut self) -> Result<bool> {
        let Some(tx) = self.socket.tx.as_mut() else { return Ok(false) };
        if (tx.room()? as usize) < self.last.len() {
            return Ok(false);
        }
        let ghosts = self.waiting.iter().take_while(|piece| piece.ghost).count();
        for (number, at) in self.last.drain(..).enumerate() {
            // Its frame comes back once for the time that was in vain.
            self.away += usize::from(self.frames.keep(at.address));
            self.waiting.insert(ghosts + number, Piece { at, ghost: false });
        }
        self.packets += 1;
        let all: Vec<Descriptor> = self.waiting.iter().map(|piece| piece.at).collect();
        tx.rewrite(&all)?;
        Ok(true)
    }
}

/// Copies bytes into free frames. Answers into how many; 0: there are too few.
fn copy(frames: &Frames, bytes: &[u8], pieces: &mut [Descriptor; PIECES_MAX]) -> usize {
    let parts = bytes.chunks(frames.frame());
    let count = parts.len();
    if count >= PIECES_MAX {
        return 0;
    }
    let mut done = 0;
    for (part, piece) in parts.zip(pieces.iter_mut()) {
        let Some(address) = frames.draft() else { break };
        let at = usize::try_from(address).unwrap_or(usize::MAX);
        // The frame is nobody's: it was free, and is drafted for us.
        let pasted = frames.umem().memory().paste(at, part);
        debug_assert!(pasted, "a frame is in the memory");
        let length = u32::try_from(part.len()).unwrap_or(0);
        *piece = Descriptor { address, length, continues: done + 1 < count };
        done += 1;
    }
    if done == count {
        return count;
    }
    for piece in pieces.iter().take(done) {
        frames.let_go(piece.address);
    }
    0
}

impl AsFd for XdpSender {
    /// Writable when there is room to send.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The kernel wants a fill ring with each completion ring, though nothing is received here.
const FILL: u32 = 64;
