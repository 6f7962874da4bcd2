//! `tls`: recognizes TLS connections, classifies them by version, and describes their hellos.
//!
//! Input: ordered bytes of connections from `tcp`, holes included. Output: the same blocks, with
//! only the class changed, and a description before the blocks of each hello. A description is a
//! `wire::record` with an empty view, and a complete message of its own (CONTRACT 6), so that the
//! output is still a stream. Blocks are held until the first message of their direction is
//! complete, and copied only if that message spans several blocks. [SL §4.2]
//!
//! Each direction is decided once, by its first bytes. An unreadable direction (one with a gap or
//! an inconsistent hello) gets the version of the other direction, if known. After a
//! HelloRetryRequest, the server's second hello determines the version, and the client's first
//! hello is described. TLS after another protocol (STARTTLS, CONNECT) is not recognized.
//!
//! JA4 follows its specification, which is under the BSD license; JA4S and the other fingerprints
//! of the JA4 family are not free for all uses, and are therefore not implemented.
//!
//! State is plain data: the held blocks and the decision for each direction, the session id that
//! the client offers for resumption, and the description of the client's hello, which is held until
//! the server's hello arrives.

mod connection;
mod ja4;
#[cfg(test)]
mod tests;

use crate::prelude::*;
use connection::TlsConnection;
use wire::tls::Version;

/// Catalog entry of `tls`, which recognizes TLS connections, classifies them by version, and
/// describes their hellos.
pub const TLS: Description = Description {
    name: "tls",
    summary: "find TLS connections, classify by version, describe the hellos",
    details: "\
Finds TLS connections in streams (`tcp | tls`), classifies their blocks by version, and adds a
description before each hello, which `json` and `print` show. The version is the one that the server
chose, and before it the highest that the client offers, by name (`|tls13`, `|tls12`, `|tls11`,
`|tls10`, `|ssl3`) or number (`|772` is TLS 1.3). A direction with an unreadable hello has the
version of the other, if known. The client's description has version, server name (SNI), protocols
(ALPN), number of cipher suites, and the fingerprint JA4; the server's has the chosen version,
cipher suite and protocol, whether a session is resumed, and again name and fingerprint.

Reasons for no class: `not tls` (the first bytes are no TLS record), `no hello` (TLS records without
a hello, whose beginning was not observed), `malformed` (a hello that contradicts itself), `too
long` (a hello of more than 32 KB or 1024 blocks), `gap` (missing bytes in the hello), `cut` (the
connection ends within the hello), `forgotten` (more than `sessions=` connections were open).",
    example: "replay web.pcap | tcp | tls |tls13 print",
    kind: FilterKind::Reordering,
    input_forms: Forms::of(&[Form::Stream]),
    output_form: OutputForm::Form(Form::Stream),
    reads: ReadDepth::All,
    parameters: &[Parameter::table_size(
        "sessions",
        "65536",
        "maximum number of connections in memory",
    )],
    classes: Classes::Number {
        meaning: "the version of TLS as on the wire",
        range: ValueRange { low: Version::SSL30.0 as u32, high: Version::TLS13.0 as u32 },
        names: &[
            ("ssl3", Version::SSL30.0 as u32),
            ("tls10", Version::TLS10.0 as u32),
            ("tls11", Version::TLS11.0 as u32),
            ("tls12", Version::TLS12.0 as u32),
            ("tls13", Version::TLS13.0 as u32),
        ],
    },
    reasons: &["not tls", "no hello", "malformed", "too long", "gap", "cut", "forgotten"],
    counters: &["client hellos", "server hellos"],
    state: StateFacts::sessions::<TlsConnection>().with_held_max(1 << 18),
    constructor: Some(make_filter),
    ..Description::FILTER_DEFAULTS
};

const NOT_TLS: Reason = TLS.reason("not tls");
const NO_HELLO: Reason = TLS.reason("no hello");
const MALFORMED: Reason = TLS.reason("malformed");
const TOO_LONG: Reason = TLS.reason("too long");
const GAP: Reason = TLS.reason("gap");
const CUT: Reason = TLS.reason("cut");
const FORGOTTEN_CONNECTION: Reason = TLS.reason("forgotten");
const CLIENT_HELLOS: Counter = TLS.counter("client hellos");
const SERVER_HELLOS: Counter = TLS.counter("server hellos");

fn make_filter(arguments: &Arguments) -> Result<Filter, Mistake> {
    let tls = Tls {
        table: Sessions::default(),
        sessions_max: arguments.number_as_usize("sessions"),
        buffers: HelloBuffers::default(),
    };
    Ok(Filter::stream(tls))
}

struct Tls {
    table: Sessions<TlsConnection>,
    sessions_max: usize,
    buffers: HelloBuffers,
}

/// Reusable buffers for the reassembly of a hello.
#[derive(Debug, Default)]
struct HelloBuffers {
    /// Contiguous bytes of the held blocks.
    block_bytes: Vec<u8>,
    /// Contiguous payloads of the TLS records.
    record_payloads: Vec<u8>,
    /// Scratch buffer for sorting the numbers in a fingerprint.
    numbers: Vec<u16>,
}

impl Stream for Tls {
    fn process_block<'a>(&mut self, block: Block<'a>, cx: &mut StreamContext<'_, 'a>) {
        if block.marks.is_description() {
            // Another filter's description: passed in order.
            return cx.pass(block);
        }
        if block.context.session == 0 {
            // Blocks without a session belong to no connection.
            let class = cx.answer_absent(NOT_TLS);
            return cx.pass(block.with_class(class));
        }
        // Key 0 is reserved for the private session.
        let key = u64::from(block.context.session) + 1;
        if let Some(mut connection) = self.table.make_room(key, self.sessions_max) {
            connection.release_all(FORGOTTEN_CONNECTION, cx);
        }
        if self.table.get_or_create(key).handle_block(block, &mut self.buffers, cx)
            && let Some(mut connection) = self.table.remove(key)
        {
            connection.release_all(CUT, cx);
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
