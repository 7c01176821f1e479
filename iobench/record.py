"""The file format: JSON Lines, one header, then one line per point and launch, flushed at once.

Nothing derived is stored. Rates, medians and verdicts are computed when the file is read. Lines of
one point from several process launches are merged on reading into one Record.

Schema history
1  first version
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iobench.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import pandas

    from iobench.stats import Interval, Tails

SCHEMA = 1
FILE_NAME = "records.jsonl"
STATUSES = ("ok", "suspect", "skipped", "failed")
_MEASURED = ("ok", "suspect")
_LEAST_CLEAN = 2
_MANY_BLOCKS = 1_000_000
_SORTED = json.JSONEncoder(sort_keys=True, separators=(",", ":"))  # json.dumps would make a new one each time
_quoted = lru_cache(10_000)(json.encoder.encode_basestring_ascii)
QUANTITIES = ("bandwidth", "latency")


@dataclass(slots=True)
class Leg:
    """One stretch of the way the bytes took, between two nodes of the topology graph.

    ``count`` is how many such ways ran in parallel (threads, links); ``moved`` the bytes per operation
    that crossed it in one direction, all of ``Line.moved`` where None. ``bytes_per_s`` is a limit of one such way
    as the device showed it under load (a PCIe link that had trained down, a MIG slice's part of the memory): it counts
    where it is below the graph's.
    """

    src: str
    dst: str
    count: int = 1
    moved: int | None = None
    bytes_per_s: float | None = None


@dataclass(slots=True)
class Line:
    """One point in one launch, as it stands in the file.

    ``seconds`` is raw: [rank][iteration], each the duration of ``ops`` operations. ``nbytes`` is the
    size asked for, ``moved`` the bytes really moved by one operation by the rule ``moved_rule``.
    ``aggregate`` is "" for raw samples; else it says what each value in ``seconds`` is already ("mean of 20
    iterations, mean over ranks"): no interval can be known from one of them, and no tail from any number.
    """

    probe: str
    source: str
    point: dict[str, Any]
    launch: int = 0
    status: str = "ok"
    reason: str = ""
    quantity: str = "bandwidth"
    mode: str = ""
    nbytes: int = 0
    moved: int = 0
    moved_rule: str = ""
    ops: int = 1
    seconds: list[list[float]] = field(default_factory=list)
    warmup: list[list[float]] = field(default_factory=list)
    stop: str = ""
    verified: bool | None = None
    path: str = ""
    proven: bool = False
    evidence: dict[str, Any] = field(default_factory=dict)
    legs: list[Leg] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)
    started: str = ""
    elapsed: float = 0.0
    aggregate: str = ""

    @property
    def key(self) -> str:
        """The point's identity, the same in every launch and every run."""
        return point_key(self.probe, self.point)

    def to_json(self) -> str:
        """Return the line as JSON without NaN or infinity, and without the newline."""
        return dumps({"type": "point", **asdict(self)})


@dataclass
class Header:
    """The first line of a file: what was asked, of which machine, with which version."""

    run_id: str
    created: str
    version: str
    machine: dict[str, Any]
    topology: dict[str, Any]
    request: dict[str, Any]
    probes: dict[str, dict[str, Any]] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    schema: int = SCHEMA

    @property
    def machine_name(self) -> str:
        return str(self.machine.get("name", "unknown-machine"))

    def to_json(self) -> str:
        return dumps({"type": "run", **asdict(self)})


@dataclass
class Record:
    """One point with all its launches merged."""

    probe: str
    point: dict[str, Any]
    lines: list[Line]

    @cached_property
    def key(self) -> str:
        return point_key(self.probe, self.point)

    @property
    def used(self) -> list[Line]:
        """The launches that count: the undisturbed ones where there are two at least, else all with samples.

        One undisturbed launch beside disturbed ones can't show how launches differ; the record is suspect then.
        """
        if len(self.lines) == 1 and self.lines[0].seconds and self.lines[0].status == "ok":
            return self.lines
        measured = [line for line in self.lines if line.seconds and line.status in _MEASURED]
        if len(measured) < _LEAST_CLEAN:
            return measured
        clean = [line for line in measured if line.status == "ok"]
        return clean if len(clean) >= _LEAST_CLEAN else measured

    @property
    def first(self) -> Line:
        """The line whose constant facts (nbytes, moved, mode, legs) stand for the record."""
        return self.lines[0] if len(self.lines) == 1 else (self.used or self.lines)[0]

    @property
    def status(self) -> str:
        """Failed if any launch had wrong data or none gave samples; else that of the launches that count."""
        if self.wrong_data:
            return "failed"
        used = self.used
        if used:
            return "suspect" if "suspect" in [line.status for line in used] else "ok"
        return "skipped" if all(line.status == "skipped" for line in self.lines) else "failed"

    @property
    def reason(self) -> str:
        """The reasons of the launches that made the status; those that differ only in figures count once."""
        wanted = self.status
        reasons = [line.reason for line in self.lines if line.status == wanted and line.reason]
        return "; ".join({re.sub(r"[0-9.]+", "0", reason): reason for reason in reversed(reasons)}.values())

    @property
    def wrong_data(self) -> bool:
        return False in [line.verified for line in self.lines]

    @property
    def mode(self) -> str:
        return self.first.mode

    @property
    def quantity(self) -> str:
        return self.first.quantity

    @property
    def nbytes(self) -> int:
        return self.first.nbytes

    @property
    def moved(self) -> int:
        return self.first.moved

    @cached_property
    def groups(self) -> list[np.ndarray]:
        """Seconds per operation, one array per launch: the maximum over ranks per iteration."""
        import numpy as np

        return [np.max(np.asarray(line.seconds, dtype=float), axis=0) / line.ops for line in self.used]

    @property
    def rows(self) -> list[Sequence[float]]:
        """``groups`` as plain numbers: of a million records an array for each would take longer than all else."""
        return [
            _slowest(line.seconds) if line.ops == 1 else [seconds / line.ops for seconds in _slowest(line.seconds)]
            for line in self.used
        ]

    @property
    def aggregate(self) -> str:
        """What each value is where it is no raw sample ("mean of 20 iterations"); "" for raw samples."""
        said = [line.aggregate for line in self.used if line.aggregate]
        return said[0] if said else ""

    @cached_property
    def time(self) -> Interval:
        """Median seconds per operation with its interval; ValueError when nothing was measured.

        A single aggregate hides how its samples spread: its interval is not ``known``.
        """
        from iobench.stats import median_interval

        interval = median_interval(self.groups)
        return replace(interval, known=False) if self.aggregate and interval.n == 1 else interval

    @cached_property
    def tails(self) -> Tails:
        """The tail quantiles of the raw samples; all None where the values are aggregates."""
        from iobench.stats import Tails, tails

        if self.aggregate:
            return Tails(None, None, None, None, sum(len(group) for group in self.groups))
        return tails(self.groups)

    @cached_property
    def median(self) -> float:
        """Median seconds per operation, ``time.median`` without its interval; ValueError when nothing was measured."""
        rows = self.rows
        if not rows:
            raise ValueError("no samples: a median needs at least one")
        return middle(rows[0]) if len(rows) == 1 else middle([middle(row) for row in rows])

    @property
    def bytes_per_s(self) -> float:
        """Bytes really moved over the median time."""
        return self.moved / self.median

    @property
    def bytes_per_s_interval(self) -> tuple[float, float]:
        """The rate's interval, low then high (from the time's interval, turned round)."""
        return self.moved / self.time.high, self.moved / self.time.low


@dataclass
class Run:
    """One file: header, merged records in the order first seen, and warnings about the file."""

    path: Path
    header: Header
    records: list[Record]
    warnings: list[str] = field(default_factory=list)
    resumed: list[dict[str, Any]] = field(default_factory=list)
    derived: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)  # verdicts, models

    @property
    def machine(self) -> str:
        return self.header.machine_name

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    def of(self, probe: str) -> list[Record]:
        """Return the records of one probe."""
        return [record for record in self.records if record.probe == probe]

    def to_frame(self) -> pandas.DataFrame:
        """Return one row per record (needs pandas): the point's axes, medians in seconds, bytes/s."""
        from iobench.frame import frame

        return frame(self.records)


def point_key(probe: str, point: dict[str, Any]) -> str:
    """Return a point's identity: the probe and its axes in alphabetical order, as JSON."""
    axes = []
    for name in sorted(point):
        value = point[name]
        if type(value) is str:
            axes.append(f"{_quoted(name)}:{_quoted(value)}")
        elif type(value) is int:
            axes.append(f"{_quoted(name)}:{value}")
        else:
            return f"{probe} {_SORTED.encode(point)}"
    return f"{probe} {{{','.join(axes)}}}"


def dumps(value: Any) -> str:
    """Return compact JSON; NaN and infinity become null, NumPy scalars plain numbers."""
    plain = _plain(value)
    text = json.dumps(plain, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # a file name that is no UTF-8: its bytes are kept as escapes
        text = json.dumps(plain, separators=(",", ":"), allow_nan=False)
    return text


def read(path: str | Path) -> Run:
    """Read a records file, or the folder that holds one.

    A torn last line (a killed writer) is dropped with a warning. Anything else that is not a record
    of this schema raises UserError with the line's number.
    """
    file = Path(path)
    if file.is_dir():
        file = file / FILE_NAME
    from iobench.parse import parse

    try:
        with file.open("rb") as stream, no_collections():
            header, lines, resumed, warnings = parse(file, stream)
            return Run(file, header, merge(lines), warnings, resumed)
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}; give a run's folder or its {FILE_NAME}") from error


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """Hold the garbage collector back: none of a million new objects is garbage, and it would look at each again."""
    was = gc.isenabled()
    gc.disable()
    before = sys.getallocatedblocks()
    try:
        yield
    finally:
        if sys.getallocatedblocks() - before > _MANY_BLOCKS:
            gc.freeze()  # so many that looking at them once takes seconds; none of them is part of a cycle
        if was:
            gc.enable()


def middle(values: Sequence[float]) -> float:
    """Return the median of a few numbers, the one that NumPy gives, without the cost of an array."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _slowest(rows: list[list[float]]) -> Sequence[float]:
    """Return the maximum over ranks of each iteration."""
    return rows[0] if len(rows) == 1 else list(map(max, *rows))


def merge(lines: Iterable[Line]) -> list[Record]:
    """Merge the launches of each point; a repeated launch (after a resume) replaces the earlier one.

    A launch of another source (the probe was edited before a resume) replaces all earlier ones: what two
    sources measured is not one thing.
    """
    by_key: dict[str, list[Line]] = {}
    for line in lines:
        launches = by_key.setdefault(line.key, [])
        if launches and any(other.source != line.source or other.launch == line.launch for other in launches):
            kept = [other for other in launches if other.source == line.source and other.launch != line.launch]
            launches[:] = kept if all(other.source == line.source for other in launches) else []
        launches.append(line)
    records = []
    for key, launches in by_key.items():
        launches.sort(key=_launch)
        record = Record(launches[0].probe, launches[0].point, launches)
        record.__dict__["key"] = key  # as the cached property would: it was worked out already
        records.append(record)
    return records


def _launch(line: Line) -> int:
    return line.launch


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return value
