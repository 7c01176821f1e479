"""Loads a checkpoint through a loader in another process: timed there, proven and verified like iobench's own ways."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from iobench.storage import cufile, plan, proof
from iobench.storage.beside.loaders import Order
from iobench.storage.beside.process import Beside, beside
from iobench.storage.cufile import GpuReads, Nvfs
from iobench.storage.files import Files
from iobench.storage.load import Loaded, Loads, Stage, few, refuse_cold_memory, worst_residency
from iobench.storage.load import judge as judge_own
from iobench.storage.target import Lane
from iobench.storage.way import Way

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from iobench.timing.sampler import Sampler

PAST = "device past the page cache"
_ALL = 0.98  # of the bytes came from the device
_PAST = 0.05  # where no more of a file than this is cached after a load, it went another way
DEADLINE = 120.0  # seconds for one answer: a load, or all of a check
_GDS_STATS = "/usr/local/cuda/gds/tools/gds_stats"


class Elsewhere:
    """A target that another process holds."""

    nbytes = 0

    def __init__(self, name: str, child: Beside) -> None:
        self.name, self._child = name, child

    def poison(self) -> None:
        self._child.poison()

    def lanes(self, count: int, depth: int, nbytes: int) -> contextlib.AbstractContextManager[Sequence[Lane]]:
        raise NotImplementedError("the other process reads by itself")

    def sums(self, start: int, nbytes: int) -> NDArray[np.uint64]:
        raise NotImplementedError("the other process sums its memory by itself")


def load(files: Files, way: Way, target: str, sampler: Sampler, deadline: float = DEADLINE) -> Loaded:
    """Load by another process until the sampler has enough; every load is verified there.

    Raises Unavailable where the loader is not installed, does not start or gives no sign of life, WrongData.
    """
    kvikio = way.how.startswith("kvikio")
    paths = tuple(str(shard.path) for shard in files.checkpoint.shards)
    order = Order(way.how, paths, target, way.threads, way.block, way.register, deadline=deadline)
    wanted = plan.files(files.checkpoint) if kvikio else plan.tensors(files.checkpoint)
    with beside(order) as child:
        stage = Stage(files, wanted, Elsewhere(_shown(target), child), ())
        refuse_cold_memory(stage, way)
        loads = Loads(stage, way, child.load, child.check, child.pid)
        watch = _Watch(child)
        child.load()  # its libraries are imported and mapped in now, not in a load that is counted
        child.check()

        def take(count: int) -> list[list[float]]:
            seconds = []
            for _ in range(count):
                loads.prepare()
                watch.before()
                seconds.append(child.load())
                watch.after()
            return [seconds]

        timed = few(sampler, stage).collect(take)
        loads.finish()
        facts = loads.evidence() | child.facts | watch.evidence()
    counted = kvikio or any(one.read_bytes for one in watch.kernel)  # others may go through nvidia-fs as well
    verdict = watch.judge(stage.nbytes, loads) if counted else judge(loads)
    why = _why(files, sampler) if way.how == "kvikio" and not verdict.path.startswith("gds") else []
    return Loaded(timed, verdict, facts, [*verdict.notes, *why, *files.notes])


def _why(files: Files, sampler: Sampler) -> list[str]:
    """Return what is known to keep cuFile from the direct way here."""
    from iobench.preflight import Host, gds

    host = Host.here(sampler.topology)
    found = [*gds.find(host), *gds.about_file(host, files.checkpoint.shards[0].path)]
    return list(dict.fromkeys(finding.sentence for finding in found))


class _Watch:
    """What nvidia-fs, kvikio and cuFile count around each load; the load that proves least is kept."""

    def __init__(self, child: Beside) -> None:
        self._child = child
        self._start: tuple[Nvfs | None, dict[str, int], GpuReads | None] = (None, {}, None)
        self.kernel: list[Nvfs] = []
        self.backends: list[dict[str, int]] = []
        self.cufile: list[GpuReads] = []

    def before(self) -> None:
        self._start = (cufile.nvfs(), self._child.facts.get("backends") or {}, gds_stats(self._child.pid))

    def after(self) -> None:
        kernel, backends, own = self._start
        now = cufile.nvfs()
        if kernel and now:
            self.kernel.append(now.since(kernel))
        found = self._child.facts.get("backends")
        if found is not None:
            self.backends.append({name: count - backends.get(name, 0) for name, count in found.items()})
        counted = gds_stats(self._child.pid)
        if own and counted:
            self.cufile.append(counted.since(own))

    def judge(self, asked: int, loads: Loads) -> proof.Verdict:
        """Return the verdict of the loads by what speaks least for GDS."""
        kernel = min(self.kernel, key=lambda one: one.read_bytes, default=None)
        backends = max(self.backends, key=lambda one: one.get("posix", 0), default=None)
        own = max(self.cufile, key=lambda one: one.posix, default=None)
        return cufile.judge(asked, loads.worst, kernel, backends, own, worst_residency(loads))

    def evidence(self) -> dict[str, Any]:
        return {
            "nvidia_fs_bytes": [min(one.read_bytes for one in self.kernel), max(one.read_bytes for one in self.kernel)]
            if self.kernel else None,
            "backends": self.backends[-1] if self.backends else None,
            "cufile_reads": vars(self.cufile[-1]) if self.cufile else None,
        }  # fmt: skip


def gds_stats(pid: int) -> GpuReads | None:
    """Return cuFile's own counts for a process by gds_stats, None where there is no such tool or no answer."""
    tool = shutil.which("gds_stats") or shutil.which(_GDS_STATS)
    if tool is None:
        return None
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        command = [tool, "-p", str(pid), "-l", "3"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
        return cufile.parse_gds_stats(done.stdout)
    return None


def judge(loads: Loads) -> proof.Verdict:
    """Judge a loader that may go through the page cache or past it: by the device's bytes and what is cached after."""
    asked, warm, verdict = loads.stage.nbytes, loads.claims_warm, judge_own(loads)
    if not warm and verdict.proven and loads.after and max(loads.after) < _PAST:
        verdict = proof.Verdict(PAST, True, verdict.notes)
    elif warm and loads.devices and min([*loads.devices, *loads.processes]) >= _ALL * asked:
        verdict = proof.Verdict(PAST, True, ["the files lay in the page cache, and the loader read the device anyway"])
    return proof.onto(verdict, False, loads.stage.target.name)


def _shown(target: str) -> str:
    if target == "host":
        return target
    return "gpu:0"
