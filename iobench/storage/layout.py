"""The safetensors file layout, with a validation of its own.

A file is: N (u64, little endian), N bytes of JSON header, then the tensors' bytes without holes. Error
texts of the safetensors library change between versions, so nothing here relies on them. What loaders
take although the format's README forbids it is a note, not an error.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from iobench.errors import UserError
from iobench.units import format_size

LOADER_HEADER_CAP = 100_000_000  # safetensors refuses longer headers although the format allows them
_HEADER_START = 8
_LONGEST_HEADER = 1 << 30
_TOO_MANY = 1 << 68  # bits: no offset reaches as far
_MOST_SHOWN = 8

_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip

# What people pass by mistake: the first bytes, what it is, and what to do.
_STRANGERS = (
    (b"version https://git-lfs", "is a git-LFS pointer, not the weights: run git lfs pull in its repository"),
    (b"PK\x03\x04", "is a zip archive (a PyTorch .bin or .pt): convert it to safetensors"),
    (b"\x80\x02", "is a Python pickle (a PyTorch .bin or .pt): convert it to safetensors"),
    (b"GGUF", "is a GGUF file: iobench reads safetensors; convert it"),
    (b"\x1f\x8b", "is compressed by gzip: unpack it first"),
)


class Tensor(NamedTuple):
    """One tensor: ``begin`` and ``end`` count from the file's ``data_start``; ``bits`` of one element, 0 if unknown."""

    name: str
    begin: int
    end: int
    shape: tuple[int, ...] = ()
    bits: int = 0


@dataclass(frozen=True)
class Layout:
    """Where the bytes of one safetensors file lie.

    ``nbytes`` is the whole file, ``data_start`` the offset of the first tensor (8 + N), ``tensors`` how many
    there are and ``spans`` themselves in the order of their bytes. ``notes`` holds what is unusual but no damage.
    """

    path: Path
    nbytes: int
    data_start: int
    tensors: int
    notes: tuple[str, ...] = field(default=())
    spans: tuple[Tensor, ...] = field(default=(), repr=False)


