"""What a run will measure: the request, the points of every probe, and the time each may take."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from iobench import probe as probes
from iobench.errors import Unavailable, UserError
from iobench.probe import Probe
from iobench.record import point_key
from iobench.topology.graph import Topology

DEADLINE = 120.0
QUICK_SHARE = 0.3
QUICK_TARGET = 0.05
MIN_POINT_SECONDS = 0.02
MOST_POINT_FACTOR = 3.0


@dataclass
class Request:
    """What the user asked for; stands in the file's header, so that a run can be resumed from it.

    ``budget`` is the seconds the whole measuring may take (None: each probe's own wish), ``target`` the
    half interval at which sampling stops (fraction of the median), ``deadline`` the seconds after which
    a point that shows no sign of life is killed.
    """

    probes: list[str] = field(default_factory=list)
    axes: list[str] = field(default_factory=list)
    quick: bool = False
    budget: float | None = None
    launches: int | None = None
    target: float | None = None
    deadline: float = DEADLINE
    probe_dirs: list[str] = field(default_factory=list)
    scratch: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Request:
        """Rebuild a request from a header, ignoring what a newer version may have added."""
        return cls(**{name: data[name] for name in cls.__dataclass_fields__ if name in data})


@dataclass
class Job:
    """One launch of one probe: the points that are still to do."""

    probe: Probe
    launch: int
    points: list[dict[str, Any]]

    def seconds(self, quick: bool) -> float:
        """Return the time the probe itself would take for these points."""
        return len(self.points) * self.probe.point_seconds * (QUICK_SHARE if quick else 1.0)

    @property
    def setup_seconds(self) -> float:
        """The seconds that processes and buffers take beside measuring, roughly; 0 where the probe does not say."""
        return self.probe.setup_seconds(self.points) if self.probe.setup_seconds else 0.0


@dataclass
class Plan:
    """Every probe with its points, or with the reason why it has none here."""

    request: Request
    probes: list[Probe]
    points: dict[str, list[dict[str, Any]]]
    unavailable: dict[str, str]

    def launches(self, probe: Probe) -> int:
        """Return how many process launches this run gives ``probe``."""
        if self.request.launches is not None:
            return self.request.launches
        return 1 if self.request.quick else probe.launches

    def jobs(self, done: Collection[tuple[str, int]] = ()) -> Iterator[Job]:
        """Yield the launches, all probes in turn before any probe's second launch.

        Launches of one probe lie far apart in time, so their spread holds the machine's slow drift.
        ``done`` names (key, launch) pairs to leave out.
        """
        for launch in range(max((self.launches(probe) for probe in self.probes), default=0)):
            for probe in self.probes:
                if launch >= self.launches(probe):
                    continue
                points = [p for p in self.points[probe.name] if (point_key(probe.name, p), launch) not in done]
                if points:
                    yield Job(probe, launch, points)

    @property
    def lines(self) -> int:
        """Return how many lines a complete run writes, skipped probes not counted."""
        return sum(len(self.points[probe.name]) * self.launches(probe) for probe in self.probes)

    def estimate(self, jobs: Iterable[Job]) -> float:
        """Return the seconds that measuring ``jobs`` will take at most, set-up of the probes not counted."""
        if self.request.budget is not None:
            return self.request.budget
        return sum(job.seconds(self.request.quick) for job in jobs)

    def setup(self, jobs: Iterable[Job]) -> float:
        """Return the seconds to set up beside ``estimate``: a budget holds every launch's but the first."""
        return sum(job.setup_seconds for job in jobs if job.launch == 0 or self.request.budget is None)

    def longer(self, jobs: Iterable[Job]) -> str:
        """Return what makes it longer than ``estimate``, "" where the budget holds the first launch of every point."""
        first = sum(job.seconds(self.request.quick) for job in jobs if job.launch == 0)
        short = self.request.budget is not None and self.request.budget < first
        return "; longer if the first samples of every point need it" if short else ""


def make(request: Request, topology: Topology) -> Plan:
    """Load the probes, narrow their axes and list their points; UserError for anything unknown.

    With one probe an assignment must fit it; with several, it must fit at least one of them.
    """
    names = request.probes or sorted(probes.files(request.probe_dirs))
    loaded = [probes.load(name, request.probe_dirs) for name in dict.fromkeys(names)]
    plan = Plan(request, loaded, {}, {})
    _check_axes(loaded, request.axes)
    for probe in loaded:
        mine = [text for text in request.axes if len(loaded) == 1 or text.partition("=")[0] in probe.axes]
        axes = probes.narrow(probe, mine)
        plan.points[probe.name] = []
        try:
            plan.points[probe.name] = _unique(probe.points(topology, axes))
        except Unavailable as reason:
            plan.unavailable[probe.name] = str(reason)
            continue
        if not plan.points[probe.name]:
            plan.unavailable[probe.name] = "no point is left with these axes on this machine"
    return plan


def _check_axes(loaded: Sequence[Probe], assignments: Sequence[str]) -> None:
    if len(loaded) == 1:
        return
    for text in assignments:
        name = text.partition("=")[0]
        if "=" in text and not any(name in probe.axes for probe in loaded):
            near = probes.nearest(name, {axis for probe in loaded for axis in probe.axes})
            raise UserError(f"no probe of this run has an axis '{name}'{near}; iobench list PROBE shows them")
        if "=" not in text:
            probes.narrow(loaded[0], [text])


def _unique(points: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    seen: dict[str, dict[str, Any]] = {}
    for point in points:
        seen.setdefault(point_key("", point), point)
    return list(seen.values())


def scratch_folder(request: Request, out: Path) -> Path:
    """Return where probes put their files: the user's choice, else a hidden folder of the run's own."""
    return Path(request.scratch).expanduser().absolute() if request.scratch else out.absolute() / ".scratch"


def make_scratch(request: Request) -> None:
    """Make the folder that the user chose for scratch files, where there is none.

    Raises UserError where that fails, and where the folder that is to hold it is not there: made silently, it would
    lie on another disk than the one to be measured.
    """
    if not request.scratch:
        return
    chosen = scratch_folder(request, Path())
    if not chosen.parent.is_dir():
        raise UserError(f"no folder {chosen.parent} to hold --scratch {chosen.name}: mount its disk or make it first")
    try:
        chosen.mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make --scratch {chosen}: {error.strerror}; choose another folder") from error
