"""perftest (ib_write_bw, ib_read_lat, ...): tables, its JSON of all versions, raw samples (-U, -H).

Units: "MB/sec" in a heading holds MiB/s (perftest says so itself since 2023); Gb/s are decimal. A bandwidth's time is
that of one message at the average rate. Where the rate is printed with too few digits, the message rate, which has
six, is used. Latencies of writes and sends are half the round trip, by perftest's own division; those of reads and
atomics the whole one. Raw samples are kept one by one where they are in the log.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from iobench.importers.formats import _perftest_json
from iobench.importers.formats._rows import count, keep, number, rated, timed, untag
from iobench.importers.imported import Imported, tell_apart
from iobench.importers.log import Log
from iobench.record import Line
from iobench.units import MB, MIB, US, from_gigabits

TITLE = "perftest"
STATE = False

_BANNER = re.compile(
    r"^\s+(Send|Send_imm|RDMA_Write|RDMA_Write_imm|RDMA_Read|Atomic|RDMA Write|RDMA Read|Atomic \w+) "
    r"((?:Post List )?(?:Multicast )?(?:Bidirectional )?(?:Post List )?)(BW|Latency|Lat)(?: Test)?\b"
)
_HEADING = re.compile(r"^ *#?bytes +(?:#?sl +)?#?iterations +(?:BW|t_)")  # forums eat comment signs
_COMMENTED = re.compile(r"^# +(?:#bytes +#iterations|\d+ +\d+ +[\d.]+ )")
_ORPHAN = re.compile(r"^ *\d{1,12} +\d{1,12}(?: +\d{1,9}\.\d{2,6}){2,7}\s*$")
_NAMES = re.compile(r"#?bytes|#?sl\b|#?iterations|(?:99(?:\.9)?% percentile|BW [Mm]in|BW [Pp]eak|BW [Aa]verage|BW Port[12]|MsgRate(?: Port[12])?|t_\w+|CPU_Util|tps average)\s*(?:\[[^\]]*\])?")  # fmt: skip  # noqa: E501
_PARAMETER = re.compile(r"([A-Z#][\w.*# /+-]{1,30}?)\s*:\s*(\S+)(?=\s|$)")
_COMMAND = re.compile(r"\bib_(write|read|send|atomic)_(bw|lat)\b([^\n|]*)")
_RAW = re.compile(r"^#, (usec|cycles)\s*$")
_SAMPLE = re.compile(r"^([0-9]{1,9}), ([0-9.eE+-]{1,24})\s*$")
_ON_GPU = re.compile(r"creating CUDA Ctx|cuMemAlloc\(\) of a \d{1,19} bytes GPU buffer|Using ROCm Device with ID")
_RULE = re.compile(r"^-{20,}\s*$")
_ROUNDING = 0.0051  # of an average with two decimals
_HALF = "half of the round trip"
_WHOLE = "the whole round trip"
_FAILURE = re.compile(r"Couldn't|[Ff]ailed|\berror\b|mismatch|Unable|Completion with")
_MOST_SWEEP = 1 << 23


@dataclass
class Test:
    """What the lines above a table said."""

    verb: str = ""
    latency: bool | None = None
    both: bool = False
    parameters: dict[str, str] = field(default_factory=dict)
    command: str = ""
    header: list[str] = field(default_factory=list)
    heading: str = ""
    raw: list[float] = field(default_factory=list)
    sorted: list[float] = field(default_factory=list)
    cycles: bool = False
    closed: bool = False
    rows: list[int] = field(default_factory=list)
    gpu: bool = False  # its buffer was made on a GPU


def recognise(head: str) -> float:
    """Tell perftest by its heading, its banner, or its JSON, valid or not."""
    if "iterations" in head and re.search(r"#?\bbytes +(?:#?sl +)?#?iterations +(?:BW|t_)", head):
        return 1.0
    if "test_info" in head and re.search(r"\"?test_info\"?\s*:\s*\{", head):
        if re.search(r"\"?n_iterations\"?\s*:", head):
            return 1.0
        if re.search(r"\"?test_info\"?\s*:\s*\{\s*\"?test\"?\s*:", head):  # ended before its results
            return 0.8
    named = " Test" in head and re.search(r"\s(?:RDMA_\w+|Send|Atomic\w*) (?:\w+ )*(?:BW|Latency) Test\b", head)
    return 0.8 if named else 0.0


def read(log: Log) -> Imported:
    """Read every row of every table and every JSON result."""
    imported = Imported()
    if re.search(r"\"?test_info\"?\s*:\s*\{", log.text):
        _read_json(log, imported)
    tests = list(_read_tables([_bare(line) for line in log.lines], imported))
    for test in tests:
        _check_sweep(imported, test)
    if tests and not imported.lines and not imported.unread:
        imported.incomplete = "the table has no row: the test ended before its first result"
    tell_apart(imported.lines, _facts)
    return imported


def _bare(line: str) -> str:
    """Return a line without tags, and without the comment sign before a pasted table ("# 65536 ...")."""
    line = untag(line)
    return line[1:] if _COMMENTED.match(line) else line


def _signed(name: str) -> str:
    return f"#{name}" if name in ("bytes", "sl", "iterations") else name


def _facts(line: Line) -> dict[str, Any]:
    return dict(line.evidence.get("told", {}))


# ---- tables --------------------


def _read_tables(lines: list[str], imported: Imported) -> Iterator[Test]:
    test, on_gpu = Test(), False
    for place, line in enumerate(lines, start=1):
        if (command := _COMMAND.search(line)) and not line.lstrip().startswith("#") and "Test" not in line:
            test.command = f"ib_{command[1]}_{command[2]}{command[3]}"[:500]
        banner, heading = _BANNER.match(line), _HEADING.match(line)
        if (banner and test.header) or (heading and test.header and test.rows):
            yield test
            test = Test(test.verb, test.latency, test.both, test.parameters, test.command)
        on_gpu = on_gpu or bool(_ON_GPU.match(line))
        if banner:
            test = _announced(banner, test.command)
            test.gpu, on_gpu = on_gpu, False
        elif heading:
            test.header, test.heading = [_signed(name.strip()) for name in _NAMES.findall(line)], line.strip()
            test.latency = "t_" in line
            test.verb = test.verb or _asked(test)
        else:
            _inside(imported, test, place, line)
    if test.header:
        yield test


def _announced(banner: re.Match[str], command: str) -> Test:
    """Return a test as its banner names it ("RDMA_Write Bidirectional BW Test")."""
    return Test(_verb(banner[1]), banner[3].startswith("Lat"), "Bidirectional" in banner[2], {}, command)


def _verb(words: str) -> str:
    """Return the verb of a banner's words; of an atomic the operation, where it is named."""
    name = words.replace("RDMA_", "").replace("RDMA ", "").lower()
    if name.startswith("atomic "):
        return "atomic_fadd" if "fetch" in name else "atomic_cas" if "cmp" in name else "atomic"
    return "send" if name == "send_imm" else name.split()[0]


