//! Copy-free transfer between any two streams, of this process or others. [SL §5.3.3], FEATURES E2,
//! E6
//!
//! Input: a readable and a writable stream. Output: the number of bytes moved, and the number of
//! bytes moved as pointers. If the source can lend a block and the destination accepts it, only its
//! 16-byte pointer is written: the bytes are neither touched nor mapped here, and the splicing
//! process needs no permission to read them. All other data is written from a peeked slice, with at
//! most one copy.
//!
//! | from | to indirect stream | to stream of bytes |
//! |---|---|---|
//! | frozen file, aggregate ([`AggregateBlockReader`]) | pointer | one copy |
//! | indirect stream | pointer, held until passed | one copy |
//! | stream of bytes | one copy: out of foreign memory into the backing dbuf | one copy |
//!
//! [`AggregateBlockReader`]: crate::interface::AggregateBlockReader
//!
//! Data spliced from ring to ring through any number of processes stays in the dbuf to which it was
//! first written. Each process holds the entry in its ring until the next process has released the
//! block (F5 of [`crate::indirect`]), so back-pressure reaches the first writer, as with pipes.

use crate::interface::{StreamReader, StreamWriter};
use buffer::Fault;

/// The numbers of bytes that a splice moved and dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpliceResult {
    /// Number of bytes taken from the source, including dropped ones; 0 at the end of the source.
    pub bytes: usize,
    /// Number of bytes moved as pointers, without a copy.
    pub by_pointer: usize,
    /// Number of bytes dropped by the policy of the destination.
    pub dropped: usize,
}

/// Moves up to `max` bytes, and at least one unless the source has ended. Blocks until the source
/// has bytes, and while the destination is full and its policy is to block. Does not flush the
/// destination.
pub fn splice<F, T>(from: &mut F, to: &mut T, max: usize) -> Result<SpliceResult, Fault>
where
    F: StreamReader + ?Sized,
    T: StreamWriter + ?Sized,
{
    let mut moved = SpliceResult::default();
    while moved.bytes < max {
        let left = max - moved.bytes;
        if forward_pointers(from, to, left, &mut moved)? {
            continue;
        }
        let before = moved.bytes;
        match forward_pointer(from, to, left, &mut moved) {
            Ok(ForwardResult::Forwarded) => {}
            Ok(ForwardResult::Refused) => write_peeked(from, to, left, &mut moved)?,
            // Blocks that arrived in between are moved as pointers as well, and not peeked.
            Ok(ForwardResult::NothingLent) => match from.has_lending_ended() {
                Ok(None) => write_peeked(from, to, left, &mut moved)?,
                Ok(Some(false)) if moved.bytes == 0 => {
                    wait_for_input_or_release(from, to)?;
                    continue;
                }
                Err(fault) if moved.bytes == 0 => return Err(fault),
                Ok(Some(_)) | Err(_) => break,
            },
            // Bytes already moved are reported first; the fault occurs again in the next call.
            Err(_) if moved.bytes > 0 => break,
            Err(fault) => return Err(fault),
        }
        if moved.bytes > before {
            continue;
        }
        if moved.bytes > 0 {
            break;
        }
        match from.peek()? {
            Some([]) => break,
            Some(_) => {}
            None => wait_for_input_or_release(from, to)?,
        }
    }
    Ok(moved)
}

/// Moves all bytes until the end of the source, then flushes the destination. Blocks as often as
/// necessary.
pub fn splice_all<F, T>(from: &mut F, to: &mut T) -> Result<SpliceResult, Fault>
where
    F: StreamReader + ?Sized,
    T: StreamWriter + ?Sized,
{
    let mut all = SpliceResult::default();
    loop {
        let moved = splice(from, to, usize::MAX)?;
        if moved.bytes == 0 {
            to.flush();
            return Ok(all);
        }
        all.bytes += moved.bytes;
        all.by_pointer += moved.by_pointer;
        all.dropped += moved.dropped;
    }
}

/// Waits until the source has input, or until readers of the destination have released forwarded
/// blocks. The source's writer may be waiting for these blocks. Flushes the destination first. Only
/// callers that forward by peeking and writing need this; [`splice`] itself waits.
pub fn wait_for_input_or_release<F, T>(from: &mut F, to: &mut T) -> Result<(), Fault>
where
    F: StreamReader + ?Sized,
    T: StreamWriter + ?Sized,
{
    to.flush();
    if from.release_consumed() == 0 {
        return from.wait(None).map(|_| ());
    }
    if to.announce_sleep()? {
        let waited = from.wait_for_input_or_descriptors(&to.descriptors());
        to.withdraw_sleep()?;
        waited?;
    }
    from.release_consumed();
    Ok(())
}

