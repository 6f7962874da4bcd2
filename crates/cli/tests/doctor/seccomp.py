# Runs a program under a seccomp filter that answers socket(AF_PACKET, …) with this error number.
#
#     python3 seccomp.py ERRNO PROGRAM WORDS…

import ctypes
import os
import struct
import sys

PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
AF_PACKET = 17
RET_ERRNO, RET_ALLOW = 0x00050000, 0x7FFF0000
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06

socket = {"x86_64": 41, "aarch64": 198}[os.uname().machine]
code = [
    (LOAD, 0, 0, 0),  # the number of the call
    (JUMP_IF_EQUAL, 0, 3, socket),
    (LOAD, 0, 0, 16),  # its first argument
    (JUMP_IF_EQUAL, 0, 1, AF_PACKET),
    (RETURN, 0, 0, RET_ERRNO | int(sys.argv[1])),
    (RETURN, 0, 0, RET_ALLOW),
]
program = b"".join(struct.pack("HBBI", *instruction) for instruction in code)


class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]


libc = ctypes.CDLL(None, use_errno=True)
filter = Filter(len(code), program)
if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(filter), 0, 0) != 0:
    sys.exit("prctl: " + os.strerror(ctypes.get_errno()))
os.execv(sys.argv[2], sys.argv[2:])
