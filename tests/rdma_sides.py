"""Two sides of a measurement in one process, on the device of fake_verbs: what ranks and hosts are otherwise."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from iobench.ranks.child import Rank
from iobench.ranks.shared import SharedState
from iobench.rdma import compiled, side, slow, timed
from iobench.rdma.setup import Setup
from iobench.topology.sysfs import Tree

import fake_verbs
from processes import PATIENCE_SECONDS


def sysfs(
    root: Path, gids: tuple[tuple[str, str], ...] = (("0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2"),)
) -> Tree:
    """Write a machine with one RoCE port, fake0/1, below ``root``."""
    folder = root / "sys/class/infiniband/fake0/ports/1"
    for name in ("gids", "gid_attrs/types", "counters", "hw_counters"):
        (folder / name).mkdir(parents=True)
    (folder / "state").write_text("4: ACTIVE\n")
    (folder / "link_layer").write_text("Ethernet\n")
    for index, (gid, kind) in enumerate(gids):
        (folder / "gids" / str(index)).write_text(f"{gid}\n")
        (folder / "gid_attrs/types" / str(index)).write_text(f"{kind}\n")
    (folder / "hw_counters/sent_pkts").write_text("17\n")
    return Tree(str(root))


def point_of(**more: object) -> dict[str, object]:
    """Return a point of the probe."""
    point: dict[str, object] = {
        "verb": "write", "transport_type": "RC", "test": "latency", "completion": "poll", "memory": "host", "qps": 1,
        "depth": 1, "every": 1, "direction": "one", "inline": "auto", "load": 0, "load_class": 0, "mtu": 0,
        "service_level": 0, "traffic_class": 0, "loop": "native", "nodes": 1, "nbytes": 300,
    }  # fmt: skip
    return point | more


class Sides:
    """Both sides; ``call`` is that of a Pair."""

    apart = False

    def __init__(self, tree: Tree, flat: bool = True) -> None:
        _compiled()  # seconds for each loop, during which one side would wait for the other within a limit
        loaded = fake_verbs.loaded(flat)
        self.sides = []
        for number in (0, 1):
            one = object.__new__(side.Side)
            rank = Rank(number, 2, number, {}, SharedState(SharedState.create(2), 2), crowded=True)
            one.begin(rank, loaded, tree)
            self.sides.append(one)
        self.pool = ThreadPoolExecutor(2)

    def call(self, method: str, deadline: float = 300.0, **arguments: Any) -> list[Any]:
        futures = [self.pool.submit(getattr(one, method), **arguments) for one in self.sides]
        deadline = max(deadline, PATIENCE_SECONDS)
        wait(futures, deadline)  # both, also where one fails: what is called next must not meet the other still at work
        return [future.result(deadline) for future in futures]

    def join(self, setup: Setup) -> list[dict[str, Any]]:
        infos = self.call("prepare", setups=[setup.to_dict()] * 2)
        return self.call("connect", peers=infos)

    def close(self) -> None:
        for one in self.sides:
            one.close()
        self.pool.shutdown()


@contextlib.contextmanager
def sound_sides(folder: Path) -> Iterator[Sides]:
    """Yield two sides on a sound device that wait for each other as long as it takes, and leave it sound."""
    device = fake_verbs.DEVICE
    with pytest.MonkeyPatch.context() as patch:
        for module in (timed, slow):
            patch.setattr(module, "LIMIT_SECONDS", PATIENCE_SECONDS)
        device.corrupt, device.refuse_inline, device.drop = False, False, 0
        made = Sides(sysfs(folder))
        yield made
        made.close()
        device.corrupt, device.refuse_inline, device.drop = False, False, 0


@functools.cache
def _compiled() -> None:
    compiled.compile_all()


def use_all_loops(folder: Path) -> None:
    """Compile each loop and use it once."""
    sides = Sides(sysfs(folder))
    try:
        for setup in (Setup("write", 64), Setup("read", 64), Setup("send", 64, qps=2, depth=16, every=4)):
            sides.join(setup)
            sides.call("exchange", count=2, verify=True)
            sides.call("fill", turn=1)
            sides.call("stream", total=32, marks=[8, 16], both=True)
            sides.call("check", turn=1, both=setup.verb != "read")
        sides.join(Setup("write", 8, depth=4, every=4))
        sides.call("post", count=2, batch=4)
        sides.join(Setup("write", 64, flows=2))
        sides.call("load", on=True)
        sides.call("exchange", count=2, verify=False)
        sides.call("load", on=False)
    finally:
        sides.close()


__all__ = ["Sides", "point_of", "sound_sides", "sysfs", "use_all_loops"]
