"""What a load has to bring where: every byte once, slices of ranks that make up the tensors, aligned reads."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from iobench.errors import IobenchError, WrongData
from iobench.storage import files, load, make, plan, read, ring, stages, target
from iobench.storage.mapped import mapped
from iobench.storage.plan import Area
from iobench.storage.stages import Stages
from iobench.storage.way import Way
from iobench.units import KIB, MIB


@settings(max_examples=200, deadline=None)
@given(
    offset=st.integers(0, 100_000),
    width=st.integers(1, 60_000),
    gap=st.integers(0, 20_000),
    rows=st.integers(1, 9),
    block=st.sampled_from([4096, 8192, 65536]),
    alignment=st.sampled_from([1, 512, 4096]),
)
def test_parts_cover_an_area_exactly_and_fit_a_slot(
    offset: int, width: int, gap: int, rows: int, block: int, alignment: int
) -> None:
    area = Area("t", 0, offset, 512, width, width + gap, rows)
    content = np.random.default_rng(offset).integers(0, 256, offset + area.span + 4096, np.uint8)
    out = np.zeros(512 + area.nbytes, np.uint8)
    for request in [ring._request(part, alignment) for part in plan.cut(area, block, alignment)]:
        assert request.offset % alignment == request.length % alignment == 0
        assert request.length <= block
        slot = np.zeros(block, np.uint8)
        slot[: request.length] = np.resize(content[request.offset : request.offset + request.length], request.length)
        part = request.area
        out[part.start : part.start + part.nbytes] = target.rows(slot, request.head, part).reshape(-1)
    rows_of_file = [content[offset + row * (width + gap) :][:width] for row in range(rows)]
    assert np.array_equal(out[512:], np.concatenate(rows_of_file))


@pytest.fixture
def made(tmp_path: Path) -> Iterator[make.Made]:
    with make.made(tmp_path, 3 * MIB + 7, 2) as found:
        yield found


def tensor(found: make.Made, shard: int, name: str) -> tuple[np.ndarray, tuple[int, ...]]:
    layout = found.checkpoint.shards[shard]
    span = next(one for one in layout.spans if one.name == name)
    data = np.fromfile(layout.path, np.uint8)[layout.data_start + span.begin : layout.data_start + span.end]
    return data.reshape(span.shape[0], -1), span.shape


@pytest.mark.parametrize("tp", [2, 4])
def test_the_ranks_slices_make_up_every_tensor(made: make.Made, tp: int) -> None:
    found = files._held(made.checkpoint, made.sums, 0.0)
    parts: dict[str, list[np.ndarray]] = {}
    for rank in range(tp):
        wanted = plan.slices(made.checkpoint, rank, tp)
        with target.host(wanted.room) as memory, ThreadPoolExecutor(2) as pool, memory.lanes(2, 2, 64 * KIB) as lanes:
            with read.opened(made.checkpoint) as fds:
                ring.Ring(ring.requests(wanted, 64 * KIB), lanes, pool).run(fds)
            load.check(load.Stage(found, wanted, memory, files.expected(found, wanted), plan.SLICES))
            for area in wanted.areas:
                data = memory.memory.data[area.start : area.start + area.nbytes].reshape(area.rows, area.width).copy()
                parts.setdefault(area.name, []).append(data)
    for number, layout in enumerate(made.checkpoint.shards):
        for span in layout.spans:
            whole, _ = tensor(made, number, span.name)
            split = plan.dimension(span.name)
            if split is None or span.shape[split] % tp:
                assert all(np.array_equal(part.reshape(-1), whole.reshape(-1)) for part in parts[span.name])
            else:
                together = np.concatenate([part.reshape(part.shape[0], -1) for part in parts[span.name]], axis=split)
                assert np.array_equal(together.reshape(-1), whole.reshape(-1)), span.name


def test_names_decide_how_a_tensor_is_split() -> None:
    rows = ("model.layers.3.self_attn.q_proj.weight", "layers.0.wk.weight", "lm_head.weight", "x.qkv_proj.bias")
    columns = ("model.layers.3.self_attn.o_proj.weight", "model.layers.3.mlp.down_proj.weight", "layers.0.w2.weight")
    whole = ("model.norm.weight", "x.o_proj.bias", "x.down_proj.weight_scale", "q_proj", "weight", "")
    assert [plan.dimension(name) for name in rows] == [0] * 4
    assert [plan.dimension(name) for name in columns] == [1] * 3
    assert [plan.dimension(name) for name in whole] == [None] * 6


def test_what_can_not_be_split_goes_whole_and_is_said(made: make.Made) -> None:
    wanted = plan.slices(made.checkpoint, 0, 11)
    assert wanted.nbytes == plan.tensors(made.checkpoint).nbytes
    assert "11 ranks" in wanted.notes[0]
    with pytest.raises(ValueError):
        plan.slices(made.checkpoint, 2, 2)


def test_tensors_stand_apart_and_are_all_there(made: make.Made) -> None:
    wanted = plan.tensors(made.checkpoint)
    assert wanted.nbytes == sum(span.end - span.begin for shard in made.checkpoint.shards for span in shard.spans)
    assert all(area.start % plan.PLACE == 0 for area in wanted.areas)
    ends = [area.start + area.nbytes for area in wanted.areas]
    assert all(end <= area.start for end, area in zip(ends[:-1], wanted.areas[1:], strict=True))
    assert wanted.room >= ends[-1]


class Recorder:
    """A lane whose copies run late: it checks that no slot is overwritten before its copy was waited for."""

    def __init__(self, slots: list[np.ndarray], into: np.ndarray) -> None:
        self.slots, self._into = slots, into
        self._pending: dict[int, tuple[int, Area]] = {}
        self.most = 0

    def wait(self, slot: int) -> None:
        if slot in self._pending:
            head, area = self._pending.pop(slot)
            self._into[area.start : area.start + area.nbytes] = target.rows(self.slots[slot], head, area).reshape(-1)

    def give(self, slot: int, head: int, area: Area) -> None:
        assert slot not in self._pending
        self._pending[slot] = (head, area)
        self.most = max(self.most, len(self._pending))

    def put(self, source: np.ndarray, start: int) -> None:
        self._into[start : start + source.size] = source

    def drain(self) -> None:
        for slot in list(self._pending):
            self.wait(slot)


@pytest.mark.parametrize("depth", [1, 3])
def test_copies_overlap_reads_and_are_waited_for(made: make.Made, depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies that happen as late as a stream may run them still bring every byte."""
    monkeypatch.setattr(ring, "time", SimpleNamespace(perf_counter=itertools.count().__next__))
    wanted = plan.files(made.checkpoint)
    into = np.zeros(wanted.room, np.uint8)
    with target.slots(2, depth, 4096) as slots, ThreadPoolExecutor(2) as pool, read.opened(made.checkpoint) as fds:
        lanes = [Recorder(mine, into) for mine in slots]
        made_ring = ring.Ring(ring.requests(wanted, 4096), lanes, pool)
        made_ring.run(fds)
    for area, sums in zip(wanted.areas, made.sums, strict=True):
        load.verify.compare(load.verify.sums(into[area.start : area.start + area.nbytes]), sums, area.name)
    assert max(lane.most for lane in lanes) == depth
    assert made_ring.spent.asked == made.checkpoint.nbytes
    assert made_ring.spent.read > 0


