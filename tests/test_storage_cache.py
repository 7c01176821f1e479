"""Page cache, filesystems, devices and their counters: what proves where bytes came from."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from iobench.errors import IobenchError, Unavailable
from iobench.storage import cache, cufile, device, filesystem, make, proof, read
from iobench.storage.device import Counted
from iobench.storage.filesystem import Filesystem, filesystem_of
from iobench.units import KIB, MIB

EXT4, TMPFS, OVERLAY, NFS = (Filesystem(name) for name in ("ext4", "tmpfs", "overlay", "nfs"))


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A folder whose files can leave the page cache."""
    name = filesystem_of(tmp_path).name
    if filesystem_of(tmp_path).in_memory:
        pytest.skip(f"the temporary folder is on {name}: nothing is cold there")
    return tmp_path


@pytest.fixture
def weights(tmp_path: Path) -> Iterator[make.Made]:
    with make.made(tmp_path, 3 * MIB + 5, 2) as found:
        yield found


def residency(fd: int) -> float:
    try:
        return cache.resident_fraction(fd)
    except cache.ResidencyUnknown as reason:
        pytest.skip(str(reason))


def brought(step: Callable[[list[int]], float], fds: list[int]) -> float:
    """Throw files out of the page cache or read them into it; skip where the filesystem or short memory forbids it."""
    residency(fds[0])
    try:
        return step(fds)
    except IobenchError as reason:
        pytest.skip(f"this filesystem keeps its pages or has none, or memory is short: {reason}")


# Page cache


def test_evicted_and_warmed_files_are_proven_so(disk: Path, weights: make.Made) -> None:
    with read.opened(weights.checkpoint) as fds:
        assert brought(cache.evict, fds) <= cache.COLD_FRACTION
        assert max(map(residency, fds)) <= cache.COLD_FRACTION
        assert brought(cache.warm, fds) >= cache.WARM_FRACTION
        assert min(map(residency, fds)) > 0.9  # memory may be short a moment later


def test_cachestat_and_mincore_agree(disk: Path, weights: make.Made) -> None:
    with read.opened(weights.checkpoint) as fds:
        if cache.residency_source(fds[0]) != "cachestat":
            pytest.skip("cachestat does not answer here (Linux 6.5, not on overlay)")
        nbytes = os.fstat(fds[0]).st_size
        for step in (cache.evict, cache.warm):
            brought(step, fds)
            before = cache._cachestat(fds[0])
            pages = sum(page & 1 for page in cache._mincore(fds[0], nbytes))
            after = cache._cachestat(fds[0])
            assert before is not None
            assert after is not None
            assert min(before, after) <= pages <= max(before, after)  # memory may be short in between


def test_cachestat_is_not_believed_on_overlay(weights: make.Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "filesystem_of", lambda path: OVERLAY)
    with read.opened(weights.checkpoint) as fds:
        assert cache._cachestat(fds[0]) is None
        assert cache.residency_source(fds[0]) == "mincore"
        assert brought(cache.warm, fds) >= cache.WARM_FRACTION
        assert residency(fds[0]) > 0.9


def test_a_file_that_stays_in_the_cache_is_not_called_cold(weights: make.Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "posix_fadvise", lambda *_: None)
    with read.opened(weights.checkpoint) as fds:
        brought(cache.warm, fds)
        with pytest.raises(IobenchError, match=r"not cold: (100\.0|9\d\.\d)%"):
            cache.evict(fds)


def test_a_file_that_can_not_be_kept_is_not_called_warm(weights: make.Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "read_through", lambda fd: None)
    monkeypatch.setattr(cache, "resident_fraction", lambda fd: 0.5)
    with read.opened(weights.checkpoint) as fds, pytest.raises(IobenchError, match=r"not warm: only 50\.0%"):
        cache.warm(fds)


