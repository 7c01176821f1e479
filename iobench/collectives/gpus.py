"""The parent's side of collectives between GPUs: groups of ranks by way, sizes of samples, proofs, the result."""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
import uuid
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from iobench import preflight, ranks
from iobench.collectives import ports, transport
from iobench.collectives.ops import Work
from iobench.collectives.transport import Way
from iobench.errors import IobenchError, Unavailable, UserError
from iobench.probe import Samples
from iobench.ranks import nodes
from iobench.record import Leg

if TYPE_CHECKING:
    from iobench.ranks import RankGroup
    from iobench.timing.sampler import Sampler, Timed
    from iobench.topology.graph import Topology

TARGETS = {"nccl": "iobench.collectives.nccl:Nccl", "torch": "iobench.collectives.torch:Torch"}
START_SECONDS = 120.0  # importing torch in every rank at once from a cold disk
_DEADLINE_SECONDS = 30.0  # for a call of the ranks; IOBENCH_RANK_DEADLINE overrides it
_SLOWEST_BYTES_PER_S = 50e6  # below this a rank counts as hung
_SAMPLE_SECONDS = 1e-3  # what a sample of replays lasts at least: the events' resolution is 0.05 % of it
_EAGER_SECONDS = 2e-3  # of operations launched one by one, where the ends count too
_GRAPH_OPS, _EAGER_OPS, _MOST_REPLAYS = 128, 128, 64
_ROUGH_CALLS = 5
_LEAST_PROVABLE = 64 << 20
_LAG = 1e-3


@dataclass
class Team:
    """A running group; each rank reads the log that NCCL writes on its node."""

    group: RankGroup
    way: Way
    facts: list[dict[str, Any]]
    _said: transport.Log = field(default_factory=transport.Log)

    def log(self) -> transport.Log:
        """Return what the ranks' logs say so far."""
        return self._said.add(self.group.call("nccl_log", _DEADLINE_SECONDS))


class Bench:
    """Keeps one team at a time: a team of the way before would hold the GPUs' memory."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._key: Hashable = None
        self._team: Team | None = None

    def team(self, engine: str, way: Way, gpus: list[str]) -> Team:
        """Return the team for this way, started if it is not the one that runs."""
        key = engine, way, tuple(gpus)
        if self._team is None or self._key != key or not self._team.group.pids:
            self.close()
            self._team = self._stack.enter_context(_team(engine, way, gpus))
            self._key = key
        return self._team

    def close(self) -> None:
        self._team = None
        self._stack.close()


@contextlib.contextmanager
def bench() -> Iterator[Bench]:
    """Yield a Bench and end its team on leaving."""
    made = Bench()
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def _team(engine: str, way: Way, gpus: list[str]) -> Iterator[Team]:
    """Yield a connected team; whatever NCCL's log says of why it could not connect is in the error."""
    logs = f"{tempfile.gettempdir()}/iobench-{uuid.uuid4().hex}"
    try:
        with _group(engine, way, gpus, logs) as group:
            (unique,) = [found for found in group.call("unique_id", START_SECONDS) if found is not None] or [None]
            try:
                facts = group.call("connect", START_SECONDS, unique=unique)
            except ranks.RankFailed as error:
                raise _not_started(way, logs, error) from error
            yield Team(group, way, facts)
    finally:
        for file in _written(logs):
            with contextlib.suppress(OSError):
                file.unlink()


def _group(engine: str, way: Way, gpus: list[str], logs: str) -> contextlib.AbstractContextManager[RankGroup]:
    """Return a group of one rank per GPU on each node; all nodes are taken to name their GPUs alike."""
    job = nodes.current()
    return ranks.group(
        TARGETS[engine],
        len(gpus) * way.nodes,
        config={"gpus": gpus},
        environment=way.environment(logs),
        nodes=job.take(way.nodes),
        lead=job.lead,
        start_seconds=START_SECONDS,
    )


def _not_started(way: Way, logs: str, error: ranks.RankFailed) -> IobenchError:
    """Return the error of a team that did not connect: NCCL's own reason where its log has one."""
    log = transport.Log().add(file.read_text(encoding="utf-8", errors="replace") for file in _written(logs))
    why = f"; NCCL's log: {'; '.join(log.reasons)}" if log.reasons else ""
    raised = ranks.RankFailed(f"NCCL did not start on {way.transport}: {error}{why}")
    for note in getattr(error, "__notes__", []):
        raised.add_note(note)
    return raised


def _written(logs: str) -> list[Path]:
    return sorted(Path(logs).parent.glob(f"{Path(logs).name}.*"))


