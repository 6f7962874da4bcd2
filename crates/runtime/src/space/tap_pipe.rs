//! The pipe of a tap. If the reader has agreed, long records are lent to it: the pipe refers to
//! their pages, and only the reader copies them. The records stay unchanged until the pipe no
//! longer contains them; the reader copies bytes before it removes them from the pipe.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

/// Minimum length in bytes at which records are lent. Below it, copying costs less.
const LENT_MIN: usize = 16 << 10;

/// The writing end of the pipe, and the records to which the pipe refers.
#[derive(Debug)]
pub(super) struct TapPipe {
    pipe: File,
    /// True if the reader has agreed to the lending of records.
    lends: bool,
    /// Number of bytes put into the pipe so far.
    put_bytes: u64,
    /// True if at least a part of the current records was lent.
    has_lent: bool,
    lent: VecDeque<LentRecords>,
}

/// Records to which the pipe refers.
#[derive(Debug)]
struct LentRecords {
    bytes: Vec<u8>,
    /// Number of bytes put into the pipe up to the end of these records.
    end: u64,
    /// Share of these records in the tap's backlog, in bytes.
    backlog: usize,
}

impl TapPipe {
    /// Makes the pipe nonblocking.
    pub(super) fn new(pipe: OwnedFd, lends: bool) -> sys::Result<Self> {
        sys::fuse::set_nonblocking(&pipe)?;
        let lent = VecDeque::new();
        Ok(Self { pipe: File::from(pipe), lends, put_bytes: 0, has_lent: false, lent })
    }

    /// Puts bytes into the pipe without blocking, and returns their number. The bytes must stay
    /// unchanged until [`keep`](Self::keep) is called.
    pub(super) fn put(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.lends && bytes.len() >= LENT_MIN {
            match sys::pipe::lend(&self.pipe, bytes) {
                Ok(length) => {
                    self.has_lent = true;
                    self.put_bytes += length as u64;
                    return Ok(length);
                }
                Err(error) => {
                    let error = io::Error::from_raw_os_error(error.errno);
                    match error.kind() {
                        io::ErrorKind::WouldBlock
                        | io::ErrorKind::Interrupted
                        | io::ErrorKind::BrokenPipe => return Err(error),
                        // The kernel does not permit lending, so the bytes are copied.
                        _ => self.lends = false,
                    }
                }
            }
        }
        let length = self.pipe.write(bytes)?;
        self.put_bytes += length as u64;
        Ok(length)
    }

    /// Takes ownership of the last records, and keeps them as long as the pipe refers to them.
    /// Returns the share of the backlog that is now free, as [`release`](Self::release) does.
    pub(super) fn keep(&mut self, bytes: Vec<u8>, backlog: usize) -> usize {
        if !std::mem::take(&mut self.has_lent) {
            return backlog + self.release();
        }
        self.lent.push_back(LentRecords { bytes, end: self.put_bytes, backlog });
        self.release()
    }

    /// Drops the records that the reader has taken. Returns the share of the backlog that is now
    /// free.
    pub(super) fn release(&mut self) -> usize {
        let mut released = 0;
        if self.lent.is_empty() {
            return released;
        }
        let left = sys::pipe::readable_length(&self.pipe).map_or(u64::MAX, |left| left as u64);
        let is_taken = |lent: &LentRecords| lent.end.saturating_add(left) <= self.put_bytes;
        while self.lent.front().is_some_and(is_taken) {
            released += self.lent.pop_front().map_or(0, |lent| lent.backlog);
        }
        released
    }

    /// Waits until the reader has taken all lent records or has closed the pipe. Stops waiting when
    /// `is_over` returns true; the memory of the remaining records is then leaked, because the
    /// reader may still read it.
    pub(super) fn wait_until_taken(&mut self, is_over: impl Fn() -> bool) {
        loop {
            self.release();
            if self.lent.is_empty() || self.is_closed(INTERVAL) {
                return self.lent.clear();
            }
            if is_over() {
                return self.lent.drain(..).for_each(|lent| std::mem::forget(lent.bytes));
            }
        }
    }

    /// Waits for at most `limit` until the pipe accepts bytes; returns true if it does.
    pub(super) fn wait_until_writable(&self, limit: Duration) -> bool {
        sys::poll::writable(&self.pipe, limit)
    }

    /// Waits for at most `limit` until the reader has closed the pipe; returns true if it has.
    fn is_closed(&self, limit: Duration) -> bool {
        let pipe = [self.pipe.as_fd()];
        sys::poll::readable_or_gone(&[], &pipe, Some(limit)).1 == [true]
    }
}

/// Interval at which the end of a tap checks whether its reader has taken all records.
const INTERVAL: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[test]
    fn b2_lent_records_stay_until_they_are_taken() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut pipe = TapPipe::new(writer.into(), true).unwrap();
        let records: Vec<u8> = (0..LENT_MIN * 2).map(|at| at as u8).collect();
        assert_eq!(pipe.put(&records).unwrap(), records.len());
        assert_eq!(pipe.keep(records.clone(), 7), 0, "the pipe refers to them");
        // Short records are copied.
        assert_eq!(pipe.put(b"short").unwrap(), 5);
        assert_eq!(pipe.keep(b"short".to_vec(), 5), 5);
        let mut taken = vec![0; records.len() - 1];
        reader.read_exact(&mut taken).unwrap();
        assert_eq!((taken.as_slice(), pipe.release()), (&records[..records.len() - 1], 0));
        let mut rest = [0; 6];
        reader.read_exact(&mut rest).unwrap();
        assert_eq!((rest[0], &rest[1..]), (records[records.len() - 1], &b"short"[..]));
        assert_eq!(pipe.release(), 7);
    }

    #[test]
    fn b2_end_waits_for_the_reader_of_lent_records() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut pipe = TapPipe::new(writer.into(), true).unwrap();
        let records = vec![7; LENT_MIN];
        pipe.put(&records).unwrap();
        pipe.keep(records, 1);
        let reading = std::thread::spawn(move || {
            let mut bytes = vec![0; LENT_MIN];
            reader.read_exact(&mut bytes).map(|()| bytes)
        });
        pipe.wait_until_taken(|| false);
        assert!(pipe.lent.is_empty());
        assert_eq!(reading.join().unwrap().unwrap(), vec![7; LENT_MIN]);
        // A reader that has closed its end takes nothing.
        let (reader, writer) = io::pipe().unwrap();
        let mut pipe = TapPipe::new(writer.into(), true).unwrap();
        let records = vec![7; LENT_MIN];
        pipe.put(&records).unwrap();
        pipe.keep(records, 1);
        drop(reader);
        pipe.wait_until_taken(|| false);
        assert!(pipe.lent.is_empty());
    }
}