def _asked(test: Test) -> str:
    """Return the verb of the command line above a table without a banner, where it is of the table's kind."""
    found = _COMMAND.match(test.command)
    return found[1] if found and (found[2] == "lat") == test.latency else ""


def _inside(imported: Imported, test: Test, place: int, line: str) -> None:
    """Take a line that neither announces a test nor heads a table."""
    if raw := _RAW.match(line):
        test.cycles = raw[1] == "cycles"
        _start_block(test)
    elif sample := _SAMPLE.match(line):
        _add_sample(test, int(sample[1]), number(sample[2]))
    elif test.header and re.match(r"^ *[0-9]", line):
        if not test.closed:
            _row(imported, test, place, line)
    elif test.rows and _RULE.match(line):
        test.closed = True  # what follows belongs to something else
    elif not test.header and _ORPHAN.match(line):
        imported.skip(place, line, "a row without its heading")
    elif ":" in line and not test.header:
        test.parameters |= {name.strip(): value for name, value in _PARAMETER.findall(line)}
    elif test.header and _FAILURE.search(line) and not line.startswith("Conflicting"):
        imported.problem(f"line {place}: {line.strip()[:160]}")


def _start_block(test: Test) -> None:
    """A block of raw samples starts: the first one is in order (-U) unless it is the only one and sorted (-H)."""
    if test.raw:
        test.sorted = [math.nan]  # marks: a second block, the sorted copy of the first


def _add_sample(test: Test, index: int, value: float | None) -> None:
    if value is None or value <= 0 or test.sorted:
        return
    if index == len(test.raw) + 1:
        test.raw.append(value)


def _row(imported: Imported, test: Test, place: int, line: str) -> None:
    words = line.replace("*", "").split()  # a forum's bold figures
    names = test.header
    if len(words) != len(names):
        imported.skip(place, line, f"{len(words)} figures under {len(names)} headings")
        return
    values = dict(zip(names, words, strict=True))
    imported.rows += 1
    test.rows.append(place)
    figures = {name.split("[")[0].strip(): text for name, text in values.items()}
    units = re.search(r"BW [Aa]verage\s*\[([^\]]*)\]", test.heading)
    _take(imported, test, place, line, figures, units[1] if units else "")


