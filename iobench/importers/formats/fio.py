"""fio: its JSON (json and json+, versions 2 and 3) and the "normal" text. The terse format is not read.

A job of several processes without group_reporting is one point: the sum of its processes' bytes over the longest of
their times. Latencies are of whole requests. fio 2 counts its bytes in KiB and has no bw_bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from iobench import jsontext
from iobench.errors import UserError
from iobench.importers.formats._rows import number, untag, wrong
from iobench.importers.imported import Imported, tell_apart
from iobench.importers.log import Log
from iobench.record import Line
from iobench.units import KIB, MS, NS, US, parse_size

TITLE = "fio"
STATE = False

_MOST_STARTS = 1000
_MOST = 1e30  # bytes, seconds or requests; JSON knows infinity (1e400)
_TERSE = re.compile(r"^(?:[2-5];)?fio-\d[\w.-]{0,99};|^[2-5];fio-", re.MULTILINE)
_JOB = re.compile(r"^(.{1,200}?): \(groupid=(\d{1,9}), jobs=(\d{1,9})\): err= *(\d{1,5})(?: \([^)]*\))?: pid=")
_DEFINED = re.compile(r"^(.{1,200}?): \(g=(\d{1,9})\): rw=(\w+), bs=(?:\(R\) )?([\d.]+[KMGT]?i?B?)-([\d.]+[KMGT]?i?B?).*?ioengine=([\w-]+), iodepth=(\d{1,9})")  # fmt: skip  # noqa: E501
_RATE = re.compile(r"^\s+(read|write|trim)\s*: IOPS=([\d.]+[kM]?), BW=[\d.]+\w*B/s \(([\d.]+)([kMGT]?)B/s\)\(([\d.]+)([KMGT]?i?)B/(\d+)msec")  # fmt: skip  # noqa: E501
_SCALE = {"": 1, "k": 1000, "M": 10**6, "G": 10**9, "T": 10**12}
_DATA_ERROR = 84  # EILSEQ: what fio ends with when its verification fails
_SENTENCE = "fio's terse format has no units and changes with its version: run it with --output-format=json"


def recognise(head: str) -> float:
    """Tell fio by its JSON, its text's job line, or its terse line."""
    if re.search(r"\"fio version\"\s*:", head):
        return 1.0
    if _TERSE.search(head):
        return 0.95
    if re.search(r"\(groupid=\d+, jobs=\d+\): err= *\d+", head):
        return 0.9
    return 0.6 if re.search(r"^fio-\d", head, re.MULTILINE) else 0.0


def read(log: Log) -> Imported:
    """Read every job of every document; UserError with the way out for the terse format."""
    imported = Imported()
    documents = list(_documents(log.text))
    for place, data in documents:
        _read_json(imported, data, place)
    if not documents and '"fio version"' in log.text:
        imported.incomplete = "fio's JSON ends early: fio was ended before it wrote all of it"
    elif not documents and _TERSE.search(log.text):
        raise UserError(f"{log.name}: {_SENTENCE}")
    elif not documents:
        _read_text(imported, [untag(line) for line in log.lines])
    tell_apart(imported.lines, lambda line: {"job": line.evidence.get("job"), "group": line.evidence.get("group")})
    return imported


