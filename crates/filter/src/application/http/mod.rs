//! `http`: extracts HTTP/1 messages from streams, classifies and describes them.
//!
//! Input: ordered blocks of connections from `tcp`, holes included. Output: messages. Each is a
//! description (`wire::record`, empty view), followed by the bytes of the message as views of the
//! frames in which they arrived. Bodies are copied only for decoding. The filter counts down the
//! `Content-Length`, or parses chunk framing byte by byte (`wire::http`). A head is copied only if
//! it spans several blocks, for parsing; its pieces are emitted unchanged. [SL §4.2], CONTRACT 4-8
//!
//! State is plain data, 152 bytes per connection. The description of a request is held until its
//! response ends. Responses arrive in the order of their requests (RFC 9112 §9.3.2), and the
//! framing of a response depends on the request (§6.3).
//!
//! Parsing is lenient by default, so that the filter recognizes every message that the endpoints
//! accept. After a loss the filter resynchronizes at the next start line of a message (`resync`).

mod decode;
mod describe;
mod heads;
mod options;
mod output;
mod pair;
mod reasons;
mod resync;
mod state;
#[cfg(test)]
mod tests;
mod walk;

use crate::prelude::*;
use decode::BodyDecoder;
use options::{EmittedParts, Options};
use state::{HttpConnection, Protocol};
use walk::BlockWalk;
use wire::http::{METHOD_CLASSES, OTHER_METHOD, ParseMode};

/// Catalog entry of `http`, which extracts, classifies and describes HTTP/1 messages.
pub const HTTP: Description = Description {
    name: "http",
    summary: "extract HTTP/1 messages from streams, classify by method or status",
    details: "\
Extracts HTTP/1 messages from streams (`tcp | http`). Each begins with a description (method, URL,
status, host, lengths, times, addresses), which `json`, `print`, `files` and `weblog` show. Its
bytes follow as sent, block by block: all of them (`emit=message`), the head (`emit=head`), or the
body without the framing of chunks (`emit=body`).

The class of a request is its method, by number or name: `|get`, `|post`, or all as `|request`;
methods without a number are `other`. The class of a response is its status code, or all as
`|response`; an invalid status is 999. `|exchange` adds one description of each request together
with its response: class 1000 plus the status, or 1000 without a response. Its type, coding and
stated length of the body are those of the response. Exchanges repeat the two messages, so they
leave only on arcs that name them: not on `|`, `|all` or `|!get`.

At most `pending=` requests of a connection wait for their responses; later ones are not paired.
After lost requests, further requests are not paired until a response has ended, since the response
may belong to one that was lost. `decode=yes` undoes Content-Encoding (gzip, deflate, br): the body
is held until it ends, up to `most=` bytes, and leaves in blocks of up to a megabyte. A body that is
longer, or would decode to more than `most=` bytes or `ratio=` times its length, leaves as sent; a
truncated or corrupt one is decoded as far as possible, and the message is then incomplete.
`strict=yes` accepts only what RFC 9112 permits.

Holes in a body pass, and are counted as missing. After a hole in a head, or a violation of the
rules, messages are found again at the next line that is the start line of one, so header lines
whose request was removed cost no other request. A response whose request was not observed has no
body if another response follows its head at once, as after HEAD. A body that ends with its
connection is complete only after a FIN. A head that its connection ends early is described up to
its last complete line, and marked incomplete.

Reasons for no class: `not http` (another protocol), `malformed` (a head or chunk that breaks the
rules, or a head longer than `head=`), `lost` (bytes between a hole or a malformed message and the
next message), `cut` (an incomplete start line), `switched` (data after CONNECT or an upgrade),
`after close` (data after the last message, with strict=yes), `no session` (a block outside of all
streams).

