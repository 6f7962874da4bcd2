//! The functions of streamline.h. Each function checks its numbers and pointers, converts them to
//! slices, and calls one safe function. A panic becomes an error of the call.
//!
//! Invariants, cited below:
//! - X1 A C program that passes a pointer and a length promises that the memory is valid and that
//!   no other code changes it during the call: as for memcpy(3), this cannot be checked.
//! - X2 No slice is longer than `isize::MAX`; longer ones are rejected first.

use crate::config::{
    streamline_config, streamline_counts, streamline_options, streamline_ring_size,
};
use crate::failure::{self, EFAULT, EINVAL, Failure};
use crate::{run, state, stream_calls, transfer};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::time::Duration;
use streamline::Options;

/// Policy: the writer waits for the slowest reader.
pub const STREAMLINE_BLOCK: i32 = 0;
/// Policy: if the ring is full, the new block is dropped and counted.
pub const STREAMLINE_DROP_NEW: i32 = 1;
/// Policy: the oldest block is overwritten; a slow reader loses it.
pub const STREAMLINE_OVERWRITE: i32 = 2;

/// Flag of streamline_open(): open for reading.
pub const STREAMLINE_READ: i32 = 0;
/// Flag of streamline_open(): open an inbox or a region for writing.
pub const STREAMLINE_WRITE: i32 = 1;
/// Flag of streamline_open(): calls on the end never wait.
pub const STREAMLINE_NONBLOCK: i32 = 4;

/// Creates a stream and returns its writing end. Readers open it by `name` (letters, digits, dots,
/// hyphens and underscores, at most 64) while this end is open, and receive the blocks that are
/// written after that. The name belongs to this process and its network namespace, and vanishes
/// with the process.
///
/// Fails with EEXIST if the name is taken, EPERM if a process holds a name of another user, EINVAL
/// if the name contains invalid characters. config may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_create(
    name: *const c_char,
    config: *const streamline_config,
) -> c_int {
    int_result(|| {
        // SAFETY: X1, as the header asks for.
        let (name, config) = (unsafe { str_from_c(name) }?, unsafe { config_ref_from_c(config) });
        stream_calls::create(name, config)
    })
}

/// Creates a region of `bytes` bytes, which other processes open by name, and returns its number.
/// The permission bits in mode are for readers and writers (0600, 0644, 0666, ...). The name
/// vanishes with the process. Fails like streamline_create().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_create_region(
    name: *const c_char,
    bytes: usize,
    mode: c_uint,
) -> c_int {
    // SAFETY: X1.
    int_result(|| stream_calls::create_region(unsafe { str_from_c(name) }?, bytes, mode))
}

/// Creates an inbox, to which other processes write by name (STREAMLINE_WRITE). Each writer has a
/// stream of its own, which streamline_accept() returns. The permission bits in mode are for
/// writers (0200, ...). Returns the number of the inbox, which becomes readable (poll(2)) when a
/// writer has opened it. Fails like streamline_create().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_create_inbox(name: *const c_char, mode: c_uint) -> c_int {
    // SAFETY: X1.
    int_result(|| stream_calls::create_inbox(unsafe { str_from_c(name) }?, mode))
}

/// Returns the reading end of the next writer's stream of an inbox. Waits at most timeout_ms
/// milliseconds, without limit if -1. Fails with EAGAIN if no writer has opened the inbox by then.
#[unsafe(no_mangle)]
pub extern "C" fn streamline_accept(inbox: c_int, timeout_ms: c_int) -> c_int {
    int_result(|| stream_calls::accept(inbox, timeout_from_ms(timeout_ms)))
}

/// Opens a stream or a region, or an inbox for writing: "NAME" of this user, or "UID/NAME" of
/// another user. flags: STREAMLINE_READ or STREAMLINE_WRITE, with STREAMLINE_NONBLOCK or without.
/// Permissions are checked here, once. Returns the number of the end.
///
/// Fails with ENOENT if no process has the name, EACCES without permission, EPERM if a process
/// holds a name of another user, EUSERS if the stream has its maximum number of readers, EBADF if
/// the flags do not fit the object, and ETIMEDOUT if the creator does not reply within 20 seconds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_open(name: *const c_char, flags: c_int) -> c_int {
    int_result(|| {
        if flags & !(STREAMLINE_WRITE | STREAMLINE_NONBLOCK) != 0 {
            return Err(Failure::invalid(format!("unknown flags {flags:#x}")));
        }
        // SAFETY: X1.
        let fd =
            stream_calls::open(unsafe { str_from_c(name) }?, flags & STREAMLINE_WRITE != 0, None)?;
        if flags & STREAMLINE_NONBLOCK != 0 {
            stream_calls::set_nonblocking(fd, true)?;
        }
        Ok(fd)
    })
}

