//! One writer and three readers with wishes of their own, on a ring of slots and on one of blocks
//! of any length: what each gets, and that every ledger balances.
//!
//!     cargo run -p streamline-buffer --example forms

use abi::DbufId;
use streamline_buffer::dbuf::{self, fixed};
use streamline_buffer::pace::{Pace, Paced, Skip, Start};
use streamline_buffer::{Fault, Policy, Put};

fn main() -> Result<(), Fault> {
    let id = DbufId::new(1).unwrap_or_default();
    let (policy, readers) = (Policy::Overwrite, 3);
    let shape = fixed::Config { id, slot: 64, slots: 64, policy, readers };
    let (mut writer, all) = fixed::ring(&shape);
    write(0..20, |block| writer.write(block))?;
    writer.publish();
    let mut paced = wishes(all)?;
    write(20..100, |block| writer.write(block))?;
    writer.publish();
    told("64 slots of 64 bytes", &mut paced, writer.count())?;

    let (mut writer, all) = dbuf::ring(&dbuf::Config { id, capacity: 4096, policy, readers });
    write(0..20, |block| writer.write(block))?;
    writer.publish();
    let mut paced = wishes(all)?;
    write(20..100, |block| writer.write(block))?;
    writer.publish();
    told("4 KB of blocks of any length", &mut paced, writer.count())
}

fn write(
    numbers: std::ops::Range<u32>,
    mut put: impl FnMut(&[u8]) -> Result<bool, Fault>,
) -> Result<(), Fault> {
    for number in numbers {
        put(format!("sample {number}").as_bytes())?;
    }
    Ok(())
}

/// All that there is, the newest alone, and what comes from now on.
fn wishes<R: Skip>(readers: Vec<R>) -> Result<Vec<Paced<R>>, Fault> {
    let wishes = [
        (Start::Oldest, Pace::Everything),
        (Start::Oldest, Pace::Latest),
        (Start::Now, Pace::Everything),
    ];
    let paced = readers.into_iter().zip(wishes);
    paced.map(|(reader, (start, pace))| Paced::new(reader, start, pace)).collect()
}

#[expect(clippy::print_stdout, reason = "an example says what it does")]
fn told<R: Skip>(ring: &str, readers: &mut [Paced<R>], put: Put) -> Result<(), Fault> {
    println!("{ring}: {} blocks were put", put.blocks);
    for (who, reader) in ["everything", "the newest", "from now on"].iter().zip(readers) {
        let (mut out, mut last) = ([0; 64], String::from("nothing"));
        while let Some(length) = reader.read(&mut out)? {
            last = String::from_utf8_lossy(out.get(..length).unwrap_or_default()).into_owned();
        }
        let got = reader.count();
        println!(
            "  {who:>11}: {} taken (last: {last}), {} lost, {} skipped, {:?} left",
            got.blocks,
            got.lost,
            got.skipped,
            put.resident(&got)
        );
    }
    Ok(())
}
