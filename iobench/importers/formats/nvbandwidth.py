"""nvbandwidth: every cell of the plain tables of 0.1 to 0.10 and of its JSON (-j), by the axes of iobench's own probes.

Its sums serve to find missing rows only: they add unrelated cells and count N/A as 0. A copy within a GPU is counted
once by nvbandwidth; here, as the traffic of the memory, twice.
"""

from __future__ import annotations

import re
from typing import Any

from iobench.importers.formats._nvbandwidth import NAME, WRONG, Case, cases_of, json_cases, json_in
from iobench.importers.formats._rows import rated, timed, untag, wrong
from iobench.importers.imported import Imported
from iobench.importers.log import Log
from iobench.record import Leg, Line
from iobench.topology.graph import Topology
from iobench.units import GB, MIB, NS

TITLE = "nvbandwidth"
STATE = False

_DEVICE = re.compile(r"^Device ([0-9]{1,3}): (.+?)(?: \(([0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})\))?\s*$")
_FACT = re.compile(r"^(nvbandwidth Version|CUDA Runtime Version|CUDA Driver Version|Driver Version): *(\S+)\s*$")
_CASE = re.compile(
    r"(multinode_)?(?:device_to_device_)?(host_to_device|device_to_host|device_to_device|memcpy|bidirectional_memcpy|"
    r"all_to_host|host_to_all|all_to_one|one_to_all|all_from_one)"
    r"(_bidirectional)?(?:_memcpy)?(?:_(read|write))?_(ce|sm|tma)"
)
_LOCAL = re.compile(r"device_local_(copy|read|write)(?:_(ce|sm|tma))?")
_LATENCY = re.compile(r"(host_device|device_to_device)_latency_(sm|tma)")
_CHASE_NBYTES = 2 * MIB  # nvbandwidth's own, not to be chosen
_ROUNDING = 0.0051  # of a cell with two decimals


def recognise(head: str) -> float:
    """Tell nvbandwidth by its banner, its JSON, or a table's title with its sum."""
    if "nvbandwidth" in head and re.search(r"nvbandwidth Version: |\"nvbandwidth\"\s*:", head):
        return 1.0
    titled = "(row)" in head and re.search(r"(?:GPU|CPU)\(row\) (?:->|<-|<->) GPU\(column\)", head)
    summed = "SUM " in head and re.search(r"\bSUM (?:host|device|all|one)_\w+ [0-9.]+", head)
    return 0.9 if titled or summed else 0.0


def read(log: Log) -> Imported:
    """Read every cell of every case; cells of the diagonal and N/A are no measurements."""
    imported = Imported()
    data = json_in(log.text)
    if data is None:
        cases = list(cases_of([untag(line) for line in log.lines]))
        _facts(log, imported)
    else:
        cases = json_cases(data)
        _json_facts(data, imported)
    for case in cases:
        _take(imported, case)
    if any(line.point.get("stream") == "mean of both" for line in imported.lines):
        imported.normalise("nvbandwidth's totals of both directions are halved: a rate is that of one direction")
    if not cases and WRONG in log.text:
        imported.problem(f"nvbandwidth found wrong data: {_line_with(log.text, WRONG)}")
    return imported


# ---- what a cell means ----------------------------------------------------------------------


def _take(imported: Imported, case: Case) -> None:
    """Make Lines of a case's cells, or say why it has none."""
    if not case.matrices:
        if case.wrong:
            imported.problem(f"nvbandwidth found wrong data in {case.name}: {case.wrong}")
            _add_wrong(imported, case)
        elif case.reason.startswith("Waived"):
            imported.problem(f"{case.name or 'a case'}: {case.reason}")
        else:
            _miss(imported, case, case.reason)
        return
    for place, matrix in enumerate(case.matrices):
        doubt = _doubt(case, place)
        if doubt:
            _miss(imported, case, doubt)
        for row, cells in enumerate(matrix):
            for column, value in enumerate(cells):
                _take_cell(imported, case, place, row, column, value, doubt)
            imported.rows += 1


def _miss(imported: Imported, case: Case, why: str) -> None:
    sentence = f"{case.name or 'a table without a name'}: {why}"
    imported.incomplete = f"{imported.incomplete}; {sentence}" if imported.incomplete else sentence


