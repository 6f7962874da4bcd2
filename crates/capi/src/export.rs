//! The functions of streamline.h. Each checks its numbers and pointers, makes slices of them, and
//! calls one safe function; a panic ends the call, and not the program.
//!
//! Invariants, cited below:
//! - X1 A pointer that is not null and a length come from a C program that says that so many bytes
//!   lie there and nobody else changes them during the call: as for memcpy(3), this cannot be
//!   checked.
//! - X2 No slice is longer than `isize::MAX`: longer ones are refused first.

use crate::config::{streamline_config, streamline_options};
use crate::failure::{self, EFAULT, EINVAL, Failure};
use crate::{calls, run, state};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::time::Duration;
use streamline::Options;

/// The writer waits for the slowest reader.
pub const STREAMLINE_BLOCK: i32 = 0;
/// The newest block is dropped and counted.
pub const STREAMLINE_DROP_NEW: i32 = 1;
/// The oldest block is overwritten; a reader that comes too late loses it.
pub const STREAMLINE_OVERWRITE: i32 = 2;

/// To streamline_open(): read.
pub const STREAMLINE_READ: i32 = 0;
/// To streamline_open(): write, to an inbox or a region.
pub const STREAMLINE_WRITE: i32 = 1;
/// To streamline_open(): the end never waits.
pub const STREAMLINE_NONBLOCK: i32 = 4;

/// Creates a stream and opens its writing end. Others open it by `name` (letters, digits, dots,
/// hyphens and underscores, at most 64) as long as this end is open; they start at now. Names live
/// in the process and in its network namespace; nothing is left behind.
///
/// EEXIST: the name is taken. config may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_create(
    name: *const c_char,
    config: *const streamline_config,
) -> c_int {
    number(|| {
        // SAFETY: X1, as the header asks for.
        let (name, config) = (unsafe { text(name) }?, unsafe { shape(config) });
        calls::create(name, config)
    })
}

/// Creates a region of `bytes` bytes that others open by name. mode: who may read it, and write to
/// it (0600, 0644, 0666, ...). The name is given back when the process ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_create_region(
    name: *const c_char,
    bytes: usize,
    mode: c_uint,
) -> c_int {
    // SAFETY: X1.
    number(|| calls::create_region(unsafe { text(name) }?, bytes, mode))
}

/// Creates an inbox: others open it by name to write to it (STREAMLINE_WRITE), each in a stream of
/// its own, which streamline_accept() hands out. mode: who may write (0200 and so on).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_create_inbox(name: *const c_char, mode: c_uint) -> c_int {
    // SAFETY: X1.
    number(|| calls::create_inbox(unsafe { text(name) }?, mode))
}

/// The reading end of the next one who writes to an inbox. Waits for at most timeout_ms
/// milliseconds; -1: for ever. EAGAIN: nobody came.
#[unsafe(no_mangle)]
pub extern "C" fn streamline_accept(inbox: c_int, timeout_ms: c_int) -> c_int {
    number(|| calls::accept(inbox, limit(timeout_ms)))
}

/// Opens a stream or a region, or an inbox to write to it: "NAME" of this user, or "UID/NAME" of
/// another one. The permission is checked here, once.
///
/// ENOENT: nobody has the name. EACCES: it is not for us. EPERM: somebody keeps the name to whom it
/// does not belong. EUSERS: it has as many readers as its creator lets in. ETIMEDOUT: its creator
/// does not answer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_open(name: *const c_char, flags: c_int) -> c_int {
    number(|| {
        if flags & !(STREAMLINE_WRITE | STREAMLINE_NONBLOCK) != 0 {
            return Err(Failure::invalid(format!("there are no flags {flags:#x}")));
        }
        // SAFETY: X1.
        let fd = calls::open(unsafe { text(name) }?, flags & STREAMLINE_WRITE != 0, None)?;
        if flags & STREAMLINE_NONBLOCK != 0 {
            calls::nonblocking(fd, true)?;
        }
        Ok(fd)
    })
}

/// Makes a multiway pipe: fds[0] writes, fds[1] to fds[num - 1] read, each at its own place. The
/// ends are inherited over fork and exec, and can be sent over sockets. Each is opened by the first
/// call that uses it: until fds[0] is written to (or flushed), readers wait. Unused ends are closed
/// by streamline_close(), too, as those of a pipe are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_mpipe(fds: *mut c_int, num: c_int) -> c_int {
    // SAFETY: as below, with no configuration.
    unsafe { streamline_mpipe_with(fds, num, std::ptr::null()) }
}