def _take(imported: Imported, test: Test, place: int, text: str, figures: dict[str, str], unit: str) -> None:
    nbytes, iterations = count(figures.get("#bytes")), count(figures.get("#iterations"))
    if not nbytes or iterations is None:
        imported.skip(place, text, "no size and no number of iterations")
        return
    evidence: dict[str, Any] = {"row": place, "printed": figures, "heading": test.heading, "told": _told(test)}
    if figures.get("#sl"):
        evidence["told"]["sl"] = figures["#sl"]
    if test.latency:
        if "[cycles]" in test.heading or test.cycles:
            imported.skip(place, text, "times in cycles, and the log has no clock rate: run it without -C")
            return
        line = _latency(imported, test, nbytes, iterations, figures, evidence)
    else:
        line = _bandwidth(imported, test, nbytes, figures, unit, evidence)
    keep(imported, line, place, text, "no positive number (perftest's own overflow, or nothing was measured)")


def _told(test: Test) -> dict[str, Any]:
    """Return the parameters that tell one test from another of the same size, none of which names a machine."""
    wanted = {"Mtu": "mtu", "Link type": "link", "TX depth": "depth", "Device": "device", "CQ Moderation": "cq_moderation"}  # fmt: skip  # noqa: E501
    found: dict[str, Any] = {name: test.parameters[key] for key, name in wanted.items() if key in test.parameters}
    return found


def _point(test: Test, nbytes: int) -> dict[str, Any]:
    point: dict[str, Any] = {"verb": test.verb or "unknown", "test": "latency" if test.latency else "bandwidth"}
    kind = test.parameters.get("Connection type")
    if kind:
        point["transport_type"] = kind
    qps = count(test.parameters.get("Number of qps"))
    if qps:
        point["qps"] = qps
    depth = count(test.parameters.get("TX depth"))
    if depth and not test.latency:
        point["depth"] = depth
    if test.gpu or re.search(r"--use_cuda|--use_rocm|--use_hl", test.command):
        point["memory"] = "gpu"
    if not test.latency:
        point["direction"] = "both" if test.both else "one"
    return {**point, "nbytes": nbytes}


def _bandwidth(
    imported: Imported, test: Test, nbytes: int, figures: dict[str, str], unit: str, evidence: dict[str, Any]
) -> Line | None:
    average, rate = _figure(figures, "BW average"), number(figures.get("MsgRate"))
    scale = {"MB/sec": MIB, "MiB/sec": MIB, "Gb/sec": from_gigabits(1.0)}.get(unit)
    if scale is None or average is None or average < 0 or (rate is not None and rate < 0):
        return None
    if unit == "MB/sec":
        imported.normalise("BW [MB/sec] of perftest holds MiB/s: read as 1,048,576 bytes")
    printed = average * scale
    by_rate = rate * 1e6 * nbytes if rate else 0.0
    bytes_per_s = _finer(printed, by_rate, average)
    notes = []
    if printed and by_rate and abs(printed - by_rate) > _ROUNDING * scale + 0.02 * printed:
        bytes_per_s = printed
        notes.append(f"the message rate gives {by_rate / MB:.1f} MB/s, the average {printed / MB:.1f}")
    direction = "one direction"
    if test.both:
        bytes_per_s, direction = bytes_per_s / 2, "one direction: half of perftest's sum of both"
        imported.normalise("bidirectional rates of perftest are sums: halved, a rate is that of one direction")
    return rated(
        "rdma", _point(test, nbytes), bytes_per_s, nbytes, mode="pipelined", evidence=evidence, notes=notes,
        moved_rule=f"the message, {direction}", aggregate="mean time of one message over all iterations",
    )  # fmt: skip


def _figure(figures: dict[str, str], name: str) -> float | None:
    return number(next((text for key, text in figures.items() if key.lower() == name.lower()), None))


def _finer(printed: float, by_rate: float, average: float) -> float:
    """Return the rate with more digits: a small average has two decimals, the message rate six."""
    return by_rate if by_rate and average < 100 else printed or by_rate


def _latency(
    imported: Imported, test: Test, nbytes: int, iterations: int, figures: dict[str, str], evidence: dict[str, Any]
) -> Line | None:
    whole = test.verb == "read" or test.verb.startswith("atomic")
    rule = _WHOLE if whole else _HALF if test.verb else "half or whole round trip: the log does not name the verb"
    point, notes = _point(test, nbytes), [f"latency is {rule}"]
    typical, mean = number(figures.get("t_typical")), number(figures.get("t_avg"))
    value, aggregate = (typical, "median") if typical else (mean, "mean")
    if value is None or value <= 0:
        return None
    if min((number(figures.get(name)) or 0.0 for name in ("t_min", "t_max", "t_avg")), default=0.0) < 0:
        return None
    line = timed(
        "rdma", point, value * US, moved=nbytes, moved_rule=rule, mode="blocking", evidence=evidence, notes=notes,
        aggregate=f"{aggregate} of {iterations} iterations, {rule}",
    )  # fmt: skip
    if line is not None and _usable(test, iterations, value):
        line.seconds, line.aggregate = [[sample * US for sample in test.raw]], ""
        line.notes.append("raw samples out of the log" + ("" if test.sorted else "; they may be sorted by size"))
    test.raw, test.sorted = [], []
    imported.normalise("latencies of writes and sends are half the round trip, of reads and atomics the whole one")
    return line


