"""All-reduce by the NVLink switch (NVLS): where it takes over, and how long it takes.

The switch reduces and multicasts, so a GPU sends S (1 + 1/n) instead of 2 S (n-1)/n, and a large all-reduce
gets faster than the ring that fewer ranks ran. It needs NVSwitch and Hopper or newer, and a type that
multimem.ld_reduce can add (PTX ISA: no 8-bit integers). NCCL leaves it off below 5 or 6 ranks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from iobench import busbytes
from iobench.fit.scale.curve import Curve
from iobench.fit.scale.formulas import nvls_factor
from iobench.topology.graph import Topology
from iobench.units import MIB, US

YES, NO, UNKNOWN = "yes", "no", "unknown"
FIRST_RANKS = 5  # 5 on H200, 6 on B200 (stas00/ml-engineering, network/README.md, NCCL 2.27.7)
FIRST_NBYTES = 2 * MIB  # "Algo NVLS proto SIMPLE" from 2 MiB on, 8 H200 (same page; NCCL's tuning log)
# Bus bandwidth of NVLS over that of the ring: 473.1/363.3 on H200 (8 and 4 ranks), 838/678 on B200 (same page),
# 475/370.8 in SimAI's calbusbw.h
GAIN = 1.27
START_SECONDS = 25 * US  # NCCL src/graph/tuning.cc: latency of NVLS over NVLink
# What filling its pipeline costs beyond that: straight lines through 64 to 512 MiB of public curves of 8 H100
# meet S = 0 near 70 us
FILL_SECONDS = 60 * US
HALF_WIDTH = 0.20  # of the logarithm; GAIN's sources differ by 5 %, FILL_SECONDS was seen on one kind of GPU
_ADDABLE = {
    "half",
    "float16",
    "bfloat16",
    "float",
    "float32",
    "double",
    "float64",
    "int32",
    "uint32",
    "int64",
    "uint64",
}
_NEWER = re.compile(r"h100|h200|h800|h20\b|h20[_-]|gh200|b100|b200|b300|gb200|gb300", re.IGNORECASE)
_OLDER = re.compile(r"v100|a100|a800|a40|a30|a10|l40|l4\b|t4|rtx|p100|mi\d{3}", re.IGNORECASE)
_SWITCHLESS = re.compile(r"pairwise|pcie|nvl\b|bridge", re.IGNORECASE)


def supported(machine: str, axes: Mapping[str, Any], topology: Topology | None = None) -> str:
    """Say whether all-reduce may run by NVLS: yes, no or unknown.

    ``machine`` is any text that names the GPU ("h100_sxm", "8x-h200"), ``axes`` what the points have in common.
    """
    if axes.get("op") != "all_reduce" or str(axes.get("dtype", "float32")) not in _ADDABLE:
        return NO
    if str(axes.get("algo", "")).lower() not in ("", "nvls", "auto") or axes.get("engine") in ("gloo", "mpi", "rccl"):
        return NO
    if axes.get("transport") not in (None, "nvlink") or axes.get("backend") == "gloo":
        return NO
    switches = len(topology.of("nvswitch")) if topology and topology.of("gpu") else None
    if switches == 0 or _SWITCHLESS.search(machine) or (_OLDER.search(machine) and not _NEWER.search(machine)):
        return NO
    return YES if _NEWER.search(machine) else UNKNOWN


def carried(curve: Curve, ranks: int, nbytes: float) -> float:
    """Return the seconds by NVLS at another number of ranks than ``curve``, which ran by NVLS too.

    8 H200 give 3.4 % and 4.4 % too few seconds per byte for 6 and 5 without it, 0.3 % and 2.2 % too many with it.
    """
    return curve.at(nbytes) * nvls_factor(ranks) / nvls_factor(curve.ranks)


def foreseen(curve: Curve, ranks: int, nbytes: float) -> float | None:
    """Return the seconds of an all-reduce by NVLS, from the ring's curve of fewer ranks; None where it can't tell."""
    points = [point for point in curve.measured if point.nbytes not in curve.spikes][-2:]
    if len(points) < 2 or points[1].seconds <= points[0].seconds or points[1].nbytes < 16 * FIRST_NBYTES:
        return None
    ring = (points[1].nbytes - points[0].nbytes) / (points[1].seconds - points[0].seconds)
    rate = GAIN * ring * busbytes.factor("all_reduce", curve.ranks) / busbytes.factor("all_reduce", ranks)
    return START_SECONDS + nbytes / rate + FILL_SECONDS * nbytes / (nbytes + rate * FILL_SECONDS)
