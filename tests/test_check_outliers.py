"""Which node and which link of a fleet: what was made slow is named, and nothing else."""

from __future__ import annotations

import itertools
from concurrent.futures.process import BrokenProcessPool

import numpy as np
import pytest
from iobench.check import many, outliers
from iobench.errors import UserError
from iobench.record import Line
from iobench.units import GB, MIB

from make_run import run_of, save

GPUS = 4
PAIRS = [(a, b) for a, b in itertools.product(range(GPUS), repeat=2) if a != b]
SIZES = (1 * MIB, 16 * MIB, 256 * MIB)


def node(number: int, slow=lambda gpu, peer, nbytes: 1.0, noise: float = 0.01):
    """Return one machine's run: a copy of every ordered pair at three sizes."""
    rng = np.random.default_rng(number)
    made = []
    for (gpu, peer), nbytes in itertools.product(PAIRS, SIZES):
        seconds = (5e-6 + nbytes / (390 * GB)) * slow(gpu, peer, nbytes) * float(np.exp(rng.normal(0, noise)))
        point = {"op": "copy", "gpu": gpu, "peer": peer, "nbytes": nbytes}
        made.append(Line("p2p", "s", point, nbytes=nbytes, moved=nbytes, seconds=[[seconds]], proven=True))
    return run_of(made, topology={}, name=f"node-{number}")


def fleet(bad: dict[int, object], count: int = 20, noise: float = 0.01):
    return outliers([node(number, **({"slow": bad[number]} if number in bad else {}), noise=noise)
                     for number in range(count)])  # fmt: skip


def test_a_good_fleet_has_no_outliers():
    for noise in (0.001, 0.01, 0.05):
        found = fleet({}, noise=noise)
        assert (found.nodes, found.points, found.outliers) == (20, len(PAIRS) * len(SIZES), ())


def test_a_slow_node_is_named_as_a_whole():
    (found,) = fleet({7: lambda *_: 1.3}).outliers
    assert (found.node, found.place) == ("node-7", "")
    assert found.excess == pytest.approx(0.3, abs=0.03)
    assert found.far == found.points == len(PAIRS) * len(SIZES)
    assert found.sentence.startswith("node-7: the whole node takes")


def test_a_slow_link_is_named_with_its_ends():
    (found,) = fleet({3: lambda gpu, peer, _: 2.0 if (gpu, peer) == (1, 2) else 1.0}).outliers
    assert (found.node, found.place, found.far, found.points) == ("node-3", "link gpu:1 - gpu:2", 3, 3)
    assert found.sentence.endswith("% longer at 3 of 3 points")


def test_a_slow_gpu_is_not_six_slow_links():
    (found,) = fleet({3: lambda gpu, peer, _: 1.5 if 2 in (gpu, peer) else 1.0}).outliers
    assert (found.node, found.place, found.far) == ("node-3", "gpu:2", 6 * len(SIZES))


def test_a_single_point_is_told_as_one():
    (found,) = fleet({3: lambda gpu, peer, nbytes: 1.4 if (gpu, peer, nbytes) == (0, 1, 1 * MIB) else 1.0}).outliers
    assert (found.place, found.far) == ("single points", 1)
    assert found.examples == ("p2p gpu=0 nbytes=1048576 op=copy peer=1",)


def test_several_bad_nodes_do_not_hide_each_other():
    bad = {number: (lambda *_: 1.5) for number in range(8)}  # 8 of 20
    assert {found.node for found in fleet(bad).outliers} == {f"node-{number}" for number in bad}


def test_few_machines_judge_nothing_and_it_is_said():
    found = fleet({0: lambda *_: 3.0}, count=4)
    assert (found.points, found.alone, found.outliers) == (0, len(PAIRS) * len(SIZES), ())


def test_machines_of_one_name_are_numbered():
    runs = [node(number, **({"slow": lambda *_: 2.0} if number == 4 else {})) for number in range(9)]
    for run in runs:
        run.header.machine["name"] = "dgx"
    assert [found.node for found in outliers(runs).outliers] == ["dgx #5"]
    named = outliers({f"rack-{number}": run for number, run in enumerate(runs)})
    assert [found.node for found in named.outliers] == ["rack-4"]


@pytest.fixture
def eight(tmp_path):
    """Return the folders of eight machines' runs, one of them slow."""
    return [save(node(number, **({"slow": lambda *_: 1.5} if number == 5 else {})), tmp_path / f"n{number:02d}").parent
            for number in range(8)]  # fmt: skip


@pytest.mark.parametrize("chunks", [0, 1])
def test_what_other_processes_cannot_do_is_done_here(eight, monkeypatch, chunks):
    """No semaphores (no /dev/shm), or a process that the kernel killed for its memory after the first chunk."""

    def elsewhere(parts, before, processes):
        assert processes == 3
        yield from (many._gather(part, before) for part in parts[:chunks])
        raise BrokenProcessPool("killed") if chunks else OSError(38, "Function not implemented")

    monkeypatch.setattr(many, "_CHUNK", 3)
    alone = many.gather(eight)
    monkeypatch.setattr(many, "ALONE", 1)
    monkeypatch.setattr(many.os, "sched_getaffinity", lambda _: set(range(100)))
    monkeypatch.setattr(many, "_elsewhere", elsewhere)
    assert many.gather(eight) == alone


def test_many_files_give_the_same_whatever_the_number_of_processes(eight, monkeypatch):
    paths = eight
    monkeypatch.setattr(many.os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(many, "_CHUNK", 3)
    alone = many.gather(paths)
    monkeypatch.setattr(many, "ALONE", 1)
    several = many.gather(paths)
    assert several == alone
    assert several.collector.fleet() == alone.collector.fleet()
    assert [found.node for found in alone.collector.fleet().outliers] == ["n05"]
    assert alone.good == len(paths)
    (paths[6] / "records.jsonl").write_text("{")
    with pytest.raises(UserError, match="n06"):
        many.gather(paths)
