"""The crosscheck of RDMA with perftest: its rows, and the rounds of both."""

from __future__ import annotations

import numpy as np
import pytest


def test_rows_of_perftest_are_found() -> None:
    from iobench.crosscheck import rdma

    text = """ Connection type : RC
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99%   99.9%
 8       1000          30.12          900.50       46.52              51.00          10.1            90.1  800.0
"""
    assert rdma.figures(text)[4] == "46.52"
    assert rdma.figures("Couldn't connect to 127.0.0.1:18515") == []
    assert rdma._same_order([(1.0, 2.0), (1.05, 1.9), (3.0, 9.0)]), "a tie has no order"
    assert not rdma._same_order([(1.0, 2.0), (3.0, 1.0)])
    heading, row = text.splitlines()[1:3]
    unsorted = f"{heading}\n#, usec\n1, 46706.7\n2, 22.602\n3, 22\n---------\n{heading}\n{row}\n"
    assert rdma.samples(unsorted) == pytest.approx([46706.7e-6, 22.602e-6, 22e-6])
    assert rdma.figures(unsorted)[4] == "46.52"


def test_rounds_of_two_speeds_are_pooled_before_the_medians_are_compared() -> None:
    from iobench.crosscheck import rdma

    draws = np.random.default_rng(3)
    fast, slow = 20e-6, 40e-6

    def rounds(speeds: list[float]) -> list[list[float]]:
        return [(speed * (1 + 0.05 * draws.standard_normal(500))).tolist() for speed in speeds]

    row = rdma.Pooled("send 8 B", latency=True)
    row.mine += rounds([slow, fast, fast, slow, fast, fast, slow, fast])
    row.theirs += rounds([fast, slow, fast, fast, slow, fast, fast, slow])
    row.ours += [float(np.median(one)) for one in row.mine]
    row.peers += [float(np.median(one)) for one in row.theirs]
    assert row.ratio.median == pytest.approx(1, abs=0.05), "both are fast in five rounds of eight"
    assert row.ratio.low < 1 < row.ratio.high
    assert "single rounds 0.5" in row.text()
    assert rdma._judge([row], lambda text: None)
    row.mine[:] = rounds([2 * slow] * 8)
    del row.ratio
    assert not rdma._judge([row], lambda text: None)
