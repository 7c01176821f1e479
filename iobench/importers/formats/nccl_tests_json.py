"""nccl-tests -J: its JSON report, where numbers have six decimals and -I keeps every iteration.

Facts of the format: booleans are the texts "true" and "false", NaN is "nan", root is padded text, ``env`` lists the
whole environment (only names of the allow-list are read, it may hold secrets), a killed test leaves it unclosed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, TypeGuard

from iobench.errors import UserError
from iobench.importers.collective import DTYPES, OPS
from iobench.importers.imported import Imported
from iobench.importers.log import Log
from iobench.importers.ncclreading import Reading
from iobench.importers.ncclrun import NcclRun
from iobench.importers.nccltable import Row, Side
from iobench.importers.nccltext import version_text
from iobench.units import US

TITLE = "nccl-tests (JSON)"
STATE = False

_CONFIG = {
    "nthreads": "threads", "ngpus": "gpus", "minimum_bytes": "min", "maximum_bytes": "max", "step_factor": "step",
    "step_bytes": "step", "warmup_iters": "warmup", "iterations": "iters", "aggregated_iterations": "agg",
    "validation": "validation", "graph": "graph",
}  # fmt: skip
_ALLOWED = ("NCCL_", "CUDA_", "UCX_", "FI_")
_SECRET = ("TOKEN", "KEY", "SECRET", "PASS")
_MOST_CUTS = 200


def recognise(head: str) -> float:
    """Score by the report's own keys."""
    marks = ('"nccl_version"', '"minimum_bytes"', '"out_of_place"', '"average_bus_bandwidth"', '"nthreads"')
    found = sum(mark in head for mark in marks)
    return 0.95 if found >= 3 and head.lstrip().startswith("{") else 0.0


def read(log: Log) -> Imported:
    """Read the report, an unclosed one as far as it goes."""
    imported = Imported()
    reading = Reading(imported, "nccl")
    document, whole = _document(log)
    run = _run(document)
    run.rows = list(_rows(document, imported))
    run.bounds = _bounds(document)
    imported.environment = _environment(document.get("env"))
    imported.started = str(document.get("start_time", ""))[:40]
    for error in _list(document.get("errors")):
        if isinstance(error, str) and error:
            imported.problem(f"the test reports: {error[:200]}")
    reading.take(run)
    reading.finish()
    if not whole:
        ended = "the report ends early: it is not closed"
        imported.incomplete = f"{imported.incomplete}; {ended}" if imported.incomplete else ended
    _per_iteration(document, imported)
    return imported


def _document(log: Log) -> tuple[dict[str, Any], bool]:
    """Return the report and whether it was whole; the last rows that are whole of one that is not closed."""
    try:
        document = json.loads(log.text)
        if isinstance(document, dict):
            return document, True
    except (ValueError, RecursionError):
        pass
    end = len(log.text)
    for _ in range(_MOST_CUTS):
        end = log.text.rfind("}", 0, end)
        if end < 0:
            break
        for closing in ("]}", "}", "}]}"):
            try:
                document = json.loads(log.text[: end + 1] + closing)
            except (ValueError, RecursionError):
                continue
            if isinstance(document, dict):
                return document, False
    raise UserError(f"{log.name} is no JSON report that can be read: give the file that nccl-tests -J wrote")


def _run(document: dict[str, Any]) -> NcclRun:
    config = _dict(document.get("config"))
    run = NcclRun(1, header=True)
    run.banner = {name: int(config[key]) for key, name in _CONFIG.items() if _is_count(config.get(key))}
    run.step_is_factor = "step_factor" in config
    run.blocking = config.get("blocking_collectives") == "true"
    args = _list(document.get("args"))
    program = str(args[0]).rsplit("/", 1)[-1][:60] if args else ""
    run.program, run.op = program, OPS.get(program.lower().removesuffix("_mpi").removesuffix("_perf"), "")
    code = document.get("nccl_version")
    if _is_count(code):
        run.versions["nccl library"] = version_text(int(code))
    for device in _list(config.get("devices")):
        rank, group = (_dict(device).get(key) for key in ("rank", "group"))
        if _is_count(rank):
            name, host = (str(_dict(device).get(key, ""))[:80] for key in ("device_info", "hostname"))
            run.devices.append((int(rank), int(group) if _is_count(group) else 0, host, name))
    return run


def _rows(document: dict[str, Any], imported: Imported) -> Iterator[Row]:
    for number, item in enumerate(_list(document.get("results")), start=1):
        row = _dict(item)
        size, count, dtype = row.get("size"), row.get("count"), str(row.get("type", ""))
        if not _is_count(size) or not _is_count(count) or dtype not in DTYPES:
            imported.skip(number, json.dumps(item)[:400], "result without size, count or a known type")
            continue
        root = str(row.get("root", "-1")).strip()
        sides = tuple(
            _side(_dict(row[key]), key == "in_place") for key in ("out_of_place", "in_place") if _dict(row.get(key))
        )
        lead = (number, int(size), int(count), dtype, str(row.get("redop", ""))[:20])
        yield Row(*lead, int(root) if re.fullmatch(r"-?[0-9]{1,9}", root) else -1, sides, json.dumps(item)[:400])


def _side(found: dict[str, Any], inplace: bool) -> Side:
    time = found.get("time", found.get("cpu_time"))
    wrong = found.get("nwrong")
    texts = (
        _text(time),
        _text(found.get("alg_bw")),
        _text(found.get("bus_bw")),
        "N/A" if wrong is None else _text(wrong),
    )
    return Side(inplace, *texts, "cpu_time" in found, False)


def _per_iteration(document: dict[str, Any], imported: Imported) -> None:
    """Put the single iterations of -I in the place of their mean: raw samples, the slowest process of each."""
    results = _list(document.get("results"))
    for line in imported.lines:
        rows = line.evidence["rows"]
        row = _dict(results[int(rows[0].split()[1].rstrip(":")) - 1]) if len(rows) == 1 else {}
        report = _dict(row.get("in_place_per_iter" if line.point.get("inplace") else "out_of_place_per_iter"))
        times = [value * US for value in _list(report.get("times_us")) if _is_time(value)]
        skipped = report.get("skipped_iterations")
        skip = int(skipped) if _is_count(skipped) else 0
        if len(times) - skip > 0 and len(times) == len(_list(report.get("times_us"))):
            line.seconds, line.warmup = [times[skip:]], [times[:skip]] if skip else []
            line.aggregate = ""
            line.notes = [*line.notes, "single iterations by CUDA events, each the most over the processes (-I)"]


def _environment(env: Any) -> dict[str, str]:
    pairs = (str(item).partition("=") for item in _list(env))
    return {
        name: value[:400]
        for name, _, value in pairs
        if name.startswith(_ALLOWED) and not any(word in name for word in _SECRET)
    }


def _bounds(document: dict[str, Any]) -> str:
    bounds = _dict(document.get("out_of_bounds"))
    if not bounds:
        return ""
    return f"{bounds.get('count')} {'OK' if bounds.get('okay') in ('true', True) else 'FAILED'}"[:40]


def _text(value: Any) -> str:
    return f"{value:.6f}" if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)[:40]


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
