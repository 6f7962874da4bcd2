/*
 * streamline.h: streams between processes behind the interface of Unix files, as local calls; and
 * requests that run beside the program.
 *
 *     cc program.c -lstreamline            (or `pkg-config --cflags --libs streamline`)
 *
 * Numbers. Every end is a descriptor: it can be polled, and is closed by streamline_close() and by
 * nothing else. read(2), write(2), dup(2) and close(2) know nothing of streams.
 *
 * Errors. As those of system calls: -1 (or a null pointer) and errno. streamline_error() says in
 * words what was the matter with the last call of this thread.
 *
 *     EIO      a request has failed
 *     EBADF    no end of ours, or one that goes in the other direction; also: closed twice
 *     EFAULT   a null pointer where there must be memory
 *     EINVAL   a number that cannot be; what is meant stands in streamline_error()
 *     EAGAIN   nothing there (no room) and the end does not wait (STREAMLINE_NONBLOCK)
 *     EPIPE    nobody reads any more; or the writer was killed, and its last block has been read
 *     EBUSY    another thread is in a call on the same end
 *     EPROTO   the other side has written what cannot be: close the end
 *     ENOBUFS  the ring was full and its policy is to drop; the block is counted as dropped
 *     EMSGSIZE longer than a block can be; or than the buffer, where a ring overwrites
 *
 * Cost. Nothing here makes a system call as long as neither side has to wait, and none is made to
 * wake a side that is awake.
 *
 * Threads. Different ends may be used by different threads at the same time; one end by one thread
 * at a time: who comes second gets EBUSY and does no harm. streamline_error() is per thread.
 *
 * fork. An end belongs to the process that used it first: an end of streamline_mpipe() that nobody
 * has read from or written to is inherited over fork and exec and sent over sockets like any
 * descriptor; what was opened before a fork must not be used on both sides of it. Names are
 * answered by a thread, and threads do not live over fork: create names after it.
 */

#ifndef STREAMLINE_H
#define STREAMLINE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/*
 The writer waits for the slowest reader.
 */
#define STREAMLINE_BLOCK 0

/*
 The newest block is dropped and counted.
 */
#define STREAMLINE_DROP_NEW 1

/*
 The oldest block is overwritten; a reader that comes too late loses it.
 */
#define STREAMLINE_OVERWRITE 2

/*
 To streamline_open(): read.
 */
#define STREAMLINE_READ 0

/*
 To streamline_open(): write, to an inbox or a region.
 */
#define STREAMLINE_WRITE 1

/*
 To streamline_open(): the end never waits.
 */
#define STREAMLINE_NONBLOCK 4

/*
 The shape of a stream. Zeros stand for what is best for most.
 */
typedef struct streamline_config {
    /*
     Bytes of the ring, rounded up to a power of two; 0: 1 MB.
     */
    uint64_t capacity;
    /*
     Policy of a full ring: STREAMLINE_BLOCK, STREAMLINE_DROP_NEW or STREAMLINE_OVERWRITE.
     */
    int32_t policy;
    /*
     Permission bits of those who may open it; 0: 0600, this user alone.
     */
    uint32_t mode;
    /*
     Simultaneous readers at most; 0: 32.
     */
    uint32_t readers;
    /*
     Readers of any one user but the owner at most; 0: 8.
     */
    uint32_t readers_of_one_stranger;
    /*
     After how many blocks what was written is shown. 0 or 1: each write is seen at once. More
     (32) is several times faster for small blocks; then call streamline_flush() before waiting
     for an answer.
     */
    uint32_t every;
} streamline_config;

/*
 Wishes about a run that its request does not say. Zeros and null pointers stand for none.
 */
typedef struct streamline_options {
    /*
     Ends the run when its sinks have taken this many blocks.
     */
    uint64_t count;
    /*
     Ends the run after this many milliseconds.
     */
    uint64_t time_ms;
    /*
     The name under which the daemon knows it; then there must be one.
     */
    const char *name;
    /*
     A program that serves as a worker (`--engines`) and runs untrusted filters: the command
     `streamline`. Without, requests for those are refused: this program is never started again.
     */
    const char *helper;
    /*
     1: without the daemon of the machine, if there is one.
     */
    int32_t embedded;
} streamline_options;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Creates a stream and opens its writing end. Others open it by `name` (letters, digits, dots,
 hyphens and underscores, at most 64) as long as this end is open; they start at now. Names live
 in the process and in its network namespace; nothing is left behind.

 EEXIST: the name is taken. config may be null.
 */
