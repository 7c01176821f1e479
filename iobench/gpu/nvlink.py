"""NVLinks of a GPU through NVML: which are active, and how much data each has carried. The proof of a peer copy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from iobench.gpu import nvml
from iobench.units import KIB, MIB

if TYPE_CHECKING:
    from iobench.gpu.device import Device

_MOST_LINKS = 18
_SENT, _RECEIVED = 138, 139  # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX: KiB of data, without protocol
_ALL_LINKS = 0xFFFFFFFF
_SUCCESS = 0
LEAST_PROVABLE = 64 * MIB  # so that every link has carried some MiB
_LAG = 1e-3  # the part that the counters, whole KiB read now and then by the driver, may be late by
_MOST_OVERHEAD = 1.25  # more than this times what was copied: something else used the links


@dataclass(frozen=True)
class Counters:
    """Bytes of data that a GPU's links have sent and received since the driver was loaded, all together and by link."""

    sent: int
    received: int
    sent_by_link: dict[int, int] = field(default_factory=dict)
    received_by_link: dict[int, int] = field(default_factory=dict)

    def since(self, before: Counters) -> Counters:
        """Return what came on top of ``before``."""
        return Counters(
            self.sent - before.sent,
            self.received - before.received,
            {link: count - before.sent_by_link.get(link, 0) for link, count in self.sent_by_link.items()},
            {link: count - before.received_by_link.get(link, 0) for link, count in self.received_by_link.items()},
        )


@dataclass(frozen=True)
class Links:
    """The numbers of a GPU's active and inactive NVLinks."""

    active: tuple[int, ...]
    inactive: tuple[int, ...]


def links(gpu: nvml.Gpu | None) -> Links | None:
    """Return which NVLinks are active, None where NVML does not tell."""
    if gpu is None:
        return None
    states = {number: gpu.ask("nvmlDeviceGetNvLinkState", number) for number in range(_MOST_LINKS)}
    known = {number: state for number, state in states.items() if state in (0, 1)}
    if not known:
        return None
    return Links(
        tuple(number for number, state in known.items() if state == 1),
        tuple(number for number, state in known.items() if state == 0),
    )


def counters(gpu: nvml.Gpu | None, active: tuple[int, ...] = ()) -> Counters | None:
    """Return what the links have carried so far, None where NVML does not count."""
    if gpu is None:
        return None
    sent, received = _fields(gpu, [(_SENT, _ALL_LINKS), (_RECEIVED, _ALL_LINKS)])
    if sent is None or received is None:
        return None
    by_link = _fields(gpu, [(kind, link) for link in active for kind in (_SENT, _RECEIVED)])
    return Counters(sent, received, _known(active, by_link[0::2]), _known(active, by_link[1::2]))


def of(device: Device) -> nvml.Gpu | None:
    """Return NVML's GPU behind a CUDA device; None for a MIG slice, which has no links of its own."""
    return None if device.mig else nvml.at(device.pci)


@dataclass(frozen=True)
class Proof:
    """Whether bytes are shown to have taken the NVLinks, in words too, with the counts and what is odd about them."""

    proven: bool
    words: str
    evidence: dict[str, Any]
    notes: list[str]


@dataclass
class Carried:
    """What the NVLinks of a sending and a receiving GPU carried inside a block; read it after its end."""

    names: tuple[str, str]
    states: tuple[Links | None, Links | None]
    ends: list[Counters] = field(default_factory=list)

    def proof(self, moved: int) -> Proof:
        """Tell whether the counters fit ``moved`` bytes from the one to the other, and in words which way they took."""
        if not self.ends:
            return Proof(False, "no NVLink counters to prove the way", self.evidence(), self.notes)
        counts = self.ends[0].sent, self.ends[1].received
        proven = min(counts) >= moved - _LAG * moved
        more = ", other traffic beside it" if max(counts) > _MOST_OVERHEAD * moved else ""
        words = f"NVLink{more}" if proven else f"NVLink not proven: its counters show {min(counts)} of {moved} bytes"
        return Proof(proven, words, self.evidence(), self.notes)

    @property
    def notes(self) -> list[str]:
        """Sentences on links that are there and carry nothing."""
        found = [
            f"{name} has {len(state.inactive)} inactive NVLinks: {', '.join(map(str, state.inactive))}"
            for name, state in zip(self.names, self.states, strict=True)
            if state and state.inactive
        ]
        for name, end, which in zip(self.names, self.ends, ("sent_by_link", "received_by_link"), strict=False):
            counts: dict[int, int] = getattr(end, which)
            idle = [str(link) for link, count in counts.items() if count == 0]
            if idle and sum(counts.values()) >= LEAST_PROVABLE:
                found.append(f"NVLinks of {name} that carried nothing: {', '.join(idle)}")
        return found

    def evidence(self) -> dict[str, Any]:
        """Return plain data: links by state, bytes sent and received, all together and by link."""
        roles = ("sender", "receiver")
        found: dict[str, Any] = {
            role: {"gpu": name, "active": len(state.active), "inactive": list(state.inactive)}
            for role, name, state in zip(roles, self.names, self.states, strict=True)
            if state
        }
        if self.ends:
            sender, receiver = self.ends
            found |= {"sent": sender.sent, "received": receiver.received}
            found |= {"sent_by_link": sender.sent_by_link, "received_by_link": receiver.received_by_link}
        return found


@contextlib.contextmanager
def counted(devices: Sequence[Device]) -> Iterator[Carried]:
    """Read the counters of the sending and the receiving GPU at both ends of the block."""
    gpus = [of(device) for device in devices]
    states = [links(gpu) for gpu in gpus]
    names = [device.node or device.name for device in devices]
    carried = Carried((names[0], names[1]), (states[0], states[1]))
    before = _counters(gpus, states)
    yield carried
    after = _counters(gpus, states)
    if None not in before and None not in after:
        carried.ends = [last.since(first) for first, last in zip(before, after, strict=True) if first and last]


@contextlib.contextmanager
def witness(source: Device, target: Device) -> Iterator[Proof]:
    """Prove the way between two GPUs by a copy that is large enough for the counters; peer access must be on."""
    from iobench import gpu

    nbytes = 4 * LEAST_PROVABLE
    with gpu.buffer(nbytes, source) as src, gpu.buffer(nbytes, target) as dst, gpu.stream(source) as stream:
        with counted([source, target]) as carried:
            gpu.memcpy(dst.ptr, src.ptr, nbytes, stream)
            stream.synchronize()
        found = carried.proof(nbytes)
    yield Proof(found.proven, f"{found.words} (seen with a copy of 256 MiB)", found.evidence, found.notes)


def _counters(gpus: Sequence[nvml.Gpu | None], states: Sequence[Links | None]) -> list[Counters | None]:
    return [counters(gpu, state.active if state else ()) for gpu, state in zip(gpus, states, strict=True)]


def _fields(gpu: nvml.Gpu, asked: list[tuple[int, int]]) -> list[int | None]:
    """Return field values in bytes, None for those that are not supported."""
    if not asked:
        return []
    values = gpu.ask("nvmlDeviceGetFieldValues", asked)
    if values is None:
        return [None] * len(asked)
    return [_nbytes(value) for value in values]


def _nbytes(value: Any) -> int | None:
    if value.nvmlReturn != _SUCCESS:
        return None
    return int(value.value.ullVal) * KIB


def _known(active: tuple[int, ...], values: list[int | None]) -> dict[int, int]:
    return {link: value for link, value in zip(active, values, strict=True) if value is not None}