/// Creates a multiway pipe: fds[0] writes, and fds[1] to fds[num - 1] read, each at its own
/// position. The ends are inherited over fork and exec, and can be sent over sockets. The first
/// call on an end opens it; readers wait until fds[0] has been written to or flushed. Close unused
/// ends with streamline_close(), as those of a pipe. Fails with EINVAL unless num is 2 to 65.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_mpipe(fds: *mut c_int, num: c_int) -> c_int {
    // SAFETY: as below; the configuration is null.
    unsafe { streamline_mpipe_with(fds, num, std::ptr::null()) }
}

/// Creates a multiway pipe like streamline_mpipe(), with a configuration, which may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_mpipe_with(
    fds: *mut c_int,
    num: c_int,
    config: *const streamline_config,
) -> c_int {
    status_result(|| {
        let length = usize::try_from(num).unwrap_or(0);
        if fds.is_null() {
            return Err(null_pointer_error());
        }
        if !(2..=iolite::mpipe::PIPE_ENDS_MAX).contains(&length) {
            return Err(iolite::mpipe::PipeError::Ends(length).into());
        }
        // SAFETY: X1; the length is small.
        let fds = unsafe { slice::from_raw_parts_mut(fds, length) };
        // SAFETY: X1.
        stream_calls::pipe(fds, unsafe { config_ref_from_c(config) })
    })
}

/// Reads up to count bytes, like read(2); waits until there are bytes to read. Returns 0 at the end
/// of the stream. From a ring that overwrites, reads one whole block, or fails with EMSGSIZE if it
/// is longer than count. From a region, reads at its offset and moves the offset.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_read(fd: c_int, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: X1.
    size_result(|| stream_calls::read(fd, unsafe { slice_mut_from_c(buf, count) }?))
}

/// Writes count bytes as one block, or as several if they exceed half of the ring or 1 MB. Returns
/// the number of bytes written. If the policy is STREAMLINE_BLOCK, waits for room. With
/// STREAMLINE_NONBLOCK, writes only the blocks that fit, so the result may be less than count;
/// fails with EAGAIN if none fits. With STREAMLINE_DROP_NEW, ends before the first block that is
/// dropped, so the result may be less than count, too; fails with ENOBUFS if that is the first
/// block. If fd is a region, writes at the current offset of fd, like streamline_pwrite() at that
/// offset, and moves the offset.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_write(fd: c_int, buf: *const c_void, count: usize) -> isize {
    // SAFETY: X1.
    size_result(|| stream_calls::write(fd, unsafe { slice_from_c(buf, count) }?))
}

/// Reads from a region at this offset in bytes, and does not change that of streamline_read().
/// Returns fewer bytes at the end of the region, 0 beyond it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_pread(
    fd: c_int,
    buf: *mut c_void,
    count: usize,
    offset: u64,
) -> isize {
    // SAFETY: X1.
    size_result(|| stream_calls::read_at(fd, offset, unsafe { slice_mut_from_c(buf, count) }?))
}

/// Writes to a region at this offset. Returns fewer bytes at the end of the region; fails with
/// ENOSPC beyond it, and with EBADF if the region was opened for reading.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_pwrite(
    fd: c_int,
    buf: *const c_void,
    count: usize,
    offset: u64,
) -> isize {
    // SAFETY: X1.
    size_result(|| stream_calls::write_at(fd, offset, unsafe { slice_from_c(buf, count) }?))
}

