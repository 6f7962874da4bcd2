"""Requests of Streamline from Python: a path for packets, files or streams beside the program.

    log = streamline.output()
    with streamline.run(f"replay web.pcap | tcp | http |exchange weblog {log.path}") as path:
        for line in log:
            print(line, end="")
    print(path.report()["lost"])

A single file on top of libstreamline (the environment variable STREAMLINE_LIBRARY overrides its
path). Prints nothing and installs no signal handler. An invalid request raises streamline.Error,
whose message shows each error at its place.
"""

import ctypes
import io
import json
import os
import pathlib

__all__ = ["Error", "Run", "input", "output", "run"]


class Error(OSError):
    """The failure of a call: errno and a message."""


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


class _End(io.TextIOWrapper):
    """A text stream. `path` is its name in a request; `buffer` is the binary stream."""

    path = ""


def _end(direction, mode):
    path = ctypes.create_string_buffer(32)
    descriptor = _done(_library.streamline_end(direction, path, len(path)))
    end = _End(os.fdopen(descriptor, mode), encoding="utf-8", errors="replace")
    end.path = path.value.decode()
    return end


def output():
    """Creates an end from which this program reads the output of a sink."""
    return _end(_READ, "rb")


def input():
    """Creates an end to which this program writes the input of a source; close() ends the source."""
    return _end(_WRITE, "wb")


class Run:
    """A running request. Leaving its `with` block stops it and waits for its end."""

    def __init__(self, number):
        self._number = number
        self._last = None

    def fileno(self):
        """Returns the descriptor, which becomes readable when the request has ended."""
        return self._number

    def stop(self):
        """Stops the sources; blocks on their way are still processed."""
        _done(_library.streamline_stop(self._number))

    def wait(self):
        """Waits for the end; raises Error if the request failed."""
        _done(_library.streamline_finish(self._number))

    def report(self):
        """Returns the ledger, current or final, in the format of `streamline run --json`."""
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
        """Stops the request, waits for its end and keeps its last report."""
        if self._number >= 0:
            self.stop()
            try:
                self.wait()
                self._last = self.report()
            finally:
                _library.streamline_close(self._number)
                self._number = -1

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        self.close()


def run(request, *, count=0, seconds=0, name=None, helper=None, embedded=False):
    """Opens a request and runs it in threads of its own."""
    text = lambda given: None if given is None else os.fsencode(given)
    options = _Options(count, int(seconds * 1000), text(name), text(helper), int(embedded))
    return Run(_done(_library.streamline_run(os.fsencode(request), ctypes.byref(options))))
