//! Fuzz bodies for HTTP/1: heads and chunks separately, and whole connections through the filter.

use super::fuzz_target::{FuzzTarget, InputReader};
use abi::{BlockFlags, Marks, RichPointer};
use filter::Batch;
use filter::testing::{Arena, Frame, Node, Space, total_amount};
use wire::http::{self, BodyPart, Head, HeadSearch, ParseMode, RequestMethod, StartLine};

/// Fuzz body for message heads: any bytes parse as a complete head, a prefix of one, or an error.
/// The body framing derived from a head never reads past the end of the body.
pub(crate) const HEAD_FUZZ_TARGET: FuzzTarget =
    FuzzTarget { name: "http head", corpus: http_corpus, rounds: 30_000, run: fuzz_head };

/// Fuzz body for connections: any bytes are accepted as the two directions of a connection.
pub(crate) const CONNECTION_FUZZ_TARGET: FuzzTarget =
    FuzzTarget { name: "http connection", corpus: http_corpus, rounds: 4000, run: fuzz_connection };

fn http_corpus() -> Vec<Vec<u8>> {
    let texts: [&[u8]; 8] = [
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade , close\r\nUpgrade: x\r\n\r\nrest",
        b"POST /x?y HTTP/1.0\r\nContent-Length: 3\r\nContent-Encoding: gzip, br\r\n\r\nabcGET /\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: x chunked\r\n\r\n3;a=\"b\"\r\nabc\r\n0\r\nA: b\n\n",
        b"http/1.1 \x0b304\n A: b\n\tTransfer-Encoding:\r\n chunked\n \n\x000f\n",
        b"HTTP/1.1 100 x\r\n\r\nHTTP/1.1 101 x\r\rContent-Length: 99\r\n\r\r\nHost: b\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\nAuthorization: Basic am9lOg==\r\n\r\n\x16\x03\x01",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"HEAD / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
    ];
    texts.map(<[u8]>::to_vec).into()
}

fn fuzz_head(bytes: &[u8]) {
    let _ = http::guess_protocol(bytes);
    let mut seek = HeadSearch::default();
    let middle = bytes.len() / 2;
    let ends = seek.may_end_in(&bytes[..middle]) | seek.may_end_in(&bytes[middle..]);
    for mode in [ParseMode::Strict, ParseMode::Lenient] {
        for read in [Head::parse_request, Head::parse_response] {
            let Ok(head) = read(bytes, mode) else { continue };
            assert!(head.begin < head.end && head.end <= bytes.len());
            assert!(ends || head.version.is_empty(), "an end that the search did not find");
            let body = match head.start {
                StartLine::Request { .. } => http::Body::after_request_head(&head, mode),
                StartLine::Response { .. } => {
                    Ok(http::Body::after_response_head(&head, RequestMethod::Other, mode))
                }
            };
            let Ok(body) = body else { continue };
            let rest = &bytes[head.end..];
            let (whole, cut) = (
                body_data(body, &[rest]),
                body_data(body, &[&rest[..rest.len() / 2], &rest[rest.len() / 2..]]),
            );
            assert!(whole.len() <= rest.len());
            assert!(
                mode == ParseMode::Lenient || whole == cut,
                "a body that depends on its pieces"
            );
        }
    }
}

fn body_data(mut body: http::Body, pieces: &[&[u8]]) -> Vec<u8> {
    let mut found = Vec::new();
    for piece in pieces {
        let mut rest = *piece;
        while !rest.is_empty() {
            let taken = match body.take_prefix(rest) {
                Ok(BodyPart::Data(length)) => {
                    found.extend(&rest[..length]);
                    length
                }
                Ok(BodyPart::Framing(length)) => length,
                Ok(BodyPart::End) | Err(_) => return found,
            };
            assert!((1..=rest.len()).contains(&taken));
            rest = &rest[taken..];
        }
    }
    found
}

/// Sends a connection through the filter. Each block of the input begins with two bytes that
/// determine the properties of the block. Asserts that every message has a description at its
/// beginning and one end, that no block stays held, and that the ledger balances.
fn fuzz_connection(bytes: &[u8]) {
    let mut input = InputReader(bytes);
    let words: &[&str] = match input.read_u8() % 4 {
        0 => &["emit=body"],
        1 => &["emit=body", "decode=yes"],
        2 => &["strict=yes", "emit=head"],
        _ => &["decode=yes", "pending=1", "head=256"],
    };
    let http = filter::catalog::find("http").expect("it is in the catalog");
    let mut node = Node::with_classes(http, words, &[(1000, 1999)]).expect("good arguments");
    let arena = Arena::new(64 + bytes.len() * 16);
    let mut space = Space::new(&arena);
    let (mut came, mut left) = (0, Vec::new());
    while !input.0.is_empty() {
        let (choice, length) = (input.read_u8(), usize::from(input.read_u8()));
        let mut block = space.batch(&[Frame::tcp(1, 2, input.read_bytes(length))]).block(0);
        block = block.narrow(54, u32::MAX);
        if choice & 1 != 0 {
            let hole = u32::from(choice);
            block.pointer = RichPointer::hole(hole);
            (block.frame, block.marks) = (&[], Marks::for_plain_block(hole));
        }
        let flags =
            [(2, BlockFlags::BACKWARD), (4, BlockFlags::FIRST), (0x60, BlockFlags::SESSION_END)];
        let set = flags.into_iter().filter(|(bits, _)| choice & bits == *bits);
        block.context.flags = set.fold(BlockFlags::NONE, |all, (_, flag)| all.with(flag));
        block.context.session = 1 + u32::from(choice >> 7);
        let mut batch = Batch::empty();
        batch.push(block, 0).expect("a free lane");
        came += 1;
        left.extend(node.process_batch(batch, &mut space, came));
    }
    left.extend(node.finish(&mut space, came));
    assert_eq!(node.counts.held.blocks, 0);
    let made = came + node.counts.made.blocks;
    let lost = node.counts.evicted.blocks + node.counts.no_room.blocks;
    assert_eq!(made, total_amount(&left).blocks + node.counts.consumed.blocks + lost);
    assert_messages_nest(&left);
}

fn assert_messages_nest(left: &[Batch<'_>]) {
    let mut open = [[false; 2]; 3];
    for batch in left {
        for (_, block) in batch.blocks().filter(|(_, block)| block.pointer.class.is_answered()) {
            let flags = block.context.flags;
            let first = flags.contains(BlockFlags::FIRST);
            let last = flags.contains(BlockFlags::LAST) || flags.contains(BlockFlags::SESSION_END);
            assert_eq!(first, block.marks.is_description());
            if block.pointer.class.0 >= 1000 {
                assert!(first && last);
                continue;
            }
            let way = usize::from(flags.contains(BlockFlags::BACKWARD));
            let open = &mut open[block.context.session as usize][way];
            assert_eq!(first, !*open, "a message begins where one ends");
            *open = !last;
        }
    }
    assert!(open.iter().flatten().all(|open| !open), "a message without an end");
}
