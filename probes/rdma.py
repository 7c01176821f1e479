"""RDMA verbs: latency and bandwidth of writes, reads, sends and atomics between two processes or two hosts.

Path: from the memory of one process through an RDMA port into another's, over InfiniBand, RoCE or soft-RoCE. Unless a
second host is named (iobench run rdma --server there, --connect HOST here) or another port (peer=mlx5_1), both ends
are one port: the device loops the bytes back inside, and no cable is in the number. The GID that a RoCE port is
addressed by is chosen (version 2, routable) and stands in the path.

Clock: CLOCK_MONOTONIC of the side that begins. Latency: from right before the post to the answer's last byte (write),
to its receive completion (send, write_imm), or to the completion of the operation itself (read, atomics). Writes and
sends are ping-pongs: a sample is the round trip of two operations, so its time is half of it. Reads and atomics are
whole round trips. ``completion=event`` sleeps until the device raises an event instead of polling. Bandwidth: a
stream with ``depth`` messages in flight on each of ``qps`` queue pairs; a sample lies between two stamps inside it.
``test=overhead`` is the CPU's time to post one message, 16 at a time. A write's last byte is taken to arrive last,
as perftest does: true without relaxed ordering.

Python is not in these loops: posting and polling run in compiled code without the interpreter's lock, through the same
function pointers that C's inline verbs call (loop=native). loop=pyverbs goes through Python objects, some
microseconds an operation; what an empty poll costs in the loop stands in each record's evidence as overhead.

Every byte of 64 operations (fewer of large messages) is compared before the samples, of two more after them; a
stream's last messages are compared whole, and atomics by each answer. load=N keeps N bulk flows of 64 KiB writes busy
on the same port in both directions (in traffic class load_class): the percentiles of the small messages are then the
jitter. Counters of pauses, ECN, discards and retries, read before and after, and the interface's offloads are in the
evidence; iobench compare RUN --by load, or of two runs, sets them side by side.

Not in the number: connecting, registering memory, filling, verification. Buffers are used again and again, so they
are warm in the caches. Running it keeps two CPUs busy and fills the port. GPU memory (dma-buf, else nvidia-peermem)
and InfiniBand have not been run by the authors.

Cross-checked against perftest, interleaved, on soft-RoCE: iobench crosscheck rdma.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from iobench.errors import Unavailable
from iobench.probe import Axis, Plot, Samples
from iobench.units import KIB, MIB

if TYPE_CHECKING:
    from iobench.timing.sampler import Sampler
    from iobench.topology.graph import Topology

_LATENCY = (2, 8, 64, 512, 4 * KIB, 64 * KIB, MIB)
_STREAM = (64, KIB, 8 * KIB, 64 * KIB, MIB, 8 * MIB)
_SIZES = tuple(sorted({*_LATENCY, *_STREAM}))
_VERBS = ("write", "read", "send", "write_imm", "atomic_fadd", "atomic_cas")

AXES = {
    "device": Axis(("auto",), "this side's port: mlx5_0, mlx5_0/2; auto is the first active one", free=True),
    "peer": Axis(("same",), "the other side's port; auto on another host", free=True),
    "nodes": Axis((1,), "hosts: 2 with --connect", choices=(1, 2)),
    "verb": Axis(_VERBS, "the operation"),
    "transport_type": Axis(("RC", "UD"), "reliable or unreliable connection, datagram", choices=("RC", "UC", "UD")),
    "test": Axis(("latency", "bandwidth", "overhead"), "one operation, a stream, or the CPU's time to post"),
    "completion": Axis(("poll", "event"), "how completions are noticed"),
    "memory": Axis(("host",), "where the messages lie", choices=("host", "gpu")),
    "mem": Axis((-1,), "NUMA node of host memory; -1 where the process's first touch puts it", minimum=-1),
    "gpu": Axis((0,), "memory=gpu: the GPU's number"),
    "qps": Axis((1, 4), "queue pairs of a stream", minimum=1),
    "depth": Axis((1, 64), "messages in flight on each queue pair", minimum=1),
    "every": Axis((1, 16), "one completion for so many messages of a stream", minimum=1),
    "direction": Axis(("one", "both"), "one side sends, or both at once"),
    "inline": Axis(("auto",), "small messages inside the work request (up to 220 B)", choices=("auto", "off")),
    "load": Axis((0, 2), "bulk flows beside, each way"),
    "load_class": Axis((0,), "traffic class of the bulk flows"),
    "mtu": Axis((0,), "bytes of a packet; 0 is the port's", choices=(0, 256, 512, 1024, 2048, 4096)),
    "service_level": Axis((0,), "InfiniBand's service level, 0 to 15"),
    "traffic_class": Axis((0,), "of the global header (RoCE: DSCP and ECN), 0 to 255"),
    "gid": Axis((-1,), "index in the port's GID table; -1 is the best one", minimum=-1),
    "loop": Axis(("native",), "compiled code, or Python through pyverbs", choices=("native", "pyverbs")),
    "nbytes": Axis(_SIZES, "one message; a sweep is 2:1G", unit="bytes", minimum=1),
}
LAUNCHES = 3
POINT_SECONDS = 0.15
_SERIES = ("verb", "transport_type", "completion", "load", "load_class", "traffic_class", "device", "peer")
PLOTS = (
    Plot("RDMA: latency", x="nbytes", y="latency", series=_SERIES, where={"test": "latency"}),
    Plot(
        "RDMA: bandwidth",
        x="nbytes",
        y="bandwidth",
        series=("verb", "transport_type", "qps", "depth", "direction", "device", "peer"),
        where={"test": "bandwidth"},
    ),
)
MODELS = (
    {"kind": "hockney", "where": {"test": "latency"}},
    {
        "kind": "loggp",
        "where": {"verb": ["write", "send", "write_imm"], "direction": "one", "load": 0, "qps": 1},
        "extras": {"test": "test"},
        "over": ["depth", "every"],
    },
)

_BASE: dict[str, Any] = {"completion": "poll", "qps": 1, "depth": 1, "every": 1, "direction": "one", "load": 0}
_DEEP: dict[str, Any] = {"depth": 64, "every": 16}
_MOST_UD = 4 * KIB


def _entry(sizes: tuple[int, ...], verb: str, transport: str = "RC", test: str = "latency", **other: Any) -> Any:
    return sizes, {**_BASE, "verb": verb, "transport_type": transport, "test": test, **other}


# What is measured unless the user asks for something else
_PLAN = (
    *(_entry(_LATENCY, verb) for verb in ("write", "read", "send")),
    _entry((8, 4 * KIB), "write_imm"),
    _entry((8,), "atomic_fadd"),
    _entry((8,), "atomic_cas"),
    _entry((2, 64, KIB), "send", "UD"),
    _entry((8, 4 * KIB), "send", completion="event"),
    _entry((8,), "read", completion="event"),
    _entry((64,), "write", load=2),
    _entry((64,), "send", load=2),
    *(_entry(_STREAM, verb, test="bandwidth", **_DEEP) for verb in ("write", "read", "send")),
    _entry((64 * KIB,), "write", test="bandwidth", qps=4, **_DEEP),
    _entry((64 * KIB,), "write", test="bandwidth", direction="both", **_DEEP),
    _entry((KIB,), "send", "UD", test="bandwidth", **_DEEP),
    _entry((8,), "atomic_fadd", test="bandwidth", **_DEEP),
    _entry((8, KIB), "write", test="overhead"),
)


def points(topology: "Topology", axes: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    from iobench.rdma import ports

    nodes = _nodes(topology, axes)
    if not ports.usable(topology):
        raise Unavailable(ports.why_none(topology))
    asked = {name: axes[name] for name in AXES if name not in ("nbytes", "nodes") and axes[name] != AXES[name].values}
    rest = {name: AXES[name].values[0] for name in AXES if name not in (*_BASE, *_PLAN[0][1], "nbytes", "nodes")}
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for sizes, entry in _PLAN:
        for values in itertools.product(*asked.values()):
            about = {**rest, **entry, **dict(zip(asked, values, strict=True))}
            for node, nbytes in itertools.product(nodes, _sizes(sizes, about, axes)):
                point = {**about, "nodes": node, "nbytes": nbytes}
                if _possible(point):
                    found.setdefault(tuple(sorted(point.items())), point)
    if not found:
        raise Unavailable("no RDMA operation is like that: atomics are 8 B on RC, UD only sends, events need latency")
    yield from found.values()


def measure(point: dict[str, Any], sampler: "Sampler") -> Samples:
    from iobench.rdma import measure as measuring

    return measuring.measure(point, sampler)


def _nodes(topology: "Topology", axes: Mapping[str, tuple[Any, ...]]) -> tuple[int, ...]:
    return axes["nodes"]


def _sizes(planned: tuple[int, ...], about: Mapping[str, Any], axes: Mapping[str, tuple[Any, ...]]) -> tuple[int, ...]:
    if about["verb"].startswith("atomic"):
        return (8,) if 8 in axes["nbytes"] else ()
    return planned if axes["nbytes"] == _SIZES else axes["nbytes"]


def _possible(point: Mapping[str, Any]) -> bool:
    """Tell whether verbs have such an operation and this probe such a test."""
    from iobench.rdma.setup import ALLOWED, ATOMICS

    verb, test, transport = point["verb"], point["test"], point["transport_type"]
    if verb not in ALLOWED[transport] or point["every"] > point["depth"]:
        return False
    if transport == "UD" and point["nbytes"] > _MOST_UD:
        return False
    if test != "bandwidth" and (point["qps"], point["depth"], point["direction"]) != (1, 1, "one"):
        return False
    if point["completion"] == "event" and (test != "latency" or verb == "write"):
        return False
    if point["load"] and (test != "latency" or transport != "RC" or point["loop"] == "pyverbs"):
        return False
    if test == "overhead" and (verb == "read" or verb in ATOMICS or transport == "UD"):
        return False
    if test == "overhead" and verb != "write":
        return False  # a send needs the other side to take it meanwhile
    return point["memory"] == "host" or (verb not in ATOMICS and not (verb == "write" and test == "latency"))
