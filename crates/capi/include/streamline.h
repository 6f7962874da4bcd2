/*
 * streamline.h: streams between processes with the interface of Unix files, as local calls; and
 * requests that run beside the calling program.
 *
 *     cc program.c $(pkg-config --cflags --libs streamline)
 *
 * Numbers. Every end is a descriptor number that can be polled. Close it with streamline_close()
 * only; read(2), write(2), dup(2) and close(2) do not work on ends.
 *
 * Results. A function whose comment names no result returns 0. Sizes and offsets are in bytes,
 * time limits in milliseconds, times in nanoseconds.
 *
 * Errors. As for system calls: -1 (or a null pointer) and errno. streamline_error() returns the
 * message of this thread's last failure. Any call may fail with these, besides those of its comment:
 *
 *     EIO      a request failed
 *     EBADF    not an open end, or an end of the other direction; closed twice
 *     EFAULT   a null pointer where memory is required
 *     EINVAL   an invalid argument; streamline_error() says which
 *     EAGAIN   no data or no room, and the end does not wait (STREAMLINE_NONBLOCK)
 *     EPIPE    no reader is left; or the writer was killed, and its last block has been read
 *     EBUSY    another thread is in a call on the same end
 *     EPROTO   the peer violated the protocol: close the end
 *     ENOBUFS  the ring is full and its policy is to drop; the block is counted as dropped
 *     EMSGSIZE longer than a block can be; or, if the ring overwrites, than the buffer
 *     EMFILE   no descriptor is left, or its number is 65536 or more
 *
 * Waiting. Without limit, unless the end is STREAMLINE_NONBLOCK: streamline_read(),
 * streamline_peek(), streamline_write(), streamline_reserve(), streamline_splice(). As long as they
 * are told: streamline_wait(), streamline_accept(). Until a request has ended: streamline_finish(),
 * and streamline_close() of a request. For the reply of another process: streamline_open() and
 * streamline_state_open() at most 20 seconds; streamline_create(), streamline_create_region() and
 * streamline_create_inbox() at most 4 seconds, if another process holds the name.
 * streamline_run() plans the request and registers it with the daemon, and streamline_open_file()
 * reads the file. All other functions return at once.
 *
 * Cost. A call makes no system call unless one side has to wait or to be woken.
 *
 * Threads. Different ends may be used by different threads at the same time. An end may be used by
 * one thread at a time: a second one gets EBUSY. streamline_error() is per thread.
 *
 * fork. An end belongs to the process that first used it. An unused end of streamline_mpipe() is
 * inherited over fork and exec and can be sent over sockets, like any descriptor; an end opened
 * before a fork must not be used on both sides. Create names after a fork: a thread serves them, and
 * threads do not survive a fork.
 */

#ifndef STREAMLINE_H
#define STREAMLINE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/*
 Policy: the writer waits for the slowest reader.
 */
#define STREAMLINE_BLOCK 0

/*
 Policy: if the ring is full, the new block is dropped and counted.
 */
#define STREAMLINE_DROP_NEW 1

/*
 Policy: the oldest block is overwritten; a slow reader loses it.
 */
#define STREAMLINE_OVERWRITE 2

/*
 Flag of streamline_open(): open for reading.
 */
#define STREAMLINE_READ 0

/*
 Flag of streamline_open(): open an inbox or a region for writing.
 */
#define STREAMLINE_WRITE 1

/*
 Flag of streamline_open(): calls on the end never wait.
 */
#define STREAMLINE_NONBLOCK 4

/*
 The configuration of a stream. A field that is 0 selects its default.
 */
