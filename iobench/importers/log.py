"""Loads a log as clean text: decoded, without control characters, gzip unpacked, never larger than it may be."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from iobench import files
from iobench.errors import UserError
from iobench.units import GIB, KIB, MIB, format_size

MOST_NBYTES = 2 * GIB
LONGEST_LINE = 4 * KIB  # longer ones are cut in ``lines`` (not in ``text``): no row of any tool is so long
_UNPACKED_FACTOR = 200  # logs of one repeated line reach it, a bomb goes far beyond
_UNPACKED_ALWAYS = 64 * MIB
_CHUNK = 4 * MIB
_PIECE = 4 * MIB
_MOST_BLANKS = 256  # in a row: more say nothing, and make patterns slow
_HEAD = MIB
_TAIL = 64 * KIB

_ESCAPES = re.compile(
    rb"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|\][^\x07\x1b\n]{0,4096}(?:\x07|\x1b\\)|"
    rb"[PX^_][^\x1b\n]{0,4096}\x1b\\|[ -/]?[0-~])"
)
_CONTROL = bytes(code for code in [*range(9), 11, 12, *range(14, 32), 127])
# C1 controls, direction overrides, line separators, the byte order mark: they change what a reader sees
_INVISIBLE = re.compile("[\x80-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]")
_SPACES = re.compile("[\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]")  # what web pages make of blanks
_EMPTY_LINES = re.compile(r"\n(?:[ \t]{0,256}\n){8,}")
_TOO_LONG = re.compile(f"[^\n]{{{LONGEST_LINE}}}")
_LONG_RUNS = (b" " * 64, b"\t" * 64, b"\t " * 32)
_BLANKS = re.compile(rb"[ \t]{%d,}" % _MOST_BLANKS)
_PACKED = (
    (b"\x28\xb5\x2f\xfd", "zstd", "zstd -d"), (b"PK\x03\x04", "zip", "unzip"), (b"BZh", "bzip2", "bunzip2"),
    (b"\xfd7zXZ\0", "xz", "unxz"), (b"7z\xbc\xaf\x27\x1c", "7-Zip", "7z x"),
)  # fmt: skip
_WIDE = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}


@dataclass(frozen=True)
class Log:
    """A log's text. ``name`` is the file's name without folders; ``problems`` says what its bytes were like."""

    name: str
    text: str
    nbytes: int
    digest: str = ""
    problems: list[str] = field(default_factory=list)

    @cached_property
    def lines(self) -> list[str]:
        """The lines, number i + 1 at index i; each cut at 4 KiB."""
        lines = self.text.split("\n")
        if lines and not lines[-1]:
            lines.pop()
        if max(map(len, lines), default=0) <= LONGEST_LINE:
            return lines
        return [line[:LONGEST_LINE] for line in lines]

    def pieces(self) -> Iterator[tuple[int, list[str]]]:
        """Yield ``lines`` piece by piece, each with the number of lines before it: few of a long log are in memory."""
        before = start = 0
        while start < len(self.text):
            end = self.text.find("\n", start + _PIECE)
            end = len(self.text) if end < 0 else end
            lines = [line[:LONGEST_LINE] for line in self.text[start:end].split("\n")]
            yield before, lines
            before, start = before + len(lines), end + 1

    @cached_property
    def head(self) -> str:
        """What a format recognises: the first MiB and the last 64 KiB, long lines folded, of blank lines a few."""
        text = self.text
        if len(text) > _HEAD + _TAIL:
            text = text[:_HEAD] + "\n" + text[-_TAIL:]
        return _EMPTY_LINES.sub("\n\n\n", _TOO_LONG.sub(lambda match: match[0] + "\n", text))


def load(path: Path) -> Log:
    """Read and clean a log; UserError where it can't be read, is no file, is empty, or is larger than 2 GiB."""
    shown = clean(str(path))
    if path.is_dir():
        raise UserError(f"{shown} is a folder: name the log itself, or a run's folder that holds records.jsonl")
    try:
        with files.plain(path, "the log") as file:
            size = os.fstat(file.fileno()).st_size
            if size > MOST_NBYTES:
                raise UserError(f"{shown} is {format_size(size)}: cut it into parts below {format_size(MOST_NBYTES)}")
            data = file.read(MOST_NBYTES + 1)  # a file may grow, or lie about its size, as those of /proc do
    except OSError as error:
        raise UserError(f"cannot read {shown}: {error.strerror}; give the log of a benchmark tool") from error
    except ValueError as error:  # a NUL in the name
        raise UserError(f"cannot read {shown!r}: {error}; give the log of a benchmark tool") from error
    return from_bytes(data, path.name)


