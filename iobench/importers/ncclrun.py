"""One run of nccl-tests in a log: its banner, devices, rows and summary, and the lines they give."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from iobench.errors import UserError
from iobench.importers import collective
from iobench.importers.collective import DTYPES
from iobench.importers.ncclblock import Block, heads_of
from iobench.importers.nccltable import (
    OLD_DEFINITION,
    Layout,
    Row,
    Side,
    half_unit,
    number,
    parse,
    seconds_of,
)
from iobench.nccl.log import Told
from iobench.units import GB, parse_size

_OPTION = re.compile(r"(?:^|\s)-(t|g|G|n|w|m|z|a|c)\s+(\d{1,12})(?=\s|$)")
_SWEEP = re.compile(r"(?:^|\s)-([bef])\s+([0-9.]{1,12}[KMGT]?)(?=\s|$)")
_NP = re.compile(r"(?:-np|--np|-n|--ntasks)[ =]+(\d{1,6})\b")
# what the old "error" column allows by type, where the summary says FAILED (nccl-tests before 2.12)
_TOLERATED = {"float16": 1e-2, "bfloat16": 6e-2, "float32": 1e-5, "float64": 1e-12}
_MOST_STEPS = 1_000_000
_LEAST_ALGBW = 0.1
_SAME = 1e-3  # busbw and algbw are rounded after each other
_UNCHECKED = ("N/A", "n/a")
PLACES = ("out of place", "in place")


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
    block: Block | None = None  # those before them that were read at once
    layout: Layout | None = None  # that of the plain rows
    told: Told = field(default_factory=Told)
    header: bool = False
    bounds: str = ""
    concluded: bool = False
    jobs: int = 0
    elided: bool = False  # "..." stands for rows

    @property
    def begun(self) -> bool:
        return bool(self.rows or self.plain or self.header or self.banner)

    @property
    def plain(self) -> int:
        """How many rows were not looked at yet."""
        return len(self.raw) + (len(self.block.numbers) if self.block else 0)

    def add(self, row: Row) -> None:
        """Add a row that is not plain, after the plain ones before it."""
        self.expand()
        self.rows.append(row)

    def expand(self) -> None:
        """Look at the plain rows."""
        self.unfold()
        parsed = (parse(number, tokens, 2, self.layout) for number, tokens in self.raw)
        self.rows += [row for row in parsed if row]
        self.raw = []

    def unfold(self) -> None:
        """Make single rows of a block."""
        if self.block:
            self.raw, self.block = self.block.rows + self.raw, None

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
    for name, value in _SWEEP.findall(after) if perf else ():
        with suppress(UserError):
            found[name] = parse_size(value)
    processes = _NP.search(before) if perf else None
    return {**found, "np": int(processes[1])} if processes else found


def planned(run: NcclRun) -> int:
    """Return how many sizes the banner announces; 0 where it does not say."""
    asked = [run.option(short, name, -1) for short, name in (("b", "min"), ("e", "max"), ("f", "step"))]
    least, most, step = asked
    if min(asked) < 0:
        return 0
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


def name_of(run: NcclRun) -> str:
    return run.program or (f"{run.op}_perf" if run.op else "the run")


def ratio_of(run: NcclRun, share: float) -> tuple[float, float] | None:
    """Return busbw / algbw of the fastest row that agrees with itself, and how far rounding may put it off."""
    best, found = 0.0, None
    for row in run.rows:
        for side in row.sides:
            busbw, algbw = number(side.busbw), number(side.algbw)
            if not (busbw > best and algbw >= _LEAST_ALGBW and row.nbytes > 0):
                continue
            seconds, said, why = seconds_of(row.nbytes, side, share)
            if why:
                continue
            doubt = half_unit(side.busbw) / busbw
            if OLD_DEFINITION in said:  # that algbw is busbw: the ranks are in busbw / (nbytes / time) only
                algbw, doubt = row.nbytes / seconds / GB, doubt + half_unit(side.time) / number(side.time)
            else:
                doubt += half_unit(side.algbw) / algbw
            best, found = busbw, (busbw / algbw, doubt * busbw / algbw)
    return found


def ranks_asked(run: NcclRun) -> int | None:
    """Return the ranks that the command line asks for: processes * threads * GPUs."""
    threads, gpus = run.option("t", "threads", 1), run.option("g", "gpus", 1)
    processes = run.options.get("np")
    if processes:
        return processes * threads * gpus
    return threads * gpus if {"t", "g"} & set(run.options) and threads * gpus > 1 else None


def shape_of(run: NcclRun, ranks: int | None) -> str:
    threads, gpus = run.option("t", "threads", 0), run.option("g", "gpus", 0)
    if not threads and not gpus:
        return ""
    each = max(threads, 1) * max(gpus, 1)
    processes = ranks // each if ranks and ranks % each == 0 else 0
    counts = ((processes, "process", "processes"), (threads or 1, "thread", "threads"), (gpus or 1, "GPU", "GPUs"))
    return " x ".join(f"{count} {one if count == 1 else many}" for count, one, many in counts if count)


def mode_of(run: NcclRun) -> str:
    if run.option("G", "graph", 0):
        return "graph"
    if run.blocking or run.options.get("z"):
        return "blocking"
    return "pipelined" if run.banner or run.header or run.options or run.versions else ""


def aggregate_of(run: NcclRun) -> str:
    iterations, each = run.option("n", "iters", 0), run.option("m", "agg", 1)
    graphs = run.option("G", "graph", 0)
    text = f"mean of {iterations} iterations" if iterations else "mean of the test's iterations"
    text += f" of {each} operations" if each > 1 else ""
    text += f", {graphs} launches of their CUDA graph" if graphs else ""
    over = {0: "of rank 0", 1: "mean over ranks", 2: "least of the ranks", 3: "most of the ranks"}
    return f"{text}, {over.get(run.options.get('a', 1), 'mean over ranks')}"


def forcing(told: Told) -> dict[str, str]:
    """Return the settings that decide which way the bytes take."""
    words = ("DISABLE", "ALGO", "PROTO", "NVLS", "CHANNELS", "IFNAME", "HCA", "GDR", "LEVEL", "CROSS")
    return {name: value for name, value in told.settings.items() if any(word in name for word in words)}


def verified(run: NcclRun, row: Row, side: Side) -> tuple[bool | None, str]:
    """Return whether the test found the data right (None: not checked) and the reason where it did not."""
    if side.wrong == "0" and run.banner.get("validation", 1):
        return True, ""
    if is_wrong(run, row, side):
        what = "error" if side.old_error else "#wrong"
        return False, f"the test found wrong data ({what} {side.wrong}, {PLACES[side.inplace]}, line {row.number})"
    checked = run.banner.get("validation", run.options.get("c", 1)) > 0
    return (True, "") if checked and side.wrong and number(side.wrong) >= 0 else (None, "")


def is_wrong(run: NcclRun, row: Row, side: Side) -> bool:
    if side.wrong in ("0", "0e+00"):
        return False
    if side.wrong.endswith("*"):
        return True
    value = number(side.wrong)
    if not side.old_error:
        return bool(side.wrong) and side.wrong.upper() != "N/A" and value != 0
    tolerated = _TOLERATED.get(DTYPES[row.dtype][0], 0.0)
    return "FAILED" in run.bounds and not value <= tolerated and side.wrong.upper() != "N/A"


def text_of(row: Row) -> str:
    """Return a row as it was printed, as far as it is kept."""
    figures = " ".join(side.printed for side in row.sides)
    return row.text or f"{row.nbytes} {row.items} {row.dtype} {row.redop} {figures}"


def alone(run: NcclRun) -> bool:
    """Tell whether the figures are those of one rank: busbw is 0 by definition, whatever algbw is."""
    sides = [side for row in run.rows for side in row.sides]
    return any(number(side.algbw) >= 0.1 for side in sides) and all(number(side.busbw) == 0 for side in sides)


def structure(run: NcclRun) -> tuple[int, bool]:
    """Return into how many parts the rows cut their buffers, and whether only in place went unchecked."""
    parts = 0
    for row in run.rows:
        parts = parts or collective.parts_of(row.items, row.nbytes // DTYPES[row.dtype][1])
    checked = {(side.inplace, side.wrong not in _UNCHECKED) for row in run.rows for side in row.sides}
    return parts, (True, False) in checked and (False, True) in checked and (True, True) not in checked


def contradicted(run: NcclRun) -> bool:
    """Tell whether a row's busbw is not its algbw, as it is for what has no bus factor (broadcast, sendrecv ...)."""
    for row in run.rows:
        for side in row.sides:
            apart = abs(number(side.busbw) - number(side.algbw))
            if side.busbw and apart > half_unit(side.busbw) + half_unit(side.algbw) + _SAME * max(
                number(side.algbw), 0.0
            ):
                return True
    return False


def signature(run: NcclRun) -> tuple[Any, ...] | None:
    """Return all of a run but its figures, so that a run like one before is known; None for one that is not sound."""
    if "FAILED" in run.bounds or not run.bounds or run.separate > 1 or run.elided:
        return None
    lead = run.layout.lead if run.layout else 0
    heads = run.block.table.heads if run.block else heads_of([words for _, words in run.raw], lead)
    told = run.told
    said = (told.version, told.library, told.ranks, told.network, told.roce, repr(told.tuning) if told.tuning else "")
    facts = (run.op, run.program, run.step_is_factor, run.blocking, run.bounds, run.layout, run.header, said)
    counts = (run.banner, run.options, run.versions, told.channels, told.gpu_paths, told.settings)
    return (heads, *facts, tuple(run.devices), *(tuple(some.items()) for some in counts))
