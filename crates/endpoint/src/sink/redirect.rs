//! `redirect`: sends frames out by another interface, in the kernel where that may do it.
//! [SL §5.5, §6.1; CONTRACT 2, 25]
//!
//! In: frames as they came. Out: each once, by the interface that the request names: by the program
//! that stands where the line begins, or where the line runs in a thread as `tx` sends them. At a
//! tap that is a copy, and the host gets the frame too; of a line that takes, the frame itself.
//!
//! Deviation: the sources have one `tx` for both, since their space of the kernel calls the driver.
//! Here a program of the kernel knows neither patience nor a queue that it could wait for, so what
//! may be sent in that way is asked for by a word of its own.

use super::tx;
use crate::{DropReason, Failure, Opening, Sink, SinkEntry};
use filter::{
    Amount, Arguments, Description, EndpointFacts, Form, Forms, Gives, Kind, Outlet, Parameter,
    Reads, Type,
};

/// The description of `redirect`.
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
    kind: Kind::Sink,
    takes: Forms::of(&[Form::Frame, Form::Packet, Form::Segment]),
    gives: Gives::Nothing,
    reads: Reads::All,
    parameters: &[
        Parameter::needed("interface", Type::Text, "where they leave"),
        Parameter::optional("netns", Type::Text, "a name space, by name, path or process id"),
    ],
    kernel: Some(filter::PLAIN),
    ..Description::EMPTY
};

/// The line in the catalogue.
pub const ENTRY: SinkEntry = SinkEntry::new(&REDIRECT, open)
    .with(EndpointFacts { outlet: Some(outlet), ..EndpointFacts::NONE });

/// The reason for frames that were not sent, as the ledger prints it.
const REFUSED: &str = "refused by the kernel";

fn outlet(arguments: &Arguments) -> Outlet {
    Outlet {
        interface: arguments.text("interface").unwrap_or_default().to_owned(),
        netns: arguments.text("netns").map(str::to_owned),
    }
}

fn open(opening: &Opening<'_>) -> Result<Box<dyn Sink>, Failure> {
    tx::begin(opening, (true, "any"), true)
}

/// A `redirect` that a program has given so much, of which so many frames were refused.
pub(super) fn having(given: Amount, refused: u64) -> (Amount, Vec<(DropReason, Amount)>) {
    let refused = refused.min(given.blocks);
    // Nobody counts the bytes of what is refused.
    let sent = Amount { blocks: given.blocks - refused, ..given };
    let dropped = (refused > 0).then_some((REFUSED.into(), Amount { blocks: refused, bytes: 0 }));
    (sent, dropped.into_iter().collect())
}
