"""One run of nccl-tests in a log: its banner, devices, rows and summary, and the lines they give."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from iobench.importers import collective
from iobench.importers.collective import DTYPES, Collector, Sweep, Value
from iobench.importers.imported import Imported
from iobench.importers.nccltable import Layout, Row, Side, busbw_agrees, half_unit, number, parse, seconds_of
from iobench.nccl.log import Told
from iobench.units import GB, US

_OPTION = re.compile(r"(?:^|\s)-(t|g|G|n|w|m|z|a|c|b|e|f)\s+(\d{1,12})(?=\s|$)")
_NP = re.compile(r"(?:-np|--np|-n|--ntasks)[ =]+(\d{1,6})\b")
# what the old "error" column allows by type, where the summary says FAILED (nccl-tests before 2.12)
_TOLERATED = {"float16": 1e-2, "bfloat16": 6e-2, "float32": 1e-5, "float64": 1e-12}
_MOST_STEPS = 1_000_000
_UNCHECKED = ("N/A", "n/a")
_PLACES = ("out of place", "in place")


@dataclass
class NcclRun:
    """What one start of a test said, gathered line by line."""

    number: int
    op: str = ""
    program: str = ""
    banner: dict[str, int] = field(default_factory=dict)
    step_is_factor: bool = True
    options: dict[str, int] = field(default_factory=dict)
    devices: list[tuple[int, int, str, str]] = field(default_factory=list)  # rank, group, host, name
    cut_devices: bool = False
    blocking: bool = False
    versions: dict[str, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    raw: list[tuple[int, list[str]]] = field(default_factory=list)  # plain rows, not looked at yet
    layout: Layout | None = None  # that of the plain rows
    told: Told = field(default_factory=Told)
    header: bool = False
    bounds: str = ""
    concluded: bool = False
    jobs: int = 0

    @property
    def begun(self) -> bool:
        return bool(self.rows or self.raw or self.header or self.banner)

    def add(self, row: Row) -> None:
        """Add a row that is not plain, after the plain ones before it."""
        self.expand()
        self.rows.append(row)

    def expand(self) -> None:
        """Look at the plain rows."""
        parsed = (parse(number, tokens, 2, self.layout) for number, tokens in self.raw)
        self.rows += [row for row in parsed if row]
        self.raw = []

    @property
    def listed(self) -> bool:
        """Tell whether every rank has its device line: only then do they show how many hosts there are."""
        ranks = {rank for rank, _, _, _ in self.devices}
        return bool(ranks) and not self.cut_devices and len(ranks) == max(ranks) + 1

    @property
    def separate(self) -> int:
        """Return how many processes called themselves rank 0."""
        return sum(rank == 0 for rank, _, _, _ in self.devices)

    @property
    def hosts(self) -> list[str]:
        return list(dict.fromkeys(host for _, _, host, _ in self.devices))

    def option(self, name: str, banner: str, default: int) -> int:
        return self.banner.get(banner, self.options.get(name, default))


def options_of(text: str) -> dict[str, int]:
    """Return the test's options in a command line, and the processes that a launcher was asked for as "np"."""
    before, perf, after = text.rpartition("_perf")
    found = {name: int(value) for name, value in _OPTION.findall(after if perf else text)}
    processes = _NP.search(before) if perf else None
    return {**found, "np": int(processes[1])} if processes else found


def planned(run: NcclRun) -> int:
    """Return how many sizes the banner announces; 0 where it does not say."""
    if not {"min", "max", "step"} <= set(run.banner):
        return 0
    least, most, step = run.banner["min"], run.banner["max"], run.banner["step"]
    if least > most or least < 0:
        return 0
    if not run.step_is_factor:
        return (most - least) // step + 1 if step > 0 else 1
    count, size = 0, least
    while size <= most and count < _MOST_STEPS:
        count, size = count + 1, size * step
        if step < 2 or size == 0:
            break
    return count


