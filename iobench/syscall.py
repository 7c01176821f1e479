"""System calls that Python has no function for."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any


def call(number: int, *arguments: Any) -> int:
    """Make the system call ``number`` and return its result; OSError where the kernel refuses."""
    found = int(_libc().syscall(ctypes.c_long(number), *arguments))
    if found < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return found


@cache
def _libc() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    return library
