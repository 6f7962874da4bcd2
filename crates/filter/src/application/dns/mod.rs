//! `dns`: finds DNS messages, classifies them by query type or response code, and describes them.
//!
//! Input: datagrams from `udp`, or ordered connection bytes from `tcp`, with a two-byte length
//! field before each message; the block's transport protocol distinguishes the two. Output:
//! messages (CONTRACT 6): first the description, a `wire::record` with an empty view, then the
//! message as views of the frames in which it arrived, without the two length bytes. A message that
//! spans several blocks is held until it is complete, and copied only for parsing. [SL §4.2]
//!
//! Blocks that belong to no DNS message pass without a class. The first message in each direction
//! of a connection decides whether the direction carries DNS. If a gap covers a length field, the
//! filter resynchronizes at the next block that begins with a message. A message with a gap has no
//! class, but later messages do.
//!
//! State is plain data: per direction the held blocks of one message, and the number of missing
//! bytes.

mod message;
mod stream;
#[cfg(test)]
mod tests;

use crate::layers;
use crate::prelude::*;
use message::{ReceivedMessage, describe};
use stream::DnsConnection;
use wire::dns::{RCODE_NAMES, RECORD_TYPE_NAMES};
use wire::ip::protocol;
use wire::udp::{self, Udp};

/// Returns a [`UsableInput`] for blocks of any class from the transport filter named `upstream`.
const fn accept_all_blocks_from(upstream: &'static str) -> UsableInput {
    UsableInput { upstream, classes: ValueRange::ALL, hint: "put `udp` before it" }
}

/// Catalog entry of `dns`, which finds DNS messages in datagrams and connections, and classifies
/// them by query type or response code.
pub const DNS: Description = Description {
    name: "dns",
    summary: "find DNS messages, classify by query type or response code",
    details: "\
Finds DNS messages in datagrams (`udp | dns`) and connections (`tcp |dns dns`), and adds a
description before each. `udp |dns dns` would miss the responses, which have other destination
ports. The class of a query is the type that it asks for, by number or name: `|aaaa`, `|mx`; a query
without a question is `zero`. The class of a response is 65536 plus its code: `|nxdomain`, `|65538`.
`|query` is every query with a question, `|response` every response. A description has number,
flags, name and type, answers, least time to live, addresses; names are written as in master files,
with `\\DDD` for bytes that are not printable. It has at most 16 answers of 1,024 bytes each and is
marked (`cut`) if there are more. The bytes of the message follow it. In connections, messages of
more than one block are held until they are complete.

Reasons for no class: `not dns` (the header is not that of DNS; in a connection, also everything
after it), `malformed` (the question or an answer contradicts itself), `cut` (the capture or the
connection ends before the question does), `gap` (missing bytes in the message, or before it, until
a block begins with a message), `too many pieces` (a message of a connection in more than 256
blocks, or too many held blocks), `forgotten` (more than `sessions=` connections were open).

Counted are queries, responses, messages with a compression pointer that points ahead (it is
followed, as resolvers do), and messages of connections that were found again after a gap.",
    example: "replay dns.pcap | udp | dns |nxdomain print",
    kind: FilterKind::Reordering,
    input_forms: Forms::of(&[Form::Segment, Form::Stream]),
    needs: InputNeeds {
        required_input: "it reads the payload of datagrams and connections",
        ..InputNeeds::from_usable_inputs(&[
            accept_all_blocks_from("udp"),
            accept_all_blocks_from("tcp"),
            accept_all_blocks_from("token"),
        ])
    },
    output_form: OutputForm::Form(Form::Message),
    reads: ReadDepth::All,
    parameters: &[Parameter::table_size(
        "sessions",
        "65536",
        "maximum number of connections in memory",
    )],
    classes: Classes::Number {
        meaning: "the type of a query, or 65536 and the code of a response",
        range: ValueRange { low: 0, high: RESPONSE_CLASS + 0xfff },
        names: &CLASS_NAMES,
    },
    class_groups: &[
        ("query", ValueRange { low: 1, high: RESPONSE_CLASS - 1 }),
        ("response", ValueRange { low: RESPONSE_CLASS, high: RESPONSE_CLASS + 0xfff }),
    ],
    reasons: &["not dns", "malformed", "cut", "gap", "too many pieces", "forgotten"],
    counters: &["queries", "responses", "pointers ahead", "found again"],
    state: StateFacts::sessions::<DnsConnection>().with_held_max(1 << 16),
    constructor: Some(make_filter),
    ..Description::FILTER_DEFAULTS
};

