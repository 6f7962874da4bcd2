//! The output of a tap: a pipe or, if the reader has agreed, a ring of shared memory. A ring comes
//! with a socket over which both sides wake each other; the tap ends when the socket is closed.

use endpoint::tap_ring::{TapRingFault, TapRingWriter};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

/// The output of a tap: the writing end of its pipe, or its ring with the accompanying socket.
#[derive(Debug)]
pub(super) struct TapPipe {
    /// The tap's pipe, or the socket that accompanies its ring.
    pipe: File,
    ring: Option<TapRingWriter>,
}

impl TapPipe {
    /// Creates an output, and makes the pipe nonblocking. With a ring, `pipe` is a SEQPACKET
    /// socket.
    pub(super) fn new(pipe: OwnedFd, ring: Option<TapRingWriter>) -> sys::Result<Self> {
        sys::fuse::set_nonblocking(&pipe)?;
        Ok(Self { pipe: File::from(pipe), ring })
    }

    /// Writes as many of the bytes as the pipe or ring accepts without blocking, and returns their
    /// number. Fails with `WouldBlock` if there is no room, and with `BrokenPipe` if there is no
    /// reader.
    pub(super) fn put(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(ring) = &mut self.ring else { return self.pipe.write(bytes) };
        let length = ring.put(bytes).map_err(|fault| match fault {
            // A reader that reports an impossible position is treated as disconnected.
            TapRingFault::Position => io::ErrorKind::BrokenPipe,
            TapRingFault::NoMemory => io::ErrorKind::OutOfMemory,
        })?;
        if length == 0 {
            let kind = match self.is_closed() {
                true => io::ErrorKind::BrokenPipe,
                false => io::ErrorKind::WouldBlock,
            };
            return Err(kind.into());
        }
        if ring.take_reader_request() {
            match sys::local_socket::send_nonblocking(&self.pipe, &[0], &[]) {
                // A full socket already contains a message that wakes the reader.
                Ok(_) => {}
                Err(error) => return Err(io::Error::from_raw_os_error(error.errno)),
            }
        }
        Ok(length)
    }

    /// Waits for at most `limit` until the pipe or ring has room, or until its reader has left.
    /// Returns true if there is room.
    pub(super) fn wait_until_writable(&self, limit: Duration) -> bool {
        let Some(ring) = &self.ring else {
            return sys::poll::wait_until_writable(&self.pipe, limit);
        };
        if !ring.announce_wait() {
            sys::poll::wait_until_readable(&[self.pipe.as_fd()], Some(limit));
            while let Ok(Some((1.., _))) = sys::descriptor::try_receive(&self.pipe, &mut [0; 8]) {}
        }
        !ring.is_full()
    }

    /// Frees the memory of the ring, if there is a ring and its reader has taken all bytes.
    pub(super) fn free_if_empty(&mut self) {
        if let Some(ring) = &mut self.ring {
            ring.free_if_empty();
        }
    }

    /// Returns true if the reader has closed the pipe or the socket.
    fn is_closed(&self) -> bool {
        let pipe = [self.pipe.as_fd()];
        sys::poll::wait_until_readable_or_hung_up(&[], &pipe, Some(Duration::ZERO)).1 == [true]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use endpoint::tap_ring::{TAP_RING_SIZE, TapRingReader};
    use sys::memory::Memfd;

    fn create_ring_output() -> (TapPipe, TapRingReader, OwnedFd) {
        let ring = TapRingWriter::new().unwrap();
        let file = Memfd::from_fd(ring.duplicate_descriptor().unwrap()).unwrap();
        let reader = TapRingReader::open(&file).unwrap().unwrap();
        let (near, far) = sys::descriptor::socket_pair().unwrap();
        (TapPipe::new(far, Some(ring)).unwrap(), reader, near)
    }

    #[test]
    fn b2_ring_wakes_only_a_waiting_reader() {
        let (mut output, reader, socket) = create_ring_output();
        let received = || sys::descriptor::try_receive(&socket, &mut [0; 8]).unwrap();
        assert_eq!(output.put(b"fi").unwrap(), 2);
        assert_eq!(received().unwrap().0, 1, "the first bytes");
        assert_eq!(output.put(b"rst").unwrap(), 3);
        assert!(received().is_none());
        reader.announce_wait();
        assert_eq!(output.put(b"second").unwrap(), 6);
        assert_eq!((received().unwrap().0, reader.available()), (1, Ok(11)));
    }

    #[test]
    fn b2_full_ring_without_reader_is_a_broken_pipe() {
        let (mut output, _reader, socket) = create_ring_output();
        let bytes = vec![7; TAP_RING_SIZE];
        assert_eq!(output.put(&bytes).unwrap(), TAP_RING_SIZE);
        assert_eq!(output.put(b"more").unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(!output.wait_until_writable(Duration::from_millis(1)));
        drop(socket);
        assert!(!output.wait_until_writable(testkit::wait::WAIT_TIMEOUT));
        assert_eq!(output.put(b"more").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn b2_writer_waits_until_the_reader_has_taken_enough() {
        const TOTAL_BYTES: usize = 5 * TAP_RING_SIZE;
        let (mut output, mut reader, socket) = create_ring_output();
        let writing = std::thread::spawn(move || {
            let (bytes, mut done) = (vec![1; 1 << 20], 0);
            while done < TOTAL_BYTES {
                match output.put(&bytes[..bytes.len().min(TOTAL_BYTES - done)]) {
                    Ok(length) => done += length,
                    Err(error) => {
                        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                        assert!(output.wait_until_writable(testkit::wait::WAIT_TIMEOUT));
                    }
                }
            }
        });
        let mut left = TOTAL_BYTES;
        while left > 0 {
            let available = reader.available().unwrap();
            if reader.release_bytes(available) {
                sys::local_socket::send_nonblocking(&socket, &[0], &[]).unwrap();
            }
            left -= available;
            if available == 0 {
                reader.announce_wait();
                if reader.available() == Ok(0) {
                    let limit = Some(testkit::wait::WAIT_TIMEOUT);
                    let woken =
                        sys::poll::wait_until_readable_despite_signals(&[socket.as_fd()], limit);
                    assert_eq!(woken, [true], "lost wake-up");
                }
                while let Ok(Some((1.., _))) = sys::descriptor::try_receive(&socket, &mut [0; 8]) {}
            }
        }
        writing.join().unwrap();
    }
}
