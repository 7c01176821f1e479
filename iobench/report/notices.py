"""What the reader must know before he uses a number: sentences that end in the next step."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from iobench.check import Verdict
from iobench.plan import QUICK_TARGET
from iobench.record import Record, Run
from iobench.report.names import half_width, percent, point_names
from iobench.timing.sampler import TARGET_FRACTION

ORDER = ("wrong", "impossible", "failed", "emulated", "suspect", "unproven", "skipped")
_FIGURE = re.compile(r"\d+(?:\.\d+)?")
_STEP = re.compile(r"run again|choose another")  # in a reason that says itself what to do next
_NAMED = 3  # points named in one sentence; the table has them all
_LEAD = {
    "wrong": "delivered wrong data",
    "impossible": "measured a rate above the physical limit",
    "failed": "failed",
    "emulated": "ran on emulated hardware",
    "suspect": "may be disturbed",
    "unproven": "took a path that is not proven",
    "skipped": "could not be measured",
}
_NOT_QUOTED = "Do not quote the number for this path"
_NEXT = {
    "wrong": "These numbers are in no model and no comparison. Find the fault first: run the point again and, if it "
    "stays, do not trust this path with data.",
    "impossible": "These numbers are in no model and no comparison. Compare the limit's source with the hardware "
    "(iobench topology); if the limit is right, report the probe.",
    "failed": "Mend the cause, then run the probe again.",
    "emulated": "These times are in no model, no comparison and no headline. Run on real hardware for numbers.",
    "suspect": "Stop other work on the machine and run again; undisturbed it is likely to be faster.",
    "unproven": f"{_NOT_QUOTED}; the first lines of the probe's file say what would prove it.",
    "skipped": "Nothing is wrong with the run: give the machine what is named to measure it.",
}


@dataclass(frozen=True)
class Notice:
    """One warning: its kind ("wrong" ... "budget", "no limit", "file") and the sentences."""

    kind: str
    text: str


def counts(verdicts: Mapping[str, Verdict]) -> dict[str, int]:
    """Return how many points have each verdict: ok first, then the worst first; zeros are left out."""
    found = Counter(verdict.status for verdict in verdicts.values())
    return {status: found[status] for status in ("ok", *ORDER) if found[status]}


def notices(run: Run, verdicts: Mapping[str, Verdict]) -> list[Notice]:
    """Return every warning of the run, the worst kind first, alike points in one."""
    found = []
    by_status: dict[str, list[Record]] = {}
    for record in run:
        by_status.setdefault(verdicts[record.key].status, []).append(record)
    for status in ORDER:
        if status == "skipped":
            found += _whole_probes(by_status.get(status, []))
        groups: dict[tuple[str, str], list[Record]] = {}
        for record in by_status.get(status, []):
            if not skipped_whole(record):
                alike = _FIGURE.sub("#", _why(record, verdicts[record.key]))
                groups.setdefault((record.probe, alike), []).append(record)
        found += [_of_status(run, verdicts, status, members) for members in groups.values()]
    return [*found, *_of_all(run), *_wide(run), *_once(run), *_no_limit(run, verdicts), *_of_file(run)]


def skipped_whole(record: Record) -> bool:
    """Tell whether the record says that this machine can't run its probe at all."""
    return record.status == "skipped" and not record.point


def _whole_probes(skipped: list[Record]) -> list[Notice]:
    """Return one sentence for all probes that this machine can't run for the same reason."""
    reasons: dict[str, list[str]] = {}
    for record in filter(skipped_whole, skipped):
        reasons.setdefault(record.reason, []).append(record.probe)
    return [
        Notice("skipped", f"{', '.join(names)}: {_sentence(reason)} {_NEXT['skipped']}")
        for reason, names in reasons.items()
    ]


def _why(record: Record, verdict: Verdict) -> str:
    """Return why the record is what it is; points that differ only in the figures share one warning."""
    if verdict.status == "emulated":
        return verdict.sentence
    if verdict.status == "unproven":
        return record.first.path or "nothing shows which way the bytes took"
    return "" if verdict.status == "impossible" else record.reason or verdict.sentence


def _of_status(run: Run, verdicts: Mapping[str, Verdict], status: str, records: list[Record]) -> Notice:
    whys = [_why(record, verdicts[record.key]) for record in records]
    why = max(whys, key=_first_figure)
    if status == "impossible":
        why = max((verdicts[record.key] for record in records), key=lambda verdict: verdict.fraction or 0.0).sentence
    worst = "the worst: " if len(set(whys)) > 1 else ""
    step = "" if _STEP.search(why) else _step(status, records[0])
    text = f"{records[0].probe}: {_points(len(records))} {_LEAD[status]} ({_named(run, records)}): {worst}"
    return Notice(status, f"{text}{_sentence(why)} {step}".strip())


def _step(status: str, record: Record) -> str:
    """Return what to do next; of what another tool measured no probe's file says anything."""
    if status != "unproven" or not record.first.aggregate:
        return _NEXT[status]
    nccl = record.point.get("engine") in ("nccl", "rccl")
    return f"{_NOT_QUOTED}; a log with NCCL_DEBUG=INFO shows it." if nccl else f"{_NOT_QUOTED}."


