//! Plain AF_XDP: a program redirects each frame of a queue into the memory of a process, which
//! selects UDP frames to port 53. All frames bypass the host's stack, including frames to other
//! ports.

use crate::flood::WANTED_PORT;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use sys::bpf::XdpMode;
use sys::descriptor;
use sys::net::RouteSocket;
use sys::xdp::{CopyMode, SocketSettings, Umem, UmemSizes, XdpDescriptor, XdpRedirect, XdpSocket};
use testkit::net::{Namespace, SERVER_DEVICE};

/// Number of frames in the shared memory, and number of entries in each ring.
const FRAME_COUNT: u32 = 4096;
/// Maximum number of frames that one call receives.
const BATCH_FRAMES: usize = 64;
/// Number of empty polls before the reader sleeps. A wakeup costs the sender more than these polls
/// cost the reader.
const POLLS_BEFORE_SLEEP: u32 = 1000;
/// Maximum time for which the reader sleeps before it polls again.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The bench's handle to the process that receives frames by AF_XDP and selects the wanted ones.
#[derive(Debug)]
pub(super) struct SelectingProcess {
    pub(super) child: Child,
    socket: OwnedFd,
}

impl SelectingProcess {
    /// Starts the selecting process on the second processor, and waits until it observes frames.
    pub(super) fn start(space: &Namespace) -> Result<Self, String> {
        let (socket, theirs) = descriptor::socket_pair().map_err(|why| why.to_string())?;
        let itself = std::env::current_exe().map_err(|why| why.to_string())?;
        let mut command = Command::new(itself);
        command.args(["--reader", "xdp", "1", "0"]).stdin(Stdio::from(theirs));
        let child =
            space.run_in_network_namespace(|| command.spawn().map_err(|why| why.to_string()))?;
        let picker = Self { child, socket };
        picker.receive_reply()?;
        Ok(picker)
    }

    /// Returns the number of wanted frames that the process has counted.
    pub(super) fn frame_count(&self) -> Result<u64, String> {
        let sent = descriptor::send(&self.socket, b"tell", &[]);
        sent.map_err(|why| why.to_string())?;
        self.receive_reply()
    }

    fn receive_reply(&self) -> Result<u64, String> {
        let mut message = [0; 256];
        let received = descriptor::receive(&self.socket, &mut message);
        match received.map_err(|why| why.to_string())? {
            (8, _) => Ok(u64::from_ne_bytes(std::array::from_fn(|at| message[at]))),
            (0, _) => Err("the process has ended".to_owned()),
            (length, _) => Err(String::from_utf8_lossy(&message[..length]).into_owned()),
        }
    }
}

