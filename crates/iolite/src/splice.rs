//! Copy-free transfer between any two streams, of this process or others. [SL §5.3.3], FEATURES E2,
//! E6
//!
//! In: something to read and something to write. Out: how much went over, and how much of that as
//! pointers. What the source can lend and the destination accepts goes over as 16 bytes, and no
//! byte of it is touched or even mapped here; whoever splices needs no right to read it, those
//! behind do. Everything else is written from where it is peeked at: one copy, or none.
//!
//! | from | to indirect stream | to stream of bytes |
//! |---|---|---|
//! | file (frozen, [`Held`](crate::interface::Held)), aggregate | pointer | one copy |
//! | indirect stream | pointer, kept until passed | one copy |
//! | stream of bytes | one copy: out of foreign memory into the backing dbuf | one copy |
//!
//! What goes from ring to ring stays in the dbuf that it was written to first, however many
//! processes it passes: each keeps its entry until the next has given it back (F5 of
//! [`crate::indirect`]), so back-pressure reaches the first writer, as through pipes.

use crate::interface::{StreamReader, StreamWriter};
use buffer::Fault;

/// The bytes that a splice moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Moved {
    /// All bytes; 0: the source has ended.
    pub bytes: usize,
    /// Those of which only pointers were written.
    pub by_pointer: usize,
    /// Blocks that the destination dropped, by its policy.
    pub dropped: usize,
}

/// Moves up to `max` bytes: waits until there is something, then moves what is there. The
/// destination is not flushed.
pub fn splice<F, T>(from: &mut F, to: &mut T, max: usize) -> Result<Moved, Fault>
where
    F: StreamReader + ?Sized,
    T: StreamWriter + ?Sized,
{
    let mut moved = Moved::default();
    while moved.bytes < max {
        let left = max - moved.bytes;
        let before = moved.bytes;
        match pass_on(from, to, left, &mut moved) {
            Ok(Passed::On) => {}
            Ok(Passed::Refused) => write_over(from, to, left, &mut moved)?,
            // What comes between two looks is lent as well, and not peeked at.
            Ok(Passed::Nothing) => match from.is_lent_out() {
                Ok(None) => write_over(from, to, left, &mut moved)?,
                Ok(Some(false)) if moved.bytes == 0 => {
                    wait(from, to)?;
                    continue;
                }
                Err(fault) if moved.bytes == 0 => return Err(fault),
                Ok(Some(_)) | Err(_) => break,
            },
            // What went over is answered first; the fault comes again.
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
            None => wait(from, to)?,
        }
    }
    Ok(moved)
}

/// Moves everything until the source has ended, and flushes; waits as often as needed.
pub fn splice_all<F, T>(from: &mut F, to: &mut T) -> Result<Moved, Fault>
where
    F: StreamReader + ?Sized,
    T: StreamWriter + ?Sized,
{
    let mut all = Moved::default();
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

/// Waits until there is something, or until readers of the destination have passed some of what was
/// lent: whoever writes to the source may be waiting for that. For who passes on by peeking and
/// writing; [`splice`] does it by itself.
pub fn wait<F, T>(from: &mut F, to: &mut T) -> Result<(), Fault>
where
    F: StreamReader + ?Sized,
    T: StreamWriter + ?Sized,
{
    to.flush();
    if from.give_back() == 0 {
        return from.wait(None).map(|_| ());
    }
    if to.falls_asleep()? {
        let waited = from.wait_among(&to.descriptors());
        to.wakes()?;
        waited?;
    }
    from.give_back();
    Ok(())
}

/// The result of passing a block on as a pointer.
enum Passed {
    On,
    /// The destination takes no pointer to it.
    Refused,
    /// Nothing is lent.
    Nothing,
}

/// Moves a block as a pointer.
#[inline]
fn pass_on<F, T>(from: &mut F, to: &mut T, max: usize, moved: &mut Moved) -> Result<Passed, Fault>
where
    F: StreamReader + ?Sized,
    T: StreamWriter + ?Sized,
{
    let Some(lent) = from.lend(max)?.filter(|lent| !lent.is_empty()) else {
        return Ok(Passed::Nothing);
    };
    let length = lent.len();
    let accepted = loop {
        if let Some(accepted) = to.accept(&lent)? {
            break accepted;
        }
        // So much is kept that the first writer might have to wait: so do we, for our readers.
        if !to.settle()? {
            return Ok(Passed::Refused);
        }
    };
    moved.bytes += length;
    if accepted {
        moved.by_pointer += length;
    } else {
        moved.dropped += length;
    }
    from.take(length);
    Ok(Passed::On)
}

/// Writes a block from where it is peeked at.
fn write_over<F, T>(from: &mut F, to: &mut T, max: usize, moved: &mut Moved) -> Result<(), Fault>
where
    F: StreamReader + ?Sized,
    T: StreamWriter + ?Sized,
{
    let copies = from.copies()?.min(max).min(to.block_max());
    if copies > 0 && copy_over(from, to, copies, moved)? {
        return Ok(());
    }
    let Some(block) = from.peek()? else { return Ok(()) };
    let length = block.len().min(max).min(to.block_max());
    let Some(block) = block.get(..length).filter(|block| !block.is_empty()) else { return Ok(()) };
    let written = to.write(block)?;
    moved.bytes += length;
    if !written {
        moved.dropped += length;
    }
    from.take(length);
    Ok(())
}

/// Reads foreign bytes to where they are written: one copy. `false`: that is not possible now.
fn copy_over<F, T>(from: &mut F, to: &mut T, count: usize, moved: &mut Moved) -> Result<bool, Fault>
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