/// As streamline_mpipe(), with a ring of this shape. config may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_mpipe_with(
    fds: *mut c_int,
    num: c_int,
    config: *const streamline_config,
) -> c_int {
    done(|| {
        let length = usize::try_from(num).unwrap_or(0);
        if fds.is_null() {
            return Err(null());
        }
        if !(2..=iolite::mpipe::ENDS_MAX).contains(&length) {
            return Err(iolite::mpipe::PipeError::Ends(length).into());
        }
        // SAFETY: X1; the length is small.
        let fds = unsafe { slice::from_raw_parts_mut(fds, length) };
        // SAFETY: X1.
        calls::pipe(fds, unsafe { shape(config) })
    })
}

/// Reads as read(2) does: what is there, at most count bytes; waits until there is something. 0:
/// the stream has ended. A ring that overwrites gives whole blocks, one at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_read(fd: c_int, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: X1.
    length(|| calls::read(fd, unsafe { bytes_mut(buf, count) }?))
}

/// Writes count bytes: as one block, or as several where they are more than half of the ring; waits
/// for room where the policy is to block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_write(fd: c_int, buf: *const c_void, count: usize) -> isize {
    // SAFETY: X1.
    length(|| calls::write(fd, unsafe { bytes(buf, count) }?))
}

/// Reads from a region, at this place; less where the region ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_pread(
    fd: c_int,
    buf: *mut c_void,
    count: usize,
    offset: u64,
) -> isize {
    // SAFETY: X1.
    length(|| calls::read_at(fd, offset, unsafe { bytes_mut(buf, count) }?))
}

/// Writes to a region, at this place; less where the region ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_pwrite(
    fd: c_int,
    buf: *const c_void,
    count: usize,
    offset: u64,
) -> isize {
    // SAFETY: X1.
    length(|| calls::write_at(fd, offset, unsafe { bytes(buf, count) }?))
}

/// Reads without taking: *data points to what comes next, at most count bytes of it, and the answer
/// says how many there are; 0: the stream has ended. Good until the next call on this end; between
/// processes it is a copy, because the writer may be a stranger. streamline_release() takes it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_peek(
    fd: c_int,
    data: *mut *const c_char,
    count: usize,
) -> isize {
    length(|| {
        if data.is_null() {
            return Err(null());
        }
        let (first, length) = calls::peek(fd, count)?;
        // SAFETY: X1: it is a place for one pointer.
        unsafe { data.write(first.cast()) };
        Ok(length)
    })
}

/// Takes count bytes of what was peeked at.
#[unsafe(no_mangle)]
pub extern "C" fn streamline_release(fd: c_int, count: usize) -> c_int {
    done(|| calls::release(fd, count))
}

/// Room for a block of up to count bytes, in the ring itself: fill it, then call
/// streamline_commit(), with nothing in between on this end. Null: errno says why.
#[unsafe(no_mangle)]
pub extern "C" fn streamline_reserve(fd: c_int, count: usize) -> *mut c_void {
    match guarded(|| calls::reserve(fd, count)) {
        Some(room) => room.cast(),
        None => std::ptr::null_mut(),
    }
}

/// Writes the first count bytes of what was reserved as one block.
#[unsafe(no_mangle)]
pub extern "C" fn streamline_commit(fd: c_int, count: usize) -> c_int {
    done(|| calls::commit(fd, count))
}

/// Opens what a filter shows that stands in a running line with `state=NAME`: "NAME" of this user,
/// or "UID/NAME" of another one. It is a table: rows of numbers under columns with names and units,
/// one row for each session of the filter. The path is neither asked nor held up, and needs no
/// daemon.
///
/// The descriptor hangs up when the writer is gone; what it had written can still be read.
///
/// Errors: as those of streamline_open().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_state_open(name: *const c_char) -> c_int {
    // SAFETY: X1.
    number(|| state::open(unsafe { text(name) }?))
}

/// Returns the number of columns, which never changes.
#[unsafe(no_mangle)]
pub extern "C" fn streamline_state_columns(fd: c_int) -> isize {
    length(|| state::columns(fd))
}

/// Writes the name of a column (from 0 on) as a string into buf, cut where it has no room for it;
/// answers how long it is. ENOENT: there is no such column.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_state_name(
    fd: c_int,
    column: usize,
    buf: *mut c_char,
    count: usize,
) -> isize {
    // SAFETY: X1.
    length(|| state::name(fd, column, false, unsafe { bytes_mut(buf.cast(), count) }?))
}

/// The same for its unit: "blocks", "bytes", "ns"; empty where a number means itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_state_unit(
    fd: c_int,
    column: usize,
    buf: *mut c_char,
    count: usize,
) -> isize {
    // SAFETY: X1.
    length(|| state::name(fd, column, true, unsafe { bytes_mut(buf.cast(), count) }?))
}