/// Class of a DNS response without an error. A response with an error has this number plus the
/// response code as its class.
const RESPONSE_CLASS: u32 = 1 << 16;
/// Class names: the query types first, then the response codes.
const CLASS_NAMES: [(&str, u32); RECORD_TYPE_NAMES.len() + RCODE_NAMES.len()] = class_names();

const NOT_DNS: Reason = DNS.reason("not dns");
const MALFORMED: Reason = DNS.reason("malformed");
const CUT: Reason = DNS.reason("cut");
const GAP: Reason = DNS.reason("gap");
const TOO_MANY_PIECES: Reason = DNS.reason("too many pieces");
const FORGOTTEN_CONNECTION: Reason = DNS.reason("forgotten");
const QUERIES: Counter = DNS.counter("queries");
const RESPONSES: Counter = DNS.counter("responses");
const FORWARD_POINTERS: Counter = DNS.counter("pointers ahead");
const MESSAGES_FOUND_AGAIN: Counter = DNS.counter("found again");

#[expect(clippy::indexing_slicing, reason = "at build time only, within both tables")]
const fn class_names() -> [(&'static str, u32); RECORD_TYPE_NAMES.len() + RCODE_NAMES.len()] {
    let mut names = [("", 0); RECORD_TYPE_NAMES.len() + RCODE_NAMES.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = match at.checked_sub(RECORD_TYPE_NAMES.len()) {
            None => (RECORD_TYPE_NAMES[at].0, RECORD_TYPE_NAMES[at].1 as u32),
            Some(code) => (RCODE_NAMES[code].0, RCODE_NAMES[code].1 as u32 + RESPONSE_CLASS),
        };
        at += 1;
    }
    names
}

fn make_filter(arguments: &Arguments) -> Result<Filter, Mistake> {
    let dns = Dns {
        table: Sessions::default(),
        connections_max: arguments.number_as_usize("sessions"),
        scratch: Vec::new(),
    };
    Ok(Filter::stream(dns))
}

struct Dns {
    table: Sessions<DnsConnection>,
    connections_max: usize,
    /// Buffer in which a message of several blocks is made contiguous for parsing.
    scratch: Vec<u8>,
}

impl Stream for Dns {
    fn process_block<'a>(&mut self, mut block: Block<'a>, cx: &mut StreamContext<'_, 'a>) {
        match transport_protocol(&mut block) {
            Some(protocol::TCP) => self.classify_connection_block(block, true, cx),
            Some(_) => classify_datagram(block, cx),
            // A gap or a generated block belongs to a known connection, if any.
            None => self.classify_connection_block(block, block.pointer.is_hole(), cx),
        }
    }

    fn finish<'a>(&mut self, cx: &mut StreamContext<'_, 'a>) {
        for key in self.table.keys() {
            if let Some(mut connection) = self.table.remove(key) {
                connection.release_all(CUT, cx);
            }
        }
    }

    fn state(&mut self) -> Option<&mut dyn FilterState> {
        Some(&mut self.table)
    }
}

