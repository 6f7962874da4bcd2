"""Requests of Streamline from Python: a path for packets, files or streams beside the program.

    >>> import streamline
    >>> log = streamline.output()
    >>> with streamline.run(f"replay web.pcap | tcp | http |exchange weblog {log.path}") as path:
    ...     requests = [line.split('"')[1] for line in log]
    >>> requests[0]
    'GET / HTTP/1.1'
    >>> path.report()["lost"]
    0

A single file on top of libstreamline (the environment variable STREAMLINE_LIBRARY overrides its
path). Prints nothing and installs no signal handler. The requests run in threads of the library,
without Python's lock: calls that wait let other threads of the program run.
"""

import ctypes
import errno
import io
import json
import math
import os
import pathlib

__all__ = ["Error", "Run", "input", "output", "run"]


class Error(OSError):
    """The failure of a call: `errno` and, as `strerror`, a message.

    `errno` is EINVAL for a request with errors, whose message shows each error at its place; ENOTSUP
    if this machine cannot run it; EIO if it failed while it ran; otherwise that of the system call
    which was refused, such as EPERM.

        >>> try:
        ...     streamline.run("replay web.pcap | cuont")
        ... except streamline.Error as error:
        ...     error.errno, "did you mean `count`?" in error.strerror
        (22, True)
    """


class _Options(ctypes.Structure):
    _fields_ = [
        ("count", ctypes.c_uint64),
        ("time_ms", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("helper", ctypes.c_char_p),
        ("embedded", ctypes.c_int32),
    ]


def _load():
    beside = pathlib.Path(__file__).resolve().parents[3] / "lib" / "libstreamline.so"
    name = os.environ.get("STREAMLINE_LIBRARY") or (beside if beside.exists() else "libstreamline.so")
    library = ctypes.CDLL(str(name), use_errno=True)
    library.streamline_error.restype = ctypes.c_char_p
    library.streamline_report.restype = ctypes.c_ssize_t
    library.streamline_report.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t]
    library.streamline_end.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t]
    library.streamline_run.argtypes = [ctypes.c_char_p, ctypes.POINTER(_Options)]
    return library


_library = _load()
_READ, _WRITE = 0, 1


def _done(answer):
    if answer < 0:
        raise Error(ctypes.get_errno(), _library.streamline_error().decode())
    return answer


def _c_string(given):
    if given is None:
        return None
    text = os.fsencode(given)
    if b"\0" in text:
        # In C the text would end there.
        raise Error(errno.EINVAL, f"a zero byte in {given!r}")
    return text


class _End(io.TextIOWrapper):
    """A text stream in UTF-8. `path` is its name in a request; `buffer` is the binary stream."""

    path = ""


def _end(direction, mode):
    path = ctypes.create_string_buffer(32)
    descriptor = _done(_library.streamline_end(direction, path, len(path)))
    end = _End(os.fdopen(descriptor, mode), encoding="utf-8", errors="replace")
    end.path = path.value.decode()
    return end


def output():
    """Creates an end from which this program reads the output of a sink.

    Returns a text stream in UTF-8; its `buffer` is the binary stream. The next request that names its
    `path` in place of a file writes to it. Reading waits for the sink, and ends with the request.
    When nobody reads, the sink waits as soon as the pipe (64 KB) is full.

        >>> capture = streamline.output()
        >>> with streamline.run(f"replay web.pcap | bpf 'port 53' | pcap {capture.path}"):
        ...     header = capture.buffer.read(24)
        >>> len(header)
        24
    """
    return _end(_READ, "rb")


def input():
    """Creates an end to which this program writes the input of a source.

    Returns a text stream in UTF-8; its `buffer` is the binary stream. The next request that names its
    `path` in place of a file reads from it. Writing waits as soon as the pipe (64 KB) is full;
    close() ends the source.

        >>> capture = streamline.input()
        >>> with streamline.run(f"replay {capture.path} | udp | count") as path:
        ...     with open("web.pcap", "rb") as file:
        ...         written = capture.buffer.write(file.read())
        ...     capture.close()
        ...     path.wait()
        >>> path.report()["sources"][0]["seen"]["blocks"] > 10
        True
    """
    return _end(_WRITE, "wb")


class Run:
    """A running request. Leaving its `with` block stops it and waits for its end.

    One thread may use it at a time: a call while another one waits in wait() or close() raises Error
    with EBUSY.

        >>> with streamline.run("generate count=1000 | count") as path:
        ...     path.wait()
        >>> report = path.report()
        >>> report["lost"], report["balanced"]
        (0, True)
    """

    def __init__(self, number):
        self._number = number
        self._last = None

    def fileno(self):
        """Returns the descriptor, which becomes readable (poll, select) when the request has ended."""
        return self._number

    def stop(self):
        """Stops the sources. Blocks on their way are still processed; does not wait for them."""
        _done(_library.streamline_stop(self._number))

    def wait(self):
        """Waits for the end, without limit. Raises Error if the request failed, or if its ledger does
        not balance."""
        _done(_library.streamline_finish(self._number))

    def report(self):
        """Returns the ledger as a dictionary, in the format of `streamline run --json`.

        It is that of this moment while the request runs, and the final one afterwards, also after
        close(). Times are in nanoseconds. Does not wait.
        """
        if self._number < 0:
            return self._last
        size = 1 << 16
        while True:
            text = ctypes.create_string_buffer(size)
            length = _done(_library.streamline_report(self._number, text, size))
            if length < size:
                return json.loads(text.value)
            size = 2 * length

    def close(self):
        """Stops the request, waits for its end and keeps its last report. Raises Error like wait()."""
        if self._number >= 0:
            self.stop()
            try:
                self.wait()
            finally:
                try:
                    self._last = self.report()
                except Error:
                    # The request failed without a ledger.
                    pass
                _library.streamline_close(self._number)
                self._number = -1

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        self.close()


def run(request, *, count=0, seconds=0, name=None, helper=None, embedded=False):
    """Opens a request and runs it in threads of its own. Returns a Run at once.

    count: ends the run after its sinks have received this many blocks; 0: no limit.
    seconds: ends the run after this time, which may have a fraction; 0: no limit.
    name: name of the run at the daemon; without a daemon, raises Error.
    helper: path of the command `streamline`, which runs worker processes and untrusted filters.
    embedded: True does not register the run with the daemon of the machine.

    Raises Error if the request has errors or cannot start.

        >>> with streamline.run("generate rate=1000 | count", seconds=0.1) as path:
        ...     path.wait()
        >>> path.report()["lost"]
        0
    """
    if not 0 <= count < 1 << 64:
        raise Error(errno.EINVAL, f"count={count} is not a number of blocks")
    if not 0 <= seconds < 1 << 50:
        raise Error(errno.EINVAL, f"seconds={seconds} is not a time limit")
    # Rounded up, because 0 is no limit.
    limits = (count, math.ceil(seconds * 1000))
    options = _Options(*limits, _c_string(name), _c_string(helper), int(embedded))
    return Run(_done(_library.streamline_run(_c_string(request), ctypes.byref(options))))
