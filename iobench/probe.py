"""Loads probes: one file, one probe. Holds the axes' grammar and what a probe hands back.

A probe file has a docstring (line 1 is what ``iobench list`` shows), ``AXES``, ``points(topology, axes)``
and ``measure(point, sampler)``. Optional constants: ``LAUNCHES`` (process launches, 3 unless said),
``POINT_SECONDS`` (time one point wants in one launch), ``PLOTS`` (how the report draws it), ``MATRICES`` (tables by
pairs of ends), ``MODELS`` (what is fitted:
a kind of iobench.fit and the points it is for).
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib.util
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from iobench.errors import UserError
from iobench.paths import data_dir
from iobench.units import parse_size

if TYPE_CHECKING:
    from iobench.record import Leg
    from iobench.timing.sampler import Sampler, Timed
    from iobench.topology.graph import Topology

LAUNCHES = 3
POINT_SECONDS = 0.3
_MOST_RANGE_VALUES = 4096


@dataclass(frozen=True)
class Axis:
    """The values one axis takes unless the user narrows it.

    ``choices`` lists what the user may ask for beyond the default ``values``; None for a number or a
    free text axis (``free=True``), where any value of the right type is taken. ``unit`` "bytes" allows
    4KiB and 8:512M. ``minimum`` is the least number that makes sense.
    """

    values: tuple[Any, ...]
    help: str
    unit: str = ""
    choices: tuple[Any, ...] | None = None
    free: bool = False
    minimum: int = 0

    @property
    def number(self) -> bool:
        return all(type(value) is int for value in self.values) and not self.free

    @property
    def allowed(self) -> tuple[Any, ...]:
        return self.choices if self.choices is not None else self.values


@dataclass(frozen=True)
class Plot:
    """One figure of the report: ``y`` over the axis ``x``, one line per combination of ``series``.

    ``x`` is an axis or "nbytes", or "evidence.NAME" for a number measured beside the time; ``y`` is "bandwidth" or
    "latency"; ``where`` keeps only points with these values; ``over`` names axes that vary along a curve (what made x);
    ``caches`` marks the cache sizes; ``log_x`` draws x on a logarithmic scale; ``x_name`` stands below it.
    """

    title: str
    x: str
    y: str
    series: tuple[str, ...] = ()
    where: Mapping[str, Any] = field(default_factory=dict)
    caches: bool = False
    log_x: bool = True
    over: tuple[str, ...] = ()
    x_name: str = ""


@dataclass(frozen=True)
class Matrix:
    """One table of the report: ``y`` ("bandwidth" or "latency") for each pair of the axes ``rows`` and ``columns``.

    ``where`` keeps only points with these values; every combination of the other axes is a table of its own.
    """

    title: str
    rows: str
    columns: str
    y: str
    where: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Samples:
    """What ``measure`` returns: raw times, bytes really moved, the proof of the path.

    ``suspect`` is the reason why the time is doubtful though it was measured (another process on the GPU).
    """

    timed: Timed
    nbytes: int
    moved: int
    moved_rule: str
    quantity: str
    mode: str
    verified: bool | None
    path: str
    proven: bool
    evidence: dict[str, Any] = field(default_factory=dict)
    legs: list[Leg] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    suspect: str = ""


@dataclass
class Probe:
    """A loaded probe: its file, its constants and its two functions."""

    name: str
    file: Path
    source: str
    title: str
    axes: dict[str, Axis]
    launches: int
    point_seconds: float
    plots: tuple[Plot, ...]
    models: tuple[Mapping[str, Any], ...]
    points: Callable[[Topology, Mapping[str, tuple[Any, ...]]], Iterator[dict[str, Any]]]
    measure: Callable[[dict[str, Any], Sampler], Samples]
    matrices: tuple[Matrix, ...] = ()
    setup_seconds: Callable[[list[dict[str, Any]]], float] | None = None


def files(extra: Iterable[str | Path] = ()) -> dict[str, Path]:
    """Return name -> file of every probe; a folder in ``extra`` overrides what ships with iobench."""
    found: dict[str, Path] = {}
    for folder in (data_dir("probes"), *map(Path, extra)):
        if not folder.is_dir():
            raise UserError(f"no folder {folder}: give --probes a folder of probe files")
        found |= {file.stem: file for file in sorted(folder.glob("*.py")) if not file.stem.startswith("_")}
    return found


def ways() -> dict[str, str]:
    """Return the names of make targets that are one way through a probe: name -> the words behind iobench run."""
    data: dict[str, str] = tomllib.loads((data_dir("probes") / "ways.toml").read_text(encoding="utf-8"))
    return data


def title(file: Path) -> str:
    """Return line 1 of a probe's docstring without running the file."""
    try:
        doc = ast.get_docstring(ast.parse(file.read_bytes()))
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}; mend or remove it") from error
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{file} is no Python file ({error}); mend or remove it") from error
    return doc.splitlines()[0] if doc else ""


def find(name: str, extra: Iterable[str | Path] = ()) -> Path:
    """Return the probe's file; UserError with the nearest names where there is none."""
    known = files(extra)
    if name in known:
        return known[name]
    if name in ways():
        raise UserError(f"{name} is one way through a probe: iobench run {ways()[name]}")
    raise UserError(f"no probe '{name}'{nearest(name, known)}; iobench list shows all")


def load(name: str, extra: Iterable[str | Path] = ()) -> Probe:
    """Load the probe ``name``; UserError where it is missing or not shaped like a probe."""
    return load_file(find(name, extra))


