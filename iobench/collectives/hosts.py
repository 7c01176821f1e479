"""The parent's side of collectives between processes on CPUs (gloo): where ranks run, the proof of the path."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
from collections import Counter
from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

from iobench import ranks
from iobench.collectives.gloo import BUFFERS
from iobench.errors import Unavailable
from iobench.needs import missing
from iobench.probe import Samples
from iobench.ranks import nodes
from iobench.record import Leg

if TYPE_CHECKING:
    from iobench.ranks import RankGroup
    from iobench.timing.sampler import Sampler, Timed

TARGET = "iobench.collectives.gloo:Gloo"
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}
_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"}
_START_SECONDS = 300.0  # torch alone takes 2 s of CPU time per rank, and many ranks may share few CPUs and a cold disk
_DEADLINE_SECONDS = 60.0
_SLOWEST_BYTES_PER_S = 20e6  # below this a rank counts as hung
_SMALL_NBYTES = 64 << 10
_SMALL_MIN_SAMPLES = 50  # small messages are bimodal (a late wake-up costs ten times the rest)
_LARGE_NBYTES = 16 << 20
_LARGE_MIN_SAMPLES = 3  # in each launch; one takes a tenth of a second


def measure(point: Mapping[str, Any], sampler: Sampler) -> Samples:
    """Measure an all-reduce between processes over TCP: on the loopback interface, or between nodes."""
    if importlib.util.find_spec("torch") is None:
        raise Unavailable(missing("torch"))
    size, nbytes = point["ranks"], point["nbytes"]
    group = sampler.shared(("ranks", size, point["nodes"], point["placement"]), lambda: _group(point))
    deadline = _DEADLINE_SECONDS + BUFFERS * nbytes / _SLOWEST_BYTES_PER_S
    group.call("prepare", deadline, nbytes=nbytes)
    before = _received(group)
    timed = _patient(sampler, nbytes).collect(lambda count: group.durations("time", deadline, count=count))
    after = _received(group)
    return _samples(point, timed, group, _proof(nbytes, size, timed, before, after, point["nodes"]))


def _group(point: Mapping[str, Any]) -> contextlib.AbstractContextManager[RankGroup]:
    job, size = nodes.current(), point["ranks"]
    patience = {"start_seconds": _START_SECONDS, "call_seconds": _DEADLINE_SECONDS}
    if point["nodes"] > 1:
        between: dict[str, Any] = {"nodes": job.take(point["nodes"]), "lead": job.lead}
        return ranks.group(TARGET, size, environment=ENVIRONMENT, **patience, **between)
    placed = _placement(point["placement"], ranks.cpu_shares(size))
    return ranks.group(TARGET, size, environment={**ENVIRONMENT, **_LOOPBACK}, **patience, **placed)


def _placement(placement: str, shares: list[list[int]] | None) -> dict[str, Any]:
    """Return where the ranks run: gloo's event loop never on a CPU of its rank's other threads.

    The loop polls a connection's lock while another thread of the rank holds it to send (try_to_lock in
    gloo/transport/tcp/pair.cc). On one CPU it keeps that thread from running until the scheduler's next tick:
    3 to 4 ms, in half of all operations. With one CPU per rank the loop goes to the next rank's CPU.
    """
    if placement == "free" or shares is None:
        return {}
    loops = [share[-1] for share in shares] if len(shares[0]) > 1 else [share[0] for share in shares[1:] + shares[:1]]
    return {"pins": [share[:-1] or share for share in shares], "config": {"event_loop_cpu": loops}}


def _patient(sampler: Sampler, nbytes: int) -> Sampler:
    """Return the sampler with a least number of samples that suits the size."""
    least = sampler.min_samples
    if nbytes <= _SMALL_NBYTES:
        least = min(max(least, _SMALL_MIN_SAMPLES), sampler.max_samples)
    elif nbytes >= _LARGE_NBYTES:
        least = min(least, _LARGE_MIN_SAMPLES)
    return dataclasses.replace(sampler, min_samples=least)


def _received(group: RankGroup) -> dict[tuple[str, str], tuple[int, bool]]:
    """Return the bytes each connection between two ranks has carried, and whether it is loopback."""
    from iobench.ranks import sockets

    connections = sockets.between(group.call("sockets"), without_port=group.port)
    return {(c.sender_end, c.receiver_end): (c.received, c.loopback) for c in connections}


def _proof(
    nbytes: int,
    size: int,
    timed: Timed,
    before: Mapping[tuple[str, str], tuple[int, bool]],
    after: Mapping[tuple[str, str], tuple[int, bool]],
    count_of_nodes: int = 1,
) -> dict[str, Any]:
    """Compare what the connections between the ranks carried with the least any algorithm needs.

    On one node all of them must be loopback ones; between nodes every connection counts.
    """
    iterations = len(timed.seconds[0]) + len(timed.warmup[0])
    own = {ends: count for ends, (count, loopback) in after.items() if loopback or count_of_nodes > 1}
    carried = [count - before.get(ends, (0, True))[0] for ends, count in own.items()]
    return {
        "loopback_connections": sum(loopback for _, loopback in after.values()),
        "other_connections": len(after) - len(own),
        "bytes_received": sum(carried),
        # A reduction to one rank and a broadcast back, whatever the order: n - 1 buffers each way.
        "bytes_expected": 2 * (size - 1) * nbytes * iterations,
    }


def _samples(point: Mapping[str, Any], timed: Timed, group: RankGroup, proof: dict[str, Any]) -> Samples:
    size, nbytes = point["ranks"], point["nbytes"]
    facts = group.call("facts")
    where = f"between {point['nodes']} nodes" if point["nodes"] > 1 else "on the loopback interface"
    about = {"shape": "one process per rank", "dtype": "float32", "torch": facts[0]["torch"]}
    about |= {"rank_cpus": group.cpus, "event_loop_cpus": [fact["event_loop_cpus"] for fact in facts]}
    return Samples(
        timed=timed,
        nbytes=nbytes,
        moved=round(nbytes * 2 * (size - 1) / size),
        moved_rule="bus bytes: nbytes * 2(n-1)/n, what each of n ranks must send",
        quantity="bandwidth",
        mode="blocking",
        verified=True,
        path=f"gloo over TCP {where}",
        proven=proof["bytes_received"] >= proof["bytes_expected"] and not proof["other_connections"],
        evidence={**about, **proof, **_skew(timed, group.call("last_entries"))},
        legs=[Leg("net:lo", "mem:0", moved=2 * (size - 1) * nbytes)] if point["nodes"] == 1 else [],
        notes=_placement_notes(group, facts),
    )


def _placement_notes(group: RankGroup, facts: list[dict[str, Any]]) -> list[str]:
    """Return what a reader must know of where the ranks ran."""
    loops = [fact["event_loop_cpus"] for fact in facts]
    if group.pins is None:
        return [f"{group.size} ranks on {len(group.cpus[0])} CPUs, not pinned"]
    if [] in loops:
        return ["gloo's event loop was not found by its thread's name: ranks not pinned, expect stalls of 3 to 4 ms"]
    if len(group.pins[0]) == 1 and loops[0] == group.cpus[1]:
        return ["one CPU per rank: gloo's event loop runs on the next rank's CPU"]
    return []


def _skew(timed: Timed, entries: list[list[int]]) -> dict[str, Any]:
    """Return each rank's median, the rank most often slowest, and how far apart the ranks started (ns)."""
    slowest = Counter(max(range(len(row)), key=row.__getitem__) for row in zip(*timed.seconds, strict=True))
    rank, times = slowest.most_common(1)[0]
    apart = [max(starts) - min(starts) for starts in zip(*entries, strict=True)]
    return {
        "rank_median_seconds": [median(row) for row in timed.seconds],
        "entry_skew_seconds": {"median": median(apart) * 1e-9, "max": max(apart) * 1e-9},
        "slowest_rank": rank,
        "slowest_share": times / slowest.total(),
    }