/// Reads without consuming or copying: sets *data to the next bytes in the memory of the stream.
/// Returns the number of these bytes, at most count, or 0 at the end of the stream. The bytes can
/// be read until the next call on this end. Consume them with streamline_release().
///
/// If the policy is STREAMLINE_BLOCK or STREAMLINE_DROP_NEW, the writer keeps the bytes until they
/// are released. If it is STREAMLINE_OVERWRITE, the writer may overwrite them at any time: compute
/// first, then call streamline_release(), and use the result only if that succeeds. Such a block is
/// returned and released as a whole; fails with EMSGSIZE if count is smaller.
///
/// The memory belongs to the writer. If you do not trust it, copy what you check before you check
/// it (a length, a name), or use streamline_read(): the bytes may change between check and use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_peek(
    fd: c_int,
    data: *mut *const c_char,
    count: usize,
) -> isize {
    size_result(|| {
        if data.is_null() {
            return Err(null_pointer_error());
        }
        let (first, length) = stream_calls::peek(fd, count)?;
        // SAFETY: X1: it points to room for one pointer.
        unsafe { data.write(first.cast()) };
        Ok(length)
    })
}

/// Consumes count bytes after streamline_peek(). Fails with ESTALE if the ring overwrites and the
/// writer has reached the block since: discard what was computed from it; the block is lost.
#[unsafe(no_mangle)]
pub extern "C" fn streamline_release(fd: c_int, count: usize) -> c_int {
    status_result(|| stream_calls::release(fd, count))
}

/// Reserves room for a block of up to count bytes in the ring itself. Fill it and call
/// streamline_commit() before any other call on this end. Waits for room if the policy is
/// STREAMLINE_BLOCK. Returns null on failure, with EMSGSIZE if no block can be that long, and EBADF
/// for pipes of pointers.
#[unsafe(no_mangle)]
pub extern "C" fn streamline_reserve(fd: c_int, count: usize) -> *mut c_void {
    match report_failure(|| stream_calls::reserve(fd, count)) {
        Some(room) => room.cast(),
        None => std::ptr::null_mut(),
    }
}

/// Writes the first count bytes of the reserved room as one block. Fails with EINVAL if nothing is
/// reserved, if count is more than was reserved, or if another call on the end came in between; the
/// room is then released.
#[unsafe(no_mangle)]
pub extern "C" fn streamline_commit(fd: c_int, count: usize) -> c_int {
    status_result(|| stream_calls::commit(fd, count))
}

/// Opens the state that a filter of a running request publishes with `state=NAME`: "NAME" of this
/// user, or "UID/NAME" of another user. It is a table of numbers: columns with names and units, and
/// a row per session of the filter. The path is not slowed down, and no daemon is needed.
///
/// The descriptor hangs up when the writer is gone; its last state can still be read.
///
/// Fails like streamline_open().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_state_open(name: *const c_char) -> c_int {
    // SAFETY: X1.
    int_result(|| state::open(unsafe { str_from_c(name) }?))
}

/// Returns the number of columns, which never changes.
#[unsafe(no_mangle)]
pub extern "C" fn streamline_state_columns(fd: c_int) -> isize {
    size_result(|| state::column_count(fd))
}

/// Writes the name of a column (from 0) as a string into buf, truncated if it does not fit, and
/// returns its full length. Fails with ENOENT if there is no such column.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_state_name(
    fd: c_int,
    column: usize,
    buf: *mut c_char,
    count: usize,
) -> isize {
    size_result(|| {
        // SAFETY: X1.
        let text = unsafe { slice_mut_from_c(buf.cast(), count) }?;
        state::write_column_text(fd, column, false, text)
    })
}

/// Writes the unit of a column like streamline_state_name(), such as "blocks", "bytes", "messages",
/// "ns" (nanoseconds) or "yes or no"; empty for a plain number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_state_unit(
    fd: c_int,
    column: usize,
    buf: *mut c_char,
    count: usize,
) -> isize {
    size_result(|| {
        // SAFETY: X1.
        let text = unsafe { slice_mut_from_c(buf.cast(), count) }?;
        state::write_column_text(fd, column, true, text)
    })
}

/// Copies all rows, to be read by streamline_state_number(). Returns the number of rows. Each row
/// is a consistent snapshot; different rows may be of different moments.
#[unsafe(no_mangle)]
pub extern "C" fn streamline_state_look(fd: c_int) -> isize {
    size_result(|| state::copy_rows(fd))
}