def load_file(file: Path) -> Probe:
    """Load the probe in ``file``; its name is the file's stem."""
    module = _import(file)
    missing = [name for name in ("AXES", "points", "measure") if not hasattr(module, name)]
    if not missing and not _are_axes(module.AXES):
        missing = ["AXES that map names to Axis"]
    if missing or not (module.__doc__ or "").strip():
        raise UserError(
            f"{file} is no probe: it lacks {', '.join(missing) or 'a docstring'}; see README, 'Add a probe'"
        )
    return Probe(
        name=file.stem,
        file=file,
        source=source_hash(file),
        title=(module.__doc__ or "").strip().splitlines()[0],
        axes=module.AXES,
        launches=getattr(module, "LAUNCHES", LAUNCHES),
        point_seconds=getattr(module, "POINT_SECONDS", POINT_SECONDS),
        plots=tuple(getattr(module, "PLOTS", ())),
        models=tuple(getattr(module, "MODELS", ())),
        points=module.points,
        measure=module.measure,
        matrices=tuple(getattr(module, "MATRICES", ())),
        setup_seconds=getattr(module, "setup_seconds", None),
    )


def source_hash(file: Path) -> str:
    """Return a short hash of the probe's source: results of different sources are not the same thing."""
    return "sha256:" + hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def narrow(probe: Probe, assignments: Iterable[str]) -> dict[str, tuple[Any, ...]]:
    """Return the axes' values after the user's ``name=values`` assignments.

    Grammar: ``a=1,2,4`` a list; ``a=8:512M`` powers of two from 8 to 512 MiB; ``a=8:1G:4`` steps of
    factor 4. Raises UserError for an unknown axis, a value that the axis does not take or a bad range.
    """
    axes = {name: axis.values for name, axis in probe.axes.items()}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not name or not text:
            raise UserError(
                f"-a {assignment!r} is malformed: write -a axis=value, as in -a nbytes=8:512M or -a op=read,copy"
            )
        if name not in axes:
            raise UserError(f"probe {probe.name} has no axis '{name}'{nearest(name, axes)}; it has {', '.join(axes)}")
        axes[name] = _values(probe.name, name, probe.axes[name], text)
    return axes


def _import(file: Path) -> ModuleType:
    name = f"iobench_probe_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UserError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if b"\0" in file.read_bytes():  # a SyntaxError from Python 3.11.4 on, a ValueError before
        raise UserError(f"{file}:1: source code cannot contain null bytes; mend the probe file")
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise UserError(f"{file}:{error.lineno or 1}: {error.msg}; mend the probe file") from error
    return module


def _are_axes(axes: Any) -> bool:
    return isinstance(axes, dict) and all(isinstance(axis, Axis) for axis in axes.values())


def _values(probe: str, name: str, axis: Axis, text: str) -> tuple[Any, ...]:
    if axis.free:
        texts = text.split(",")
        if not all(texts):
            raise UserError(f"-a {name}={text} is malformed: a value between the commas is empty")
        return tuple(dict.fromkeys(texts))
    if axis.number:
        values = [value for part in text.split(",") for value in _numbers(name, axis, part)]
        low = [value for value in values if value < axis.minimum]
        if low:
            raise UserError(f"-a {name}={text}: {low[0]} is below {axis.minimum}, the least that {probe} can do")
        if axis.choices is not None:
            _choices(probe, name, axis, values)
        return tuple(dict.fromkeys(values))
    return tuple(dict.fromkeys(_choices(probe, name, axis, text.split(","))))


def _choices(probe: str, name: str, axis: Axis, values: list[Any]) -> list[Any]:
    """Return the allowed values, in their own type, that ``values`` name."""
    allowed = {str(choice): choice for choice in axis.allowed}
    for value in values:
        if str(value) not in allowed:
            near = nearest(str(value), allowed)
            raise UserError(f"axis {name} of {probe} has no value '{value}'{near}; it takes {', '.join(allowed)}")
    return [allowed[str(value)] for value in values]


def _numbers(name: str, axis: Axis, part: str) -> list[int]:
    bounds = part.split(":")
    if len(bounds) == 1:
        return [_number(name, axis, part)]
    if len(bounds) > 3:
        raise UserError(f"-a {name}={part} is malformed: a range is low:high or low:high:factor, as in 8:512M:4")
    low, high = (_number(name, axis, bound) for bound in bounds[:2])
    factor = _factor(name, bounds[2]) if len(bounds) == 3 else 2
    if low < 1 or high < low:
        raise UserError(f"-a {name}={part} is malformed: a range goes from a positive number up to a larger one")
    values: list[int] = []
    exact: float = low  # stays an int, and so exact, where the factor is one
    while round(exact) <= high:
        values.append(round(exact))
        exact *= factor
        if len(values) > _MOST_RANGE_VALUES:
            raise UserError(f"-a {name}={part} is more than {_MOST_RANGE_VALUES} values: use a larger factor")
    return list(dict.fromkeys(values))


def _factor(name: str, text: str) -> float:
    """Return the factor, as an int where it is whole."""
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 1.0 < factor < float("inf"):
        raise UserError(f"-a {name}: '{text}' is no factor: write a number above 1, as in 8:512M:1.414")
    return int(factor) if factor == int(factor) else factor


def _number(name: str, axis: Axis, text: str) -> int:
    if axis.unit == "bytes":
        return parse_size(text)
    if not re.fullmatch(r"-?[0-9]{1,18}", text.strip()):
        raise UserError(f"-a {name}={text} is malformed: '{text}' is no whole number (of 18 digits at most)")
    return int(text)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return " (did you mean ...?)" with the known words most like ``word``, or nothing."""
    near = difflib.get_close_matches(word, list(known), n=3, cutoff=0.5)
    return f" (did you mean {' or '.join(near)}?)" if near else ""