class Repeat:
    """A sound run whose like comes again: only the figures are looked at, where its points have all their launches."""

    def __init__(
        self, run: NcclRun, sweeps: Mapping[tuple[str, str, int, bool], tuple[Sweep, int]], bus: float
    ) -> None:
        self.bus = bus
        layout = run.layout
        self.starts: list[tuple[int, bool]] = []
        if layout and layout.side == ("time", "algbw", "busbw", "wrong") and not layout.stamped:
            first = 3 + layout.redop + layout.root
            self.starts = [(first + 4 * number, number == 1) for number in range(layout.sides)]
        self.identities = [
            [sweeps[(row.dtype, row.redop, row.root, inplace)][1] for _, inplace in self.starts]
            if row.nbytes and (row.dtype, row.redop, row.root, False) in sweeps
            else []
            for row in run.rows
        ]
        if not all(self.identities):
            self.starts = []

    def take(self, run: NcclRun, collector: Collector) -> bool:
        """Add the figures of a run like this one; False (and nothing done) where one of them is not usual."""
        if not self.starts:
            return False
        found = []
        try:
            for (number, tokens), identities in zip(run.raw, self.identities, strict=True):
                nbytes = int(tokens[0])
                for (at, _), identity in zip(self.starts, identities, strict=True):
                    seconds = float(tokens[at]) * US
                    if not self._usual(nbytes, seconds, tokens[at + 1], tokens[at + 2], tokens[at + 3]):
                        return False
                    found.append((collector.full(identity, nbytes), seconds, number, tokens, at))
        except ValueError:
            return False
        if not all(point for point, *_ in found):
            return False
        for point, seconds, number, tokens, at in found:
            if point:
                point.take(run.number, seconds, f"line {number}: {' '.join(tokens[at : at + 4])}")
        return True

    def _usual(self, nbytes: int, seconds: float, algbw: str, busbw: str, wrong: str) -> bool:
        if wrong != "0" or not 0 < seconds < math.inf:
            return False
        wanted = nbytes / seconds / GB
        rounding = 0.00501 if algbw[-3:-2] == "." == busbw[-3:-2] else 0.0  # of two decimals
        if abs(float(algbw) - wanted) > max(0.005 * wanted, rounding):
            return False
        wanted *= self.bus
        return abs(float(busbw) - wanted) <= max(0.005 * wanted, rounding)