def measure(point: Mapping[str, Any], sampler: Sampler, gpus: list[str]) -> Samples:
    """Measure one point of an engine on NCCL; ``gpus`` are the topology's names of one node's GPUs, by rank."""
    way = way_of(point)
    warned = _preflight(sampler, way)
    work = Work.of(point["op"], point["nbytes"], point["dtype"], point["ranks"], point["inplace"] == "yes")
    team = sampler.shared("collectives on GPUs", bench).team(point["engine"], way, gpus)
    group, deadline = team.group, _deadline() + 16 * work.nbytes / _SLOWEST_BYTES_PER_S
    shape = {"op": work.op.name, "nbytes": work.nbytes, "dtype": work.dtype, "inplace": work.inplace}
    rough = max(group.call("prepare", deadline, **shape))
    if rough < _EAGER_SECONDS:
        rough = max(group.call("rough", deadline, count=_ROUGH_CALLS))
    way_words, proven = transport.proof(way, team.log())
    group.call("poison", deadline)
    logs = any(group.call("log_operations", deadline, wanted=way.tuning and point["mode"] == "graph"))
    group.call("watch", deadline)
    before, ports_before = group.call("links", deadline), ports.read(sampler.topology)
    timed, about = _timed(point["mode"], sampler, group, rough, deadline)
    sent = ports.read(sampler.topology).since(ports_before)
    carried = _carried(before, group.call("links", deadline))
    watched = group.call("watched", deadline)
    looked = group.call("verify", deadline)
    about |= {"verified_results": looked, "watch": watched, **_skew(timed), **_library(team)}
    links, links_prove = _links(way, work, timed, carried)
    network, network_proves = ports.proof(sent, _least(work, timed), _LEAST_PROVABLE) if way.networked else ("", True)
    about |= {"nvlink": carried, "ports": dict(sent.by_port), **_tuning(team.log(), work)}
    return Samples(
        timed=timed,
        nbytes=work.nbytes,
        moved=work.moved,
        moved_rule=work.op.moved_rule,
        quantity="bandwidth",
        mode=point["mode"],
        verified=True,
        path=", ".join(part for part in (way_words, links, network) if part),
        proven=proven and links_prove and network_proves,
        evidence=about,
        legs=_legs(sampler.topology, way, work, gpus) if way.nodes == 1 else [],
        notes=[*warned, *way.overridden(os.environ), *_launch_notes(point["mode"], about, timed, logs)],
        suspect="; ".join(dict.fromkeys(one["suspect"] for one in watched if one["suspect"])),
    )


def _deadline() -> float:
    """Return the seconds that a call of the ranks may take, without what its bytes need."""
    text = os.environ.get("IOBENCH_RANK_DEADLINE", "")
    try:
        return float(text or _DEADLINE_SECONDS)
    except ValueError as error:
        raise UserError(f"IOBENCH_RANK_DEADLINE={text} is no number of seconds: 30, for example") from error


def _preflight(sampler: Sampler, way: Way) -> list[str]:
    """Return what this launch must know before it starts ranks; Unavailable where they would hang or fail."""
    found: list[preflight.Finding] = sampler.shared("nccl preflight", lambda: _found(sampler.topology))
    concerned = [one for one in found if not one.concerns or way.transport in one.concerns]
    stops = [one.sentence for one in concerned if one.stops]
    if stops:
        raise Unavailable("; ".join(stops))
    return [one.sentence for one in concerned]


@contextlib.contextmanager
def _found(topology: Topology) -> Iterator[list[preflight.Finding]]:
    yield preflight.find(preflight.Host.here(topology), ("nccl",))


def way_of(point: Mapping[str, Any]) -> Way:
    """Return the point's Way. Torch goes without the lines on each operation."""
    gdr, tuning = point.get("gdr", transport.AUTO), point["engine"] == "nccl"
    return Way(point["transport"], point["algo"], point["proto"], gdr, point["nodes"], tuning)


def _timed(
    mode: str, sampler: Sampler, group: RankGroup, rough: float, deadline: float
) -> tuple[Timed, dict[str, Any]]:
    """Return the times; every rank is told the same numbers of operations."""
    if mode == "graph":
        ops = _number(_SAMPLE_SECONDS, rough, _GRAPH_OPS)
        group.call("capture", deadline, ops=ops)
        replays = _replays(group, deadline) if rough < _SAMPLE_SECONDS else 1
        take = {"method": "time_graph", "replays": replays}
        return _collect(sampler, group, deadline, take, ops * replays), {"graph_ops": ops, "replays": replays}
    if mode == "eager":
        ops = _number(_EAGER_SECONDS, rough, _EAGER_OPS)
        timed = _collect(sampler, group, deadline, {"method": "time_eager", "ops": ops}, ops)
    else:
        timed = _collect(sampler, group, deadline, {"method": "time_blocking"}, 1)
    return timed, {"launch_seconds": group.call("call_cost", deadline)}


def _replays(group: RankGroup, deadline: float) -> int:
    """Return how many replays make a sample, after running some."""
    alone = max(min(row) for row in group.durations("time_graph", deadline, count=3, replays=1))
    return _number(_SAMPLE_SECONDS, alone, _MOST_REPLAYS)


