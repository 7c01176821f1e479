"""OSU micro-benchmarks (osu_allreduce, osu_latency, osu_bw ...): text of versions 2 to 7.

Facts of the tool: a collective's size is what each rank contributes (allgather, alltoall: to or from each peer,
reduce_scatter: the whole), its time the mean over ranks of each rank's mean; osu_latency is half a round trip;
MB/s is 1e6 bytes/s; osu_bibw adds both directions, osu_mbw_mr all pairs. The one-sided tests (MPI_Put, MPI_Get ...)
time the operation with its synchronisation: no partner answers, so nothing is halved.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

from iobench.importers.collective import Collector, Sweep, Value, rounds
from iobench.importers.imported import Imported, tell_apart
from iobench.importers.log import Log
from iobench.record import Line
from iobench.units import MB, US

TITLE = "OSU micro-benchmarks"
STATE = False

_TITLE = re.compile(r"#?\s*OSU (MPI|NCCL|XCCL|OpenSHMEM|UPC|UPC\+\+|RCCL)(-CUDA|-ROCM|-SYCL|-OPENACC)?%?(?:_(\w+))? +"
                    r"(.{1,90}?) +(?:Test +)?(?:v|\(?[Vv]ersion )?([\d.]+\w*)\)?\s*$")  # fmt: skip
_COLUMNS = re.compile(r"#?\s*Size\b.*(?:\(us\)|MB/s|Latency|Bandwidth)")
_BARRIER = re.compile(r"#?\s*Avg Latency ?\(us\)")
_BUFFERS = re.compile(r"Send Buffer on (\w+) .*Receive Buffer on (\w+)")
_DATATYPE = re.compile(r"Datatype: *(?:MPI_)?(\w+)")
_PAIRS = re.compile(r"pairs: *(\d{1,6})")
_WINDOW = re.compile(r"window size: *(\d{1,9})")
_PROCESSES = re.compile(r"(?:-np|--np|-n|--ntasks)[ =]+(\d{1,6})\b(?=.*\bosu_)|with (\d{1,6}) processes")
_ENDS = re.compile(r"\bosu_(?:latency|bw|bibw|multi_lat|mbw_mr)\b.*\s(D|H|M|MD|MH) (D|H|M|MD|MH)\s*$")
_PLACES = {"D": "gpu", "H": "host"}
_FIGURE = re.compile(r"\d{1,15}(?:\.\d*)?(?:e[+-]?\d{1,3})?$", re.I)
_SIZE = re.compile(r"\d{1,19}$")
_TAG = re.compile(r"^(?:\s*(?:\[\d+,\d+\]<std\w+>:|\d+: |>))+")
_EXPORT = re.compile(r"(?:\S{0,40}[$#%] +)?export +([A-Za-z_]\w{0,60})=(\S{0,200})$")
_MOST_SETTINGS = 100
_LONGEST = 1024

# the title's words -> canonical operation; a non-blocking collective is another thing (its overlap)
_COLLECTIVES = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reduce_scatter": "reduce_scatter", "reduce": "reduce",
    "broadcast": "broadcast", "bcast": "broadcast", "alltoall": "all_to_all", "all-to-all": "all_to_all",
    "gather": "gather", "scatter": "scatter",
}  # fmt: skip
_PART = ("all_gather", "all_to_all", "gather", "scatter")  # the printed size is one rank's part of nbytes
_DTYPES = {"CHAR": "int8", "FLOAT": "float32", "DOUBLE": "float64", "INT": "int32"}
_ENGINES = {"MPI": "mpi", "NCCL": "nccl", "XCCL": "xccl", "RCCL": "rccl"}


@dataclass
class _Test:
    """One benchmark's output: what its title and remarks say."""

    number: int
    library: str
    name: str
    version: str
    accelerator: str = ""
    one_sided: str = ""  # put, get, accumulate ...: of MPI_Put and its like, which no partner answers
    columns: list[str] = field(default_factory=list)
    buffers: tuple[str, str] = ("", "")
    asked: tuple[str, ...] = ("", "")
    command: int = 0
    dtype: str = ""
    pairs: int = 0
    window: int = 0
    ranks: int | None = None
    rows: int = 0
    last: int = 0  # size of the row before

    @property
    def op(self) -> str:
        words = self.name.lower().removesuffix(" test").removesuffix(" latency").replace("personalized exchange", "")
        return _COLLECTIVES.get(words.strip().replace(" ", "_"), "")

    @property
    def kind(self) -> str:
        name = self.name.lower()
        for word, kind in (("multiple bandwidth", "mbw_mr"), ("multi-pair bandwidth", "mbw_mr"),
                           ("bi-directional", "bibw"), ("bidirectional", "bibw"),
                           ("bandwidth", "bw"), ("multi", ""), ("overlap", "")):  # fmt: skip
            if word in name:
                return kind
        return "latency" if name.removesuffix(" test") == "latency" else ""