int streamline_create(const char *name,
                      const struct streamline_config *config);

/*
 Creates a region of `bytes` bytes that others open by name. mode: who may read it, and write to
 it (0600, 0644, 0666, ...). The name is given back when the process ends.
 */
int streamline_create_region(const char *name,
                             size_t bytes,
                             unsigned int mode);

/*
 Creates an inbox: others open it by name to write to it (STREAMLINE_WRITE), each in a stream of
 its own, which streamline_accept() hands out. mode: who may write (0200 and so on).
 */
int streamline_create_inbox(const char *name,
                            unsigned int mode);

/*
 The reading end of the next one who writes to an inbox. Waits for at most timeout_ms
 milliseconds; -1: for ever. EAGAIN: nobody came.
 */
int streamline_accept(int inbox,
                      int timeout_ms);

/*
 Opens a stream or a region, or an inbox to write to it: "NAME" of this user, or "UID/NAME" of
 another one. The permission is checked here, once.

 ENOENT: nobody has the name. EACCES: it is not for us. EPERM: somebody keeps the name to whom it
 does not belong. EUSERS: it has as many readers as its creator lets in. ETIMEDOUT: its creator
 does not answer.
 */
int streamline_open(const char *name,
                    int flags);

/*
 Makes a multiway pipe: fds[0] writes, fds[1] to fds[num - 1] read, each at its own place. The
 ends are inherited over fork and exec, and can be sent over sockets. Each is opened by the first
 call that uses it: until fds[0] is written to (or flushed), readers wait. Unused ends are closed
 by streamline_close(), too, as those of a pipe are.
 */
int streamline_mpipe(int *fds,
                     int num);

/*
 As streamline_mpipe(), with a ring of this shape. config may be null.
 */
int streamline_mpipe_with(int *fds,
                          int num,
                          const struct streamline_config *config);

/*
 Reads as read(2) does: what is there, at most count bytes; waits until there is something. 0:
 the stream has ended. A ring that overwrites gives whole blocks, one at a time.
 */
ptrdiff_t streamline_read(int fd,
                          void *buf,
                          size_t count);

/*
 Writes count bytes: as one block, or as several where they are more than half of the ring; waits
 for room where the policy is to block.
 */
ptrdiff_t streamline_write(int fd,
                           const void *buf,
                           size_t count);

/*
 Reads from a region, at this place; less where the region ends.
 */
ptrdiff_t streamline_pread(int fd,
                           void *buf,
                           size_t count,
                           uint64_t offset);

/*
 Writes to a region, at this place; less where the region ends.
 */
ptrdiff_t streamline_pwrite(int fd,
                            const void *buf,
                            size_t count,
                            uint64_t offset);

/*
 Reads without taking: *data points to what comes next, at most count bytes of it, and the answer
 says how many there are; 0: the stream has ended. Good until the next call on this end; between
 processes it is a copy, because the writer may be a stranger. streamline_release() takes it.
 */
ptrdiff_t streamline_peek(int fd,
                          const char **data,
                          size_t count);

/*
 Takes count bytes of what was peeked at.
 */
int streamline_release(int fd,
                       size_t count);

/*
 Room for a block of up to count bytes, in the ring itself: fill it, then call
 streamline_commit(), with nothing in between on this end. Null: errno says why.
 */
void *streamline_reserve(int fd,
                         size_t count);

/*
 Writes the first count bytes of what was reserved as one block.
 */
int streamline_commit(int fd,
                      size_t count);

/*
 Opens what a filter shows that stands in a running line with `state=NAME`: "NAME" of this user,
 or "UID/NAME" of another one. It is a table: rows of numbers under columns with names and units,
 one row for each session of the filter. The path is neither asked nor held up, and needs no
 daemon.

 The descriptor hangs up when the writer is gone; what it had written can still be read.

 Errors: as those of streamline_open().
 */
