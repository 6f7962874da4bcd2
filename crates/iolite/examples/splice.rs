//! Passes a file through three stages, connected by streams, without a copy. The first stage writes
//! pointers, the second forwards them, and the third reads the bytes in the page cache.
//!
//! cargo run -p streamline-iolite --example splice [FILE]
//!
//! Here the stages are threads. If they were processes, they would send each other the offers and
//! the sockets of grant servers with `sys::descriptor::send`; nothing else would change.

#![expect(clippy::print_stdout, reason = "an example prints what it did")]

use abi::DbufId;
use abi::access::{AccessList, Credentials};
use buffer::pool;
use std::error::Error;
use std::fs::File;
use std::thread;
use streamline_iolite::aggregate::owner::PoolOwner;
use streamline_iolite::aggregate::server::GrantServer;
use streamline_iolite::aggregate::{AllocationPool, FrozenData};
use streamline_iolite::indirect::{Backing, Config, Input, Output, indirect_stream};
use streamline_iolite::interface::AggregateBlockReader;
use streamline_iolite::interface::StreamReader as _;
use streamline_iolite::splice::splice_all;
use streamline_iolite::view::Space;
use sys::process::effective_ids;

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "/proc/self/exe".to_owned());
    let id = |number| DbufId::new(number).ok_or("no id");
    // The owner of all dbufs, which the other stages query for unmapped ones.
    let server = GrantServer::start(PoolOwner::new(8))?;
    let file = FrozenData::from_reader(id(1)?, File::open(&name)?, 1 << 30)?;
    server.with_owner(|owner| owner.share_frozen(&file, AccessList::private(effective_ids())))?;
    let stream = |ring: u32| -> Result<(Output, Input), Box<dyn Error>> {
        let shape = pool::PoolConfig { segment: 1 << 16, segments: 4 };
        let pool = AllocationPool::new(id(ring + 1)?, shape, AccessList::private(effective_ids()))?;
        server.with_owner(|owner| owner.share(&pool))?;
        let (output, mut offers) = indirect_stream(&Config::new(id(ring)?), Backing::new(pool))?;
        let space = Space::new();
        space.add_owner(server.add_client(Credentials::from(effective_ids()))?.1);
        Ok((output, Input::open(offers.remove(0), &space)?))
    };
    let (mut first, mut middle) = stream(10)?;
    let (mut second, mut last) = stream(20)?;

    let all = file.aggregate()?;
    let (written, passed, sum) = thread::scope(|scope| {
        let writing = scope
            .spawn(move || splice_all(&mut AggregateBlockReader::new(&all, 65_536), &mut first));
        let passing = scope.spawn(move || splice_all(&mut middle, &mut second));
        let mut sum = 0_u64;
        loop {
            let count = match last.peek()? {
                Some([]) => break,
                Some(block) => {
                    sum += block.iter().map(|byte| u64::from(*byte)).sum::<u64>();
                    block.len()
                }
                None => {
                    last.wait(None)?;
                    continue;
                }
            };
            last.take(count);
        }
        let done = |thread: thread::ScopedJoinHandle<'_, _>| thread.join().map_err(|_| "panicked");
        Ok::<_, Box<dyn Error>>((done(writing)??, done(passing)??, sum))
    })?;
    println!("{name}: {} bytes, which add up to {sum}", file.len());
    println!("written {} of {} bytes as pointers", written.by_pointer, written.bytes);
    println!("passed on {} of {} bytes as pointers", passed.by_pointer, passed.bytes);
    Ok(())
}
