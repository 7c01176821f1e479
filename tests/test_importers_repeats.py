"""Runs that come again are read as blocks and checked together: with the outcome of reading them row by row."""

from __future__ import annotations

import random

import pytest
from iobench import importers
from iobench.crosscheck.importing import _one_run
from iobench.importers import ncclrepeat, write
from iobench.importers.log import from_bytes

SIZES = tuple(1 << n for n in range(12, 20))
ODD = ("9.99", "N/A", "1", "-1.00", "inf", "nan", "NCCL", "12 13", "")


def _log(damaged: int) -> str:
    rng = random.Random(7)
    lines = "".join("".join(_one_run(rng)) for _ in range(130)).split("\n")
    rows = [at for at, line in enumerate(lines) if " float " in line][-len(SIZES) * 25 :]  # of the last runs
    for at in rng.sample(rows, damaged):
        words = lines[at].split()
        words[rng.randrange(len(words))] = rng.choice(ODD)
        lines[at] = " ".join(words)
    return "\n".join(lines)


def _kinds(runs: int) -> str:
    """Runs that share their points and differ in what stands beside them (a version), and some that are odd."""
    rng = random.Random(3)
    texts = ["".join(_one_run(rng)) for _ in range(runs)]
    for at in range(runs // 2, runs, 3):
        texts[at] = texts[at].replace("version 2.19.6", "version 2.19.5")
    texts[-7] = texts[-7].replace("     float", "      half")
    return "".join(texts)


def _written(text: str) -> list[str]:
    log = from_bytes(text.encode())
    run = importers.to_run(log, importers.read_log(log))
    return [run.header.to_json(), *run.warnings, *(write.compact(line) for record in run for line in record.lines)]


@pytest.mark.parametrize("damaged", [0, 1, 12, None])
@pytest.mark.parametrize("held", [150, 4000])
def test_blocks_are_read_as_rows_are(damaged: int | None, held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iobench.crosscheck.importing._SIZES", SIZES)
    monkeypatch.setattr(ncclrepeat, "_MOST_HELD", held)
    text, joined = _kinds(530) if damaged is None else _log(damaged), []
    join = ncclrepeat.join
    monkeypatch.setattr(
        "iobench.importers.ncclreading.join", lambda *args: (joined.append(args[0].run.block is not None), join(*args))
    )
    quick = _written(text)
    assert joined.count(True) >= 5  # else nothing is compared
    monkeypatch.setattr(ncclrepeat.Table, "block", lambda *_: None)
    monkeypatch.setattr(ncclrepeat.Batch, "add", lambda *_: False)
    assert _written(text) == quick
