"""Fuzzes every importer: mutated logs must give a run or a sentence, in time, and never more than they hold.

    python tests/fuzz/fuzz_importers.py [SECONDS] [SEED]      (make fuzz: 600 CPU-seconds; tests: a short one)

Seeds are the logs in tests/fixtures/logs and nvbandwidth's in tests/fixtures/nvbandwidth. Mutations know what logs
are made of: lines are dropped, doubled, swapped, cut, tagged and spliced from other tools' logs, figures replaced by
odd ones, bytes flipped; tables, headings, units, counts, JSON and XML are changed as such (``structures.py``).
Exit status 1 and the input in ``fuzz-failure.log`` for a traceback, more than two seconds each time, or a run whose
file is more than ten times the input or 1 KiB for each figure in it (a cell of a matrix has few bytes, a point has its
facts).
"""

from __future__ import annotations

import random
import re
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT.parent)]

from iobench import importers  # noqa: E402
from iobench.errors import UserError  # noqa: E402
from iobench.importers import write  # noqa: E402
from iobench.importers.log import from_bytes  # noqa: E402
from iobench.record import Run  # noqa: E402
from tests.fuzz import structures  # noqa: E402

SLOWEST = 2.0
HANGS = 10.0
_TRIES = 3
GROWTH, PER_FIGURE, CONSTANT = 10, 1024, 65536
_MOST = 200_000
_NUMBER = re.compile(rb"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
ODD = (
    b"nan", b"inf", b"-inf", b"-1", b"0", b"0.00", b"1e400", b"1e-400", b"N/A", b"-", b"", b"9" * 30,
    b"18446744073709551616", b"\xc2\xb2", b"4294967296", b"0x10", b"1,5",
    b"1e+07", b"\xff\xfe", b"\0", b"\x1b[2J", b"<script>",
    b"../../x", b"{", b"]", b'"', b"%s", b"true", b"null", b"\xe2\x80\xae", b"[1,0]<stdout>:",
)  # fmt: skip


def seeds() -> list[bytes]:
    """Return the logs that are mutated."""
    files = [path for folder in ("logs", "nvbandwidth") for path in sorted((ROOT / "fixtures" / folder).rglob("*"))]
    return [path.read_bytes()[:_MOST] for path in files if path.is_file()]


def _lines(
    change: Callable[[random.Random, list[bytes]], list[bytes]],
) -> Callable[[random.Random, bytes, bytes], bytes]:
    return lambda rng, data, _other: b"\n".join(change(rng, data.split(b"\n")))


def _slice(rng: random.Random, lines: list[bytes]) -> slice:
    start = rng.randrange(len(lines))
    return slice(start, start + rng.choice((1, 1, 2, 5, 50)))


def drop(rng: random.Random, lines: list[bytes]) -> list[bytes]:
    del lines[_slice(rng, lines)]
    return lines


def double(rng: random.Random, lines: list[bytes]) -> list[bytes]:
    part = _slice(rng, lines)
    lines[part.start : part.start] = lines[part] * rng.choice((1, 2, 30))
    return lines


def swap(rng: random.Random, lines: list[bytes]) -> list[bytes]:
    a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]
    return lines


def cut(rng: random.Random, lines: list[bytes]) -> list[bytes]:
    at = rng.randrange(len(lines))
    lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]
    return lines


def tag(rng: random.Random, lines: list[bytes]) -> list[bytes]:
    prefix = rng.choice(
        (b"[1,0]<stdout>:", b"0: ", b"[pod/a/b] ", b"> ", b"    ", b"2026-01-01T00:00:00Z ", b"x" * 300)
    )
    return [prefix + line if rng.random() < 0.9 else line for line in lines]


def figure(rng: random.Random, data: bytes, _other: bytes) -> bytes:
    found = list(_NUMBER.finditer(data))
    if not found:
        return data + rng.choice(ODD)
    for match in sorted(rng.sample(found, min(len(found), rng.choice((1, 1, 3)))), key=lambda m: -m.start()):
        data = data[: match.start()] + rng.choice(ODD) + data[match.end() :]
    return data


def flip(rng: random.Random, data: bytes, _other: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 4, 40))):
        if changed:
            changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def splice(rng: random.Random, data: bytes, other: bytes) -> bytes:
    a, b = rng.randrange(len(data) + 1), rng.randrange(len(other) + 1)
    return data[:a] + other[b:]


def truncate(rng: random.Random, data: bytes, _other: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


PLAIN = (*map(_lines, (drop, double, swap, cut, tag)), figure, figure, flip, splice, truncate)
MUTATIONS = (*PLAIN, *structures.MUTATIONS)


def mutated(rng: random.Random, corpus: list[bytes]) -> bytes:
    """Return one mutated log."""
    data = rng.choice(corpus)
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        data = rng.choice(MUTATIONS)(rng, data, rng.choice(corpus))[:_MOST]
    return data


def size_of(run: Run) -> int:
    """Return the bytes that the run's file would have."""
    return len(run.header.to_json()) + sum(len(write.compact(line)) for record in run for line in record.lines)


def _stop(_number: int, _frame: object) -> None:
    raise TimeoutError(f"more than {HANGS:.0f} s of CPU: a hang")


def problem(data: bytes) -> str:
    """Return "" where the importer behaves, else what it did.

    Too slow is what is so every time: a machine that stops for a while counts that as CPU time of who ran.
    """
    for _ in range(_TRIES):
        found, slow = _once(data)
        if not slow:
            break
    return found


def _once(data: bytes) -> tuple[str, bool]:
    """Return what the importer did wrong, "" for nothing, and whether that is the time it took."""
    started = time.process_time()
    size = 0
    signal.signal(signal.SIGVTALRM, _stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, HANGS)
    try:
        log = from_bytes(data)
        size = size_of(importers.to_run(log, importers.read_log(log)))
    except UserError as error:
        if "\n" in str(error) or len(str(error)) > 2000:
            return f"not one short line: {str(error)[:300]!r}", False
    except TimeoutError as error:
        return str(error), True
    except Exception:  # noqa: BLE001 - the fuzzer's purpose: anything else is what it looks for
        return traceback.format_exc(), False
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    spent = time.process_time() - started
    if spent > SLOWEST:
        return f"took {spent:.1f} s of CPU for {len(data)} bytes", True
    figures = sum(1 for _ in _NUMBER.finditer(data))
    if size > max(GROWTH * len(data), PER_FIGURE * figures) + CONSTANT:
        return f"{len(data)} bytes with {figures} figures became {size}", False
    return "", False


def main(seconds: float = 600.0, seed: int = 0, most: int = 1 << 62) -> int:
    """Fuzz for so much CPU time, or so many inputs; return the exit status."""
    corpus, rng, count, until = seeds(), random.Random(seed), 0, time.process_time() + seconds
    while count < most and time.process_time() < until:
        data, count = mutated(rng, corpus), count + 1
        found = problem(data)
        if found:
            Path("fuzz-failure.log").write_bytes(data)
            sys.stdout.write(f"input {count} of seed {seed}: {found}\nthe input is in fuzz-failure.log\n")
            return 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    sys.stdout.write(
        f"{count} mutated logs of {len(corpus)}, {seconds:.0f} s of CPU at most, {peak} MiB, seed {seed}: "
        "none misbehaved\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(*(float(text) for text in sys.argv[1:2]), *(int(text) for text in sys.argv[2:4])))
