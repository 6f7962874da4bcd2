//! Loom models of a pool segment whose blocks cross to another space and are read there (`pool` M4
//! and `crossing` C3), in all interleavings with a bounded number of preemptions. Loom reports
//! every access to the bytes that the protocol does not order before their reuse.

use super::*;
use crate::OverflowPolicy;
use crate::ibuf::{self, EntryColumns, PointerReader, PointerWriter, RingConfig};
use abi::{Class, DbufId, Entry, RichPointer};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

struct SlotModel {
    slots: Slots,
    bytes: SlotBytes,
}

/// The bytes of slot 0. There is no data, because loom only tracks the order of accesses.
struct SlotBytes(UnsafeCell<()>);

#[expect(unsafe_code, reason = "loom judges whether the accesses race")]
// SAFETY: the cell holds nothing.
unsafe impl Sync for SlotBytes {}

impl SlotBytes {
    fn track_write(&self) {
        self.0.with_mut(|_| ());
    }

    fn track_read(&self) {
        self.0.with(|_| ());
    }
}

/// Acts as the pool's thread: fills segment 0, sends a block of the segment, and reuses the slot as
/// soon as it is free.
fn run_writer(state: &SlotModel, writer: &mut PointerWriter) {
    state.slots.assign_segment(0, 0);
    state.bytes.track_write();
    state.slots.set_filled_len(0, 64);
    state.slots.lease(0);
    let mut entry = Entry::default();
    let dbuf = DbufId::new(1).unwrap();
    entry.pointer = RichPointer::new(dbuf, Extent::new(0, 64), Class::YES);
    writer.push(&[entry]).unwrap();
    while writer.cursor.refresh_reader_positions().unwrap() < 1 {
        thread::yield_now();
    }
    state.slots.return_lease(0);
    while !state.slots.recycle(0) {
        thread::yield_now();
    }
    state.bytes.track_write();
}

/// Acts as the reading space until it has located the block.
fn locate_block(state: &SlotModel, reader: &mut PointerReader) {
    while reader.unread_entries().unwrap() == 0 {
        thread::yield_now();
    }
    let entry = reader.load(0);
    assert_eq!(state.slots.locate(entry.pointer.place), Ok((0, 0)));
}

fn release_after_reading(reader: &mut PointerReader) {
    reader.cursor.next += 1;
    reader.cursor.release();
}

fn check_segment_reuse(
    read: impl Fn(&SlotModel, &mut PointerReader) + Send + Sync + Clone + 'static,
) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let slots = Slots::new(4096, 2);
        let state = Arc::new(SlotModel { slots, bytes: SlotBytes(UnsafeCell::new(())) });
        let config = RingConfig {
            entries: 1,
            columns: EntryColumns::Pointer,
            policy: OverflowPolicy::Block,
            readers: 1,
        };
        let (mut writer, mut readers) = ibuf::ring(&config);
        let mut reader = readers.remove(0);
        let (there, read) = (state.clone(), read.clone());
        let reading = thread::spawn(move || read(&there, &mut reader));
        run_writer(&state, &mut writer);
        reading.join().unwrap();
    });
}

#[test]
fn segment_is_reused_only_after_the_last_read() {
    check_segment_reuse(|state, reader| {
        locate_block(state, reader);
        state.bytes.track_read();
        release_after_reading(reader);
    });
}

#[test]
fn lease_taken_while_reading_delays_reuse() {
    check_segment_reuse(|state, reader| {
        locate_block(state, reader);
        state.slots.lease(0);
        release_after_reading(reader);
        state.bytes.track_read();
        state.slots.return_lease(0);
    });
}