Counted are requests and responses; missing bytes of bodies; incomplete messages, whose last
fragment is marked; heads with lengths that differ, are no numbers or accompany `Transfer-Encoding`
(chunks win, then the first number); messages found again after a loss; unpaired requests;
connections evicted above `connections=`; and bodies that were decoded, decoded in part, not
decodable, or too large to decode. The report counts connections by protocol.",
    example: "replay web.pcap | tcp | http |get print",
    kind: FilterKind::Editing,
    input_forms: Forms::of(&[Form::Stream]),
    needs: InputNeeds { two_way_classes: Some(EXCHANGE_CLASSES), ..InputNeeds::NONE },
    output_form: OutputForm::Form(Form::Message),
    reads: ReadDepth::All,
    effect: Some(effect),
    parameters: &[
        Parameter::with_default(
            "emit",
            ParameterType::OneOf(&["message", "head", "body"]),
            "message",
            "the part of a message that follows its description",
        ),
        Parameter::with_default(
            "decode",
            ParameterType::Flag,
            "no",
            "undo the content coding of bodies",
        ),
        Parameter::with_default(
            "strict",
            ParameterType::Flag,
            "no",
            "refuse what RFC 9112 does not permit",
        ),
        Parameter::with_default(
            "head",
            ParameterType::Size { low: 256, high: 1 << 20 },
            "64k",
            "maximum length of a head that spans several blocks",
        ),
        Parameter::with_default(
            "pending",
            ParameterType::Number { low: 1, high: 1 << 16 },
            "256",
            "maximum number of requests per connection that wait for a response",
        ),
        Parameter::table_size("connections", "262144", "maximum number of connections in memory"),
        Parameter::with_default(
            "ratio",
            ParameterType::Number { low: 1, high: 100_000 },
            "200",
            "maximum ratio of decoded to coded length of a body, beyond 64 KB",
        ),
        Parameter::with_default(
            "most",
            ParameterType::Size { low: 1 << 10, high: 1 << 30 },
            "16M",
            "maximum length of a body to decode, before and after",
        ),
    ],
    classes_on_request: Some(EXCHANGE_CLASSES),
    classes: Classes::Number {
        meaning: "the method of a request, the status of a response, or 1000 and the status",
        range: ValueRange { low: 1, high: 1999 },
        names: &METHOD_NAMES,
    },
    class_groups: &[
        ("request", ValueRange { low: 1, high: 99 }),
        ("response", ValueRange { low: 100, high: 999 }),
        ("exchange", EXCHANGE_CLASSES),
    ],
    reasons: reasons::REASONS,
    counters: reasons::COUNTERS,
    state: StateFacts::sessions::<HttpConnection>().with_held_max(1 << 20),
    has_report: true,
    analysis: ArgumentAnalysis {
        context_setting: Some(selects_exchanges),
        ..ArgumentAnalysis::NONE
    },
    constructor: Some(make_filter),
    ..Description::FILTER_DEFAULTS
};

/// Range of the exchange classes: 1000 plus the status code of the response.
const EXCHANGE_CLASSES: ValueRange = ValueRange { low: 1000, high: 1999 };

/// Class names of requests: one for each known method, and one for all other methods.
const METHOD_NAMES: [(&str, u32); METHOD_CLASSES.len() + 1] = method_names();

#[expect(clippy::indexing_slicing, reason = "at build time only, within the table")]
const fn method_names() -> [(&'static str, u32); METHOD_CLASSES.len() + 1] {
    let mut names = [("other", OTHER_METHOD as u32); METHOD_CLASSES.len() + 1];
    let mut at = 0;
    while at < METHOD_CLASSES.len() {
        names[at] = (METHOD_CLASSES[at].1, at as u32 + 1);
        at += 1;
    }
    names
}

/// Returns the effect of the filter on blocks. The filter is an editing filter only if it decodes
/// bodies, which creates new bytes.
fn effect(arguments: &Arguments) -> Effect {
    let kind = if arguments.flag("decode") { FilterKind::Editing } else { FilterKind::Reordering };
    Effect { kind, output_form: HTTP.output_form, reads: HTTP.reads }
}

fn selects_exchanges(arguments: &Arguments) -> bool {
    arguments.selects_any_class(EXCHANGE_CLASSES)
}

fn make_filter(arguments: &Arguments) -> Result<Filter, Mistake> {
    let options = Options {
        emit: match arguments.text("emit") {
            Some("head") => EmittedParts::Head,
            Some("body") => EmittedParts::Body,
            _ => EmittedParts::Message,
        },
        mode: if arguments.flag("strict") { ParseMode::Strict } else { ParseMode::Lenient },
        decode: arguments.flag("decode"),
        exchanges: selects_exchanges(arguments),
        head_max: arguments.number_as_usize("head"),
        pending_max: arguments.number_as_usize("pending"),
        connections_max: arguments.number_as_usize("connections"),
        decoded_max: arguments.number_as_usize("most"),
    };
    let decoder = BodyDecoder::new(arguments.number_as_usize("ratio"), options.decoded_max);
    let mut connections = Sessions::<HttpConnection>::default();
    connections.get_or_create(PRIVATE_SESSION_KEY);
    Ok(Filter::holding_lanes(Http { options, connections, head_buffer: Vec::new(), decoder }))
}

struct Http {
    options: Options,
    connections: Sessions<HttpConnection>,
    /// Buffer in which a head of several pieces is made contiguous for parsing.
    head_buffer: Vec<u8>,
    decoder: BodyDecoder,
}

impl HoldingLanes for Http {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, cx: &mut StreamContext<'_, 'a>) {
        let tags = batch.metadata_view();
        self.connections.prefetch(tags.blocks().map(|(_, context)| context.session.into()));
        cx.for_each_block(batch, |cx, block| self.process_block(block, cx));
    }

    fn finish<'a>(&mut self, cx: &mut StreamContext<'_, 'a>) {
        for key in self.connections.keys() {
            if key != PRIVATE_SESSION_KEY {
                self.end_connection(key, cx);
            }
        }
    }

    fn report(&self) -> Report {
        let tally = self
            .connections
            .get(PRIVATE_SESSION_KEY)
            .map_or([0; 4], |private| private.protocol_counts);
        let rows = Protocol::ALL.iter().zip(tally);
        Report::from_rows(rows.map(|((_, name), n)| (*name, n.into())))
    }

    fn state(&mut self) -> Option<&mut dyn FilterState> {
        Some(&mut self.connections)
    }
}

