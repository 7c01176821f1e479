"""Reads the text that nccl-tests and its relatives print: streams by tag, runs in a stream, lines of NCCL between."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice

from iobench.importers.collective import OPS
from iobench.importers.imported import Imported
from iobench.importers.log import Log
from iobench.importers.ncclreading import Reading
from iobench.importers.ncclrun import NcclRun, options_of
from iobench.importers.nccltable import Layout, Row, find, layout, parse, whole
from iobench.importers.nccltags import one_tag, tag_of
from iobench.nccl.log import Told, channel_of

_BANNER = re.compile(r"nThreads?:? +(\d+) +nGpus:? +(\d+) +minBytes:? +(\d+) +maxBytes:? +(\d+)(.*)")
_STEP = re.compile(r"step: *(\d+) *\((factor|bytes)\)")
_COUNTS = (
    ("warmup", re.compile(r"warmup iters: *(\d+)")), ("iters", re.compile(r"(?<!warmup )(?<!agg )iters: *(\d+)")),
    ("agg", re.compile(r"agg iters: *(\d+)")), ("validation", re.compile(r"validation: *(\d+)")),
    ("graph", re.compile(r"graph: *(\d+)")),
)  # fmt: skip
_DEVICE = re.compile(
    r"Rank +(\d+)(?: +Group +(\d+))? +Pid +\d+ +on +(\S*) +device +(\d+) +\[([^\]]{0,40})\] *(.{0,80})"
)
_VERSION = re.compile(
    r"((?:n|r)ccl-tests) version ([\w.-]{1,40})(?: +\(\w{1,40}\))?(?: +nccl-headers=(\d+) +nccl-library=(\d+))?"
)
_RCCL_VERSION = re.compile(r"rccl-tests: Version ([\w.:-]{1,60})")
_STARTING = re.compile(r"Collective test starting: *(\w{1,60})")
_PROGRAM = re.compile(r"\b(\w{3,40}?)_perf(?:_mpi)?\b")
_BOUNDS = re.compile(r"Out of bounds values *: *(.{0,40})")
_REDUCED = re.compile(r"[Rr]educing maxBytes to (\d+)")
_FAILURE = re.compile(r"Test (?:NCCL |CUDA |MPI )?failure\b.{0,120}|NCCL failure .{0,120}|Test timeout.{0,80}")
_GLUED = re.compile(r"^(.*?)((?:[A-Za-z][\w.-]*):\d+:\d+ \[\d+\] N?R?CCL (?:INFO|WARN).*)$")
_SETTING = re.compile(r"(?:^|\s)((?:NCCL|RCCL)_[A-Z0-9_]{1,60})=([^\s\"'`]{1,100})")  # of a command line
_FOREIGN = re.compile(r"(?:^|[\s>:])\d{1,19}[ \t]+\d{1,19}(?:[ \t]+\d{1,12}(?:\.\d{1,6})?){3,10}[ \t]*$")
_FIGURE = re.compile(r"[0-9]{1,19}(?:\.[0-9]{1,9})?(?:e[+-][0-9]{1,3})?|N/A")
_ELIDED = " \t.()[]<>#"
_LONGEST, _MOST_WORDS, _MOST_STREAMS = 4096, 16, 10_000

# any of these makes a line worth more than a look
_WORDS = (
    "nThread", "Rank", "algbw", "(B)", "version", "Version", "starting:", "concluded:", "Out of bounds", "_perf",
    "###", "Blocking Enabled", "maxBytes to", "ailure", "timeout", "us error", "...", " type ",
)  # fmt: skip
_MOST_INERT, _SHORT, _MOST_WARNINGS = 1000, 200, 3


class Stream:
    """The lines of one tag: the run that goes on in it, and a row whose figures did not come yet."""

    def __init__(self) -> None:
        self.run: NcclRun | None = None
        self.layout: Layout | None = None
        self.pending: tuple[int, list[str]] | None = None


class Text:
    """Reads a log's lines once, from the first to the last."""

    def __init__(self, log: Log, engine: str) -> None:
        self.imported = Imported()
        self.reading = Reading(self.imported, engine)
        self.streams: dict[str, Stream] = {}
        self.told = Told()
        self.options: dict[str, int] = {}
        self.settings: dict[str, str] = {}
        self.warned = 0
        self.channels: dict[str, str] = {}  # lines that tell a channel's medium and nothing else
        self.inert: set[str] = set()  # lines that say nothing, whenever they come again
        self.op = self.program = ""
        self.count = 0
        self.log, self.before, self.lines = log, 0, list[str]()  # those looked at now, and how many came before

    def read(self) -> Imported:
        """Return what the log holds."""
        for before, lines in self.log.pieces():
            self.before, self.lines = before, lines
            self._piece(enumerate(lines, start=before + 1))
        self._finish()
        return self.imported

    def _piece(self, numbered: Iterator[tuple[int, str]]) -> None:
        plain = self._stream("")
        inert, channels = self.inert, self.channels
        for number, line in numbered:
            if line in inert and not plain.pending:
                continue
            if line in channels:
                self.told.channels[channels[line]] += 1
                continue
            if line[:1] == "[" or "]<std" in line:
                line = one_tag(line)
            tokens = line.split() if len(line) < _LONGEST else []
            if (
                len(tokens) > 7
                and tokens[2] in _FAST
                and tokens[0].isdigit()
                and tokens[1].isdigit()
                and tokens[5] != "NCCL"  # nothing of NCCL's own lines got into the row
                and tokens[6] != "NCCL"
                and tokens[7] != "NCCL"
            ):
                run = plain.run
                known = plain.layout
                if run and known and len(tokens) == known.width and not (run.rows or run.bounds or plain.pending):
                    run.layout = known
                    if run.plain or not self._block(run, number, tokens):
                        run.raw.append((number, tokens))
                    elif run.block:
                        rest = len(run.block.numbers) - 1
                        next(islice(numbered, rest, rest), None)
                else:
                    self._row("", number, tokens, 2)
            else:
                self._other(number, line, tokens)

    def _finish(self) -> None:
        for stream in self.streams.values():
            self._unfinished(stream)
            if stream.run:
                self.reading.take(stream.run)
        self.reading.finish()
        if not self.imported.rows and not self.imported.unread:
            self._foreign()

    def _block(self, run: NcclRun, number: int, tokens: list[str]) -> bool:
        """Read all rows at once where they are those of a table before, but for their figures."""
        table = self.reading.tables.get(tuple(tokens[: run.layout.lead if run.layout else 0]))
        if table and table.width == len(tokens):
            run.block = table.block(number, self.lines, self.before, _LONGEST)
        return run.block is not None

    def _foreign(self) -> None:
        """Show rows that have another table's columns: those of a relative that prints no element type."""
        for number, line in enumerate(self.log.lines, start=1):
            if len(line) < _LONGEST and _FOREIGN.search(line):
                self.imported.skip(number, line, "a row without an element type: these are not nccl-tests' columns")
                if len(self.imported.unread) >= _MOST_WARNINGS:
                    return

    def _other(self, number: int, line: str, tokens: list[str]) -> None:
        if "..." in line and not line.strip(_ELIDED):
            self._left_out()
            return
        if "NCCL INFO" in line or "NCCL WARN" in line:
            self._info(number, line)
            return
        if (line[:1] == "#" or any(word in line for word in _WORDS)) and self._comment(line):
            return
        if self.told.add(line):
            return
        at = find(tokens)
        if at >= 0:
            self._row(tag_of(" ".join(tokens[: at - 2])), number, tokens, at)
        else:
            self._continue(tokens)
            if len(self.inert) < _MOST_INERT and len(line) < _SHORT and "_perf" not in line and line[:3] != "###":
                self.inert.add(line)

    def _left_out(self) -> None:
        """Note that rows were left out, where there are some before."""
        run = self.streams[""].run
        if run and (run.rows or run.plain) and not run.bounds:
            run.elided = True

    def _info(self, number: int, line: str) -> None:
        glued = _GLUED.match(line) if line[:1] in " 0123456789" else None
        if glued and glued[1].strip():
            tokens = glued[1].split()
            at = find(tokens)
            if at >= 0:
                self._row(tag_of(" ".join(tokens[: at - 2])), number, tokens, at)
            else:
                self._continue(tokens)
        elif "NCCL WARN" in line and self.warned < _MOST_WARNINGS:
            self.warned += 1
            self.reading.problem(f"NCCL warns (line {number}): {line.partition('NCCL WARN')[2].strip()[:160]}")
        self.told.add(line)
        medium = channel_of(line) if not glued and "NCCL WARN" not in line and len(line) < _SHORT else ""
        if medium in self.told.channels and len(self.channels) < _MOST_INERT:
            self.channels[line] = medium

    def _stream(self, tag: str) -> Stream:
        stream = self.streams.get(tag)
        if stream is None:
            if len(self.streams) >= _MOST_STREAMS:
                tag = ""
            stream = self.streams.setdefault(tag, Stream())
        return stream

    def _begin(self, tag: str) -> NcclRun:
        """End what went on in the stream and begin a new run."""
        stream = self._stream(tag)
        self._unfinished(stream)
        if stream.run:
            self.reading.take(stream.run)
        self.count += 1
        self.told = Told(version=self.told.version, library=self.told.library)
        run = NcclRun(self.count, self.op, self.program, options=self.options, told=self.told)
        stream.run, stream.layout = run, None
        self.told.settings.update(self.settings)
        self.options, self.op, self.program, self.settings = {}, "", "", {}
        return run

    def _run(self, tag: str) -> NcclRun:
        stream = self._stream(tag)
        return stream.run or self._begin(tag)

    def _fresh(self, tag: str) -> NcclRun:
        """Return the stream's run where it has not got beyond its first lines, else a new one."""
        run = self._stream(tag).run
        return run if run and not run.begun and not run.devices else self._begin(tag)

    def _row(self, tag: str, number: int, tokens: list[str], at: int) -> None:
        stream = self._stream(tag)
        run = stream.run or self._begin(tag)
        if run.bounds and run.separate < 2:  # the summary came before: a table without a banner
            run = self._begin(tag)
        row = parse(number, tokens, at, stream.layout)
        if row is None:
            self._unfinished(stream)
            stream.pending = (number, tokens[at - 2 :])
        else:
            run.add(row)

    def _continue(self, tokens: list[str]) -> None:
        """Take the figures of a row that NCCL's lines cut in pieces."""
        stream = self.streams.get("")
        if not (stream and stream.pending and stream.run and tokens):
            return
        started, head = stream.pending
        row = parse(started, head + tokens, 2, stream.layout)
        if row and not row.problem:
            stream.pending = None
            stream.run.add(row)
        elif row and len(head) < _MOST_WORDS and all(_FIGURE.fullmatch(word) for word in tokens):
            stream.pending = (started, head + tokens)

    def _unfinished(self, stream: Stream) -> None:
        if stream.pending and stream.run:
            number, tokens = stream.pending
            stream.run.add(_cut(number, tokens))
            stream.pending = None

    def _comment(self, line: str) -> bool:
        found = _taker_of(line)
        if found:
            take, tag, match = found
            take(self, tag, match, line)
            return True
        known = layout(line) if "type" in line else None
        if known:
            tag = tag_of(line[: max(line.lower().find("size"), 0)])
            run = self._run(tag)
            if run.bounds:
                run = self._begin(tag)
            run.header, self._stream(tag).layout = True, known
            return True
        self._command(line)
        return False

    def _command(self, line: str) -> None:
        """Keep the operation and the options that a command line or a title names, for the run that follows."""
        name = _program_of(line) if "_perf" in line else ""
        if name.lower() in OPS:
            self.op, self.program = OPS[name.lower()], f"{name}_perf"
            self.settings = dict(_settings_of(line))
        if name or line.startswith("###"):
            found = options_of(line)
            if found or line.startswith("###"):
                self.options = found
        if line.startswith("###") and "" in self.streams and self.streams[""].run and self.streams[""].run.begun:
            self._begin("")

    def _banner(self, tag: str, match: re.Match[str], _line: str) -> None:
        run = self._fresh(tag) if not self._twice(tag) else self._run(tag)
        banner, factor = _announced(match[0])
        run.banner = dict(banner)
        run.step_is_factor = run.step_is_factor if factor is None else factor

    def _twice(self, tag: str) -> bool:
        """Tell whether the same banner came a moment ago: several processes that each think they are the first."""
        run = self._stream(tag).run
        return bool(run and run.banner and not run.devices and not run.header and not run.rows and not run.plain)

    def _device(self, tag: str, match: re.Match[str], _line: str) -> None:
        run = self._run(tag)
        run.devices.append((int(match[1][:9]), int((match[2] or "0")[:9]), match[3], match[6].strip()))
        run.cut_devices = run.cut_devices or match[6].strip().endswith("...")

    def _version(self, tag: str, match: re.Match[str], _line: str) -> None:
        run = self._fresh(tag)
        run.versions[match[1]] = match[2]
        for name, code in (("nccl headers", match[3]), ("nccl library", match[4])):
            if code:
                run.versions[name] = version_text(int(code[:9]))

    def _rccl_version(self, tag: str, match: re.Match[str], _line: str) -> None:
        self._run(tag).versions["rccl-tests"] = match[1]
        self.reading.use("rccl")

    def _starting(self, tag: str, match: re.Match[str], _line: str) -> None:
        run = self._stream(tag).run
        run = run if run and not run.begun and not run.devices else self._begin(tag)
        name = match[1].lower().removesuffix("_mpi").removesuffix("_perf")
        run.op, run.program = OPS.get(name, run.op), match[1]

    def _out_of_bounds(self, tag: str, match: re.Match[str], _line: str) -> None:
        self._unfinished(self._stream(tag))
        self._run(tag).bounds = match[1].strip() or "?"

    def _blocking(self, tag: str, _match: re.Match[str], _line: str) -> None:
        self._run(tag).blocking = True

    def _reduced(self, tag: str, match: re.Match[str], _line: str) -> None:
        run = self._run(tag)
        run.banner["max"] = int(match[1][:19])
        self.reading.problem(f"the largest size was reduced to {match[1][:19]} bytes: the memory did not suffice")

    def _failure(self, tag: str, match: re.Match[str], _line: str) -> None:
        self.reading.problem(f"the test failed: {match[0].strip()}")
        run = self._stream(tag).run
        if run:
            run.concluded = False

    def _bus_error(self, _tag: str, match: re.Match[str], _line: str) -> None:
        self.reading.problem(f"a process ended with a {match[0]}: /dev/shm is full or too small for so many ranks")


