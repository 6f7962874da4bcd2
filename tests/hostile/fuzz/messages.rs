//! Fuzz bodies for the parsers of DNS messages and TLS hellos.

use super::fuzz_target::FuzzTarget;
use wire::dns::{HEADER_LENGTH, Message, MessageEntry, NAME_MAX};
use wire::tls::{FirstHello, HELLO_LENGTH_MAX, SEARCHED_BYTES_MAX, find_first_hello};

/// Fuzz body for DNS: any bytes after a DNS header parse as entries within the message, with names
/// of bounded length, up to the end or a fault.
pub(crate) const DNS_FUZZ_TARGET: FuzzTarget =
    FuzzTarget { name: "dns", corpus: dns_corpus, rounds: 60_000, run: fuzz_dns };

fn dns_corpus() -> Vec<Vec<u8>> {
    let header = |counts: [u8; 4]| {
        let [questions, answers, authorities, more] = counts;
        vec![7, 7, 0x85, 0x80, 0, questions, 0, answers, 0, authorities, 0, more]
    };
    let question = b"\x03www\x07example\x03com\0\0\x01\0\x01";
    let alias = b"\xc0\x0c\0\x05\0\x01\0\0\0\x3c\0\x06\x03web\xc0\x10";
    let address = b"\xc0\x2d\0\x01\0\x01\0\0\0\x3c\0\x04\xc0\0\x02\x01";
    let text = b"\xc0\x0c\0\x10\0\x01\0\0\0\x3c\0\x07\x03a b\x02\xff\"";
    let extended = b"\0\0\x29\x10\0\x01\0\x80\0\0\0";
    vec![
        [&header([1, 2, 0, 1])[..], question, alias, address, extended].concat(),
        [&header([1, 1, 1, 0])[..], question, text, alias].concat(),
        [&header([2, 0, 0, 0])[..], question, b"\xc0\x10\0\x1c\0\x01"].concat(),
    ]
}

fn fuzz_dns(bytes: &[u8]) {
    let Some(message) = Message::parse(bytes) else {
        return assert!(bytes.len() < HEADER_LENGTH);
    };
    assert!(!message.is_likely_dns(0) && message.flags().count() <= 7);
    let mut entries = message.entries();
    let (mut read, mut at) = (0, HEADER_LENGTH);
    while let Some(entry) = entries.next() {
        let name = match entry {
            Ok(MessageEntry::Question(question)) => question.name,
            Ok(MessageEntry::Record(record)) => {
                let rendered = record.data.to_string();
                assert!(rendered.len() <= 64 + 8 * NAME_MAX + 4 * record.data.bytes().len());
                record.name
            }
            Err(_) => return assert!(entries.next().is_none(), "nothing behind a fault"),
        };
        let labels: usize = name.labels().map(|label| label.len() + 1).sum();
        assert!(labels < NAME_MAX && name.to_string().len() <= 4 * NAME_MAX);
        assert!(entries.offset() > at && entries.offset() <= bytes.len());
        (read, at) = (read + 1, entries.offset());
    }
    assert!(read <= bytes.len() / 5);
}

/// Fuzz body for TLS hellos: any bytes are recognized as TLS or not, and appended bytes do not
/// change the result.
pub(crate) const HELLO_FUZZ_TARGET: FuzzTarget =
    FuzzTarget { name: "hello", corpus: hello_corpus, rounds: 60_000, run: fuzz_hello };

fn hello_corpus() -> Vec<Vec<u8>> {
    let name = b"\0\0\0\x08\0\x06\0\0\x03a.b";
    let versions = b"\0\x2b\0\x03\x02\x03\x04";
    let protocols = b"\0\x10\0\x05\0\x03\x02h2";
    let list = [&name[..], versions, protocols].concat();
    let mut body = [&[3, 3][..], &[7; 32], b"\0\0\x04\x1a\x1a\x13\x01\x01\0\0"].concat();
    body.push(list.len() as u8);
    body.extend(list);
    let answer = [&[3, 3][..], &[9; 32], b"\0\x13\x01\0\0\x06\0\x2b\0\x02\x03\x04"].concat();
    let message = |kind: u8, body: &[u8]| [&[kind, 0, 0, body.len() as u8][..], body].concat();
    let record = |payload: &[u8]| [&[22, 3, 1, 0, payload.len() as u8][..], payload].concat();
    let message_of = message(1, &body);
    let pieces = message_of.chunks(30).flat_map(record).collect();
    vec![record(&message_of), pieces, record(&message(2, &answer)), b"GET / HTTP/1.1".to_vec()]
}

fn fuzz_hello(bytes: &[u8]) {
    let mut room = Vec::new();
    let whole = read_hello(bytes, &mut room);
    let mut known = false;
    for cut in (0..bytes.len()).step_by(1 + bytes.len() / 64) {
        let (what, need) = read_hello(&bytes[..cut], &mut room);
        match need {
            Some(need) => assert!(!known && need > cut && need <= 2 * SEARCHED_BYTES_MAX, "{need}"),
            None => {
                assert_eq!((what, need), whole, "what {cut} bytes show holds for all");
                known = true;
            }
        }
    }
    assert!(room.len() <= HELLO_LENGTH_MAX + (1 << 15));
}

/// Reads the first hello message in `bytes`. Returns a summary and, if bytes are missing, their
/// number. The summary contains a number for the kind of result (0 while bytes are missing), and a
/// sum over the fields that could be read.
fn read_hello(bytes: &[u8], room: &mut Vec<u8>) -> ((u8, usize), Option<usize>) {
    let what = match find_first_hello(bytes, room) {
        FirstHello::NeedBytes(need) => return ((0, 0), Some(need)),
        FirstHello::Client(hello) => {
            let lists = hello.offered_cipher_suites().count() + hello.extensions().count();
            let more = hello.offered_protocols().count() + hello.signature_algorithms().count();
            let name = hello.server_name().map_or(0, <[u8]>::len);
            assert!(lists + more + name <= HELLO_LENGTH_MAX && hello.session_id.len() <= 32);
            (1, lists + more + name + usize::from(hello.highest_offered_version().0))
        }
        FirstHello::Server(hello) => {
            assert!(
                hello.negotiated_version().normalized_version().is_some()
                    && hello.session_id.len() <= 32
            );
            (2, hello.extensions().count() + hello.negotiated_protocol().map_or(0, <[u8]>::len))
        }
        FirstHello::Malformed => (3, 0),
        FirstHello::TooLong => (4, 0),
        FirstHello::Alert => (5, 0),
        FirstHello::NoHello => (6, 0),
        FirstHello::NotTls => (7, 0),
    };
    (what, None)
}
