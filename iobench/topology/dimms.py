"""Memory modules as the firmware lists them (SMBIOS) and channels as EDAC shows them: facts, and a bound on the rate.

SMBIOS is readable by root only. A module's rate is its configured speed times its data width; what all modules can
do together bounds the memory, because no channel is faster than its modules. Where the text names channels, or EDAC
shows them, they are counted. A virtual machine's tables are made up and are not read.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from iobench.topology.graph import Topology
from iobench.topology.sysfs import Tree, integer
from iobench.units import KIB, MIB, from_megatransfers

_TABLE = "sys/firmware/dmi/tables/DMI"
_EDAC = "sys/devices/system/edac/mc"
_MEMORY_DEVICE = 17  # SMBIOS 3.7, 7.18
_END = 127
_UNKNOWN = 0xFFFF
_CHANNEL = re.compile(r".*?CHANNEL[ _-]?[A-Z0-9]+", re.IGNORECASE)
_PROCESSOR = re.compile(r"\b(?:P|CPU|PROC|SOCKET|NODE)[ _]?([0-9]+)", re.IGNORECASE)
_MOST_WIDTH, _MOST_SPEED = 512, 65536


@dataclass(frozen=True)
class Module:
    """A module that is plugged in; what the firmware does not say is None."""

    nbytes: int
    width_bits: int | None
    megatransfers: int | None
    locator: str

    @property
    def bytes_per_s(self) -> float | None:
        if not self.width_bits or not self.megatransfers:
            return None
        return from_megatransfers(self.megatransfers, 1, self.width_bits // 8)

    @property
    def channel(self) -> str | None:
        """What names the channel, with all that stands before it (processor, controller); None where nothing does."""
        found = _CHANNEL.match(self.locator)
        return found[0].upper() if found else None

    @property
    def processor(self) -> str | None:
        found = _PROCESSOR.search(self.locator)
        return found[1] if found else None


def add(tree: Tree, graph: Topology) -> None:
    """Add the facts ``memory_modules`` and ``memory_channels`` where this machine tells them."""
    if graph.facts.get("virtual") is not False:
        return
    found = modules(tree.data(_TABLE) or b"")
    channels = {module.channel for module in found}
    named = len(channels) if found and None not in channels else None
    shown = edac_channels(tree)
    speeds = {module.megatransfers for module in found}
    if found:
        graph.facts["memory_modules"] = {
            "count": len(found),
            "nbytes": sum(module.nbytes for module in found),
            "megatransfers": speeds.pop() if len(speeds) == 1 else None,
            "bytes_per_s": bound(found, shown),
            "source": "SMBIOS, memory devices: configured speed times data width",
        }
    if shown or named:
        source = "EDAC" if shown else "SMBIOS, names of the slots"
        graph.facts["memory_channels"] = {"count": shown or named, "source": source}


def socket_bound(graph: Topology) -> float | None:
    """Return what one socket's modules can do at most; None where unknown, or sockets are not known to be alike."""
    told = graph.facts.get("memory_modules")
    if not isinstance(told, dict) or not told.get("bytes_per_s"):
        return None
    sockets = len(graph.of("socket"))
    rates = told["bytes_per_s"]
    if sockets == len(rates) and len(set(rates.values())) == 1:
        return float(next(iter(rates.values())))
    return float(sum(rates.values())) if sockets == 1 else None


def bound(found: list[Module], channels: int | None = None) -> dict[str, float] | None:
    """Return processor -> bytes/s of its modules together ("" where any names none); None where a module's is unknown.

    ``channels`` in use, as EDAC counts them, bound one processor too. Slots' names do not: what they leave out (a
    second controller) would make the bound too low.
    """
    rates = [module.bytes_per_s for module in found]
    known = [rate for rate in rates if rate is not None]
    if not known or len(known) < len(rates):
        return None
    named = all(module.processor is not None for module in found)
    out: dict[str, float] = {}
    for module, rate in zip(found, known, strict=True):
        processor = (module.processor or "") if named else ""
        out[processor] = out.get(processor, 0.0) + rate
    if channels and len(out) == 1:
        out = {processor: min(rate, channels * max(known)) for processor, rate in out.items()}
    return out


def edac_channels(tree: Tree) -> int | None:
    """Return how many channels have a module in them, from EDAC; None where it says nothing."""
    found = set()
    for controller in (name for name in tree.names(_EDAC) if re.fullmatch(r"mc[0-9]+", name)):
        for place in (name for name in tree.names(_EDAC, controller) if re.fullmatch(r"(dimm|rank)[0-9]+", name)):
            where = re.search(r"channel ([0-9]+)", tree.text(_EDAC, controller, place, "dimm_location") or "")
            if where and integer(tree.text(_EDAC, controller, place, "size")):
                found.add((controller, where[1]))
    return len(found) or None


def modules(table: bytes) -> list[Module]:
    """Return the modules in an SMBIOS structure table; a damaged rest is left out."""
    found = (_module(body, strings) for kind, body, strings in _structures(table) if kind == _MEMORY_DEVICE)
    return [module for module in found if module]


def _structures(table: bytes) -> Iterator[tuple[int, bytes, list[str]]]:
    """Yield kind, formatted part and strings of each structure."""
    at = 0
    while at + 4 <= len(table):
        kind, length = table[at], table[at + 1]
        end = table.find(b"\0\0", at + length)
        if length < 4 or end < 0 or kind == _END:
            return
        texts = table[at + length : end].split(b"\0")
        yield kind, table[at : at + length], [text.decode("latin-1").strip() for text in texts]
        at = end + 2


def _module(body: bytes, strings: list[str]) -> Module | None:
    nbytes = _nbytes(body)
    if not nbytes:
        return None
    width, speed = _word(body, 0x0A), _word(body, 0x20)
    if speed == _UNKNOWN:
        speed = _word(body, 0x58, "<I")
    locator = " ".join(_text(body, offset, strings) for offset in (0x11, 0x10)).strip()
    return Module(
        nbytes=nbytes,
        width_bits=width if width and width <= _MOST_WIDTH else None,
        megatransfers=speed if speed and speed <= _MOST_SPEED else None,
        locator=locator,
    )


def _nbytes(body: bytes) -> int | None:
    """Return a module's size; None where the slot is empty or the firmware does not know."""
    size = _word(body, 0x0C)
    if size == 0x7FFF:
        return ((_word(body, 0x1C, "<I") or 0) & 0x7FFFFFFF) * MIB or None
    if not size or size == _UNKNOWN:
        return None
    return (size & 0x7FFF) * (KIB if size & 0x8000 else MIB)


def _word(body: bytes, offset: int, form: str = "<H") -> int | None:
    if offset + struct.calcsize(form) > len(body):
        return None  # an older version of the standard: shorter structures
    return int(struct.unpack_from(form, body, offset)[0])


def _text(body: bytes, offset: int, strings: list[str]) -> str:
    number = body[offset] if offset < len(body) else 0
    return strings[number - 1] if 0 < number <= len(strings) else ""