def read_layout(path: Path) -> Layout:
    """Read and validate the header of ``path``; UserError in one line where it is no whole safetensors file."""
    try:
        with path.open("rb") as file:
            return _read(path, file, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; give a safetensors file or a folder of them") from error


def _read(path: Path, file: BinaryIO, nbytes: int) -> Layout:
    start = file.read(512)
    _refuse_strangers(path, start)
    if len(start) < _HEADER_START:
        raise _bad(path, f"is {nbytes} bytes long, too short for a header: it is truncated or no safetensors file")
    length = int.from_bytes(start[:8], "little")
    _check_length(path, length, nbytes, start[8:9])
    file.seek(_HEADER_START)
    notes: list[str] = []
    tensors = _tensors(path, file.read(length), notes)
    if length > LOADER_HEADER_CAP:
        notes.append(f"valid but over loader cap: header of {length} bytes, safetensors takes {LOADER_HEADER_CAP}")
    data_start = _HEADER_START + length
    _check_cover(path, tensors, nbytes - data_start)
    return Layout(path, nbytes, data_start, len(tensors), tuple(notes), tuple(tensors))


def _bad(path: Path, what: str) -> UserError:
    return UserError(f"{path} {what}")


def _refuse_strangers(path: Path, start: bytes) -> None:
    # A header length may look like any of these (60 is "<", 640 is a pickle): what follows it decides first.
    if start[_HEADER_START:].lstrip().startswith(b"{"):
        return
    for magic, what in _STRANGERS:
        if start.startswith(magic):
            raise _bad(path, what)
    if start.lstrip().startswith(b"<"):
        raise _bad(path, "is an HTML or XML page, not weights: the download needs a login or failed; download it again")


def _check_length(path: Path, length: int, nbytes: int, first: bytes) -> None:
    fits = length <= nbytes - _HEADER_START
    if fits and 2 <= length <= _LONGEST_HEADER:
        return
    if first == b"{" and not fits and length <= _LONGEST_HEADER:
        raise _bad(path, f"is truncated inside its header ({length} bytes, the file has {nbytes}): download it again")
    raise _bad(path, "is not safetensors: its first 8 bytes are no header length; give a .safetensors file")


def _tensors(path: Path, header: bytes, notes: list[str]) -> list[Tensor]:
    """Return every tensor, in the order of their bytes."""
    if not header.startswith(b"{"):
        if not header.lstrip().startswith(b"{"):
            raise _bad(path, "is not safetensors: its header is no JSON object; give a .safetensors file")
        notes.append("the header begins with white space, which the format forbids and loaders take")
    found = _parse(path, header, notes)
    _check_metadata(path, found.pop("__metadata__", None))
    if not found:
        notes.append("the file holds no tensors")
    spans = [_span(path, name, entry, notes) for name, entry in found.items()]
    return sorted(spans, key=lambda span: (span.begin, span.end))


def _parse(path: Path, header: bytes, notes: list[str]) -> dict[str, Any]:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        out = dict(items)
        if len(out) < len(items):
            notes.append("the header holds a name twice, which the format forbids; loaders take the last")
        return out

    try:
        found = json.loads(header.decode("utf-8"), object_pairs_hook=pairs)
    except (ValueError, RecursionError) as error:
        raise _bad(path, "is damaged: its header is no valid JSON; download it again") from error
    if not isinstance(found, dict):
        raise _bad(path, "is not safetensors: its header is no JSON object; give a .safetensors file")
    return found


def _check_metadata(path: Path, metadata: Any) -> None:
    if metadata is None:
        return
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _bad(path, "is damaged: __metadata__ may hold text only; write the file again")


def _span(path: Path, name: str, entry: Any, notes: list[str]) -> Tensor:
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (TypeError, KeyError, ValueError) as error:
        raise _bad(path, f"is damaged: tensor {name!r} lacks dtype, shape or offsets; download it again") from error
    if not _counts([begin, end]) or not isinstance(shape, list) or not _counts(shape) or end < begin:
        raise _bad(path, f"is damaged: tensor {name!r} has a shape or offsets that are no sizes; download it again")
    if not isinstance(dtype, str) or dtype not in _BITS:
        notes.append(f"tensor {name!r} has the unknown type {dtype!r}: its size was not checked")
        return Tensor(name, begin, end, tuple(shape))
    bits = _bits(dtype, shape)
    if bits % 8 or bits // 8 != end - begin:
        raise _bad(
            path,
            f"is damaged: tensor {name!r} of type {dtype} and shape {_shown(shape)} takes {_amount(bits)} bytes, "
            f"its offsets say {end - begin}; write the file again",
        )
    return Tensor(name, begin, end, tuple(shape), _BITS[dtype])


def _bits(dtype: str, shape: list[int]) -> int:
    """Return the bits of a tensor, _TOO_MANY where they are more: a header may hold a million large extents."""
    bits = 0 if 0 in shape else _BITS[dtype]
    for extent in shape if bits else []:
        bits *= extent
        if bits >= _TOO_MANY:
            return _TOO_MANY
    return bits


def _amount(bits: int) -> str:
    return "more than 2^64" if bits >= _TOO_MANY else f"{bits / 8:g}"


def _shown(shape: list[int]) -> str:
    return str(shape) if len(shape) <= _MOST_SHOWN else f"[{shape[0]}, {shape[1]}, ... {len(shape)} extents]"


def _counts(values: list[Any]) -> bool:
    return all(type(value) is int and 0 <= value < 1 << 64 for value in values)


def _check_cover(path: Path, tensors: list[Tensor], nbytes: int) -> None:
    """Raise unless the tensors cover the data exactly: no hole, no overlap, nothing missing or left over."""
    at = 0
    for name, begin, end, *_ in tensors:
        if begin != at:
            what = "overlaps the tensor before it" if begin < at else f"leaves a hole of {begin - at} bytes before it"
            raise _bad(path, f"is damaged: tensor {name!r} {what}; write the file again")
        at = end
    if nbytes < at:
        raise _bad(path, f"is truncated: {at - nbytes} of {format_size(at)} of tensors are missing; download it again")
    if nbytes > at:
        raise _bad(path, f"has {nbytes - at} bytes after its last tensor: it is damaged; download it again")
