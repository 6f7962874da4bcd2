//! Tests of the DNS parser with literal and truncated messages, flipped bits, and noise.

use super::*;

/// Builds a response about `www.example.com` with an alias, two addresses and an OPT record.
fn build_response() -> Vec<u8> {
    let mut bytes = vec![0x12, 0x34, 0x85, 0x83, 0, 1, 0, 3, 0, 0, 0, 1];
    bytes.extend(b"\x03www\x07example\x03com\0\0\x01\0\x01");
    // www.example.com CNAME web.example.com
    bytes.extend([0xc0, 12, 0, 5, 0, 1, 0, 0, 1, 0x2c, 0, 6]);
    bytes.extend([3, b'w', b'e', b'b', 0xc0, 16]);
    bytes.extend([0xc0, 45, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 7]);
    bytes.extend([0xc0, 45, 0, 28, 0, 1, 0, 0, 0, 61, 0, 16]);
    bytes.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    bytes.extend([0, 0, 41, 0x10, 0, 0x01, 0, 0x80, 0, 0, 0]);
    bytes
}

/// Returns one line of text per entry of a message, and the fault that ended the parsing, or `None`
/// if there was none.
fn format_message(bytes: &[u8]) -> (Vec<String>, Option<DnsFault>) {
    let Some(message) = Message::parse(bytes) else { return (Vec::new(), None) };
    let mut lines = Vec::new();
    for entry in message.entries() {
        lines.push(match entry {
            Ok(MessageEntry::Question(q)) => format!("{} {} {}?", q.name, q.kind, q.class),
            Ok(MessageEntry::Record(r)) => {
                format!("{:?} {} {} {} {} {}", r.section, r.name, r.ttl, r.class, r.kind, r.data)
            }
            Err(fault) => return (lines, Some(fault)),
        });
    }
    (lines, None)
}

fn format_record_data(kind: u16, data: &[u8]) -> String {
    ResourceData::read(data, RecordType(kind), 0, data.len()).unwrap().to_string()
}

#[test]
fn response_is_parsed_completely() {
    let bytes = build_response();
    let message = Message::parse(&bytes).unwrap();
    assert_eq!((message.id(), message.opcode(), message.rcode()), (0x1234, Opcode(0), Rcode(3)));
    assert!(message.is_response() && message.is_likely_dns(bytes.len()));
    assert_eq!(message.flags().collect::<Vec<_>>(), ["aa", "rd", "ra"]);
    assert_eq!((message.question_count(), message.record_count(Section::Answer)), (1, 3));
    let (lines, fault) = format_message(&bytes);
    assert_eq!(
        lines,
        [
            "www.example.com A IN?",
            "Answer www.example.com 300 IN CNAME web.example.com",
            "Answer web.example.com 60 IN A 192.0.2.7",
            "Answer web.example.com 61 IN AAAA 2001:db8::1",
            "Additional . 16809984 CLASS4096 OPT \\# 0",
        ]
    );
    assert_eq!(fault, None);
    let extended = message.entries().find_map(|entry| match entry {
        Ok(MessageEntry::Record(record)) => record.extended_rcode_bits(),
        _ => None,
    });
    assert_eq!(extended, Some(0x10), "BADVERS has its upper bits in the OPT record");
    let mut entries = message.entries();
    assert!(entries.by_ref().all(|entry| entry.is_ok()));
    assert_eq!(entries.offset(), bytes.len());
}