def recognise(head: str) -> float:
    """Score by the tests' titles."""
    if "OSU " not in head:
        return 0.0
    return 0.95 if any(_TITLE.search(line) for line in head.splitlines() if "OSU " in line[:200]) else 0.0


def read(log: Log) -> Imported:
    """Read every test in the log."""
    return _Reading(log).read()


class _Reading:
    def __init__(self, log: Log) -> None:
        self.log, self.imported = log, Imported()
        self.collector = Collector(("line", "figures of the row as printed"))
        self.test: _Test | None = None
        self.ranks: int | None = None
        self.ends: tuple[str, ...] = ("", "")
        self.commands: dict[str, int] = {}  # the command lines, numbered: other options are another measurement
        self.command = 0
        self.settings: dict[str, str] = {}  # exported before a command line: they are a part of it
        self.count = 0
        self.other: list[Line] = []

    def read(self) -> Imported:
        for number, line in enumerate(self.log.lines, start=1):
            if len(line) <= _LONGEST:
                self._line(number, _TAG.sub("", line).strip())
        self._end()
        tell_apart(self.other, lambda line: {"command": line.evidence.get("command") or None})
        self.imported.lines = [*self.collector.finish(), *self.other]
        return self.imported

    def _line(self, number: int, line: str) -> None:
        title = _TITLE.search(line) if "OSU " in line else None
        exported = _EXPORT.match(line)
        if title:
            self._begin(title)
        elif exported and len(self.settings) < _MOST_SETTINGS:
            self.settings[exported[1]] = exported[2]
        elif self.test is None:
            self._command(line)
        elif not self._remark(line):
            self._row(number, line)

    def _begin(self, title: re.Match[str]) -> None:
        self._end()
        self.count += 1
        accelerator = (title[2] or "").strip("-").lower()
        self.test = _Test(self.count, title[1], title[4].strip(), title[5], accelerator, (title[3] or "").lower())
        self.test.ranks, self.ranks = self.ranks, None
        self.test.asked, self.ends = self.ends, ("", "")
        self.test.command, self.command = self.command, 0
        self.imported.machine.setdefault("packages", {})["osu-micro-benchmarks"] = self.test.version

    def _end(self) -> None:
        if self.test and any(word in self.test.name for word in ("Barrier", "Hello", "Init")):
            self.imported.problem(f"{self.test.name} has no sizes: it is not imported")
            self.imported.next_step = "import a test that moves bytes, such as osu_latency or osu_allreduce"
        elif self.test and not self.test.rows and not self.imported.incomplete:
            self.imported.incomplete = f"{self.test.name} ended before its first row"

    def _command(self, line: str) -> None:
        match = _PROCESSES.search(line)
        if match:
            self.ranks = int(match[1] or match[2])
        ends = _ENDS.search(line)
        if ends or "osu_" in line:
            self.ends = ends.groups() if ends else ("", "")
            words = line[max(line.find("mpirun"), line.find("mpiexec"), line.find("srun"), 0) :]
            key = " ".join([words, *(f"{name}={value}" for name, value in sorted(self.settings.items()))])
            self.command = self.commands.setdefault(key, len(self.commands) + 1)

    def _remark(self, line: str) -> bool:
        """Take a line of the test's head; tell whether it was one."""
        test = self.test
        if test is None:
            return False
        if _COLUMNS.match(line) or _BARRIER.match(line):
            test.columns = re.split(r"\s{2,}|\t+", line.lstrip("# "))
        elif match := _BUFFERS.search(line):
            test.buffers = (match[1].lower(), match[2].lower())
        elif match := _DATATYPE.search(line):
            test.dtype = _DTYPES.get(match[1].upper(), match[1].lower())
        elif match := _PAIRS.search(line):
            test.pairs = int(match[1])
            window = _WINDOW.search(line)
            test.window = int(window[1]) if window else 0
        elif "validation" in line.lower() and "fail" in line.lower():
            self.imported.problem(f"{test.name} says: {line[:120]}")
        elif "osu_" in line and (_PROCESSES.search(line) or _ENDS.search(line)):
            self._command(line)
        else:
            return line.startswith("#")
        return True

    def _row(self, number: int, line: str) -> None:
        test, words = self.test, line.replace(",", " ").split()
        if test is None or not words or not _SIZE.match(words[0]):
            return
        figures = words[1:]
        if not figures and test.last and int(words[0]) > test.last and int(words[0]).bit_count() == 1:
            self.imported.skip(number, line, "the row ends before its figures")
        status = figures.pop().lower() if figures and figures[-1].lower() in ("pass", "fail") else ""
        if not figures or not all(_FIGURE.match(word) for word in figures):
            if len(figures) < 6 and any(_FIGURE.match(word) for word in figures):
                self.imported.skip(number, line, "a row with something that is no figure")
            return
        if not test.columns:
            self.imported.skip(number, line, "a row before the columns' names")
            return
        test.rows, test.last = test.rows + 1, int(words[0])
        value = float(figures[0])
        if not (math.isfinite(value) and value > 0):
            self.imported.skip(number, line, "a time or rate that is 0 or no number")
            return
        self._take(test, number, int(words[0]), value, " ".join(words[1:]), status)

    def _take(self, test: _Test, number: int, size: int, figure: float, printed: str, status: str) -> None:
        verified = {"pass": True, "fail": False}.get(status)
        if test.op and rounds(test.op) is not None:
            self._collective(test, number, size, figure, printed, verified)
        elif test.kind:
            self._pair(test, number, size, figure, printed, verified)
        else:
            self.imported.skip(number, printed, f"rows of {test.name} ({test.library}) are not known to iobench")
            return
        self.imported.rows += 1

    def _collective(
        self, test: _Test, number: int, size: int, figure: float, printed: str, verified: bool | None
    ) -> None:
        """Take a collective's mean time; sizes become those of the whole buffer (nbytes of algbw)."""
        imported, ranks = self.imported, test.ranks
        if test.op in _PART and ranks is None:
            imported.problem(
                f"{test.name}: the size is one rank's part and no line names the ranks: the size is kept as printed, "
                "no rate is formed; import the log together with its mpirun line"
            )
        if test.op in _PART and ranks:
            imported.normalise(f"{test.name}: sizes of one rank's part are multiplied by the {ranks} ranks")
        nbytes = size * ranks if test.op in _PART and ranks else size
        point: dict[str, Any] = {
            "op": test.op,
            "engine": _ENGINES.get(test.library, test.library.lower()),
            "ranks": ranks,
        }
        point |= {"dtype": test.dtype, "memory": _memory(test)}
        point = {name: item for name, item in point.items() if item}
        evidence = {"version": test.version, "columns of the log": test.columns}
        aggregate = "mean of the test's iterations, mean over ranks"
        sweep = Sweep(test.number, test.op, point, "blocking", aggregate, {"command": test.command or None}, evidence)
        reason = f"the test found wrong data (line {number})" if verified is False else ""
        self.collector.add(
            sweep, self.collector.identify(sweep), Value(number, nbytes, figure * US, printed, verified, reason)
        )

    def _pair(self, test: _Test, number: int, size: int, figure: float, printed: str, verified: bool | None) -> None:
        """Take a point-to-point row: a latency, or a rate from which the time of one message follows."""
        if size == 0 and test.kind != "latency":
            return
        directions = 2 if test.kind == "bibw" else 1
        pairs = max(test.pairs, 1) if test.kind == "mbw_mr" else 1
        latency = test.kind == "latency"
        moved = 0 if latency else size * directions * pairs
        seconds = figure * US if latency else moved / (figure * MB)
        op = test.one_sided or "sendrecv"
        whole = "one operation with its synchronisation" if test.one_sided else "half a round trip"
        point: dict[str, Any] = {"op": op, "engine": _ENGINES.get(test.library, "mpi"), "ranks": 2 * pairs}
        point |= {"test": "latency" if latency else "bandwidth", "direction": "both" if directions == 2 else "one"}
        point |= {"memory": _memory(test), "window": test.window or None, "nbytes": size}
        rule = "nbytes" if directions * pairs == 1 else f"nbytes * {directions * pairs} (directions * pairs)"
        line = Line(
            probe="allreduce",
            source="",
            point={name: item for name, item in point.items() if item not in (None, "")},
            quantity="latency" if latency else "bandwidth",
            mode="blocking" if latency else "pipelined",
            nbytes=size,
            moved=moved,
            moved_rule=f"{whole}; no rate is formed" if latency else rule,
            seconds=[[seconds]],
            verified=verified,
            evidence={"test": test.name, "command": test.command, "version": test.version,
                      "columns": ["line", "figures"],
                      "rows": [[number, printed]]},
            aggregate="mean of the test's iterations" + (f", {whole}" if latency else " of a window"),
        )  # fmt: skip
        if verified is False:
            line.status, line.reason = "failed", f"the test found wrong data (line {number})"
        if test.kind == "bibw":
            self.imported.normalise("osu_bibw counts both directions: so do the bytes moved here")
        if test.kind == "mbw_mr":
            self.imported.normalise(f"osu_mbw_mr adds {pairs} pairs: so do the bytes moved here")
        if latency and not test.one_sided:
            self.imported.normalise("osu_latency is half a round trip")
        self.other.append(line)


def _memory(test: _Test) -> str:
    """Return where the buffers lie, as far as the log says."""
    if test.buffers[0]:
        kinds = {"device": "gpu", "host": "host", "managed": "managed"}
        ends = [kinds.get(end, end) for end in test.buffers]
        return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"
    if test.asked[0]:  # from version 7 on only the command line says so
        ends = [_PLACES.get(end, "managed") for end in test.asked]
        return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"
    return ""
