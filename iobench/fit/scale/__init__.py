"""Models in the number of ranks and nodes: ring, tree and NVLS, within a node and between nodes."""

from __future__ import annotations

from iobench.fit.scale.curve import Curve
from iobench.fit.scale.model import Scaled, ScaleModel

__all__ = ["Curve", "ScaleModel", "Scaled"]
