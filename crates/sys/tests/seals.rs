//! Tests of the effect of seals on read-only mappings (RELIABILITY, fact 2).

extern crate streamline_sys as sys;

mod maps;

use rustix::io::Errno;
use rustix::mm::{MprotectFlags, mprotect};
use sys::memory::{Memfd, Seals};

/// Expects a mapping made before sealing to become writable on request, and a mapping made
/// afterwards never to become writable. The flag `mw` distinguishes the two without calling
/// `mprotect`.
#[test]
fn mapping_made_after_sealing_never_becomes_writable() {
    let file = Memfd::create("sys-test", 4096).unwrap();
    let before = file.map_read().unwrap();
    file.seal(Seals::READER).unwrap();
    let after = file.map_read().unwrap();
    for (mapping, may_write, answer) in
        [(&before, true, Ok(())), (&after, false, Err(Errno::ACCESS))]
    {
        let base = mapping.base();
        assert_eq!(maps::may_become_writable(base.addr().get()), Some(may_write));
        let flags = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: the range is a mapping of ours into which no reference exists; its contents stay.
        let widened = unsafe { mprotect(base.as_ptr().cast(), mapping.len(), flags) };
        assert_eq!(widened, answer);
    }
}