def _documents(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for at, data in jsontext.documents(text, _MOST_STARTS):
        if isinstance(data, dict) and ("fio version" in data or "jobs" in data):
            yield text.count("\n", 0, at) + 1, data


def _read_json(imported: Imported, data: dict[str, Any], place: int) -> None:
    common = data.get("global options")
    groups: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
    jobs = data.get("jobs") or _of_clients(imported, data.get("client_stats"))
    for job in jobs if isinstance(jobs, list) else ():
        if isinstance(job, dict):
            groups.setdefault((str(job.get("jobname")), str(job.get("groupid"))), []).append(job)
    if not groups:
        imported.incomplete = "fio's JSON has no job: it was ended before the first"
    version = str(data.get("fio version", ""))
    if version:
        imported.machine["fio_version"] = version[:40]
    for (name, group), members in groups.items():
        options = {**(common if isinstance(common, dict) else {}), **_options(members[0])}
        for direction in ("read", "write", "trim"):
            _direction(imported, members, options, direction, {"row": place, "job": name, "group": group})
        imported.rows += 1
    if len({group for _, group in groups}) < len(groups):
        imported.problem("jobs of one group ran at the same time: each rate is that of a part of the load")


def _of_clients(imported: Imported, stats: Any) -> list[Any]:
    """Return the jobs of every host that ``fio --client`` ran; its own sum over them is not counted again."""
    jobs = [job for job in stats if isinstance(job, dict)] if isinstance(stats, list) else []
    jobs = [job for job in jobs if job.get("jobname") != "All clients"]
    hosts = dict.fromkeys(job["hostname"] for job in jobs if isinstance(job.get("hostname"), str))
    imported.hosts += [host for host in hosts if host not in imported.hosts]
    if len(hosts) > 1:
        imported.normalise(f"jobs of one name on {len(hosts)} hosts count as one: their bytes and rates are added up")
    return jobs


def _options(job: dict[str, Any]) -> dict[str, Any]:
    found = job.get("job options")
    return found if isinstance(found, dict) else {}


def _direction(
    imported: Imported, members: list[dict[str, Any]], options: dict[str, Any], direction: str, where: dict[str, Any]
) -> None:
    parts = [part for job in members if isinstance(part := job.get(direction), dict)]
    parts = [part for part in parts if _positive(part.get("total_ios")) or _positive(part.get("io_bytes"))]
    errors = {int(job["error"]) for job in members if isinstance(job.get("error"), int) and job["error"]}
    if not parts:
        return
    moved, seconds = sum(_bytes(part) for part in parts), max(_seconds(part) for part in parts)
    if not moved or not seconds:
        imported.skip(where["row"], f"{where['job']} {direction}", "no bytes, or a time below fio's millisecond")
        return
    point = _point(options, direction, len(members))
    rate = sum(_rate(part) for part in parts)
    printed = {"bytes": moved, "runtime_ms": [part.get("runtime") for part in parts], "bw_bytes": [part.get("bw_bytes") for part in parts], "bw": [part.get("bw") for part in parts], "iops": [part.get("iops") for part in parts]}  # fmt: skip  # noqa: E501
    line = Line(
        _probe(options, direction), "", point, nbytes=moved, moved=moved, moved_rule="every byte of the job, once",
        seconds=[[moved / rate if rate and len(parts) == 1 else seconds]], mode="whole-run",
        aggregate="whole job's bytes over its time", evidence={**where, "printed": printed, "unit": "bytes, ms"},
    )  # fmt: skip
    _judge(line, errors, options)
    if line.status == "failed":
        imported.problem(f"job {str(where.get('job', ''))[:60] or 'unnamed'}: {line.reason}")
    imported.lines.append(line)
    if len(parts) == 1:
        _add_latency(imported, parts[0], point, where)


def _judge(line: Line, errors: set[int], options: dict[str, Any]) -> None:
    if _DATA_ERROR in errors:
        wrong(line, "fio's verification of the data failed (error 84)")
    elif errors:
        line.status, line.reason = "failed", f"fio ended with error {', '.join(map(str, sorted(errors)))}"
    elif str(options.get("verify", "0")) not in {"0", "", "null"} and line.point["direction"] == "read":
        line.verified = True


def _probe(options: dict[str, Any], direction: str) -> str:
    pattern = str(options.get("rw", options.get("readwrite", direction)))
    return "weights" if direction == "read" and pattern == "read" else "storage"


def _point(options: dict[str, Any], direction: str, jobs: int) -> dict[str, Any]:
    point: dict[str, Any] = {"direction": direction}
    pattern = options.get("rw", options.get("readwrite"))
    if pattern:
        point["rw"] = str(pattern)
    direct = str(options.get("direct", options.get("buffered", "")))
    if "direct" in options or "buffered" in options:
        on = direct not in {"0", "false"} if "direct" in options else direct in {"0", "false"}
        point["method"] = "direct" if on else "buffered"
    if options.get("ioengine"):
        point["engine"] = str(options["ioengine"])
    block = _size(options.get("bs", options.get("blocksize")))
    if block:
        point["block"] = block
    point["depth"] = _whole(options.get("iodepth")) or 1
    point["threads"] = max(jobs, _whole(options.get("numjobs")) or 1)
    return point


def _size(text: Any) -> int | None:
    """Return the bytes of a block size; several ("4k,8k", "4k/60") are none."""
    try:
        return parse_size(str(text)) if text else None
    except UserError:
        return None


def _whole(value: Any) -> int | None:
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < _MOST


def _rate(part: dict[str, Any]) -> float:
    if _positive(part.get("bw_bytes")):
        return float(part["bw_bytes"])
    return float(part["bw"]) * KIB if _positive(part.get("bw")) else 0.0


def _bytes(part: dict[str, Any]) -> int:
    """fio 3 has io_bytes in bytes (and io_kbytes beside it); fio 2 has KiB under that name."""
    value: Any = part.get("io_bytes")
    if not _positive(value):
        return 0
    return int(value) if "io_kbytes" in part or "bw_bytes" in part else int(value) * KIB


def _seconds(part: dict[str, Any]) -> float:
    value = part.get("runtime")
    return float(value) * MS if isinstance(value, (int, float)) and _positive(value) else 0.0


def _requests(table: dict[str, Any], part: dict[str, Any]) -> str:
    count = table.get("N", part.get("total_ios"))
    return f"{count} " if _positive(count) else ""


def _add_latency(imported: Imported, part: dict[str, Any], point: dict[str, Any], where: dict[str, Any]) -> None:
    """Add the median time of one request, from fio's histogram of completion latencies."""
    for key, unit in (("clat_ns", NS), ("clat", US)):
        table = part.get(key)
        percentile = table.get("percentile") if isinstance(table, dict) else None
        median: Any = percentile.get("50.000000") if isinstance(percentile, dict) else None
        if _positive(median) and isinstance(table, dict):
            kept = {name: percentile.get(name) for name in ("50.000000", "99.000000", "99.900000") if isinstance(percentile, dict)}  # fmt: skip  # noqa: E501
            line = Line(
                "storage", "", {**point, "measured": "one request"}, quantity="latency", nbytes=point.get("block", 0),
                moved=point.get("block", 0), seconds=[[float(median) * unit]], mode="request",
                aggregate=f"median of {_requests(table, part)}requests, out of fio's histogram",
                evidence={**where, "printed": {**kept, "mean": table.get("mean")}, "unit": key},
            )  # fmt: skip
            imported.lines.append(line)
            return


# ---- the normal text ----------------------------------------------------------------------


def _read_text(imported: Imported, lines: list[str]) -> None:
    defined: dict[str, re.Match[str]] = {}
    job: re.Match[str] | None = None
    for place, line in enumerate(lines, start=1):
        if match := _DEFINED.match(line):
            defined[match[1]] = match
        elif match := _JOB.match(line):
            job = match
        elif re.match(r"^\s+(read|write|trim)\s*: ", line):
            rate = _RATE.match(line)
            if rate and job:
                _text_line(imported, place, line, job, rate, defined.get(job[1]))
            else:
                imported.skip(place, line, "fio's text of an older version: run it with --output-format=json")
    if imported.lines:
        imported.problem("fio's text has three digits only: --output-format=json has all")
    elif not imported.unread:
        imported.incomplete = "no job's result is in the log: fio was ended, or this is not its result"


def _text_line(
    imported: Imported, place: int, text: str, job: re.Match[str], rate: re.Match[str], defined: re.Match[str] | None
) -> None:
    bytes_per_s, seconds = (number(rate[3]) or 0.0) * _SCALE[rate[4]], (number(rate[7]) or 0.0) * MS
    imported.rows += 1
    if not bytes_per_s or not seconds:
        imported.skip(place, text, "no positive rate")
        return
    point: dict[str, Any] = {"direction": rate[1], "threads": int(job[3])}
    if defined:
        point |= {"rw": defined[3], "engine": defined[6], "depth": int(defined[7])}
        block = _size(defined[4]) if defined[4] == defined[5] else None
        point |= {"block": block} if block else {}
    moved = round(bytes_per_s * seconds)
    line = Line(
        "weights" if point.get("rw") == "read" else "storage", "", point, nbytes=moved, moved=moved,
        moved_rule="rate times time: the log has three digits", seconds=[[seconds]], mode="whole-run",
        aggregate="whole job's rate, three digits",
        evidence={"row": place, "job": job[1], "group": job[2], "printed": text.strip()[:200]},
    )  # fmt: skip
    error = int(job[4])
    if error:
        _judge(line, {error}, {})
    imported.lines.append(line)