/// Releases the blocks of the source that have been consumed and that readers of the destination
/// have released. Flushes the destination first. Does not block. A caller that forwards without
/// waiting must call this when the source has no input, since the source's writer may be waiting
/// for the blocks.
pub fn release_forwarded_blocks<F, T>(from: &mut F, to: &mut T) -> Result<(), Fault>
where
    F: StreamReader + ?Sized,
    T: StreamWriter + ?Sized,
{
    to.flush();
    if from.release_consumed() == 0 {
        return Ok(());
    }
    if to.announce_sleep()? {
        to.withdraw_sleep()?;
    }
    from.release_consumed();
    Ok(())
}

/// The result of an attempt to move a block from a source to a destination as a pointer.
enum ForwardResult {
    /// The destination has accepted or dropped the pointer.
    Forwarded,
    /// The destination did not accept a pointer, so the block must be copied.
    Refused,
    /// The source has lent no block, so the next bytes must be copied.
    NothingLent,
}

/// Moves several blocks of up to `max` bytes in total as pointers. Requires that the source lends
/// the blocks and the destination has room. Adds the moved bytes to `moved`. Returns false if no
/// block was moved.
#[inline]
fn forward_pointers<F, T>(
    from: &mut F,
    to: &mut T,
    max: usize,
    moved: &mut SpliceResult,
) -> Result<bool, Fault>
where
    F: StreamReader + ?Sized,
    T: StreamWriter + ?Sized,
{
    // As in `splice`: bytes already moved are reported first.
    let lent = match from.lend_adjacent_blocks(max) {
        Err(_) if moved.bytes > 0 => return Ok(false),
        lent => lent?,
    };
    let Some((lent, block)) = lent else { return Ok(false) };
    let length = to.accept_adjacent_blocks(&lent, block)?;
    if length == 0 {
        return Ok(false);
    }
    from.take(length);
    moved.bytes += length;
    moved.by_pointer += length;
    Ok(true)
}

/// Moves up to `max` bytes of the next block as a pointer, if the source lends the block and the
/// destination accepts it. Adds the bytes to `moved`. A block that the destination drops is also
/// consumed and counted.
#[inline]
fn forward_pointer<F, T>(
    from: &mut F,
    to: &mut T,
    max: usize,
    moved: &mut SpliceResult,
) -> Result<ForwardResult, Fault>
where
    F: StreamReader + ?Sized,
    T: StreamWriter + ?Sized,
{
    let Some(lent) = from.lend(max)?.filter(|lent| !lent.is_empty()) else {
        return Ok(ForwardResult::NothingLent);
    };
    let length = lent.len();
    let accepted = loop {
        if let Some(accepted) = to.accept(&lent)? {
            break accepted;
        }
        // So many blocks are held that the source's writer may have to wait: wait for our readers.
        if !to.wait_for_released_blocks()? {
            return Ok(ForwardResult::Refused);
        }
    };
    moved.bytes += length;
    if accepted {
        moved.by_pointer += length;
    } else {
        moved.dropped += length;
    }
    from.take(length);
    Ok(ForwardResult::Forwarded)
}

/// Copies up to `max` bytes of the next block to the destination. Adds the bytes to `moved`. Writes
/// the bytes from a peeked slice. If a peek would have to copy them, reads them directly into the
/// destination instead.
fn write_peeked<F, T>(
    from: &mut F,
    to: &mut T,
    max: usize,
    moved: &mut SpliceResult,
) -> Result<(), Fault>
where
    F: StreamReader + ?Sized,
    T: StreamWriter + ?Sized,
{
    let copies = from.copied_read_max()?.min(max).min(to.block_length_max());
    if copies > 0 {
        if !read_into_destination(from, to, copies, moved)? {
            // The destination has already counted the bytes as dropped.
            let length = from.peek()?.map_or(0, |block| block.len().min(copies));
            moved.bytes += length;
            moved.dropped += length;
            from.take(length);
        }
        return Ok(());
    }
    let Some(block) = from.peek()? else { return Ok(()) };
    let length = block.len().min(max).min(to.block_length_max());
    let Some(block) = block.get(..length).filter(|block| !block.is_empty()) else { return Ok(()) };
    let written = to.write(block)?;
    moved.bytes += length;
    if !written {
        moved.dropped += length;
    }
    from.take(length);
    Ok(())
}

/// Reads up to `count` foreign bytes directly into the destination, with one copy, and adds them to
/// `moved`. Returns false if the destination has no room and drops the block, in which case nothing
/// is read.
fn read_into_destination<F, T>(
    from: &mut F,
    to: &mut T,
    count: usize,
    moved: &mut SpliceResult,
) -> Result<bool, Fault>
where
    F: StreamReader + ?Sized,
    T: StreamWriter + ?Sized,
{
    let mut read = Ok(0);
    let written = to.write_with(count, &mut |room| {
        let room = room.get_mut(..count).unwrap_or_default();
        read = from.try_read(room).map(Option::unwrap_or_default);
        read.unwrap_or(0)
    })?;
    moved.bytes += read?;
    Ok(written)
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests;
