"""Which way cuFile's bytes went: counters decide, "gds" is never said of what fell back."""

from __future__ import annotations

from pathlib import Path

import pytest
from iobench.storage import cufile
from iobench.storage.cufile import GpuReads, Nvfs
from iobench.storage.device import Counted
from iobench.units import MIB

COUNTING = """GDS Version: 1.7.2.10
NVFS statistics(ver: 4.0)
NVFS Driver(version: 2.17.5)
Mellanox PeerDirect Supported: False
IO stats: Enabled, peer IO stats: Disabled
Logging level: info

Active Shadow-Buffer (MiB): 128
Active Process: 1
Batches				: n=0 ok=0 err=0 Avg-Submit-Latency(usec)=0
Reads				: n=2048 ok=2047 err=1 readMiB=2047 io_state_err=0
Reads				: Bandwidth(MiB/s)=6500 Avg-Latency(usec)=150
Sparse Reads			: n=0 io=0 holes=0 pages=0
Writes				: n=9 ok=9 err=0 writeMiB=9 io_state_err=0 pg-cache=0 pg-cache-fail=0 pg-cache-eio=0
"""
SILENT = """NVFS statistics(ver: 4.0)
IO stats: Disabled, peer IO stats: Disabled
Active Shadow-Buffer (MiB): 0
Reads                : err=0 io_state_err=0
Ops                  : Read=0 Write=0 BatchIO=0
"""
GIB = 1024 * MIB
DISK = Counted(GIB, GIB, 0)


def test_the_kernels_counts_are_read() -> None:
    assert cufile.parse_nvfs(COUNTING) == Nvfs(True, 2047 * MIB, 2048, 1, 128 * MIB)
    assert cufile.parse_nvfs(COUNTING).since(Nvfs(True, 47 * MIB, 48)).read_bytes == 2000 * MIB


def test_counting_that_is_off_is_not_a_count_of_none() -> None:
    assert cufile.parse_nvfs(SILENT) == Nvfs(False)
    assert not cufile.parse_nvfs("").counting


def test_a_module_that_is_not_loaded_is_none(tmp_path: Path) -> None:
    assert cufile.nvfs(tmp_path) is None
    (tmp_path / "proc/driver/nvidia-fs").mkdir(parents=True)
    (tmp_path / cufile.STATS).write_text(COUNTING)
    assert cufile.nvfs(tmp_path) == cufile.parse_nvfs(COUNTING)


def test_cufiles_own_counts_are_summed_over_gpus() -> None:
    text = (
        "cuFile STATS VERSION : 8\n"
        "GPU 0 Read: bw=1.2 util(%)=99 n=40 posix=3 unalign=0 dr=0 err=0 MiB=40 Write: bw=0 n=7 posix=7 err=0\n"
        "GPU 1 Read: bw=0 n=2 posix=0 p2pdma=2 err=0 MiB=2 Write: bw=0 n=0 posix=0 BufRegister: n=1 err=0\n"
    )
    assert cufile.parse_gds_stats(text) == GpuReads(42, 3, 2)
    assert GpuReads(42, 3, 2).since(GpuReads(40, 3, None)) == GpuReads(2, 0, None)
    for nothing in ("", "no statistics", "GPU 0 Read: bw=1.2 MiB=3"):
        assert cufile.parse_gds_stats(nothing) is None


@pytest.mark.parametrize(
    ("moved", "kernel", "backends", "own", "path", "proven"),
    [
        (DISK, Nvfs(True, GIB, 64), None, None, cufile.GDS_NVFS, True),
        (DISK, Nvfs(True, GIB - MIB // 2, 64), {"gds": GIB, "posix": 0}, None, cufile.GDS_NVFS, True),
        (Counted(GIB, GIB, GIB), Nvfs(True, 0), None, None, "compat, from the device", True),
        (Counted(GIB, GIB, GIB), None, {"posix": GIB, "gds": 0}, None, "compat, from the device", True),
        (Counted(0, 0, GIB), None, None, None, "compat, from the page cache", True),
        (Counted(0, 0, 0), None, {"posix": GIB}, None, "compat, from the page cache", True),
        (Counted(GIB // 2, GIB // 2, GIB), None, None, None, "compat, from the device and the page cache", True),
        (Counted(None, 0, GIB), None, None, None, "compat, from an unknown device", False),
        # most by nvidia-fs, the rest below kvikio's threshold by POSIX: not all of it is GDS
        (Counted(GIB, GIB, GIB // 3), Nvfs(True, 2 * GIB // 3, 64), None, None, "compat in part", False),
        (Counted(GIB, GIB, GIB), Nvfs(True, GIB, 64), None, None, "compat in part", False),
        (DISK, None, {"gds": GIB, "posix": 0}, GpuReads(64, 0, 64), cufile.GDS_P2PDMA, True),
        # cuFile says it went past POSIX, and nothing says how: no label of GDS
        (DISK, None, {"gds": GIB, "posix": 0}, GpuReads(64, 0), "cuFile, unproven", False),
        (DISK, None, {"gds": GIB, "posix": 0}, None, "cuFile, unproven", False),
        (DISK, Nvfs(False), None, None, "cuFile, unproven", False),
        (Counted(0, 0, 0), None, {"gds": GIB}, GpuReads(64, 0, 64), "cuFile, unproven", False),
        (Counted(GIB, GIB, GIB), None, {"gds": GIB}, GpuReads(64, 64, 0), "compat, from the device", True),
    ],
)
def test_the_label_is_what_counters_saw(
    moved: Counted, kernel: Nvfs | None, backends: dict[str, int] | None, own: GpuReads | None, path: str, proven: bool
) -> None:
    verdict = cufile.judge(GIB, moved, kernel, backends, own)
    assert (verdict.path, verdict.proven) == (path, proven)
    assert verdict.notes or proven or moved.device is None


def test_silent_counters_say_how_to_switch_them_on() -> None:
    assert "rw_stats_enabled" in cufile.judge(GIB, DISK, Nvfs(False)).notes[0]


@pytest.mark.parametrize(
    ("device", "resident", "path", "proven"),
    [
        (0, 0.0, "compat, not from the device", False),
        (GIB // 2, 0.0, "compat, from the device in part", False),
        (GIB, 0.0, "compat, from the device", True),
        (0, 1.0, "compat, from the page cache", True),
        (0, None, "compat, from the page cache", True),
    ],
)
def test_what_was_in_no_cache_came_from_none(device: int, resident: float | None, path: str, proven: bool) -> None:
    verdict = cufile.judge(GIB, Counted(device, device, GIB), None, {"posix": GIB}, None, resident)
    assert (verdict.path, verdict.proven) == (path, proven)


@pytest.mark.parametrize(("through", "calls", "gds"), [(2, 0, True), (1, 1, False), (2, 1, False), (1, 0, False)])
def test_half_of_a_small_checkpoint_is_not_all_of_it(through: int, calls: int, gds: bool) -> None:
    verdict = cufile.judge(2 * MIB, Counted(2 * MIB, 2 * MIB, calls * MIB), Nvfs(True, through * MIB, 4))
    assert (verdict.path == cufile.GDS_NVFS) is gds
    assert verdict.proven is gds
