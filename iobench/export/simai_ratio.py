"""SimAI's table of how much of the bandwidth a size reaches (inputs/ratio/nvlink_ratio.csv, nic_ratio.csv).

Format: aliyun/SimAI astra-sim-alibabacloud/inputs/ratio/*.csv, read by readCSV and getValue in
astra-sim/system/calbusbw.cc: a header, then rows Size (bytes) and one column each for 1, 2, 4, ... 128 nodes and
four for its "multi" groups. An empty cell reads as 1. getValue divides by the last row of the column, so only the
shape counts: here each value is busbw over busbw at the largest size that all columns have. It interpolates in size,
holds the first row below the first size, and fails above the last one.
"""

from __future__ import annotations

from iobench.errors import UserError
from iobench.export.format import Format, Options, Source, widest
from iobench.fit.scale.curve import Curve

NODES = (1, 2, 4, 8, 16, 32, 64, 128)
_HEAD = "Size," + ",".join(f"{nodes}Node" for nodes in NODES) + ",Multi 16,Multi 32,Multi 64,Multi (NIC)"
_EMPTY = len(_HEAD.split(",")) - 1 - len(NODES)


def write(source: Source, options: Options) -> str:
    """Return the table of one op (all-gather unless chosen, which is what SimAI looks up for tensor parallelism)."""
    model = source.need(options.op or "all_gather")
    curves = {nodes: widest(model, nodes) for nodes in NODES}
    known = [curve for curve in curves.values() if curve is not None]
    if not known:
        raise UserError(
            f"{source.name} has {model.op} on none of {', '.join(map(str, NODES))} nodes: measure one of these"
        )
    low, high = max(curve.smallest for curve in known), min(curve.largest for curve in known)
    sizes = sorted({point.nbytes for curve in known for point in curve.measured if low <= point.nbytes <= high})
    if len(sizes) < 2:
        raise UserError(
            f"the curves of {model.op} share fewer than two sizes: measure the same sizes on all node counts"
        )
    rows = [
        ",".join([str(size), *(_cell(curves[n], size, sizes[-1]) for n in NODES), *[""] * _EMPTY]) for size in sizes
    ]
    return "\n".join([_HEAD, *rows]) + "\n"


def _cell(curve: Curve | None, nbytes: int, largest: int) -> str:
    """Return busbw at a size over that at the largest size: the bus factor cancels."""
    if curve is None:
        return ""
    return f"{nbytes / curve.at(nbytes) / (largest / curve.at(largest)):.4f}"


FORMAT = Format("simai-ratio", "SimAI (analytical), inputs/ratio", write)
