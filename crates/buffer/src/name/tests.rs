//! Tests of named streams, regions and inboxes within one process. `tests/names.rs` tests access by
//! other users.

use super::*;
use crate::stream::Config;
use crate::{Fault, OverflowPolicy};
use abi::DbufId;
use abi::access::{AccessList, Credentials};
use std::sync::atomic::{AtomicU32, Ordering};
use sys::process::effective_ids;

/// Returns a name that no other test uses.
fn unique_name(of: &str) -> String {
    static NEXT_NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("test-{}-{}-{of}", std::process::id(), NEXT_NUMBER.fetch_add(1, Ordering::Relaxed))
}

fn stream_config() -> Config {
    Config::new(DbufId::new(7).unwrap()).capacity(4096)
}

#[test]
fn a19_stream_opened_by_name_starts_at_current_position() {
    let (host, name) = (NameHost::open().unwrap(), unique_name("stream"));
    assert!(matches!(open_stream(&name), Err(Error::Unknown(_))));
    let mut output = host
        .create(
            &name,
            AccessList::private(effective_ids()),
            &stream_config(),
            ReaderLimits::default(),
        )
        .unwrap();
    output.write(b"before").unwrap();
    output.flush();
    let (mut one, mut other) = (open_stream(&name).unwrap(), open_stream(&name).unwrap());
    output.write(b"after").unwrap();
    output.flush();
    for input in [&mut one, &mut other] {
        let mut out = [0; 16];
        assert_eq!((input.read(&mut out), &out[..5]), (Ok(5), &b"after"[..]));
    }
    assert_eq!(host.names()[0].readers, 2);
    drop(output);
    assert_eq!(one.read(&mut [0; 16]), Ok(0));
    assert!(host.names().is_empty(), "the name ends with the stream");
    let gone = open_stream(&name).unwrap_err();
    assert!(matches!(gone, Error::Unknown(_) | Error::Ended(_)), "{gone}");
    drop(
        host.create(
            &name,
            AccessList::private(effective_ids()),
            &stream_config(),
            ReaderLimits::default(),
        )
        .unwrap(),
    );
}

#[test]
fn errors_of_creating_and_opening_state_their_cause() {
    let (host, taken) = (NameHost::open().unwrap(), unique_name("taken"));
    let create = || {
        host.create(
            &taken,
            AccessList::private(effective_ids()),
            &stream_config(),
            ReaderLimits::default(),
        )
    };
    let output = create().unwrap();
    let (uid, _) = effective_ids();
    let refused = create().unwrap_err();
    assert_eq!(refused, Error::Taken(Address::for_current_user(&taken).unwrap()));
    assert!(refused.to_string().contains(&format!("{uid}/{taken}")), "{refused}");
    let inbox = open_inbox_writer(&taken, &stream_config()).unwrap_err().to_string();
    assert!(inbox.contains("a stream that its creator writes, not an inbox"), "{inbox}");
    assert!(matches!(open_region(&taken), Err(Error::Kind { is, .. }) if is.contains("stream")));
    drop(output);
    let unknown = open_stream(&unique_name("unknown")).unwrap_err().to_string();
    assert!(unknown.contains("has to create it first"), "{unknown}");
    for wrong in ["", "a b", "a/b", "x/y/z", "1000/", "-1/a", "+1/a", "4294967296/a", "ä", "\0"] {
        assert!(matches!(open_stream(wrong), Err(Error::Name { .. })), "{wrong:?}");
    }
    assert!(Address::for_current_user(&"n".repeat(65)).is_err());
    let longest: Address = format!("4294967295/{}", "n".repeat(64)).parse().unwrap();
    assert!(matches!(open_address(&longest), Err(Error::Unknown(_))), "it fits into an address");
}

#[test]
fn t12_reader_slots_are_limited_and_released() {
    let (host, name) = (NameHost::open().unwrap(), unique_name("places"));
    let limits = ReaderLimits { readers: 3, per_untrusted_user: 1 };
    let mut output =
        host.create(&name, AccessList::private(effective_ids()), &stream_config(), limits).unwrap();
    for _ in 0..5 {
        let readers: Vec<_> = (0..3).map(|_| open_stream(&name).unwrap()).collect();
        let full = open_stream(&name).unwrap_err();
        assert!(matches!(full, Error::Full { limit: 3, is_per_user: false, .. }), "{full}");
        output.write(b"to three").unwrap();
        output.flush();
        drop(readers);
        while host.names()[0].readers > 0 {
            std::thread::yield_now();
        }
    }
    assert!(output.reader_count() <= 6, "{}", output.reader_count());
}

