//! Runs a stream that starts too large, shrinks, is resized by hand, and is handed over to another
//! writer. The reader loses no byte.

use abi::DbufId;
use streamline_buffer::scale::ScalingParameters;
use streamline_buffer::stream::{Config, stream};

#[expect(clippy::print_stdout, reason = "prints each step")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let caches = sys::machine::Machine::detect().cache_sizes;
    let config = Config::new(DbufId::new(1).ok_or("no id")?)
        .capacity(16 << 20)
        .scaling(ScalingParameters::for_reallocation(&caches));
    let (mut output, mut offers) = stream(&config)?;
    // A reader in another process gets the four descriptors of the offer over a socket.
    let mut input = offers.pop().ok_or("no reader")?.open()?;
    output.set_spin_limit(0);

    let mut out = [0; 1024];
    let mut before = 0;
    for number in 0..100_000u32 {
        output.write(&[number as u8; 1024])?;
        output.flush();
        assert_eq!(input.read(&mut out)?, 1024);
        assert_eq!(out, [number as u8; 1024]);
        if output.capacity() != before {
            before = output.capacity();
            println!("block {number}: {} KB, segment {}", before >> 10, output.segment_number());
        }
    }
    if let Some(scale) = output.sizing_state() {
        println!("{scale}");
    }

    // Resizes explicitly; unread blocks stay where they are.
    output.write(b"written before")?;
    output.resize(32 << 20)?;
    // Hands the stream over; the successor gets a message and two descriptors per reader.
    let mut successor = output.hand_over()?.open()?;
    successor.write(b"written after")?;
    drop(successor);
    assert_eq!(input.read(&mut out[..14])?, 14);
    assert_eq!(input.read(&mut out)?, 13);
    assert_eq!(input.read(&mut out)?, 0, "the end");
    println!("handed over");
    Ok(())
}
