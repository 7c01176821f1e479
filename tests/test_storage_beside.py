"""Loaders in processes of their own: verified, labelled by counters, ended at a deadline; kvikio by a stand-in.

The stand-in reads with pread into host memory, as kvikio's compatibility mode does, and has its interface; so all but
CUDA itself is tested: labels, statistics, short reads, wrong bytes, refused registration, a constructor that spins.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from iobench.errors import IobenchError, Unavailable, WrongData
from iobench.storage import cache, cufile, files, filesystem, load, plan, target, through
from iobench.storage.beside import kvik, loaders
from iobench.storage.beside.loaders import Order
from iobench.storage.beside.process import beside
from iobench.storage.device import Counted
from iobench.storage.files import Files
from iobench.storage.filesystem import filesystem_of
from iobench.storage.way import Way
from iobench.timing.sampler import Sampler
from iobench.units import MIB

from weighing import skip_without_cache, with_holes

PATIENT = 900.0  # seconds for one answer, on however slow a machine
CUPY = """
import numpy
uint8 = numpy.uint8
zeros = numpy.zeros
class cuda:
    class runtime:
        @staticmethod
        def deviceSynchronize(): pass
"""
KVIKIO = """
import ctypes, enum, os
import numpy
from kvikio import defaults
__version__ = "0"
carried = {"POSIX": 0, "GDS": 0}
class CompatMode(enum.IntEnum):  # whose text is its number
    OFF, ON, AUTO = range(3)
class SummaryMonitor:
    def get(self):
        class Found:
            by_backend = {name: {"bytes_transferred": count} for name, count in carried.items()}
        return Found()
def memory_register(memory):
    assert not defaults.is_compat_mode_preferred(), "does nothing and says nothing there"
    if os.environ.get("REFUSE"):
        raise RuntimeError("cuFileBufRegister returned an error = 5016")
class Future:
    def __init__(self, moved): self.moved = moved
    def get(self): return self.moved
class CuFile:
    def __init__(self, path, flags):
        while os.environ.get("SPIN"): pass
        if os.environ.pop("CLOSE", None): os.close(0)
        self.fd = os.open(path, os.O_RDONLY)
    def __enter__(self): return self
    def __exit__(self, *_): os.close(self.fd)
    def pread(self, memory, size=None, file_offset=0, task_size=None):
        assert defaults.settings["num_threads"] >= 1 and defaults.settings["task_size"] % 4096 == 0
        if os.environ.get("SHRINK"):
            os.truncate(os.readlink(f"/proc/self/fd/{self.fd}"), 1 << 20)
        if not isinstance(memory, numpy.ndarray):  # of a pretended GPU (fakes/cuda)
            memory = numpy.ctypeslib.as_array((ctypes.c_uint8 * memory.nbytes).from_address(memory.data.ptr))
        done = 0
        while done < memory.size:
            moved = os.preadv(self.fd, [memory[done:].data], done)
            if not moved: break
            done += moved
        if os.environ.get("DAMAGE"):
            memory[70000] ^= 1
        carried["POSIX"] += done
        return Future(done)
"""
DEFAULTS = """
import os
settings = {"compat_mode": 2, "num_threads": 1, "task_size": 4 << 20}
def set(found):
    assert found.keys() <= settings.keys()
    settings.update(found)
def get(name): return int(settings[name])
def is_compat_mode_preferred():  # AUTO becomes ON where kvikio finds no cuFile
    return settings["compat_mode"] == 1 or (settings["compat_mode"] == 2 and bool(os.environ.get("NO_CUFILE")))
"""


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Packages kvikio and cupy that a child process finds before any others."""
    folder = tmp_path / "packages"
    (folder / "kvikio").mkdir(parents=True)
    (folder / "cupy.py").write_text(CUPY)
    (folder / "kvikio/__init__.py").write_text(KVIKIO)
    (folder / "kvikio/defaults.py").write_text(DEFAULTS)
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setattr(loaders, "missing", lambda loader: "")
    return folder


@pytest.fixture
def weights(tmp_path: Path) -> Iterator[Files]:
    with files.own(tmp_path, 2 * MIB + 77, 2) as found:
        yield found


@pytest.fixture
def sampler() -> Iterator[Sampler]:
    made = Sampler(budget=0.02)
    yield made
    made.close()