def test_mincore_is_not_believed_about_files_of_others(weights: make.Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_cachestat", lambda fd: None)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with read.opened(weights.checkpoint) as fds, pytest.raises(cache.ResidencyUnknown, match="owner"):
        cache.resident_fraction(fds[0])


def test_tmpfs_can_not_be_cold() -> None:
    shm = Path("/dev/shm")
    if not (shm.is_dir() and os.access(shm, os.W_OK) and filesystem_of(shm).name == "tmpfs"):
        pytest.skip("no writable tmpfs at /dev/shm")
    if shutil.disk_usage(shm).free < 16 * MIB:
        pytest.skip("no room in /dev/shm")
    with make.made(shm, MIB, 1) as found, read.opened(found.checkpoint) as fds:
        residency(fds[0])
        with pytest.raises(IobenchError, match="not cold"):
            cache.evict(fds)
        assert device.device_of(found.checkpoint.path) is None
        access = filesystem.direct_access(found.checkpoint.shards[0].path)
        assert access.possible or filesystem.NOT_STORAGE in access.reason


# Filesystems


def test_both_ways_of_tmpfs_are_not_storage() -> None:
    refused = filesystem.judge(TMPFS, errno.EINVAL, 0, 0, 0)
    assert not refused.possible
    assert filesystem.NOT_STORAGE in refused.reason
    accepted = filesystem.judge(TMPFS, 0, 0x17FF, 0, 0)
    assert accepted.possible
    assert not TMPFS.is_storage
    verdict = proof.judge("direct", MIB, Counted(None, 0), TMPFS)
    assert filesystem.NOT_STORAGE in verdict.path
    assert not verdict.proven


def test_statx_gives_the_stricter_of_both_alignments() -> None:
    assert filesystem.judge(EXT4, 0, 0x37FF, 512, 4096).alignment == 4096
    assert filesystem.judge(EXT4, 0, 0x37FF, 512, 512).alignment == 512
    assert "no O_DIRECT for this file" in filesystem.judge(EXT4, 0, 0x37FF, 0, 0).reason
    assert filesystem.judge(EXT4, 0, 0x17FF, 0, 0) == filesystem.DirectAccess(0, "")
    assert filesystem.judge(EXT4, errno.EACCES, 0, 0, 0).reason == "ext4 refuses O_DIRECT (Permission denied)"


@pytest.mark.parametrize(
    ("taken", "alignment"), [((512, 4096), 512), ((4096,), 4096), ((), 0)], ids=["sectors", "pages", "none"]
)
def test_without_statx_a_trial_read_decides(
    disk: Path, monkeypatch: pytest.MonkeyPatch, taken: tuple[int, ...], alignment: int
) -> None:
    (disk / "f").write_bytes(bytes(8192))
    monkeypatch.setattr(filesystem, "_dio_align", lambda fd: (0, 0, 0))
    monkeypatch.setattr(filesystem, "_reads", lambda fd, view: len(view) in taken)
    tried = filesystem.direct_access(disk / "f")
    if tried.source == "open":
        pytest.skip(tried.reason)
    assert (tried.alignment, tried.source, tried.possible) == (alignment, "trial read", bool(taken))
    assert tried.possible or "its reads fail" in tried.reason


def test_trial_reads_that_work_are_believed(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (disk / "f").write_bytes(bytes(8192))
    monkeypatch.setattr(filesystem, "_dio_align", lambda fd: (0, 0, 0))
    tried = filesystem.direct_access(disk / "f")
    if not tried.possible:
        pytest.skip(tried.reason)
    fd = os.open(disk / "f", os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, 2 * tried.alignment) as page, memoryview(page)[tried.alignment :] as part:
            assert os.preadv(fd, [part], 0) == tried.alignment
    finally:
        os.close(fd)


def test_the_type_is_read_from_the_kernel() -> None:
    assert filesystem_of("/proc").name == "proc"
    assert filesystem_of("/sys").name == "sysfs"
    with pytest.raises(Unavailable):
        filesystem_of("/no/such/path")


MOUNTINFO = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
30 22 0:25 / /dev/shm rw,nosuid - tmpfs tmpfs rw
31 22 0:40 /root /data rw,relatime - btrfs /dev/nvme0n1p2 rw,subvolid=256
32 31 0:41 / /data/with\\040space rw - overlay overlay rw,lowerdir=/l,upperdir=/u
33 22 0:50 / /mnt/srv rw - nfs4 server:/export rw
34 30 259:3 / /dev/shm rw - xfs /dev/nvme1n1p1 rw
damaged line
"""


@pytest.mark.parametrize(
    ("path", "fstype", "source"),
    [
        ("/etc/no-such", "ext4", "/dev/vda"),
        ("/data/x", "btrfs", "/dev/nvme0n1p2"),
        ("/database", "ext4", "/dev/vda"),
        ("/data/with space/y", "overlay", "overlay"),
        ("/mnt/srv/z", "nfs4", "server:/export"),
        ("/dev/shm/q", "xfs", "/dev/nvme1n1p1"),  # the later mount covers the earlier one
    ],
)
def test_the_mount_of_a_path(tmp_path: Path, path: str, fstype: str, source: str) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(MOUNTINFO)
    mount = filesystem.mount_of(path, tmp_path)
    assert mount is not None
    assert (mount.fstype, mount.source) == (fstype, source)


# Devices


@pytest.fixture
def sysfs(tmp_path: Path) -> Callable[..., Path]:
    """Make a block device below a root: a disk, or with ``partition`` a partition of it."""

    def add(number: str, disk: str, sectors: int, partition: str = "") -> Path:
        folder = tmp_path / "sys/devices/pci0/block" / disk / partition
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "stat").write_text(f"  10 0 {sectors} 5 0 0 0 0 0 5 5 0 0 0 0 0 0\n")
        if partition:
            (folder / "partition").write_text("1\n")
        link = tmp_path / "sys/dev/block" / number
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(folder)
        return folder

    return add


def test_a_partition_keeps_its_own_counters_and_names_its_disk(sysfs: Callable[..., Path], tmp_path: Path) -> None:
    sysfs("259:0", "nvme0n1", 1000)
    sysfs("259:2", "nvme0n1", 40, "nvme0n1p2")
    found = device.device_at("259:2", tmp_path)
    assert found is not None
    assert (found.name, found.read_bytes()) == ("nvme0n1", 40 * 512)
    whole = device.device_at("259:0", tmp_path)
    assert whole is not None
    assert whole.read_bytes() == 1000 * 512


def test_a_filesystem_over_several_devices_adds_their_counters(sysfs: Callable[..., Path], tmp_path: Path) -> None:
    folders = [sysfs(f"259:{number}", f"nvme{number}n1", 100 + number) for number in range(2)]
    listed = tmp_path / "sys/fs/btrfs/00000000-0000-0000-0000-000000000000/devices"
    listed.mkdir(parents=True)
    for folder in folders:
        (listed / folder.name).symlink_to(folder)
    found = device.device_at("259:1", tmp_path)
    assert found is not None
    assert found.read_bytes() == (100 + 101) * 512


def test_a_device_that_sysfs_does_not_know_is_none(tmp_path: Path) -> None:
    assert device.device_at("0:25", tmp_path) is None
    assert device.device_of("/proc/self/stat") is None


def test_cold_reads_are_seen_by_both_counters(disk: Path, weights: make.Made) -> None:
    where = device.device_of(weights.checkpoint.path)
    if where is None or not filesystem_of(weights.checkpoint.path).is_storage:
        pytest.skip("no block device behind the temporary folder")
    with read.opened(weights.checkpoint) as fds:
        brought(cache.evict, fds)
        before = device.count(where)
        brought(cache.warm, fds)
        moved = device.count(where).since(before)
    if moved.device == 0:
        pytest.skip(f"{where.name} counts nothing (iostats are off)")
    assert moved.device is not None
    least = 0.98 * weights.checkpoint.nbytes  # btrfs compresses the headers
    assert moved.device >= least
    assert moved.process is None or moved.process >= least


def test_the_smaller_counter_counts() -> None:
    assert Counted(100, 60).least == 60
    assert Counted(50, 60).least == 50
    assert Counted(50, None).least == 50
    assert Counted(None, 60).least is None
    assert Counted(10, None).since(Counted(4, 3)) == Counted(6, None)


# The path's proof


@pytest.mark.parametrize(
    ("method", "moved", "kind", "path", "proven"),
    [
        ("direct", Counted(1000, 1000), EXT4, "o_direct", True),
        ("direct", Counted(1000, None), EXT4, "o_direct", True),
        ("direct", Counted(0, 0), EXT4, "O_DIRECT, not from the device", False),
        ("direct", Counted(0, 1000), EXT4, "O_DIRECT, unproven", False),  # a device that counts nothing
        ("direct", Counted(1000, 0), EXT4, "O_DIRECT, not from the device", False),  # a neighbour's reads
        ("direct", Counted(500, 1000), EXT4, "O_DIRECT, not from the device", False),
        ("direct", Counted(None, 1000), NFS, "O_DIRECT on nfs, unproven", False),
        ("direct", Counted(None, 0), TMPFS, "O_DIRECT on tmpfs: not a storage measurement", False),
        ("direct", Counted(1000, 1000), OVERLAY, "O_DIRECT on overlay: not a storage measurement", False),
        ("buffered-cold", Counted(1000, 1000), EXT4, "device via page cache", True),
        ("mmap-cold", Counted(990, 985), EXT4, "device via page cache", True),
        ("buffered-cold", Counted(0, 0), EXT4, "buffered, not from the device", False),
        ("buffered-cold", Counted(None, 1000), OVERLAY, "page cache on overlay: not a storage measurement", False),
        ("buffered-warm", Counted(0, 0), EXT4, "page cache", True),
        ("mmap-warm", Counted(5000, 0), EXT4, "page cache", True),  # only a neighbour read
        ("buffered-warm", Counted(300, 300), EXT4, "page cache and device", False),
        ("buffered-warm", Counted(None, 0), TMPFS, "tmpfs (memory)", True),
    ],
)
def test_the_path_follows_the_counters(method: str, moved: Counted, kind: Filesystem, path: str, proven: bool) -> None:
    """The table's figures are per mille of 1,000 MiB."""
    found = Counted(*(None if count is None else count * MIB for count in (moved.device, moved.process)))
    verdict = proof.judge(method, 1000 * MIB, found, kind, 1.0 if method.endswith("warm") else None)
    assert (verdict.path, verdict.proven) == (path, proven)
    assert proven or verdict.notes


@pytest.mark.parametrize(
    ("asked", "read_beside", "path"),
    [
        (2 * MIB, 512 * KIB, "page cache"),
        (2 * MIB, 513 * KIB, "page cache and device"),
        (100 * MIB, 2 * MIB, "page cache"),
        (100 * MIB, 3 * MIB, "page cache and device"),
    ],
)
def test_pages_of_the_process_itself_are_not_those_of_the_file(asked: int, read_beside: int, path: str) -> None:
    """Who loads 2 MiB out of the page cache may have pages of his own libraries read for the first time."""
    moved = Counted(read_beside, read_beside)
    assert proof.judge("buffered-warm", asked, moved, EXT4, 1.0).path == path
    wanted = "compat, from the page cache" if path == "page cache" else "compat, from the device and the page cache"
    assert cufile.judge(asked, moved, None, {"posix": asked}, None, 1.0).path == wanted
    assert proof.judge("direct", asked, moved, EXT4).path == "O_DIRECT, not from the device"


@pytest.mark.parametrize("resident", [0.5, None])
def test_without_proof_that_the_files_lie_in_the_cache_no_page_of_theirs_is_called_the_process_own(
    resident: float | None,
) -> None:
    moved = Counted(512 * KIB, 512 * KIB)
    verdict = proof.judge("buffered-warm", MIB, moved, EXT4, resident)
    assert (verdict.path, verdict.proven) == ("page cache and device", False)
    found = cufile.judge(MIB, moved, None, {"posix": MIB}, None, resident).path
    assert found == "compat, from the device and the page cache"


@pytest.mark.parametrize(
    ("resident", "proven"), [(1.0, True), (0.999, True), (0.9, False), (0.0, False), (None, False)]
)
def test_what_is_not_in_the_page_cache_is_not_called_so(resident: float | None, proven: bool) -> None:
    """FUSE drops a file's pages when it is opened, and no device tells who reads it."""
    verdict = proof.judge("buffered-warm", MIB, Counted(None, 0), Filesystem("fuse"), resident)
    assert verdict.proven is proven
    assert (verdict.path == "page cache") is (proven or resident is None)
    assert proven or verdict.notes


def test_amplification_is_told_from_neighbours() -> None:
    assert "2.00 bytes were read" in proof.judge("direct", 1000, Counted(2000, 2000), EXT4).notes[0]
    assert "others read 1000 bytes" in proof.judge("direct", 1000, Counted(2000, 1000), EXT4).notes[0]