class Reading:
    """Turns runs into lines, with the sentences on what was wrong with them."""

    def __init__(self, imported: Imported, engine: str) -> None:
        self.imported, self.engine = imported, engine
        self.collector = Collector(("line", "time, algbw, busbw, #wrong as printed"))
        self.rank_zeros = 0
        self.single = 0
        self.runs = 0
        self.missing: list[str] = []
        self.repeats: dict[tuple[Any, ...], Repeat] = {}

    def take(self, run: NcclRun) -> None:
        """Add everything a finished run holds."""
        like = _signature(run) if run.raw and not run.rows else None
        if like is not None and like in self.repeats and self.repeats[like].take(run, self.collector):
            self.imported.rows += len(run.raw)
            self.runs, self.rank_zeros = self.runs + 1, self.rank_zeros + max(run.separate, 1)
            return
        run.expand()
        before = (len(self.imported.unread), len(self.missing))
        self.rank_zeros += max(run.separate, 1 if run.rows else 0)
        if not run.begun:
            return
        self._facts(run)
        if not run.rows:
            self.missing.append(f"{_name(run)} ended before its first row")
            return
        self.runs += 1
        ranks, op, ratio = self._ranks(run)
        self._completeness(run, op)
        self.single += ranks == 1
        sweeps = self._rows(run, ranks, op, ratio)
        if like is not None and ranks and ranks > 1 and (len(self.imported.unread), len(self.missing)) == before:
            self.repeats[like] = Repeat(run, sweeps, collective.factor(op, ranks))

    def finish(self) -> None:
        """Say what only all runs together show."""
        imported = self.imported
        if self.single and self.single == self.runs and self.rank_zeros > 1:
            imported.problem(
                f"{self.rank_zeros} separate 1-process jobs, not one job of {self.rank_zeros} ranks: the test was "
                "built without MPI or started by another MPI's launcher; nothing crossed a link"
            )
        imported.lines = self.collector.finish()
        imported.incomplete = "; ".join(dict.fromkeys(self.missing))[:2000]

    def _facts(self, run: NcclRun) -> None:
        imported = self.imported
        imported.hosts += [host for host in run.hosts if host not in imported.hosts]
        names = Counter(name for _, _, _, name in run.devices if name)
        if names and "name" not in imported.machine:
            where = f" on {len(run.hosts)} nodes" if len(run.hosts) > 1 else ""
            counted = ", ".join(f"{count} x {name}" for name, count in names.items())
            imported.machine["name"] = counted + where if run.listed else ", ".join(names)
            imported.machine["gpus"] = dict(names) if run.listed else list(names)
        versions = {**({run.told.library: run.told.version} if run.told.version else {}), **run.versions}
        if versions:
            imported.machine.setdefault("packages", {}).update(versions)
        headers, library = run.versions.get("nccl headers"), run.versions.get("nccl library")
        if headers and library and headers != library:
            imported.problem(f"the test was built with the headers of NCCL {headers} and ran with NCCL {library}")
        imported.environment.update(run.told.settings)
        told = run.told.facts()
        if told:
            imported.machine["nccl"] = told

    def _completeness(self, run: NcclRun, op: str) -> None:
        imported, steps = self.imported, planned(run)
        name = run.program or (f"{op}_perf" if op and op != collective.UNSURE else "the run")
        groups = Counter((row.dtype, row.redop, row.root) for row in run.rows)
        for (dtype, redop, _), count in groups.items() if steps else ():
            lacking = -count % steps
            if lacking:
                detail = f" ({dtype}{', ' + redop if redop not in ('', 'none') else ''})" if len(groups) > 1 else ""
                self.missing.append(f"{name}{detail}: {lacking} of {steps} planned sizes are missing")
        failed = "FAILED" in run.bounds
        if failed:
            imported.problem(f"{name} says FAILED: Out of bounds values : {run.bounds}")
        if (run.banner or run.header) and not run.bounds:
            self.missing.append(f"{name} ends early: its summary (Out of bounds values) is missing")
        if not run.banner and not run.header:
            imported.normalise("a table without header: whether rows are missing can't be told")

    def _ranks(self, run: NcclRun) -> tuple[int | None, str, float | None]:
        """Return ranks, operation, and busbw / algbw as printed where the ranks are unknown."""
        groups = Counter(group for _, group, _, _ in run.devices)
        listed = max((rank for rank, _, _, _ in run.devices), default=-1) + 1
        if len(groups) > 1:
            listed = groups[min(groups)]
            self.imported.problem(f"{len(groups)} groups of ranks ran at the same time, one of them is shown")
        parts, unchecked = _structure(run)
        op = self._op(run, parts, unchecked)
        ranks = (0 if run.cut_devices else listed) or run.told.ranks or (parts if parts > 1 else 0) or _asked(run)
        ranks = ranks or listed or None
        sides = [side for row in run.rows for side in row.sides]
        best = max(sides, key=lambda side: (_finite(side.busbw), _finite(side.algbw)), default=None)
        algbw, busbw = (number(best.algbw), number(best.busbw)) if best else (0.0, 0.0)
        if not op or not collective.rounds(op) or best is None or not algbw >= 0.1:
            return ranks, op, None
        if busbw == 0:
            return 1, op, None
        return self._by_figures(run, ranks, op, busbw / algbw, _doubt(best))

    def _by_figures(
        self, run: NcclRun, ranks: int | None, op: str, ratio: float, doubt: float
    ) -> tuple[int | None, str, float | None]:
        """Check the ranks with busbw / algbw, or find them by it."""
        shown = collective.ranks_from(op, ratio, doubt)
        if ranks and (abs(collective.factor(op, ranks) - ratio) <= doubt or shown in (None, ranks)):
            return ranks, op, None
        if shown and ranks:
            self.imported.problem(f"{_name(run)}: the log names {ranks} ranks, its figures are those of {shown}")
        return shown, op, None if shown else ratio

    def _op(self, run: NcclRun, parts: int, unchecked: bool) -> str:
        """Return the operation that the log names, or the one its rows show."""
        if run.op and (not parts or collective.fits(run.op, parts)):
            return run.op
        row = next((row for row in run.rows if row.items), None)
        op = collective.guess_op(row.redop, row.root, parts, unchecked) if row else ""
        if run.op:
            self.imported.problem(
                f"the line that names {run.program} does not belong to these rows: their counts differ"
            )
        elif op and op != collective.UNSURE:
            self.imported.normalise(f"no line names the operation: the rows' columns are those of {op}")
        if op in ("", collective.UNSURE):
            self.imported.problem(
                f"no line names the operation{', the rows may be those of ' + op[1:-1] if op else ''}: "
                "import the log together with its command line"
            )
        return op

    def _rows(
        self, run: NcclRun, ranks: int | None, op: str, ratio: float | None
    ) -> dict[tuple[str, str, int, bool], tuple[Sweep, int]]:
        imported = self.imported
        sweeps: dict[tuple[str, str, int, bool], tuple[Sweep, int]] = {}
        unnamed = "FAILED" in run.bounds and not any(_wrong(run, row, side) for row in run.rows for side in row.sides)
        for row in run.rows:
            if row.problem:
                imported.skip(row.number, row.text, row.problem)
                continue
            imported.rows += 1
            if row.nbytes == 0:
                imported.normalise("rows of size 0 (rounded down by the test) move nothing and are left out")
                continue
            for side in row.sides:
                value = self._value(run, row, side, ranks, op, ratio)
                if value is None:
                    continue
                if unnamed and not value.reason:
                    value.reason = "the summary says FAILED, no row says where"
                key = (row.dtype, row.redop, row.root, side.inplace)
                if key not in sweeps:
                    sweep = self._sweep(run, row, side, ranks, op, ratio)
                    sweeps[key] = (sweep, self.collector.identify(sweep))
                self.collector.add(*sweeps[key], value)
        return sweeps

    def _value(
        self, run: NcclRun, row: Row, side: Side, ranks: int | None, op: str, ratio: float | None
    ) -> Value | None:
        """Return one placement's figure; None (and a row that could not be read) where it can't be used."""
        share = (ranks - 1) / ranks if ranks and ranks > 1 and collective.rounds(op) == 1 else 0.0
        seconds, said, why = seconds_of(row.nbytes, side, share)
        bus = collective.factor(op, ranks) if ranks and op else ratio
        if not why and bus is not None and side.busbw and not busbw_agrees(side, row.nbytes, seconds, bus):
            what = f"{op} between {ranks} ranks" if ranks else "any number of ranks, as the other rows show it"
            why = f"busbw {side.busbw} is not that of {what}"
        if why:
            self.imported.skip(row.number, row.text, f"{_PLACES[side.inplace]}: {why}")
            return None
        if said:
            self.imported.normalise(said)
        verified, reason = _verified(run, row, side)
        if ranks == 1 and verified is not False:
            reason = "one rank: nothing crossed a link, busbw is 0 by definition"
        return Value(row.number, row.nbytes, seconds, side.printed, verified, reason, skipped=ranks == 1)

    def _sweep(self, run: NcclRun, row: Row, side: Side, ranks: int | None, op: str, ratio: float | None) -> Sweep:
        told, nodes = run.told, len(run.hosts) if run.listed and run.separate == 1 else 0
        point: dict[str, Any] = {
            "op": "" if op == collective.UNSURE else op,
            "transport": told.transport,
            "engine": self.engine,
            "ranks": ranks,
        }
        point |= {"nodes": nodes or None, "dtype": DTYPES[row.dtype][0]}
        point["inplace"] = side.inplace if len(row.sides) > 1 or side.inplace else None
        for axis, name in (("algo", "NCCL_ALGO"), ("proto", "NCCL_PROTO")):
            forced = told.settings.get(name, "").lower()
            point[axis] = forced if forced.isalnum() else None
        point = {name: value for name, value in point.items() if value not in (None, "")}
        shape = _shape(run, ranks)
        facts = {"redop": row.redop if row.redop != "none" else "", "root": row.root if row.root >= 0 else None}
        facts |= {"shape": shape, "settings": " ".join(f"{k}={v}" for k, v in sorted(_forcing(told).items()))}
        evidence: dict[str, Any] = {"program": run.program, "shape": shape, "redop": row.redop}
        evidence |= {
            "versions": run.versions,
            "warm-up iterations": run.banner.get("warmup"),
            "busbw / algbw as printed": ratio,
        }
        return Sweep(
            run=run.number,
            op=op,
            point=point,
            mode=_mode(run),
            aggregate=_aggregate(run),
            facts={name: value for name, value in facts.items() if value not in (None, "")},
            evidence={name: value for name, value in evidence.items() if value not in (None, "", {})},
            path=told.path,
            proven=bool(told.transport),
            tuning=told.tuning,
            ratio=ratio,
        )


