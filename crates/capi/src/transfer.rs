//! Transfer of bytes from one end to another, by pointer if both ends support it; and calls that
//! return the counts and the size of an end.

use crate::config::{streamline_counts, streamline_ring_size};
use crate::end::{EndKind, Writer, no_room_error};
use crate::failure::{Failure, Outcome, wrong_end_error};
use crate::stream_calls::lock_end;
use crate::table;
use iolite::interface::StreamReader;
use iolite::splice;

/// Moves up to `most` bytes from end `from` to end `to`. Returns the number of bytes moved, or 0 at
/// the end of the source. Fails with `EINVAL` if both ends are the same.
pub(crate) fn splice(from: i32, to: i32, most: usize) -> Outcome<usize> {
    if from == to {
        return Err(Failure::invalid("source and target are the same end"));
    }
    let (mut source, mut sink) = (lock_end(from, false)?, lock_end(to, true)?);
    let (source, sink) = (source.require_end(from)?, sink.require_end(to)?);
    let nonblocking = source.nonblocking;
    match (&mut source.kind, &mut sink.kind) {
        (EndKind::Closed, _) => Ok(0),
        (EndKind::PointerReader(reader), EndKind::PointerWriter(writer)) => {
            if nonblocking && !reader.is_ready()? {
                // The writer of the source may be waiting for the blocks that have moved.
                writer.release_spliced(reader)?;
                reader.wait_for_input(true)?;
            }
            writer.splice_pipe(reader, most)
        }
        (EndKind::File(file), EndKind::PointerWriter(writer)) => writer.splice_file(file, most),
        (EndKind::Reader(reader), EndKind::PointerWriter(writer)) => {
            if nonblocking {
                reader.locate(true)?;
            }
            writer.splice_bytes(reader.stream(), most)
        }
        (EndKind::Reader(reader), EndKind::Writer(writer)) => {
            let length =
                if sink.nonblocking || nonblocking { reader.locate(nonblocking)?.1 } else { 0 };
            let most =
                if sink.nonblocking { fitting_length(writer, length.min(most))? } else { most };
            splice_bytes(reader.stream(), writer, most)
        }
        (EndKind::PointerReader(reader), EndKind::Writer(writer)) => {
            let length =
                if sink.nonblocking || nonblocking { reader.locate(nonblocking)?.1 } else { 0 };
            let most =
                if sink.nonblocking { fitting_length(writer, length.min(most))? } else { most };
            splice_bytes(reader.stream(), writer, most)
        }
        (EndKind::File(file), EndKind::Writer(writer)) => {
            let most = if sink.nonblocking {
                fitting_length(writer, file.locate()?.1.min(most))?
            } else {
                most
            };
            splice_bytes(&mut file.reader, writer, most)
        }
        (_, EndKind::Writer(_) | EndKind::PointerWriter(_)) => {
            Err(wrong_end_error("one to read from"))
        }
        _ => Err(wrong_end_error("one to write to")),
    }
}

/// Returns the length of the block to write next: `length`, but at most the maximum block size.
/// Fails with `EAGAIN` if the stream has no room for a block of this length.
fn fitting_length(writer: &mut Writer, length: usize) -> Outcome<usize> {
    let length = length.min(writer.output.block_length_max());
    if !writer.output.is_ready(length)? {
        writer.output.flush();
        return Err(no_room_error());
    }
    Ok(length)
}

/// Moves up to `most` bytes from `from` to a byte stream, copying them once. Returns the number of
/// bytes moved, or 0 at the end of `from`.
fn splice_bytes<F: StreamReader>(from: &mut F, writer: &mut Writer, most: usize) -> Outcome<usize> {
    let moved = splice::splice(from, &mut writer.output, most)?;
    if writer.publishes_at_once {
        writer.output.flush();
    }
    Ok(moved.bytes)
}

/// Returns the counts of an end.
pub(crate) fn counts(fd: i32) -> Outcome<streamline_counts> {
    let mut used = table::lock_entry(fd)?;
    let of_writer = |put: buffer::WriterCounts| streamline_counts {
        blocks: put.blocks,
        bytes: put.bytes,
        dropped: put.dropped,
        dropped_bytes: put.dropped_bytes,
        copied: put.blocks,
        ..streamline_counts::default()
    };
    let of_reader = |taken: buffer::ReaderCounts| streamline_counts {
        blocks: taken.blocks,
        bytes: taken.bytes,
        dropped: taken.lost,
        ..streamline_counts::default()
    };
    match &mut used.require_end(fd)?.kind {
        EndKind::Reader(reader) => Ok(of_reader(reader.stream().input().counts())),
        EndKind::PointerReader(reader) => Ok(of_reader(reader.input.counts())),
        EndKind::Writer(writer) => Ok(of_writer(writer.output.counts())),
        EndKind::PointerWriter(writer) => {
            let output = writer.pipe.output();
            let kinds = output.splice_counts();
            let all = of_writer(output.counts());
            Ok(streamline_counts { by_pointer: kinds.blocks, copied: kinds.copied_blocks, ..all })
        }
        _ => Err(wrong_end_error("an end of a stream")),
    }
}

/// Returns the current size of the ring or memory behind a writing end, and the numbers of times
/// that it has grown and shrunk.
pub(crate) fn size(fd: i32) -> Outcome<streamline_ring_size> {
    let mut used = lock_end(fd, true)?;
    let (bytes, sizing) = match &used.require_end(fd)?.kind {
        EndKind::Writer(writer) => (writer.output.capacity(), writer.output.sizing_state()),
        EndKind::PointerWriter(writer) => writer.pipe.memory_size(),
        _ => return Err(wrong_end_error("one to write to")),
    };
    let (grown, shrunk) = sizing.map_or((0, 0), |sizing| (sizing.grown, sizing.shrunk));
    Ok(streamline_ring_size { bytes: bytes as u64, grown, shrunk })
}
