//! Memory of the interpreter, in which context, packet, stack and map values are separate regions.
//!
//! An address is a region number in its upper 32 bits and an offset plus 2^31 in its lower 32 bits,
//! so an offset below a region does not reach the neighboring region. Every access is checked with
//! its size against the region; no function panics. The context has no bytes: fields are computed
//! at the offsets of `__sk_buff` and `xdp_md`, and the two packet pointers are 64-bit addresses, as
//! after the kernel's rewrite.

use std::borrow::Cow;
use std::ops::Range;

use super::{FaultKind, Packet, Tag};
use crate::insn::Size;
use crate::program::Hook;

/// Lower half of the address of offset 0 in a region.
const OFFSET_ZERO_ADDRESS: u64 = 1 << 31;
/// Address of the first byte of the program's context.
pub(super) const CONTEXT_BASE: u64 = region_base(1);
/// Region numbers for the packet, which has one of them at a time. Each call of a helper that may
/// move the packet in the kernel gives it the next number, so that stale pointers fault.
const PACKET_REGIONS: Range<u64> = 4..16;
/// Address of the stack's lowest byte.
const STACK_BASE: u64 = region_base(3);
const STACK_BYTES: usize = 512;
/// Initial value of r10, which is the end of the stack.
pub(super) const STACK_TOP: u64 = STACK_BASE + STACK_BYTES as u64;
/// Region number of the value of map 0. The value of map n has the region number `FIRST_MAP_REGION
/// + n`.
const FIRST_MAP_REGION: u64 = 16;
/// Tag bit that distinguishes the handle of a map from an address.
const MAP_HANDLE_TAG: u64 = 1 << 63;

pub(super) struct Memory<'m, 'p> {
    hook: Hook,
    /// Bytes of the frame, which are copied on the first write.
    frame: Cow<'p, [u8]>,
    tag: Option<Tag>,
    is_unfilled: bool,
    /// Length of the frame's linear part in bytes, which grows when the program pulls bytes.
    linear: usize,
    /// Current region number of the packet.
    region: u64,
    stack: [u8; STACK_BYTES],
    stack_written: [bool; STACK_BYTES],
    maps: &'m mut [Vec<u8>],
    /// The first word of the context field `cb`, a cgroup program's answer; `None` until the
    /// program writes it.
    answer: Option<u32>,
}

/// Offset in `__sk_buff` of the word in which a cgroup program returns its answer.
const ANSWER_OFFSET: u64 = 48;
/// Minimum length in bytes of the first buffer of a frame at XDP; real drivers provide more.
const FIRST_BUFFER_BYTES_MIN: usize = 256;

impl<'m, 'p> Memory<'m, 'p> {
    pub(super) fn new(hook: Hook, packet: &'p Packet<'p>, maps: &'m mut [Vec<u8>]) -> Self {
        let length = packet.bytes.len();
        let linear = match hook {
            Hook::Tc => packet.linear.min(length),
            Hook::Xdp => packet.linear.max(FIRST_BUFFER_BYTES_MIN).min(length),
            Hook::Socket | Hook::Cgroup => length,
        };
        let stack_written = [false; STACK_BYTES];
        let Packet { bytes, tag, is_unfilled, .. } = *packet;
        Self {
            hook,
            frame: bytes.into(),
            tag,
            is_unfilled,
            linear,
            region: PACKET_REGIONS.start,
            stack: [0; STACK_BYTES],
            stack_written,
            maps,
            answer: None,
        }
    }

    /// Returns the word that a cgroup program wrote as its answer, or `None` if it wrote none.
    pub(super) const fn answer(&self) -> Option<u32> {
        self.answer
    }

    pub(super) fn hook(&self) -> Hook {
        self.hook
    }

    /// Returns the length of the frame in bytes, including fragments.
    pub(super) fn frame_length(&self) -> usize {
        self.frame.len()
    }

    /// Returns `length` bytes of the frame from offset `at`, including its nonlinear part, for
    /// helpers and classic loads; `None` if they extend beyond the frame.
    pub(super) fn frame_bytes(&self, at: i64, length: usize) -> Option<&[u8]> {
        let at = usize::try_from(at).ok()?;
        self.frame.get(at..at.checked_add(length)?)
    }

