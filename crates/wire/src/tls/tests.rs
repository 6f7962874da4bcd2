//! Tests of the TLS parser with hellos in one or many records, truncated hellos, flipped bits, and
//! noise.

use super::*;

/// Builds a list of u16 values with a two-byte length prefix.
fn u16_list(values: &[u16]) -> Vec<u8> {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_be_bytes()).collect();
    with_length_prefix(&bytes)
}

fn with_length_prefix(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat()
}

fn handshake_message(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind, 0][..], &with_length_prefix(body)].concat()
}

fn tls_record(content: u8, payload: &[u8]) -> Vec<u8> {
    [&[content, 3, 1][..], &with_length_prefix(payload)].concat()
}

fn client_hello_body() -> Vec<u8> {
    let extensions: Vec<u8> = [
        (0x2a2a, vec![]),
        (
            extension::SERVER_NAME_EXTENSION,
            with_length_prefix(&[&[0][..], &with_length_prefix(b"example.org")].concat()),
        ),
        (extension::ALPN_EXTENSION, with_length_prefix(b"\x02h2\x08http/1.1")),
        (extension::SIGNATURE_ALGORITHMS_EXTENSION, u16_list(&[0x0403, 0x0804])),
        (extension::SUPPORTED_VERSIONS_EXTENSION, vec![6, 0x3a, 0x3a, 3, 4, 3, 3]),
    ]
    .into_iter()
    .flat_map(|(number, data)| [&u16::to_be_bytes(number)[..], &with_length_prefix(&data)].concat())
    .collect();
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([4, 1, 2, 3, 4]);
    body.extend(u16_list(&[0x1a1a, 0x1301, 0xc02f]));
    body.extend([1, 0]);
    body.extend(with_length_prefix(&extensions));
    body
}

fn server_hello_body(random: [u8; 32]) -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend(random);
    body.extend([4, 1, 2, 3, 4, 0x13, 0x01, 0]);
    let versions = [0, 43, 0, 2, 3, 4];
    body.extend(with_length_prefix(
        &[&versions[..], &[0, 41, 0, 2, 0, 0], &[0, 16, 0, 5, 0, 3, 2, b'h', b'2']].concat(),
    ));
    body
}

#[test]
fn client_hello_fields_are_parsed() {
    let bytes = tls_record(HANDSHAKE, &handshake_message(1, &client_hello_body()));
    let mut room = Vec::new();
    let FirstHello::Client(hello) = find_first_hello(&bytes, &mut room) else {
        panic!("a ClientHello")
    };
    assert_eq!((hello.version, hello.highest_offered_version()), (Version::TLS12, Version::TLS13));
    assert_eq!(hello.session_id, [1, 2, 3, 4]);
    assert_eq!(hello.offered_cipher_suites().collect::<Vec<_>>(), [0x1a1a, 0x1301, 0xc02f]);
    assert_eq!(
        hello.offered_cipher_suites().without_grease().collect::<Vec<_>>(),
        [0x1301, 0xc02f]
    );
    let numbers: Vec<u16> = hello.extensions().map(|(number, _)| number).collect();
    assert_eq!(numbers, [0x2a2a, 0, 16, 13, 43]);
    assert_eq!(hello.server_name(), Some(&b"example.org"[..]));
    assert_eq!(hello.offered_protocols().collect::<Vec<_>>(), [&b"h2"[..], b"http/1.1"]);
    assert_eq!(hello.signature_algorithms().collect::<Vec<_>>(), [0x0403, 0x0804]);
    assert!(room.is_empty(), "nothing is copied where one record holds it");
}

#[test]
fn server_hello_fields_are_parsed() {
    let bytes = tls_record(HANDSHAKE, &handshake_message(2, &server_hello_body([9; 32])));
    let mut room = Vec::new();
    let FirstHello::Server(hello) = find_first_hello(&bytes, &mut room) else {
        panic!("a ServerHello")
    };
    assert_eq!((hello.version, hello.negotiated_version()), (Version::TLS12, Version::TLS13));
    assert_eq!(hello.cipher.to_string(), "TLS_AES_128_GCM_SHA256");
    assert_eq!(
        (hello.negotiated_protocol(), hello.session_id),
        (Some(&b"h2"[..]), &[1, 2, 3, 4][..])
    );
    assert!(hello.accepts_psk() && !hello.is_retry);
    let retry = "cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c";
    let mut random = [0; 32];
    for (at, byte) in random.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&retry[2 * at..2 * at + 2], 16).unwrap();
    }
    let body = server_hello_body(random);
    assert!(ServerHello::parse(&body).unwrap().is_retry);
}