impl Http {
    /// Processes a block of a connection. In the common case, all of its bytes are in the middle of
    /// a body: then returns the block, or consumes it if only heads are emitted. In any other case,
    /// emits the output through the context and returns `None`.
    #[inline]
    fn process_block<'a>(
        &mut self,
        block: Block<'a>,
        cx: &mut StreamContext<'_, 'a>,
    ) -> Option<Block<'a>> {
        let key = u64::from(block.context.session);
        if key == PRIVATE_SESSION_KEY || block.marks.is_description() {
            self.pass_block_without_session(block, cx);
            return None;
        }
        let connection = self.connections.find(key);
        let is_known = connection.is_some();
        if let Some(block) =
            connection.and_then(|connection| connection.advance_within_body(&block))
        {
            return match self.options.emit {
                EmittedParts::Message | EmittedParts::Body => Some(block),
                EmittedParts::Head => {
                    cx.consume(&block);
                    None
                }
            };
        }
        if !is_known {
            self.evict_connection_if_full(cx);
        }
        self.process_any_block(block, key, cx);
        None
    }

    #[cold]
    fn pass_block_without_session<'a>(&self, block: Block<'a>, cx: &mut StreamContext<'_, 'a>) {
        if block.marks.is_description() {
            // A previous filter's description is not part of the stream.
            return cx.consume(&block);
        }
        let class = cx.answer_absent(reasons::NO_SESSION);
        cx.pass(block.with_class(class));
    }

    fn process_any_block<'a>(
        &mut self,
        block: Block<'a>,
        key: u64,
        cx: &mut StreamContext<'_, 'a>,
    ) {
        // Bytes overwritten in the ring, or a view beyond the captured bytes, count as a hole.
        let block = match block.pointer.is_hole() {
            true => block,
            false => {
                let whole = cx.complete_block(block).filter(Block::has_all_bytes);
                whole.unwrap_or_else(|| walk::into_hole(block))
            }
        };
        let connection = self.connections.get_or_create(key);
        let before = connection.protocol_number;
        BlockWalk::new(
            &self.options,
            &mut self.head_buffer,
            &mut self.decoder,
            cx,
            connection,
            block,
        )
        .process_block();
        let (after, over) = (connection.protocol_number, connection.is_over());
        if before != after {
            self.count_connection_protocol(after);
        }
        if over {
            self.end_connection(key, cx);
        }
    }

    /// If the maximum number of connections is reached, evicts a connection that has not been used
    /// recently.
    fn evict_connection_if_full(&mut self, cx: &mut StreamContext<'_, '_>) {
        // `len` includes the private session.
        if self.connections.len() <= self.options.connections_max {
            return;
        }
        if let Some((key, connection)) = self.connections.evict() {
            cx.count(reasons::EVICTED_CONNECTIONS, 1);
            self.release_connection(key, connection, cx);
        }
    }

    fn end_connection(&mut self, key: u64, cx: &mut StreamContext<'_, '_>) {
        if let Some(connection) = self.connections.remove(key) {
            self.release_connection(key, connection, cx);
        }
    }

    /// Ends both directions of a connection and its pending requests, and thereby releases all
    /// blocks held for the connection.
    fn release_connection(
        &mut self,
        key: u64,
        mut connection: HttpConnection,
        cx: &mut StreamContext<'_, '_>,
    ) {
        let before = connection.protocol_number;
        for direction in 0..2 {
            let block = walk::make_end_hole(key, direction, cx.now);
            let (text, decoder) = (&mut self.head_buffer, &mut self.decoder);
            BlockWalk::new(&self.options, text, decoder, cx, &mut connection, block)
                .end_released_direction();
        }
        let block = walk::make_end_hole(key, 0, cx.now);
        let (text, decoder) = (&mut self.head_buffer, &mut self.decoder);
        BlockWalk::new(&self.options, text, decoder, cx, &mut connection, block)
            .drop_pending_requests();
        if before == 0 && connection.has_received_bytes() {
            self.count_connection_protocol(Protocol::Other.stored_number());
        }
    }

    fn count_connection_protocol(&mut self, kind: u8) {
        let place = usize::from(kind).wrapping_sub(1);
        if let Some(count) =
            self.connections.get_or_create(PRIVATE_SESSION_KEY).protocol_counts.get_mut(place)
        {
            *count = count.wrapping_add(1);
        }
    }
}