    /// Returns `length` bytes of the frame from offset `at` for writing; `None` if they extend
    /// beyond the frame. Makes the frame linear up to the last of these bytes and invalidates
    /// packet pointers.
    pub(super) fn frame_bytes_mut(&mut self, at: i64, length: usize) -> Option<&mut [u8]> {
        let at = usize::try_from(at).ok()?;
        let end = at.checked_add(length).filter(|end| *end <= self.frame.len())?;
        self.linear = self.linear.max(end);
        self.invalidate_pointers();
        self.frame.to_mut().get_mut(at..end)
    }

    /// Returns the length of the frame's linear part in bytes.
    pub(super) const fn linear_length(&self) -> usize {
        self.linear
    }

    /// Removes the first `length` bytes of the frame, which shortens its linear part.
    pub(super) fn remove_frame_start(&mut self, length: usize) {
        let rest = self.frame.get(length..).unwrap_or_default().to_vec();
        self.linear = self.linear.saturating_sub(length);
        self.frame = rest.into();
        self.invalidate_pointers();
    }

    /// Pops the outermost tag like the kernel's `skb_vlan_pop`, which moves the next tag from the
    /// frame into the metadata.
    pub(super) fn pop_tag(&mut self) {
        let inline_tag = |frame: &[u8]| {
            let protocol = frame.get(12..14).map(|kind| u16::from_be_bytes([kind[0], kind[1]]))?;
            let tci = frame.get(14..16).map(|tci| u16::from_be_bytes([tci[0], tci[1]]))?;
            let known = matches!(protocol, 0x8100 | 0x88a8) && frame.len() >= 18;
            known.then_some(Tag { tci, protocol })
        };
        if self.tag.take().is_none() && inline_tag(&self.frame).is_some() {
            self.frame.to_mut().drain(12..16);
        }
        if let Some(tag) = inline_tag(&self.frame) {
            self.frame.to_mut().drain(12..16);
            self.tag = Some(tag);
        }
        self.linear = self.frame.len();
        self.invalidate_pointers();
    }

    /// Marks all stack bytes as unwritten, so that they cannot be read.
    pub(super) fn invalidate_stack(&mut self) {
        self.stack_written.fill(false);
    }

    pub(super) fn has_unfilled_checksum(&self) -> bool {
        self.is_unfilled
    }

    /// Returns the frame, or `None` if the program has not changed it, and the tag in its metadata.
    pub(super) fn into_changed_frame(self) -> (Option<Vec<u8>>, Option<Tag>) {
        let frame = match self.frame {
            Cow::Owned(changed) => Some(changed),
            Cow::Borrowed(_) => None,
        };
        (frame, self.tag)
    }

    /// Invalidates all packet pointers by giving the packet another region number.
    fn invalidate_pointers(&mut self) {
        let next = self.region + 1;
        self.region = if next < PACKET_REGIONS.end { next } else { PACKET_REGIONS.start };
    }

    /// Makes the first `length` bytes of the frame linear and invalidates packet pointers. Returns
    /// false if the frame is shorter.
    pub(super) fn linearize(&mut self, length: usize) -> bool {
        let fits = length <= self.frame.len();
        if fits {
            self.linear = self.linear.max(length);
            self.invalidate_pointers();
        }
        fits
    }

    pub(super) fn map_handle(&self, number: i32) -> Result<u64, FaultKind> {
        let index = usize::try_from(number).map_err(|_| FaultKind::MissingMap(number))?;
        if index < self.maps.len() {
            Ok(MAP_HANDLE_TAG | index as u64)
        } else {
            Err(FaultKind::MissingMap(number))
        }
    }

    pub(super) fn map_value(&self, number: i32, offset: i32) -> Result<u64, FaultKind> {
        let index = self.map_handle(number)? & !MAP_HANDLE_TAG;
        Ok(region_base(FIRST_MAP_REGION + index).wrapping_add_signed(offset.into()))
    }

    /// Returns the address of the element `key` of the map with this handle, or `None` if there is
    /// no such map. A map has one element, so the address is 0 if `key` is not 0.
    pub(super) fn map_lookup(&self, handle: u64, key: u32) -> Option<u64> {
        let index = handle.checked_sub(MAP_HANDLE_TAG)?;
        let known = usize::try_from(index).is_ok_and(|index| index < self.maps.len());
        known.then_some(if key == 0 { region_base(FIRST_MAP_REGION + index) } else { 0 })
    }

    pub(super) fn read(&self, address: u64, size: Size) -> Result<u64, FaultKind> {
        if address >> 32 == CONTEXT_BASE >> 32 {
            return self.read_context(address.wrapping_sub(CONTEXT_BASE), size.bytes());
        }
        let bytes = self.bytes(address, size.bytes())?;
        let mut word = [0; 8];
        word.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        Ok(u64::from_le_bytes(word))
    }