/// Copies all rows as they are now; answers how many there are. No row is half of one moment and
/// half of another.
#[unsafe(no_mangle)]
pub extern "C" fn streamline_state_look(fd: c_int) -> isize {
    length(|| state::look(fd))
}

/// Writes a number of what was copied last to *value. ENOENT: there is no such row or column.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_state_number(
    fd: c_int,
    row: usize,
    column: usize,
    value: *mut u64,
) -> c_int {
    done(|| {
        if value.is_null() {
            return Err(null());
        }
        let number = state::number(fd, row, column)?;
        // SAFETY: X1: it is a place for one number.
        unsafe { value.write(number) };
        Ok(())
    })
}

/// Shows readers all that was written, and wakes those that wait. Needed only where the
/// configuration says that not every write is shown at once.
#[unsafe(no_mangle)]
pub extern "C" fn streamline_flush(fd: c_int) -> c_int {
    done(|| calls::flush(fd))
}

/// The number of readers that were evicted because they wrote a position that they cannot have.
/// The others lose nothing by it, and no call of the writer fails.
#[unsafe(no_mangle)]
pub extern "C" fn streamline_evicted(fd: c_int) -> isize {
    length(|| calls::evicted(fd))
}

/// Moves up to count bytes from one end to another one, by pointers where both ends know them;
/// waits until there is something. 0: the source has ended.
#[unsafe(no_mangle)]
pub extern "C" fn streamline_splice(from: c_int, to: c_int, count: usize) -> isize {
    length(|| calls::splice(from, to, count))
}

/// Waits until there is something to read (or the end), or room to write, or until who showed a
/// state is gone, for at most timeout_ms
/// milliseconds; -1: for ever; for room it always waits for ever. 1: ready. 0: nothing in time.
///
/// To wait for several ends at once: make them STREAMLINE_NONBLOCK, read until EAGAIN, then poll(2)
/// the descriptors for POLLIN. Only after EAGAIN is a reading end made readable when something
/// comes.
#[unsafe(no_mangle)]
pub extern "C" fn streamline_wait(fd: c_int, timeout_ms: c_int) -> c_int {
    number(|| calls::wait(fd, limit(timeout_ms)).map(c_int::from))
}

/// Has an end wait (0) or never wait (1).
#[unsafe(no_mangle)]
pub extern "C" fn streamline_nonblock(fd: c_int, on: c_int) -> c_int {
    done(|| calls::nonblocking(fd, on != 0))
}

/// Closes an end: readers get what is there and then the end; a writer waits for this reader no
/// longer. EBADF: it is none, or was closed before.
#[unsafe(no_mangle)]
pub extern "C" fn streamline_close(fd: c_int) -> c_int {
    done(|| calls::close(fd))
}

/// Returns the message of this thread's last failure: a sentence without a full stop, valid until
/// the next failure; empty if there was none.
#[unsafe(no_mangle)]
pub extern "C" fn streamline_error() -> *const c_char {
    failure::last()
}

// ---- requests

/// Opens a request in the language of the shell, such as `rx eth0 | tcp | http |exchange weblog
/// PATH`, and runs it in threads of its own. Returns its number, which becomes readable (poll(2))
/// when it has ended; streamline_wait() waits for that, streamline_close() stops it.
///
/// EINVAL: the request has mistakes, which streamline_error() shows at their places. No signal
/// handler is installed, and nothing is printed but by sinks that the request names. options may be
/// null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_run(
    request: *const c_char,
    options: *const streamline_options,
) -> c_int {
    number(|| {
        // SAFETY: X1, as the header asks for.
        let (request, options) = (unsafe { text(request) }?, unsafe { wishes(options) }?);
        run::open(request, options)
    })
}

/// Makes an end of this program for a request, which names it by the path that is written into
/// `path` (at least 32 bytes) in place of a file. Returns a plain descriptor, for read(2), write(2)
/// and close(2): STREAMLINE_READ: this program reads what a sink writes; STREAMLINE_WRITE: it
/// writes what a source reads. The other side belongs to the next request that names the path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_end(direction: c_int, path: *mut c_char, size: usize) -> c_int {
    number(|| {
        // SAFETY: X1.
        let out = unsafe { bytes_mut(path.cast(), size) }?;
        let reads = match direction {
            STREAMLINE_READ => true,
            STREAMLINE_WRITE => false,
            other => return Err(Failure::invalid(format!("there is no direction {other}"))),
        };
        if size < 32 {
            return Err(Failure::invalid("a path needs 32 bytes"));
        }
        let (path, fd) = run::end(reads)?;
        run::string(&path, out);
        Ok(fd)
    })
}

