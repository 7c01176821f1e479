"""The PCIe links on the way to a GPU: what each can do, and what it runs at now. Read it under load, idle links fall
back to generation 1."""

from __future__ import annotations

from dataclasses import dataclass

from iobench.topology import limits
from iobench.topology.pci import End, chain, speed, width
from iobench.topology.sysfs import Tree

_DEVICES = "sys/bus/pci/devices"
_BRIDGE = "0x0604"


@dataclass(frozen=True)
class Hop:
    """One link, named by the function at its lower end; ``most`` is the lower maximum of its two ends."""

    name: str
    most: End


def hops(tree: Tree, address: str) -> list[Hop]:
    """Return the links from below the root port down to the GPU, none where sysfs does not show it.

    A root port's and a switch's downstream port's own attributes are about the link below them, so those are no
    hops: they are the upper end of the next one.
    """
    functions = [name for name in chain(tree.real(_DEVICES, address) or "") if name.count(":") == 2]
    found: list[Hop] = []
    for depth, name in enumerate(functions):
        if _is_bridge(tree, name) and depth % 2 == 0:
            continue
        ends = [_end(tree, end, "max") for end in functions[max(depth - 1, 0) : depth + 1]]
        found.append(Hop(name, _lowest(ends)))
    return found


def now(tree: Tree, hop: Hop) -> End:
    """Return what the link runs at."""
    return _end(tree, hop.name, "current")


def bytes_per_s(end: End) -> float | None:
    """Return the rate per direction of a link state, None for an unknown one."""
    limit = limits.pcie(end.generation, end.width)
    return limit.bytes_per_s if limit else None


def words(end: End) -> str:
    """Return "gen 5 x16", with a question mark for what is unknown."""
    return f"gen {end.generation or '?'} x{end.width or '?'}"


def _is_bridge(tree: Tree, name: str) -> bool:
    return (tree.text(_DEVICES, name, "class") or "").startswith(_BRIDGE)


def _end(tree: Tree, name: str, which: str) -> End:
    return End(
        speed(tree.text(_DEVICES, name, f"{which}_link_speed")),
        width(tree.text(_DEVICES, name, f"{which}_link_width")),
    )


def _lowest(ends: list[End]) -> End:
    generations = [end.generation for end in ends if end.generation is not None]
    widths = [end.width for end in ends if end.width is not None]
    return End(min(generations, default=None), min(widths, default=None))
