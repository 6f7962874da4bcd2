//! Passes blocks through a stream within one thread: repeatedly writes half a ring, then reads it.
//! Usage: `laps BLOCK BLOCKS RING`, for example under `valgrind --tool=callgrind`. Prints the
//! time per block in the fastest lap.

use abi::DbufId;
use streamline_buffer::stream::{Config, stream};

#[expect(clippy::print_stdout, clippy::cast_precision_loss, reason = "prints a rate")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).map_while(|word| word.parse::<usize>().ok());
    let block = arguments.next().unwrap_or(64);
    let blocks = arguments.next().unwrap_or(1_000_000);
    let ring = arguments.next().unwrap_or(256 << 10);
    let config = Config::new(DbufId::new(1).ok_or("no id")?).capacity(ring);
    let (mut output, mut offers) = stream(&config)?;
    let mut input = offers.pop().ok_or("no reader")?.open()?;
    let (bytes, mut out) = (vec![7; block], vec![0; block]);
    let lap = (ring / 2 / (block + 16)).max(1);
    let (mut left, mut fastest) = (blocks, f64::INFINITY);
    while left > 0 {
        let now = left.min(lap);
        let begin = sys::clock::monotonic_ns();
        for _ in 0..now {
            output.write(std::hint::black_box(&bytes))?;
        }
        output.flush();
        for _ in 0..now {
            input.read(std::hint::black_box(&mut out))?;
        }
        let took = (sys::clock::monotonic_ns() - begin) as f64 / now as f64;
        if now == lap {
            fastest = fastest.min(took);
        }
        left -= now;
    }
    println!("{block} B: {fastest:.2} ns, {:.1} GB/s", block as f64 / fastest);
    Ok(())
}
