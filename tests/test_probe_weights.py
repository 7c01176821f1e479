"""The weights probe: its points, what it does with the user's files, its records and their proof."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from iobench import hostmem
from iobench import probe as probes
from iobench.errors import IobenchError, Unavailable, UserError, WrongData
from iobench.storage import cache, flight, load, make, workspace
from iobench.storage.filesystem import NOT_STORAGE, filesystem_of
from iobench.timing.sampler import Sampler
from iobench.topology.graph import Topology
from iobench.units import MIB

from weighing import WEIGHTS, measured, point, points, sampling

pytestmark = pytest.mark.usefixtures("roomy")
COLD_OR_DIRECT = ("buffered-cold", "mmap-cold", "direct")


@pytest.fixture
def sampler(tmp_path: Path) -> Iterator[Sampler]:
    with sampling(tmp_path) as found:
        yield found


def test_the_default_grid_is_moderate_and_covers_every_method() -> None:
    found = points()
    assert {entry["method"] for entry in found} == set(WEIGHTS.axes["method"].values)
    assert {entry["target"] for entry in found} == {"host"}
    assert len(found) == 4 + 3 * 3
    assert all("path" not in entry for entry in found)
    direct = [entry for entry in found if entry["method"] == "direct"]
    assert {entry["threads"] for entry in direct} == {1, 4, 16}


def test_named_threads_and_blocks_hold_for_every_method() -> None:
    found = points("threads=1,2,8", "block=64K,16M", "method=buffered-cold,direct")
    for method in ("buffered-cold", "direct"):
        ways = {(entry["threads"], entry["block"]) for entry in found if entry["method"] == method}
        assert ways == {(threads, block) for threads in (1, 2, 8) for block in (64 << 10, 16 << 20)}


@pytest.mark.parametrize(
    ("assignments", "words"),
    [
        (("block=5000",), "multiples of 4096"),
        (("nbytes=1M", "shards=64"), "64 shards need"),
        (("threads=0",), "below 1"),
        (("target=disk",), "no value 'disk'"),
        (("part=slices", "tp=4", "rank=4"), "ranks count from 0"),
        (("align=3000",), "every block has to be a multiple"),
        (("method=cached",), "no value 'cached'"),
    ],
)
def test_bad_values_are_one_line(assignments: tuple[str, ...], words: str) -> None:
    with pytest.raises(UserError, match=words):
        points(*assignments)


@pytest.mark.parametrize("content", [b"version https://git-lfs.github.com/spec/v1\n", b"<!doctype html>", b"123", b""])
def test_the_users_file_is_judged_before_anything_is_measured(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    with pytest.raises(UserError) as caught:
        points(f"path={file}")
    assert "\n" not in str(caught.value)


def test_the_users_checkpoint_has_its_own_size(tmp_path: Path) -> None:
    with make.made(tmp_path, 3 * MIB, 1) as found:
        file = found.checkpoint.shards[0].path
        entries = points(f"path={file}", "method=direct", "threads=4", "block=1M")
        assert entries == [{"method": "direct", "target": "host", "threads": 4, "block": MIB, "path": str(file)}]


@pytest.mark.parametrize("method", WEIGHTS.axes["method"].values)
def test_every_method_gives_a_verified_record(method: str, sampler: Sampler) -> None:
    found = measured(point(method), sampler)
    assert found.verified is True
    assert found.nbytes == found.moved == 2 * MIB + 3
    assert len(found.timed.seconds[0]) >= 1
    assert found.timed.ops == 1
    assert found.evidence["loads"] == len(found.timed.seconds[0]) + len(found.timed.warmup[0])
    assert found.evidence["bytes_asked"] == found.nbytes
    if method.endswith("-cold"):
        assert found.evidence["resident_before"][1] <= cache.COLD_FRACTION
    if method.endswith("-warm"):
        assert found.evidence["resident_before"][0] >= cache.WARM_FRACTION
        assert found.proven
    json.dumps(found.evidence)


def test_reads_of_a_disk_are_proven_by_its_sectors(sampler: Sampler) -> None:
    for method in COLD_OR_DIRECT:
        found = measured(point(method), sampler)
        if found.evidence.get("device") is None or not filesystem_of(sampler.scratch).is_storage:
            pytest.skip("no block device is known behind the temporary folder")
        if any("counts no reads" in note for note in found.notes):
            pytest.skip("the block device behind the temporary folder counts no reads")
        assert found.proven, found.notes
        assert found.path == ("o_direct" if method == "direct" else "device via page cache")
        least = 1.0 if method == "direct" else 1.0 - cache.COLD_FRACTION  # so much may be left in the page cache
        assert found.evidence["device_bytes"][0] >= least * found.nbytes
        assert found.evidence["amplification"] >= least
        assert found.legs[0].src == f"block:{found.evidence['device']}"
        assert found.legs[0].dst == "mem:0"


def test_the_users_checkpoint_is_only_read(tmp_path: Path, sampler: Sampler) -> None:
    (tmp_path / "mine").mkdir()
    with make.made(tmp_path / "mine", 2 * MIB, 2) as made:
        folder = made.checkpoint.path
        before = {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in folder.iterdir()}
        found = measured(point("buffered-warm", path=str(folder)), sampler)
        assert found.verified
        assert found.nbytes == 2 * MIB
        sampler.close()
        assert before == {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in folder.iterdir()}


def test_files_are_made_once_for_all_points_of_a_launch(sampler: Sampler, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    write = make._write

    def counting(path: Path, nbytes: int, *more: Any) -> Any:
        written.append(nbytes)
        return write(path, nbytes, *more)

    monkeypatch.setattr(make, "_write", counting)
    for method in ("buffered-warm", "mmap-warm"):
        measured(point(method), sampler)
    assert len(written) == 2
    measured(point("buffered-warm", nbytes=MIB, shards=1), sampler)
    assert len(written) == 3
    assert len(list(Path(sampler.scratch).glob("iobench-weights-*"))) == 1, "the files before were not removed"


def damaged(reader: Any, harm: Any) -> Any:
    """Return a reader whose operation is followed by ``harm(destination)``."""

    def make_operation(todo: Any, destination: memoryview, *rest: Any) -> Any:
        operation = reader(todo, destination, *rest)

        def harmed(fds: Any) -> None:
            operation(fds)
            harm(np.frombuffer(destination, np.uint8))

        return harmed

    return make_operation


def test_one_wrong_byte_is_found(sampler: Sampler, monkeypatch: pytest.MonkeyPatch) -> None:
    def harm(memory: np.ndarray) -> None:
        memory[MIB] ^= 1

    monkeypatch.setattr(load.read, "reader", damaged(load.read.reader, harm))
    with pytest.raises(WrongData, match=r"model-00001-of-00002\.safetensors: 1 of"):
        WEIGHTS.measure(point("buffered-warm"), sampler)


def test_a_read_that_never_happens_is_found(sampler: Sampler, monkeypatch: pytest.MonkeyPatch) -> None:
    """The right bytes of the load before don't pass for those of this one."""
    reader, calls = load.read.reader, []

    def lazy(*arguments: Any) -> Any:
        operation = reader(*arguments)

        def first_time_only(fds: Any) -> None:
            calls.append(1)
            if len(calls) == 1:
                operation(fds)

        return first_time_only

    monkeypatch.setattr(load.read, "reader", lazy)
    with pytest.raises(WrongData):
        WEIGHTS.measure(point("buffered-warm"), sampler)


