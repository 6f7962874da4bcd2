//! Tests of rings of slots between processes of different users: delivery, counted losses, and
//! hostile writers. (FEATURES D11; RELIABILITY T1, T3, T5, T7)

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use abi::{DbufId, Extent};
use common::ring_memory::RingMemoryAccess;
use common::{OtherUserProcess, report, send, spawn_test_thread, wait_until, with_watchdog};
use std::fs::OpenOptions;
use std::io::stdin;
use std::os::fd::{AsFd, AsRawFd as _};
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};
use streamline_buffer::dbuf::fixed_size::{ForeignSlotReader, SlotConfig, SlotWriter, stream};
use streamline_buffer::share::{self, OfferRefusal, RingOffer};
use streamline_buffer::{Fault, OverflowPolicy};
use testkit::Random;

const BLOCK_COUNT: u64 = 40_000;
const SLOT_BYTES: usize = 256;

fn slot_config(policy: OverflowPolicy) -> SlotConfig {
    SlotConfig { slot: SLOT_BYTES, slots: 64, policy, ..SlotConfig::new(DbufId::new(1).unwrap()) }
}

fn numbered_block(number: u64) -> Vec<u8> {
    let mut block = vec![number.wrapping_mul(37) as u8; 8 + (number % 200) as usize];
    block[..8].copy_from_slice(&number.to_le_bytes());
    block
}

fn receive_offer(socket: impl AsFd) -> RingOffer {
    RingOffer::from_descriptors(common::receive(socket).1).unwrap()
}

fn open_slot_input(socket: impl AsFd) -> stream::SlotInput {
    stream::SlotOffer::from_descriptors(common::receive(socket).1).unwrap().open().unwrap()
}

/// Puts a block, after waiting for a free slot.
#[track_caller]
fn put_block(writer: &mut SlotWriter, number: u64) {
    wait_until("room for a block", || {
        writer.write(&numbered_block(number)).unwrap() || publish(writer)
    });
    if number.is_multiple_of(8) {
        publish(writer);
    }
}

fn publish(writer: &mut SlotWriter) -> bool {
    writer.publish();
    false
}

/// Reads to the end of the stream and checks each block. Returns the numbers of blocks taken and
/// lost.
#[track_caller]
fn drain(visitor: &mut ForeignSlotReader) -> (u64, u64) {
    let (mut out, mut next) = ([0; SLOT_BYTES], 0);
    wait_until("the end", || {
        while let Some(length) = visitor.read(&mut out).unwrap() {
            let number = u64::from_le_bytes(out[..8].try_into().unwrap());
            assert!(number >= next && out[..length] == numbered_block(number), "block {number}");
            next = number + 1;
        }
        visitor.is_finished().unwrap()
    });
    let counted = visitor.counts();
    assert_eq!(visitor.writer_counts().resident_blocks(&counted), Some(0));
    (counted.blocks, counted.lost)
}

#[test]
fn slots_reach_another_user_and_losses_are_counted() {
    for policy in [OverflowPolicy::Block, OverflowPolicy::Overwrite] {
        let Some(other) = OtherUserProcess::start("drain") else { return };
        let (mut writer, offers) = share::slot_ring(&slot_config(policy)).unwrap();
        send(&other, b"offer", &offers[0].descriptors());
        assert_eq!(other.receive_line().as_deref(), Some("ready"));
        (0..BLOCK_COUNT).for_each(|number| put_block(&mut writer, number));
        drop(writer);
        let report = other.receive_line().unwrap();
        let counts: Vec<u64> = report.split(' ').map(|n| n.parse().unwrap()).collect();
        assert_eq!(counts[0] + counts[1], BLOCK_COUNT, "{policy:?}");
        assert_eq!(counts[1] > 0, policy == OverflowPolicy::Overwrite && counts[0] < BLOCK_COUNT);
        other.wait_for_success();
    }
}

/// The writer stores arbitrary values into control words, table and slots. Each read returns a
/// block of at most one slot, nothing, or a fault.
#[test]
fn hostile_slot_writer_yields_only_blocks_or_faults() {
    for policy in ["block", "overwrite"] {
        let Some(mut other) = OtherUserProcess::start(&format!("ring_memory {policy}")) else {
            return;
        };
        let offer = receive_offer(&other);
        let again = || {
            let copies = offer.descriptors().map(|fd| fd.try_clone_to_owned().unwrap());
            RingOffer::from_descriptors(copies.into()).unwrap()
        };
        assert_eq!(other.receive_line().as_deref(), Some("scribbling"));
        let (mut blocks, mut faults, mut out) = (0, 0, [0; SLOT_BYTES]);
        let mut random = Random::with_replayable_seed();
        let mut visitor = again().open_slot_reader();
        // Continues until enough arbitrary values have hit a word that the reader checks.
        let patience = Instant::now() + Duration::from_secs(60);
        for look in 0_u64.. {
            if look >= 60_000 && (faults >= 10 || Instant::now() > patience) {
                break;
            }
            let Ok(reader) = &mut visitor else {
                // The start in the cursor page may be invalid.
                assert!(matches!(visitor, Err(OfferRefusal::Start(_))), "{visitor:?}");
                visitor = again().open_slot_reader();
                continue;
            };
            let place = Extent::new(random.next_u64(), random.below(300) as u32);
            let _copied = reader.copy(place, &mut out[..(place.length() as usize).min(SLOT_BYTES)]);
            if random.below(16) == 0 {
                let _skipped = reader.skip_to_latest();
            }
            match reader.read(&mut out) {
                Ok(Some(length)) => {
                    assert!(length <= SLOT_BYTES);
                    blocks += 1;
                }
                Ok(None) => {}
                Err(Fault::Poisoned { .. } | Fault::Damaged { .. }) => {
                    faults += 1;
                    visitor = again().open_slot_reader();
                }
                Err(other) => panic!("{other:?}"),
            }
        }
        println!("{policy}: {blocks} blocks, {faults} faults");
        assert!(faults > 0 && other.is_running());
        other.kill();
    }
}

