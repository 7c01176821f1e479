"""A point of the weights probe, measured; what this machine can't do is skipped by its reason."""

from __future__ import annotations

from typing import Any

import pytest
from iobench import probe as probes
from iobench.errors import IobenchError, Unavailable
from iobench.timing.sampler import Sampler

WEIGHTS = probes.load("weights")


def measured(wanted: dict[str, Any], sampler: Sampler) -> probes.Samples:
    """Measure one point."""
    try:
        return WEIGHTS.measure(wanted, sampler)
    except Unavailable as reason:
        pytest.skip(str(reason))
    except IobenchError as reason:
        if "not cold" in str(reason):
            pytest.skip(str(reason))
        raise
