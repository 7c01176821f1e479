"""The network file of ASTRA-sim's analytical backends.

Format: astra-sim/astra-network-analytical input/*.yml: lists topology, npus_count, bandwidth and latency with one
entry per dimension. Units: latency in ns; bandwidth is labelled GB/s, but common/NetworkFunction.cc takes it times
2^30 ("1 GB is 2^30 B"), so GiB/s are written. A dimension is a Switch; its two links (to the switch and back,
Switch::compute_hops_count) each carry half of the latency of one step. What a collective costs before its first
step has no place in this file and is said in a comment.
"""

from __future__ import annotations

from iobench.errors import UserError
from iobench.export.format import Format, Options, Source
from iobench.fit.scale import nvls
from iobench.fit.scale.model import ScaleModel
from iobench.fit.series import Parameter
from iobench.units import GIB, NS, format_seconds

_HOPS = 2


def write(source: Source, options: Options) -> str:
    """Return the file: one dimension for the ranks of a node, a second for nodes where several were measured."""
    model = source.need(options.op or "all_reduce")
    dimensions = [(_most(model, 1), "within")]
    groups = [name.removeprefix("hop_") for name in model.parameters if name.startswith("hop_between_")]
    if groups:
        dimensions.append((max(curve.nodes for curve in model.curves), groups[-1]))
    found = [(count, *_pair(source, model, where)) for count, where in dimensions]
    lines = [f"# {model.op} on {source.models.machine}, written by iobench out of {source.name}"]
    lines += [f"# not in this file: {format_seconds(model.parameters[f'base_{where}'].value)} per collective ({where})"
              for _, where in dimensions]  # fmt: skip
    if model.op == "all_reduce" and model.switch != nvls.NO:
        lines.append("# ring only: what the NVLink switch reduces (NVLS) is faster at large sizes and not in this file")
    lines += [
        _list("topology", ["Switch"] * len(found), "each step crosses two links"),
        _list("npus_count", [str(count) for count, _, _ in found], "ranks of a node" + (", nodes" if groups else "")),
        _list("bandwidth", [f"{rate.value / GIB:.3f}" for _, _, rate in found], "read as GiB/s (2^30), per direction"),
        _list("latency", [f"{hop.value / NS / _HOPS:.1f}" for _, hop, _ in found], "ns per link, two links per step"),
    ]
    return "\n".join(lines) + "\n"


def _pair(source: Source, model: ScaleModel, where: str) -> tuple[Parameter, Parameter]:
    hop, rate = model.parameters.get(f"hop_{where}"), model.parameters.get(f"bytes_per_s_{where}")
    if hop is None or rate is None:
        raise UserError(
            f"{source.name} does not tell latency per hop from bandwidth for {model.op}: that needs two numbers of "
            "ranks and sizes from 1 KiB to 64 MiB at least; measure these"
        )
    return hop, rate


def _most(model: ScaleModel, nodes: int) -> int:
    return max((curve.ranks for curve in model.curves if curve.nodes == nodes), default=0)


def _list(name: str, values: list[str], comment: str) -> str:
    return f"{name}: [ {', '.join(values)} ]  # {comment}"


FORMAT = Format("astra-sim", "ASTRA-sim, analytical network backends", write)
