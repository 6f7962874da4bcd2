//! Costs of a frame that is redirected from the host, or that leaves by another interface.
//!
//! Frames go over a virtual cable whose two ends are in a name space made for it: what comes in at
//! one end of it is taken there by whole lines, and what comes in by the loopback interface leaves
//! by the other. The processor time that is needed more for each frame than for one that nobody
//! looks at is what that costs; to take a frame may cost less than nothing, since the host need not
//! look at it any more. Of a card these figures say nothing: only what a program and its sockets
//! do.

use super::figures::Calibration;
use super::live::{ip, spent, while_runs};
use pipeline::plan::FilterCost;
use std::cell::RefCell;
use std::net::UdpSocket;
use sys::net::RouteSocket;
use sys::packet::{PacketSender, Qdisc};

/// The ends of the cable.
const NEAR: &str = "calibrate0";
const FAR: &str = "calibrate1";
const ROUNDS: usize = 8;
/// Frames of a round, in calls of so many: fewer than the memory of a socket of AF_XDP holds.
const FRAMES: usize = 1_024;
const CALL: usize = 32;
/// Bytes of one.
const LENGTH: usize = 128;

/// Measures it, in a name space of its own.
pub(super) fn measure(calibration: &mut Calibration) {
    let told = |error: sys::Error| error.to_string();
    match sys::net::run_in_new(figures).map_err(told).and_then(|figures| figures) {
        Ok(figures) => figures.note(calibration),
        Err(why) => {
            for name in ["take", "xsk", "led", "redirect"] {
                calibration.missing.push((name.to_owned(), why.clone()));
            }
        }
    }
}

/// Costs of a frame, in ns beyond sending it to no receiver.
struct Figures {
    /// Taken and dropped by a program.
    dropped: f64,
    /// Taken by a socket, and dropped by a thread.
    socket: f64,
    /// Led to a socket by a program, and dropped by a thread.
    led: f64,
    /// Handed out by a program; sent out by it; by a thread; and dropped by a thread.
    tapped: f64,
    sent: f64,
    thread: f64,
    alone: f64,
}

fn figures() -> Result<Figures, String> {
    ip(&["link", "set", "lo", "up"])?;
    ip(&["link", "add", NEAR, "type", "veth", "peer", "name", FAR])?;
    ip(&["link", "set", NEAR, "up"])?;
    ip(&["link", "set", FAR, "up"])?;
    let why = |error: sys::Error| error.to_string();
    let io = |error: std::io::Error| error.to_string();
    let index = RouteSocket::open().and_then(|links| links.named(NEAR)).map_err(why)?.index;
    let sender = RefCell::new(PacketSender::open(index, Qdisc::Bypass).map_err(why)?);
    let frame = frame();
    let over = || {
        let calls = [frame.as_slice(); CALL];
        spent(FRAMES as u32, || {
            for _ in 0..FRAMES / CALL {
                let _ = sender.borrow_mut().send(&calls);
            }
        })
    };
    let target = UdpSocket::bind("127.0.0.1:0").map_err(io)?;
    let datagrams = UdpSocket::bind("127.0.0.1:0").map_err(io)?;
    datagrams.connect(target.local_addr().map_err(io)?).map_err(io)?;
    let around =
        || spent(FRAMES as u32, || (0..FRAMES).for_each(|_| drop(datagrams.send(&[0; LENGTH]))));
    let taking = [
        format!("rx {FAR} take @kernel | drop @kernel"),
        format!("rx {FAR} take ring=16MB @thread0 | discard @thread0"),
        format!("rx {FAR} take ring=16MB @kernel | dport @kernel |all discard @thread0"),
    ];
    let leaving = [
        "rx lo @kernel | discard @kernel".to_owned(),
        format!("rx lo @kernel | redirect {NEAR} @kernel"),
        format!("rx lo ring=8MB @thread0 | redirect {NEAR} @thread0"),
        "rx lo ring=8MB @thread0 | discard @thread0".to_owned(),
    ];
    let mut least = [f64::INFINITY; 8];
    for _ in 0..ROUNDS {
        least[7] = least[7].min(over());
        let taking = taking.iter().map(|line| while_runs(line, &over));
        let leaving = leaving.iter().map(|line| while_runs(line, &around));
        for (found, least) in taking.chain(leaving).zip(&mut least) {
            *least = least.min(found?);
        }
    }
    let [dropped, socket, led, tapped, sent, thread, alone, nobody] = least;
    let [dropped, socket, led] = [dropped, socket, led].map(|cost| cost - nobody);
    Ok(Figures { dropped, socket, led, tapped, sent, thread, alone })
}

impl Figures {
    fn note(&self, calibration: &mut Calibration) {
        let Self { dropped, socket, led, tapped, sent, thread, alone } = *self;
        let costs = &mut calibration.costs;
        let dport = costs.filters.iter().find(|cost| cost.kernel && cost.filter == "dport");
        let dport = dport.map_or(costs.twin, |cost| cost.block);
        // Of frames that are taken only what one way costs more than another matters.
        costs.take = dropped.max(0.0);
        costs.xsk = (socket - dropped.min(0.0) - 2.0 * costs.call).max(0.0);
        costs.led = (led - dropped - dport - costs.call).max(0.0);
        // A sink is called either way.
        let mut put = |kernel, block: f64| {
            let (filter, block) = ("redirect".to_owned(), block.max(0.0));
            costs.put(FilterCost { filter, kernel, block, byte: 0.0 });
        };
        put(true, sent - tapped);
        put(false, thread - alone);
    }
}

/// A datagram for somebody else.
fn frame() -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 2, 8, 0];
    frame.extend([0x45, 0, 0, 114, 0, 1, 0, 0, 64, 17, 0, 0, 198, 18, 0, 1, 198, 19, 0, 1]);
    frame.extend([0x9c, 0x40, 0, 53, 0, 94, 0, 0]);
    frame.resize(LENGTH, b'x');
    frame
}
