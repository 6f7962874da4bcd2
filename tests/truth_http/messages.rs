//! Functions that group the output of `http` into messages.

use crate::collect::{COLLECT_FILTERS, CollectedBlock, run_and_collect};
use crate::request::PlannedRequest;
use filter::prelude::*;
use std::path::Path;
use wire::record::{Field, Record};

/// A message: its class, its description, and its fragments.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Message {
    pub(crate) session: u32,
    pub(crate) class: u32,
    pub(crate) record: Vec<u8>,
    pub(crate) bytes: Vec<u8>,
    /// Number of the message's bytes that were not captured.
    pub(crate) missing: u64,
    /// True if the last fragment of the message arrived.
    pub(crate) ended: bool,
    /// True if bytes of the same direction are missing directly before the message.
    pub(crate) after_gap: bool,
}

impl Message {
    /// Returns true if no byte of the message is missing and its last fragment arrived.
    pub(crate) fn is_complete(&self) -> bool {
        let stated = Record::parse(&self.record).and_then(|r| r.number(Field::ContentLength));
        let length = self.bytes.len() as u64;
        self.ended && self.missing == 0 && stated.is_none_or(|stated| stated <= length)
    }

    /// Returns true if the message's head announces an encoded body.
    pub(crate) fn is_encoded(&self) -> bool {
        Record::parse(&self.record).is_some_and(|r| r.text(Field::ContentEncoding).is_some())
    }
}

/// Returns the messages of a capture, each with its decoded body, or the error of reading the
/// capture.
pub(crate) fn messages_with_bodies(capture: &Path) -> Result<Vec<(Message, Vec<u8>)>, String> {
    let run = |decode: &str| {
        let capture = capture.display();
        let text = format!(
            "replay '{capture}' | ip | tcp | http emit=body decode={decode} | collect | discard"
        );
        let (blocks, _) = run_and_collect(&PlannedRequest::with_filters(text, COLLECT_FILTERS))?;
        Ok::<_, String>(group_into_messages(&blocks))
    };
    let (sent, decoded) = (run("no")?, run("yes")?);
    let records = |messages: &[Message]| messages.iter().map(|m| m.class).collect::<Vec<_>>();
    assert_eq!(records(&sent), records(&decoded), "{}", capture.display());
    Ok(sent.into_iter().zip(decoded).map(|(sent, decoded)| (sent, decoded.bytes)).collect())
}

/// Groups blocks, which are in order per direction, into messages.
pub(crate) fn group_into_messages(blocks: &[CollectedBlock]) -> Vec<Message> {
    let mut messages: Vec<Message> = Vec::new();
    let mut sides: Vec<(u32, bool)> = Vec::new();
    let mut open = std::collections::BTreeMap::new();
    for block in blocks {
        let side = (block.session, block.is_backward());
        if block.flags.contains(BlockFlags::FIRST) {
            assert!(block.record.is_some(), "a message begins with its description: {block:?}");
            open.insert(side, messages.len());
            let before = || messages.iter().zip(&sides).filter(|(_, other)| **other == side);
            let after_gap = before().any(|(message, _)| !message.is_complete());
            messages.push(Message { after_gap, ..Message::default() });
            sides.push(side);
        }
        let number = open.get(&side).copied().unwrap_or_else(|| panic!("of no message: {block:?}"));
        let message = &mut messages[number];
        (message.session, message.class) = (block.session, block.class);
        match &block.record {
            Some(record) => message.record.clone_from(record),
            None if block.hole => message.missing += u64::from(block.length),
            None => message.bytes.extend(&block.bytes),
        }
        message.ended |= block.flags.contains(BlockFlags::LAST);
        if block.flags.contains(BlockFlags::LAST) {
            open.remove(&side);
        }
    }
    messages
}