/// Splits a hello into records of several lengths, and checks that the result stays the same. If
/// bytes are missing, the parser must request more bytes, but never more than it needs.
#[test]
fn hello_split_over_records_is_assembled() {
    let whole = handshake_message(1, &client_hello_body());
    for step in [1, 2, 3, 4, 5, 7, 50, 100, whole.len() - 1, whole.len(), whole.len() + 9] {
        let bytes: Vec<u8> =
            whole.chunks(step).flat_map(|piece| tls_record(HANDSHAKE, piece)).collect();
        let mut room = Vec::new();
        for here in 0..bytes.len() {
            match find_first_hello(&bytes[..here], &mut room) {
                FirstHello::NeedBytes(need) => {
                    assert!(here < need && need <= bytes.len(), "{step} {here}")
                }
                other => panic!("{step} {here}: {other:?}"),
            }
        }
        let FirstHello::Client(hello) = find_first_hello(&bytes, &mut room) else {
            panic!("{step}")
        };
        assert_eq!(hello.server_name(), Some(&b"example.org"[..]));
        let after = [&bytes[..], b"more"].concat();
        assert!(matches!(find_first_hello(&after, &mut room), FirstHello::Client(_)));
    }
}

/// Checks that a hello is found after all messages that a server may send before it, and that the
/// parser never requests more bytes than follow.
#[test]
fn hello_is_found_after_permitted_records() {
    let warning = tls_record(ALERT, &[1, 112]);
    let (empty, change) = (tls_record(HANDSHAKE, b""), tls_record(CHANGE_CIPHER_SPEC, &[1]));
    let again = handshake_message(0, b"");
    let hello = handshake_message(2, &server_hello_body([9; 32]));
    let whole = tls_record(HANDSHAKE, &hello);
    let in_parts: Vec<u8> =
        hello.chunks(7).flat_map(|piece| tls_record(HANDSHAKE, piece)).collect();
    let between: Vec<u8> = hello
        .chunks(40)
        .flat_map(|piece| [&tls_record(HANDSHAKE, piece)[..], &warning, &empty].concat())
        .collect();
    let requests = tls_record(HANDSHAKE, &[&again[..], &again, &hello].concat());
    let cases = [
        [&warning[..], &whole].concat(),
        [&warning[..], &warning, &in_parts].concat(),
        [&change[..], &whole].concat(),
        [&empty[..], &tls_record(23, b""), &whole].concat(),
        [&tls_record(HANDSHAKE, &again)[..], &whole].concat(),
        [&tls_record(HANDSHAKE, &again)[..], &warning, &requests].concat(),
        [&warning[..], &between].concat(),
        tls_record(HANDSHAKE, &[&again[..], &hello[..30]].concat())
            .into_iter()
            .chain(tls_record(HANDSHAKE, &hello[30..]))
            .collect(),
    ];
    let mut room = Vec::new();
    for (number, bytes) in cases.iter().enumerate() {
        let mut found = None;
        for here in 0..=bytes.len() {
            match find_first_hello(&bytes[..here], &mut room) {
                FirstHello::NeedBytes(need) => {
                    assert!(here < need && need <= bytes.len(), "{number} {here}")
                }
                FirstHello::Server(hello) => {
                    assert_eq!(hello.negotiated_version(), Version::TLS13);
                    found.get_or_insert(here);
                }
                other => panic!("{number} {here}: {other:?}"),
            }
        }
        assert!(found.is_some(), "{number}");
    }
}

#[test]
fn first_messages_other_than_hello_are_distinguished() {
    let mut room = Vec::new();
    let mut name = |bytes: &[u8]| match find_first_hello(bytes, &mut room) {
        FirstHello::NeedBytes(_) => "need",
        FirstHello::Client(_) => "client",
        FirstHello::Server(_) => "server",
        FirstHello::Malformed => "malformed",
        FirstHello::TooLong => "too long",
        FirstHello::Alert => "alert",
        FirstHello::NoHello => "no hello",
        FirstHello::NotTls => "not tls",
    };
    assert_eq!(name(b""), "need");
    assert_eq!(name(b"GET / HTTP/1.1"), "not tls");
    assert_eq!(name(&[0x16]), "need");
    assert_eq!([name(&[0x16, 2]), name(&[0x16, 3, 5]), name(&[0x19])], ["not tls"; 3]);
    assert_eq!(name(&tls_record(ALERT, &[2, 40])), "alert");
    assert_eq!(name(&tls_record(ALERT, &[1, 0])), "alert", "nothing follows a close");
    assert_eq!(name(&tls_record(ALERT, &[1, 112])), "need", "a hello may follow a warning");
    assert_eq!(name(&tls_record(ALERT, &[9; 26])), "no hello", "encrypted");
    assert_eq!(name(&tls_record(CHANGE_CIPHER_SPEC, &[2])), "no hello");
    assert_eq!(name(&tls_record(CHANGE_CIPHER_SPEC, &[1]).repeat(20_000)), "too long");
    assert_eq!(name(&tls_record(23, b"data")), "no hello");
    assert_eq!(name(&tls_record(HANDSHAKE, &handshake_message(4, b""))), "no hello");
    assert_eq!(name(&[HANDSHAKE, 3, 1, 0, 0, 1]), "not tls");
    assert_eq!(name(&[HANDSHAKE, 3, 1, 0xff, 0xff, 1]), "not tls");
    assert_eq!(
        name(&tls_record(HANDSHAKE, &handshake_message(1, &client_hello_body()[..60]))),
        "malformed"
    );
    assert_eq!(name(&tls_record(HANDSHAKE, &[1, 0, 0x80, 1])), "too long");
    let mixed = [tls_record(HANDSHAKE, &[1, 0, 0, 9, 3, 3]), tls_record(23, b"data")].concat();
    assert_eq!(name(&mixed), "malformed", "another content inside a message");
    let small_records: Vec<u8> = [1, 0, 0x7f, 0]
        .into_iter()
        .chain([0; 32_000])
        .flat_map(|byte| tls_record(HANDSHAKE, &[byte]))
        .collect();
    assert_eq!(name(&small_records), "too long", "in records of one byte");
}

