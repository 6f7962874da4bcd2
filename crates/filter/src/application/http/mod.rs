//! `http`: extracts HTTP/1 messages from streams, classifies and describes them.
//!
//! In: blocks of connections in order, as `tcp` gives them, holes included. Out: messages: for each
//! a description (`wire::record`, empty view), then its bytes as views of the frames in which they
//! arrived. Bodies are not copied: a length is counted down, and chunk framing is parsed byte by
//! byte (`wire::http`). Only a head across blocks is copied, to be parsed; its pieces are what
//! leaves. [SL §4.2], CONTRACT 4-8
//!
//! State is plain data, 152 bytes per connection. A request waits there, as its description, for
//! its response: responses arrive in the order of requests (RFC 9112 §9.3.2), and their framing
//! depends on them (§6.3).
//!
//! Parsing is lenient by default: an observer must not see less than the endpoints do. After a loss
//! the filter resynchronizes at the next block that begins with a message.

mod decode;
mod describe;
mod heads;
mod output;
mod pair;
mod state;
#[cfg(test)]
mod tests;
mod walk;

use crate::prelude::*;
use decode::BodyDecoder;
use state::{HttpConnection, Protocol};
use walk::Walk;
use wire::http::Manner;

/// The description of `http`.
pub const HTTP: Description = Description {
    name: "http",
    summary: "take HTTP/1 messages out of streams, classify by method or status",
    details: "\
Takes streams (`tcp | http`) and gives messages: first a description (method, URL, status, host,
lengths, times, addresses), which `json`, `print`, `files` and `weblog` tell; then the message as it
was sent, in as many fragments as it came in: all of it (`emit=message`), its head (`emit=head`), or
its body without the framing of chunks (`emit=body`).

The class of a request is its method: `|get`, `|post`, by number or name, or all as `|request`;
methods without a number are `other`. The class of a response is its status code, or all as
`|response`; a status that is none is 999. `|exchange` gives one more description for each request
together with its response: 1000 and the status, 1000 alone if no response was seen. It comes only
where an arc asks for it, since it says again what the two messages say.

Requests wait for their responses, at most `pending=` of a connection; what comes behind is not
paired. `decode=yes` undoes Content-Encoding (gzip, deflate, br): such a body is held until it ends,
at most `most=` bytes, and comes as one block for each megabyte. What is larger, or would become
larger than `most=` or `ratio=` times what was sent, is given as it was sent; a body that is cut or
corrupt is given as far as it can be decoded. `strict=yes` takes only what RFC 9112 lets through.

Holes in a body are passed on as they are, and counted as missing. Behind a hole in a head, and
behind what breaks the rules, messages are found again at the next block that begins as one does.
A body that ends with its connection is whole only if its sender ended the connection (FIN). A head
that the connection ends before its empty line is described as far as its lines are whole, and
marked incomplete.

Not answered: `not http` (a connection that speaks something else), `malformed` (a head or a chunk
that breaks the rules, or a head longer than `head=`), `lost` (what lies between a hole or a
malformed message and the next one), `cut` (a start line that never came whole), `switched` (what
follows CONNECT or an upgrade), `after close` (with strict=yes: what follows the last
message), `no session` (a block that is in no stream).

Counted: requests and responses; missing bytes of bodies, and messages that broke off (their last
fragment says that nothing follows, not that it is the last); heads whose lengths differ, are no
numbers or stand beside `Transfer-Encoding` (the first number counts, chunks before any); what was
found again behind what was lost; requests that stayed unpaired; connections that were forgotten,
since more than `connections=` were open; bodies that were decoded, decoded in part, not decodable,
or too large to decode. The report counts connections by what they speak.",
    example: "replay web.pcap | tcp | http |get print",
    kind: Kind::Editing,
    takes: Forms::of(&[Form::Stream]),
    needs: Needs { both_ways: Some(EXCHANGES), ..Needs::NONE },
    gives: Gives::Form(Form::Message),
    reads: Reads::All,
    effect: Some(effect),
    parameters: &[
        Parameter::named(
            "emit",
            Type::OneOf(&["message", "head", "body"]),
            "message",
            "what of a message follows its description",
        ),
        Parameter::named("decode", Type::Flag, "no", "undo the content coding of bodies"),
        Parameter::named("strict", Type::Flag, "no", "refuse what RFC 9112 does not let through"),
        Parameter::named(
            "head",
            Type::Size { low: 256, high: 1 << 20 },
            "64k",
            "how long a head may be that comes in several blocks",
        ),
        Parameter::named(
            "pending",
            Type::Number { low: 1, high: 1 << 16 },
            "256",
            "how many requests of a connection wait for their responses",
        ),
        Parameter::named(
            "connections",
            Type::Number { low: 1, high: 1 << 24 },
            "262144",
            "how many connections are known at once",
        ),
        Parameter::named(
            "ratio",
            Type::Number { low: 1, high: 100_000 },
            "200",
            "how many times its length a body may become when decoded, beyond 64 KB",
        ),
        Parameter::named(
            "most",
            Type::Size { low: 1 << 10, high: 1 << 30 },
            "16M",
            "how long a body to be decoded may be, before and after",
        ),
    ],
    classes: Classes::Number {
        what: "the method of a request, the status of a response, or 1000 and the status",
        range: ValueRange { low: 1, high: 1999 },
        names: METHODS,
    },
    groups: &[
        ("request", ValueRange { low: 1, high: 99 }),
        ("response", ValueRange { low: 100, high: 999 }),
        ("exchange", EXCHANGES),
    ],
    reasons: &["not http", "malformed", "lost", "cut", "switched", "after close", "no session"],
    counters: &[
        "requests",
        "responses",
        "missing bytes",
        "incomplete messages",
        "ambiguous lengths",
        "found again",
        "unpaired",
        "evicted connections",
        "decoded bodies",
        "decoded in part",
        "not decodable",
        "too large to decode",
    ],
    state: StateFacts::sessions::<HttpConnection>().held(1 << 20),
    reports: true,
    user: Some(make),
    ..Description::EMPTY
};

