//! The packet socket that receives the packets of the interfaces without rings.

use super::packets::{PACKET_OFFSET, Packet};
use ebpf::classic::VlanTag;
use std::os::fd::{AsFd, BorrowedFd};
use sys::packet::{CookedPacket, CookedSocket};
use wire::linux_cooked::{CookedHeader, packet_type};

/// Device type of loopback interfaces (`ARPHRD_LOOPBACK`).
const LOOPBACK_DEVICE_TYPE: u16 = 772;
/// Size of the buffer for a packet in bytes. The kernel creates no longer packets.
const PACKET_BUFFER_SIZE: usize = 64 << 10;

/// Default size of the receive buffer in bytes. The kernel doubles it, and charges a small packet
/// 768 bytes, so the buffer has room for about as many packets as the ring of libpcap (2 MB).
const RECEIVE_BUFFER_SIZE: i32 = 4 << 20;

/// The packet socket, and the last packet received from it.
#[derive(Debug)]
pub(super) struct RemainderSocket {
    socket: CookedSocket,
    /// Indices of the interfaces whose packets the socket does not receive; `None` if it receives
    /// no packets.
    excluded: Option<Vec<u32>>,
    pending: Option<CookedPacket>,
    /// True if the socket has been found empty since the last call of [`Self::allow_next_read`]. It
    /// is then not read again until the next call.
    is_empty: bool,
    bytes: Box<[u8]>,
    drops: u64,
}

impl RemainderSocket {
    /// Opens the socket, which receives nothing until [`Self::set_excluded`]. `buffer` is the size
    /// of its receive buffer in bytes; 0 for the default.
    pub(super) fn open(buffer: i32) -> sys::Result<Self> {
        let socket = CookedSocket::open()?;
        socket.set_buffer_size(if buffer > 0 { buffer } else { RECEIVE_BUFFER_SIZE })?;
        let bytes = vec![0; PACKET_BUFFER_SIZE].into_boxed_slice();
        Ok(Self { socket, excluded: None, pending: None, is_empty: false, bytes, drops: 0 })
    }

    /// From now on, receives the packets of all interfaces except `excluded`, or no packets if
    /// `excluded` is `None`.
    pub(super) fn set_excluded(&mut self, excluded: Option<&[u32]>) -> sys::Result<()> {
        if excluded == self.excluded.as_deref() {
            return Ok(());
        }
        match excluded {
            Some(excluded) => self.socket.start(excluded)?,
            None => self.socket.stop()?,
        }
        self.excluded = excluded.map(<[u32]>::to_vec);
        Ok(())
    }

    /// Makes the packets that have arrived since the last call available to [`Self::next_time`].
    /// Between two calls, an empty socket is read at most once; otherwise, each frame from a ring
    /// would cost a system call.
    pub(super) const fn allow_next_read(&mut self) {
        self.is_empty = false;
    }

    /// Returns the time of day of the next packet in nanoseconds; `None` if there is none. Discards
    /// packets for whose interface and time `is_in_ring` returns true, because a ring contains
    /// them, too. Also discards packets that the loopback interface sends, because this interface
    /// receives them again.
    pub(super) fn next_time(&mut self, is_in_ring: impl Fn(u32, u64) -> bool) -> Option<u64> {
        while self.pending.is_none() && !self.is_empty {
            let Some(packet) = self.socket.receive(&mut self.bytes) else {
                self.is_empty = true;
                return None;
            };
            let is_sent_by_loopback =
                packet.hatype == LOOPBACK_DEVICE_TYPE && packet.kind == packet_type::OUTGOING;
            if !is_sent_by_loopback && !is_in_ring(packet.interface, packet.time_ns) {
                self.pending = Some(packet);
            }
        }
        self.pending.map(|packet| packet.time_ns)
    }

    pub(super) const fn has_packet(&self) -> bool {
        self.pending.is_some()
    }

    /// Removes the next packet. Copies its bytes to `buffer`, and returns the packet; `None` if
    /// there is none.
    pub(super) fn take_packet(&mut self, buffer: &mut [u8]) -> Option<Packet> {
        let packet = self.pending.take()?;
        let bytes = self.bytes.get(..packet.captured)?;
        let end = PACKET_OFFSET + packet.captured;
        buffer.get_mut(PACKET_OFFSET..end)?.copy_from_slice(bytes);
        let header = CookedHeader {
            interface: packet.interface,
            kind: packet.kind,
            hardware: packet.hatype,
            sender: packet.sender,
            sender_length: packet.sender_length,
            protocol: packet.protocol,
        };
        Some(Packet {
            header,
            vlan: packet.vlan.map(|tag| VlanTag { tci: tag.control, tpid: tag.protocol }),
            offset: PACKET_OFFSET,
            captured: packet.captured,
            length: u32::try_from(packet.length).unwrap_or(u32::MAX),
            time_ns: packet.time_ns,
            is_from_socket: true,
        })
    }

    /// Returns the number of packets that the socket has dropped because the program was too slow.
    pub(super) fn count_drops(&mut self) -> u64 {
        // The kernel resets its counter with each query.
        self.drops += u64::from(self.socket.take_drop_count().unwrap_or(0));
        self.drops
    }
}

impl AsFd for RemainderSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