#[test]
fn tls_versions_are_displayed_and_negotiated() {
    let display = |value: u16| Version(value).to_string();
    assert_eq!([display(0x0300), display(0x0301), display(0x0304)], ["SSL 3.0", "1.0", "1.3"]);
    assert_eq!([display(0x7f1c), display(0x0a0a)], ["1.3", "0x0a0a"]);
    assert!(is_grease(0x0a0a) && is_grease(0xfafa) && !is_grease(0x0a1a) && !is_grease(0x0b0b));
    // Without the extension at most TLS 1.2 is negotiated.
    let mut body = client_hello_body();
    body.truncate(2 + 32 + 5 + 8 + 2);
    body[1] = 9;
    assert_eq!(ClientHello::parse(&body).unwrap().highest_offered_version(), Version::TLS12);
}

#[test]
fn cipher_suites_are_displayed_by_name() {
    assert_eq!(CipherSuite(0xc02f).to_string(), "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256");
    assert_eq!((CipherSuite(0x1303).name(), CipherSuite(0x4a4a).to_string().as_str()), {
        (Some("CHACHA20_POLY1305_SHA256"), "0x4a4a")
    });
    for number in 0..=u16::MAX {
        assert!(CipherSuite(number).name().is_none_or(|name| !name.is_empty()));
    }
    assert_eq!((0..=u16::MAX).filter(|number| CipherSuite(*number).name().is_some()).count(), 381);
}

/// Reads every field of a hello. Returns a number that is computed from all fields and is at most
/// the number of bytes; 0 if there is no hello.
fn read_every_field(bytes: &[u8], room: &mut Vec<u8>) -> usize {
    match find_first_hello(bytes, room) {
        FirstHello::Client(hello) => {
            let lists = hello.offered_cipher_suites().count() + hello.extensions().count();
            let more = hello.offered_protocols().count() + hello.signature_algorithms().count();
            let name = hello.server_name().map_or(0, <[u8]>::len);
            lists + more + name + usize::from(hello.highest_offered_version().0 & 1)
        }
        FirstHello::Server(hello) => {
            hello.extensions().count() + hello.negotiated_protocol().map_or(0, <[u8]>::len)
        }
        FirstHello::NeedBytes(need) => {
            assert!(need > bytes.len());
            0
        }
        _ => 0,
    }
}

#[test]
fn tls_parser_terminates_on_damaged_hellos() {
    let mut room = Vec::new();
    for body in [
        handshake_message(1, &client_hello_body()),
        handshake_message(2, &server_hello_body([1; 32])),
    ] {
        let in_two: Vec<u8> =
            body.chunks(90).flat_map(|piece| tls_record(HANDSHAKE, piece)).collect();
        for bytes in [tls_record(HANDSHAKE, &body), in_two] {
            for at in 0..bytes.len() {
                read_every_field(&bytes[..at], &mut room);
                for bit in 0..8 {
                    let mut bytes = bytes.clone();
                    bytes[at] ^= 1 << bit;
                    assert!(read_every_field(&bytes, &mut room) <= bytes.len());
                }
            }
        }
    }
    let mut random = testkit::Random::with_replayable_seed();
    for _ in 0..3000 {
        let length = random.within(0..400);
        let body = random.bytes(length);
        read_every_field(
            &tls_record(HANDSHAKE, &handshake_message(1 + (length % 2) as u8, &body)),
            &mut room,
        );
        read_every_field(&body, &mut room);
    }
}
