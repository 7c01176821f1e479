"""The crosscheck of weights: what it judges, what it leaves out, and a small run beside what is installed."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
from iobench import crosscheck
from iobench.crosscheck import weights
from iobench.crosscheck.weights import Entry
from iobench.errors import IobenchError, UserError
from iobench.storage.filesystem import filesystem_of
from iobench.units import GB, MIB


def entry(name: str, state: str, ours: bool, *rates: float) -> Entry:
    return Entry(name, state, ours, lambda: 0.0, [rate * GB for rate in rates])


def judged(*entries: Entry) -> tuple[bool, str]:
    said: list[str] = []
    return weights.judge(entries, said.append), "\n".join(said)


WARM = (entry("mine warm", "warm", True, *[5.0] * 6), entry("other warm", "warm", False, *[4.0] * 6))


def test_both_bars_are_met() -> None:
    met, said = judged(entry("mine", "direct", True, *[1.96] * 6), entry("fio", "direct", False, *[2.0] * 6), *WARM)
    assert met
    assert said.count("PASS") == 2
    assert "0.980" in said


@pytest.mark.parametrize(
    ("mine", "fio", "copy", "met"),
    [(1.8, 2.0, None, False), (1.8, 2.0, 1.8, True), (1.8, 2.0, 50.0, False), (1.5, 2.0, 1.8, False)],
)
def test_direct_stands_against_the_smaller_of_fio_and_the_copies(
    mine: float, fio: float, copy: float | None, met: bool
) -> None:
    copies = [entry("pinned", "copy", False, *[copy] * 6)] if copy else []
    found, said = judged(
        entry("mine", "direct", True, *[mine] * 6), entry("fio", "direct", False, *[fio] * 6), *copies, *WARM
    )
    assert found is met, said


def test_the_page_cache_stands_against_the_fastest_loader() -> None:
    direct = (entry("mine", "direct", True, *[2.0] * 6), entry("fio", "direct", False, *[2.0] * 6))
    slow, fast = entry("slow", "warm", False, *[1.0] * 6), entry("fast", "warm", False, *[6.0] * 6)
    assert judged(*direct, WARM[0], slow)[0]
    found, said = judged(*direct, WARM[0], slow, fast)
    assert not found
    assert "mine warm / fast" in said


def test_only_the_two_that_are_judged_are_measured_again() -> None:
    """The bar lies within the interval: more rounds of these two, until it does not or there were enough."""
    rates = iter([1.9, 2.0, 1.8] * 100)
    mine = entry("mine", "direct", True, *[1.9, 2.0, 1.8, 1.9] * 2)
    mine.measure = lambda: next(rates) * GB
    fio = entry("fio", "direct", False, *[2.0] * 8)
    fio.measure = lambda: 2.0 * GB
    slow = entry("slow", "direct", True, *[0.5] * 8)
    said: list[str] = []
    weights.decide([mine, fio, slow, *WARM], 4, said.append)
    assert len(mine.rates) == len(fio.rates) == 8 + 4 * (weights.MOST - 1)
    assert len(slow.rates) == 8
    assert len(said) == weights.MOST - 1
    fio.measure = mine.measure = lambda: 2.0 * GB
    before = len(fio.rates)
    weights.decide([entry("sure", "direct", True, *[2.0] * 8), fio, *WARM], 4, said.append)
    assert len(fio.rates) == before


def test_rounds_that_pick_do_not_judge() -> None:
    lucky = entry("lucky", "direct", True, 9.0, 9.0, 1.0, 1.0, 1.0, 1.0)
    steady = entry("steady", "direct", True, *[2.0] * 6)
    found, said = judged(lucky, steady, entry("fio", "direct", False, *[2.0] * 6), *WARM)
    assert not found
    assert "lucky / fio: 0.500" in said


def test_without_a_peer_there_is_nothing_to_judge() -> None:
    found, said = judged(entry("mine", "direct", True, *[2.0] * 6), WARM[0])
    assert not found
    assert said.count("nothing that works here") == 2


def test_what_fails_is_said_and_left_out() -> None:
    said: list[str] = []

    def broken() -> float:
        raise IobenchError("fio: io_uring_setup: Operation not permitted")

    entries = [Entry("uring", "direct", False, broken), Entry("mine", "direct", True, lambda: 1.0)]
    weights.measure(entries, 2, said.append)
    assert [one.name for one in entries] == ["mine"]
    assert entries[0].rates == [1.0, 1.0]
    assert said == ["left out: uring: fio: io_uring_setup: Operation not permitted"]


def test_it_has_its_name_and_its_place() -> None:
    assert crosscheck.find("weights") is weights.run
    with pytest.raises(UserError, match="not a storage measurement"):
        weights.run(print, scratch=Path("/proc"))


def test_a_small_run_verifies_and_judges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not filesystem_of(tmp_path).is_storage:
        pytest.skip("the temporary folder is no storage")
    monkeypatch.setattr(weights, "NBYTES", 8 * MIB)
    monkeypatch.setattr(weights, "QUICK_ROUNDS", 1)
    monkeypatch.setattr(weights, "LOADERS", ("safetensors",))
    said: list[str] = []
    met = weights.run(functools.partial(_keep, said), quick=True, scratch=tmp_path)
    text = "\n".join(said)
    assert isinstance(met, bool)
    assert "loads are verified" in text
    assert "buffered-warm" in text
    assert not list(tmp_path.glob("iobench-weights-*"))


def _keep(said: list[str], line: Any) -> None:
    said.append(str(line))
