//! Memory of the interpreter: context, packet, stack and map values as four kinds of region.
//!
//! An address is a region in its upper 32 bits and an offset plus 2^31 in its lower, so that a step
//! before a region is not a step into its neighbour. Every access names its size and is checked
//! against the region as a whole; nothing here can panic. The context holds
//! no bytes: its fields are answered one by one, at the offsets of `__sk_buff` and `xdp_md` in
//! the kernel's `bpf.h`, and the two packet pointers come out as 64-bit addresses, as the kernel
//! rewrites them.

use std::borrow::Cow;
use std::ops::Range;

use super::{Packet, Tag, Why};
use crate::insn::Size;
use crate::program::Place;

/// Offset 0 of a region, in the lower half of an address.
const MIDDLE: u64 = 1 << 31;
/// Where the context begins.
pub(super) const CTX: u64 = base(1);
/// Regions in which the packet lies, one after the other: whatever may move it in the kernel moves
/// it here, so that pointers from before are found out.
const PACKETS: Range<u64> = 4..16;
/// Where the stack begins.
const STACK: u64 = base(3);
const STACK_BYTES: usize = 512;
/// What r10 holds: the end of the stack.
pub(super) const STACK_TOP: u64 = STACK + STACK_BYTES as u64;
/// Value of map n: region `MAPS + n`.
const MAPS: u64 = 16;
/// What stands for a map itself; not an address.
const HANDLES: u64 = 1 << 63;

pub(super) struct Memory<'m, 'p> {
    place: Place,
    /// The frame, copied when it is changed.
    frame: Cow<'p, [u8]>,
    tag: Option<Tag>,
    is_unfilled: bool,
    /// Grows when the program pulls.
    linear: usize,
    /// The region in which the packet lies now.
    region: u64,
    stack: [u8; STACK_BYTES],
    stack_written: [bool; STACK_BYTES],
    maps: &'m mut [Vec<u8>],
    /// What the program wrote into the first word of `cb`.
    answer: Option<u32>,
}

/// Where in `__sk_buff` a program at a control group answers.
const ANSWER: u64 = 48;
/// What the first buffer of a frame holds of it at least, at XDP: drivers' hold more.
const FIRST_BUFFER_MIN: usize = 256;

impl<'m, 'p> Memory<'m, 'p> {
    pub(super) fn new(place: Place, packet: &'p Packet<'p>, maps: &'m mut [Vec<u8>]) -> Self {
        let length = packet.bytes.len();
        let linear = match place {
            Place::Tc => packet.linear.min(length),
            Place::Xdp => packet.linear.max(FIRST_BUFFER_MIN).min(length),
            Place::Socket | Place::Cgroup => length,
        };
        let stack_written = [false; STACK_BYTES];
        let Packet { bytes, tag, is_unfilled, .. } = *packet;
        Self {
            place,
            frame: bytes.into(),
            tag,
            is_unfilled,
            linear,
            region: PACKETS.start,
            stack: [0; STACK_BYTES],
            stack_written,
            maps,
            answer: None,
        }
    }

    /// What a program at a control group answered.
    pub(super) const fn answer(&self) -> Option<u32> {
        self.answer
    }

    pub(super) fn place(&self) -> Place {
        self.place
    }

    /// The length of the frame with all its fragments.
    pub(super) fn frame_length(&self) -> usize {
        self.frame.len()
    }

    /// Bytes of the frame, wherever they lie; for helpers and classic loads.
    pub(super) fn frame_bytes(&self, at: i64, length: usize) -> Option<&[u8]> {
        let at = usize::try_from(at).ok()?;
        self.frame.get(at..at.checked_add(length)?)
    }

    /// The same bytes, to be changed. All up to there is linear from now on, and has moved.
    pub(super) fn frame_bytes_mut(&mut self, at: i64, length: usize) -> Option<&mut [u8]> {
        let at = usize::try_from(at).ok()?;
        let end = at.checked_add(length).filter(|end| *end <= self.frame.len())?;
        self.linear = self.linear.max(end);
        self.moved();
        self.frame.to_mut().get_mut(at..end)
    }

    /// Cuts off the first bytes of the frame.
    pub(super) fn cut(&mut self, length: usize) {
        let rest = self.frame.get(length..).unwrap_or_default().to_vec();
        self.linear = self.linear.min(rest.len());
        self.frame = rest.into();
        self.moved();
    }

    /// Takes the outermost tag off as `skb_vlan_pop` does: one that lies behind it goes beside.
    pub(super) fn pop_tag(&mut self) {
        let inside = |frame: &[u8]| {
            let protocol = frame.get(12..14).map(|kind| u16::from_be_bytes([kind[0], kind[1]]))?;
            let tci = frame.get(14..16).map(|tci| u16::from_be_bytes([tci[0], tci[1]]))?;
            let known = matches!(protocol, 0x8100 | 0x88a8) && frame.len() >= 18;
            known.then_some(Tag { tci, protocol })
        };
        if self.tag.take().is_none() && inside(&self.frame).is_some() {
            self.frame.to_mut().drain(12..16);
        }
        if let Some(tag) = inside(&self.frame) {
            self.frame.to_mut().drain(12..16);
            self.tag = Some(tag);
        }
        self.linear = self.frame.len();
        self.moved();
    }

    /// Nothing on the stack was written.
    pub(super) fn forget_stack(&mut self) {
        self.stack_written.fill(false);
    }

    pub(super) fn is_unfilled(&self) -> bool {
        self.is_unfilled
    }

    /// The frame as it is now, if it was changed, and the tag beside it.
    pub(super) fn into_frame(self) -> (Option<Vec<u8>>, Option<Tag>) {
        let frame = match self.frame {
            Cow::Owned(changed) => Some(changed),
            Cow::Borrowed(_) => None,
        };
        (frame, self.tag)
    }

