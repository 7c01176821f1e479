"""Turns runs of nccl-tests into lines, with the sentences on what was wrong with them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from iobench.importers import collective
from iobench.importers.collective import DTYPES, Collector, Sweep, Value
from iobench.importers.imported import Imported
from iobench.importers.ncclblock import Table
from iobench.importers.ncclrepeat import Batch, Repeat, join, settle
from iobench.importers.ncclrun import (
    PLACES,
    NcclRun,
    aggregate_of,
    alone,
    contradicted,
    forcing,
    is_wrong,
    mode_of,
    name_of,
    planned,
    ranks_asked,
    ratio_of,
    shape_of,
    signature,
    structure,
    text_of,
    verified,
)
from iobench.importers.nccltable import Row, Side, busbw_agrees, seconds_of

_NO_RANKS = -1.0  # as busbw / algbw: no row agrees with it


class Reading:
    """Turns runs into lines, with the sentences on what was wrong with them."""

    def __init__(self, imported: Imported, engine: str) -> None:
        self.imported, self._engine = imported, engine
        self.collector = Collector(("line", "time, algbw, busbw, #wrong as printed"))
        self.rank_zeros = 0
        self.single = 0
        self.runs = 0
        self.missing: list[str] = []
        self.repeats: dict[tuple[Any, ...], Repeat] = {}
        self.tables: dict[tuple[str, ...], Table] = {}  # by their first row's first words
        self.batch = Batch()
        self.owners: dict[Any, Repeat] = {}  # of points

    def take(self, run: NcclRun) -> None:
        """Add everything a finished run holds; one like a run before may wait for others to be looked at with it."""
        if run.raw:
            run.unfold()
        like = signature(run) if run.plain and not run.rows else None
        known = self.repeats.get(like) if like is not None else None
        if like is not None and known and known.ready(self.collector) and self.batch.add(run, like, known):
            if self.batch.full:
                self.catch_up()
            return
        self.catch_up()
        self._slowly(run, like)

    def catch_up(self) -> None:
        """Take the runs that wait, so that what is said next stands behind what they say."""
        found = self.batch.sound()
        self.batch.clear()
        for waiting, seconds in found:
            run, known = waiting.run, self.repeats[waiting.like]
            if seconds is None or known.identities != waiting.known.identities:
                self._slowly(run, waiting.like)
                continue
            alone = self._alone(waiting.known)
            if not alone:
                self._settle()
            join(waiting, seconds)
            if not alone:
                settle(waiting.known)
            self.imported.rows += run.plain
            self.runs, self.rank_zeros = self.runs + 1, self.rank_zeros + max(run.separate, 1)

    def _alone(self, known: Repeat) -> bool:
        """Tell whether no other kind of run has figures of the same points: then theirs may come later, together."""
        if known.alone[0] is not self.owners:
            known.alone = (self.owners, all(self.owners.setdefault(turn, known) is known for turn in known.turns))
        return known.alone[1]

    def _settle(self) -> None:
        """Give the points all that is held for them."""
        for known in dict.fromkeys(self.owners.values()):
            settle(known)

    def problem(self, sentence: str) -> None:
        """Note what is wrong with the log, after what the runs before had to say."""
        self.catch_up()
        self.imported.problem(sentence)

    def use(self, engine: str) -> None:
        """Name the engine of the runs that follow."""
        self.catch_up()
        self._engine = engine

    def _slowly(self, run: NcclRun, like: tuple[Any, ...] | None) -> None:
        self._settle()
        self.owners = {}
        run.expand()
        before = (len(self.imported.unread), len(self.missing))
        self.rank_zeros += max(run.separate, 1 if run.rows else 0)
        if not run.begun:
            return
        self._facts(run)
        if not run.rows:
            self.missing.append(f"{name_of(run)} ended before its first row")
            return
        self.runs += 1
        ranks, op, ratio = self._ranks(run)
        self._completeness(run, op)
        self.single += ranks == 1
        sweeps = self._rows(run, ranks, op, ratio)
        if like is not None and ranks and ranks > 1 and (len(self.imported.unread), len(self.missing)) == before:
            known = self.repeats[like] = Repeat(run, like[0], sweeps, collective.factor(op, ranks))
            if known.starts:
                self.tables[known.table.key] = known.table

    def finish(self) -> None:
        """Say what only all runs together show."""
        self.catch_up()
        self._settle()
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
        if run.elided:
            self.missing.append(f"{name}: rows were left out of the log (...)")
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
        parts, unchecked = structure(run)
        if alone(run):
            return 1, run.op, None
        op = self._op(run, parts, unchecked)
        ranks = (0 if run.cut_devices else listed) or run.told.ranks or (parts if parts > 1 else 0) or ranks_asked(run)
        ranks = ranks or listed or None
        shown = ratio_of(run, (parts - 1) / parts if parts > 1 else 0.0) if op and collective.rounds(op) else None
        return self._by_figures(run, ranks, op, *shown) if shown else (ranks, op, None)

    def _by_figures(
        self, run: NcclRun, ranks: int | None, op: str, ratio: float, doubt: float
    ) -> tuple[int | None, str, float | None]:
        """Check the ranks with busbw / algbw, or find them by it."""
        least, largest = collective.ranks_from(op, ratio, doubt)
        if ranks and (least <= ranks <= largest or least > largest):
            return ranks, op, None
        if least > largest:
            return None, op, _NO_RANKS
        if least < largest:
            return None, op, ratio
        if ranks:
            self.imported.problem(f"{name_of(run)}: the log names {ranks} ranks, its figures are those of {least}")
        return least, op, None

    def _op(self, run: NcclRun, parts: int, unchecked: bool) -> str:
        """Return the operation that the log names, or the one its rows show."""
        if run.op and (not parts or collective.fits(run.op, parts)):
            return run.op
        row = next((row for row in run.rows if row.items), None)
        op = collective.guess_op(row.redop, row.root, parts, unchecked) if row else ""
        if op and collective.rounds(op) == 0 and contradicted(run):
            op = ""
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
        unnamed = "FAILED" in run.bounds and not any(is_wrong(run, row, side) for row in run.rows for side in row.sides)
        for row in run.rows:
            if row.problem:
                imported.skip(row.number, text_of(row), row.problem)
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
        bus = 0.0 if ranks == 1 else collective.factor(op, ranks) if ranks and op else ratio
        if not why and bus is not None and side.busbw and not busbw_agrees(side, row.nbytes, seconds, bus):
            what = f"{op} between {ranks} ranks" if ranks else "any number of ranks, as the other rows show it"
            why = f"busbw {side.busbw} is not that of {what}"
        if why:
            self.imported.skip(row.number, text_of(row), f"{PLACES[side.inplace]}: {why}")
            return None
        if said:
            self.imported.normalise(said)
        good, reason = verified(run, row, side)
        if ranks == 1 and good is not False:
            reason = "one rank: nothing crossed a link, busbw is 0 by definition"
        return Value(row.number, row.nbytes, seconds, side.printed, good, reason, skipped=ranks == 1)

    def _sweep(self, run: NcclRun, row: Row, side: Side, ranks: int | None, op: str, ratio: float | None) -> Sweep:
        told, nodes = run.told, len(run.hosts) if run.listed and run.separate == 1 else 0
        point: dict[str, Any] = {
            "op": "" if op == collective.UNSURE else op,
            "transport": told.transport,
            "engine": self._engine,
            "ranks": ranks,
        }
        point |= {"nodes": nodes or None, "dtype": DTYPES[row.dtype][0]}
        point["inplace"] = side.inplace if len(row.sides) > 1 or side.inplace else None
        for axis, name in (("algo", "NCCL_ALGO"), ("proto", "NCCL_PROTO")):
            forced = told.settings.get(name, "").lower()
            point[axis] = forced if forced.isalnum() else None
        point = {name: value for name, value in point.items() if value not in (None, "")}
        shape = shape_of(run, ranks)
        facts = {"redop": row.redop if row.redop != "none" else "", "root": row.root if row.root >= 0 else None}
        facts |= {"shape": shape, "settings": " ".join(f"{k}={v}" for k, v in sorted(forcing(told).items()))}
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
            mode=mode_of(run),
            aggregate=aggregate_of(run),
            facts={name: value for name, value in facts.items() if value not in (None, "")},
            evidence={name: value for name, value in evidence.items() if value not in (None, "", {})},
            path=told.path,
            proven=bool(told.transport),
            tuning=told.tuning,
            ratio=ratio,
        )
