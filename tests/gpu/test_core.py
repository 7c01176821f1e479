"""The GPU core on a GPU: readings, memory, patterns that catch one wrong byte, timing that holds no launch cost."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
from iobench import gpu
from iobench.errors import WrongData
from iobench.gpu import Device
from iobench.timing import cuda, gate
from iobench.timing.sampler import Sampler
from iobench.units import GB, GIB, MIB, US

pytestmark = pytest.mark.gpu

BUSY = """
import sys, time
from iobench import gpu
card = gpu.device(0)
with gpu.buffer(1 << 30, card) as area, gpu.stream(card) as stream:
    print("ready", flush=True)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for _ in range(20):
            gpu.memcpy(area.ptr, area.ptr + (1 << 29), 1 << 29, stream)
        stream.synchronize()
"""


def rate(timed: Any, nbytes: int, row: int = 0) -> float:
    return nbytes * timed.ops / float(np.median(timed.seconds[row]))


def test_the_device_tells_what_it_is(card: Device) -> None:
    assert card.sm_count > 0
    assert card.l2_nbytes > MIB
    assert card.node == "gpu:0" or card.node is None
    if card.peak_bytes_per_s is not None and card.mig is None:
        assert card.peak_bytes_per_s == pytest.approx(2 * card.memory_hz * card.bus_width_bits / 8)
        assert 100 * GB < card.peak_bytes_per_s < 20_000 * GB


@pytest.mark.parametrize("nbytes", [1, 7, 8, 4099, 100 * MIB + 3])
@pytest.mark.parametrize("shift", [0, 4, 1])
def test_one_wrong_byte_anywhere_is_found(card: Device, nbytes: int, shift: int) -> None:
    api = gpu.require().cuda.runtime
    with gpu.using(card), gpu.buffer(nbytes + 16, card) as area:
        start = area.ptr + shift
        api.memset(area.ptr, 0xEE, nbytes + 16)
        gpu.fill(start, nbytes, 5)
        gpu.check(start, nbytes, 5)
        beyond = np.zeros(16 - shift, np.uint8)
        api.memcpy(beyond.ctypes.data, start + nbytes, beyond.nbytes, api.memcpyDefault)
        assert set(beyond) == {0xEE}
        for place in {0, nbytes // 2, nbytes - 1}:
            value = int(gpu.expected(1, 5, place)[0]) ^ 1
            api.memset(start + place, value, 1)
            with pytest.raises(WrongData, match=rf"1 of {nbytes} bytes differ, the first at byte {place}$"):
                gpu.check(start, nbytes, 5)
            api.memset(start + place, value ^ 1, 1)
        gpu.check(start, nbytes, 5)
        with pytest.raises(WrongData):
            gpu.check(start, nbytes, 6)


def test_more_than_4_gib_is_filled_and_checked_to_its_end(card: Device) -> None:
    nbytes = 5 * GIB + 5
    api = gpu.require().cuda.runtime
    with gpu.using(card), gpu.buffer(nbytes, card) as area:
        gpu.fill(area.ptr, nbytes, 1)
        gpu.check(area.ptr, nbytes, 1)
        api.memset(area.ptr + nbytes - 1, int(gpu.expected(1, 1, nbytes - 1)[0]) ^ 0x40, 1)
        with pytest.raises(WrongData, match=f"the first at byte {nbytes - 1}$"):
            gpu.check(area.ptr, nbytes, 1)


@pytest.mark.parametrize("kind", [gpu.pinned, gpu.pageable])
def test_device_and_host_write_the_same_pattern(card: Device, kind: Any) -> None:
    nbytes = MIB + 13
    with gpu.using(card), gpu.buffer(nbytes, card) as area, kind(nbytes) as host, gpu.stream(card) as stream:
        gpu.fill(area.ptr, nbytes, 11)
        gpu.memcpy(host.ptr, area.ptr, nbytes, stream)
        stream.synchronize()
        gpu.check_host(host.data, 11)
        gpu.fill_host(host.data, 12)
        gpu.memcpy(area.ptr, host.ptr, nbytes, stream)
        stream.synchronize()
        gpu.check(area.ptr, nbytes, 12)


def test_kernels_reach_pinned_memory(card: Device) -> None:
    with gpu.using(card), gpu.pinned(4096) as host:
        gpu.fill(host.ptr, 4096, 2)
        gpu.check_host(host.data, 2)
        host.data[77] ^= 1
        with pytest.raises(WrongData, match=r"byte 77$"):
            gpu.check(host.ptr, 4096, 2)


def test_memory_on_the_nearest_node(card: Device) -> None:
    if card.mem is None:
        pytest.skip("the GPU's NUMA node is unknown")
    node = int(card.mem.partition(":")[2])
    with gpu.pinned(8 * MIB, node) as host:
        assert host.nodes is None or set(host.nodes) == {node}


def test_no_room_is_said_and_the_next_buffer_is_there(card: Device) -> None:
    with pytest.raises(gpu.OutOfMemory, match="has no room for 10 TiB"), gpu.buffer(10 << 40, card):
        pass
    with gpu.using(card), gpu.buffer(MIB, card) as area:
        gpu.fill(area.ptr, MIB, 0)


def test_memory_is_given_back_after_an_error(card: Device) -> None:
    api = gpu.require().cuda.runtime
    with gpu.using(card):
        free, _ = api.memGetInfo()
        for _ in range(3):
            with pytest.raises(KeyError), gpu.buffer(GIB, card):
                raise KeyError
        assert api.memGetInfo()[0] >= free - 64 * MIB


def test_a_large_copy_takes_the_links_time(card: Device, sampler: Sampler) -> None:
    nbytes = 64 * MIB
    with gpu.host_pool(nbytes, card.l2_nbytes) as (host, _), gpu.pool(nbytes, card) as pool, gpu.stream(card) as stream:
        timed = cuda.events(sampler, lambda k: gpu.memcpy(pool.at(k), host.at(k), nbytes, stream), stream)
    assert timed.ops == 1
    assert timed.notes == []
    assert 5 * GB < rate(timed, nbytes) < 130 * GB


def test_small_copies_are_many_per_sample_and_none_is_late(card: Device, sampler: Sampler) -> None:
    with gpu.host_pool(4, MIB) as (host, _), gpu.pool(4, card) as pool, gpu.stream(card) as stream:
        timed = cuda.events(sampler, lambda k: gpu.memcpy(pool.at(k), host.at(k), 4, stream), stream)
    assert 8 <= timed.ops <= cuda.MOST_OPS
    assert not [note for note in timed.notes if "gave up" in note]
    assert 0.3 * US < np.median(timed.seconds) / timed.ops < 20 * US


def test_launch_cost_stays_outside(card: Device, sampler: Sampler) -> None:
    with gpu.buffer(8, card) as area, gpu.stream(card) as stream:
        api = gpu.require().cuda.runtime

        def slow(turn: int) -> None:
            time.sleep(0.001)
            api.memsetAsync(area.ptr, 1, 4, stream.ptr)

        timed = cuda.events(sampler, slow, stream, ops=4)
    assert np.median(timed.seconds) < 100 * US


def test_a_gate_that_is_opened_too_late_gives_up_and_says_so(
    card: Device, sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate.Gate, "__init__", _with_timeout(gate.Gate.__init__, 0.02))
    with gpu.buffer(8, card) as area, gpu.stream(card) as stream:
        api = gpu.require().cuda.runtime

        def slow(turn: int) -> None:
            time.sleep(0.05)
            api.memsetAsync(area.ptr, 1, 4, stream.ptr)

        timed = cuda.events(sampler, slow, stream, ops=1)
    assert any("gave up after 0.02 s" in note for note in timed.notes)


def _with_timeout(make: Any, seconds: float) -> Any:
    def made(self: Any, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        self.timeout = seconds

    return made


def test_more_than_the_launch_queue_holds_ends_all_the_same(card: Device, sampler: Sampler) -> None:
    with gpu.buffer(8, card) as area, gpu.stream(card) as stream:
        api = gpu.require().cuda.runtime
        start = time.monotonic()
        sampler.budget, sampler.min_samples = 0.05, 2
        timed = cuda.events(sampler, lambda _: api.memsetAsync(area.ptr, 1, 4, stream.ptr), stream, ops=5000)
        assert time.monotonic() - start < 30
    assert timed.seconds[0]


def test_both_directions_at_once(card: Device, sampler: Sampler) -> None:
    nbytes = 32 * MIB
    with gpu.host_pool(nbytes, card.l2_nbytes) as (up, _), gpu.host_pool(nbytes, card.l2_nbytes) as (down, _), \
            gpu.pool(nbytes, card) as one, gpu.pool(nbytes, card) as two, \
            gpu.stream(card) as first, gpu.stream(card) as second:  # fmt: skip
        pair = cuda.events_pair(
            sampler,
            lambda k: gpu.memcpy(one.at(k), up.at(k), nbytes, first),
            first,
            lambda k: gpu.memcpy(down.at(k), two.at(k), nbytes, second),
            second,
        )
    assert len(pair.timed.seconds) == 2
    assert pair.overlapped > 0.95
    assert all(rate(pair.timed, nbytes, row) > 5 * GB for row in (0, 1))


def test_a_graph_takes_as_long_as_its_operations(card: Device, sampler: Sampler) -> None:
    nbytes = 8 * MIB
    with gpu.pool(nbytes, card) as src, gpu.pool(nbytes, card) as dst, gpu.stream(card) as stream:

        def copy(k: int) -> None:
            gpu.memcpy(dst.at(k), src.at(k), nbytes, stream)

        plain = cuda.events(sampler, copy, stream, ops=32)
        graph = cuda.graph(sampler, copy, stream, ops=32)
    assert graph.ops % 32 == 0
    assert rate(graph, nbytes) == pytest.approx(rate(plain, nbytes), rel=0.3)


def test_a_capture_that_fails_leaves_the_stream_usable(card: Device, sampler: Sampler) -> None:
    with gpu.buffer(8, card) as area, gpu.stream(card) as stream:
        api = gpu.require().cuda.runtime
        calls: list[int] = []

        def fails(turn: int) -> None:
            calls.append(turn)
            api.memsetAsync(area.ptr, 1, 4, stream.ptr)
            if len(calls) == 4:
                raise KeyError(turn)

        with pytest.raises(KeyError):
            cuda.graph(sampler, fails, stream, ops=8)
        assert not stream.is_capturing()
        cuda.events(sampler, lambda _: api.memsetAsync(area.ptr, 1, 4, stream.ptr), stream, ops=4)


def test_an_error_in_enqueue_opens_the_gate(card: Device, sampler: Sampler) -> None:
    with gpu.stream(card) as stream:
        calls: list[int] = []

        def fails(turn: int) -> None:
            calls.append(turn)
            if len(calls) == 3:
                raise KeyError(turn)

        with pytest.raises(KeyError):
            cuda.events(sampler, fails, stream, ops=1)
        start = time.monotonic()
        stream.synchronize()
        assert time.monotonic() - start < 0.9 * gate.TIMEOUT_SECONDS


def test_host_call(card: Device, sampler: Sampler) -> None:
    with gpu.pinned(4) as host, gpu.buffer(4, card) as area, gpu.stream(card) as stream:

        def copy() -> None:
            gpu.memcpy(area.ptr, host.ptr, 4, stream)
            stream.synchronize()

        timed = cuda.host_call(sampler, copy)
    assert 1 * US < np.median(timed.seconds) / timed.ops < 500 * US


def test_the_watch_sees_the_gpu_at_work(card: Device, sampler: Sampler) -> None:
    nbytes = 64 * MIB
    with gpu.host_pool(nbytes, card.l2_nbytes) as (host, _), gpu.pool(nbytes, card) as pool, gpu.stream(card) as stream:
        sampler.target = 0.0
        with gpu.watch([card]) as seen:
            timed = cuda.events(sampler, lambda k: gpu.memcpy(pool.at(k), host.at(k), nbytes, stream), stream)
    (evidence,) = seen.evidence().values()
    assert evidence["hertz"] >= 10
    limit = seen.link_bytes_per_s(card)
    assert limit is None or rate(timed, nbytes) < limit
    assert "another process" not in seen.suspect


def test_a_busy_process_beside_us_is_named(card: Device) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BUSY], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline().strip() == "ready"
            with gpu.stream(card):
                time.sleep(1.5)
                with gpu.watch([card]) as seen:
                    time.sleep(0.5)
        finally:
            other.kill()
    (evidence,) = seen.evidence().values()
    if not evidence["processes"]:
        pytest.skip("NVML shows no processes here")
    assert "was busy with another process" in seen.suspect
    assert f"{other.pid} (" in seen.suspect


@pytest.mark.multigpu
def test_two_devices_at_once(sampler: Sampler) -> None:
    nbytes = 32 * MIB
    one, two = gpu.device(0), gpu.device(1)
    with contextlib.ExitStack() as stack:
        a, b, c, d = (stack.enter_context(gpu.pool(nbytes, card)) for card in (one, one, two, two))
        first, second = (stack.enter_context(gpu.stream(card)) for card in (one, two))
        pair = cuda.events_pair(
            sampler,
            lambda k: gpu.memcpy(a.at(k), b.at(k), nbytes, first),
            first,
            lambda k: gpu.memcpy(c.at(k), d.at(k), nbytes, second),
            second,
        )
        alone = cuda.events(sampler, lambda k: gpu.memcpy(c.at(k), d.at(k), nbytes, second), second)
    assert pair.overlapped > 0.9
    assert rate(pair.timed, nbytes, 1) == pytest.approx(rate(alone, nbytes), rel=0.2)