/// Stores a number of the last copy in *value; row and column count from 0. Fails with ENOENT if
/// there is no such row or column, and with EINVAL before the first streamline_state_look().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_state_number(
    fd: c_int,
    row: usize,
    column: usize,
    value: *mut u64,
) -> c_int {
    status_result(|| {
        if value.is_null() {
            return Err(null_pointer_error());
        }
        let number = state::value(fd, row, column)?;
        // SAFETY: X1: it points to room for one number.
        unsafe { value.write(number) };
        Ok(())
    })
}

/// Publishes all blocks written so far and wakes waiting readers. Only needed if the configuration
/// defers publishing (`every`).
#[unsafe(no_mangle)]
pub extern "C" fn streamline_flush(fd: c_int) -> c_int {
    status_result(|| stream_calls::flush(fd))
}

/// Returns the number of readers that were evicted for writing an impossible position. Other
/// readers lose nothing, and calls of the writer do not fail. Fails with EBADF unless fd writes.
#[unsafe(no_mangle)]
pub extern "C" fn streamline_evicted(fd: c_int) -> isize {
    size_result(|| stream_calls::evicted_reader_count(fd))
}

/// Moves up to count bytes from one end to another; waits until there are bytes to move, and for
/// room. Returns 0 at the end of the source. Fails with EAGAIN instead of waiting for an end that
/// is STREAMLINE_NONBLOCK.
///
/// From a pipe of pointers (`pointers` in its configuration) or a file of streamline_open_file() to
/// a pipe of pointers, only pointers move: the bytes are neither copied nor touched, and the cost
/// of a block does not depend on its size. In all other cases they are copied once.
/// streamline_count() returns the number of blocks moved in each way.
///
/// Bytes that moved by pointer stay in the memory to which they were first written until the last
/// reader has read them; until then their writer may have to wait for room. A call that fails with
/// EAGAIN also releases what has been read: a program that does not wait must repeat it from time
/// to time, and not only when `from` becomes readable.
#[unsafe(no_mangle)]
pub extern "C" fn streamline_splice(from: c_int, to: c_int, count: usize) -> isize {
    size_result(|| transfer::splice(from, to, count))
}

/// Opens a file to be read and spliced: a copy of its contents at this moment, in memory that no
/// process can change. It is shared by reference, so a call of streamline_splice() to a pipe of
/// pointers copies nothing. streamline_peek() and streamline_splice() see blocks of up to `block`
/// bytes; 0: as long as possible (512 KB). Returns the number of the file. Fails like open(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_open_file(path: *const c_char, block: usize) -> c_int {
    // SAFETY: X1.
    int_result(|| stream_calls::open_file(unsafe { str_from_c(path) }?, block))
}

/// Sets the offset, in bytes from the start, of the next read of a file of streamline_open_file(),
/// or of the next read or write of a region. An offset beyond the end is its end.
#[unsafe(no_mangle)]
pub extern "C" fn streamline_seek(fd: c_int, offset: u64) -> c_int {
    status_result(|| stream_calls::seek(fd, offset))
}

/// Stores the counts of an end of a stream in *counts. Each block that a writer has written is, for
/// each of its readers, either read, lost, or still to be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_count(fd: c_int, counts: *mut streamline_counts) -> c_int {
    status_result(|| {
        if counts.is_null() {
            return Err(null_pointer_error());
        }
        let counted = transfer::counts(fd)?;
        // SAFETY: X1: it points to room for one structure.
        unsafe { counts.write(counted) };
        Ok(())
    })
}

/// Stores in *size the size of the ring of a writing end, or of the memory for bytes that are
/// written to a pipe of pointers. Without a requested capacity it changes while the stream runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_size(fd: c_int, size: *mut streamline_ring_size) -> c_int {
    status_result(|| {
        if size.is_null() {
            return Err(null_pointer_error());
        }
        let found = transfer::size(fd)?;
        // SAFETY: X1: it points to room for one structure.
        unsafe { size.write(found) };
        Ok(())
    })
}