typedef struct streamline_config {
    /*
     Capacity of the ring in bytes, rounded up to a power of two; 0: 1 MB. With 0 and the policy
     STREAMLINE_BLOCK, the writer may later resize the ring to fit the processor caches.
     */
    uint64_t capacity;
    /*
     Policy of a full ring: STREAMLINE_BLOCK, STREAMLINE_DROP_NEW or STREAMLINE_OVERWRITE.
     */
    int32_t policy;
    /*
     Permission bits for readers; 0: 0600, this user alone.
     */
    uint32_t mode;
    /*
     Maximum number of readers at a time; 0: 32.
     */
    uint32_t readers;
    /*
     Maximum number of readers of each user other than the owner; 0: 8.
     */
    uint32_t readers_of_one_stranger;
    /*
     Number of written blocks after which readers are notified of them. 0 or 1: readers are
     notified of each write at once. A larger value (32) is several times faster for small
     blocks, but needs streamline_flush() before waiting for a reply.
     */
    uint32_t every;
    /*
     0: the pipe carries bytes. 1: it carries pointers to bytes, which streamline_splice() moves
     without touching the bytes; `capacity` is the memory for bytes that are written, and is
     resized like a ring of bytes. 1 is permitted only for streamline_mpipe_with(), and the
     writing end of the pipe then always waits.
     */
    uint32_t pointers;
} streamline_config;

/*
 The counts of an end of a stream, since it was opened.
 */
typedef struct streamline_counts {
    /*
     Blocks written or read.
     */
    uint64_t blocks;
    /*
     The bytes of these blocks.
     */
    uint64_t bytes;
    /*
     Blocks that were dropped because there was no room, or that a reader lost.
     */
    uint64_t dropped;
    /*
     The bytes of the dropped blocks; 0 for a reader.
     */
    uint64_t dropped_bytes;
    /*
     Blocks written as pointers, whose bytes were not touched.
     */
    uint64_t by_pointer;
    /*
     Blocks whose bytes were copied into the stream; 0 for a reader.
     */
    uint64_t copied;
} streamline_counts;

/*
 The size of the ring behind a writing end, or of the memory of a pipe of pointers.
 */
typedef struct streamline_ring_size {
    /*
     Bytes that the writer uses now.
     */
    uint64_t bytes;
    /*
     Number of times that the size has grown, and shrunk. Both stay 0 if it is fixed.
     */
    uint64_t grown;
    /*
     See `grown`.
     */
    uint64_t shrunk;
} streamline_ring_size;

/*
 The options of a run in addition to its request. A field that is 0 or null is not set.
 */
typedef struct streamline_options {
    /*
     Ends the run after its sinks have received this many blocks.
     */
    uint64_t count;
    /*
     Ends the run after this many milliseconds.
     */
    uint64_t time_ms;
    /*
     Name of the run at the daemon; fails without a daemon.
     */
    const char *name;
    /*
     Program that runs worker processes (`--engines`) and untrusted filters: the command
     `streamline`. If null, requests that need one fail; this program is never started again.
     */
    const char *helper;
    /*
     1: does not register with the daemon of the machine.
     */
    int32_t embedded;
} streamline_options;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Creates a stream and returns its writing end. Readers open it by `name` (letters, digits, dots,
 hyphens and underscores, at most 64) while this end is open, and receive the blocks that are
 written after that. The name belongs to this process and its network namespace, and vanishes
 with the process.

 Fails with EEXIST if the name is taken, EPERM if a process holds a name of another user, EINVAL
 if the name contains invalid characters. config may be null.
 */
int streamline_create(const char *name,
                      const struct streamline_config *config);

/*
 Creates a region of `bytes` bytes, which other processes open by name, and returns its number.
 The permission bits in mode are for readers and writers (0600, 0644, 0666, ...). The name
 vanishes with the process. Fails like streamline_create().
 */
int streamline_create_region(const char *name,
                             size_t bytes,
                             unsigned int mode);

/*
 Creates an inbox, to which other processes write by name (STREAMLINE_WRITE). Each writer has a
 stream of its own, which streamline_accept() returns. The permission bits in mode are for
 writers (0200, ...). Returns the number of the inbox, which becomes readable (poll(2)) when a
 writer has opened it. Fails like streamline_create().
 */
