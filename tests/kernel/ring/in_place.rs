//! Tests of `pcap` over frames that stay in the kernel ring until they are written: intact frames
//! are in the file once and in order. Frames that were overwritten before or while they were
//! written are counted and not in the file. [CONTRACT 29]

use super::scratch::Scratch;
use super::{Tap, WAKE_POLICY, numbered_frame, processor_count, send_frames, veth_pair};
use abi::{BlockFlags, BlockMetadata, Class, Entry, Marks, RichPointer};
use endpoint::source::kernel::frames_in_place::FramesInPlace;
use endpoint::source::kernel::reader::{ExportedFrame, KernelRingReader as Walk};
use endpoint::{OpenArguments, Sink};
use filter::{Arguments, Batch, BatchMemory, LANES};
use std::path::Path;
use std::sync::Arc;
use sys::bpf::RingsLayout;
use testkit::net::wait_until;

/// Lengths of the frames in rotation, below and above the length up to which `pcap` copies frames.
const MIXED_FRAME_LENGTHS: [usize; 3] = [40, 300, 1400];
const ETHERNET_LINK_TYPE: u16 = 1;

fn mixed_length_frame(number: u32) -> Vec<u8> {
    numbered_frame(number, MIXED_FRAME_LENGTHS[number as usize % MIXED_FRAME_LENGTHS.len()])
}

fn open_pcap_sink(path: &Path, frames: &Arc<FramesInPlace>) -> Box<dyn Sink> {
    let entry = endpoint::SINKS.iter().find(|entry| entry.description.name == "pcap").unwrap();
    let path = path.to_str().unwrap();
    let arguments: Arguments =
        filter::testing::parse_arguments(entry.description, &[path]).unwrap();
    let mut sink = (entry.open)(&OpenArguments::new(&arguments)).unwrap();
    assert!(sink.accepts_in_place(frames));
    sink
}

/// Moves exported frames, at most `most`, from the kernel ring into the next batch. Returns the
/// batch, and the frames that it contains.
fn next_batch(
    walk: &mut Walk,
    frames: &FramesInPlace,
    most: usize,
) -> (Batch<'static>, Vec<ExportedFrame>) {
    let (mut memory, mut all) = (BatchMemory::default(), Vec::new());
    let mut batch = frames.begin_batch();
    walk.load_writer_positions();
    while let Some(exported) = walk.front_frame().filter(|_| all.len() < most) {
        let place = batch.add_frame(exported);
        let marks = Marks::frame(ETHERNET_LINK_TYPE, place.length(), exported.header.length);
        let context = BlockMetadata { time: 1, session: 0, origin: 0, flags: BlockFlags::NONE };
        let pointer = RichPointer::new(frames.id(), place, Class::YES);
        assert!(memory.columns.push(Entry::new(pointer, context, marks)));
        walk.advance_past_frame(&exported);
        all.push(exported);
    }
    (Batch::without_bytes(memory), all)
}

fn read_capture(path: &Path) -> Vec<Vec<u8>> {
    let capture = std::fs::read(path).unwrap();
    wire::capture::packets(&capture).map(|packet| packet.unwrap().1.to_vec()).collect()
}

#[test]
fn v8_pcap_omits_and_counts_overwritten_frames() {
    let Some(pair) = veth_pair(false) else { return };
    // The sender's processor writes: pinned, so that it is always the same.
    let _ = sys::process::pin_to_processor(0);
    let shape = RingsLayout {
        cpus: processor_count(),
        sinks: 1,
        pointers: 1 << 12,
        bytes: 1 << 17,
        record_max: 2048,
    };
    let tap = Tap::new(&pair, shape, WAKE_POLICY);
    let frames = Arc::new(FramesInPlace::new(Arc::clone(&tap.rings)).unwrap());
    let mut walk = Walk::new(Arc::clone(&tap.rings), vec![0]);
    let folder = Scratch::new();
    let path = folder.path("seen.pcap");
    let mut sink = open_pcap_sink(&path, &frames);
    let mut sent = 0;
    let mut send = |count: u32| {
        send_frames(&pair, &(sent..sent + count).map(mixed_length_frame).collect::<Vec<_>>());
        sent += count;
        wait_until("all have been written", || tap.frames_produced() == u64::from(sent));
    };
    let mut expected: Vec<Vec<u8>> = Vec::new();

    // The first batch goes through the buffer, because the file begins with it.
    for batch in 0..3 {
        send(LANES as u32);
        let (blocks, all) = next_batch(&mut walk, &frames, LANES);
        assert_eq!(all.len(), LANES);
        sink.consume(&blocks, 0).unwrap();
        expected.extend(
            (0..LANES as u32).map(|number| mixed_length_frame(batch * LANES as u32 + number)),
        );
    }
    sink.on_idle().unwrap();
    assert!(read_capture(&path) == expected, "all frames, in order");

    // The writer comes round while a batch is on its way.
    let first = 3 * LANES as u32;
    send(LANES as u32);
    let (blocks, all) = next_batch(&mut walk, &frames, LANES);
    let intact = |at: usize| frames.batch().is_intact(&all[at]);
    let mut later = 0;
    while intact(20) {
        send(1);
        later += 1;
    }
    assert!(!intact(0) && intact(40), "a part is left after {later} frames");
    let left: Vec<usize> = (0..LANES).filter(|at| intact(*at)).collect();
    sink.consume(&blocks, 0).unwrap();
    sink.on_idle().unwrap();
    expected.extend(left.iter().map(|at| mixed_length_frame(first + *at as u32)));
    assert!(read_capture(&path) == expected, "what was left of the batch");
    let lost = (LANES - left.len()) as u64;
    let dropped = sink.drops_by_reason();
    assert_eq!(dropped.iter().map(|(_, amount)| amount.blocks).collect::<Vec<_>>(), [lost]);
    assert_eq!(sink.amount_written().unwrap().blocks, expected.len() as u64);

    // The walk continues after the lost frames.
    let (blocks, all) = next_batch(&mut walk, &frames, LANES);
    sink.consume(&blocks, 0).unwrap();
    let begin = first + LANES as u32;
    expected.extend((0..all.len() as u32).map(|number| mixed_length_frame(begin + number)));
    sink.finish().unwrap();
    assert!(read_capture(&path) == expected);
    assert_eq!(sink.amount_written().unwrap().blocks, expected.len() as u64);
}