def _doubt(case: Case, place: int) -> str:
    """Return why a matrix can't be whole: ragged rows, missing ones, a sum that its cells don't make."""
    matrix, width = case.matrices[place], case.widths[place]
    if any(len(row) != width for row in matrix) or not matrix:
        return f"a row of its table has not the {width} cells of its header"
    if "device_to_device" in case.name and re.search(r"GPU\(row\)", case.titles[place]) and len(matrix) != width:
        return f"its table has {len(matrix)} rows for {width} GPUs"
    total, said = sum(value or 0.0 for row in matrix for value in row), case.sums[place]
    cells = sum(len(row) for row in matrix)
    if said is not None and abs(total - said) > _ROUNDING * (cells + 1) + 1e-4 * abs(said):
        return f"its cells add up to {total:.2f}, nvbandwidth says {said:.2f}"
    return ""


def _take_cell(
    imported: Imported, case: Case, place: int, row: int, column: int, value: float | None, doubt: str
) -> None:
    number = case.rows[place][row] if row < len(case.rows[place]) else case.number
    if value is None or (value == 0 and row == column):
        return
    line = _line(case, place, row, column, value)
    if line is None:
        imported.skip(number, f"{case.name} [{row}][{column}] {value}", "not positive, or no case that is known")
        return
    line.aggregate = "median or mean over nvbandwidth's samples, three unless chosen"
    line.evidence = {
        "row": number, "case": case.name, "cell": [row, column], "matrix": place, "printed": value,
        "unit": "ns" if "(ns)" in case.titles[place] else "GB/s", "title": case.titles[place],
    }  # fmt: skip
    if doubt:
        line.status, line.reason = "suspect", f"the log's table is damaged: {doubt}"
    imported.lines.append(line)


def _line(case: Case, place: int, row: int, column: int, value: float) -> Line | None:
    name = case.name
    many = {"gpus": str(column), **({"cpu": row} if row else {})}
    if local := _LOCAL.fullmatch(name):
        return _local_line(local, case.nbytes, column, value)
    if latency := _LATENCY.fullmatch(name):
        ends = many if latency[1] == "host_device" else {"gpu": row, "peer": column}
        engine = {"engine": latency[2]} if latency[2] != "sm" else {}
        point = {"op": "chase", **ends, **engine, "pattern": "stride", "nbytes": _CHASE_NBYTES}
        return timed("pcie" if latency[1] == "host_device" else "p2p", point, value * NS, mode="kernel-clock")
    point_of = _point(case, place, row, column)
    if point_of is None:
        return None
    probe, point, mode = point_of
    share, rule = 1.0, "the copy's bytes, once"
    if point.get("stream") == "mean of both":
        share, rule = 0.5, "one direction: half of nvbandwidth's sum of both"
    return rated(probe, point, value * share * GB, case.nbytes, moved_rule=rule, mode=mode)


def _local_line(local: re.Match[str], nbytes: int, column: int, value: float) -> Line | None:
    """Return the line of a case within one GPU: a copy reads and writes what nvbandwidth counts once."""
    kernel, engine = local[1] or "copy", local[2]
    point = {"kernel": "memcpy" if kernel == "copy" else kernel, "gpu": column, "buffers": "one"}
    point |= {"engine": engine} if engine else {}
    factor = 2 if kernel == "copy" else 1
    rule = "read and written: twice nvbandwidth's count" if factor == 2 else "what the kernel reads or writes"
    line = rated("hbm", point, value * GB, nbytes, factor, moved_rule=rule, mode="events")
    if line is not None:
        line.legs = [Leg(f"vram:{column}", f"gpu:{column}")]
    return line