    /// Pointers into the packet from before point nowhere from now on.
    fn moved(&mut self) {
        let next = self.region + 1;
        self.region = if next < PACKETS.end { next } else { PACKETS.start };
    }

    /// Makes the first `length` bytes linear; all that are linear already if 0.
    pub(super) fn pull(&mut self, length: usize) -> bool {
        let fits = length <= self.frame.len();
        if fits {
            self.linear = self.linear.max(length);
            self.moved();
        }
        fits
    }

    pub(super) fn map_handle(&self, number: i32) -> Result<u64, Why> {
        let index = usize::try_from(number).map_err(|_| Why::Map(number))?;
        if index < self.maps.len() { Ok(HANDLES | index as u64) } else { Err(Why::Map(number)) }
    }

    pub(super) fn map_value(&self, number: i32, offset: i32) -> Result<u64, Why> {
        let index = self.map_handle(number)? & !HANDLES;
        Ok(base(MAPS + index).wrapping_add_signed(offset.into()))
    }

    /// The value of element 0 of the map that `handle` stands for; 0 for any other key.
    pub(super) fn map_lookup(&self, handle: u64, key: u32) -> Option<u64> {
        let index = handle.checked_sub(HANDLES)?;
        let known = usize::try_from(index).is_ok_and(|index| index < self.maps.len());
        known.then_some(if key == 0 { base(MAPS + index) } else { 0 })
    }

    pub(super) fn read(&self, address: u64, size: Size) -> Result<u64, Why> {
        if address >> 32 == CTX >> 32 {
            return self.context(address.wrapping_sub(CTX), size.bytes());
        }
        let bytes = self.bytes(address, size.bytes())?;
        let mut word = [0; 8];
        word.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        Ok(u64::from_le_bytes(word))
    }

    pub(super) fn write(&mut self, address: u64, size: Size, value: u64) -> Result<(), Why> {
        let word = value.to_le_bytes();
        if self.place == Place::Cgroup && address == CTX + ANSWER && size == Size::W {
            self.answer = Some(value as u32);
            return Ok(());
        }
        let to = self.bytes_mut(address, size.bytes())?;
        to.iter_mut().zip(word).for_each(|(to, from)| *to = from);
        Ok(())
    }

    /// Bytes that a program may write; those of the stack count as written from now on.
    pub(super) fn bytes_mut(&mut self, address: u64, size: usize) -> Result<&mut [u8], Why> {
        let wild = Why::Wild { address, size };
        let (region, range) = split(address, size).ok_or(wild)?;
        if region == STACK >> 32 {
            self.stack_written.get_mut(range.clone()).ok_or(wild)?.fill(true);
            return self.stack.get_mut(range).ok_or(wild);
        }
        if region == self.region && self.place == Place::Xdp {
            return self.frame.to_mut().get_mut(range).ok_or(wild);
        }
        if region == CTX >> 32 || region == self.region {
            return Err(Why::ReadOnly(address));
        }
        let map = region.checked_sub(MAPS).and_then(|map| usize::try_from(map).ok());
        let value = map.and_then(|map| self.maps.get_mut(map)).ok_or(wild)?;
        value.get_mut(range).ok_or(wild)
    }

    fn bytes(&self, address: u64, size: usize) -> Result<&[u8], Why> {
        let wild = Why::Wild { address, size };
        let (region, range) = split(address, size).ok_or(wild)?;
        if region == self.region {
            let direct = !self.place.asks_for_bytes() && range.end <= self.linear;
            return self.frame.get(range).filter(|_| direct).ok_or(wild);
        }
        if region == STACK >> 32 {
            let written = self.stack_written.get(range.clone()).ok_or(wild)?;
            if !written.iter().all(|written| *written) {
                return Err(Why::UnwrittenStack(address));
            }
            return self.stack.get(range).ok_or(wild);
        }
        let map = region.checked_sub(MAPS).and_then(|map| usize::try_from(map).ok());
        map.and_then(|map| self.maps.get(map)).and_then(|value| value.get(range)).ok_or(wild)
    }

    fn context(&self, offset: u64, size: usize) -> Result<u64, Why> {
        let tag = self.tag;
        let packet = base(self.region);
        let end = packet + self.linear as u64;
        let value = match (self.place, offset, size) {
            (Place::Xdp, 0, 4) => packet,
            (Place::Xdp, 4, 4) => end,
            (Place::Xdp, 12 | 16, 4) => 0,
            (Place::Tc, 76, 4) => packet,
            (Place::Tc, 80, 4) => end,
            (Place::Tc | Place::Socket | Place::Cgroup, 0, 4) => self.frame.len() as u64,
            (Place::Tc | Place::Socket, 4 | 16, 4) => 0,
            (Place::Tc | Place::Socket, 20, 4) => u64::from(tag.is_some()),
            (Place::Tc | Place::Socket, 24, 4) => tag.map_or(0, |tag| tag.tci.into()),
            (Place::Tc | Place::Socket, 28, 4) => {
                // Network order in a 32-bit field, as the kernel gives it.
                tag.map_or(0, |tag| u16::from_ne_bytes(tag.protocol.to_be_bytes()).into())
            }
            _ => return Err(Why::Context { offset, size }),
        };
        Ok(value)
    }
}

pub(super) const fn base(region: u64) -> u64 {
    region << 32 | MIDDLE
}

/// The region of an address and the bytes in it.
fn split(address: u64, size: usize) -> Option<(u64, Range<usize>)> {
    let offset = usize::try_from((address & 0xffff_ffff).checked_sub(MIDDLE)?).ok()?;
    Some((address >> 32, offset..offset.checked_add(size)?))
}
