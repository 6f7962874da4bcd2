//! System and loader calls for a library that is preloaded into another program, which owns the
//! descriptors and signal handlers.
//!
//! No function in this module allocates or takes a lock, except [`next_symbol`], [`loaded_symbol`],
//! `copy_to_malloc_memory`, [`receive_from_rendezvous`] and [`has_several_threads`]. Only
//! [`set_errno`] is meant to set `errno`. Other functions may overwrite `errno`, so their callers
//! first save it with [`errno`].

pub mod interpose;
pub mod message;
pub mod spinning;
pub mod udp;
pub mod window;

use crate::doorbell::PeerState;
use interpose::{CLibraryLookup, LibraryHandle};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use std::ffi::{CStr, c_int, c_void};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::time::Duration;

/// Returns this thread's `errno`.
#[must_use]
pub fn errno() -> i32 {
    // SAFETY: the call only returns the address of the thread's own `errno`.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the address is valid for this thread as long as it runs.
    unsafe { *place }
}

/// Sets this thread's `errno`.
pub fn set_errno(number: i32) {
    // SAFETY: as in `errno`.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as in `errno`.
    unsafe { *place = number };
}

/// Returns the definition of a symbol that is next after this library in the loader's search order;
/// `None` if there is none.
#[must_use]
pub fn next_symbol(name: &CStr) -> Option<NonNull<c_void>> {
    // RTLD_NEXT searches the libraries after the caller's.
    CLibraryLookup::get()?.find(LibraryHandle(libc::RTLD_NEXT), name)
}

/// Returns the definition of a symbol in the first of these libraries that is loaded; `None` if no
/// loaded library defines it.
#[must_use]
pub fn loaded_symbol(libraries: &[&CStr], name: &CStr) -> Option<NonNull<c_void>> {
    libraries.iter().find_map(|library| {
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
        // SAFETY: dlopen(3) with RTLD_NOLOAD loads nothing; the name is a valid C string.
        let handle = NonNull::new(unsafe { libc::dlopen(library.as_ptr(), flags) })?;
        CLibraryLookup::get()?.find(LibraryHandle(handle.as_ptr()), name)
    })
}

/// Borrows a descriptor of the program for one call; `None` if `number` is negative. A call with a
/// closed descriptor fails.
#[must_use]
pub const fn borrow_descriptor(number: c_int) -> Option<BorrowedFd<'static>> {
    if number < 0 {
        return None;
    }
    // SAFETY: borrow_raw requires a number other than -1 (checked) that stays open while borrowed.
    // The program may close it concurrently: as with every system call by number, the call then
    // fails or meets another file, which the callers of this module allow for.
    Some(unsafe { BorrowedFd::borrow_raw(number) })
}

/// Returns the inode of a pipe; `None` for any other type of file.
#[must_use]
pub fn pipe_inode(number: c_int) -> Option<u64> {
    let stat = rustix::fs::fstat(borrow_descriptor(number)?).ok()?;
    let kind = rustix::fs::FileType::from_raw_mode(stat.st_mode);
    (kind == rustix::fs::FileType::Fifo).then_some(stat.st_ino)
}

/// Returns the inode of the file to which a descriptor refers; `None` if the descriptor is not
/// open.
#[must_use]
pub fn inode(number: c_int) -> Option<u64> {
    rustix::fs::fstat(borrow_descriptor(number)?).ok().map(|stat| stat.st_ino)
}

/// Returns the number of bytes in a pipe, given a descriptor of either end; 0 if the kernel does
/// not report the number.
#[must_use]
pub fn pipe_bytes_available(number: c_int) -> u64 {
    borrow_descriptor(number).and_then(|fd| rustix::io::ioctl_fionread(fd).ok()).unwrap_or(0)
}

/// Returns true if the descriptor is nonblocking.
#[must_use]
pub fn is_nonblocking(number: c_int) -> bool {
    let flags = borrow_descriptor(number).and_then(|fd| rustix::fs::fcntl_getfl(fd).ok());
    flags.is_some_and(|flags| flags.contains(rustix::fs::OFlags::NONBLOCK))
}

/// The readiness of a descriptor, returned by [`poll_pair`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Readiness {
    /// True if the descriptor can be read without blocking.
    pub readable: bool,
    /// True if the peer has closed its end, or the descriptor is not open.
    pub closed: bool,
}