impl Drop for SelectingProcess {
    fn drop(&mut self) {
        // The process may be waiting, so it is killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the selecting process, which the bench starts with the arguments
/// `--reader xdp PROCESSOR 0`.
pub(crate) fn serve(arguments: &[String]) -> Result<(), String> {
    let processor = arguments.get(1).and_then(|word| word.parse().ok()).ok_or("a processor")?;
    // On a machine with one processor, the process shares it with the sender.
    let _ = sys::process::pin_to_processor(processor);
    let orders = std::io::stdin();
    let outcome = match XdpReceiver::new() {
        Ok(mut taker) => taker.serve_requests(&orders),
        Err(why) => Err(why),
    };
    match outcome {
        Ok(()) => Ok(()),
        Err(why) => descriptor::send(&orders, why.as_bytes(), &[]).map_err(|why| why.to_string()),
    }
}

/// A receiver of frames through AF_XDP, which counts the wanted frames among them.
struct XdpReceiver {
    socket: XdpSocket,
    _redirect: (XdpRedirect, sys::bpf::Link),
    counted: u64,
    frame: Vec<u8>,
}

impl XdpReceiver {
    fn new() -> Result<Self, String> {
        let text = |why: sys::Error| why.to_string();
        let index = RouteSocket::open()
            .map_err(text)?
            .interface_by_name(SERVER_DEVICE)
            .map_err(text)?
            .index;
        let shape = UmemSizes { frame: 2048, frames: FRAME_COUNT, headroom: 0 };
        let umem = Arc::new(Umem::create("bench_umem", shape).map_err(text)?);
        let settings =
            SocketSettings { mode: CopyMode::Copy, ..SocketSettings::new(index, 0, FRAME_COUNT) };
        let mut socket = XdpSocket::open(&umem, settings).map_err(text)?;
        let frames: Vec<u64> = (0..FRAME_COUNT).map(|frame| umem.address(frame)).collect();
        socket.fill.as_mut().ok_or("no fill ring")?.lend(&frames).map_err(text)?;
        let redirect =
            XdpRedirect::load("bench_redirect", 1, false).map_err(|why| why.to_string())?;
        redirect.redirect_to_socket(0, &socket).map_err(text)?;
        let link = redirect.attach(index, XdpMode::Native).map_err(text)?;
        Ok(Self { socket, _redirect: (redirect, link), counted: 0, frame: vec![0; 64] })
    }

    fn serve_requests(&mut self, orders: &std::io::Stdin) -> Result<(), String> {
        let report = |number: u64| {
            let message = number.to_ne_bytes();
            descriptor::send(orders, &message, &[]).map_err(|why| why.to_string())
        };
        report(0)?;
        let mut taken = Vec::with_capacity(BATCH_FRAMES);
        let mut back = Vec::with_capacity(BATCH_FRAMES);
        let mut vain = 0;
        loop {
            vain = if self.receive_frames(&mut taken, &mut back)? > 0 { 0 } else { vain + 1 };
            if vain < POLLS_BEFORE_SLEEP {
                continue;
            }
            let waits = [self.socket.as_fd(), orders.as_fd()];
            let ready = sys::poll::wait_until_readable(&waits, Some(POLL_INTERVAL));
            if ready.first() != Some(&true) && ready.get(1) == Some(&true) {
                let received = descriptor::receive(orders, &mut [0; 8]);
                if received.map_err(|why| why.to_string())?.0 == 0 {
                    return Ok(());
                }
                report(self.counted)?;
            }
        }
    }

    /// Receives the available frames, inspects them, and returns them to the fill ring. Returns the
    /// number of frames.
    fn receive_frames(
        &mut self,
        taken: &mut Vec<XdpDescriptor>,
        back: &mut Vec<u64>,
    ) -> Result<usize, String> {
        let text = |why: sys::Error| why.to_string();
        taken.clear();
        back.clear();
        let rx = self.socket.rx.as_mut().ok_or("no receive ring")?;
        let found = rx.take(taken, BATCH_FRAMES).map_err(text)?;
        for XdpDescriptor { address, length, .. } in taken.iter() {
            let length = (*length as usize).min(self.frame.len());
            let place = usize::try_from(*address).unwrap_or(usize::MAX);
            let frame = &mut self.frame[..length];
            if self.socket.umem().memory().copy(place, frame) {
                self.counted += u64::from(is_wanted(frame));
            }
            back.push(*address);
        }
        let fill = self.socket.fill.as_mut().ok_or("no fill ring")?;
        fill.lend(back).map_err(text)?;
        if fill.needs_wakeup() {
            self.socket.wake_rx().map_err(text)?;
        }
        Ok(found)
    }
}

/// Returns true for UDP over IPv4 without options to the wanted port; the flood has no other frames
/// to that port.
fn is_wanted(frame: &[u8]) -> bool {
    let is_udp = frame.get(12..15) == Some(&[8, 0, 0x45]) && frame.get(23) == Some(&17);
    is_udp && frame.get(36..38) == Some(&WANTED_PORT.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wanted_frames_of_the_flood_are_recognized() {
        assert!(is_wanted(&crate::flood::udp_frame(WANTED_PORT, 64)));
        assert!(!is_wanted(&crate::flood::udp_frame(WANTED_PORT + 1, 64)));
        assert!(!is_wanted(&[0; 20]));
    }
}
