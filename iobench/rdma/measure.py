"""From a point to samples: both sides are set up, verified operation by operation, timed, verified again."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from iobench.errors import Unavailable, WrongData
from iobench.probe import Samples
from iobench.rdma import counters, pairing
from iobench.rdma.setup import ATOMICS, Setup
from iobench.record import Leg
from iobench.units import MIB

if TYPE_CHECKING:
    from iobench.rdma.pairing import Pair
    from iobench.timing.sampler import Sampler, Timed

VERIFIED = 64  # operations whose every byte is compared before the clock starts, fewer of large messages
_VERIFIED_NBYTES = 8 * MIB
_LATENCY_SAMPLES = 1000  # at least, where they fit: percentiles need them
_MOST_SAMPLES = 20000
_LATENCY_CHUNK = 200
_BATCH = 16  # messages that are posted between two looks at the clock, test=overhead
_SLOWEST_BYTES_PER_S, _SLOWEST_SECONDS = 5e6, 0.02  # below this an operation counts as hung
_WAITS_FOR = 16  # messages of each bulk flow
_STREAM_SECONDS = 0.005  # one sample of a stream lasts about this long
_PILOTS = 3
_HALF = "half of a round trip: two messages of nbytes there and back are two operations"
_WHOLE = "one whole round trip: the request there, the data or the old value back"


def setups(point: Mapping[str, Any]) -> tuple[Setup, Setup]:
    """Return what both sides are to set up for a point of the probe."""
    peer = point.get("peer", "same")
    mine = Setup(
        verb=point["verb"],
        nbytes=point["nbytes"],
        transport=point["transport_type"],
        device=point.get("device", "auto"),
        gid=point.get("gid", -1),
        memory=point["memory"],
        node=point.get("mem", -1),
        gpu=point.get("gpu", 0),
        qps=point["qps"],
        depth=_BATCH if point["test"] == "overhead" else point["depth"],
        every=_BATCH if point["test"] == "overhead" else point["every"],
        inline=point["inline"] == "auto",
        events=point["completion"] == "event",
        loop=point["loop"],
        mtu=point["mtu"],
        service_level=point["service_level"],
        traffic_class=point["traffic_class"],
        flows=point["load"],
        flow_class=point["load_class"],
    ).checked()
    if point["nodes"] > 1:
        return mine, replace(mine, device="auto" if peer == "same" else peer, node=-1, gid=-1)
    return mine, mine if peer == "same" else replace(mine, device=peer, gid=-1)


def pair_of(point: Mapping[str, Any], sampler: Sampler) -> Pair:
    """Return the two processes, kept for the launch."""
    pins = pairing.cpus_near(sampler.topology, point.get("device", "auto"))
    if point["nodes"] < 2:
        key = ("rdma", "here", str(pins))
        found: Pair = sampler.shared(key, lambda: pairing.local(pins))
        return found
    peer = os.environ.get(pairing.VARIABLE, "")
    if not peer:
        raise Unavailable("two hosts: iobench run rdma --server on one, iobench run rdma --connect HOST on the other")
    there: Pair = sampler.shared(("rdma", peer), lambda: pairing.apart(peer, pins[:1] if pins else None))
    return there


def measure(point: Mapping[str, Any], sampler: Sampler) -> Samples:
    """Measure one point."""
    mine, theirs = setups(point)
    pair = pair_of(point, sampler)
    facts = pairing.join(pair, mine, theirs)
    before = pair.call("counters")
    verified = _verify(pair, mine)
    test = {"latency": _latency, "bandwidth": _bandwidth, "overhead": _overhead}[point["test"]]
    with _loaded(pair, mine) as load:
        timed, more = test(pair, mine, sampler, point["direction"] == "both")
    if point["test"] == "latency" or mine.verb not in ATOMICS:
        more["verified_operations"] = verified + _verify(pair, mine, 2)
    samples = _samples(point, mine, timed, facts, pair.apart)
    samples.evidence |= {**more, **load, **_counted(pair, before)}
    _add_overhead(samples, point, facts)
    return samples


def seconds_for(nbytes: int, operations: int = 1) -> float:
    """Return the deadline of so many operations: an emulated or broken path is slow, a hung one is told."""
    return 30.0 + operations * (_SLOWEST_SECONDS + nbytes / _SLOWEST_BYTES_PER_S)


def _patience(setup: Setup, operations: int) -> float:
    """Return the deadline of so many operations of a set-up: beside bulk flows each waits for some of theirs."""
    return seconds_for(setup.nbytes + setup.flows * _WAITS_FOR * setup.flow_nbytes, operations)


def _verify(pair: Pair, setup: Setup, count: int = VERIFIED) -> int:
    """Compare every byte of ``count`` operations (fewer of large messages); return how many were."""
    if setup.memory != "host":
        # the CPU can neither poll nor store in a GPU's memory: what a short stream brought is copied and compared
        total = setup.qps * setup.every
        pair.call("fill", seconds_for(setup.nbytes), turn=1)
        pair.call("stream", seconds_for(setup.nbytes, total), total=total, marks=[], both=False)
        pair.call("check", seconds_for(setup.nbytes), turn=1, both=False)
        return total
    count = max(1, min(count, _VERIFIED_NBYTES // setup.nbytes))
    pair.call("exchange", seconds_for(setup.nbytes, 2 * count), count=count, verify=True)
    return count


def _latency(pair: Pair, setup: Setup, sampler: Sampler, _both: bool) -> tuple[Timed, dict[str, Any]]:
    """Time single operations."""
    most = min(max(sampler.max_samples, _LATENCY_SAMPLES), _MOST_SAMPLES)
    patient = replace(sampler, min_samples=min(_LATENCY_SAMPLES, most) if _small(setup) else sampler.min_samples)

    def take(count: int) -> list[list[float]]:
        rows: list[float] = []
        while len(rows) < count:
            now = min(_LATENCY_CHUNK, count - len(rows))
            rows += _seconds(pair.call("exchange", _patience(setup, now), count=now, verify=False)[0])
        return [rows]

    timed = patient.collect(take, ops=2 if _halves(setup) else 1)
    return timed, {}


def _small(setup: Setup) -> bool:
    return setup.nbytes <= 4096 and setup.loop == "native"


def _bandwidth(pair: Pair, setup: Setup, sampler: Sampler, both: bool) -> tuple[Timed, dict[str, Any]]:
    """Time a stream: what is done between two stamps, begun and ended with as many in flight as in between."""
    word = pair.call("word")[1] if setup.verb == "atomic_fadd" else 0
    pair.call("fill", seconds_for(setup.nbytes * setup.qps), turn=1)
    group = setup.qps * setup.every
    lead = -(-setup.qps * setup.depth // group) * group
    state = {"ops": group, "sent": 0, "lost": 0, "received": 0}

    def stream(total: int, marks: list[int]) -> list[list[float]]:
        deadline = seconds_for(setup.nbytes, total)
        answers = pair.call("stream", deadline, total=total, marks=marks, both=both)
        state["sent"] += total
        got = [answer["received"] for answer in answers if answer["received"] is not None]
        state["received"] += sum(got)
        state["lost"] += sum(total - one for one in got)
        return [_gaps(answer["stamps"]) for answer in answers if answer["stamps"]]

    def samples(count: int) -> list[list[float]]:
        ops = state["ops"]
        return stream(2 * lead + count * ops, [lead + ops * number for number in range(count + 1)])

    def pilot() -> float:
        # over more than is in flight: what a pause lets complete at once is not all of it
        total = 2 * lead + group
        return stream(total, [group, total])[0][0] / (total // group - 1)

    state["ops"] = max(1, round(_STREAM_SECONDS / max(_fastest(pilot, sampler.budget / 2), 1e-9))) * group
    timed = sampler.collect(samples, ops=state["ops"])
    checked = sum(pair.call("check", seconds_for(setup.nbytes * setup.qps), turn=1, both=both))
    if setup.verb == "atomic_fadd":
        grown = pair.call("word")[1] - word
        if grown != state["sent"]:
            raise WrongData(f"{state['sent']} fetch-and-adds of 1 raised the word by {grown}")
    more = {"messages": state["sent"], "bytes_compared_after": checked}
    return timed, more | ({"received": state["received"], "lost": state["lost"]} if setup.two_sided else {})


def _fastest(pilot: Callable[[], float], budget: float) -> float:
    """Return the least of what pilots tell: as many as fit into ``budget``, so that a pause in one decides nothing."""
    began, least = time.perf_counter(), pilot()
    for _ in range(_PILOTS - 1):
        if time.perf_counter() - began > budget:
            break
        least = min(least, pilot())
    return least


def _overhead(pair: Pair, setup: Setup, sampler: Sampler, _both: bool) -> tuple[Timed, dict[str, Any]]:
    """Time what the CPU needs to post one message."""

    def take(count: int) -> list[list[float]]:
        return [_seconds(pair.call("post", seconds_for(setup.nbytes, count * _BATCH), count=count, batch=_BATCH)[0])]

    return sampler.collect(take, ops=_BATCH), {}


@contextlib.contextmanager
def _loaded(pair: Pair, setup: Setup) -> Iterator[dict[str, Any]]:
    """Keep bulk flows busy on both sides inside the block; fills in what they moved."""
    moved: dict[str, Any] = {}
    if not setup.flows:
        yield moved
        return
    pair.call("load", on=True)
    try:
        yield moved
    finally:
        messages = [answer["messages"] for answer in pair.call("load", on=False)]
    moved |= {"load_messages": messages, "load_message_nbytes": setup.flow_nbytes}


def _counted(pair: Pair, before: list[dict[str, int]]) -> dict[str, Any]:
    """Return what the ports sent meanwhile, and which counters of congestion grew."""
    after = pair.call("counters")
    sides = list(zip(before, after, strict=True))
    return {
        "sent_by_port": [counters.sent(*side) for side in sides],
        "congestion": [counters.congestion(*side) for side in sides],
        "congestion_counters": [counters.watched(one) for one in after],
        "interface": pair.call("settings"),
    }


def _samples(point: Mapping[str, Any], setup: Setup, timed: Timed, facts: list[dict[str, Any]], apart: bool) -> Samples:
    latency = point["test"] != "bandwidth"
    ports = [fact["port"] for fact in facts]
    same = not apart and ports[0] == ports[1]
    where = "the same port, looped back inside the device" if same else ports[1]
    way = f"{setup.transport} {setup.verb} from {ports[0]} to {where}"
    return Samples(
        timed=timed,
        nbytes=setup.nbytes,
        moved=setup.nbytes,
        moved_rule=_rule(point["test"], setup),
        quantity="latency" if latency else "bandwidth",
        mode=point["completion"],
        verified=True,
        # only the devices can have put those bytes into the other process's memory
        path=f"{way}{'; another host' if apart else ''}; {facts[0]['gid'] or 'by LID'}",
        proven=True,
        evidence={"sides": facts},
        legs=[] if same or apart else [Leg(f"port:{ports[0]}", f"port:{ports[1]}", 1, setup.nbytes)],
        notes=_notes(point, facts, same),
    )


def _rule(test: str, setup: Setup) -> str:
    if test == "latency":
        return _HALF if _halves(setup) else _WHOLE
    if test == "overhead":
        return "the CPU's time to post one message; nothing of its way"
    return "the message's bytes, one direction"


def _halves(setup: Setup) -> bool:
    return setup.verb not in ("read", *ATOMICS)


def _notes(point: Mapping[str, Any], facts: list[dict[str, Any]], same: bool) -> list[str]:
    notes = []
    if same:
        notes.append("both ends are one port: no cable or switch is in the number")
    if any(fact["software"] for fact in facts):
        notes.append("a software device: the numbers are those of the host's CPU and network stack, no adapter's")
    if point["loop"] == "pyverbs":
        notes.append("each operation goes through Python (loop=pyverbs): its cost is in the number")
    if point["traffic_class"] and not facts[0]["ethernet"]:
        notes.append("traffic_class is of the global header; on InfiniBand the service level chooses the lane")
    return notes


def _add_overhead(samples: Samples, point: Mapping[str, Any], facts: list[dict[str, Any]]) -> None:
    """Say what the loop itself costs, and doubt a UD stream that lost messages."""
    cost = [fact["seconds_per_empty_poll"] for fact in facts]
    samples.evidence["overhead"] = {"loop": point["loop"], "seconds_per_empty_poll": cost}
    lost, sent = samples.evidence.get("lost") or 0, samples.evidence.get("messages") or 1
    if lost:
        samples.suspect = f"{lost} of {sent} messages were lost: the rate is the sender's, not what arrived"


def _seconds(nanoseconds: list[int]) -> list[float]:
    return [value * 1e-9 for value in nanoseconds]


def _gaps(stamps: list[int]) -> list[float]:
    return [max(later - earlier, 1) * 1e-9 for earlier, later in itertools.pairwise(stamps)]
