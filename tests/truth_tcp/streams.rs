//! Functions that group the output of `tcp` into streams, by connection and direction.

use crate::collect::{COLLECT_FILTERS, CollectedBlock, run_and_collect};
use crate::request::PlannedRequest;
use crate::tshark::{StreamSpan, push_span};
use filter::prelude::*;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

/// A connection, with its endpoints as text (client first) and the data of both sides.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stream {
    pub(crate) ends: [String; 2],
    pub(crate) sides: [Vec<StreamSpan>; 2],
    /// For each side of the connection, true if its stream began with a SYN.
    pub(crate) has_begun: [bool; 2],
    /// For each side of the connection, true if the end of its stream was reported.
    pub(crate) has_ended: [bool; 2],
}

/// Returns the connections of a capture that have data or gaps, ordered by session, or the error of
/// reading the capture.
pub(crate) fn reassemble_streams(capture: &Path, arguments: &str) -> Result<Vec<Stream>, String> {
    let text = format!("replay '{}' | ip | tcp {arguments} | collect | discard", capture.display());
    let (blocks, _) = run_and_collect(&PlannedRequest::with_filters(text, COLLECT_FILTERS))?;
    Ok(group_into_streams(&blocks))
}

/// Groups blocks into connections, and omits those without data or gaps.
pub(crate) fn group_into_streams(blocks: &[CollectedBlock]) -> Vec<Stream> {
    let mut streams: BTreeMap<u32, Stream> = BTreeMap::new();
    for block in blocks {
        let side = usize::from(block.is_backward());
        let stream = streams.entry(block.session).or_default();
        if let Some(flow) = &block.flow {
            let ports = flow.ports.expect("TCP has ports");
            stream.ends[side] = SocketAddr::new(flow.source, ports.source).to_string();
            stream.ends[1 - side] = SocketAddr::new(flow.target, ports.target).to_string();
        }
        let span = match block.hole {
            true => StreamSpan::Missing(u64::from(block.length)),
            false => StreamSpan::Bytes(block.bytes.clone()),
        };
        stream.has_begun[side] |= block.flags.contains(BlockFlags::FIRST);
        stream.has_ended[side] |= block.flags.contains(BlockFlags::SESSION_END);
        push_span(&mut stream.sides[side], span);
    }
    streams
        .into_values()
        .filter(|stream| stream.sides.iter().any(|side| !side.is_empty()))
        .collect()
}

impl Stream {
    /// Returns the bytes that one side of the connection sent. Omits gaps.
    pub(crate) fn bytes(&self, side: usize) -> Vec<u8> {
        let bytes = self.sides[side].iter().filter_map(|span| match span {
            StreamSpan::Bytes(bytes) => Some(bytes.as_slice()),
            StreamSpan::Missing(_) => None,
        });
        bytes.collect::<Vec<_>>().concat()
    }

    /// Returns the number of missing bytes of a side.
    pub(crate) fn missing_byte_count(&self, side: usize) -> u64 {
        let missing = self.sides[side].iter().map(|span| match span {
            StreamSpan::Bytes(_) => 0,
            StreamSpan::Missing(length) => *length,
        });
        missing.sum()
    }
}