int streamline_create_inbox(const char *name,
                            unsigned int mode);

/*
 Returns the reading end of the next writer's stream of an inbox. Waits at most timeout_ms
 milliseconds, without limit if -1. Fails with EAGAIN if no writer has opened the inbox by then.
 */
int streamline_accept(int inbox,
                      int timeout_ms);

/*
 Opens a stream or a region, or an inbox for writing: "NAME" of this user, or "UID/NAME" of
 another user. flags: STREAMLINE_READ or STREAMLINE_WRITE, with STREAMLINE_NONBLOCK or without.
 Permissions are checked here, once. Returns the number of the end.

 Fails with ENOENT if no process has the name, EACCES without permission, EPERM if a process
 holds a name of another user, EUSERS if the stream has its maximum number of readers, EBADF if
 the flags do not fit the object, and ETIMEDOUT if the creator does not reply within 20 seconds.
 */
int streamline_open(const char *name,
                    int flags);

/*
 Creates a multiway pipe: fds[0] writes, and fds[1] to fds[num - 1] read, each at its own
 position. The ends are inherited over fork and exec, and can be sent over sockets. The first
 call on an end opens it; readers wait until fds[0] has been written to or flushed. Close unused
 ends with streamline_close(), as those of a pipe. Fails with EINVAL unless num is 2 to 65.
 */
int streamline_mpipe(int *fds,
                     int num);

/*
 Creates a multiway pipe like streamline_mpipe(), with a configuration, which may be null.
 */
int streamline_mpipe_with(int *fds,
                          int num,
                          const struct streamline_config *config);

/*
 Reads up to count bytes, like read(2); waits until there are bytes to read. Returns 0 at the end
 of the stream. From a ring that overwrites, reads one whole block, or fails with EMSGSIZE if it
 is longer than count. From a region, reads at its offset and moves the offset.
 */
ptrdiff_t streamline_read(int fd,
                          void *buf,
                          size_t count);

/*
 Writes count bytes as one block, or as several if they exceed half of the ring or 1 MB. Returns
 the number of bytes written. If the policy is STREAMLINE_BLOCK, waits for room. With
 STREAMLINE_NONBLOCK, writes only the blocks that fit, so the result may be less than count;
 fails with EAGAIN if none fits. With STREAMLINE_DROP_NEW, ends before the first block that is
 dropped, so the result may be less than count, too; fails with ENOBUFS if that is the first
 block. If fd is a region, writes at the current offset of fd, like streamline_pwrite() at that
 offset, and moves the offset.
 */
ptrdiff_t streamline_write(int fd,
                           const void *buf,
                           size_t count);

/*
 Reads from a region at this offset in bytes, and does not change that of streamline_read().
 Returns fewer bytes at the end of the region, 0 beyond it.
 */
ptrdiff_t streamline_pread(int fd,
                           void *buf,
                           size_t count,
                           uint64_t offset);

/*
 Writes to a region at this offset. Returns fewer bytes at the end of the region; fails with
 ENOSPC beyond it, and with EBADF if the region was opened for reading.
 */
ptrdiff_t streamline_pwrite(int fd,
                            const void *buf,
                            size_t count,
                            uint64_t offset);

/*
 Reads without consuming or copying: sets *data to the next bytes in the memory of the stream.
 Returns the number of these bytes, at most count, or 0 at the end of the stream. The bytes can
 be read until the next call on this end. Consume them with streamline_release().

 If the policy is STREAMLINE_BLOCK or STREAMLINE_DROP_NEW, the writer keeps the bytes until they
 are released. If it is STREAMLINE_OVERWRITE, the writer may overwrite them at any time: compute
 first, then call streamline_release(), and use the result only if that succeeds. Such a block is
 returned and released as a whole; fails with EMSGSIZE if count is smaller.

 The memory belongs to the writer. If you do not trust it, copy what you check before you check
 it (a length, a name), or use streamline_read(): the bytes may change between check and use.
 */
