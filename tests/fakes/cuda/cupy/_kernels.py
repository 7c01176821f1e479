"""Kernels on the CPU: the CUDA C source is built by the C++ compiler, every parameter's size is compared.

What a kernel takes on the clock is what its bytes take at the machine's rates.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cupy._arrays import ndarray
from cupy._machine import MACHINE, MEMORY

_HEADER = Path(__file__).resolve().parents[3] / "cuda_on_host.h"
_SIGNATURE = re.compile(r'extern\s+"C"\s+void\s+(\w+)\s*\(([^)]*)\)')
_LAUNCH_SECONDS = 3e-6
_STREAMS = {"read": 1, "write": 1, "copy": 2, "triad": 3}
_libraries: dict[str, ctypes.CDLL] = {}


class CompileException(Exception):
    pass


class RawModule:
    def __init__(self, code: str, options: Sequence[str] = (), backend: str = "nvrtc") -> None:
        assert backend == "nvrtc"
        assert "-std=c++17" in options
        self._library = _build(code)

    def get_function(self, name: str) -> RawKernel:
        return RawKernel(self._library, name)


class RawKernel:
    def __init__(self, library: ctypes.CDLL, name: str) -> None:
        self.name, self._launch = name, getattr(library, f"launch_{name}")
        count = ctypes.c_uint.in_dll(library, f"count_{name}").value
        self._sizes = list((ctypes.c_uint * max(count, 1)).in_dll(library, f"sizes_{name}"))[:count]

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Any]) -> None:
        from cupy.cuda import current_stream

        assert all(isinstance(size, int) and size >= 1 for size in (*grid, *block)), (grid, block)
        assert block[0] <= 1024
        assert grid[0] < 1 << 31
        raw = [_bytes(argument) for argument in args]
        assert [len(value) for value in raw] == self._sizes, f"{self.name} takes parameters of {self._sizes} bytes"
        stream = current_stream()
        assert stream.device_id in (-1, MACHINE.device), "the current stream is another device's"
        seconds: Any = _seconds(self.name, args) + _LAUNCH_SECONDS
        if self.name == "gate":
            seconds = lambda begun: max(MACHINE.now - begun, 0.0)  # noqa: E731
        MACHINE.put(stream.ptr, seconds, lambda line: self._run(grid[0], block[0], raw, args))

    def _run(self, blocks: int, threads: int, raw: list[bytes], args: Sequence[Any]) -> None:
        for dst, src, nbytes, times in _copies(self.name, args):
            MACHINE.count(dst, src, nbytes, times)
        kept = [ctypes.create_string_buffer(value, len(value)) for value in raw]
        self._launch(blocks, threads, (ctypes.c_void_p * max(len(kept), 1))(*map(ctypes.addressof, kept)))


def _bytes(argument: Any) -> bytes:
    if isinstance(argument, ndarray):
        return int(argument.data.ptr).to_bytes(8, "little")
    return argument.tobytes()


def _seconds(name: str, args: Sequence[Any]) -> float:
    kind, _, unroll = name.partition("_")
    if kind in _STREAMS and unroll in "1248":
        arrays = _STREAMS[kind]
        return arrays * 8 * int(args[arrays]) * int(args[arrays + 3]) / MEMORY
    copies = _copies(name, args)
    if copies:
        return sum(times * MACHINE.seconds_of(dst, src, nbytes) for dst, src, nbytes, times in copies)
    if name in ("read_fp16", "read_int8", "read_fp8"):
        sequences, tokens, heads = (int(args[n]) for n in (7, 8, 9))
        return 2 * sequences * tokens * heads * 128 * (2 if name == "read_fp16" else 1) * 1.1 / MEMORY
    return 0.0


def _copies(name: str, args: Sequence[Any]) -> list[tuple[int, int, int, int]]:
    """Return target, source, bytes and number of messages that a kernel copies."""
    if name == "transfer_copy":
        dst, src, nbytes, _, _, _, repeats = map(int, args)
        return [(dst, src, nbytes, repeats)]
    if name == "transfer_exchange":
        one, two, nbytes, repeats = map(int, args[:2]), map(int, args[2:4]), int(args[4]), int(args[8])
        return [(*one, nbytes, repeats), (*two, nbytes, repeats)]
    return []


def _build(code: str) -> ctypes.CDLL:
    text = f'#define HOST_LOOK_NS 300000\n#include "{_HEADER}"\n{code}\n'
    key = hashlib.sha256(text.encode() + _HEADER.read_bytes()).hexdigest()[:24]
    if key not in _libraries:
        folder = Path(os.environ.get("FAKE_CUDA_CACHE") or tempfile.mkdtemp(prefix="fake-cuda-"))
        library = folder / f"{key}.so"
        if not library.exists():
            _compile(text, folder, library)
        _libraries[key] = ctypes.CDLL(str(library))
    return _libraries[key]


def _compile(text: str, folder: Path, library: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise CompileException("no C++ compiler")
    folder.mkdir(parents=True, exist_ok=True)
    options = ["-std=c++17", "-O1", "-w", "-x", "c++"]
    expanded = subprocess.run([compiler, *options, "-E", "-P", "-"], input=text, capture_output=True, text=True)
    if expanded.returncode:
        raise CompileException(expanded.stderr[-2000:])
    unit = text + "\n".join(_driver(name, inside) for name, inside in _SIGNATURE.findall(expanded.stdout))
    made = library.with_suffix(f".{os.getpid()}")
    command = [compiler, *options, "-shared", "-fPIC", "-o", str(made), "-"]
    done = subprocess.run(command, input=unit, capture_output=True, text=True)
    if done.returncode:
        raise CompileException(done.stderr[-2000:])
    made.rename(library)


def _driver(name: str, inside: str) -> str:
    """Return C++ that launches a kernel with parameters given as CUDA's driver takes them: addresses of values."""
    types = [re.sub(r"\s*\w+\s*$", "", part.strip()) for part in inside.split(",")]
    values = ", ".join(f"*(std::remove_reference<{kind}>::type*)given[{n}]" for n, kind in enumerate(types))
    sizes = ", ".join(f"sizeof({kind})" for kind in types)
    return f"""
#include <type_traits>
extern "C" void launch_{name}(unsigned blocks, unsigned threads, void** given) {{
  every_thread(Index{{blocks, 1, 1}}, threads, [&] {{ {name}({values}); }});
}}
extern "C" {{ unsigned count_{name} = {len(types)}; unsigned sizes_{name}[] = {{{sizes}}}; }}
"""