def loaded(weights: Files, method: str, sampler: Sampler, target: str = "gpu", **more: Any) -> Any:
    try:
        return through.load(weights, Way(method, 2, 64 << 10, **more), target, sampler, deadline=PATIENT)
    except cache.ResidencyUnknown as reason:
        pytest.skip(str(reason))
    except (IobenchError, Unavailable) as reason:
        if "nothing is cold" in str(reason):
            pytest.skip(str(reason))
        skip_without_cache(reason)
        raise


@pytest.mark.parametrize("loader", ["kvikio", "kvikio-compat"])
def test_kvikio_that_reads_by_posix_is_called_compat(
    fakes: Path, weights: Files, sampler: Sampler, loader: str
) -> None:
    found = loaded(weights, f"{loader}-warm", sampler)
    assert "compat" in found.verdict.path
    assert "gds" not in found.verdict.path
    assert found.facts["compat_mode"] == ("ON" if loader == "kvikio-compat" else "AUTO")
    assert found.facts["posix_preferred"] is (loader == "kvikio-compat")
    assert found.facts["buffer"] == (
        "registered" if loader == "kvikio" else "not registered: kvikio reads by POSIX here"
    )
    assert found.facts["backends"] == {"posix": weights.nbytes, "gds": 0}
    assert found.facts["bytes_asked"] == weights.nbytes
    assert len(found.timed.seconds[0]) >= 1


def test_cold_bytes_of_a_disk_are_told_from_cached_ones(fakes: Path, weights: Files, sampler: Sampler) -> None:
    if weights.device is None or not weights.filesystem.is_storage:
        pytest.skip("no block device is known behind the temporary folder")
    cold = loaded(weights, "kvikio-compat-cold", sampler)
    if cold.facts["device_bytes"][1] == 0:
        pytest.skip(f"{weights.device.name} counts nothing (iostats are off)")
    assert cold.verdict.path == "compat, from the device"
    assert loaded(weights, "kvikio-compat-warm", sampler).verdict.path == "compat, from the page cache"


def test_holes_are_read_from_no_device(fakes: Path, tmp_path: Path, sampler: Sampler) -> None:
    found = with_holes(tmp_path)
    for loader in ("kvikio", "kvikio-compat"):
        got = loaded(found, f"{loader}-cold", sampler)
        assert got.verdict.path == "compat, not from the device"
        assert not got.verdict.proven
        assert any("holes" in note for note in got.notes)


def test_overlay_has_no_device_that_could_prove_anything(fakes: Path, weights: Files, sampler: Sampler) -> None:
    stacked = dataclasses.replace(weights, filesystem=filesystem.Filesystem("overlay"), device=None)
    for loader in ("kvikio", "kvikio-compat"):
        got = loaded(stacked, f"{loader}-warm", sampler)
        assert got.verdict.path == "compat, from an unknown device"
        assert not got.verdict.proven


def test_on_tmpfs_nothing_is_cold_and_warm_is_no_gds(fakes: Path, sampler: Sampler) -> None:
    shm = Path("/dev/shm")
    if not (shm.is_dir() and os.access(shm, os.W_OK) and filesystem_of(shm).name == "tmpfs"):
        pytest.skip("no writable tmpfs at /dev/shm")
    if shutil.disk_usage(shm).free < 16 * MIB:
        pytest.skip("no room in /dev/shm")
    with files.own(shm, 2 * MIB, 1) as found:
        with pytest.raises(Unavailable, match="not a storage measurement"):
            through.load(found, Way("kvikio-cold"), "gpu", sampler)
        verdict = through.load(found, Way("kvikio-warm"), "gpu", sampler, PATIENT).verdict
        assert verdict.path.startswith("compat")
        assert not verdict.proven


@pytest.mark.parametrize(
    ("variable", "kind", "words"),
    [
        ("SHRINK", IobenchError, r"kvikio read 1048576 of 10\d+ bytes: the file was cut"),
        ("DAMAGE", WrongData, "1 of"),
    ],
)
def test_a_file_that_shrinks_and_wrong_bytes_are_errors(
    fakes: Path,
    weights: Files,
    sampler: Sampler,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    kind: type,
    words: str,
) -> None:
    monkeypatch.setenv(variable, "1")
    with pytest.raises(kind, match=words):
        loaded(weights, "kvikio-warm", sampler)


