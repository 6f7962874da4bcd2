//! A flood: frames sent flat out over a cable between two name spaces, from the first processor.
//!
//! A virtual cable is received in the time of who sends: what somebody who observes costs the
//! kernel shows in the processor time that sending takes. That is what is told, not the time that
//! passes: others on the machine only add to the latter. [SL fig. 15]
//!
//! Processor time too is no constant: it follows the clock of the processor and what others leave
//! in its caches. So there are two cables alike ([`Floods`]), over which frames go in turn: to
//! whoever observes, and to nobody. What the former takes longer is what observing costs.

use crate::harness::median;
use std::net::UdpSocket;
use std::ops::Range;
use std::sync::Arc;
use sys::clock;
use sys::net::RouteSocket;
use sys::packet::{PacketSender, Qdisc, SendStop};
use testkit::Frame;
use testkit::net::{CLIENT, CLIENT_DEVICE, Cable, Pair, SERVER, SERVER_DEVICE};
use testkit::packet::{SOURCE, TARGET};

/// The number of frames sent with one call.
const BATCH: usize = 64;
/// The frames of a bunch: some ms, so that each rings several doorbells.
pub(crate) const BUNCH: usize = 2_500;
/// The target port of what is looked for, and that of everything else.
pub(crate) const WANTED: u16 = 53;
pub(crate) const OTHER: u16 = 4053;

/// Frames and the cable that they go over.
pub(crate) struct Flood {
    pub(crate) pair: Arc<Pair>,
    sender: PacketSender,
    frames: Vec<Vec<u8>>,
    _full: Option<UdpSocket>,
}

/// The frames sent over one of two cables before the other is used: a tenth of a second at most,
/// and more than any ring here holds, so that a reader that is too slow loses some.
const TURN: usize = 25_000;

/// Two cables alike.
pub(crate) struct Floods {
    /// To this one comes whoever observes.
    pub(crate) seen: Flood,
    /// To this one comes nobody.
    alone: Flood,
}

/// Measures the processor time of sending as many frames over each of two cables, in ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Took {
    pub(crate) seen: u64,
    pub(crate) alone: u64,
}

/// The treatment of frames by the host at the end of the cable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Host {
    /// Frames for the host: they go through all of its stack, into a full socket.
    Receives,
    /// Frames for another host: its stack drops them at once.
    Ignores,
}

impl Floods {
    /// See [`Flood::new`].
    pub(crate) fn new(length: usize, one_in: usize, host: Host) -> Result<Self, String> {
        let flood = || Flood::new(length, one_in, host);
        Ok(Self { seen: flood()?, alone: flood()? })
    }

    /// See [`Flood::to`].
    pub(crate) fn to(ports: &[u16], length: usize, host: Host) -> Result<Self, String> {
        let flood = || Flood::to(ports, length, host);
        Ok(Self { seen: flood()?, alone: flood()? })
    }

    /// Sends so many frames over each, flat out, some over one and then some over the other.
    pub(crate) fn send(&mut self, count: usize) -> Result<Took, String> {
        let mut took = Took::default();
        let mut left = count;
        while left > 0 {
            let turn = left.min(TURN);
            took.alone += self.alone.send(turn)?;
            took.seen += self.seen.send(turn)?;
            left -= turn;
        }
        Ok(took)
    }
}

impl Flood {
    /// A cable of its own, over which nobody else sends. The frames are of so many bytes, with UDP
    /// to [`WANTED`] in one of `one_in`.
    pub(crate) fn new(length: usize, one_in: usize, host: Host) -> Result<Self, String> {
        let others = std::iter::repeat_n(OTHER, one_in.saturating_sub(1));
        let ports: Vec<u16> = std::iter::once(WANTED).chain(others).collect();
        Self::to(&ports, length, host)
    }

