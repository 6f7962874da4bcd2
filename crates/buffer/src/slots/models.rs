//! All interleavings of the life of a segment that crosses to another space, by loom: `pool` M4 and
//! `crossing` C3. Loom reports every use of the bytes that the protocol does not order before their
//! reuse.

use super::*;
use crate::Policy;
use crate::ibuf::{self, Config, Lanes, Reader, Writer};
use abi::{Class, DbufId, Entry, RichPointer};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

struct World {
    slots: Slots,
    bytes: Bytes,
}

/// The content of slot 0. Nothing is read or written: loom only observes who looks, and when.
struct Bytes(UnsafeCell<()>);

#[expect(unsafe_code, reason = "loom judges whether the accesses race")]
// SAFETY: the cell holds nothing.
unsafe impl Sync for Bytes {}

impl Bytes {
    fn write(&self) {
        self.0.with_mut(|_| ());
    }

    fn read(&self) {
        self.0.with(|_| ());
    }
}

/// The pool's thread: fills segment 0, sends a block of it, and reuses the slot as soon as it may.
fn write(world: &World, writer: &mut Writer) {
    world.slots.open(0, 0);
    world.bytes.write();
    world.slots.fill(0, 64);
    world.slots.lease(0);
    let mut entry = Entry::default();
    let dbuf = DbufId::new(1).unwrap();
    entry.pointer = RichPointer::new(dbuf, Extent::new(0, 64), Class::YES);
    writer.push(&[entry]).unwrap();
    while writer.side.refresh().unwrap() < 1 {
        thread::yield_now();
    }
    world.slots.give_back(0);
    while !world.slots.recycle(0) {
        thread::yield_now();
    }
    world.bytes.write();
}

/// The other space: waits for the block and finds it in its slot.
fn find(world: &World, reader: &mut Reader) {
    while reader.waiting().unwrap() == 0 {
        thread::yield_now();
    }
    let entry = reader.load(0);
    assert_eq!(world.slots.locate(entry.pointer.place), Ok((0, 0)));
}

fn release(reader: &mut Reader) {
    reader.side.next += 1;
    reader.side.release();
}

fn model(read: impl Fn(&World, &mut Reader) + Send + Sync + Clone + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let slots = Slots::new(4096, 2);
        let world = Arc::new(World { slots, bytes: Bytes(UnsafeCell::new(())) });
        let config =
            Config { entries: 1, lanes: Lanes::Pointer, policy: Policy::Block, readers: 1 };
        let (mut writer, mut readers) = ibuf::ring(&config);
        let mut reader = readers.remove(0);
        let (there, read) = (world.clone(), read.clone());
        let reading = thread::spawn(move || read(&there, &mut reader));
        write(&world, &mut writer);
        reading.join().unwrap();
    });
}

#[test]
fn a_segment_is_reused_only_after_the_last_look() {
    model(|world, reader| {
        find(world, reader);
        world.bytes.read();
        release(reader);
    });
}

#[test]
fn a_lease_made_while_reading_keeps_the_segment_longer() {
    model(|world, reader| {
        find(world, reader);
        world.slots.lease(0);
        release(reader);
        world.bytes.read();
        world.slots.give_back(0);
    });
}