/// Lets the sources of a request end: what is under way drains.
#[unsafe(no_mangle)]
pub extern "C" fn streamline_stop(run: c_int) -> c_int {
    done(|| run::stop(run))
}

/// Waits until a request has ended. EIO: it failed, or its ledger does not balance;
/// streamline_error() says why. Close its number after that.
#[unsafe(no_mangle)]
pub extern "C" fn streamline_finish(run: c_int) -> c_int {
    done(|| run::finish(run))
}

/// Writes the ledger of a request, so far or of its end, as one object of JSON into `out`: the form
/// of `streamline run --json`, as a string, cut where it does not fit. Returns its length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_report(run: c_int, out: *mut c_char, size: usize) -> isize {
    // SAFETY: X1.
    length(|| run::report(run, unsafe { bytes_mut(out.cast(), size) }?))
}

// ---- pointers

/// # Safety
/// X1: null, or one set of options, whose pointers are null or strings that end.
unsafe fn wishes(options: *const streamline_options) -> Result<Options, Failure> {
    // SAFETY: the promise of this function.
    let Some(given) = (unsafe { options.as_ref() }) else { return Ok(Options::default()) };
    let some = |number: u64| (number > 0).then_some(number);
    let string = |at: *const c_char| {
        // SAFETY: the promise of this function.
        (!at.is_null()).then(|| unsafe { text(at) }.map(str::to_owned)).transpose()
    };
    Ok(Options {
        count: some(given.count),
        time: some(given.time_ms).map(Duration::from_millis),
        name: string(given.name)?,
        helper: string(given.helper)?.map(Into::into),
        embedded: given.embedded != 0,
        ..Options::default()
    })
}

/// # Safety
/// X1: null, or a string that ends.
unsafe fn text<'a>(name: *const c_char) -> Result<&'a str, Failure> {
    if name.is_null() {
        return Err(null());
    }
    // SAFETY: the promise of this function.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_str().map_err(|_| Failure::invalid("the string is no UTF-8"))
}

/// # Safety
/// X1: null, or one configuration.
unsafe fn shape<'a>(config: *const streamline_config) -> Option<&'a streamline_config> {
    // SAFETY: the promise of this function.
    unsafe { config.as_ref() }
}

/// # Safety
/// X1: null, or so many bytes.
#[inline]
unsafe fn bytes<'a>(at: *const c_void, count: usize) -> Result<&'a [u8], Failure> {
    check(at, count)?;
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: the promise of this function; X2 was checked.
    Ok(unsafe { slice::from_raw_parts(at.cast(), count) })
}

/// # Safety
/// X1: null, or so many bytes that nobody else looks at.
#[inline]
unsafe fn bytes_mut<'a>(at: *mut c_void, count: usize) -> Result<&'a mut [u8], Failure> {
    check(at, count)?;
    if count == 0 {
        return Ok(&mut []);
    }
    // SAFETY: the promise of this function; X2 was checked. The bytes may never have been written;
    // they are only written here.
    Ok(unsafe { slice::from_raw_parts_mut(at.cast(), count) })
}

#[inline]
fn check(at: *const c_void, count: usize) -> Result<(), Failure> {
    if at.is_null() && count > 0 {
        return Err(null());
    }
    if isize::try_from(count).is_err() {
        return Err(Failure::new(EINVAL, format!("{count} bytes are more than there can be")));
    }
    Ok(())
}

#[cold]
fn null() -> Failure {
    Failure::new(EFAULT, "a null pointer where there must be memory")
}

fn limit(timeout_ms: c_int) -> Option<Duration> {
    u64::try_from(timeout_ms).ok().map(Duration::from_millis)
}

// ---- answers

#[inline]
fn guarded<T>(work: impl FnOnce() -> Result<T, Failure>) -> Option<T> {
    let failure = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => return Some(value),
        Ok(Err(failure)) => failure,
        Err(_) => Failure::new(EINVAL, "a fault in libstreamline: please report it"),
    };
    failure.leave();
    None
}

#[inline]
fn number(work: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    guarded(work).unwrap_or(-1)
}

#[inline]
fn length(work: impl FnOnce() -> Result<usize, Failure>) -> isize {
    // What is longer than that was refused before.
    guarded(work).map_or(-1, |count| isize::try_from(count).unwrap_or(isize::MAX))
}

#[inline]
fn done(work: impl FnOnce() -> Result<(), Failure>) -> c_int {
    guarded(work).map_or(-1, |()| 0)
}