def _usable(test: Test, iterations: int, typical: float) -> bool:
    """Tell whether the raw samples above a row are its own: nearly as many as iterations, and the same median."""
    if not 0.9 * iterations - 2 <= len(test.raw) <= iterations or not test.raw:
        return False
    middle = sorted(test.raw)[len(test.raw) // 2]
    return abs(middle - typical) <= 0.02 * typical + 0.011


def _check_sweep(imported: Imported, test: Test) -> None:
    """A run with -a goes from 2 bytes to 8 MiB by powers of two: what is missing is said."""
    sizes = [line.nbytes for line in imported.lines if line.evidence.get("row") in test.rows]
    planned = re.search(r"\s(?:-a|--all)\b", test.command) or (len(sizes) > 3 and sizes[0] == 2 and _doubles(sizes))
    if planned and sizes and max(sizes) < _MOST_SWEEP:
        sentence = f"the sweep (2 bytes to 8 MiB) ends at {max(sizes)} bytes"
        imported.incomplete = f"{imported.incomplete}; {sentence}" if imported.incomplete else sentence


def _doubles(sizes: list[int]) -> bool:
    return all(b == 2 * a for a, b in itertools.pairwise(sizes))


# ---- JSON, which older versions write without quotes and with commas too many --------------------


def _read_json(log: Log, imported: Imported) -> None:
    for match in re.finditer(r"^[ \t]*\{[ \t]*$|^[ \t]*\{[ \t]*\"?test_info", log.text, re.MULTILINE):
        body = _balanced(log.text, log.text.index("{", match.start()))
        data = repaired(body) if body else None
        place = log.text.count("\n", 0, match.end()) + 1
        if data is None or not isinstance(data.get("test_info"), dict):
            if body and "test_info" in body:
                imported.skip(place, body[:200], "perftest's JSON is damaged beyond its known flaws")
            elif not body:
                imported.incomplete = "perftest's JSON ends early"
            continue
        for name, results in data.items():
            if name.startswith("results") and isinstance(results, dict):
                _json_result(imported, data["test_info"], name, results, place)


def _balanced(text: str, start: int) -> str:
    depth = 0
    for place in range(start, min(len(text), start + 20000)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[start : place + 1]
    return ""


def repaired(text: str) -> dict[str, Any] | None:
    """Return perftest's JSON with its known flaws mended: bare keys and words, commas before a closing brace."""
    text = re.sub(r",(\s*[}\]])", r"\1", text)
    text = re.sub(r"^(\s*)([A-Za-z_][\w. ]*?)\s*:", r'\1"\2":', text, flags=re.MULTILINE)
    text = re.sub(r"(:\s*)([A-Za-z_][\w./ -]*?)(\s*,?\s*)$", r'\1"\2"\3', text, flags=re.MULTILINE)
    text = re.sub(r"(:\s*)-?(?:nan|inf)\b", r"\1null", text)
    text = re.sub(r",(\s*)$(?=\s*[}\]])", r"\1", text, flags=re.MULTILINE)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _json_result(imported: Imported, info: dict[str, Any], name: str, results: dict[str, Any], place: int) -> None:
    kind = str(info.get("test", ""))
    match = re.match(r"(Send|RDMA_Write_imm|RDMA_Write|RDMA_Read|Atomic(?: \w+)?)", kind)
    test = Test(latency="Latency" in kind or "t_avg" in results, both="Bidirectional" in kind)
    test.verb = _verb(match[1]) if match else ""
    test.parameters = _perftest_json.parameters(info)
    figures = _perftest_json.figures(results)
    test.heading = f"JSON {name}"
    imported.rows += 1
    unit = _perftest_json.unit(info, results, test.latency)
    if not test.latency and not unit:
        imported.skip(
            place, json.dumps(results)[:200], "the JSON does not say its unit, and its message rate fits none"
        )
        return
    _take(imported, test, place, json.dumps(results), figures, unit)
    if name != "results" and imported.lines:
        imported.lines[-1].evidence["told"]["side"] = name.removeprefix("results_")