    /// The same, with UDP to each of these ports in turn.
    pub(crate) fn to(ports: &[u16], length: usize, host: Host) -> Result<Self, String> {
        let cable = Cable { addresses: false, ..Cable::default() };
        let pair = Pair::new(cable).ok_or("needs root and `ip`: it makes two name spaces")?;
        let (full, address) = match host {
            Host::Receives => {
                pair.server.ip(&format!("address add {SERVER}/24 dev {SERVER_DEVICE}"));
                let socket = pair.server.enter(|| UdpSocket::bind((SERVER, WANTED)));
                (Some(socket.map_err(|why| why.to_string())?), hardware(&pair)?)
            }
            Host::Ignores => (None, TARGET),
        };
        let sender = pair.client.enter(|| {
            let index = index(CLIENT_DEVICE)?;
            PacketSender::open(index, Qdisc::Bypass).map_err(|why| why.to_string())
        })?;
        // As many as calls and all ports fit into.
        let ports = ports.iter().cycle().take(BATCH * ports.len());
        let frames = ports.map(|port| udp_to(address, *port, length)).collect();
        Ok(Self { pair: Arc::new(pair), sender, frames, _full: full })
    }

    /// Sends so many frames, flat out; answers what processor time that took, in ns. The calling
    /// thread stays on the first processor.
    pub(crate) fn send(&mut self, count: usize) -> Result<u64, String> {
        // Where there is only one, it is shared.
        let _ = sys::process::pin_to(0);
        let begin = clock::thread();
        let mut left = count;
        while left > 0 {
            let bunch = left.min(self.frames.len());
            self.send_part(0..bunch)?;
            left -= bunch;
        }
        Ok(clock::thread() - begin)
    }

    /// Sends at least so many frames, flat out, in bunches; answers the processor time of a frame
    /// in the bunch in the middle, in ns: what interrupts this thread is in few of them.
    pub(crate) fn steady(&mut self, count: usize) -> Result<f64, String> {
        let mut bunches = Vec::new();
        for _ in 0..count.div_ceil(BUNCH) {
            bunches.push(self.send(BUNCH)? as f64 / BUNCH as f64);
        }
        Ok(median(&bunches))
    }

    fn send_part(&mut self, part: Range<usize>) -> Result<(), String> {
        for frames in self.frames[part].chunks(BATCH) {
            let mut batch = [&[][..]; BATCH];
            for (place, frame) in batch.iter_mut().zip(frames) {
                *place = frame;
            }
            let mut rest = &batch[..frames.len()];
            while !rest.is_empty() {
                let sent = self.sender.send(rest);
                rest = &rest[sent.frames..];
                if let Some(SendStop::Refused(errno)) = sent.stopped {
                    return Err(format!("the cable takes no frames: error {errno}"));
                }
            }
        }
        Ok(())
    }

    /// The number of the device at which the flood comes in, in its name space.
    pub(crate) fn device(&self) -> Result<u32, String> {
        self.pair.server.enter(|| index(SERVER_DEVICE))
    }
}

/// A frame of so many bytes.
pub(crate) fn udp(port: u16, length: usize) -> Vec<u8> {
    udp_to(TARGET, port, length)
}

fn udp_to(address: [u8; 6], port: u16, length: usize) -> Vec<u8> {
    const HEADERS: usize = 14 + 20 + 8;
    let payload = vec![0x5a; length.saturating_sub(HEADERS)];
    Frame::ethernet_between(SOURCE, address).ipv4(CLIENT, SERVER).udp(4000, port, &payload)
}

/// The address of the device at which the flood comes in.
fn hardware(pair: &Pair) -> Result<[u8; 6], String> {
    let told = pair.server.ip(&format!("-o link show dev {SERVER_DEVICE}"));
    let mut words = told.split_whitespace().skip_while(|word| *word != "link/ether");
    let bytes = words.nth(1).unwrap_or("").split(':').map(|byte| u8::from_str_radix(byte, 16).ok());
    let bytes: Option<Vec<u8>> = bytes.collect();
    let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or_else(|| format!("{SERVER_DEVICE} has no address: {told}"))
}

fn index(device: &str) -> Result<u32, String> {
    let links = RouteSocket::open().map_err(|why| why.to_string())?;
    Ok(links.named(device).map_err(|why| why.to_string())?.index)
}
