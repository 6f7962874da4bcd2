//! Child processes of a bench. A child is another instance of this program (`--reader KIND
//! PROCESSOR BYTES`). It receives descriptors and requests over a socket on its standard input.

use std::io::Stdin;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};

/// A child process of a bench, killed on drop.
pub(crate) struct BenchChild {
    process: Child,
    socket: OwnedFd,
}

impl BenchChild {
    /// Starts this program with the arguments `--reader` and `words`, and sends the descriptors to
    /// it.
    pub(crate) fn start(words: [&str; 3], descriptors: &[BorrowedFd<'_>]) -> Result<Self, String> {
        let (socket, theirs) = sys::descriptor::socket_pair().map_err(|why| why.to_string())?;
        let itself = std::env::current_exe().map_err(|why| why.to_string())?;
        let mut command = Command::new(itself);
        command.arg("--reader").args(words).stdin(Stdio::from(theirs));
        let process = command.spawn().map_err(|why| why.to_string())?;
        let child = Self { process, socket };
        child.send(b"these", descriptors)?;
        Ok(child)
    }

    /// Sends a message with descriptors to the child.
    pub(crate) fn send(
        &self,
        message: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), String> {
        sys::descriptor::send(&self.socket, message, descriptors).map_err(|why| why.to_string())
    }

    /// Sends the number of bytes that the child must receive next.
    pub(crate) fn announce_bytes(&self, bytes: u64) -> Result<(), String> {
        self.send(&bytes.to_le_bytes(), &[])
    }

    /// Blocks until the child has received the number of bytes that [`Self::announce_bytes`] has
    /// sent.
    pub(crate) fn wait_until_received(&self) -> Result<(), String> {
        let mut answer = [0; 256];
        match sys::descriptor::receive(&self.socket, &mut answer) {
            Ok((4, _)) => Ok(()),
            Ok((length, _)) if length > 0 => {
                Err(String::from_utf8_lossy(&answer[..length]).into_owned())
            }
            Ok(_) => Err("the reading process has ended".to_owned()),
            Err(why) => Err(why.to_string()),
        }
    }

    /// Returns the process id.
    pub(crate) fn process_id(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for BenchChild {
    fn drop(&mut self) {
        // The child may be waiting for a request, so it is killed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The connection of a child process to its parent: the standard input of the child.
pub(crate) struct ParentConnection(Stdin);

impl ParentConnection {
    /// Pins the child process to a processor, and receives the descriptors that its parent sends.
    pub(crate) fn receive_descriptors(processor: usize) -> Result<(Self, Vec<OwnedFd>), String> {
        sys::process::pin_to_processor(processor).map_err(|why| why.to_string())?;
        let socket = std::io::stdin();
        let received = sys::descriptor::receive(socket.as_fd(), &mut [0; 8]);
        Ok((Self(socket), received.map_err(|why| why.to_string())?.1))
    }

    /// Serves the parent's requests to receive a number of bytes, until the parent exits. For each
    /// request, calls `read` with the number of bytes that remain, until none remain. `read`
    /// receives some bytes, and returns the number that then remains.
    pub(crate) fn serve_requests(
        &self,
        mut read: impl FnMut(u64) -> Result<u64, String>,
    ) -> Result<(), String> {
        let mut request = [0; 8];
        loop {
            let got = sys::descriptor::receive(self.0.as_fd(), &mut request);
            if got.map_err(|why| why.to_string())?.0 == 0 {
                return Ok(());
            }
            let mut left = u64::from_le_bytes(request);
            while left > 0 {
                left = read(left)?;
            }
            sys::descriptor::send(self.0.as_fd(), b"done", &[]).map_err(|why| why.to_string())?;
        }
    }
}

/// Parses the arguments of a child: its kind, its processor, and a number of bytes.
pub(crate) fn parse_arguments(words: &[String]) -> Result<(&str, usize, usize), String> {
    let [kind, processor, bytes] = words else { return Err("three words".to_owned()) };
    let number = |word: &String| word.parse::<usize>().map_err(|why| why.to_string());
    Ok((kind, number(processor)?, number(bytes)?))
}
