"""Opens memory in one of its forms, and says afterwards where its pages really lie."""

from __future__ import annotations

import contextlib
import mmap
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iobench import hostmem, mempolicy
from iobench.cxl.forms import DEVDAX, INTERLEAVE, Form
from iobench.errors import Unavailable
from iobench.mempolicy import Policy
from iobench.units import MIB, format_size

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

EQUAL, WEIGHTED = "equal", "weighted"
_EVEN = 0.05  # how far from half of the pages each node may be where they are placed in turn
_ALIGN = 2 * MIB


@dataclass(frozen=True)
class Proof:
    """Where a touched buffer lies, in words; ``shares`` is each topology node's part of its pages."""

    path: str
    proven: bool
    shares: dict[str, float]
    evidence: dict[str, Any]


@dataclass(frozen=True)
class Memory:
    """``data`` (uint8) lies in ``form``; ``policy`` placed its pages (None for a mapped device)."""

    form: Form
    data: NDArray[np.uint8]
    policy: Policy | None
    buffer: hostmem.Buffer | None = None

    def prove(self) -> Proof:
        """Read back where every page lies; call it after all of them were touched."""
        return self._mapped() if self.buffer is None else self._placed(self.buffer)

    def _placed(self, area: hostmem.Buffer) -> Proof:
        pages = hostmem.inspect(area)
        hostmem.require(area, pages)
        placed = mempolicy.placed(self.data)
        nodes = self.policy.nodes if self.policy else ()
        total = max(placed.pages.total(), 1)
        shares = {f"mem:{node}": count / total for node, count in sorted(placed.pages.items())}
        even = self.policy is None or self.policy.mode != mempolicy.INTERLEAVE or _even(shares, nodes)
        evidence = {
            "pages": pages.evidence(),
            "pages_on_node": {str(node): count for node, count in sorted(placed.pages.items())},
            "pages_unknown": placed.unknown,
            "placement": placed.method or "unknown",
            "policy": str(self.policy),
        }
        if self.policy and self.policy.mode == mempolicy.WEIGHTED:
            evidence["weights"] = {str(node): weight for node, weight in mempolicy.weights(nodes).items()}
        path = f"{self.form.label}; {placed.text()}, {format_size(pages.page_nbytes)} pages"
        return Proof(path, placed.on(nodes) and even and pages.kind() == area.pages, shares, evidence)

    def _mapped(self) -> Proof:
        """Return the kernel's word that the address belongs to the device: move_pages does not know its pages."""
        device = f"/dev/{self.form.device}"
        text = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
        found = mapping(text, int(self.data.ctypes.data))
        evidence = {"mapping": found, "device": self.form.device}
        return Proof(self.form.label, found == device, {f"dax:{self.form.device}": 1.0}, evidence)


@contextlib.contextmanager
def opened(form: Form, nbytes: int, pages: str, turns: str = EQUAL) -> Iterator[Memory]:
    """Yield ``nbytes`` of untouched memory in ``form``.

    ``pages`` is "base" or "huge" (a mapped device has its own), ``turns`` "equal" or "weighted" how pages are
    interleaved. Raises Unavailable where it can't be had. A devdax device is overwritten.
    """
    if form.kind == DEVDAX:
        with _device(form, nbytes) as data:
            yield Memory(form, data, None)
        return
    policy = _policy(form, turns)
    with hostmem.buffer(nbytes, pages, policy=policy) as area:
        yield Memory(form, area.data, policy, area)


def _policy(form: Form, turns: str) -> Policy:
    if form.node is None:
        raise Unavailable(f"{form.label} has no NUMA node to bind to")
    if form.kind != INTERLEAVE:
        return Policy((form.node,))
    return Policy((form.near, form.node), mempolicy.WEIGHTED if turns == WEIGHTED else mempolicy.INTERLEAVE)


@contextlib.contextmanager
def _device(form: Form, nbytes: int) -> Iterator[NDArray[np.uint8]]:
    import numpy as np

    file, length = f"/dev/{form.device}", -(-nbytes // _ALIGN) * _ALIGN
    if form.nbytes is not None and length > form.nbytes:
        raise Unavailable(f"{form.device} has {format_size(form.nbytes)}: ask for less with -a nbytes")
    try:
        handle = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise Unavailable(
            f"{file} can't be opened: {error.strerror}; run as root or let the device's group do"
        ) from error
    try:
        area = mmap.mmap(handle, length, mmap.MAP_SHARED)
    except OSError as error:
        raise Unavailable(f"{file} can't be mapped: {error.strerror}; daxctl list shows its alignment") from error
    finally:
        os.close(handle)
    yield np.frombuffer(area, np.uint8)[:nbytes]
    # Closing the map while an array still looks into it is refused; it goes when the last one does.
    with contextlib.suppress(BufferError):
        area.close()


def mapping(text: str, address: int) -> str:
    """Return the file of the mapping in ``text`` (/proc/self/maps) that holds ``address``, "" for none."""
    for line in text.splitlines():
        found = re.match(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \S+\s*(.*)", line)
        if found and int(found[1], 16) <= address < int(found[2], 16):
            return found[3]
    return ""


def _even(shares: dict[str, float], nodes: tuple[int, ...]) -> bool:
    return all(abs(shares.get(f"mem:{node}", 0.0) - 1 / len(nodes)) <= _EVEN for node in nodes)
