"""ucx_perftest: the "Final:" row of each test, from its table (all versions) or its CSV (-v).

Its "MB/s" are MiB/s. Latencies of its ping-pong tests are half the round trip. The size of a message stands in the box
above the table or in the command line; where neither is in the log, it is unknown and only the rate is kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from iobench.importers.formats._rows import count, keep, number, rated, timed, untag
from iobench.importers.imported import Imported
from iobench.importers.log import Log
from iobench.units import MIB, US

TITLE = "ucx_perftest"
STATE = False

_QUANTITY = re.compile(r"\|\s*(latency|overhead) \(usec\)\s*\|\s*bandwidth \(MB/s\)")
_COLUMNS = re.compile(r"\|\s*(?:(Stage|Test)\s*\|)?\s*# iterations\s*\|\s*([\w.%]+)\s*\|\s*average\s*\|\s*overall\s*\|")
_BOX = re.compile(r"^\|\s*(API|Test|Data layout|Send memory|Recv memory|Message size|Window size):\s*(.*?)\s*\|\s*$")
_TITLE = re.compile(r"^=+ (\w{2,40}) =+\s*$")  # of a batch (-b): the test's name, its size stands in the batch file
_FINAL = re.compile(r"^\s*Final:((?:\s+[0-9.eE+-]+){8})\s*$")
_INTERIM = re.compile(r"^\s*(\[thread [0-9]+\])?((?:\s+[0-9.eE+-]+){8})\s*$")
_COMMAND = re.compile(r"\bucx_perftest\b([^\n]*)")
_CSV = re.compile(r"^(?:[\w ]+,)*iterations,(?:typical_lat|[\d.]+_percentile_lat),avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\s*$")  # fmt: skip  # noqa: E501
_TEST = re.compile(r"-t[ =]?((?:ucp|uct|tag|am|put|get|stream|add|fadd|swap|cswap)\w*)")
_SIZE = re.compile(r"\s-s[ =]?([0-9]+)([KMGkmg]?)\b")
_FACTOR = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}
_NAMES = ("iterations", "typical", "average", "overall", "bw_average", "bw_overall", "rate_average", "rate_overall")


@dataclass
class State:
    """What stood above the row at hand."""

    quantity: str = ""
    test: str = ""
    nbytes: int = 0
    facts: dict[str, str] = field(default_factory=dict)
    staged: bool = True
    interim: tuple[int, str] | None = None
    threads: set[str] = field(default_factory=set)
    ended: bool = True
    csv: bool = False


def recognise(head: str) -> float:
    """Tell it by the heading of its table or of its CSV."""
    if _QUANTITY.search(head):
        return 1.0
    return 0.95 if re.search(r"avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr", head) else 0.0


def read(log: Log) -> Imported:
    """Read the final row of every test; a test without one ended early."""
    imported, state = Imported(), State()
    for place, raw in enumerate(log.lines, start=1):
        _line(imported, state, place, untag(raw))
    _end(imported, state)
    imported.normalise("ucx_perftest's MB/s are MiB/s; its latencies are half of the round trip")
    return imported


def _line(imported: Imported, state: State, place: int, line: str) -> None:
    if command := _COMMAND.search(line):
        _command(state, command[1])
    elif found := _QUANTITY.search(line):
        _end(imported, state)
        state.quantity, state.ended, state.interim, state.threads = found[1], False, None, set()
    elif columns := _COLUMNS.search(line):
        state.staged = columns[1] is not None
    elif box := _BOX.match(line):
        _box(state, box[1], box[2])
    elif _CSV.match(line):
        state.csv, state.quantity = True, "latency" if "lat" in state.test else "overhead"
    elif title := _TITLE.match(line):
        _end(imported, state)
        state.test, state.nbytes, state.facts = title[1], 0, {}
    elif final := _FINAL.match(line):
        _row(imported, state, place, final[1])
        state.ended, state.interim = True, None
    elif state.csv and line.count(",") >= 7:
        _row(imported, state, place, " ".join(line.split(",")[-8:]))
    elif not state.ended and (interim := _INTERIM.match(line)):
        state.interim = (place, interim[2])
        state.threads.add(interim[1] or "")


def _command(state: State, text: str) -> None:
    if test := _TEST.search(text):
        state.test = test[1]
    if size := _SIZE.search(text):
        state.nbytes = int(size[1]) * _FACTOR[size[2].upper()] if len(size[1]) <= 15 else 0
        state.facts.pop("Message size", None)


def _box(state: State, name: str, value: str) -> None:
    if name == "API":
        state.facts = {}
    state.facts[name] = value
    if name == "Message size" and count(value):
        state.nbytes = count(value) or 0


def _end(imported: Imported, state: State) -> None:
    """A test without a final row: its last interim row is kept and marked, if one thread alone ran."""
    if state.ended or not state.quantity:
        return
    state.ended = True
    sentence = "a test ended before its final row"
    if state.interim and not state.staged:
        _row(imported, state, *state.interim)  # old versions end with the last row
        return
    if state.interim and len(state.threads) == 1:
        before = len(imported.lines)
        _row(imported, state, *state.interim)
        for line in imported.lines[before:]:
            line.status, line.reason = "suspect", "the log has no final row: this is the last interim one"
    imported.incomplete = sentence


def _quantity(state: State) -> str:
    """Return what a row is of: old versions print "latency" above tests of bandwidth, too, and mean the overhead."""
    name = state.facts.get("Test") or state.test
    return "overhead" if name.endswith("_bw") or "bandwidth" in name else state.quantity


def _row(imported: Imported, state: State, place: int, text: str) -> None:
    quantity = _quantity(state)
    values = dict(zip(_NAMES, (number(word) for word in text.split()), strict=False))
    imported.rows += 1
    point: dict[str, Any] = {"test": "latency" if quantity == "latency" else "bandwidth"}
    name = state.facts.get("Test") or state.test
    if name:
        point["operation"] = name
    for key, axis in (("Send memory", "send_memory"), ("Recv memory", "recv_memory")):
        if state.facts.get(key):
            point[axis] = state.facts[key]
    evidence = {"row": place, "printed": text.split(), "columns": list(_NAMES), "quantity": state.quantity}
    iterations = int(values.get("iterations") or 0)
    if quantity == "latency":
        if state.nbytes:
            point["nbytes"] = state.nbytes
        line = timed(
            "ucx", point, (values.get("overall") or 0.0) * US, moved=state.nbytes, mode="blocking", evidence=evidence,
            moved_rule="half of the round trip", aggregate=f"mean of {iterations} iterations, half of the round trip",
        )  # fmt: skip
    else:
        line = rated(
            "ucx", point, (values.get("bw_overall") or 0.0) * MIB, state.nbytes, mode="pipelined", evidence=evidence,
            moved_rule="the message, one direction", aggregate=f"mean over {iterations} iterations",
        )  # fmt: skip
        rate = values.get("rate_overall")
        if line is not None and state.nbytes and rate and rate > 20:
            ratio = (values.get("bw_overall") or 0.0) * MIB / (rate * state.nbytes)
            if abs(ratio - 1) > 0.05:
                line.status = "suspect"
                line.reason = f"bandwidth and message rate differ by a factor of {ratio:.3g} at {state.nbytes} bytes"
    keep(imported, line, place, text, "no positive number")
