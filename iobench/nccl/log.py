"""Reads NCCL's own lines (NCCL_DEBUG=INFO, and RCCL's): version, transport of each channel, tuning, settings.

``Told.add(text)`` takes any line and keeps what it knows; ``transport()`` says what the channel lines prove. A
channel "via P2P" is NVLink only where the topology that NCCL printed says NVL between the GPUs; P2P alone may be PCIe.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from iobench.nccl.model import Model

MARK = "NCCL INFO"  # RCCL writes the same
_MOST = 100_000  # settings and sizes kept: a log can't make this grow without bounds

_CHANNEL = re.compile(r"(?:Channel|Ring) \d+(?:/\d+)? : .{1,60}?(?:\[(send|receive|recv)\] )?via (\S[^\n]{0,60})")
_TUNING = re.compile(
    r"(?:\b(\w{1,40}):[ \t]{0,24}|(?<=[ \t]))(\d{1,19}) Bytes -> Algo(?:rithm)?[ \t]{1,8}(\w{1,40}),?"
    r"[ \t]{1,24}[pP]roto(?:col)?[ \t]{1,8}(\w{1,40})"  # notes align the columns
    r"(?:.*?channel\{Lo\.\.Hi\}=\{(\d{1,6})\.\.(\d{1,6})\})?"
)
_NRANKS = re.compile(r"\brank (\d+) nranks (\d+)")
_VERSION = re.compile(r"\b(N|R)CCL version[ :]*(\d{1,4}\.\d{1,4}\.\d{1,4}[\w.+-]{0,30})")
_SET = re.compile(r"\b((?:NCCL|RCCL)_[A-Z0-9_]{1,60}) set (?:by environment )?to (\S{1,100}?)\.?$")
_PATH = re.compile(r"GPU/\S+ \(\d+/[\d.]+/([A-Z0-9]{2,4})\)")
_NETWORK = re.compile(r"Using network ([\w. -]{1,40}?)\s*$")
_ROCE = re.compile(r"NET/IB\s?: Using .*?/RoCE")

_ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
_PROTOCOLS = ("ll", "ll128", "simple")
_OPS = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter",
    "broadcast": "broadcast", "reduce": "reduce", "alltoall": "all_to_all",
}  # fmt: skip
_EFA = ("libfabric", "ofi")


@dataclass
class Told:
    """What the lines said so far."""

    version: str = ""
    library: str = ""
    ranks: int | None = None
    network: str = ""
    roce: bool = False
    channels: Counter[str] = field(default_factory=Counter)
    gpu_paths: Counter[str] = field(default_factory=Counter)
    settings: dict[str, str] = field(default_factory=dict)
    tuning: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    model: Model = field(default_factory=Model)

    def add(self, text: str) -> bool:
        """Take one line; tell whether it was one of NCCL's."""
        start = text.find(MARK)
        if start < 0:
            if "CCL version" in text:
                self._version(text)
            return "NCCL WARN" in text
        said = text[start + len(MARK) :]
        for take in _takers_of(said):
            take(self, said)
        return True

    def _channel(self, said: str) -> None:
        medium = _medium_of(said)
        if medium and len(self.channels) < _MOST:
            self.channels[medium] += 1

    def _tuning(self, said: str) -> None:
        match = _TUNING.search(said)
        if match and len(self.tuning) < _MOST:
            op = _op(match[1] or "")  # before 2.18 the line does not name it
            chosen: dict[str, Any] = {"algo": _named(match[3], _ALGORITHMS), "proto": _named(match[4], _PROTOCOLS)}
            if match[5]:
                chosen["channels"] = int(match[6]) - int(match[5]) + 1
            self.tuning[op, int(match[2])] = chosen

    def _table(self, said: str) -> None:
        self.model.add(said, lambda title: _OPS.get(title.lower()))

    def _ranks(self, said: str) -> None:
        match = _NRANKS.search(said)
        if match:
            self.ranks = max(self.ranks or 0, int(match[2][:9]))

    def _version(self, said: str) -> None:
        match = _VERSION.search(said)
        if match:
            self.version, self.library = match[2], "rccl" if match[1] == "R" else "nccl"

    def _setting(self, said: str) -> None:
        match = _SET.search(said)
        if match and len(self.settings) < _MOST:
            self.settings[match[1]] = match[2]

    def _paths(self, said: str) -> None:
        own, _, others = said.partition(" :")
        if own.strip().startswith("GPU/"):
            self.gpu_paths.update(kind for kind in _PATH.findall(others) if kind != "LOC")

    def _net(self, said: str) -> None:
        match = _NETWORK.search(said)
        if match:
            self.network = match[1]

    def _ib(self, said: str) -> None:
        self.roce = self.roce or bool(_ROCE.search(said))

    @property
    def transport(self) -> str:
        """The slowest way the channels take, by the axis' names; "" where no line proves one."""
        found = {name for medium in self.channels if (name := self._name(medium))}
        return next((name for name in ("socket", "efa", "roce", "ib", "shm", "nvlink") if name in found), "")

    def _name(self, medium: str) -> str:
        kind, _, detail = medium.partition("/")
        if kind == "NET":
            if detail.lower().startswith(_EFA) or "libfabric" in detail.lower():
                return "efa" if "AWS" in detail or self.network.startswith("AWS") else ""
            return {"Socket": "socket", "IB": "roce" if self.roce else "ib"}.get(detail, "")
        if kind == "P2P":
            return "nvlink" if set(self.gpu_paths) == {"NVL"} else ""
        return "shm" if kind == "SHM" else ""

    @property
    def path(self) -> str:
        """What the channel lines say, in words; "" where there are none."""
        if not self.channels:
            return ""
        kinds = ", ".join(f"{medium} ({count} channel lines)" for medium, count in self.channels.most_common(6))
        doubt = "" if self.transport or "P2P" not in kinds else "; P2P may be NVLink or PCIe, the log does not say"
        return f"NCCL's channels via {kinds}{doubt}"

    def facts(self) -> dict[str, Any]:
        """Return the facts for a header's machine part, only those that were said."""
        facts: dict[str, Any] = {"version": self.version, "network": self.network, "ranks": self.ranks}
        facts |= {"channels": dict(self.channels), "gpu_paths": dict(self.gpu_paths), "transport": self.transport}
        facts["tuning"] = [
            {**({"op": op} if op else {}), "nbytes": nbytes, **chosen} for (op, nbytes), chosen in self.tuning.items()
        ]
        facts["model"] = self.model.facts()
        return {name: value for name, value in facts.items() if value}