def _name(run: NcclRun) -> str:
    return run.program or (f"{run.op}_perf" if run.op else "the run")


def _doubt(side: Side) -> float:
    """Return how far busbw / algbw may be off because both are rounded."""
    algbw, busbw = number(side.algbw), number(side.busbw)
    return (half_unit(side.busbw) / busbw + half_unit(side.algbw) / algbw) * busbw / algbw


def _asked(run: NcclRun) -> int | None:
    """Return the ranks that the command line asks for: processes * threads * GPUs."""
    threads, gpus = run.option("t", "threads", 1), run.option("g", "gpus", 1)
    processes = run.options.get("np")
    if processes:
        return processes * threads * gpus
    return threads * gpus if {"t", "g"} & set(run.options) and threads * gpus > 1 else None


def _shape(run: NcclRun, ranks: int | None) -> str:
    threads, gpus = run.option("t", "threads", 0), run.option("g", "gpus", 0)
    if not threads and not gpus:
        return ""
    each = max(threads, 1) * max(gpus, 1)
    processes = ranks // each if ranks and ranks % each == 0 else 0
    counts = ((processes, "process", "processes"), (threads or 1, "thread", "threads"), (gpus or 1, "GPU", "GPUs"))
    return " x ".join(f"{count} {one if count == 1 else many}" for count, one, many in counts if count)