def _first_figure(why: str) -> float:
    found = _FIGURE.search(why)
    return float(found[0]) if found else 0.0


def _of_all(run: Run) -> Iterable[Notice]:
    """Return the notes that every measured launch of a probe carries: they are about the machine, not about a point."""
    for probe, records in _by_probe(run, lambda record: bool(record.used)).items():
        notes = records[0].used[0].notes
        lines = [line for record in records for line in record.used] if notes else []
        for note in notes:
            if len(lines) > 1 and all(note in line.notes for line in lines):
                yield Notice("note", f"{probe}: {_sentence(note)}")


def _wide(run: Run) -> Iterable[Notice]:
    """Return why intervals are wider than was asked for: time was up, or launches differ."""
    target = run.header.request.get("target")
    usual = QUICK_TARGET if run.header.request.get("quick") else TARGET_FRACTION
    wanted = float(target) if isinstance(target, (int, float)) and target else usual

    def wide(record: Record) -> bool:
        return bool(record.used) and record.time.fraction > wanted

    def timed_out(record: Record) -> bool:
        return "budget" in [line.stop for line in record.used]

    for probe, records in _by_probe(run, lambda record: timed_out(record) and wide(record)).items():
        text = (
            f"{probe}: time ended before the interval of {_points(len(records))} was within ±{percent(wanted)}; "
            f"{_widest(run, records)}. "
            "Give more time with --budget, or compare only differences wider than the intervals."
        )
        yield Notice("budget", text)
    several = _by_probe(run, lambda record: len(record.used) > 1 and not timed_out(record) and wide(record))
    for probe, records in several.items():
        text = (
            f"{probe}: the launches of {_points(len(records))} differ by more than ±{percent(wanted)}, though each had "
            f"the samples it wanted; {_widest(run, records)}. It holds what differs between "
            "processes: run again with more --launches, or compare only differences wider than the intervals."
        )
        yield Notice("launches", text)


def _once(run: Run) -> Iterable[Notice]:
    """Say of which of the run's own probes no point had a second launch."""
    if "launches" not in run.header.request:
        return
    groups = _by_probe(run, lambda record: bool(record.used) and not record.first.aggregate)
    once = [probe for probe, records in groups.items() if all(len(record.used) == 1 for record in records)]
    if once:
        text = (
            f"{', '.join(once)}: one launch only: the intervals hold nothing of what differs between processes. "
            "For numbers to compare give more time with --budget, or more --launches."
        )
        yield Notice("launches", text)


def _widest(run: Run, records: list[Record]) -> str:
    single = [record for record in records if record.time.n == 1]
    if single:
        return f"a single sample has no interval ({_named(run, single)})"
    widest = max(records, key=lambda record: record.time.fraction)
    return f"the widest is {half_width(widest.time.fraction)} ({_named(run, [widest])})"


def _no_limit(run: Run, verdicts: Mapping[str, Verdict]) -> Iterable[Notice]:
    def unlimited(record: Record) -> bool:
        first = record.first
        known = verdicts[record.key].limit_bytes_per_s is not None
        return not known and first.quantity == "bandwidth" and first.moved > 0 and bool(record.used)

    for probe, records in _by_probe(run, unlimited).items():
        text = (
            f"{probe}: no physical limit is known for {_points(len(records))} ({_named(run, records)}), so nothing "
            "says whether the rate is possible. Add the hardware's row to topologies/limits.toml with its source, "
            "then run again."
        )
        yield Notice("no limit", text)


def _by_probe(run: Run, wanted: Callable[[Record], bool]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in run:
        if wanted(record):
            found.setdefault(record.probe, []).append(record)
    return found


def _of_file(run: Run) -> Iterable[Notice]:
    folder = run.path.parent
    for warning in run.warnings:
        yield Notice("file", f"{_sentence(warning)} iobench run --resume {folder} measures what is missing.")
    planned = run.header.request.get("lines")
    have = sum(len(record.lines) for record in run)
    if isinstance(planned, int) and have < planned:
        text = f"The run is not complete: {have} of {planned} planned measurements are there. "
        yield Notice("file", f"{text}Go on with iobench run --resume {folder}.")
    if run.resumed:
        times = "once" if len(run.resumed) == 1 else f"{len(run.resumed)} times"
        text = f"The run was interrupted and resumed {times}: launches may lie hours apart. "
        yield Notice("file", f"{text}Run again without a break where that matters.")


def _points(count: int) -> str:
    return "1 point" if count == 1 else f"{count} points"


def _named(run: Run, records: list[Record]) -> str:
    names = point_names(run, records[:_NAMED])
    more = len(records) - len(names)
    return "; ".join(names) + (f"; and {more} more" if more else "")


def _sentence(text: str) -> str:
    """Return the text with a full stop at its end."""
    stripped = text.strip() or "no reason was recorded"
    return stripped if stripped[-1] in ".!?" else f"{stripped}."
