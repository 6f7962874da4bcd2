//! The fields of a TCP segment that the filter `tcp` reads to track connections.

use super::connection::NO_WINDOW_SCALE;
use super::overlap::SequenceSpan;
use crate::contract::{Block, StreamContext, Time};
use crate::layers::{self, Segment};
use abi::BlockFlags;
use wire::checksum;
use wire::ip::protocol;
use wire::ports::Ports;
use wire::source_route::final_target;
use wire::tcp::{flag, options};

/// Kind number of the window scale option (RFC 7323 §2.2).
const WINDOW_SCALE_OPTION: u8 = 3;
/// Kind numbers of the signature options: TCP-MD5 (RFC 2385) and TCP-AO (RFC 5925).
const SIGNATURE_OPTIONS: [u8; 2] = [19, 29];

/// The fields of a TCP segment that the filter `tcp` reads to track connections.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct SegmentInfo {
    pub(super) flags: u8,
    /// Sequence numbers of the data. A SYN occupies the number before the data.
    pub(super) span: SequenceSpan,
    pub(super) acknowledgement: u32,
    pub(super) window: u32,
    pub(super) ports: Ports,
    /// True if the segment was sent from the greater address and port to the lesser.
    pub(super) is_down: bool,
    /// Window scale that a SYN offers. [`NO_WINDOW_SCALE`] for a SYN that offers none, and for
    /// other segments.
    pub(super) scale: u8,
    /// True for a SYN, FIN or RST with a signature option; false for other segments.
    pub(super) is_signed: bool,
    pub(super) time: Time,
}

impl SegmentInfo {
    #[inline]
    pub(super) fn new(frame: &[u8], segment: &Segment<'_>, down: bool, time: Time) -> Self {
        let header = segment.header;
        let syn = header.has_flags(flag::SYN);
        let from = header.sequence().wrapping_add(syn.into());
        Self {
            flags: header.flags(),
            span: SequenceSpan { from, to: from.wrapping_add(segment.end - segment.payload) },
            acknowledgement: header.acknowledgement_number(),
            window: header.window().into(),
            ports: Ports { source: header.source(), target: header.target() },
            is_down: down,
            scale: if syn { offered_window_scale(frame, segment) } else { NO_WINDOW_SCALE },
            is_signed: header.flags() & (flag::SYN | flag::FIN | flag::RST) != 0
                && is_signed(frame, segment),
            time,
        }
    }

    #[inline]
    pub(super) const fn has_flags(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    pub(super) const fn has_data(&self) -> bool {
        self.span.from != self.span.to
    }

    /// Returns the length of the data in bytes, as sent.
    pub(super) const fn length(&self) -> u32 {
        self.span.to.wrapping_sub(self.span.from)
    }

    /// Returns true if a connection record may begin with this segment, because the segment has a
    /// SYN or data, and no RST.
    pub(super) const fn may_begin_connection(&self) -> bool {
        !self.has_flags(flag::RST) && (self.has_flags(flag::SYN) || self.has_data())
    }

    /// Returns true if the client sent the segment. A SYN reveals this by its ACK flag. The sender
    /// of any other segment is the client if the port of its peer is the lower one.
    pub(super) const fn is_from_client(&self) -> bool {
        match self.has_flags(flag::SYN) {
            true => !self.has_flags(flag::ACK),
            false => self.ports.target <= self.ports.source,
        }
    }
}

/// Returns the window scale that a SYN offers, or [`NO_WINDOW_SCALE`] if it offers none.
#[cold]
fn offered_window_scale(frame: &[u8], segment: &Segment<'_>) -> u8 {
    let header = frame.get(segment.at as usize..).unwrap_or_default();
    let offered = options(header).find(|option| option.kind == WINDOW_SCALE_OPTION);
    offered.and_then(|option| option.data.first().copied()).unwrap_or(NO_WINDOW_SCALE)
}

/// Returns true if a segment carries a signature option. The signature is not verified, since only
/// the two ends have the key.
#[cold]
fn is_signed(frame: &[u8], segment: &Segment<'_>) -> bool {
    let header = frame.get(segment.at as usize..).unwrap_or_default();
    options(header).any(|option| SIGNATURE_OPTIONS.contains(&option.kind))
}

/// Returns true if the TCP checksum of the segment in `block` is valid, or cannot be verified.
pub(super) fn has_valid_checksum<'a>(mut block: Block<'a>, cx: &mut StreamContext<'_, 'a>) -> bool {
    let Ok(Some(segment)) = layers::segment(&mut block) else { return true };
    if block.context.flags.contains(BlockFlags::CHECKSUM_UNSET)
        || segment.end > block.marks.captured
    {
        return true;
    }
    let whole = cx.complete_block(block.view_at(0, block.marks.captured));
    let frame = whole.map(|block| block.frame).unwrap_or_default();
    let Some(bytes) = frame.get(segment.at as usize..segment.end as usize) else { return true };
    let packet = frame.get(block.marks.network.into()..).unwrap_or_default();
    let Some(target) = final_target(packet) else { return true };
    let source = segment.flow.source;
    let sum = checksum::pseudo_header_sum(source, target, protocol::TCP, segment.end - segment.at);
    sum.is_none_or(|sum| sum.with_bytes(bytes).checksum() == 0)
}
