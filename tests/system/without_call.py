"""Starts a program without a system call, as the profile of seccomp in a container: without_call.py CALL ERROR PROGRAM …"""
import ctypes
import errno
import os
import platform
import struct
import sys

NUMBERS = {"x86_64": {"memfd_create": 319}, "aarch64": {"memfd_create": 279}}
# Of <linux/prctl.h>, <linux/seccomp.h> and <linux/bpf_common.h>.
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, FAIL = 0x7FFF0000, 0x00050000


def forbid(number, error):
    """The call fails with `error`, in this process and those that it starts."""
    steps = ((LOAD, 0, 0, 0), (JUMP_IF_EQUAL, 0, 1, number), (RETURN, 0, 0, FAIL | error), (RETURN, 0, 0, ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0):
        raise OSError(ctypes.get_errno(), "the filter was not accepted")


if __name__ == "__main__":
    call, name = sys.argv[1:3]
    forbid(NUMBERS[platform.machine()][call], getattr(errno, name))
    os.execvp(sys.argv[3], sys.argv[3:])