def _mode(run: NcclRun) -> str:
    if run.option("G", "graph", 0):
        return "graph"
    if run.blocking or run.options.get("z"):
        return "blocking"
    return "pipelined" if run.banner or run.header or run.options or run.versions else ""


def _aggregate(run: NcclRun) -> str:
    iterations, each = run.option("n", "iters", 0), run.option("m", "agg", 1)
    graphs = run.option("G", "graph", 0)
    text = f"mean of {iterations} iterations" if iterations else "mean of the test's iterations"
    text += f" of {each} operations" if each > 1 else ""
    text += f", {graphs} launches of their CUDA graph" if graphs else ""
    over = {0: "of rank 0", 1: "mean over ranks", 2: "least of the ranks", 3: "most of the ranks"}
    return f"{text}, {over.get(run.options.get('a', 1), 'mean over ranks')}"


def _forcing(told: Told) -> dict[str, str]:
    """Return the settings that decide which way the bytes take."""
    words = ("DISABLE", "ALGO", "PROTO", "NVLS", "CHANNELS", "IFNAME", "HCA", "GDR", "LEVEL", "CROSS")
    return {name: value for name, value in told.settings.items() if any(word in name for word in words)}


def _verified(run: NcclRun, row: Row, side: Side) -> tuple[bool | None, str]:
    """Return whether the test found the data right (None: not checked) and the reason where it did not."""
    if side.wrong == "0" and run.banner.get("validation", 1):
        return True, ""
    if _wrong(run, row, side):
        what = "error" if side.old_error else "#wrong"
        return False, f"the test found wrong data ({what} {side.wrong}, {_PLACES[side.inplace]}, line {row.number})"
    checked = run.banner.get("validation", run.options.get("c", 1)) > 0
    return (True, "") if checked and side.wrong and number(side.wrong) >= 0 else (None, "")


def _wrong(run: NcclRun, row: Row, side: Side) -> bool:
    if side.wrong in ("0", "0e+00"):
        return False
    if side.wrong.endswith("*"):
        return True
    value = number(side.wrong)
    if not side.old_error:
        return bool(side.wrong) and side.wrong.upper() != "N/A" and value != 0
    tolerated = _TOLERATED.get(DTYPES[row.dtype][0], 0.0)
    return "FAILED" in run.bounds and not value <= tolerated and side.wrong.upper() != "N/A"


def _finite(text: str) -> float:
    value = number(text)
    return value if math.isfinite(value) else 0.0


def _structure(run: NcclRun) -> tuple[int, bool]:
    """Return into how many parts the rows cut their buffers, and whether only in place went unchecked."""
    parts = 0
    for row in run.rows:
        parts = parts or collective.parts_of(row.items, row.nbytes // DTYPES[row.dtype][1])
    checked = {(side.inplace, side.wrong not in _UNCHECKED) for row in run.rows for side in row.sides}
    return parts, (True, False) in checked and (False, True) in checked and (True, True) not in checked


def _signature(run: NcclRun) -> tuple[Any, ...] | None:
    """Return all of a run but its figures, so that a run like one before is known; None for one that is not sound."""
    if "FAILED" in run.bounds or not run.bounds or run.separate > 1:
        return None
    heads = tuple(tuple(tokens[:5]) for _, tokens in run.raw)
    facts = (run.op, run.program, run.step_is_factor, run.blocking, run.bounds, run.layout, run.header, repr(run.told))
    lists = (run.banner.items(), run.options.items(), run.versions.items(), run.devices)
    return (heads, *facts, *map(tuple, lists))
