"""Judges each record: is the rate physically possible, is the path proven, may a model rest on it.

The limit comes from the record's legs and the topology that the run's header holds (``bottleneck``). A record
without legs (an imported log, a published curve) is held against what its class of machine can do (``classes``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from iobench.check.bottleneck import Limit, find_limit
from iobench.check.classes import Machine, machine_of
from iobench.check.emulation import emulated, emulator_of
from iobench.errors import UserError
from iobench.record import Record, Run
from iobench.topology.graph import Topology
from iobench.units import format_rate

STATUSES = ("ok", "impossible", "suspect", "unproven", "emulated", "wrong", "failed", "skipped")
_USABLE = ("ok", "suspect", "unproven")


@dataclass(frozen=True)
class Verdict:
    """What a record is worth, in one word and one sentence.

    ``limit_bytes_per_s`` is the path's limit as a rate of the record (``moved`` per operation), ``fraction``
    the part of it that was reached; both None where no limit of the path is known. ``doubt`` is a sentence on a
    rate that is possible but odd, "" for all others.
    """

    status: str
    sentence: str
    limit_bytes_per_s: float | None = None
    limit_source: str = ""
    fraction: float | None = None
    doubt: str = ""

    @property
    def usable(self) -> bool:
        """Whether the time is a measurement at all: not impossible, emulated, wrong, failed or skipped."""
        return self.status in _USABLE


def judge(run: Run) -> dict[str, Verdict]:
    """Return the verdict on every record of ``run`` by its key.

    Impossible means that the *median* lies above the limit; the limit is an upper bound already (raw rate
    of the link), so no tolerance is added and a wide interval is no excuse. Order of precedence: wrong,
    failed, skipped, emulated, impossible, suspect, unproven, ok. Raises UserError where the header's topology is
    damaged. Judged once, kept with the run.
    """
    found: dict[str, Verdict] | None = run.derived.get("verdicts")
    if found is None or len(found) != len(run):
        topology = topology_of(run)
        machine, emulator = machine_of(run, topology), emulator_of(run)
        found = {record.key: verdict(record, topology, machine, emulator) for record in run}
        run.derived["verdicts"] = found
    return found


def topology_of(run: Run) -> Topology | None:
    """Return the graph in the run's header, None where it holds none; UserError where it is damaged."""
    data = run.header.topology
    if not data:
        return None
    try:
        graph = Topology.from_dict(data)
        _check_graph(graph)
    except ValueError as error:
        raise UserError(
            f"{run.path}: the topology in its header is unusable ({error}); run the probes again"
        ) from error
    return graph


def verdict(record: Record, topology: Topology | None, machine: Machine | None = None, emulator: str = "") -> Verdict:
    """Return the verdict on one record; ``machine`` gives the limit where the record names no legs.

    ``emulator`` executed the program where the machine was no real one.
    """
    if record.wrong_data:
        return Verdict(
            "wrong", f"wrong data: {record.reason or 'the bytes that arrived differ'}; its time is worthless"
        )
    state, first = record.status, record.first
    if state in ("failed", "skipped"):
        return Verdict(state, record.reason or f"{state} without a reason")
    no_performance = emulated(record, topology, emulator)
    if no_performance:
        return Verdict("emulated", no_performance)
    limit, missing = find_limit(first, topology) if first.legs else (None, [])
    if limit is None and machine is not None:
        limit = machine.limit(first)
    if limit is None:
        return _unlimited(*_status(record, state), tuple(missing))
    return _limited(record, state, limit)


def _limited(record: Record, state: str, limit: Limit) -> Verdict:
    """Return the verdict on a record whose way has a limit."""
    seconds = record.median
    rate = (record.moved or limit.nbytes) / limit.seconds
    fraction = limit.seconds / seconds
    if seconds < limit.seconds:
        return Verdict("impossible", _impossible(limit, seconds), rate, limit.source, fraction)
    status, sentence = _status(record, state)
    share = f"{_percent(fraction)} of {limit.where}'s limit {format_rate(limit.bytes_per_s)} ({limit.source})"
    doubt = _doubt(limit, seconds)
    return Verdict(status, _join(sentence, share, doubt), rate, limit.source, fraction, doubt)


@lru_cache(1000)
def _unlimited(status: str, sentence: str, missing: tuple[str, ...]) -> Verdict:
    """Return the verdict on a record whose way has no known limit: a million of them are one object."""
    lacks = f": the topology has no {', '.join(missing)}" if missing else ""
    return Verdict(status, _join(sentence, f"no limit of the path is known{lacks}"))


def _impossible(limit: Limit, seconds: float) -> str:
    return (
        f"record is suspect, measured {format_rate(limit.nbytes / seconds)} above {limit.where}'s limit "
        f"{format_rate(limit.bytes_per_s)} ({limit.source})"
    )


def _status(record: Record, state: str) -> tuple[str, str]:
    """Return status and the first part of the sentence of a possible record that has samples."""
    if state == "suspect":
        return "suspect", record.reason or "the machine was disturbed"
    if False in [line.proven for line in record.used]:
        return "unproven", f"path unproven: {record.first.path or 'nothing shows which way the bytes took'}"
    return "ok", ""


def _doubt(limit: Limit, seconds: float) -> str:
    measured = limit.nbytes / seconds
    if limit.doubtful_bytes_per_s is None or measured <= limit.doubtful_bytes_per_s:
        return ""
    return (
        f"doubtful: above {format_rate(limit.doubtful_bytes_per_s)}, all that packet headers leave of it; "
        "check the unit and what was counted"
    )


def _join(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _percent(fraction: float) -> str:
    if 0 < fraction < 1e-5:
        return "< 0.001 %"
    return f"{fraction * 100:.0f} %" if fraction >= 0.1 else f"{fraction * 100:.2g} %"


def _check_graph(graph: Topology) -> None:
    """Raise ValueError for what Topology.from_dict lets through and a path would trip over."""
    for link in graph.links:
        rate = link.bytes_per_s
        if not isinstance(link.a, str) or not isinstance(link.b, str):
            raise ValueError("a link whose ends are no names")
        if rate is not None and (isinstance(rate, bool) or not isinstance(rate, (int, float)) or not rate > 0):
            raise ValueError(f"link {link.a} - {link.b} has the limit {rate!r}")
    if not all(isinstance(node.attrs, dict) and isinstance(node.kind, str) for node in graph.nodes.values()):
        raise ValueError("a node whose attributes are no object")