#[test]
fn host_notifies_when_readers_join_or_leave() {
    let (host, name) = (NameHost::open().unwrap(), unique_name("events"));
    let event = std::sync::Arc::new(sys::eventfd::EventFd::new().unwrap());
    host.notify_on_reader_change(&event);
    let access = AccessList::private(effective_ids());
    let output = host.create(&name, access, &stream_config(), ReaderLimits::default()).unwrap();
    let wait_for = |readers: &[usize]| {
        let descriptor = std::os::fd::AsFd::as_fd(&*event);
        let counted = || Vec::from_iter(host.names().iter().map(|name| name.readers));
        while counted() != readers {
            sys::poll::wait_until_readable(&[descriptor], None);
            event.clear();
        }
    };
    wait_for(&[0]);
    let reader = open_stream(&name).unwrap();
    wait_for(&[1]);
    drop(reader);
    wait_for(&[0]);
    drop(output);
    wait_for(&[]);
}

#[test]
fn d17_region_is_read_and_written_at_any_offset() {
    let (host, name) = (NameHost::open().unwrap(), unique_name("region"));
    let mine = host.create_region(&name, AccessList::private(effective_ids()), 10_000).unwrap();
    let read_only = open_region(&name).unwrap();
    assert_eq!((read_only.len(), read_only.is_writable()), (10_000, false));
    assert_eq!(read_only.write_at(0, b"x"), Err(Error::ReadOnly));
    let mut expected = vec![0; 10_000];
    let mut random = testkit::Random::with_replayable_seed();
    for _ in 0..500 {
        let at = random.below(10_000);
        let length = random.below(10_000 - at).min(1 + at % 70);
        let bytes = random.bytes(usize::try_from(length).unwrap());
        mine.write_at(at, &bytes).unwrap();
        let at = usize::try_from(at).unwrap();
        expected[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    let mut content = vec![1; 10_000];
    read_only.read_at(0, &mut content).unwrap();
    assert!(content == expected);
    for (at, length) in [(10_000, 1), (9_999, 2), (u64::MAX, 1), (u64::MAX - 3, 9)] {
        assert!(matches!(mine.read_at(at, &mut vec![0; length]), Err(Error::Range { .. })));
        assert!(matches!(mine.write_at(at, &vec![0; length]), Err(Error::Range { .. })));
    }
    assert!(host.withdraw(&Address::for_current_user(&name).unwrap()));
    assert!(matches!(open_region(&name), Err(Error::Unknown(_))));
    mine.write_at(3, b"still").unwrap();
    read_only.read_at(3, &mut content[..5]).unwrap();
    assert_eq!(&content[..5], b"still");
}

#[test]
fn concurrent_writes_to_one_word_are_not_lost() {
    let (region, files) = SharedRegion::create(64, true).unwrap();
    let other = SharedRegion::open(files.write.unwrap(), 64, true, files.read).unwrap();
    let odd = std::thread::spawn(move || {
        for round in 0..20_000u32 {
            let value = [round as u8];
            other.write_at(u64::from(round % 4) * 2 + 1, &value).unwrap();
            let mut now = [0];
            other.read_at(u64::from(round % 4) * 2 + 1, &mut now).unwrap();
            assert_eq!(now, value, "the only writer of this byte");
        }
    });
    for round in 0..20_000u32 {
        let value = [round as u8];
        region.write_at(u64::from(round % 4) * 2, &value).unwrap();
        let mut now = [0];
        region.read_at(u64::from(round % 4) * 2, &mut now).unwrap();
        assert_eq!(now, value, "the only writer of this byte");
    }
    odd.join().unwrap();
}

#[test]
fn each_writer_to_an_inbox_has_its_own_stream() {
    let (host, name) = (NameHost::open().unwrap(), unique_name("inbox"));
    let access = AccessList { mode: 0o600, ..AccessList::private(effective_ids()) };
    let inbox = host.create_inbox(&name, access).unwrap();
    assert!(inbox.accept(Some(std::time::Duration::ZERO)).unwrap().is_none());
    // These writers send no offer, and do not delay other writers.
    let idle: Vec<_> = (0..40).map(|_| open(&name).unwrap()).collect();
    let mut outputs: Vec<_> = (0..3)
        .map(|_| {
            open_inbox_writer(&name, &stream_config().policy(OverflowPolicy::DropNew)).unwrap()
        })
        .collect();
    for (number, output) in outputs.iter_mut().enumerate() {
        output.write(&[number as u8; 10]).unwrap();
        output.flush();
    }
    let mut received = Vec::new();
    for _ in 0..3 {
        let mut arrival = inbox.accept(None).unwrap().unwrap();
        assert_eq!(arrival.credentials.uid, effective_ids().0);
        let mut out = [0; 20];
        assert_eq!(arrival.input.read(&mut out).unwrap(), 10);
        received.push(out[0]);
    }
    received.sort_unstable();
    assert_eq!(received, [0, 1, 2]);
    assert_eq!(idle.len(), 40);
    drop(inbox);
    assert!(matches!(
        open_inbox_writer(&name, &stream_config()),
        Err(Error::Unknown(_) | Error::Ended(_))
    ));
}

/// One user connects repeatedly and fills the queue. Only entries of that user that have sent no
/// offer are evicted, and their sockets are closed. Writers of other users stay in the queue.
#[test]
fn t12_frequent_writer_evicts_only_its_own_entries() {
    use super::inbox::{PendingWriter, WriterQueue};
    let (queue, _doorbell) = WriterQueue::new().unwrap();
    let queue = std::sync::Arc::new(queue);
    let _reader = queue.clone();
    let connect = |uid: u32| {
        let (own_end, peer_end) = sys::descriptor::socket_pair().unwrap();
        let credentials = Credentials { uid, gid: uid, groups: Vec::new() };
        assert!(queue.add(PendingWriter { credentials, process: 1, socket: peer_end }));
        own_end
    };
    let offers = |socket: &std::os::fd::OwnedFd| {
        sys::descriptor::send(socket, b"an offer", &[]).unwrap();
    };
    let honest: Vec<_> = (0..4).map(|uid| connect(1000 + uid)).collect();
    honest.iter().for_each(offers);
    // The greedy user sends an offer with every tenth connection.
    let greedy = (0..200).map(|at| (at, connect(2000)));
    let greedy = greedy.inspect(|(at, socket)| {
        if at % 10 == 0 {
            offers(socket);
        }
    });
    let greedy: Vec<_> = greedy.collect();
    let more: Vec<_> = (0..200).map(|_| connect(2000)).collect();
    let late = connect(3000);
    let gone = |socket: &std::os::fd::OwnedFd| {
        let ends = [std::os::fd::AsFd::as_fd(socket)];
        sys::poll::wait_until_readable_or_hung_up(&[], &ends, Some(std::time::Duration::ZERO)).1
            == [true]
    };
    assert!(honest.iter().chain([&late]).all(|socket| !gone(socket)), "each of them waits");
    let offered = greedy.iter().filter(|(at, _)| at % 10 == 0);
    assert_eq!(
        offered.filter(|(_, socket)| !gone(socket)).count(),
        20,
        "entries without an offer go first"
    );
    let all = greedy.iter().map(|(_, socket)| socket).chain(&more);
    assert_eq!(all.filter(|socket| !gone(socket)).count(), 32 - 5, "the evicted ones notice");
}

/// A writer that connects while the inbox closes is refused, because no reader would receive its
/// blocks.
#[test]
fn closing_inbox_refuses_writers() {
    let host = NameHost::open().unwrap();
    for round in 0..200 {
        let name = unique_name(&format!("gone{round}"));
        drop(host.create_inbox(&name, AccessList::private(effective_ids())).unwrap());
        let result = open_inbox_writer(&name, &stream_config());
        let refused = matches!(result, Err(Error::Unknown(_) | Error::Ended(_)));
        assert!(refused, "round {round}: {result:?}");
    }
}

#[test]
fn streams_outlive_the_host_but_not_their_writer() {
    let (host, name) = (NameHost::open().unwrap(), unique_name("outlives"));
    let mut output = host
        .create(
            &name,
            AccessList::private(effective_ids()),
            &stream_config(),
            ReaderLimits::default(),
        )
        .unwrap();
    let mut input = open_stream(&name).unwrap();
    drop(host);
    assert!(matches!(open_stream(&name), Err(Error::Unknown(_))));
    output.write(b"on").unwrap();
    output.flush();
    assert_eq!(input.read(&mut [0; 9]), Ok(2));
    drop(input);
    let fault = (0..10_000).find_map(|_| output.write(&[0; 100]).err());
    assert_eq!(fault, Some(Fault::Abandoned));
}