/// Polls two descriptors, and blocks until one is ready if `blocking` is true. An invalid
/// descriptor is reported as over, that is, closed by its peer. If the first number is negative,
/// both descriptors are reported as over. Returns `None` if a signal arrived or the poll failed.
#[must_use]
pub fn poll_pair(numbers: [c_int; 2], blocking: bool) -> Option<[Readiness; 2]> {
    let over = Readiness { readable: false, closed: true };
    let limit = (!blocking).then_some(Timespec { tv_sec: 0, tv_nsec: 0 });
    // The system call is made directly, because the library interposes the C library's `poll`.
    match numbers.map(borrow_descriptor) {
        [Some(one), Some(other)] => {
            let mut entries = [one, other].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            poll(&mut entries, limit.as_ref()).ok()?;
            Some(entries.map(|entry| readiness(entry.revents())))
        }
        [Some(one), None] => {
            let mut entry = [PollFd::from_borrowed_fd(one, PollFlags::IN)];
            poll(&mut entry, limit.as_ref()).ok()?;
            let [entry] = entry;
            Some([readiness(entry.revents()), over])
        }
        [None, _] => Some([over; 2]),
    }
}

fn readiness(events: PollFlags) -> Readiness {
    let over = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    Readiness { readable: events.contains(PollFlags::IN), closed: events.intersects(over) }
}

/// Returns true if no process can read from the other end of the pipe, or if the descriptor is not
/// open.
#[must_use]
pub fn has_no_reader(number: c_int) -> bool {
    let Some(fd) = borrow_descriptor(number) else { return true };
    let mut entry = [PollFd::from_borrowed_fd(fd, PollFlags::empty())];
    let looked = poll(&mut entry, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    let [entry] = entry;
    looked.is_ok() && entry.revents().intersects(PollFlags::ERR | PollFlags::NVAL)
}

/// The outcome of [`wait_readable`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimedWaitOutcome {
    /// The descriptor is readable, or its peer has closed it.
    Readable,
    /// The time limit has passed.
    TimedOut,
    /// A signal handler has run.
    Interrupted,
}

/// Waits until a descriptor is readable, for at most `limit`.
#[must_use]
pub fn wait_readable(number: c_int, limit: Duration) -> TimedWaitOutcome {
    let Some(fd) = borrow_descriptor(number) else { return TimedWaitOutcome::Readable };
    let mut entry = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    match poll(&mut entry, Some(&crate::poll::timespec(limit))) {
        Ok(0) => TimedWaitOutcome::TimedOut,
        Err(rustix::io::Errno::INTR) => TimedWaitOutcome::Interrupted,
        _ => TimedWaitOutcome::Readable,
    }
}

/// Returns true if a call that a signal has interrupted should be restarted. It is not known which
/// signal interrupted the call, so returns false if the program has installed any signal handler
/// without SA_RESTART.
#[must_use]
pub fn should_restart_call() -> bool {
    (1..=libc::SIGRTMAX()).all(|signal| {
        // SAFETY: all bits zero are a valid sigaction: no handler, no flags.
        let mut set: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: without a new action sigaction(2) only writes the old one, into `set`, which is
        // valid.
        let result = unsafe { libc::sigaction(signal, ptr::null(), &raw mut set) };
        result != 0
            || matches!(set.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN)
            || set.sa_flags & libc::SA_RESTART != 0
    })
}

/// Sends one byte over the rendezvous socket that connects the programs at the two ends of a pipe.
/// Never blocks. Returns [`PeerState::Gone`] on any error, even if the queue is full.
pub fn send_rendezvous_byte(socket: c_int) -> PeerState {
    let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
    match borrow_descriptor(socket).map(|fd| rustix::net::send(fd, &[1], flags)) {
        Some(Ok(_)) => PeerState::Present,
        _ => PeerState::Gone,
    }
}

/// The result of receiving from the rendezvous socket of a pipe ([`send_rendezvous_byte`]).
#[derive(Debug)]
pub enum RendezvousResult {
    /// No message has arrived at the socket yet.
    Nothing,
    /// A message has arrived, with these descriptors.
    Message(Vec<OwnedFd>),
    /// The socket was shut down, or the peer has closed it.
    Closed,
}

/// Receives a message from the rendezvous socket of a pipe ([`send_rendezvous_byte`]). Never
/// blocks.
#[must_use]
pub fn receive_from_rendezvous(socket: c_int) -> RendezvousResult {
    let Some(fd) = borrow_descriptor(socket) else { return RendezvousResult::Closed };
    match crate::descriptor::try_receive(fd, &mut [0; 16]) {
        Ok(Some((0, _))) | Err(_) => RendezvousResult::Closed,
        Ok(Some((_, descriptors))) => RendezvousResult::Message(descriptors),
        Ok(None) => RendezvousResult::Nothing,
    }
}

