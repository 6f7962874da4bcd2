//! Copies the frames that a tap sends in the format of a capture to a file.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};
use sys::eventfd::EventFd;

/// Length of a capture file's header, in bytes.
const FILE_HEADER_LENGTH: usize = 24;
/// Length of the header of a frame in a capture file, in bytes.
const FRAME_HEADER_LENGTH: usize = 16;
/// Offset of the frame length in the header of a frame in a capture file, in bytes.
const FRAME_LENGTH_OFFSET: usize = 8;
/// Maximum length of a frame in bytes.
const FRAME_LENGTH_MAX: usize = 262_144;
/// Number of bytes that are read at a time.
const READ_CHUNK_SIZE: usize = 64 << 10;

/// A capture file that is being written. The file contains only complete frames at any time.
#[derive(Debug)]
pub(crate) struct FrameFile {
    file: File,
    /// Bytes of an incomplete frame, or of the incomplete header of the file.
    partial: Vec<u8>,
    pub(crate) progress: CaptureProgress,
}

/// The number of frames in a capture file, and its length in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct CaptureProgress {
    pub(crate) frames: u64,
    pub(crate) bytes: u64,
}

/// The limits at which a capture to a file ends: time, number of frames, and file length in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CaptureLimits {
    pub(crate) time: Duration,
    pub(crate) frames: u64,
    pub(crate) bytes: u64,
}

/// Cause of the end of a capture to a file.
#[derive(Debug)]
pub(crate) enum CaptureEnd {
    /// The capture was stopped.
    Stopped,
    /// The tap has ended.
    Closed,
    /// A limit of the capture was reached.
    Limit,
    /// A frame was malformed, or could not be read or written.
    Failed(io::Error),
}

impl FrameFile {
    /// Creates a writer for `file`, which must be empty.
    pub(crate) fn new(file: File) -> Self {
        Self { file, partial: Vec::new(), progress: CaptureProgress::default() }
    }

    /// Copies frames from the pipe of a tap, and calls `note` after each chunk. Blocks until the
    /// tap ends, `stop` is notified, a limit is reached, or an error occurs.
    pub(crate) fn copy_frames(
        &mut self,
        pipe: &mut File,
        stop: &EventFd,
        limits: CaptureLimits,
        mut note: impl FnMut(CaptureProgress),
    ) -> CaptureEnd {
        let deadline = Instant::now() + limits.time;
        let mut bytes = vec![0; READ_CHUNK_SIZE];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let is_full =
                self.progress.frames >= limits.frames || self.progress.bytes >= limits.bytes;
            if left.is_zero() || is_full {
                return CaptureEnd::Limit;
            }
            let ready = sys::poll::wait_until_readable(&[pipe.as_fd(), stop.as_fd()], Some(left));
            match ready.as_slice() {
                [_, true] => return CaptureEnd::Stopped,
                [true, _] => {}
                _ => continue,
            }
            let taken = pipe.read(&mut bytes).and_then(|length| {
                self.write(bytes.get(..length).unwrap_or_default()).map(|()| length)
            });
            match taken {
                Ok(0) => return CaptureEnd::Closed,
                Ok(_) => note(self.progress),
                Err(error) => return CaptureEnd::Failed(error),
            }
        }
    }

    /// Writes to the file all frames that `bytes`, the next bytes of the pipe, complete. Buffers
    /// the beginning of an incomplete frame.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.partial.extend_from_slice(bytes);
        let mut whole = 0;
        while let Some(length) = self.next_frame_length(whole)? {
            if self.partial.len() < whole + length {
                break;
            }
            self.progress.frames += u64::from(self.progress.bytes > 0);
            self.progress.bytes += length as u64;
            whole += length;
        }
        self.file.write_all(self.partial.get(..whole).unwrap_or_default())?;
        self.partial.drain(..whole);
        Ok(())
    }

    /// Returns the length in bytes of the file header, or of the frame with its header, at the
    /// offset `at` of `partial`. Returns `None` if the frame's header is incomplete. Fails if the
    /// frame is longer than [`FRAME_LENGTH_MAX`].
    fn next_frame_length(&self, at: usize) -> io::Result<Option<usize>> {
        if self.progress.bytes == 0 {
            return Ok(Some(FILE_HEADER_LENGTH));
        }
        let length =
            self.partial.get(at + FRAME_LENGTH_OFFSET..at + FRAME_LENGTH_OFFSET + size_of::<u32>());
        let Some(length) = length.and_then(|bytes| bytes.try_into().ok()) else { return Ok(None) };
        // The tap runs on this machine, so its capture is in native byte order.
        match u32::from_ne_bytes(length) as usize {
            length if length <= FRAME_LENGTH_MAX => Ok(Some(FRAME_HEADER_LENGTH + length)),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the tap sends no frames")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(length: u32) -> Vec<u8> {
        let mut bytes = vec![0; FRAME_HEADER_LENGTH + length as usize];
        bytes[FRAME_LENGTH_OFFSET..FRAME_LENGTH_OFFSET + 4].copy_from_slice(&length.to_ne_bytes());
        bytes
    }

    #[test]
    fn capture_file_holds_whole_frames_at_any_time() {
        let path = std::env::temp_dir().join(format!("streamline-frames-{}", std::process::id()));
        let mut file = FrameFile::new(File::create(&path).unwrap());
        let all = [vec![7; FILE_HEADER_LENGTH], frame(5), frame(0), frame(300)].concat();
        let lengths =
            [FILE_HEADER_LENGTH, FILE_HEADER_LENGTH + 21, FILE_HEADER_LENGTH + 37, all.len()];
        for (at, byte) in all.iter().enumerate() {
            file.write(&[*byte]).unwrap();
            let whole = lengths.iter().filter(|length| **length <= at + 1).max().copied();
            assert_eq!(std::fs::read(&path).unwrap(), all[..whole.unwrap_or(0)]);
        }
        assert_eq!(file.progress, CaptureProgress { frames: 3, bytes: all.len() as u64 });
        assert!(file.write(&frame(1 << 20)).is_err());
        std::fs::remove_file(&path).unwrap();
    }
}