def from_bytes(data: bytes, name: str = "log") -> Log:
    """Return the clean log of raw bytes; UserError for an empty one and for a broken or exploding gzip."""
    nbytes = len(data)
    digest = hashlib.sha256(data).hexdigest()
    name = clean(name)
    if data[:2] == b"\x1f\x8b":
        data = _unpack(data, name)
    for magic, packer, command in _PACKED:
        if data.startswith(magic):
            raise UserError(f"{name} is packed with {packer}: unpack it first ({command}) and import the text")
    if not data or data.isspace():
        raise UserError(f"{name} is empty: the tool wrote nothing to it; run it again")
    problems: list[str] = []
    return Log(name, _text(data, problems), nbytes, digest, problems)


def clean(text: str) -> str:
    """Return text of a log or a file's name without escape sequences and control characters."""
    data = text.encode("utf-8", "replace")
    data = _ESCAPES.sub(b"", data).translate(None, _CONTROL)
    return _INVISIBLE.sub("", data.decode("utf-8", "replace")).replace("\r", "").replace("\n", " ")


def _unpack(data: bytes, name: str) -> bytes:
    most = min(MOST_NBYTES, max(_UNPACKED_ALWAYS, _UNPACKED_FACTOR * len(data)))
    parts, total = [], 0
    try:
        import io

        with gzip.open(io.BytesIO(data)) as stream:
            while chunk := stream.read(_CHUNK):
                total += len(chunk)
                if total > most:
                    raise UserError(f"{name} unpacks to more than {format_size(most)}: unpack it and look at it first")
                parts.append(chunk)
    except (OSError, EOFError, zlib.error) as error:
        if not parts:
            raise UserError(f"{name} is a damaged gzip file ({error}): copy it again") from error
    return b"".join(parts)


def _text(data: bytes, problems: list[str]) -> str:
    """Decode, drop control characters, and make every line end a newline."""
    wide = _WIDE.get(data[:2])
    if wide:
        data = data[2:].decode(wide, "replace").encode("utf-8", "replace")
    if b"\0" in data:
        problems.append(f"{data.count(0)} NUL bytes were left out: the file was written by two at once, or damaged")
    if b"\x1b" in data:
        data = _ESCAPES.sub(b"", data)
    data = data.translate(None, _CONTROL)
    if b"\r" in data:
        data = _without_returns(data)
    if any(run in data for run in _LONG_RUNS):  # the pattern alone would look at every blank of a long log
        data = _BLANKS.sub(b" " * _MOST_BLANKS, data)
    text = data.decode("utf-8", "replace")
    if text.isascii():
        return text
    if "\ufffd" in text:
        problems.append("bytes that are no UTF-8 were replaced")
    text = _SPACES.sub(" ", _INVISIBLE.sub("", text))
    return re.sub(rf"[ \t]{{{_MOST_BLANKS},}}", " " * _MOST_BLANKS, text) if " " * 64 in text else text


def _without_returns(data: bytes) -> bytes:
    """A carriage return in a line starts it anew, as on a terminal (progress bars); at its end it is a line end."""
    data = data.replace(b"\r\n", b"\n")
    if b"\n" not in data:
        return data.replace(b"\r", b"\n")
    if b"\r" not in data:
        return data
    lines = (line.rstrip(b"\r") for line in data.split(b"\n"))
    return b"\n".join(line.rsplit(b"\r", 1)[-1] for line in lines)
