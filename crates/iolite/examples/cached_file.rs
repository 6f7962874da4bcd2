//! Uses a file as a dbuf: rich pointers name its bytes. The bytes are copied with pread, and then
//! transferred to another descriptor without a copy in this process.
//!
//! cargo run -p streamline-iolite --example cached_file -- Cargo.toml

use abi::DbufId;
use streamline_iolite::file::{CachedFile, TransferResult};
use streamline_iolite::resolve::PointerTable;

#[expect(clippy::print_stderr, reason = "an example prints what it does")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("say which file")?;
    let file = CachedFile::open(DbufId::new(9).ok_or("an id")?, path)?;
    // A 16-byte pointer, which could be sent through any ring, and its target.
    let length = usize::try_from(file.size()?)?.min(20);
    let pointer = file.pointer(0, length);
    let mut table = PointerTable::new();
    table.register_file(&file);
    let mut begin = vec![0; length];
    table.copy(pointer, &mut begin)?;
    eprintln!("{pointer:?} is {:?}", String::from_utf8_lossy(&begin));
    // Sends the whole file to standard output, directly from the page cache.
    let mut reader = file.reader();
    while let TransferResult::Bytes(_) = reader.splice(1 << 16, std::io::stdout())? {}
    eprintln!("{} bytes went over", reader.position());
    Ok(())
}
