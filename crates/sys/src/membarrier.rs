//! Memory barriers that one thread executes on behalf of all threads of the process, by
//! membarrier(2).
//!
//! Some protocols between a party that runs often and a party that runs rarely need a full barrier
//! on both sides. With [`fence_all_threads`], the party that runs rarely pays for both barriers (a
//! few microseconds), and the party that runs often needs only a barrier against reordering by the
//! compiler.

use std::sync::OnceLock;

/// The membarrier(2) command that makes all running threads of the process pass a full barrier.
/// libc does not export the numbers of `linux/membarrier.h` for every target.
const PRIVATE_EXPEDITED: i32 = 1 << 3;
/// The membarrier(2) command that registers the process for [`PRIVATE_EXPEDITED`].
const REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;

/// Returns true if the kernel lets this process use [`fence_all_threads`]. Queries the kernel only
/// once.
#[must_use]
pub fn is_supported() -> bool {
    static IS_BARRIER_SUPPORTED: OnceLock<bool> = OnceLock::new();
    *IS_BARRIER_SUPPORTED.get_or_init(|| call_membarrier(REGISTER_PRIVATE_EXPEDITED))
}

/// Makes every running thread of this process pass a full memory barrier. A thread that is not
/// running passes one before it next runs. Returns false if the kernel refuses.
#[must_use]
pub fn fence_all_threads() -> bool {
    // A child of fork(2) may have to register again.
    call_membarrier(PRIVATE_EXPEDITED)
        || call_membarrier(REGISTER_PRIVATE_EXPEDITED) && call_membarrier(PRIVATE_EXPEDITED)
}

fn call_membarrier(command: i32) -> bool {
    // SAFETY: membarrier(2) reads and writes no memory of the caller.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    result == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fence_of_all_threads_succeeds_if_supported() {
        assert_eq!(fence_all_threads(), is_supported());
        let other = std::thread::spawn(fence_all_threads);
        assert_eq!(other.join().unwrap(), is_supported());
    }
}