/// Shuts down the rendezvous socket of a pipe ([`send_rendezvous_byte`]) for every process that
/// holds it. Earlier messages stay receivable, and later ones are rejected. The kernel checks for
/// the shutdown under the lock that queues messages (`unix_dgram_sendmsg`), so no message is lost
/// in between.
pub fn close_rendezvous(socket: c_int) {
    if let Some(fd) = borrow_descriptor(socket) {
        // An error means that the socket has already been shut down.
        let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Both);
    }
}

pub use libc::{EAGAIN, EBADF, EINTR, EINVAL, EIO, ENOSYS, F_DUPFD, F_DUPFD_CLOEXEC, FIONREAD};

/// The options of `prctl(2)` with which a program restricts its own system calls or prepares such a
/// restriction.
pub const RESTRICTING_PRCTL_OPTIONS: [i32; 2] = [libc::PR_SET_NO_NEW_PRIVS, libc::PR_SET_SECCOMP];

/// Returns true if the descriptor is open only for writing.
#[must_use]
pub fn is_write_only(number: c_int) -> bool {
    let flags = borrow_descriptor(number).and_then(|fd| rustix::fs::fcntl_getfl(fd).ok());
    flags.is_some_and(|flags| flags & rustix::fs::OFlags::RWMODE == rustix::fs::OFlags::WRONLY)
}

/// The side of a fork on which [`fork_detached`] has returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ForkSide {
    /// The call has returned in the calling process.
    Parent,
    /// The call has returned in the new process, which has all signals blocked and no parent that
    /// waits for it.
    Child,
}

/// Forks a process that is detached from the caller: its exit causes no SIGCHLD, and it is
/// reparented at once. No `pthread_atfork` handler runs, so the child may call only functions that
/// need no lock held by another thread.
pub fn fork_detached() -> crate::Result<ForkSide> {
    // SAFETY: all bits zero are a valid set of signals.
    let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
    // SAFETY: sigfillset(3) initializes the set.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: sigprocmask(2) reads one set and writes the other; both are valid.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
    let pid = clone_process();
    if pid == 0 {
        return match clone_process() {
            0 => Ok(ForkSide::Child),
            _ => exit_immediately(0),
        };
    }
    let failed = (pid < 0).then(|| crate::Error::last_os_error("clone", "a process that pours"));
    if failed.is_none() {
        // SAFETY: waitpid(2) with a null status pointer writes nothing.
        while unsafe { libc::waitpid(pid, ptr::null_mut(), libc::__WALL) } < 0 && errno() == EINTR {
        }
    }
    // SAFETY: as above; `before` is the previous signal mask.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) };
    failed.map_or(Ok(ForkSide::Parent), Err)
}

fn clone_process() -> libc::pid_t {
    // SAFETY: clone(2) without flags and stack is fork(2) without an exit signal: the child runs on
    // a copy of this stack.
    let pid = unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) };
    libc::pid_t::try_from(pid).unwrap_or(-1)
}

/// Exits the process at once, without running any exit handler.
pub fn exit_immediately(status: c_int) -> ! {
    // SAFETY: _exit(2) always succeeds.
    unsafe { libc::_exit(status) }
}

/// Returns true if the process has more than one thread, or if the number of its threads is
/// unknown.
#[must_use]
pub fn has_several_threads() -> bool {
    std::fs::read_dir("/proc/self/task").map_or(true, |tasks| tasks.take(2).count() > 1)
}

/// Sorts `keep`, and closes all descriptors that are not in `keep`.
pub fn close_descriptors_except(keep: &mut [c_int]) {
    keep.sort_unstable();
    let mut from = 0;
    for number in keep.iter().copied().chain([c_int::MAX]) {
        if from < number {
            // SAFETY: close_range(2) closes descriptors of this process, which only continues with
            // those in `keep`.
            unsafe { libc::syscall(libc::SYS_close_range, from, number - 1, 0) };
        }
        from = number.saturating_add(1);
    }
}