def _collect(sampler: Sampler, group: RankGroup, deadline: float, take: Mapping[str, Any], ops: int) -> Timed:
    more = {name: value for name, value in take.items() if name != "method"}
    return sampler.collect(lambda count: group.durations(take["method"], deadline, count=count, **more), ops=ops)


def _number(least: float, each: float, most: int) -> int:
    return max(1, min(most, math.ceil(least / max(each, 1e-9))))


def _launch_notes(mode: str, about: Mapping[str, Any], timed: Timed, logs: bool = False) -> list[str]:
    """Say so where launching from Python is a good part of the time; ``logs``: and writing NCCL's log is in it."""
    costs = about.get("launch_seconds")
    if not costs:
        return []
    share = max(costs) / (median(timed.seconds[0]) / timed.ops)
    words = "is what is timed" if mode == "eager" and share > 0.8 else f"is {min(share, 1.0):.0%} of the time"
    more = " (with a line of NCCL's log for each: this NCCL can't be told to stop)" if logs else ""
    cost = f"launching an operation from Python costs {max(costs) * 1e6:.1f} us{more}"
    return [f"{cost} and {words}"] if share > 0.05 else []


def _carried(before: list[Any], after: list[Any]) -> list[dict[str, Any]]:
    """Return per rank what its GPU's NVLinks sent and received meanwhile; [] where NVML does not count."""
    if None in before or None in after:
        return []
    return [
        {**last, "sent": last["sent"] - first["sent"], "received": last["received"] - first["received"]}
        for first, last in zip(before, after, strict=True)
    ]


def _least(work: Work, timed: Timed) -> int:
    """Return the bus bytes of all timed operations and their warm-up."""
    return work.moved * (len(timed.seconds[0]) + len(timed.warmup[0])) * timed.ops


def _links(way: Way, work: Work, timed: Timed, carried: list[dict[str, Any]]) -> tuple[str, bool]:
    """Return what the NVLinks' counters say, in words, and whether they fit the transport.

    A ring or tree makes every rank of an all-reduce send the bus bytes at least; the switch's own reduction (NVLS)
    makes it send less.
    """
    least = _least(work, timed)
    if not carried or least < _LEAST_PROVABLE:
        return "", True
    sent = [one["sent"] for one in carried]
    if way.transport == "nvlink":
        ring = way.algo.lower() in ("ring", "tree") or work.op.name not in ("all_reduce", "reduce_scatter", "reduce")
        needed = least if ring and work.op.name in ("all_reduce", "all_gather", "all_to_all", "sendrecv") else least / 4
        if max(sent) >= needed * (1 - _LAG):
            return "NVLink counters agree", True
        return f"NVLink not proven: the counters show {max(sent)} of {round(needed)} bytes", False
    if max(sent) > least / 10:
        return f"but the NVLinks carried {max(sent)} bytes", False
    return "the NVLinks stood still", True


def _legs(topology: Topology, way: Way, work: Work, gpus: list[str]) -> list[Leg]:
    """Return what crosses each hop at least: the bus bytes, from every rank to the next."""
    pairs = list(zip(gpus, gpus[1:] + gpus[:1], strict=True))
    if way.transport in ("nvlink", "pcie"):
        return [Leg(source, target, moved=work.moved) for source, target in pairs]
    memory = next((node.id for node in topology.of("mem")), None)
    if memory is None or way.transport == "ib":
        return []
    found = [Leg(gpu, memory, moved=work.moved) for gpu in gpus] + [Leg(memory, gpu, moved=work.moved) for gpu in gpus]
    if way.transport == "socket":
        found.append(Leg("net:lo", memory, moved=work.moved * len(gpus)))
    return found


def _skew(timed: Timed) -> dict[str, Any]:
    """Return each rank's median and the rank that is slowest most often."""
    slowest = Counter(max(range(len(row)), key=row.__getitem__) for row in zip(*timed.seconds, strict=True))
    rank, times = slowest.most_common(1)[0]
    return {
        "rank_median_seconds": [median(row) / timed.ops for row in timed.seconds],
        "slowest_rank": rank,
        "slowest_share": times / slowest.total(),
    }


def _library(team: Team) -> dict[str, Any]:
    versions = {name: value for name, value in team.facts[0].items() if name not in ("gpu", "name")}
    return {"shape": "one process per GPU", "gpus": [fact["gpu"] for fact in team.facts], **versions}


def _tuning(log: transport.Log, work: Work) -> dict[str, Any]:
    """Return NCCL's own choice for this operation, and its switch points so far."""
    told = log.told.tuning
    chosen = told.get((work.op.name, work.nbytes), {})
    lines = [{"nbytes": nbytes, **one} for (op, nbytes), one in sorted(told.items()) if op == work.op.name]
    return {**chosen, "tuning": lines} if lines else {}