#[test]
fn names_are_escaped_as_in_master_files() {
    let text = |name: &[u8]| Name::read(name, 0).unwrap().0.to_string();
    assert_eq!(text(b"\0"), ".");
    assert_eq!(text(b"\x03WwW\x03org\0"), "WwW.org");
    // The next two are examples of RFC 4343 §2.1.
    assert_eq!(text(b"\x16Donald E. Eastlake 3rd\0"), r"Donald\032E\.\032Eastlake\0323rd");
    assert_eq!(text(b"\x03\x00a\xff\0"), r"\000a\255");
    assert_eq!(text(b"\x07a\\\"(;)@\x01$\0"), r#"a\\\"\(\;\)\@.\$"#);
}

#[test]
fn invalid_names_are_rejected() {
    let fault = |bytes: &[u8], at: usize| Name::read(bytes, at).err();
    assert_eq!(fault(b"\xc0\0", 0), Some(DnsFault::Invalid(0)), "it points at itself");
    assert_eq!(fault(b"\x01a\xc0\x00", 0), Some(DnsFault::Invalid(0)), "a loop");
    assert_eq!(fault(b"\xc0\x02\xc0\0", 0), Some(DnsFault::Invalid(2)), "a loop of two");
    assert_eq!(fault(b"\xc0\x09\0", 0), Some(DnsFault::Truncated(9)), "behind the end");
    assert_eq!(fault(b"\x40a\0", 0), Some(DnsFault::Invalid(0)), "an extended label");
    assert_eq!(fault(b"\x3fa\0", 0), Some(DnsFault::Truncated(0)));
    assert_eq!((fault(b"\x01a", 0), fault(b"", 0), fault(b"\xc0", 0)), {
        (Some(DnsFault::Truncated(2)), Some(DnsFault::Truncated(0)), Some(DnsFault::Truncated(0)))
    });
    let long = |labels: usize, last: u8| {
        let mut bytes = [&[63][..], &[b'x'; 63]].concat().repeat(labels);
        bytes.push(last);
        bytes.extend(vec![b'x'; usize::from(last)]);
        bytes.push(0);
        bytes
    };
    assert!(Name::read(&long(3, 61), 0).is_ok(), "255 bytes");
    assert_eq!(fault(&long(3, 62), 0), Some(DnsFault::Invalid(0)), "256 bytes");
    // A chain of pointers to pointers is followed up to the maximum number of labels of a name.
    let mut chain = vec![0, 0];
    for number in 0..300u16 {
        chain.extend((0xc000 | (number * 2)).to_be_bytes());
    }
    assert!(Name::read(&chain, 2 * 127).is_ok());
    assert_eq!(fault(&chain, 2 * 128), Some(DnsFault::Invalid(2)));
}

#[test]
fn name_in_a_record_ends_after_a_pointer() {
    let bytes = b"\x03com\0\x02ab\xc0\x00\x01c\xc0\x05rest";
    let (name, after) = Name::read(bytes, 10).unwrap();
    assert_eq!((name.to_string().as_str(), after), ("c.ab.com", 14));
    assert_eq!(name.labels().collect::<Vec<_>>(), [&b"c"[..], b"ab", b"com"]);
}

/// Checks that a forward pointer is followed and reported. RFC 1035 §4.1.4 allows only
/// pointers to "a prior occurrence", but resolvers follow forward pointers too.
#[test]
fn forward_pointer_is_followed_and_reported() {
    let bytes = b"\x01a\xc0\x06..\x02bc\0";
    let (name, after) = Name::read(bytes, 0).unwrap();
    assert_eq!((name.to_string().as_str(), after, name.has_forward_pointer()), ("a.bc", 4, true));
    let (name, _) = Name::read(b"\x02ab\0\x01c\xc0\0", 4).unwrap();
    assert!(!name.has_forward_pointer());
}

#[test]
fn record_data_are_formatted_by_type() {
    let ns = b"\x02ns\0";
    assert_eq!(format_record_data(2, ns), "ns");
    assert_eq!(format_record_data(15, b"\0\x0a\x02mx\0"), "10 mx");
    assert_eq!(format_record_data(33, b"\0\x01\0\x02\x14\x66\x01h\0"), "1 2 5222 h");
    assert_eq!(format_record_data(16, b"\x05v=a b\x02\"\xff\0"), r#""v=a b" "\"\255" """#);
    assert_eq!(format_record_data(257, b"\0\x05issueca.example"), r#"0 issue "ca.example""#);
    assert_eq!(format_record_data(65, b"\0\x01\0\0\x01\0\x03\x02h2"), "1 . alpn=h2");
    let soa = [&ns[..], b"\x02me\0", &[0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 5]];
    assert_eq!(format_record_data(6, &soa.concat()), "ns me 1 2 3 4 5");
    assert_eq!(
        format_record_data(35, b"\0\x64\0\x0a\x01s\x07SIP+D2T\0\x01p\0"),
        r#"100 10 "s" "SIP+D2T" "" p"#
    );
    assert_eq!(format_record_data(35, b"\0\x64\0\x0a\x01s\x07SIP"), r"\# 10 0064000a017307534950");
    assert_eq!(format_record_data(999, b"\x01\xab"), r"\# 2 01ab");
    assert_eq!(format_record_data(1, b"\x01\x02"), r"\# 2 0102", "no address has two bytes");
    assert_eq!(format_record_data(5, b"\x02ns\0x"), r"\# 5 026e730078", "bytes behind the name");
    assert_eq!(format_record_data(16, b"\x05a"), r"\# 2 0561");
    assert_eq!(format_record_data(10, &[0; 99]).len(), 6 + 2 * 64 + 3);
}

/// Checks the output for the parameters in RFC 9460 appendix D, and for parameters that the
/// appendix does not cover.
#[test]
fn service_parameters_are_formatted() {
    let format =
        |parameters: &[u8]| format_record_data(64, &[b"\0\x10\x01a\0", parameters].concat());
    assert_eq!(format(b""), "16 a");
    assert_eq!(format(b"\0\x03\0\x02\0\x35"), "16 a port=53");
    assert_eq!(format(b"\x02\x9b\0\x05hello"), r#"16 a key667="hello""#);
    assert_eq!(format(b"\x02\x9b\0\x09hello\xd2qo\""), r#"16 a key667="hello\210qo\"""#);
    assert_eq!(format(b"\x02\x9b\0\0"), "16 a key667");
    let hints = b"\0\x04\0\x08\xc0\0\x02\x01\xc0\0\x02\x02\0\x05\0\x03\x01\x02\x03";
    assert_eq!(format(hints), "16 a ipv4hint=192.0.2.1,192.0.2.2 ech=AQID");
    let six = [&b"\0\x06\0\x10\x20\x01\x0d\xb8"[..], &[0; 11], &[1]].concat();
    assert_eq!(format(&six), "16 a ipv6hint=2001:db8::1");
    let mandatory = b"\0\0\0\x04\0\x01\0\x04\0\x01\0\x09\x02h2\x05h3-19\0\x02\0\0";
    let expected = "16 a mandatory=alpn,ipv4hint alpn=h2,h3-19 no-default-alpn";
    assert_eq!(format(mandatory), expected);
    assert_eq!(format(b"\0\x01\0\x0c\x08f\\oo,bar\x02h2"), r"16 a alpn=f\\\\oo\\,bar,h2");
}

#[test]
fn malformed_service_parameters_are_hexadecimal() {
    for parameters in [
        &b"\0\x03\0\x02\0"[..],
        b"\0\x03\0",
        b"\0\x03\0\x01\0",
        b"\0\x01\0\x03\x05h2",
        b"\0\x01\0\x01\0",
        b"\0\x02\0\x01x",
        b"\0\x04\0\x03\x01\x02\x03",
        b"\0\x06\0\0",
        b"\0\0\0\x01\0",
        b"\x02\x9b\0\0\x02\x9b\0\0",
        b"\x02\x9b\0\0\0\x02\0\0",
    ] {
        let data = [b"\0\x01\0", parameters].concat();
        let text = format_record_data(65, &data);
        assert!(text.starts_with(&format!("\\# {} 000100", data.len())), "{text}");
    }
}

#[test]
fn likely_dns_messages_are_recognized() {
    let header = |second: u16, counts: [u16; 4]| {
        let words = [[7, second], [counts[0], counts[1]], [counts[2], counts[3]]].concat();
        words.into_iter().flat_map(u16::to_be_bytes).collect::<Vec<u8>>()
    };
    let likely = |second: u16, counts: [u16; 4], length: usize| {
        Message::parse(&header(second, counts)).unwrap().is_likely_dns(length)
    };
    assert!(likely(0x0100, [1, 0, 0, 0], 17) && !likely(0x0100, [1, 0, 0, 0], 16));
    assert!(likely(0x8000, [0; 4], 12) && !likely(0, [0; 4], 12), "an empty response, and query");
    assert!(likely(0x3000, [0; 4], 12), "a stateful operation");
    assert!(likely(0, [0, 0, 0, 1], 23) && !likely(0, [0, 1, 0, 0], 23), "a cookie alone");
    assert!(likely(0x2800, [1, 0, 1, 0], 28) && !likely(0x2800, [0, 0, 1, 0], 28), "an update");
    assert!(!likely(0x0003, [1, 0, 0, 0], 17), "a query has no response code");
    assert!(!likely(0x1800, [1, 0, 0, 0], 100) && !likely(0x7800, [1, 0, 0, 0], 100));
    assert!(!likely(0, [1, 0, 0, u16::MAX], 65_535));
    assert!(Message::parse(&[0; 11]).is_none());
}

/// Checks that a message with an unusual header counts as DNS if the bytes are exactly one message.
#[test]
fn unusual_header_is_dns_if_bytes_are_one_message() {
    let message = |second: u16, counts: [u16; 4], rest: &[u8]| {
        let words = [[7, second], [counts[0], counts[1]], [counts[2], counts[3]]].concat();
        let header = words.into_iter().flat_map(u16::to_be_bytes);
        header.chain(rest.iter().copied()).collect::<Vec<u8>>()
    };
    let question = b"\x01a\x03com\0\0\x01\0\x01";
    let address = b"\0\0\x01\0\x01\0\0\0\x05\0\x04\x0a\0\0\x01";
    for (second, counts, rest) in [
        (0x0103, [1, 0, 0, 0], &question[..]),
        (0x4900, [1, 0, 0, 0], question),
        (0x0900, [0, 1, 0, 0], address),
        (0xc804, [0; 4], b""),
    ] {
        let bytes = message(second, counts, rest);
        let read = Message::parse(&bytes).unwrap();
        assert!(!read.is_likely_dns(bytes.len()) && read.is_exactly_one_message(), "{second:04x}");
        let more = [&bytes[..], b"x"].concat();
        assert!(
            !Message::parse(&more).unwrap().is_exactly_one_message(),
            "{second:04x}: bytes behind it"
        );
        let less = &bytes[..bytes.len() - 1];
        assert!(
            Message::parse(less).is_none_or(|less| !less.is_exactly_one_message()),
            "{second:04x}: cut"
        );
    }
    assert!(
        !Message::parse(&message(0x4900, [0; 4], b"")).unwrap().is_exactly_one_message(),
        "it says nothing"
    );
}

#[test]
fn dns_number_names_are_sorted_and_displayed() {
    assert!(
        RECORD_TYPE_NAMES.is_sorted_by(|a, b| a.1 < b.1)
            && RCODE_NAMES.is_sorted_by(|a, b| a.1 < b.1)
    );
    assert_eq!(format!("{} {}", RecordType(28), RecordType(77)), "AAAA TYPE77");
    assert_eq!(format!("{} {}", Rcode(3), Rcode(4000)), "NXDOMAIN RCODE4000");
    assert_eq!(format!("{} {}", RecordClass(1), RecordClass(0x8001)), "IN CLASS32769");
}

#[test]
fn truncated_message_is_not_reported_as_invalid() {
    let bytes = build_response();
    let (whole, _) = format_message(&bytes);
    for cut in HEADER_LENGTH..bytes.len() {
        let (lines, fault) = format_message(&bytes[..cut]);
        assert_eq!(lines, whole[..lines.len()], "{cut}");
        assert!(matches!(fault, Some(DnsFault::Truncated(at)) if at <= cut), "{cut}: {fault:?}");
    }
}

#[test]
fn parser_terminates_on_flipped_bits_and_noise() {
    let bytes = build_response();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1 << bit;
            let (lines, _) = format_message(&bytes);
            assert!(lines.len() <= bytes.len() / QUESTION_LENGTH_MIN);
        }
    }
    let mut random = testkit::Random::with_replayable_seed();
    for _ in 0..3000 {
        let length = random.within(0..600);
        let mut bytes = random.bytes(length);
        if let Some(counts) = bytes.get_mut(4..12) {
            counts.copy_from_slice(&[0, 9, 0, 9, 0, 9, 0, 9]);
        }
        let (lines, _) = format_message(&bytes);
        assert!(lines.len() <= 36);
    }
}

#[test]
fn worst_case_names_take_bounded_time() {
    // Every record's name is a pointer to the end of the longest allowed chain.
    let mut bytes = vec![0, 0, 0x80, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0];
    bytes.extend([0, 0, 1, 0, 1, 0, 0, 0, 0, 1, 0xf4]);
    let from = bytes.len() as u16;
    bytes.push(0);
    bytes.extend(
        (0..249u16).flat_map(|n| (0xc000 | from.max(from + 2 * n - n.min(1))).to_be_bytes()),
    );
    bytes.push(0);
    let last = (from + 1 + 2 * 125).to_be_bytes();
    while bytes.len() + 12 < 65_535 {
        bytes.extend([0xc0 | last[0], last[1], 0, 1, 0, 1, 0, 0, 0, 0, 0, 0]);
    }
    let message = Message::parse(&bytes).unwrap();
    let read = message.entries().filter(|entry| entry.is_ok()).count();
    assert!(read > 5000, "{read}");
}