const EXCHANGES: ValueRange = ValueRange { low: 1000, high: 1999 };

/// Names of methods, for arcs and output; the numbers are those of `wire::http::METHODS`.
const METHODS: &[(&str, u32)] = &[
    ("get", 1),
    ("head", 2),
    ("post", 3),
    ("put", 4),
    ("delete", 5),
    ("connect", 6),
    ("options", 7),
    ("trace", 8),
    ("patch", 9),
    ("propfind", 10),
    ("proppatch", 11),
    ("mkcol", 12),
    ("copy", 13),
    ("move", 14),
    ("lock", 15),
    ("unlock", 16),
    ("report", 17),
    ("search", 18),
    ("mkcalendar", 19),
    ("acl", 20),
    ("bind", 21),
    ("unbind", 22),
    ("rebind", 23),
    ("checkout", 24),
    ("checkin", 25),
    ("merge", 26),
    ("mkactivity", 27),
    ("link", 28),
    ("unlink", 29),
    ("query", 30),
    ("purge", 31),
    ("source", 32),
    ("notify", 33),
    ("subscribe", 34),
    ("unsubscribe", 35),
    ("m_search", 36),
    ("other", 99),
];

mod why {
    use super::HTTP;
    use crate::contract::{Counter, Reason};

    pub(super) const NOT_HTTP: Reason = HTTP.reason("not http");
    pub(super) const MALFORMED: Reason = HTTP.reason("malformed");
    pub(super) const LOST: Reason = HTTP.reason("lost");
    pub(super) const CUT: Reason = HTTP.reason("cut");
    pub(super) const SWITCHED: Reason = HTTP.reason("switched");
    pub(super) const AFTER_CLOSE: Reason = HTTP.reason("after close");
    pub(super) const NO_SESSION: Reason = HTTP.reason("no session");

    pub(super) const REQUESTS: Counter = HTTP.counter("requests");
    pub(super) const RESPONSES: Counter = HTTP.counter("responses");
    pub(super) const MISSING: Counter = HTTP.counter("missing bytes");
    pub(super) const INCOMPLETE: Counter = HTTP.counter("incomplete messages");
    pub(super) const AMBIGUOUS: Counter = HTTP.counter("ambiguous lengths");
    pub(super) const FOUND_AGAIN: Counter = HTTP.counter("found again");
    pub(super) const UNPAIRED: Counter = HTTP.counter("unpaired");
    pub(super) const EVICTED: Counter = HTTP.counter("evicted connections");
    pub(super) const DECODED: Counter = HTTP.counter("decoded bodies");
    pub(super) const DECODED_IN_PART: Counter = HTTP.counter("decoded in part");
    pub(super) const NOT_DECODABLE: Counter = HTTP.counter("not decodable");
    pub(super) const TOO_LARGE: Counter = HTTP.counter("too large to decode");
}

/// Only decoding creates new bytes.
fn effect(arguments: &Arguments) -> Effect {
    let kind = if arguments.flag("decode") { Kind::Editing } else { Kind::Reordering };
    Effect { kind, gives: HTTP.gives, reads: HTTP.reads }
}

