//! Tests of records: they survive a round trip, fields that do not fit are omitted, and malformed
//! bytes never cause a panic.

use super::*;

fn write_exchange(room: &mut [u8]) -> usize {
    let mut writer = Writer::new(room, RecordKind::HttpExchange);
    writer.add_text(Field::Method, b"GET");
    writer.add_number(Field::Status, 404);
    writer.add_number(Field::ResponseBody, 0);
    writer.add_number(Field::Time, u64::MAX);
    writer.add_text(Field::Data, b"one");
    writer.add_text(Field::Data, b"");
    writer.finish()
}

#[test]
fn record_survives_a_round_trip() {
    let mut room = [0; 100];
    let used = write_exchange(&mut room);
    let record = Record::parse(&room[..used]).unwrap();
    assert_eq!(record.kind(), RecordKind::HttpExchange);
    assert_eq!(record.text(Field::Method), Some(&b"GET"[..]));
    assert_eq!(record.number(Field::Status), Some(404));
    assert_eq!(record.number(Field::ResponseBody), Some(0));
    assert_eq!(record.number(Field::Time), Some(u64::MAX));
    assert_eq!((record.text(Field::Url), record.number(Field::Data)), (None, Some(0x65_6e6f)));
    let data = record.fields().filter(|(field, _)| *field == Field::Data);
    assert_eq!(data.map(|(_, value)| value).collect::<Vec<_>>(), [&b"one"[..], b""]);
    assert!(!record.is_truncated());
    let mut copy = [0; 100];
    let mut writer = Writer::new(&mut copy, RecordKind::HttpExchange);
    writer.add_all_fields(&record);
    assert_eq!(writer.finish(), used);
    assert_eq!(copy[..used], room[..used]);
}

#[test]
fn fields_that_do_not_fit_are_omitted_and_marked() {
    let mut whole = [0; 100];
    let used = write_exchange(&mut whole);
    for room in 0..=used {
        let mut bytes = vec![0; room];
        let used = write_exchange(&mut bytes);
        let Some(record) = Record::parse(&bytes[..used]) else {
            assert_eq!(used, 0);
            continue;
        };
        assert!(record.is_truncated(), "{room}");
        assert!(record.fields().count() < 6);
    }
    let mut room = vec![0; used + 1];
    let used = write_exchange(&mut room);
    assert!(!Record::parse(&room[..used]).unwrap().is_truncated());
    let long = vec![b'x'; TEXT_LENGTH_MAX + 1];
    for length in [TEXT_LENGTH_MAX, TEXT_LENGTH_MAX + 1] {
        let mut room = vec![0; 2 * TEXT_LENGTH_MAX];
        let mut writer = Writer::new(&mut room, RecordKind::Dns);
        writer.add_text(Field::Name, &long[..length]);
        let used = writer.finish();
        let record = Record::parse(&room[..used]).unwrap();
        assert_eq!(record.text(Field::Name).map(<[u8]>::len), Some(TEXT_LENGTH_MAX));
        assert_eq!(record.is_truncated(), length > TEXT_LENGTH_MAX);
        let mut copy = [0; 8];
        let mut writer = Writer::new(&mut copy, RecordKind::Dns);
        writer.inherit_truncation(&record);
        let used = writer.finish();
        assert_eq!(Record::parse(&copy[..used]).unwrap().is_truncated(), length > TEXT_LENGTH_MAX);
    }
}

#[test]
fn malformed_records_parse_without_panic() {
    assert!(Record::parse(b"").is_none() && Record::parse(&[0]).is_none());
    let mut room = [0; 100];
    let used = write_exchange(&mut room);
    for cut in 1..used {
        let record = Record::parse(&room[..cut]).unwrap();
        assert!(record.fields().count() < 6, "{cut}");
    }
    for at in 0..used {
        for bit in 0..8 {
            let mut bytes = room;
            bytes[at] ^= 1 << bit;
            if let Some(record) = Record::parse(&bytes[..used]) {
                let length: usize = record.fields().map(|(_, value)| value.len()).sum();
                assert!(length < used);
                let _ = record.is_truncated();
            }
        }
    }
}

#[test]
fn field_names_are_unique() {
    for (number, field) in Field::ALL.iter().enumerate() {
        assert_eq!(*field as usize, number);
        assert!(!Field::ALL[..number].iter().any(|other| other.json() == field.json()));
        assert!(field.about().ends_with('.') && field.about().len() < 90);
    }
    assert!(Field::ALL.len() < usize::from(OMITTED_MARKER));
}
