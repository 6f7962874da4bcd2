//! Merges the rings of three producers by the timestamps in their blocks.
//!
//! cargo run -p streamline-iolite --example merged

use abi::DbufId;
use buffer::stream::{Config, stream};
use std::time::Duration;
use streamline_iolite::merge::{MergeOrder, MergedRead, MergedReader, TimestampMerge};

#[expect(clippy::print_stdout, reason = "an example prints what it does")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Producers may differ by 10 000 units; the merge waits up to 50 ms for a silent one.
    let order = MergeOrder::Stamped(TimestampMerge::new(
        10_000,
        Duration::from_millis(50),
        block_timestamp,
    ));
    let mut merged = MergedReader::new(order);
    let mut writing = Vec::new();
    for producer in 0..3_u64 {
        let (mut output, mut offers) = stream(&Config::new(DbufId::new(1).ok_or("an id")?))?;
        // The offer consists of four descriptors and could be sent to another process.
        merged.add_producer(offers.pop().ok_or("an offer")?.open()?);
        writing.push(std::thread::spawn(move || {
            for number in 0..1000 {
                let _written = output.write(&(number * 3 + producer).to_le_bytes());
            }
        }));
    }
    let (mut out, mut times) = ([0; 8], Vec::new());
    while let MergedRead::Block { length, .. } = merged.read(&mut out)? {
        times.push(block_timestamp(out.get(..length).unwrap_or_default()));
    }
    for thread in writing {
        thread.join().map_err(|_| "a producer has failed")?;
    }
    println!(
        "{} blocks, in order: {}, {} late",
        times.len(),
        times.is_sorted(),
        merged.late_block_count()
    );
    while let Some(gone) = merged.next_departed_producer() {
        let left = gone.put.resident_blocks(&gone.taken);
        println!("{:?}: {} blocks, {left:?} left behind", gone.producer, gone.taken.blocks);
    }
    Ok(())
}

/// Returns the timestamp of a block, its first 8 bytes.
fn block_timestamp(block: &[u8]) -> u64 {
    block.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}