impl Dns {
    fn classify_connection_block<'a>(
        &mut self,
        block: Block<'a>,
        known: bool,
        cx: &mut StreamContext<'_, 'a>,
    ) {
        // Key 0 is reserved for the private session.
        let key = u64::from(block.context.session) + 1;
        if self.table.get(key).is_none() {
            if !known {
                return classify_datagram(block, cx);
            }
            if block.context.session == 0 {
                // Blocks without a session belong to no connection.
                let block = into_unanswered_message(block, NOT_DNS, cx);
                return cx.pass(block);
            }
            if let Some(mut connection) = self.table.make_room(key, self.connections_max) {
                connection.release_all(FORGOTTEN_CONNECTION, cx);
            }
        }
        let connection = self.table.get_or_create(key);
        if connection.handle_block(block, &mut self.scratch, cx) {
            self.table.remove(key);
        }
    }
}

/// Returns the transport protocol of the block's frame, or 0 if the frame has none, or `None` if
/// the block is a hole or not a frame.
fn transport_protocol(block: &mut Block<'_>) -> Option<u8> {
    let framed = block.marks.is_frame() && !block.pointer.is_hole();
    framed.then(|| layers::transport(block).map_or(0, |transport| transport.protocol))
}

/// Handles a datagram as one message. Drops a datagram that was truncated or partly overwritten. A
/// datagram that contains no DNS message passes without a class. Consumes a description, which
/// another filter has made.
fn classify_datagram<'a>(block: Block<'a>, cx: &mut StreamContext<'_, 'a>) {
    if block.marks.is_description() {
        // The description belongs to a message of another filter, and is not passed on.
        return cx.consume(&block);
    }
    let Some(block) = cx.complete_block(block).filter(Block::has_all_bytes) else {
        return cx.drop(&block, CUT);
    };
    let length = message_length(&block);
    let message = ReceivedMessage { block, raw: block.bytes(), length };
    match describe(message, cx) {
        Ok((class, description)) => {
            let first = emit_description(description, cx);
            cx.pass(into_fragment(block, class, first.with(BlockFlags::LAST)));
        }
        Err(why) => {
            let block = into_unanswered_message(block, why, cx);
            cx.pass(block);
        }
    }
}

/// Returns the message length in bytes: the length of the payload according to the UDP header, or
/// the length of the view if that is greater.
fn message_length(block: &Block<'_>) -> usize {
    let here = block.length() as usize;
    let header = Udp::parse(layers::packet_bytes(block, block.marks.transport.into()));
    let stated = header.map_or(0, |(udp, _)| usize::from(udp.length()));
    here.max(stated.saturating_sub(udp::HEADER_LENGTH))
}

/// Emits the description of a message. `None` means that memory ran out, and nothing is emitted.
/// Returns the flags for the first fragment of the message: `NONE` after a description, otherwise
/// `FIRST`.
fn emit_description<'a>(
    description: Option<Block<'a>>,
    cx: &mut StreamContext<'_, 'a>,
) -> BlockFlags {
    match description {
        Some(description) => {
            cx.emit_created_block(description);
            BlockFlags::NONE
        }
        None => BlockFlags::FIRST,
    }
}

/// Converts a block to a message fragment with the given class and flags.
fn into_fragment<'a>(mut block: Block<'a>, class: Class, flags: BlockFlags) -> Block<'a> {
    let was = block.context.flags.without(BlockFlags::FIRST).without(BlockFlags::LAST);
    block.context.flags = was.with(flags);
    block.with_class(class)
}

/// Converts a block that belongs to no DNS message into a complete message of its own.
fn into_standalone_message(block: Block<'_>, class: Class) -> Block<'_> {
    into_fragment(block, class, BlockFlags::FIRST.with(BlockFlags::LAST))
}

/// Converts the block to a complete message without a class, and counts `why` as the reason.
fn into_unanswered_message<'a>(
    block: Block<'a>,
    why: Reason,
    cx: &mut StreamContext<'_, 'a>,
) -> Block<'a> {
    into_standalone_message(block, cx.answer_absent(why))
}
