"""Stream kernels: right at every size and thread split, and wrong ones are caught."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import iobench.kernels
import numpy as np
import pytest
from iobench.errors import Unavailable, WrongData
from iobench.kernels import jit, stream
from iobench.kernels.streaming import Streaming, room
from iobench.kernels.team import Team, cpu_list, pinned, spread

CPU = min(os.sched_getaffinity(0))
CASES = [(kernel, nt) for kernel in stream.CODES for nt in (False, True) if not (nt and kernel == "read")]


@contextmanager
def streaming(kernel: str, nt: bool, nbytes: int, threads: int = 1) -> Iterator[Streaming]:
    """A filled job whose threads share one CPU, so that every split can be tested on every machine."""
    raw = np.zeros(room(nbytes, threads) + 64, np.uint8)
    with Team([CPU] * threads) as team:
        work = Streaming.over(raw[-raw.ctypes.data % 64 :], kernel, nt, nbytes, team)
        work.fill()
        yield work


@pytest.mark.parametrize(("kernel", "nt"), CASES)
@pytest.mark.parametrize(("nbytes", "threads"), [(192, 1), (4096, 1), (10_000, 1), (30_000, 3), (65_536, 2)])
def test_every_kernel_is_right(kernel: str, nt: bool, nbytes: int, threads: int) -> None:
    with streaming(kernel, nt, nbytes, threads) as work:
        seconds = work.take(2)
        work.check()
    assert seconds.shape == (2,)
    assert (seconds >= 0).all()  # 0 where the clock's steps are longer than a pass over three lines
    assert nbytes - 64 * threads * stream.ARRAYS[kernel] < work.moved <= nbytes


def _result(kernel: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    results = {"copy": a, "scale": 3 * a, "add": a + b, "triad": a + 3 * b, "write": np.full_like(a, 3.0), "read": a}
    return results[kernel]


@pytest.mark.parametrize(("kernel", "nt"), CASES)
def test_results_agree_with_numpy(kernel: str, nt: bool) -> None:
    """The kernels' own check uses the same pattern: this one is independent of it."""
    with streaming(kernel, nt, 60_000, 2) as work:
        sources = [(part.a.copy(), part.b.copy()) for part in work.parts]
        work.take(1)
        for part, (a, b) in zip(work.parts, sources, strict=True):
            a = a if len(a) else np.zeros_like(part.target)
            b = b if len(b) else np.zeros_like(part.target)
            np.testing.assert_array_equal(part.target, _result(kernel, a, b))


def _skips_tail(code: int, nt: int, target: Any, a: Any, b: Any, *rest: Any) -> None:
    stream.drive(code, nt, target[:-8], a[:-8], b[:-8], *rest)


@pytest.mark.parametrize(("kernel", "nt"), CASES)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_kernel_that_skips_its_tail_is_caught(kernel: str, nt: bool, threads: int) -> None:
    with streaming(kernel, nt, 12_288, threads) as work, pytest.raises(WrongData, match=kernel):  # noqa: PT012
        work.take(1, _skips_tail)
        work.check()


@pytest.mark.parametrize("kernel", stream.CODES)
@pytest.mark.parametrize("index", [0, 1, 77, -1])
def test_every_element_is_checked(kernel: str, index: int) -> None:
    with streaming(kernel, False, 12_288, 2) as work:
        work.take(1)
        work.check()
        work.parts[1].target[index] += 1
        with pytest.raises(WrongData, match="thread 1 of 2"):
            work.check()


@pytest.mark.parametrize("kernel", ["copy", "add", "triad", "scale"])
def test_a_damaged_source_is_caught(kernel: str) -> None:
    with streaming(kernel, True, 12_288) as work:
        work.take(1)
        work.parts[0].a[-1] = 0
        with pytest.raises(WrongData):
            work.check()


def test_a_target_that_was_never_written_is_caught() -> None:
    with streaming("write", False, 4096) as work, pytest.raises(WrongData, match=r"element 0 is .*-1\.0"):
        work.check()


def test_one_wrong_sum_among_many_is_caught() -> None:
    def driver(*args: Any) -> None:
        stream.drive(*args)
        args[-1][3] -= 1

    with streaming("read", False, 4096) as work, pytest.raises(WrongData, match="sum"):
        work.take(5, driver)


def test_total_is_the_sum_of_the_pattern() -> None:
    pattern = 1.0 + np.arange(5000) % 1021
    assert stream.total(0, 5000) == pattern.sum()
    assert stream.total(1000, 100) == pattern[1000:1100].sum()
    assert stream.total(1020, 2) == 1021 + 1


def test_bytes_are_counted_with_write_allocate_apart() -> None:
    counts = {}
    for kernel, nt in CASES:
        with streaming(kernel, nt, 3 * 2 * 64 * 10) as work:
            counts[kernel, nt] = (work.moved, work.stored, work.bus_nbytes)
    assert counts["copy", False] == (3840, 1920, 5760)
    assert counts["copy", True] == (3840, 1920, 3840)
    assert counts["triad", False] == (3840, 1280, 5120)
    assert counts["write", False] == (3840, 3840, 7680)
    assert counts["read", False] == (3840, 0, 3840)


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_slices_are_whole_aligned_lines_that_do_not_overlap(threads: int) -> None:
    with streaming("triad", True, 100_000, threads) as work:
        spans = []
        for part in work.parts:
            for array in (part.target, part.a, part.b):
                assert array.ctypes.data % 64 == 0
                assert array.nbytes % 64 == 0
                spans.append((array.ctypes.data, array.ctypes.data + array.nbytes))
    spans.sort()
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def test_a_buffer_that_is_not_aligned_is_refused() -> None:
    raw = np.zeros(8192, np.uint8)
    with Team([CPU]) as team, pytest.raises(ValueError, match="aligned"):
        Streaming.over(raw[-raw.ctypes.data % 64 + 8 :], "copy", True, 4096, team)


