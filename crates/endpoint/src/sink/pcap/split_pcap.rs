//! `pcap per=connection`: one capture file per connection in a directory.

use super::{FrameDeduplication, link_type_failure};
use crate::entry::is_standard_output;
use crate::sink::file_set::{FileKey, FileSet, FileSetPolicy, OutputFile};
use crate::sink::headers::Headers;
use crate::{Failure, OpenArguments, Sink};
use abi::{BlockFlags, Direction};
use filter::{Amount, Batch, Block, Form, Report, Time};
use wire::capture::write;
use wire::link::LinkType;

/// A sink that writes one capture per connection into a directory.
#[derive(Debug)]
pub(super) struct SplitPcap {
    file_set: FileSet,
    /// True if each direction of a connection has its own file, false if both share a file.
    one_way: bool,
    frames: FrameDeduplication,
    frames_written: u64,
    written: Amount,
    /// Buffer for the next pcap record. Before the first record of a file, the buffer also contains
    /// the file header.
    record: Vec<u8>,
}

impl SplitPcap {
    /// Opens the output directory, and creates the sink that writes into it.
    pub(super) fn open(
        path: &str,
        one_way: bool,
        frames: FrameDeduplication,
        opening: &OpenArguments<'_>,
    ) -> Result<Self, Failure> {
        if is_standard_output(path) {
            let why = "it holds one capture, and there is one for each connection";
            let hint = "name a directory";
            return Err(Failure::new("write", "standard output", why).with_hint(hint));
        }
        let policy = FileSetPolicy {
            suffix: ".pcap",
            has_digests: false,
            has_single_message: false,
            needs_beginning: opening.forms().all(|form| form == Form::Stream),
            fills_holes: false,
        };
        let file_set = FileSet::open(path, policy, opening)?;
        let (frames_written, written) = Default::default();
        Ok(Self { file_set, one_way, frames, frames_written, written, record: Vec::new() })
    }

    fn file_key(&self, block: &Block<'_>) -> FileKey {
        let session = block.context.session;
        if session != 0 {
            let backward = block.context.flags.direction() == Direction::Backward;
            return FileKey::Session { number: session, backward: backward && self.one_way };
        }
        match Headers::parse_frame(block).and_then(|headers| headers.flow) {
            Some(flow) if self.one_way => FileKey::Flow(flow),
            Some(flow) => FileKey::Flow(flow.normalized().0),
            None => FileKey::Unassigned,
        }
    }

    /// Appends the frame of a block to the file of the block's connection, unless the frame has
    /// been written before. Then updates the state of the file, and finishes the file if its
    /// connection has ended.
    fn append_block(&mut self, block: &Block<'_>) -> Result<(), Failure> {
        let is_new = self.frames.record_frame_if_new(block);
        let key = self.file_key(block);
        let mut file = match self.file_set.take_file(key) {
            Some(file) => file,
            None if !is_new => return Ok(()),
            None => {
                self.file_set.make_room()?;
                OutputFile::new(block, self.one_way)
            }
        };
        let outcome = if is_new { self.append_frame(&mut file, block) } else { Ok(()) };
        let ended = block.context.flags.contains(BlockFlags::SESSION_END);
        if outcome.is_ok() {
            file.update_for_block(block);
            if ended {
                file.end_direction(block);
            }
        }
        let is_over = file.has_ended() || ended && self.one_way;
        self.file_set.put_back(key, file);
        outcome?;
        if is_over { self.file_set.finish_file(key) } else { Ok(()) }
    }

    fn append_frame(&mut self, file: &mut OutputFile, block: &Block<'_>) -> Result<(), Failure> {
        let link = LinkType(block.marks.link).file_link_type();
        self.record.clear();
        match file.link.replace(link) {
            None => self.record.extend_from_slice(&write::encode_file_header(link)),
            Some(first) if first != link => {
                return Err(link_type_failure(&self.file_set.path_for_messages(), first, link));
            }
            Some(_) => {}
        }
        file.copy_addresses(block);
        self.frames.append_frame(block, &mut self.record);
        self.file_set.write_bytes(file, &self.record)?;
        self.frames_written += 1;
        Ok(())
    }
}

impl Sink for SplitPcap {
    fn consume(&mut self, batch: &Batch<'_>, _now: Time) -> Result<(), Failure> {
        for (_, block) in batch.blocks() {
            self.append_block(&block)?;
            self.written.add_block(block.length());
        }
        Ok(())
    }

    fn on_idle(&mut self) -> Result<(), Failure> {
        self.file_set.flush()
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        self.file_set.finish_all()?;
        let mut rows = self.frames.rows(self.frames_written, &self.file_set.path_for_messages())?;
        rows.rows.insert(0, ("files".to_owned(), self.file_set.files_created()));
        Ok(self.file_set.report(rows))
    }

    fn amount_written(&self) -> Option<Amount> {
        Some(self.written)
    }
}

#[cfg(test)]
mod tests;
