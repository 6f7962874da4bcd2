//! `redirect`: forwards frames through another interface, in the kernel if possible. [SL §5.5,
//! §6.1; CONTRACT 2, 25]
//!
//! Each frame is sent once, unmodified, through the interface named in the request. The kernel
//! program at the source sends it or, if the request runs in a thread, this process sends it like
//! `tx`. If the source only observes frames, a copy is sent and the host receives the frame too;
//! after `take`, the frame itself is sent.
//!
//! Deviation: the papers have a single `tx`, since their kernel space calls the driver. In Linux, a
//! kernel program can neither wait nor queue, so forwarding without flow control has a name of its
//! own.

use super::tx;
use crate::{Failure, Opening, Sink, SinkEntry};
use filter::{
    Arguments, Description, EndpointFacts, Form, Forms, Outlet, Parameter, ReadDepth, Right, Type,
};

/// Description of `redirect`, the sink that forwards frames through another interface.
pub const REDIRECT: Description = Description {
    name: "redirect",
    summary: "send the frames out by another interface, in the kernel if it can be",
    details: "\
At the end of a line: each frame leaves by the interface, as it is, whatever part of it the filters
before looked at. Where all of its line runs in the kernel, so does this, and no frame comes up. At
an interface that is only observed, a copy leaves, and the host gets the frame as always. Behind
`rx … take` the frame itself leaves, and comes to nobody else; there the other interface must take
frames from programs of XDP (a virtual Ethernet device does while its other end has one, or has
receive offload on). In a thread this is `tx`, with its reasons.

Nobody waits for room: a copy that the kernel refuses is counted as `refused by the kernel`; what
the queue of a device drops later, the counters of that device tell. `netns` names another name
space; then frames leave from a thread. What has no Ethernet header (a tunnel) neither gives frames
for it in the kernel nor takes them. Frames that the host sends cannot be led back to where they are
seen: they would be seen again, for ever.

Needs CAP_NET_RAW, wherever it runs; `streamline doctor` tells what is missing.",
    example: "rx eth0 | udp | dport |53 redirect eth1",
    takes: Forms::of(&[Form::Frame, Form::Packet, Form::Segment]),
    reads: ReadDepth::All,
    parameters: &[
        Parameter::needed("interface", Type::Text, "where they leave"),
        Parameter::optional("netns", Type::Text, "a namespace, by name, path or process id"),
    ],
    kernel: Some(filter::PASS_THROUGH_TWIN),
    right: Some(Right::SendFrames),
    ..Description::SINK
};

/// The catalog entry of `redirect`.
pub const ENTRY: SinkEntry = SinkEntry::new(&REDIRECT, open)
    .with(EndpointFacts { outlet: Some(outlet_of), ..EndpointFacts::NONE });

/// Drop reason of frames that were not sent, as printed in the ledger.
pub(super) const REFUSED: &str = "refused by the kernel";

fn outlet_of(arguments: &Arguments) -> Outlet {
    Outlet {
        interface: arguments.text("interface").unwrap_or_default().to_owned(),
        netns: arguments.text("netns").map(str::to_owned),
    }
}

fn open(opening: &Opening<'_>) -> Result<Box<dyn Sink>, Failure> {
    tx::open_on_device(opening, (true, "any"), true)
}