fn make(arguments: &Arguments) -> Result<Filter, Mistake> {
    let size = |name| usize::try_from(arguments.number(name).unwrap_or(1)).unwrap_or(usize::MAX);
    let options = Options {
        emit: match arguments.text("emit") {
            Some("head") => Emit::Head,
            Some("body") => Emit::Body,
            _ => Emit::Message,
        },
        manner: if arguments.flag("strict") { Manner::Strict } else { Manner::Lenient },
        decode: arguments.flag("decode"),
        exchanges: arguments.asks(EXCHANGES.low, EXCHANGES.high),
        head: size("head"),
        pending: size("pending"),
        connections: size("connections"),
        most: size("most"),
    };
    let decoder = BodyDecoder::new(size("ratio"), options.most);
    let mut connections = Sessions::<HttpConnection>::default();
    connections.of(PRIVATE);
    Ok(Filter::stream(Http { options, connections, text: Vec::new(), decoder }))
}

/// The arguments.
#[derive(Debug)]
struct Options {
    emit: Emit,
    manner: Manner,
    decode: bool,
    exchanges: bool,
    head: usize,
    pending: usize,
    connections: usize,
    most: usize,
}

/// The parts of a message that follow its description.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Emit {
    Message,
    Head,
    Body,
}

struct Http {
    options: Options,
    connections: Sessions<HttpConnection>,
    /// Buffer in which a head is assembled; empty between calls.
    text: Vec<u8>,
    decoder: BodyDecoder,
}

impl Stream for Http {
    fn look_ahead(&mut self, tags: Tags<'_>) {
        let sessions = tags.blocks().map(|(_, context)| context.session.into());
        self.connections.look_ahead(sessions);
    }

    fn block<'a>(&mut self, block: Block<'a>, cx: &mut StreamContext<'_, 'a>) {
        if block.marks.is_description() {
            // A previous filter's description is not part of the stream.
            return cx.consume(&block);
        }
        let key = u64::from(block.context.session);
        if key == PRIVATE {
            let class = cx.absent(why::NO_SESSION);
            return cx.pass(block.with_class(class));
        }
        match self.connections.find(key) {
            Some(connection) => {
                if let Some(block) = connection.goes_on(&block) {
                    return match self.options.emit {
                        Emit::Message | Emit::Body => cx.pass(block),
                        Emit::Head => cx.consume(&block),
                    };
                }
            }
            None => self.make_room(cx),
        }
        // Bytes overwritten in the ring, or a view beyond the captured bytes, count as a hole.
        let block = match block.pointer.is_hole() {
            true => block,
            false => {
                let whole = cx.whole(block).filter(Block::is_whole);
                whole.unwrap_or_else(|| walk::hole_like(block))
            }
        };
        let connection = self.connections.of(key);
        let before = connection.kind;
        Walk::new(&self.options, &mut self.text, &mut self.decoder, cx, connection, block).run();
        let (after, over) = (connection.kind, connection.is_over());
        if before != after {
            self.tally(after);
        }
        if over {
            self.end(key, cx);
        }
    }

    fn finish<'a>(&mut self, cx: &mut StreamContext<'_, 'a>) {
        for key in self.connections.keys() {
            if key != PRIVATE {
                self.end(key, cx);
            }
        }
    }

    fn report(&self) -> Report {
        let tally = self.connections.get(PRIVATE).map_or([0; 4], |private| private.tally);
        let rows = Protocol::ALL.iter().zip(tally);
        Report::of_rows(rows.map(|((_, name), n)| ((*name).to_owned(), n.into())).collect())
    }

    fn state(&mut self) -> Option<&mut dyn State> {
        Some(&mut self.connections)
    }
}

impl Http {
    /// Evicts the connection idle for longest if the maximum is reached.
    fn make_room(&mut self, cx: &mut StreamContext<'_, '_>) {
        // The private session counts as one more.
        if self.connections.len() <= self.options.connections {
            return;
        }
        if let Some((key, connection)) = self.connections.evict() {
            cx.count(why::EVICTED, 1);
            self.close(key, connection, cx);
        }
    }

    fn end(&mut self, key: u64, cx: &mut StreamContext<'_, '_>) {
        if let Some(connection) = self.connections.end(key) {
            self.close(key, connection, cx);
        }
    }

    /// Releases everything held for a connection.
    fn close(&mut self, key: u64, mut connection: HttpConnection, cx: &mut StreamContext<'_, '_>) {
        let before = connection.kind;
        for way in 0..2 {
            let block = walk::end_of(key, way, cx.now);
            let (text, decoder) = (&mut self.text, &mut self.decoder);
            Walk::new(&self.options, text, decoder, cx, &mut connection, block).close();
        }
        let block = walk::end_of(key, 0, cx.now);
        let (text, decoder) = (&mut self.text, &mut self.decoder);
        Walk::new(&self.options, text, decoder, cx, &mut connection, block).drain();
        if before == 0 && connection.was_met() {
            self.tally(Protocol::Other.number());
        }
    }

    fn tally(&mut self, kind: u8) {
        let place = usize::from(kind).wrapping_sub(1);
        if let Some(count) = self.connections.of(PRIVATE).tally.get_mut(place) {
            *count = count.wrapping_add(1);
        }
    }
}