_FAST = frozenset(("float", "half", "bfloat16", "double", "int8", "uint8", "int32", "uint32", "int64", "uint64"))
_TAKERS = (
    ("minBytes", _BANNER, Text._banner),
    ("Rank", _DEVICE, Text._device),
    ("ccl-tests version", _VERSION, Text._version),
    ("rccl-tests:", _RCCL_VERSION, Text._rccl_version),
    ("starting:", _STARTING, Text._starting),
    ("Out of bounds", _BOUNDS, Text._out_of_bounds),
    ("Blocking Enabled", re.compile("Blocking Enabled"), Text._blocking),
    ("maxBytes to", _REDUCED, Text._reduced),
    ("ailure", _FAILURE, Text._failure),
    ("timeout", _FAILURE, Text._failure),
    ("us error", re.compile("[Bb]us error"), Text._bus_error),
)


@lru_cache(maxsize=512)  # every run of a long log has the same lines again
def _taker_of(line: str) -> tuple[Callable[[Text, str, re.Match[str], str], None], str, re.Match[str]] | None:
    """Return what takes such a line, the line's tag, and what was found in it."""
    for word, pattern, take in _TAKERS:
        match = pattern.search(line) if word in line else None
        if match:
            return take, tag_of(line[: match.start()]), match
    return None


