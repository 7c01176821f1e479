"""The harness itself, without a device: what an empty operation, a wait and a sleep cost.

Path: none; nothing moves. The clock starts right before the operation and stops right after it.
``empty`` is the overhead that every other number of the host clock holds: one call of an empty Python
function in the timed loop. ``wait`` is the known workload: it spins for 20 us + nbytes / (2 GB/s), so the
fitted model must give just that back. ``sleep`` shows how late the system wakes a sleeping process.
Running it does nothing to the machine. Cross-checked against the constants written here.

More values of ``kind`` plant faults, to see what the suite does with them: ``fail`` raises, ``wrong``
returns wrong data, ``hang`` never returns, ``die`` kills its process, ``skip`` is unavailable, ``fast``
claims more bytes per second than the memory can move.
"""

import os
import signal
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from iobench.errors import Unavailable, WrongData
from iobench.probe import Axis, Plot, Samples
from iobench.record import Leg

if TYPE_CHECKING:
    from iobench.timing.sampler import Sampler, Timed
    from iobench.topology.graph import Topology

WAIT_SECONDS = 20e-6
WAIT_BYTES_PER_S = 2e9
SLEEP_SECONDS = 1e-3
FAST_BYTES = 1 << 60

AXES = {
    "kind": Axis(
        ("empty", "wait", "sleep"),
        "the operation to time",
        choices=("empty", "wait", "sleep", "fail", "wrong", "hang", "die", "skip", "fast"),
    ),
    "nbytes": Axis(tuple(1 << n for n in range(10, 21, 2)), "bytes that wait pretends to move", unit="bytes"),
}
LAUNCHES = 3
POINT_SECONDS = 0.1
PLOTS = (
    Plot("Overhead: an empty operation", x="kind", y="latency", where={"kind": "empty"}),
    Plot("The known workload: 20 us + nbytes / (2 GB/s)", x="nbytes", y="latency", where={"kind": "wait"}),
)
MODELS = ({"kind": "hockney", "where": {"kind": "wait"}},)


def points(topology: "Topology", axes: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    for kind in axes["kind"]:
        if kind == "wait":
            yield from ({"kind": kind, "nbytes": nbytes} for nbytes in axes["nbytes"])
        else:
            yield {"kind": kind}


def measure(point: dict[str, Any], sampler: "Sampler") -> Samples:
    kind, nbytes = point["kind"], point.get("nbytes", 0)
    fault = _FAULTS.get(kind)
    if fault:
        fault()
    timed = sampler.host(_operation(kind, nbytes))
    return _samples(kind, nbytes, timed)


def _operation(kind: str, nbytes: int) -> Any:
    if kind == "sleep":
        return lambda: time.sleep(SLEEP_SECONDS)
    if kind == "wait":
        duration = int((WAIT_SECONDS + nbytes / WAIT_BYTES_PER_S) * 1e9)
        return lambda: _spin(duration)
    return _nothing


def _samples(kind: str, nbytes: int, timed: "Timed") -> Samples:
    return Samples(
        timed=timed,
        nbytes=nbytes,
        moved=FAST_BYTES if kind == "fast" else nbytes,
        moved_rule="nothing moves; the number is the harness's own",
        quantity="bandwidth" if kind == "fast" else "latency",
        mode="host-call",
        verified=None,
        path="none",
        proven=True,
        legs=[Leg("mem:0", "cpu:0")] if kind == "fast" else [],
    )


def _nothing() -> None:
    pass


def _spin(duration: int) -> None:
    end = time.perf_counter_ns() + duration
    while time.perf_counter_ns() < end:
        pass


def _fail() -> None:
    raise RuntimeError("planted failure")


def _wrong() -> None:
    raise WrongData("planted: byte 0 is 1, not 0")


def _hang() -> None:
    while True:
        time.sleep(3600)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _skip() -> None:
    raise Unavailable("planted: needs hardware that no machine has")


_FAULTS = {"fail": _fail, "wrong": _wrong, "hang": _hang, "die": _die, "skip": _skip}
