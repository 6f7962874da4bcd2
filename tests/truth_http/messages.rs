//! The messages that `http` finds in a capture.

use crate::collect::{COLLECTING, Seen, collected};
use crate::line::Line;
use filter::prelude::*;
use std::path::Path;
use wire::record::{Field, Record};

/// One message: its class, its description, and what of it follows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Message {
    pub(crate) session: u32,
    pub(crate) class: u32,
    pub(crate) record: Vec<u8>,
    pub(crate) bytes: Vec<u8>,
    /// Bytes of it that nobody saw.
    pub(crate) missing: u64,
    /// True if its last fragment came.
    pub(crate) ended: bool,
    /// True if something is missing before it, on its side of the connection.
    pub(crate) behind_gap: bool,
}

impl Message {
    /// Returns true if all of it came.
    pub(crate) fn is_whole(&self) -> bool {
        let stated = Record::parse(&self.record).and_then(|r| r.number(Field::ContentLength));
        let length = self.bytes.len() as u64;
        self.ended && self.missing == 0 && stated.is_none_or(|stated| stated <= length)
    }

    /// Returns true if its head announces an encoded body.
    pub(crate) fn is_coded(&self) -> bool {
        Record::parse(&self.record).is_some_and(|r| r.text(Field::ContentEncoding).is_some())
    }
}

/// The messages of a capture with their bodies as they were sent, and as decoded. Nothing: the
/// capture cannot be read.
pub(crate) fn bodies(capture: &Path) -> Result<Vec<(Message, Vec<u8>)>, String> {
    let run = |decode: &str| {
        let capture = capture.display();
        let text = format!(
            "replay '{capture}' | ip | tcp | http emit=body decode={decode} | collect | discard"
        );
        let (seen, _) = collected(&Line::with(text, COLLECTING))?;
        Ok::<_, String>(sorted(&seen))
    };
    let (sent, decoded) = (run("no")?, run("yes")?);
    let records = |messages: &[Message]| messages.iter().map(|m| m.class).collect::<Vec<_>>();
    assert_eq!(records(&sent), records(&decoded), "{}", capture.display());
    Ok(sent.into_iter().zip(decoded).map(|(sent, decoded)| (sent, decoded.bytes)).collect())
}

/// Blocks sorted into messages. Those of one side of a connection come one behind the other.
pub(crate) fn sorted(seen: &[Seen]) -> Vec<Message> {
    let mut messages: Vec<Message> = Vec::new();
    let mut sides: Vec<(u32, bool)> = Vec::new();
    let mut open = std::collections::BTreeMap::new();
    for block in seen {
        let side = (block.session, block.backward());
        if block.flags.has(Flags::FIRST) {
            assert!(block.record.is_some(), "a message begins with its description: {block:?}");
            open.insert(side, messages.len());
            let before = || messages.iter().zip(&sides).filter(|(_, other)| **other == side);
            let behind_gap = before().any(|(message, _)| !message.is_whole());
            messages.push(Message { behind_gap, ..Message::default() });
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
        message.ended |= block.flags.has(Flags::LAST);
        if block.flags.has(Flags::LAST) {
            open.remove(&side);
        }
    }
    messages
}
