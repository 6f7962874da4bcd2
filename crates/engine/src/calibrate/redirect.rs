//! Costs of redirecting a frame to a socket, or forwarding it to another interface.
//!
//! The measurement creates a network namespace with a veth pair. Some requests receive the frames
//! that arrive at one end of the pair; others forward frames from the loopback interface to the
//! pair. A cost is the additional processor time per frame: of a received frame, compared with a
//! frame that nothing receives; of a forwarded frame, compared with a frame that is discarded at
//! the same place. The cost of a received frame may be negative, because the host's network stack
//! does not process the frame. The figures cover only programs and sockets, not the work of a
//! network card.

use super::calibration::{Calibration, Result};
use super::test_traffic::{
    FRAME_BYTES, datagram_frame, measure_processor_ns, measure_while_running,
    open_datagram_sockets, run_ip_command,
};
use pipeline::plan::FilterCost;
use std::cell::RefCell;
use sys::net::RouteSocket;
use sys::packet::{PacketSender, QdiscMode};

/// Name of the end of the veth pair through which frames are sent.
const SENDING_INTERFACE: &str = "calibrate0";
/// Name of the other end of the veth pair, at which the frames arrive and requests receive them.
const RECEIVING_INTERFACE: &str = "calibrate1";
/// Number of rounds of the whole measurement. The result is the minimum over all rounds.
const ROUNDS: usize = 8;
/// Number of frames sent per measurement, fewer than an AF_XDP socket can hold.
const FRAMES_PER_MEASUREMENT: usize = 1_024;
/// Number of frames sent per system call.
const FRAMES_PER_CALL: usize = 32;

/// Measures the costs of redirected and forwarded frames in a new network namespace, and records
/// them, or the reason why they are missing.
pub(super) fn measure(calibration: &mut Calibration) {
    match sys::net::run_in_new_namespace(measure_redirect_costs)
        .map_err(Into::into)
        .and_then(|figures| figures)
    {
        Ok(figures) => figures.record_in(calibration),
        Err(why) => calibration.record_missing_figures(&["take", "xsk", "led", "redirect"], &*why),
    }
}

/// Processor time per frame, in ns, for several requests.
///
/// Three requests take frames from the host at [`RECEIVING_INTERFACE`]: those of `dropped`,
/// `socket` and `redirected`. Their times exclude the time to send a frame that nothing receives.
/// The other requests observe frames on `lo`; their times include the time to send the frame.
struct RedirectCosts {
    /// Processor time per frame when an XDP program drops the frame.
    dropped: f64,
    /// Processor time per frame when an XDP program passes the frame to a socket, from which a
    /// thread receives and discards it.
    socket: f64,
    /// Processor time per frame when the XDP program runs the filter `dport` and passes the frame
    /// to a socket, from which a thread receives and discards it.
    redirected: f64,
    /// Processor time per frame when an eBPF program only counts the frame, as discarded.
    discarded: f64,
    /// Processor time per frame when an eBPF program sends a copy through [`SENDING_INTERFACE`].
    sent: f64,
    /// Processor time per frame when a thread receives the frame and sends it through
    /// [`SENDING_INTERFACE`].
    thread: f64,
    /// Processor time per frame when a thread receives the frame and discards it.
    alone: f64,
}

fn measure_redirect_costs() -> Result<RedirectCosts> {
    run_ip_command(&[
        "link",
        "add",
        SENDING_INTERFACE,
        "type",
        "veth",
        "peer",
        "name",
        RECEIVING_INTERFACE,
    ])?;
    run_ip_command(&["link", "set", SENDING_INTERFACE, "up"])?;
    run_ip_command(&["link", "set", RECEIVING_INTERFACE, "up"])?;
    let index =
        RouteSocket::open().and_then(|links| links.interface_by_name(SENDING_INTERFACE))?.index;
    let sender = RefCell::new(PacketSender::open(index, QdiscMode::Bypass)?);
    // This address belongs to no host, so the kernel's stack drops the frame.
    let frame = datagram_frame(9);
    let over = || {
        let calls = [frame.as_slice(); FRAMES_PER_CALL];
        measure_processor_ns(FRAMES_PER_MEASUREMENT as u32, || {
            for _ in 0..FRAMES_PER_MEASUREMENT / FRAMES_PER_CALL {
                let _ = sender.borrow_mut().send(&calls);
            }
        })
    };
    let (datagrams, _target) = open_datagram_sockets()?;
    let around = || {
        measure_processor_ns(FRAMES_PER_MEASUREMENT as u32, || {
            (0..FRAMES_PER_MEASUREMENT).for_each(|_| drop(datagrams.send(&[0; FRAME_BYTES])))
        })
    };
    let receiving = [
        format!("rx {RECEIVING_INTERFACE} take @kernel | drop @kernel"),
        format!("rx {RECEIVING_INTERFACE} take ring=16MB @thread0 | discard @thread0"),
        format!(
            "rx {RECEIVING_INTERFACE} take ring=16MB @kernel | dport @kernel |all discard @thread0"
        ),
    ];
    let leaving = [
        "rx lo @kernel | discard @kernel".to_owned(),
        format!("rx lo @kernel | redirect {SENDING_INTERFACE} @kernel"),
        format!("rx lo ring=8MB @thread0 | redirect {SENDING_INTERFACE} @thread0"),
        "rx lo ring=8MB @thread0 | discard @thread0".to_owned(),
    ];
    let mut least = [f64::INFINITY; 8];
    for _ in 0..ROUNDS {
        least[7] = least[7].min(over());
        let receiving = receiving.iter().map(|line| measure_while_running(line, &over));
        let leaving = leaving.iter().map(|line| measure_while_running(line, &around));
        for (found, least) in receiving.chain(leaving).zip(&mut least) {
            *least = least.min(found?);
        }
    }
    let [dropped, socket, redirected, discarded, sent, thread, alone, unreceived] = least;
    let [dropped, socket, redirected] = [dropped, socket, redirected].map(|cost| cost - unreceived);
    Ok(RedirectCosts { dropped, socket, redirected, discarded, sent, thread, alone })
}

impl RedirectCosts {
    fn record_in(&self, calibration: &mut Calibration) {
        let Self { dropped, socket, redirected, discarded, sent, thread, alone } = *self;
        let costs = &mut calibration.costs;
        let dport = costs.filters.iter().find(|cost| cost.kernel && cost.filter == "dport");
        let dport = dport.map_or(costs.twin, |cost| cost.block);
        // The base is the cheaper of a frame that nothing receives, which costs 0, and a dropped
        // frame. `take` and `xsk` are differences from the base.
        costs.take = dropped.max(0.0);
        costs.xsk = (socket - dropped.min(0.0) - 2.0 * costs.call).max(0.0);
        costs.redirect = (redirected - dropped - dport - costs.call).max(0.0);
        // Both variants call a sink, so the cost of the sink cancels.
        let mut put = |kernel, block: f64| {
            let (filter, block) = ("redirect".to_owned(), block.max(0.0));
            costs.set_filter_cost(FilterCost { filter, kernel, block, byte: 0.0 });
        };
        put(true, sent - discarded);
        put(false, thread - alone);
    }
}
