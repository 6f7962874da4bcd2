//! What seals take away from somebody who has mapped a file for reading (RELIABILITY, fact 2).

extern crate streamline_sys as sys;

mod maps;

use rustix::io::Errno;
use rustix::mm::{MprotectFlags, mprotect};
use sys::memory::{Memfd, Seals};

/// A mapping that was made before the seals keeps its right, one made after has lost it; and the
/// flag `mw` says which, so that code without a way to call `mprotect` can tell.
#[test]
fn what_was_mapped_after_the_seals_never_becomes_writable() {
    let file = Memfd::create("sys-test", 4096).unwrap();
    let before = file.map_read().unwrap();
    file.seal(Seals::READER).unwrap();
    let after = file.map_read().unwrap();
    for (mapping, may_write, answer) in
        [(&before, true, Ok(())), (&after, false, Err(Errno::ACCESS))]
    {
        let base = mapping.base();
        assert_eq!(maps::may_write(base.addr().get()), Some(may_write));
        let flags = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: the range is a mapping of ours that nobody has a reference into; its contents
        // stay.
        let widened = unsafe { mprotect(base.as_ptr().cast(), mapping.len(), flags) };
        assert_eq!(widened, answer);
    }
}
