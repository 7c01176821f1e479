"""SimAI's file of one bus bandwidth per collective and parallel group (example/busbw.yaml).

Format: aliyun/SimAI example/busbw.yaml, read line by line by parseYaml in astra-sim/system/AstraParamParse.hh: the
first line is skipped, "#" begins a comment, then the groups TP, DP, EP with allreduce, allgather, reducescatter and
alltoall, and PP with busbw; null for none. Units: SimAI takes a figure times 2^30 as bytes per second (GBps is
1 / (1024 * 1024 * 1024) in astra-sim/system/Common.hh, used in workload/Layer.cc), so GiB/s are written.
"""

from __future__ import annotations

from iobench import busbytes
from iobench.errors import UserError
from iobench.export.format import Format, Options, Source, widest
from iobench.fit.scale.curve import Curve
from iobench.fit.scale.model import ScaleModel
from iobench.units import GIB, format_size

_OPS = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter", "alltoall": "all_to_all",
}  # fmt: skip


def write(source: Source, options: Options) -> str:
    """Return the file: TP from one node, DP and EP from the most nodes measured, PP from sendrecv."""
    within = {name: _rate(source.scale(op), False, options.nbytes) for name, op in _OPS.items()}
    between = {name: _rate(source.scale(op), True, options.nbytes) for name, op in _OPS.items()}
    if all(rate is None for rate in (*within.values(), *between.values())):
        raise UserError(f"{source.name} holds none of {', '.join(_OPS.values())}: measure one of them")
    where = format_size(options.nbytes) if options.nbytes else "the largest size measured"
    lines = [f"# bus bandwidth in GiB/s (2^30 bytes per second) at {where}; {source.models.machine}"]
    for group, rates in (("TP", within), ("DP", between), ("EP", between)):
        lines += [f"{group}:", *(f"{name},: {_figure(rate)}" for name, rate in rates.items())]
    pairs = source.scale("sendrecv")
    over_net = _rate(pairs, True, options.nbytes)
    lines += ["PP:", f"busbw: {_figure(over_net if over_net is not None else _rate(pairs, False, options.nbytes))}"]
    return "\n".join(lines) + "\n"


def _rate(model: ScaleModel | None, several: bool, nbytes: int) -> float | None:
    curve = _curve(model, several)
    if model is None or curve is None:
        return None
    size = nbytes or curve.largest
    if not curve.smallest <= size <= curve.largest:
        span = f"{format_size(curve.smallest)} to {format_size(curve.largest)}"
        raise UserError(f"{model.op} was measured from {span}: choose --nbytes in that range")
    return busbytes.factor(model.op, curve.ranks) * size / curve.at(size)


def _curve(model: ScaleModel | None, several: bool) -> Curve | None:
    if model is None:
        return None
    nodes = [curve.nodes for curve in model.curves if (curve.nodes > 1) == several]
    return widest(model, max(nodes)) if nodes else None


def _figure(bytes_per_s: float | None) -> str:
    return "null" if bytes_per_s is None else f"{bytes_per_s / GIB:.2f}"


FORMAT = Format("simai-busbw", "SimAI (analytical), -busbw", write)
