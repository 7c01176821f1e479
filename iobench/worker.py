"""The child process that measures one launch of one probe; started by iobench.run, never by hand.

It reads a job (one JSON line) from standard input and writes events (JSON lines) to the file
descriptor named on its command line. After each "start" event it waits for a line that lets it go on.
It dies with its parent.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from iobench import probe as probes
from iobench.errors import Unavailable, UserError, WrongData
from iobench.machine import gaps
from iobench.needs import missing
from iobench.plan import MIN_POINT_SECONDS, MOST_POINT_FACTOR, QUICK_SHARE, QUICK_TARGET
from iobench.probe import Probe, Samples
from iobench.record import Line, dumps
from iobench.timing.sampler import TARGET_FRACTION, Sampler

_PR_SET_PDEATHSIG = 1


@dataclass
class Order:
    """One job as it comes through standard input.

    ``budget`` counts from ``asked``, when the order was made on the system's monotonic clock: starting the process is
    on it.
    """

    probe: str
    points: list[dict[str, Any]]
    launch: int
    scratch: str
    quick: bool = False
    budget: float | None = None
    target: float | None = None
    asked: float = field(default_factory=time.monotonic)

    def to_json(self) -> str:
        return dumps(asdict(self))


class Events:
    """Writes events to the parent, each in one line."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def send(self, event: str, **more: Any) -> None:
        data = dumps({"event": event, **more}).encode() + b"\n"
        while data:
            data = data[os.write(self._fd, data) :]


def main(argv: list[str]) -> int:
    """Measure the job on standard input; 0 when every point was tried."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    events = Events(int(argv[0]))
    order = Order(**json.loads(sys.stdin.readline()))
    probe = probes.load_file(Path(order.probe))
    sampler = _sampler(order)
    cpus = sorted(os.sched_getaffinity(0))
    events.send("ready", clock={"pair": sampler.clock.cost, "call": sampler.clock.call_cost}, gaps=gaps(set(cpus)))
    try:
        for index, point in enumerate(order.points):
            left = len(order.points) - index
            sampler.budget = _budget(order, probe, time.monotonic() - order.asked, left)
            events.send("start", index=index, budget=sampler.budget)
            sys.stdin.readline()  # the parent reads the machine's state first: it must not compete with the point
            events.send("done", index=index, line=asdict(measure(probe, point, sampler)))
    except UserError as error:
        events.send("user_error", text=str(error))
        return 0
    finally:
        sampler.close()
    events.send("end")
    return 0


def measure(probe: Probe, point: dict[str, Any], sampler: Sampler) -> Line:
    """Measure one point and return its line, whatever became of it; only UserError passes through."""
    line = Line(probe=probe.name, source=probe.source, point=point, launch=sampler.launch)
    line.started = datetime.now(UTC).isoformat(timespec="seconds")
    start = time.perf_counter()
    try:
        _fill(line, probe.measure(point, sampler))
    except UserError:
        raise
    except Unavailable as reason:
        line.status, line.reason = "skipped", str(reason)
    except ModuleNotFoundError as error:
        line.status, line.reason = "skipped", missing(error.name or str(error))
    except WrongData as error:
        line.status, line.reason, line.verified = "failed", f"wrong data: {error}", False
    except Exception as error:  # noqa: BLE001 - one point's failure must not end the run
        line.status, line.reason = "failed", _explain(error)
        traceback.print_exc()
    line.elapsed = round(time.perf_counter() - start, 4)
    return line


def _sampler(order: Order) -> Sampler:
    target = order.target or (QUICK_TARGET if order.quick else TARGET_FRACTION)
    return Sampler(target=target, launch=order.launch, scratch=order.scratch)


def _budget(order: Order, probe: Probe, spent: float, left: int) -> float:
    """Return this point's seconds: the probe's wish, or an even share of what is left of the job's."""
    wish = probe.point_seconds * (QUICK_SHARE if order.quick else 1.0)
    if order.budget is None:
        return wish
    share = (order.budget - spent) / left
    return min(max(share, MIN_POINT_SECONDS), MOST_POINT_FACTOR * wish)


def _fill(line: Line, samples: Samples) -> None:
    timed = samples.timed
    line.seconds = [[round(value, 12) for value in row] for row in timed.seconds]
    line.warmup = [[round(value, 12) for value in row] for row in timed.warmup]
    line.ops, line.stop = timed.ops, timed.stop
    line.nbytes, line.moved, line.moved_rule = samples.nbytes, samples.moved, samples.moved_rule
    line.quantity, line.mode, line.verified = samples.quantity, samples.mode, samples.verified
    line.path, line.proven, line.evidence = samples.path, samples.proven, samples.evidence
    line.legs, line.notes = samples.legs, [*samples.notes, *timed.notes]
    if samples.suspect:
        line.status, line.reason = "suspect", samples.suspect
    if not line.seconds or not line.seconds[0]:
        line.status, line.reason = "failed", "no samples: the probe returned none"
    elif min(map(min, line.seconds)) <= 0:
        line.status, line.reason = "failed", "a sample of no duration: the operation is too short for the clock"
        line.seconds = []
    if samples.verified is False:
        line.status, line.reason = "failed", "wrong data: the probe's check of the bytes failed"


def _explain(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:500] if text else type(error).__name__


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