def _point(case: Case, place: int, row: int, column: int) -> tuple[str, dict[str, Any], str] | None:
    match = _CASE.fullmatch(case.name)
    if not match:
        return None
    nodes, way, both, direction, engine = match.groups()
    both = both or ("_bidirectional" if way == "bidirectional_memcpy" else None)
    mode = "events" if engine == "ce" else "kernel-loop"
    point: dict[str, Any] = {"op": "copy", "traffic": "both" if both else "one", "engine": engine, "mode": mode}
    if "host" in way:
        point |= {"gpus": str(column), "memory": "pinned"}
        point["direction"] = "h2d" if way in {"host_to_device", "host_to_all"} else "d2h"
        if "all" in way:
            point["others"] = "all GPUs copy at once"
        if row:
            point["cpu"] = row
        return "pcie", point, mode
    point["direction"] = direction or "unknown"
    ends: dict[str, tuple[int | str, int | str]] = {"all_to_one": ("all", column), "all_from_one": ("all", column), "one_to_all": (column, "all")}  # fmt: skip  # noqa: E501
    point["gpu"], point["peer"] = ends.get(way, (row, column))
    if nodes:
        point["multinode"] = True
    if both:
        point |= _stream(len(case.matrices), place)
    return "p2p", point, mode


def _stream(count: int, place: int) -> dict[str, str]:
    """Tell the matrices of two directions apart: one (the measured direction) up to 0.5, then both and their sum."""
    if count == 1 or place == 0:
        return {}
    return {"stream": "the opposite one" if place == 1 else "mean of both"}


def _add_wrong(imported: Imported, case: Case) -> None:
    line = Line("p2p" if "device_to_device" in case.name else "pcie", "", {"op": "copy", "case": case.name})
    line.evidence = {"row": case.number, "printed": case.wrong}
    imported.lines.append(wrong(line, f"nvbandwidth: {case.wrong}"))


# ---- facts ----------------------------------------------------------------------


def _facts(log: Log, imported: Imported) -> None:
    devices: dict[int, tuple[str, str | None]] = {}
    for line in log.lines[:2000]:
        text = untag(line).strip()
        if match := _FACT.match(text):
            imported.machine[match[1].lower().replace(" ", "_")] = match[2]
        elif match := _DEVICE.match(text):
            devices[int(match[1])] = (match[2], match[3])
    _topology(imported, devices)
    _host(log, imported)


def _host(log: Log, imported: Imported) -> None:
    """The line above "Device 0:" is the host's name from 0.5 on."""
    for before, line in zip(log.lines[:2000], log.lines[1:2000], strict=False):
        name = before.strip()
        if line.startswith("Device 0: ") and re.fullmatch(r"[A-Za-z0-9][\w.-]{0,252}", name):
            imported.hosts.append(name)
    for match in re.finditer(
        r"^[ \t]{0,40}Process +\d+ \(([\w.-]{1,253})\): device ", log.text[:200_000], re.MULTILINE
    ):
        if match[1] not in imported.hosts:
            imported.hosts.append(match[1])


def _json_facts(data: dict[str, Any], imported: Imported) -> None:
    top = data.get(NAME, data)
    if not isinstance(top, dict):
        return
    for key, name in (("version", "nvbandwidth_version"), ("CUDA Runtime Version", "cuda_runtime_version"), ("Driver Version", "driver_version")):  # fmt: skip  # noqa: E501
        if isinstance(top.get(key), (str, int)):
            imported.machine[name] = str(top[key])
    devices: dict[int, tuple[str, str | None]] = {}
    listed = top.get("GPU Device list") or top.get("GPU Device info")
    for entry in listed if isinstance(listed, list) else ():
        match = re.match(r"([0-9]{1,3}): (.+?) \(([0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})\)(?:: \(([\w.-]+)\))?", str(entry))  # fmt: skip  # noqa: E501
        if match:
            devices[int(match[1])] = (match[2], match[3])
            if match[4] and match[4] not in imported.hosts:
                imported.hosts.append(match[4])
    _topology(imported, devices)
    if isinstance(top.get("error"), str) and top["error"]:
        imported.problem(f"nvbandwidth ended with an error: {top['error'][:300]}")


def _topology(imported: Imported, devices: dict[int, tuple[str, str | None]]) -> None:
    from iobench.topology.logs.nvidia_smi import add_gpu
    from iobench.topology.logs.text import address

    if not devices:
        return
    graph = Topology("from-nvbandwidth")
    graph.add("machine", "machine")
    for number, (name, where) in sorted(devices.items()):
        add_gpu(graph, number, model_name=name, address=address(f"{where}.0") if where else None)
    imported.topology = graph.to_dict()


def _line_with(text: str, words: str) -> str:
    return next(line.strip() for line in text.splitlines() if words in line)[:300]
