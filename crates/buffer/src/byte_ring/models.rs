//! Loom models of a ring of bytes between two processes, in all interleavings with a bounded number
//! of preemptions. The models run the production code for positions and waits. Bytes are cells, so
//! loom reports concurrent accesses to a byte. Sockets only count notifications. A lost wake-up is
//! a deadlock, which loom reports, too. Verified: without any one of the four fences, or with a
//! relaxed load or store of either position, a model fails.

use super::{ByteRingReader, ByteRingWriter, Notification, ReaderState, RingWord, RingWordAccess};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

/// Runs a loom model in all interleavings with at most `preemptions` preemptions.
fn run_model(preemptions: usize, check: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(check);
}

/// One direction of a modelled socket between the writer and the reader of a ring.
#[derive(Default)]
struct Direction {
    /// Number of undrained notifications, and a flag that is true once the sender has closed its
    /// end.
    state: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl Direction {
    fn send(&self) {
        self.state.lock().unwrap().0 += 1;
        self.changed.notify_one();
    }

    fn close(&self) {
        self.state.lock().unwrap().1 = true;
        self.changed.notify_one();
    }

    fn next(&self) -> Notification {
        let mut state = self.state.lock().unwrap();
        match *state {
            (0, true) => Notification::Closed,
            (0, false) => Notification::Pending,
            _ => {
                state.0 -= 1;
                Notification::Taken
            }
        }
    }

    /// Blocks until a notification arrives or the sender has closed its end.
    fn wait(&self) {
        let mut state = self.state.lock().unwrap();
        while *state == (0, false) {
            state = self.changed.wait(state).unwrap();
        }
    }

    fn is_closed(&self) -> bool {
        self.state.lock().unwrap().1
    }
}

/// The memory and the socket that the writer and the reader of a ring share.
struct Shared {
    words: [AtomicU64; 4],
    bytes: Vec<UnsafeCell<u64>>,
    to_reader: Direction,
    to_writer: Direction,
}

/// A handle through which the writer or the reader accesses the shared memory and the socket.
#[derive(Clone)]
struct Ring(Arc<Shared>);

impl RingWordAccess for Ring {
    fn load(&self, word: RingWord) -> u64 {
        self.0.words[word.offset() / 64].load(Ordering::Acquire)
    }

    fn store(&self, word: RingWord, value: u64) {
        self.0.words[word.offset() / 64].store(value, Ordering::Release);
    }
}

type Writer = ByteRingWriter<Ring>;
type Reader = ByteRingReader<Ring>;

fn create_ring(size: usize) -> (Writer, Reader) {
    let shared = Shared {
        words: [0; 4].map(AtomicU64::new),
        bytes: (0..size).map(|_| UnsafeCell::new(u64::MAX)).collect(),
        to_reader: Direction::default(),
        to_writer: Direction::default(),
    };
    let ring = Ring(Arc::new(shared));
    (ByteRingWriter::new(ring.clone(), size), ByteRingReader::new(ring, size))
}

/// Calls `access` with the byte of the ring at a position. Loom reports concurrent accesses to this
/// byte.
fn access_byte<T>(ring: &Ring, position: u64, access: impl FnOnce(&mut u64) -> T) -> T {
    let cell = &ring.0.bytes[position as usize % ring.0.bytes.len()];
    // SAFETY: loom reports concurrent accesses.
    cell.with_mut(|byte| access(unsafe { &mut *byte }))
}

/// Puts up to `count` bytes into the ring, as many as fit. The value of each byte is its position.
/// Returns the number of bytes put.
fn put(writer: &mut Writer, count: u64) -> u64 {
    let ring = writer.words().clone();
    let room = (ring.0.bytes.len() - writer.used_bytes().unwrap()) as u64;
    let (from, count) = (writer.written_byte_count(), count.min(room));
    for position in from..from + count {
        access_byte(&ring, position, |byte| *byte = position);
    }
    if count > 0 {
        writer.publish(count as usize);
    }
    count
}

/// Puts `total` bytes into the ring, up to `each` at once, and notifies the reader, as a tap does.
/// Stops if the reader has closed its socket; returns the number of bytes written.
fn write_all(writer: &mut Writer, total: u64, each: u64) -> u64 {
    let ring = writer.words().clone();
    while writer.written_byte_count() < total {
        match put(writer, each.min(total - writer.written_byte_count())) {
            0 if ring.0.to_writer.is_closed() => break,
            0 => {
                if !writer.announce_wait() {
                    ring.0.to_writer.wait();
                    while ring.0.to_writer.next() == Notification::Taken {}
                }
            }
            _ => {
                if writer.take_reader_waits() {
                    ring.0.to_reader.send();
                }
            }
        }
    }
    writer.written_byte_count()
}

/// Takes up to `each` bytes at once until the end or until `limit` bytes were taken. Asserts their
/// order. Returns the number of bytes taken.
fn read_all(reader: &mut Reader, each: usize, limit: u64) -> u64 {
    let ring = reader.words().clone();
    while reader.taken_byte_count() < limit {
        match reader.poll_state(|| ring.0.to_reader.next()).unwrap() {
            ReaderState::Bytes(available) => {
                let count = available.min(each);
                for position in reader.taken_byte_count()..reader.taken_byte_count() + count as u64
                {
                    let byte = access_byte(&ring, position, |byte| *byte);
                    assert_eq!(byte, position, "lapped or torn");
                }
                if reader.take(count) {
                    ring.0.to_writer.send();
                }
            }
            ReaderState::Empty => ring.0.to_reader.wait(),
            ReaderState::End => break,
        }
    }
    reader.taken_byte_count()
}

fn transfer(size: usize, (total, each): (u64, u64), taken: usize) {
    let (mut writer, mut reader) = create_ring(size);
    let reading = thread::spawn(move || read_all(&mut reader, taken, u64::MAX));
    assert_eq!(write_all(&mut writer, total, each), total);
    writer.words().0.to_reader.close();
    assert_eq!(reading.join().unwrap(), total);
}

#[test]
fn full_ring_loses_neither_bytes_nor_wake_ups() {
    run_model(3, || transfer(2, (4, 1), 2));
}

#[test]
fn writer_is_woken_once_half_of_the_ring_is_free() {
    run_model(2, || transfer(4, (7, 4), 1));
}

#[test]
fn reader_of_single_bytes_is_woken_for_each() {
    run_model(3, || transfer(4, (3, 1), 1));
}

#[test]
fn writer_at_full_ring_stops_when_reader_closes() {
    for limit in 0..2 {
        run_model(3, move || {
            let (mut writer, mut reader) = create_ring(2);
            let reading = thread::spawn(move || {
                let taken = read_all(&mut reader, 1, limit);
                reader.words().0.to_writer.close();
                taken
            });
            let written = write_all(&mut writer, 5, 2);
            assert_eq!(reading.join().unwrap(), limit);
            assert!((2..=2 + limit).contains(&written), "{written}");
        });
    }
}

#[test]
fn bytes_of_a_killed_writer_stay_readable() {
    run_model(3, || {
        let (mut writer, mut reader) = create_ring(4);
        let reading = thread::spawn(move || read_all(&mut reader, 4, u64::MAX));
        assert_eq!(write_all(&mut writer, 1, 1), 1);
        // The writer is killed between the publication of bytes and the notification.
        assert_eq!(put(&mut writer, 2), 2);
        writer.words().0.to_reader.close();
        assert_eq!(reading.join().unwrap(), 3);
    });
}