ptrdiff_t streamline_peek(int fd,
                          const char **data,
                          size_t count);

/*
 Consumes count bytes after streamline_peek(). Fails with ESTALE if the ring overwrites and the
 writer has reached the block since: discard what was computed from it; the block is lost.
 */
int streamline_release(int fd,
                       size_t count);

/*
 Reserves room for a block of up to count bytes in the ring itself. Fill it and call
 streamline_commit() before any other call on this end. Waits for room if the policy is
 STREAMLINE_BLOCK. Returns null on failure, with EMSGSIZE if no block can be that long, and EBADF
 for pipes of pointers.
 */
void *streamline_reserve(int fd,
                         size_t count);

/*
 Writes the first count bytes of the reserved room as one block. Fails with EINVAL if nothing is
 reserved, if count is more than was reserved, or if another call on the end came in between; the
 room is then released.
 */
int streamline_commit(int fd,
                      size_t count);

/*
 Opens the state that a filter of a running request publishes with `state=NAME`: "NAME" of this
 user, or "UID/NAME" of another user. It is a table of numbers: columns with names and units, and
 a row per session of the filter. The path is not slowed down, and no daemon is needed.

 The descriptor hangs up when the writer is gone; its last state can still be read.

 Fails like streamline_open().
 */
int streamline_state_open(const char *name);

/*
 Returns the number of columns, which never changes.
 */
ptrdiff_t streamline_state_columns(int fd);

/*
 Writes the name of a column (from 0) as a string into buf, truncated if it does not fit, and
 returns its full length. Fails with ENOENT if there is no such column.
 */
ptrdiff_t streamline_state_name(int fd,
                                size_t column,
                                char *buf,
                                size_t count);

/*
 Writes the unit of a column like streamline_state_name(), such as "blocks", "bytes", "messages",
 "ns" (nanoseconds) or "yes or no"; empty for a plain number.
 */
ptrdiff_t streamline_state_unit(int fd,
                                size_t column,
                                char *buf,
                                size_t count);

/*
 Copies all rows, to be read by streamline_state_number(). Returns the number of rows. Each row
 is a consistent snapshot; different rows may be of different moments.
 */
ptrdiff_t streamline_state_look(int fd);

/*
 Stores a number of the last copy in *value; row and column count from 0. Fails with ENOENT if
 there is no such row or column, and with EINVAL before the first streamline_state_look().
 */
int streamline_state_number(int fd,
                            size_t row,
                            size_t column,
                            uint64_t *value);

/*
 Publishes all blocks written so far and wakes waiting readers. Only needed if the configuration
 defers publishing (`every`).
 */
int streamline_flush(int fd);

/*
 Returns the number of readers that were evicted for writing an impossible position. Other
 readers lose nothing, and calls of the writer do not fail. Fails with EBADF unless fd writes.
 */
ptrdiff_t streamline_evicted(int fd);

/*
 Moves up to count bytes from one end to another; waits until there are bytes to move, and for
 room. Returns 0 at the end of the source. Fails with EAGAIN instead of waiting for an end that
 is STREAMLINE_NONBLOCK.

 From a pipe of pointers (`pointers` in its configuration) or a file of streamline_open_file() to
 a pipe of pointers, only pointers move: the bytes are neither copied nor touched, and the cost
 of a block does not depend on its size. In all other cases they are copied once.
 streamline_count() returns the number of blocks moved in each way.

 Bytes that moved by pointer stay in the memory to which they were first written until the last
 reader has read them; until then their writer may have to wait for room. A call that fails with
 EAGAIN also releases what has been read: a program that does not wait must repeat it from time
 to time, and not only when `from` becomes readable.
 */
ptrdiff_t streamline_splice(int from,
                            int to,
                            size_t count);