    pub(super) fn write(&mut self, address: u64, size: Size, value: u64) -> Result<(), FaultKind> {
        let word = value.to_le_bytes();
        if self.hook == Hook::Cgroup && address == CONTEXT_BASE + ANSWER_OFFSET && size == Size::W {
            self.answer = Some(value as u32);
            return Ok(());
        }
        let to = self.bytes_mut(address, size.bytes())?;
        to.iter_mut().zip(word).for_each(|(to, from)| *to = from);
        Ok(())
    }

    /// Returns the `size` bytes at `address` for writing. If they are on the stack, marks them as
    /// written.
    pub(super) fn bytes_mut(&mut self, address: u64, size: usize) -> Result<&mut [u8], FaultKind> {
        let outside = FaultKind::OutsideRegions { address, size };
        let (region, range) = split_address(address, size).ok_or(outside)?;
        if region == STACK_BASE >> 32 {
            self.stack_written.get_mut(range.clone()).ok_or(outside)?.fill(true);
            return self.stack.get_mut(range).ok_or(outside);
        }
        if region == self.region && self.hook == Hook::Xdp {
            return self.frame.to_mut().get_mut(range).ok_or(outside);
        }
        if region == CONTEXT_BASE >> 32 || region == self.region {
            return Err(FaultKind::ReadOnly(address));
        }
        let map = region.checked_sub(FIRST_MAP_REGION).and_then(|map| usize::try_from(map).ok());
        let value = map.and_then(|map| self.maps.get_mut(map)).ok_or(outside)?;
        value.get_mut(range).ok_or(outside)
    }

    fn bytes(&self, address: u64, size: usize) -> Result<&[u8], FaultKind> {
        let outside = FaultKind::OutsideRegions { address, size };
        let (region, range) = split_address(address, size).ok_or(outside)?;
        if region == self.region {
            let direct = !self.hook.reads_packet_by_helper() && range.end <= self.linear;
            return self.frame.get(range).filter(|_| direct).ok_or(outside);
        }
        if region == STACK_BASE >> 32 {
            let written = self.stack_written.get(range.clone()).ok_or(outside)?;
            if !written.iter().all(|written| *written) {
                return Err(FaultKind::UninitializedStack(address));
            }
            return self.stack.get(range).ok_or(outside);
        }
        let map = region.checked_sub(FIRST_MAP_REGION).and_then(|map| usize::try_from(map).ok());
        map.and_then(|map| self.maps.get(map)).and_then(|value| value.get(range)).ok_or(outside)
    }

    fn read_context(&self, offset: u64, size: usize) -> Result<u64, FaultKind> {
        let tag = self.tag;
        let packet = region_base(self.region);
        let end = packet + self.linear as u64;
        let value = match (self.hook, offset, size) {
            (Hook::Xdp, 0, 4) => packet,
            (Hook::Xdp, 4, 4) => end,
            (Hook::Xdp, 12 | 16, 4) => 0,
            (Hook::Tc, 76, 4) => packet,
            (Hook::Tc, 80, 4) => end,
            (Hook::Tc | Hook::Socket | Hook::Cgroup, 0, 4) => self.frame.len() as u64,
            (Hook::Tc | Hook::Socket, 4 | 16, 4) => 0,
            (Hook::Tc | Hook::Socket, 20, 4) => u64::from(tag.is_some()),
            (Hook::Tc | Hook::Socket, 24, 4) => tag.map_or(0, |tag| tag.tci.into()),
            (Hook::Tc | Hook::Socket, 28, 4) => {
                // Network order in a 32-bit field, as the kernel stores it.
                tag.map_or(0, |tag| u16::from_ne_bytes(tag.protocol.to_be_bytes()).into())
            }
            _ => return Err(FaultKind::InvalidContextAccess { offset, size }),
        };
        Ok(value)
    }
}

pub(super) const fn region_base(region: u64) -> u64 {
    region << 32 | OFFSET_ZERO_ADDRESS
}

/// Splits an address into its region number and the range of bytes in this region; `None` if the
/// address is before offset 0 of the region.
fn split_address(address: u64, size: usize) -> Option<(u64, Range<usize>)> {
    let offset = usize::try_from((address & 0xffff_ffff).checked_sub(OFFSET_ZERO_ADDRESS)?).ok()?;
    Some((address >> 32, offset..offset.checked_add(size)?))
}