def test_a_refused_registration_is_recorded_and_reads_go_on(
    fakes: Path, weights: Files, sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFUSE", "1")
    found = loaded(weights, "kvikio-warm", sampler)
    assert found.facts["buffer"] == "not registered: cuFileBufRegister returned an error = 5016"
    assert loaded(weights, "kvikio-warm", sampler, register="never").facts["buffer"] == "not asked for"
    monkeypatch.setenv("NO_CUFILE", "1")
    assert loaded(weights, "kvikio-warm", sampler).facts["buffer"] == "not registered: kvikio reads by POSIX here"


def test_a_library_that_closes_standard_input_does_no_harm(
    fakes: Path, weights: Files, sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cuFile's driver does, in a container that has nvidia-fs and not its devices."""
    monkeypatch.setenv("CLOSE", "1")
    assert loaded(weights, "kvikio-compat-warm", sampler).timed.seconds[0]


def test_a_constructor_that_spins_is_ended(
    fakes: Path, weights: Files, sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPIN", "1")
    with pytest.raises(Unavailable, match="no sign of life for 2 s"):  # ended, or this would never come back
        through.load(weights, Way("kvikio-warm"), "gpu", sampler, deadline=2.0)


@pytest.mark.parametrize(("carried", "path"), [(2 * MIB, cufile.GDS_NVFS), (MIB, "compat in part"), (0, "compat")])
def test_what_nvidia_fs_carried_is_named(
    fakes: Path, weights: Files, sampler: Sampler, monkeypatch: pytest.MonkeyPatch, carried: int, path: str
) -> None:
    """A stand-in whose bytes come without read calls of the process, counted by nvidia-fs: all, half or none."""
    counted = [0]

    def nvfs() -> cufile.Nvfs:
        counted[0] += 1
        return cufile.Nvfs(True, carried * (counted[0] // 2), counted[0])

    monkeypatch.setattr(cufile, "nvfs", nvfs)
    if carried == 2 * MIB:
        monkeypatch.setattr(load, "count", lambda *_: Counted(None, None, 0))
    found = loaded(weights, "kvikio-warm", sampler)
    assert found.verdict.path.startswith(path)
    assert found.facts["nvidia_fs_bytes"] == [carried, carried]


def test_kvikio_to_the_host_is_refused(fakes: Path, weights: Files, sampler: Sampler) -> None:
    with pytest.raises(Unavailable, match="-a target=gpu"):
        through.load(weights, Way("kvikio-warm"), "host", sampler)


def test_safetensors_brings_every_byte(weights: Files, sampler: Sampler) -> None:
    pytest.importorskip("safetensors")
    found = loaded(weights, "safetensors-warm", sampler, "host")
    assert found.verdict.path == "page cache" or "memory" in found.verdict.path
    assert found.facts["loader"].startswith("safetensors ")
    assert 0 < found.facts["bytes_asked"] < weights.nbytes  # the headers are not among a loader's bytes


@pytest.mark.parametrize(
    ("state", "share", "path", "proven"),
    [
        ("warm", 1.0, through.PAST, True),
        ("warm", 0.5, "page cache and device", False),
        ("warm", 0.0, "page cache", True),
        ("cold", 1.0, through.PAST, True),
    ],
)
def test_loaders_that_read_past_the_page_cache_are_told(
    weights: Files, state: str, share: float, path: str, proven: bool
) -> None:
    """Some read with O_DIRECT even where the page cache holds the files: that is no read of the page cache."""
    where = dataclasses.replace(weights, filesystem=filesystem.Filesystem("ext4"))
    stage = load.Stage(where, plan.tensors(weights.checkpoint), target.Nowhere(0), ())
    loads = load.Loads(stage, Way(f"runai-{state}"), lambda: None, lambda: None)
    device, warm = int(share * stage.nbytes), float(state == "warm")
    loads.moved, loads.resident, loads.after = [Counted(device, device)], [warm], [warm]
    verdict = through.judge(loads)
    assert (verdict.path, verdict.proven) == (f"{path} + copy to nowhere", proven)


@pytest.mark.parametrize(
    ("state", "moved", "worst"),
    [
        # the page cache has to answer: the first load brings its libraries in, and a later one may meet a fault
        ("warm", [(9, 8), (0, 0), (7, 0), (7, 7), (0, 0)], (0, 0)),
        ("warm", [(9, 8), (0, 3)], (0, 3)),
        ("warm", [(9, 8)], (9, 8)),
        ("warm", [(9, 9), (9, 9), (9, 9), (0, 0)], (9, 9)),
        ("cold", [(9, 8), (9, 9), (3, 9), (None, 5)], (3, 5)),
        ("cold", [(None, None)], (None, None)),
    ],
)
def test_one_load_alone_labels_none_as_read_past_the_cache(
    weights: Files, state: str, moved: list[tuple[int | None, int | None]], worst: tuple[int | None, int | None]
) -> None:
    stage = load.Stage(weights, plan.tensors(weights.checkpoint), target.Nowhere(0), ())
    loads = load.Loads(stage, Way(f"buffered-{state}"), lambda: None, lambda: None)
    loads.moved = [Counted(*both) for both in moved]
    assert loads.worst == Counted(*worst)


def test_settings_of_loaders_are_made_before_they_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNAI_STREAMER_CONCURRENCY", "1")
    for loader, (name, value) in loaders.BUFFERED.items():
        for buffered in (False, True):
            monkeypatch.setenv(name, "")  # so that it is taken back at the end
            monkeypatch.delenv(name)
            loaders.tell(Order(loader, (), buffered=buffered))
            assert os.environ.get(name) == (value if buffered else None)


def test_a_loader_that_is_not_installed_says_how_to_get_it(weights: Files, sampler: Sampler) -> None:
    for loader, (module, package) in loaders._NEEDS.items():
        if loaders.missing(loader):
            assert package in loaders.missing(loader)
            with pytest.raises(Unavailable, match=f"needs {package}"):
                through.load(weights, Way(f"{loader}-warm"), "host", sampler)
        else:
            assert module


def test_two_tensors_of_one_name_are_refused(weights: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaders, "missing", lambda loader: "")
    twice = files.first_shard(weights.checkpoint)
    twice = type(twice)(twice.path, twice.shards * 2)
    with pytest.raises(Unavailable, match="one name"):
        loaders.make(Order("safetensors", ()), twice)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import sys; sys.exit('no such driver')", "exit status 1 .*no such driver"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGBUS)", "killed by signal 7"),
    ],
)
def test_a_process_that_dies_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, words: str) -> None:
    (tmp_path / "dying_loader.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(IobenchError, match=words), beside(Order("kvikio", ()), "dying_loader"):
        pass


def test_the_library_in_use_is_named() -> None:
    maps = (
        "7f00-7f01 r-xp 00000000 08:01 5 /opt/v/lib/python3.11/site-packages/nvidia/cufile/lib/libcufile.so.0\n"
        "7f02-7f03 r--p 00000000 08:01 5 /opt/v/lib/python3.11/site-packages/nvidia/cufile/lib/libcufile.so.0\n"
        "7f04-7f05 r-xp 00000000 08:01 6 /usr/lib/libc.so.6\n"
    )
    assert kvik.loaded(maps) == ["/opt/v/lib/python3.11/site-packages/nvidia/cufile/lib/libcufile.so.0"]
    assert kvik.backends(None) is None


def test_poison_stands_where_a_loader_brings_nothing(
    fakes: Path, weights: Files, sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right bytes of the load before do not pass for those of this one."""
    first_only = f"        done = memory.size if carried['POSIX'] >= {weights.nbytes} else 0\n"
    lazy = KVIKIO.replace("        done = 0\n", first_only)
    (fakes / "kvikio/__init__.py").write_text(lazy)
    with pytest.raises(WrongData):
        loaded(weights, "kvikio-warm", sampler)


def test_sums_of_parts_match_the_files(weights: Files) -> None:
    found: Callable[..., Any] = files.area_sums
    area = loaders.Area("x", 1, 1000, 0, 300, 700, 5)
    data = np.fromfile(weights.checkpoint.shards[1].path, np.uint8)[1000:]
    right = np.concatenate([data[at : at + 300] for at in range(0, 5 * 700, 700)])
    assert np.array_equal(found(weights.checkpoint, area), files.verify.sums(right))
