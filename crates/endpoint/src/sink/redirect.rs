//! `redirect`: forwards frames through another interface, in the kernel if possible. [SL §5.5,
//! §6.1; CONTRACT 2, 25]
//!
//! Each frame is sent once, unmodified, through the interface named in the request. If possible,
//! the kernel program that runs at the request's source also sends the frame. Otherwise, a thread
//! of this process sends it in the same way as `tx`. If the source only observes frames, a copy is
//! sent, and the host receives the frame too. If the source is `rx IF take`, the frame itself is
//! sent.
//!
//! Deviation: in the papers, the kernel space calls the driver, so that a single sink `tx`
//! suffices. In Linux, a kernel program can neither wait nor queue. Forwarding without flow control
//! is therefore a separate sink.

use super::tx;
use crate::{Failure, OpenArguments, Sink, SinkEntry};
use filter::{
    Arguments, Description, EndpointFacts, FilterRight, Form, Forms, Parameter, ParameterType,
    ReadDepth, SendingInterface,
};

/// Description of `redirect`, the sink that forwards frames through another interface.
pub const REDIRECT: Description = Description {
    name: "redirect",
    summary: "send the frames through another interface, in the kernel if possible",
    details: "\
Sends each frame through another interface at the end of a request, unchanged and whole, whatever
its view. If the whole request runs in the kernel, so does `redirect`, and no frame enters the
process. From an interface that is only observed it sends a copy, and the host still gets the frame.
After `rx … take` it sends the frame itself, and no other program gets it; the other interface must
then accept frames from XDP programs (a virtual Ethernet device does while its peer has such a
program, or receive offload on). In a thread, `redirect` acts as `tx`, with the same reasons.

It never waits for room: a copy that the kernel refuses is counted as `refused by the kernel`, and
frames that a device queue drops are in the counters of the device. `netns` selects another network
namespace; a thread then sends the frames. An interface without an Ethernet header (a tunnel) is
neither source nor target in the kernel. Frames that the host sends cannot return to the interface
where they are observed, since they would loop.

It needs CAP_NET_RAW wherever it runs; `streamline doctor` shows missing rights.",
    example: "rx eth0 | udp | dport |53 redirect eth1",
    input_forms: Forms::of(&[Form::Frame, Form::Packet, Form::Segment]),
    reads: ReadDepth::All,
    parameters: &[
        Parameter::required("interface", ParameterType::Text, "the interface to send through"),
        Parameter::optional(
            "netns",
            ParameterType::Text,
            "network namespace, by name, path or process id",
        ),
    ],
    emit_twin: Some(filter::PASS_THROUGH_TWIN),
    twin_right: Some(FilterRight::SendFrames),
    ..Description::SINK_DEFAULTS
};

/// The catalog entry of `redirect`.
pub const ENTRY: SinkEntry = SinkEntry::new(&REDIRECT, open)
    .with_facts(EndpointFacts { outlet: Some(find_outlet), ..EndpointFacts::NONE });

/// Drop reason, as printed in the ledger, for frames that the kernel did not send.
pub(super) const REFUSED_REASON: &str = "refused by the kernel";

fn find_outlet(arguments: &Arguments) -> SendingInterface {
    SendingInterface {
        interface: arguments.text("interface").unwrap_or_default().to_owned(),
        netns: arguments.text("netns").map(str::to_owned),
    }
}

fn open(opening: &OpenArguments<'_>) -> Result<Box<dyn Sink>, Failure> {
    tx::open_on_device(opening, (true, "any"), true)
}