_TAKERS = (
    (" via ", Told._channel),
    (" Bytes -> ", Told._tuning),
    (" |", Told._table),
    (" nranks ", Told._ranks),
    ("CCL version", Told._version),
    (" set ", Told._setting),
    (" :GPU/", Told._paths),
    ("Using network", Told._net),
    ("NET/IB", Told._ib),
)


@lru_cache(maxsize=4096)  # every run of a long log says the same again
def _takers_of(said: str) -> tuple[Callable[[Told, str], None], ...]:
    """Return what takes such a line."""
    return tuple(take for word, take in _TAKERS if word in said)


def channel_of(text: str) -> str:
    """Return the medium of a line of NCCL that says nothing but a channel's way, "" for any other."""
    said = text[text.find(MARK) + len(MARK) :] if MARK in text else ""
    return _medium_of(said) if _takers_of(said) == (Told._channel,) else ""


@lru_cache(maxsize=4096)
def _medium_of(said: str) -> str:
    """Return the medium of a channel's line, "" for any other."""
    match = _CHANNEL.search(said)
    return _medium(match[2]) if match else ""


def _medium(text: str) -> str:
    """Return "P2P/CUMEM", "SHM", "NET/IB": the transport and its kind, without devices and flags."""
    parts = text.strip().split("/")
    if parts[0] == "direct shared memory":
        return "SHM"
    if parts[0] == "NET" and len(parts) > 1:
        return f"NET/{parts[1].strip()}"
    if parts[0] == "P2P" and len(parts) > 1:
        return f"P2P/{parts[1].split('[')[0].split(' ')[0]}"
    return parts[0].split(" ")[0][:20]


def _op(name: str) -> str:
    """Return an operation's name as the axis has it."""
    return _OPS.get(name.lower(), name.lower())


def _named(text: str, names: tuple[str, ...]) -> str:
    """Return an algorithm's or protocol's name in small letters, by its number where NCCL printed that."""
    return names[int(text)] if text.isascii() and text.isdigit() and int(text[:9]) < len(names) else text.lower()
