"""Builds CUDA C kernels for the CPU (cuda_on_host.h), so that what a grid covers is tested without a GPU."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from iobench.kernels import gpu as kernels

HERE = Path(__file__).resolve().parent


def needs_compiler(folder: Path) -> str:
    """Return the C++ compiler; skip where there is none, or where nothing in ``folder`` may be executed."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("needs a C++ compiler (g++ or clang++)")
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        pytest.skip(f"{folder} is mounted noexec: what is built there can't be loaded; set TMPDIR")
    return compiler


def build(
    folder: Path, file: str, driver: str, replace: tuple[str, str] | None = None, before: str = ""
) -> ctypes.CDLL:
    """Compile ``file``.cu and a C++ ``driver`` into a library; ``replace`` plants a fault in the kernels' source.

    ``before`` is C++ that stands ahead of the kernels: what takes the place of PTX.
    """
    compiler = needs_compiler(folder)
    text = kernels.source(file).read_text(encoding="utf-8")
    if replace:
        assert text.count(replace[0]) >= 1, f"{file}.cu no longer holds {replace[0]!r}"
        text = text.replace(*replace)
    unit, library = folder / f"{file}.cpp", folder / f"{file}.so"
    unit.write_text(f'#include "{HERE}/cuda_on_host.h"\n{before}\n{text}\n{driver}\n', encoding="utf-8")
    command = [compiler, "-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-o", str(library), str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(library))