/// Waits until a reading end has data or has reached its end, a writing end has room, or the writer
/// of a state has ended. Returns 1 if so, and 0 after timeout_ms milliseconds; -1: no timeout. A
/// writing end has no timeout.
///
/// To wait for several ends: make them STREAMLINE_NONBLOCK, read until EAGAIN, then poll(2) the
/// descriptors for POLLIN. A reading end becomes readable only after a call on it returned EAGAIN.
#[unsafe(no_mangle)]
pub extern "C" fn streamline_wait(fd: c_int, timeout_ms: c_int) -> c_int {
    int_result(|| crate::wait::wait(fd, timeout_from_ms(timeout_ms)).map(c_int::from))
}

/// Makes calls on an end wait (0) or fail with EAGAIN (1). Fails with EINVAL for the writing end of
/// a pipe of pointers, which always waits.
#[unsafe(no_mangle)]
pub extern "C" fn streamline_nonblock(fd: c_int, on: c_int) -> c_int {
    status_result(|| stream_calls::set_nonblocking(fd, on != 0))
}

/// Closes an end. Readers drain the stream and then reach its end; a writer no longer waits for
/// this reader. Stops a request, and waits until it has ended. Fails with EBADF if fd is not an
/// open end.
#[unsafe(no_mangle)]
pub extern "C" fn streamline_close(fd: c_int) -> c_int {
    status_result(|| stream_calls::close(fd))
}

/// Returns the message of this thread's last failure, without a full stop, valid until the next
/// failure; empty if there was none.
#[unsafe(no_mangle)]
pub extern "C" fn streamline_error() -> *const c_char {
    failure::last_message()
}

// ---- requests

/// Opens a request in the language of the command, such as `rx eth0 | tcp | http |exchange weblog
/// PATH`, and runs it in threads of its own. Returns its number, which becomes readable (poll(2))
/// when the run has ended; streamline_wait() waits for that, streamline_close() stops it.
///
/// Fails with EINVAL if the request has errors; streamline_error() then lists the errors with their
/// positions. Fails with ENOTSUP if no space of this machine can run it, with ECHILD if a worker
/// process fails at its start, and with the errno of the system call that was refused, such as
/// EPERM for a capture without the privilege.
///
/// Installs no signal handler, and prints nothing but the output of sinks. options may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_run(
    request: *const c_char,
    options: *const streamline_options,
) -> c_int {
    int_result(|| {
        // SAFETY: X1, as the header asks for.
        let (request, options) =
            (unsafe { str_from_c(request) }?, unsafe { options_from_c(options) }?);
        run::open(request, options)
    })
}

/// Creates an end between this program and a request. Writes a path into `path` (at least 32
/// bytes), which the request uses in place of a file name. Returns a plain descriptor for read(2),
/// write(2) and close(2): with STREAMLINE_READ this program reads what a sink writes, with
/// STREAMLINE_WRITE it writes what a source reads. The other side goes to the next request that
/// names the path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_end(direction: c_int, path: *mut c_char, size: usize) -> c_int {
    int_result(|| {
        // SAFETY: X1.
        let out = unsafe { slice_mut_from_c(path.cast(), size) }?;
        let reads = match direction {
            STREAMLINE_READ => true,
            STREAMLINE_WRITE => false,
            other => return Err(Failure::invalid(format!("unknown direction {other}"))),
        };
        if size < 32 {
            return Err(Failure::invalid("a path needs 32 bytes"));
        }
        let (path, fd) = run::create_pipe_end(reads)?;
        run::write_c_string(&path, out);
        Ok(fd)
    })
}

/// Stops the sources of a request; blocks in transit are still processed. Does not wait for them.
#[unsafe(no_mangle)]
pub extern "C" fn streamline_stop(run: c_int) -> c_int {
    status_result(|| run::stop(run))
}

/// Waits until a request has ended. Fails with EIO if it failed or if its ledger does not balance;
/// streamline_error() gives the reason. Close its number afterwards. Meanwhile other threads get
/// EBUSY for this request; to stop it from one of them, wait by poll(2) on its number first.
#[unsafe(no_mangle)]
pub extern "C" fn streamline_finish(run: c_int) -> c_int {
    status_result(|| run::finish(run))
}

/// Writes the ledger of a request, current or final, as a JSON object into `out`: a string in the
/// format of `streamline run --json`, truncated if it does not fit. Returns its full length in
/// bytes, without the terminating zero. Fails with EIO if the request failed without a ledger.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn streamline_report(run: c_int, out: *mut c_char, size: usize) -> isize {
    // SAFETY: X1.
    size_result(|| run::report(run, unsafe { slice_mut_from_c(out.cast(), size) }?))
}

