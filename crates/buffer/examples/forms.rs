//! Runs one writer and three readers with different rate policies, first on a ring of slots, then
//! on a ring of blocks of any length. Prints the number of blocks that each reader receives, loses,
//! skips and leaves in the ring.
//!
//! cargo run -p streamline-buffer --example forms

use abi::DbufId;
use streamline_buffer::dbuf::{self, fixed_size};
use streamline_buffer::rate::{RatePolicy, RatedReader, SkippingReader, StartPosition};
use streamline_buffer::{Fault, OverflowPolicy, WriterCounts};

fn main() -> Result<(), Fault> {
    let id = DbufId::new(1).unwrap_or_default();
    let (policy, readers) = (OverflowPolicy::Overwrite, 3);
    let shape = fixed_size::SlotConfig { id, slot: 64, slots: 64, policy, readers };
    let (mut writer, all) = fixed_size::ring(&shape);
    write_blocks(0..20, |block| writer.write(block))?;
    writer.publish();
    let mut paced = with_policies(all)?;
    write_blocks(20..100, |block| writer.write(block))?;
    writer.publish();
    print_counts("64 slots of 64 bytes", &mut paced, writer.counts())?;

    let (mut writer, all) = dbuf::ring(&dbuf::BlockConfig { id, capacity: 4096, policy, readers });
    write_blocks(0..20, |block| writer.write(block))?;
    writer.publish();
    let mut paced = with_policies(all)?;
    write_blocks(20..100, |block| writer.write(block))?;
    writer.publish();
    print_counts("4 KB of blocks of any length", &mut paced, writer.counts())
}

fn write_blocks(
    numbers: std::ops::Range<u32>,
    mut put: impl FnMut(&[u8]) -> Result<bool, Fault>,
) -> Result<(), Fault> {
    for number in numbers {
        put(format!("sample {number}").as_bytes())?;
    }
    Ok(())
}

/// Assigns one of three rate policies to each reader: every block, only the newest block, or every
/// block written after the reader joins.
fn with_policies<R: SkippingReader>(readers: Vec<R>) -> Result<Vec<RatedReader<R>>, Fault> {
    let policies = [
        (StartPosition::Oldest, RatePolicy::EveryBlock),
        (StartPosition::Oldest, RatePolicy::Latest),
        (StartPosition::Now, RatePolicy::EveryBlock),
    ];
    let paced = readers.into_iter().zip(policies);
    paced.map(|(reader, (start, rate))| RatedReader::new(reader, start, rate)).collect()
}

#[expect(clippy::print_stdout, reason = "an example prints what it does")]
fn print_counts<R: SkippingReader>(
    ring: &str,
    readers: &mut [RatedReader<R>],
    put: WriterCounts,
) -> Result<(), Fault> {
    println!("{ring}: {} blocks were put", put.blocks);
    for (name, reader) in ["everything", "the newest", "from now on"].iter().zip(readers) {
        let (mut out, mut last) = ([0; 64], String::from("nothing"));
        while let Some(length) = reader.read(&mut out)? {
            last = String::from_utf8_lossy(out.get(..length).unwrap_or_default()).into_owned();
        }
        let counts = reader.counts();
        println!(
            "  {name:>11}: {} taken (last: {last}), {} lost, {} skipped, {:?} left",
            counts.blocks,
            counts.lost,
            counts.skipped,
            put.resident_blocks(&counts)
        );
    }
    Ok(())
}