def test_too_small_a_working_set_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="less than a line"), streaming("add", False, 128):
        pass


def test_repeated_passes_are_not_optimised_away() -> None:
    """No core reads its first cache at five terabytes per second: faster means that passes were dropped.

    A pause only makes it slower.
    """
    for kernel, nt in CASES:
        with streaming(kernel, nt, 16_384) as work:
            work.repeats = 2000
            assert work.take(3).min() * 5e12 > work.moved * work.repeats, (kernel, nt)


def test_settle_fills_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    with streaming("read", False, 4096) as work:
        monkeypatch.setattr(work, "take", lambda count, driver: np.full(count, work.repeats * 1e-6))  # 1 us a pass
        work.settle()
        assert 150 <= work.repeats <= 600


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names of x86 instructions")
def test_compiled_code_is_vectorised_and_streams() -> None:
    raw = np.zeros(64 + 8)
    array = raw[-raw.ctypes.data // 8 % 8 :][:64]  # a store to an address that is no line's start would crash

    def assembly(function: Any, *args: Any) -> str:
        options = {name: value for name, value in function.targetoptions.items() if name != "nopython"}
        fresh = jit.numba.njit(function.py_func, **options)
        fresh(*args)
        return str(next(iter(fresh.inspect_asm().values())))

    assert "addpd" in assembly(stream.read, array, 1)
    plain, streamed = (assembly(kernel, array, array, 1) for kernel in (stream.copy_plain, stream.copy_nt))
    assert "movnt" in streamed
    assert "movnt" not in plain
    for text in (plain, streamed):  # a loop whose branch is cut by a line's end has another speed
        assert re.search(r"\.p2align\s+6.*\n\.L\w+:\s+vmov|\.p2align\s+6.*\n\.L\w+:\s+mov", text), text


def test_team_pins_each_thread_and_keeps_order() -> None:
    cpus = sorted(os.sched_getaffinity(0))[:2]
    before = os.sched_getaffinity(0)
    with Team(cpus) as team:
        assert team.affinity() == [[cpu] for cpu in cpus]
        assert team.run(lambda thread: thread * 10) == [10 * n for n in range(len(cpus))]
    assert os.sched_getaffinity(0) == before


def test_team_raises_the_threads_error_and_goes_on() -> None:
    def fail(thread: int) -> None:
        raise WrongData(f"thread {thread}")

    with Team([CPU, CPU]) as team:
        with pytest.raises(WrongData, match="thread 0"):
            team.run(fail)
        assert team.run(lambda thread: thread) == [0, 1]


def test_a_cpu_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="CPU 100000"), Team([100_000]):
        pass
    with pytest.raises(Unavailable, match="needs 100000 CPUs"):
        pinned(100_000)


def _siblings(root: Path, lists: dict[int, str]) -> Path:
    for cpu, text in lists.items():
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(text)
    return root


def test_cores_come_before_their_second_threads(tmp_path: Path) -> None:
    far = _siblings(tmp_path / "far", {0: "0,2\n", 1: "1,3\n", 2: "0,2\n", 3: "1,3\n"})
    near = _siblings(tmp_path / "near", {0: "0-1\n", 1: "0-1\n", 2: "2-3\n", 3: "2-3\n"})
    assert spread([0, 1, 2, 3], far) == [0, 1, 2, 3]
    assert spread([0, 1, 2, 3], near) == [0, 2, 1, 3]
    assert spread([1, 3], near) == [1, 3], "a sibling that may not be used does not count"
    assert spread([5, 4], near) == [4, 5], "unknown siblings: every CPU counts as a core"


@pytest.mark.parametrize(("text", "cpus"), [("0\n", [0]), ("0-2,8\n", [0, 1, 2, 8]), ("\n", [])])
def test_cpu_list(text: str, cpus: list[int]) -> None:
    assert cpu_list(text) == cpus


def test_compiled_code_is_kept_in_the_users_cache(tmp_path: Path) -> None:
    for environment, parent in (
        ({"HOME": str(tmp_path)}, ".cache/iobench/numba"),
        ({"XDG_CACHE_HOME": str(tmp_path / "x"), "HOME": "/"}, "x/iobench/numba"),
        ({"NUMBA_CACHE_DIR": str(tmp_path / "n"), "HOME": "/"}, "n"),
    ):
        folder = jit.cache_dir(environment)
        assert folder is not None
        assert folder.parent == tmp_path / parent
        assert folder.is_dir()
    (tmp_path / "file").touch()
    assert jit.cache_dir({"NUMBA_CACHE_DIR": str(tmp_path / "file" / "below")}) is None


def test_a_user_without_a_home_keeps_no_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", unknown)
    assert jit.cache_dir({}) is None


def test_nothing_is_written_next_to_the_kernels() -> None:
    with streaming("copy", False, 4096) as work:
        work.take(1)
    folder = Path(iobench.kernels.__file__).parent
    assert not [*folder.rglob("*.nbi"), *folder.rglob("*.nbc")]