/// Makes descriptor `number` of the program refer to the file of `by`. Keeps the FD_CLOEXEC and
/// O_NONBLOCK flags of `number`.
pub fn replace_descriptor(number: c_int, by: BorrowedFd<'_>) {
    use std::os::fd::AsRawFd as _;
    let Some(old) = borrow_descriptor(number) else { return };
    let kept = rustix::io::fcntl_getfd(old).unwrap_or(rustix::io::FdFlags::empty());
    if let Ok(flags) = rustix::fs::fcntl_getfl(old) {
        let nonblocking = flags & rustix::fs::OFlags::NONBLOCK;
        // On failure the descriptor stays blocking.
        let _ = rustix::fs::fcntl_setfl(by, nonblocking);
    }
    let flags = if kept.contains(rustix::io::FdFlags::CLOEXEC) { libc::O_CLOEXEC } else { 0 };
    // SAFETY: dup3(2) closes what the number was before, as the program's own dup2 would.
    unsafe { libc::syscall(libc::SYS_dup3, by.as_raw_fd(), number, flags) };
}

/// Reads from a descriptor once, again only if a signal interrupts the call. Returns the number of
/// bytes read; 0 at the end of the file or on an error.
pub fn read_retrying_interrupts(number: c_int, room: &mut [u8]) -> usize {
    let read = |fd| retry_on_intr(|| rustix::io::read(fd, &mut *room)).ok();
    borrow_descriptor(number).and_then(read).unwrap_or(0)
}

/// Writes all of `bytes`, and repeats calls that a signal interrupts. Returns false on an error.
pub fn write_all(to: impl std::os::fd::AsFd, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        let Ok(count) = retry_on_intr(|| rustix::io::write(&to, bytes)) else { return false };
        bytes = bytes.get(count..).unwrap_or_default();
    }
    true
}

/// Closes a descriptor that no Rust value owns.
pub fn close(number: c_int) {
    // SAFETY: close(2); the caller has forgotten the value that would close it again.
    unsafe { libc::syscall(libc::SYS_close, number) };
}

/// Returns true if stdio's stdout or stderr is buffered and writes to this descriptor, in which
/// case the stream's output bypasses an interposed `write`.
#[must_use]
pub fn is_used_by_stdio(number: c_int) -> bool {
    unsafe extern "C" {
        static stdout: *mut libc::FILE;
        static stderr: *mut libc::FILE;
        fn __fbufsize(file: *mut libc::FILE) -> usize;
    }
    // SAFETY: the C library sets the variable before any program runs.
    let out = unsafe { stdout };
    // SAFETY: as above.
    let error = unsafe { stderr };
    [out, error].into_iter().filter(|file| !file.is_null()).any(|file| {
        // SAFETY: fileno(3) and __fbufsize(3) only inspect a file, which is open or was closed: the
        // two of the C library are never freed.
        let same = unsafe { libc::fileno(file) } == number;
        // SAFETY: as above.
        same && unsafe { __fbufsize(file) } > 0
    })
}

/// Returns the size in bytes of a regular file that is open read-only and without O_DIRECT; `None`
/// for any other descriptor.
#[must_use]
pub fn regular_file_size(number: c_int) -> Option<u64> {
    let fd = borrow_descriptor(number)?;
    let flags = rustix::fs::fcntl_getfl(fd).ok()?;
    let reads = flags & rustix::fs::OFlags::RWMODE == rustix::fs::OFlags::RDONLY;
    let stat = rustix::fs::fstat(fd).ok()?;
    let regular = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
    let plain = reads && regular && !flags.contains(rustix::fs::OFlags::DIRECT);
    plain.then(|| u64::try_from(stat.st_size).unwrap_or(0))
}

/// Sets the file position of a descriptor to byte `at`.
pub fn seek(number: c_int, at: u64) {
    if let Some(fd) = borrow_descriptor(number) {
        // Callers pass seekable files only.
        let _ = rustix::fs::seek(fd, rustix::fs::SeekFrom::Start(at));
    }
}

/// Returns the file position of a descriptor in bytes; `None` if its file has no position.
#[must_use]
pub fn file_position(number: c_int) -> Option<u64> {
    rustix::fs::seek(borrow_descriptor(number)?, rustix::fs::SeekFrom::Current(0)).ok()
}

/// Runs `body` with all signals blocked, so that a thread started by `body` inherits the blocked
/// mask.
pub fn with_signals_blocked<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: all bits zero are a valid set of signals.
    let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
    // SAFETY: sigfillset(3) initializes the set.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: pthread_sigmask(3) reads one set and writes the other; both are valid.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
    let done = body();
    // SAFETY: as above; `before` is the previous signal mask.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) };
    done
}