// ---- pointers

/// Converts options from C; null selects the defaults. Fails if a string is not UTF-8.
///
/// # Safety
/// `options` must be null, or point to one structure whose pointers are null or terminated strings
/// (X1).
unsafe fn options_from_c(options: *const streamline_options) -> Result<Options, Failure> {
    // SAFETY: the promise of this function.
    let Some(given) = (unsafe { options.as_ref() }) else { return Ok(Options::default()) };
    let some = |number: u64| (number > 0).then_some(number);
    let string = |at: *const c_char| {
        // SAFETY: the promise of this function.
        (!at.is_null()).then(|| unsafe { str_from_c(at) }.map(str::to_owned)).transpose()
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

/// Converts a string from C. Fails if it is null or not UTF-8.
///
/// # Safety
/// `name` must be null or a terminated string (X1).
unsafe fn str_from_c<'a>(name: *const c_char) -> Result<&'a str, Failure> {
    if name.is_null() {
        return Err(null_pointer_error());
    }
    // SAFETY: the promise of this function.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_str().map_err(|_| Failure::invalid("the string is not valid UTF-8"))
}

/// Converts a configuration from C; `None` for null.
///
/// # Safety
/// `config` must be null or point to one configuration (X1).
unsafe fn config_ref_from_c<'a>(config: *const streamline_config) -> Option<&'a streamline_config> {
    // SAFETY: the promise of this function.
    unsafe { config.as_ref() }
}

/// Converts a pointer and a length to a slice. Fails if the length is too large, or if it is not 0
/// and the pointer is null.
///
/// # Safety
/// `at` must be null or point to `count` bytes (X1).
#[inline]
unsafe fn slice_from_c<'a>(at: *const c_void, count: usize) -> Result<&'a [u8], Failure> {
    check_pointer(at, count)?;
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: the promise of this function; X2 was checked.
    Ok(unsafe { slice::from_raw_parts(at.cast(), count) })
}

/// Converts a pointer and a length to a mutable slice. Fails if the length is too large, or if it
/// is not 0 and the pointer is null.
///
/// # Safety
/// `at` must be null or point to `count` bytes that no other code accesses (X1).
#[inline]
unsafe fn slice_mut_from_c<'a>(at: *mut c_void, count: usize) -> Result<&'a mut [u8], Failure> {
    check_pointer(at, count)?;
    if count == 0 {
        return Ok(&mut []);
    }
    // SAFETY: the promise of this function; X2 was checked. The bytes may be uninitialized; they
    // are only written here.
    Ok(unsafe { slice::from_raw_parts_mut(at.cast(), count) })
}

#[inline]
fn check_pointer(at: *const c_void, count: usize) -> Result<(), Failure> {
    if at.is_null() && count > 0 {
        return Err(null_pointer_error());
    }
    if isize::try_from(count).is_err() {
        return Err(Failure::new(EINVAL, format!("{count} bytes exceed the address space")));
    }
    Ok(())
}

#[cold]
fn null_pointer_error() -> Failure {
    Failure::new(EFAULT, "unexpected null pointer")
}

fn timeout_from_ms(timeout_ms: c_int) -> Option<Duration> {
    u64::try_from(timeout_ms).ok().map(Duration::from_millis)
}

// ---- results

#[inline]
fn report_failure<T>(work: impl FnOnce() -> Result<T, Failure>) -> Option<T> {
    let failure = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => return Some(value),
        Ok(Err(failure)) => failure,
        Err(_) => Failure::new(EINVAL, "a bug in libstreamline: please report it"),
    };
    failure.set_as_last_message();
    None
}

#[inline]
fn int_result(work: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    report_failure(work).unwrap_or(-1)
}

#[inline]
fn size_result(work: impl FnOnce() -> Result<usize, Failure>) -> isize {
    // Longer results were rejected before.
    report_failure(work).map_or(-1, |count| isize::try_from(count).unwrap_or(isize::MAX))
}

#[inline]
fn status_result(work: impl FnOnce() -> Result<(), Failure>) -> c_int {
    report_failure(work).map_or(-1, |()| 0)
}