@lru_cache(maxsize=64)
def _program_of(line: str) -> str:
    match = _PROGRAM.search(line)
    return match[1] if match else ""


@lru_cache(maxsize=64)
def _settings_of(line: str) -> dict[str, str]:
    told = dict.fromkeys(_SETTING.findall(line))
    twice = Counter(name for name, _ in told)  # prose that compares two values sets neither
    return {name: value for name, value in told if twice[name] == 1}


@lru_cache(maxsize=64)
def _announced(text: str) -> tuple[dict[str, int], bool | None]:
    """Return a banner's figures, and whether its step is a factor (None where it has none)."""
    match = _BANNER.search(text)
    assert match
    banner = {name: int(match[i + 1][:19]) for i, name in enumerate(("threads", "gpus", "min", "max"))}
    step = _STEP.search(match[5])
    if step:
        banner["step"] = int(step[1][:19])
    for name, pattern in _COUNTS:
        found = pattern.search(match[5])
        if found:
            banner[name] = int(found[1][:12])
    return banner, step[2] == "factor" if step else None


def _cut(number: int, tokens: list[str]) -> Row:
    return Row(
        number, max(whole(tokens[0]), 0), 0, tokens[2], "", -1, (), " ".join(tokens), "the row ends before its figures"
    )


def version_text(code: int) -> str:
    """Return NCCL's version of its number: 22803 is 2.28.3, 2708 (before 2.9) 2.7.8."""
    base = 10_000 if code >= 10_000 else 1_000
    return f"{code // base}.{code % base // 100}.{code % 100}"
