//! Test blocks whose contents are derived from their numbers.

use super::watchdog::with_watchdog;
use std::ops::Range;
use streamline_buffer::{Fault, stream};

/// Maximum length of a block in bytes.
pub(crate) const BLOCK_LENGTH_MAX: usize = 900;

/// Replaces the contents of `room` with the block with this number. Its length and content depend
/// only on the number.
pub(crate) fn fill_block(number: u64, room: &mut Vec<u8>) {
    let length = 8 + usize::try_from(number * 7919 % (BLOCK_LENGTH_MAX as u64 - 8)).unwrap();
    room.clear();
    room.extend_from_slice(&number.to_le_bytes());
    room.resize(length, number.wrapping_mul(37) as u8);
}

/// Returns the FNV-1a hash of the bytes, by which tests compare received data with sent data.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Writes the blocks with the given numbers, in ascending order, and publishes them.
#[track_caller]
pub(crate) fn write(output: &mut impl WriteBlocks, numbers: Range<u64>) -> Result<(), Fault> {
    with_watchdog("room for a block", || {
        let mut room = Vec::new();
        for number in numbers {
            fill_block(number, &mut room);
            assert!(output.write_block(&room)?, "a stream that blocks drops nothing");
        }
        output.publish();
        Ok(())
    })
}

/// The writing end of a ring or stream of blocks.
pub(crate) trait WriteBlocks {
    fn write_block(&mut self, block: &[u8]) -> Result<bool, Fault>;
    fn publish(&mut self);
}

impl WriteBlocks for stream::Output {
    fn write_block(&mut self, block: &[u8]) -> Result<bool, Fault> {
        self.write(block)
    }

    fn publish(&mut self) {
        self.flush();
    }
}

/// The reading end of a byte stream.
pub(crate) trait BlockSource {
    fn read_some(&mut self, out: &mut [u8]) -> Result<usize, Fault>;
}

impl BlockSource for stream::Input {
    fn read_some(&mut self, out: &mut [u8]) -> Result<usize, Fault> {
        self.read(out)
    }
}

/// Reads blocks until the end or a fault, and checks each block. Returns the number of complete
/// blocks, and the fault if there was one.
#[track_caller]
pub(crate) fn read_and_check_blocks(input: &mut impl BlockSource) -> (u64, Option<Fault>) {
    with_watchdog("a block", || {
        let (mut number, mut expected, mut at) = (0, Vec::new(), 0);
        fill_block(number, &mut expected);
        let mut out = [0; 333];
        loop {
            let count = match input.read_some(&mut out) {
                Ok(0) => return (number, None),
                Ok(count) => count,
                Err(fault) => return (number, Some(fault)),
            };
            for byte in &out[..count] {
                assert_eq!(*byte, expected[at], "block {number} byte {at}");
                at += 1;
                if at == expected.len() {
                    (number, at) = (number + 1, 0);
                    fill_block(number, &mut expected);
                }
            }
        }
    })
}

/// Reads from a writer that never ends its stream, until a read fails. Returns the fault.
#[track_caller]
pub(crate) fn read_to_fault(input: &mut impl BlockSource) -> Fault {
    with_watchdog("the end of who was killed", || {
        loop {
            match input.read_some(&mut [0; 8192]) {
                Ok(0) => panic!("it closed nothing"),
                Ok(_) => {}
                Err(fault) => return fault,
            }
        }
    })
}