int streamline_state_open(const char *name);

/*
 Returns the number of columns, which never changes.
 */
ptrdiff_t streamline_state_columns(int fd);

/*
 Writes the name of a column (from 0 on) as a string into buf, cut where it has no room for it;
 answers how long it is. ENOENT: there is no such column.
 */
ptrdiff_t streamline_state_name(int fd,
                                size_t column,
                                char *buf,
                                size_t count);

/*
 The same for its unit: "blocks", "bytes", "ns"; empty where a number means itself.
 */
ptrdiff_t streamline_state_unit(int fd,
                                size_t column,
                                char *buf,
                                size_t count);

/*
 Copies all rows as they are now; answers how many there are. No row is half of one moment and
 half of another.
 */
ptrdiff_t streamline_state_look(int fd);

/*
 Writes a number of what was copied last to *value. ENOENT: there is no such row or column.
 */
int streamline_state_number(int fd,
                            size_t row,
                            size_t column,
                            uint64_t *value);

/*
 Shows readers all that was written, and wakes those that wait. Needed only where the
 configuration says that not every write is shown at once.
 */
int streamline_flush(int fd);

/*
 The number of readers that were evicted because they wrote a position that they cannot have.
 The others lose nothing by it, and no call of the writer fails.
 */
ptrdiff_t streamline_evicted(int fd);

/*
 Moves up to count bytes from one end to another one, by pointers where both ends know them;
 waits until there is something. 0: the source has ended.
 */
ptrdiff_t streamline_splice(int from,
                            int to,
                            size_t count);

/*
 Waits until there is something to read (or the end), or room to write, or until who showed a
 state is gone, for at most timeout_ms
 milliseconds; -1: for ever; for room it always waits for ever. 1: ready. 0: nothing in time.

 To wait for several ends at once: make them STREAMLINE_NONBLOCK, read until EAGAIN, then poll(2)
 the descriptors for POLLIN. Only after EAGAIN is a reading end made readable when something
 comes.
 */
int streamline_wait(int fd,
                    int timeout_ms);

/*
 Has an end wait (0) or never wait (1).
 */
int streamline_nonblock(int fd,
                        int on);

/*
 Closes an end: readers get what is there and then the end; a writer waits for this reader no
 longer. EBADF: it is none, or was closed before.
 */
int streamline_close(int fd);

/*
 Returns the message of this thread's last failure: a sentence without a full stop, valid until
 the next failure; empty if there was none.
 */
const char *streamline_error(void);

/*
 Opens a request in the language of the shell, such as `rx eth0 | tcp | http |exchange weblog
 PATH`, and runs it in threads of its own. Returns its number, which becomes readable (poll(2))
 when it has ended; streamline_wait() waits for that, streamline_close() stops it.

 EINVAL: the request has mistakes, which streamline_error() shows at their places. No signal
 handler is installed, and nothing is printed but by sinks that the request names. options may be
 null.
 */
int streamline_run(const char *request,
                   const struct streamline_options *options);

/*
 Makes an end of this program for a request, which names it by the path that is written into
 `path` (at least 32 bytes) in place of a file. Returns a plain descriptor, for read(2), write(2)
 and close(2): STREAMLINE_READ: this program reads what a sink writes; STREAMLINE_WRITE: it
 writes what a source reads. The other side belongs to the next request that names the path.
 */
int streamline_end(int direction,
                   char *path,
                   size_t size);

/*
 Lets the sources of a request end: what is under way drains.
 */
int streamline_stop(int run);

/*
 Waits until a request has ended. EIO: it failed, or its ledger does not balance;
 streamline_error() says why. Close its number after that.
 */
int streamline_finish(int run);

/*
 Writes the ledger of a request, so far or of its end, as one object of JSON into `out`: the form
 of `streamline run --json`, as a string, cut where it does not fit. Returns its length.
 */
ptrdiff_t streamline_report(int run,
                            char *out,
                            size_t size);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* STREAMLINE_H */
