"""A point of the weights probe, measured, and an odd checkpoint; what a machine can't do is skipped by its reason."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from iobench import probe as probes
from iobench.errors import IobenchError, Unavailable
from iobench.storage import files
from iobench.storage.files import Files
from iobench.timing.sampler import Sampler
from iobench.topology.graph import Topology
from iobench.units import MIB

WEIGHTS = probes.load("weights")


@contextlib.contextmanager
def sampling(scratch: Path) -> Iterator[Sampler]:
    """Yield a quick sampler with its scratch folder; see that no files are left there."""
    found = Sampler(budget=0.02, scratch=str(scratch))
    yield found
    found.close()
    assert not list(scratch.glob("iobench-weights-*")), "files were left in the scratch folder"


def points(*assignments: str) -> list[dict[str, Any]]:
    """Return the points on a machine of which nothing is known."""
    return list(WEIGHTS.points(Topology("empty"), probes.narrow(WEIGHTS, assignments)))


def point(method: str, **more: Any) -> dict[str, Any]:
    """Return a small point of the probe on the host."""
    base = {"method": method, "target": "host", "threads": 2, "block": 256 << 10}
    return {**base, **(more if "path" in more else {"nbytes": 2 * MIB + 3, "shards": 2, **more})}


def measured(wanted: dict[str, Any], sampler: Sampler) -> probes.Samples:
    """Measure one point."""
    try:
        return WEIGHTS.measure(wanted, sampler)
    except Unavailable as reason:
        pytest.skip(str(reason))
    except IobenchError as reason:
        skip_without_cache(reason)
        raise


def skip_without_cache(reason: Exception) -> None:
    """Skip where a filesystem keeps its pages, has a cache of its own (ZFS), or memory is short."""
    if str(reason).startswith(("not cold:", "not warm:")):
        pytest.skip(str(reason))


def with_holes(folder: Path) -> Files:
    """Return a checkpoint of 4 MiB that is nothing but a hole."""
    header = json.dumps({"a": {"dtype": "U8", "shape": [4 * MIB], "data_offsets": [0, 4 * MIB]}}).encode()
    file = folder / "sparse.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(file, 8 + len(header) + 4 * MIB)
    found = files.users(file)
    if file.stat().st_blocks * 512 > MIB or found.device is None:
        pytest.skip("this filesystem keeps no holes, or its device is unknown")
    return found
