"""Compiles or loads the kernels of the CPU probes by using each once: python -m lab.compile_kernels."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from iobench.kernels import streaming
from iobench.kernels.chasing import Chasing
from iobench.kernels.gathering import Gathering
from iobench.kernels.loading import Loading
from iobench.kernels.team import pinned
from iobench.units import KIB

sys.path.append(str(Path(__file__).resolve().parent.parent))


def main() -> None:
    streaming.compile_all()
    rdma_loops()
    data = np.zeros(64 * KIB + 64, np.uint8)
    data = data[-int(data.ctypes.data) % 64 :][: 64 * KIB]
    other = np.zeros(8 * KIB, np.uint8)
    with pinned(1) as team:
        for kernel in ("read", "copy"):
            work = streaming.Streaming.over(data, kernel, False, 32 * KIB, team)
            work.fill()
            work.take(1)
            work.check()
        chase = Chasing.over(data, 1, team)
        chase.take(5, 1)
        chase.check()
        with pinned(1) as others:
            load = Loading.over(other, "read", 1, chase, others)
            load.take(5, 1)
            load.check()
        gather = Gathering.over(data[: 16 * KIB], data[32 * KIB : 48 * KIB], 4 * KIB, 1, team)
        gather.take(1)
        gather.check()


def rdma_loops() -> None:
    """Compile the loops of RDMA on a device that is made of callbacks."""
    import rdma_sides

    with tempfile.TemporaryDirectory() as folder:
        rdma_sides.use_all_loops(Path(folder))


if __name__ == "__main__":
    main()