def test_a_file_that_shrinks_during_the_read_is_an_error(made: make.Made) -> None:
    wanted = plan.files(made.checkpoint)
    nowhere = target.Nowhere(wanted.room)
    with read.opened(made.checkpoint) as fds, ThreadPoolExecutor(2) as pool, nowhere.lanes(2, 2, 64 * KIB) as lanes:
        os.truncate(made.checkpoint.shards[1].path, MIB)
        with pytest.raises(IobenchError, match="it was cut while it was measured"):
            ring.Ring(ring.requests(wanted, 64 * KIB), lanes, pool).run(fds)


def test_mapped_parts_arrive_row_by_row(made: make.Made) -> None:
    found = files._held(made.checkpoint, made.sums, 0.0)
    wanted = plan.slices(made.checkpoint, 1, 2)
    with target.host(wanted.room) as memory, ThreadPoolExecutor(3) as pool, memory.lanes(3, 1, 4096) as lanes:
        with read.opened(made.checkpoint) as fds:
            mapped(made.checkpoint, wanted, 32 * KIB, lanes, pool)(fds)
        stage = load.Stage(found, wanted, memory, files.expected(found, wanted), plan.SLICES)
        load.check(stage)
        memory.memory.data[wanted.areas[-1].start] ^= 1
        with pytest.raises(WrongData):
            load.check(stage)


def test_a_path_of_several_states() -> None:
    assert (Way("buffered-cold").how, Way("buffered-cold").state) == ("buffered", "cold")
    assert (Way("kvikio-compat-warm").how, Way("kvikio-compat-warm").state) == ("kvikio-compat", "warm")
    assert (Way("direct").how, Way("direct").state) == ("direct", "direct")


@pytest.mark.parametrize(
    ("measured", "cpus", "name"),
    [
        (Stages(1.0, read=0.95, copy=0.3), 8, "drive"),
        (Stages(1.0, read=0.3, copy=0.95), 8, "PCIe"),
        (Stages(1.0, read=0.93, copy=0.95), 8, "PCIe"),
        (Stages(1.0, read=0.5, copy=0.45), 8, stages.IN_TURN),
        (Stages(1.0, read=0.4, copy=0.3), 8, stages.NONE),
        (Stages(1.0, read=0.95, copy=0.3, cpu=1.9), 2, "CPU"),
        (Stages(1.0, read=0.95, copy=0.3, cpu=1.9), 8, "drive"),
        (Stages(1.0), 8, ""),
        (Stages(0.0, read=0.1), 8, ""),
    ],
)
def test_what_bounds_a_load(measured: Stages, cpus: int, name: str) -> None:
    assert stages.bound(measured, "drive", "PCIe", cpus) == name
    text = stages.sentence(name, {"load": "1 s", "read": "0.5 s"})
    assert bool(text) == bool(name)
    assert not text or "read alone 0.5 s" in text