/*
 Opens a file to be read and spliced: a copy of its contents at this moment, in memory that no
 process can change. It is shared by reference, so a call of streamline_splice() to a pipe of
 pointers copies nothing. streamline_peek() and streamline_splice() see blocks of up to `block`
 bytes; 0: as long as possible (512 KB). Returns the number of the file. Fails like open(2).
 */
int streamline_open_file(const char *path,
                         size_t block);

/*
 Sets the offset, in bytes from the start, of the next read of a file of streamline_open_file(),
 or of the next read or write of a region. An offset beyond the end is its end.
 */
int streamline_seek(int fd,
                    uint64_t offset);

/*
 Stores the counts of an end of a stream in *counts. Each block that a writer has written is, for
 each of its readers, either read, lost, or still to be read.
 */
int streamline_count(int fd,
                     struct streamline_counts *counts);

/*
 Stores in *size the size of the ring of a writing end, or of the memory for bytes that are
 written to a pipe of pointers. Without a requested capacity it changes while the stream runs.
 */
int streamline_size(int fd,
                    struct streamline_ring_size *size);

/*
 Waits until a reading end has data or has reached its end, a writing end has room, or the writer
 of a state has ended. Returns 1 if so, and 0 after timeout_ms milliseconds; -1: no timeout. A
 writing end has no timeout.

 To wait for several ends: make them STREAMLINE_NONBLOCK, read until EAGAIN, then poll(2) the
 descriptors for POLLIN. A reading end becomes readable only after a call on it returned EAGAIN.
 */
int streamline_wait(int fd,
                    int timeout_ms);

/*
 Makes calls on an end wait (0) or fail with EAGAIN (1). Fails with EINVAL for the writing end of
 a pipe of pointers, which always waits.
 */
int streamline_nonblock(int fd,
                        int on);

/*
 Closes an end. Readers drain the stream and then reach its end; a writer no longer waits for
 this reader. Stops a request, and waits until it has ended. Fails with EBADF if fd is not an
 open end.
 */
int streamline_close(int fd);

/*
 Returns the message of this thread's last failure, without a full stop, valid until the next
 failure; empty if there was none.
 */
const char *streamline_error(void);

/*
 Opens a request in the language of the command, such as `rx eth0 | tcp | http |exchange weblog
 PATH`, and runs it in threads of its own. Returns its number, which becomes readable (poll(2))
 when the run has ended; streamline_wait() waits for that, streamline_close() stops it.

 Fails with EINVAL if the request has errors; streamline_error() then lists the errors with their
 positions. Fails with ENOTSUP if no space of this machine can run it, with ECHILD if a worker
 process fails at its start, and with the errno of the system call that was refused, such as
 EPERM for a capture without the privilege.

 Installs no signal handler, and prints nothing but the output of sinks. options may be null.
 */
int streamline_run(const char *request,
                   const struct streamline_options *options);

/*
 Creates an end between this program and a request. Writes a path into `path` (at least 32
 bytes), which the request uses in place of a file name. Returns a plain descriptor for read(2),
 write(2) and close(2): with STREAMLINE_READ this program reads what a sink writes, with
 STREAMLINE_WRITE it writes what a source reads. The other side goes to the next request that
 names the path.
 */
int streamline_end(int direction,
                   char *path,
                   size_t size);

/*
 Stops the sources of a request; blocks in transit are still processed. Does not wait for them.
 */
int streamline_stop(int run);

/*
 Waits until a request has ended. Fails with EIO if it failed or if its ledger does not balance;
 streamline_error() gives the reason. Close its number afterwards. Meanwhile other threads get
 EBUSY for this request; to stop it from one of them, wait by poll(2) on its number first.
 */
int streamline_finish(int run);

/*
 Writes the ledger of a request, current or final, as a JSON object into `out`: a string in the
 format of `streamline run --json`, truncated if it does not fit. Returns its full length in
 bytes, without the terminating zero. Fails with EIO if the request failed without a ledger.
 */
ptrdiff_t streamline_report(int run,
                            char *out,
                            size_t size);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* STREAMLINE_H */
