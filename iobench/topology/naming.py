"""Names a machine by its hardware."""

from __future__ import annotations

import re
from collections import Counter

from iobench.topology.graph import Topology

# words of a processor's name that tell nothing, and what is in brackets
_NOISE = re.compile(r"\([^)]*\)|@.*|\b(CPU|Processor|[0-9]+-Core|with .*|v[0-9]+ @.*)\b", re.IGNORECASE)
_MOST_NAME = 40


def name(graph: Topology) -> str:
    """Return a slug of the hardware that is the same at every start: no memory size, which varies.

    "2x-nvidia-h200-32cpu" with GPUs, "amd-epyc-fam25-2cpu" without, "-2s" where there are two sockets.
    """
    cpus, sockets = len(graph.of("cpu")), len(graph.of("socket"))
    tail = f"{cpus}cpu" + (f"-{sockets}s" if sockets > 1 else "")
    gpus = Counter(gpu.get("model_name") or f"{gpu.get('vendor') or 'unknown'}-gpu" for gpu in graph.of("gpu"))
    if gpus:
        return "-".join([*(f"{count}x-{slug(model)}" for model, count in sorted(gpus.items())), tail])
    first = next(iter(graph.of("socket")), graph.nodes["machine"])
    maker = first.get("model_name") or first.get("vendor") or "unknown"
    family = f"-fam{first.get('family')}" if first.get("family") is not None else ""
    return f"{slug(maker)}{family}-{tail}"


def slug(text: str) -> str:
    """Return lower-case words joined by hyphens, fit for a file's name."""
    words = re.sub(r"[^a-z0-9]+", "-", _NOISE.sub(" ", text).lower()).strip("-")
    return words[:_MOST_NAME].strip("-") or "unknown"