/// A killed reader stalls neither the writer nor another reader.
#[test]
fn killed_slot_reader_stalls_no_other_party() {
    let mut random = Random::with_replayable_seed();
    for _ in 0..5 {
        let Some(mut other) = OtherUserProcess::start("read") else { return };
        let shape = SlotConfig { readers: 2, ..slot_config(OverflowPolicy::Block) };
        let (mut output, mut offers) = stream::stream(&shape, 8).unwrap();
        let mut honest = offers.remove(1).open().unwrap();
        send(&other, b"offer", &offers[0].descriptors());
        drop(offers);
        let reading = spawn_test_thread(move || {
            let (mut out, mut number) = ([0; SLOT_BYTES], 0);
            while let Some(length) = honest.read(&mut out).unwrap() {
                assert_eq!(out[..length], numbered_block(number));
                number += 1;
            }
            number
        });
        let last = random.below(BLOCK_COUNT / 4);
        for number in 0..BLOCK_COUNT / 4 {
            if number == last {
                other.kill();
            }
            assert!(with_watchdog("a slot", || output.write(&numbered_block(number)).unwrap()));
        }
        drop(output);
        assert_eq!(reading.join(), BLOCK_COUNT / 4);
    }
}

#[test]
fn published_slots_survive_a_killed_writer() {
    let mut random = Random::with_replayable_seed();
    for _ in 0..5 {
        let Some(mut other) = OtherUserProcess::start("write") else { return };
        let mut input = open_slot_input(&other);
        let (last, mut number, mut out) = (random.below(20_000), 0, [0; SLOT_BYTES]);
        let fault = loop {
            if number == last {
                other.kill();
            }
            match with_watchdog("a block", || input.read(&mut out)) {
                Ok(Some(length)) => assert_eq!(out[..length], numbered_block(number)),
                Ok(None) => panic!("it closed nothing"),
                Err(fault) => break fault,
            }
            number += 1;
        };
        assert_eq!((fault, input.writer_counts().blocks), (Fault::Abandoned, number));
    }
}

#[test]
fn slot_offer_is_read_only_and_opens_only_as_slots() {
    let (_writer, offers) = share::slot_ring(&slot_config(OverflowPolicy::Overwrite)).unwrap();
    let [geometry, ring, _] = offers[0].descriptors();
    for fd in [geometry, ring] {
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        assert!(file.write_at(&[0], 0).is_err() && file.set_len(0).is_err());
    }
    let copies = || {
        let copies = offers[0].descriptors().map(|fd| fd.try_clone_to_owned().unwrap());
        RingOffer::from_descriptors(copies.into()).unwrap()
    };
    assert!(matches!(copies().open_block_reader(), Err(OfferRefusal::Geometry(_))));
    assert!(matches!(copies().open_pointer_reader(), Err(OfferRefusal::Geometry(_))));
    copies().open_slot_reader().unwrap();
    let id = DbufId::new(2).unwrap();
    let (_writer, mut offers) =
        share::block_ring(&streamline_buffer::dbuf::BlockConfig::new(id)).unwrap();
    assert!(matches!(offers.remove(0).open_slot_reader(), Err(OfferRefusal::Geometry(_))));
}

// ---- in the other process

#[test]
#[ignore = "run by another test, in a process of its own"]
fn run_other_process() {
    let Some(role) = common::child_role() else { return };
    match role.as_str() {
        "drain" => {
            let mut visitor = receive_offer(stdin()).open_slot_reader().unwrap();
            report("ready");
            let (taken, lost) = drain(&mut visitor);
            report(&format!("{taken} {lost}"));
        }
        "read" => {
            let mut input = open_slot_input(stdin());
            while input.read(&mut [0; SLOT_BYTES]).unwrap().is_some() {}
        }
        "write" => {
            let (mut output, offers) =
                stream::stream(&slot_config(OverflowPolicy::Block), 8).unwrap();
            send(stdin(), b"offer", &offers[0].descriptors());
            (0..).try_for_each(|number| output.write(&numbered_block(number)).map(drop)).unwrap();
        }
        "ring_memory block" => store_arbitrary_values(OverflowPolicy::Block),
        "ring_memory overwrite" => store_arbitrary_values(OverflowPolicy::Overwrite),
        _ => panic!("no role {role}"),
    }
}

fn store_arbitrary_values(policy: OverflowPolicy) {
    let (mut writer, offers) = share::slot_ring(&slot_config(policy)).unwrap();
    send(stdin(), b"offer", &offers[0].descriptors());
    (0..20).for_each(|number| put_block(&mut writer, number));
    writer.publish();
    let (ring, mut random) = (RingMemoryAccess::find(), Random::new(3));
    report("scribbling");
    loop {
        let at = match random.below(3) {
            // The table, after the page.
            0 => 4096 + random.below(64) * 8,
            1 => random.below(6) * 128,
            _ => random.below((8192 + 64 * SLOT_BYTES as u64) / 8) * 8,
        };
        let values = [random.next_u64(), random.below(300), random.below(200), 20, u64::MAX];
        ring.write_word(at, *random.pick(&values));
    }
}