def test_a_file_that_is_not_evicted_is_not_called_cold(sampler: Sampler, monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(point("buffered-warm"), sampler)  # in the cache now
    if min(found.evidence.get("resident_after") or [0.0]) < cache.WARM_FRACTION:
        pytest.skip("this filesystem drops a file's pages when it is opened (FUSE), or memory is short")
    monkeypatch.setattr(os, "posix_fadvise", lambda *_: None)
    with pytest.raises((IobenchError, Unavailable), match=r"not cold|owner|in memory"):
        WEIGHTS.measure(point("buffered-cold"), sampler)


def test_o_direct_that_a_cache_answers_is_unproven(sampler: Sampler, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = load.Counted(0, 0)
    monkeypatch.setattr(load, "count", lambda *_: nothing)
    found = measured(point("direct"), sampler)
    assert not found.proven
    assert found.path != "o_direct"
    assert found.notes


def test_on_tmpfs_it_is_not_a_storage_measurement() -> None:
    shm = Path("/dev/shm")
    if not (shm.is_dir() and os.access(shm, os.W_OK) and filesystem_of(shm).name == "tmpfs"):
        pytest.skip("no writable tmpfs at /dev/shm")
    if shutil.disk_usage(shm).free < 16 * MIB:
        pytest.skip("no room in /dev/shm")
    sampler = Sampler(budget=0.02, scratch=str(shm))
    try:
        with pytest.raises(Unavailable, match=NOT_STORAGE):
            WEIGHTS.measure(point("buffered-cold"), sampler)
        found, reason = None, ""
        try:
            found = WEIGHTS.measure(point("direct"), sampler)
        except Unavailable as refused:  # older kernels: tmpfs takes no O_DIRECT
            reason = str(refused)
        assert NOT_STORAGE in (found.path if found else reason)
        assert found is None or (not found.proven and found.legs == [])
    finally:
        sampler.close()


def test_too_little_memory_is_a_reason_with_both_figures(sampler: Sampler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostmem, "available_nbytes", lambda *_: 3 * MIB)
    with pytest.raises(Unavailable, match=r"2 MiB is more than half of the 3 MiB of memory"):
        WEIGHTS.measure(point("direct"), sampler)


def test_a_nearly_full_disk_skips_the_default_size_and_refuses_one_that_was_asked_for(
    sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(sampler.scratch)._replace(free=MIB)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(Unavailable, match=r"more than 10% of the 1 MiB free in .*--scratch"):
        WEIGHTS.measure(point("direct", nbytes=WEIGHTS.axes["nbytes"].values[0]), sampler)
    with pytest.raises(UserError, match=r"2 MiB needed, 1 MiB free; .*--scratch"):
        WEIGHTS.measure(point("direct", nbytes=2 * MIB), sampler)


def test_a_slow_disk_gets_one_sample_a_launch(sampler: Sampler) -> None:
    measured(point("buffered-warm"), sampler)
    space = sampler.shared("weights", workspace.workspace)
    stage = space._target._value
    assert load.few(Sampler(budget=1e9), stage).min_samples == 3
    assert load.few(Sampler(budget=1e-9), stage).min_samples == 1


def test_small_checkpoints_claim_no_limit_of_the_memory(sampler: Sampler, monkeypatch: pytest.MonkeyPatch) -> None:
    for cache_nbytes, memory in ((32 * MIB, []), (0, []), (MIB // 2, ["mem:0"])):
        # by the function's own globals: another test may have loaded the file again
        monkeypatch.setitem(WEIGHTS.measure.__globals__, "_last_level_cache", lambda _, nbytes=cache_nbytes: nbytes)
        assert [leg.src for leg in measured(point("buffered-warm"), sampler).legs] == memory


def machine_with_gpu() -> Topology:
    graph = Topology("one GPU")
    graph.add("gpu:0", "gpu", vendor="NVIDIA")
    return graph


def test_the_grid_of_a_gpu_has_every_way_and_loader() -> None:
    axes = probes.narrow(WEIGHTS, ["target=gpu"])
    found = list(WEIGHTS.points(machine_with_gpu(), axes))
    methods = {entry["method"] for entry in found}
    assert {"direct", "buffered-cold", "mmap-warm", "kvikio-cold", "kvikio-compat-cold", "runai-cold"} <= methods
    assert all(entry["target"] == "gpu" for entry in found)
    assert len(found) < 40
    both = list(
        WEIGHTS.points(machine_with_gpu(), probes.narrow(WEIGHTS, ["target=host,gpu", "method=kvikio-cold,direct"]))
    )
    assert {(entry["target"], entry["method"]) for entry in both} == {
        ("host", "direct"), ("gpu", "direct"), ("gpu", "kvikio-cold"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("assignments", "words"),
    [(("target=gpu",), "needs an NVIDIA GPU"), (("method=kvikio-cold",), "needs an NVIDIA GPU")],
)
def test_without_a_gpu_it_says_what_it_needs(assignments: tuple[str, ...], words: str) -> None:
    with pytest.raises(Unavailable, match=words):
        points(*assignments)


def test_axes_that_mean_nothing_for_a_method_make_no_points() -> None:
    found = points(
        "method=direct,buffered-warm", "load=1,2", "cold=data,metadata", "depth=1,4", "threads=1", "block=1M"
    )
    assert [(entry["method"], entry.get("load", 1)) for entry in found] == [
        ("direct", 1), ("direct", 2), ("buffered-warm", 1),
    ]  # fmt: skip
    parts = points("method=direct", "part=tensors", "depth=1,4", "threads=1", "block=1M")
    assert [entry["depth"] for entry in parts] == [1, 4]
    slices = points("method=direct", "part=slices", "tp=2,4", "rank=1", "threads=1", "block=1M")
    assert [(entry["part"], entry["tp"], entry["rank"]) for entry in slices] == [("slices", 2, 1), ("slices", 4, 1)]
    usual = points("method=direct", "part=slices", "threads=1", "block=1M")
    assert [("tp" in entry, "rank" in entry, entry["part"]) for entry in usual] == [(False, False, "slices")]
    assert [entry["load"] for entry in points("method=direct", "load=1,2,3", "threads=1", "block=1M")] == [1, 2, 3]


def test_engines_are_for_o_direct_and_make_depth_mean_something() -> None:
    few = ("threads=1", "block=1M")
    found = points("method=direct,buffered-warm", "engine=preadv,io_uring,aio", "depth=1,8", *few)
    assert [(entry["method"], entry.get("engine"), entry.get("depth")) for entry in found] == [
        ("direct", "preadv", None),
        *(("direct", engine, depth) for engine in ("io_uring", "aio") for depth in (1, 8)),
        ("buffered-warm", None, None),
    ]
    assert WEIGHTS.axes["engine"].choices == flight.ENGINES
