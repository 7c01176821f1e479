"""The RDMA probe: its points, and the model of what it measures."""

from __future__ import annotations

import numpy as np
import pytest
from iobench.errors import Unavailable
from iobench.rdma import measure


def test_points_of_the_probe() -> None:
    from iobench import probe
    from iobench.topology.graph import Topology

    loaded, graph = probe.load("rdma"), Topology("x")
    with pytest.raises(Unavailable, match="this machine has none"):
        list(loaded.points(graph, probe.narrow(loaded, [])))
    graph.add("port:mlx5_0/1", "port", device="mlx5_0", port=1, state="DOWN")
    with pytest.raises(Unavailable, match="mlx5_0/1 is down"):
        list(loaded.points(graph, probe.narrow(loaded, [])))
    graph.add("port:mlx5_1/1", "port", device="mlx5_1", port=1, state="ACTIVE")
    every = list(loaded.points(graph, probe.narrow(loaded, [])))
    assert {point["verb"] for point in every} == set(loaded.axes["verb"].values)
    for point in every:
        measure.setups(point)
    sizes = [point["nbytes"] for point in loaded.points(graph, probe.narrow(loaded, ["verb=read", "nbytes=2:1G"]))]
    assert set(sizes) == {1 << n for n in range(1, 31)}
    classes = probe.narrow(loaded, ["traffic_class=0,104", "load=2", "verb=send", "nbytes=64", "completion=poll"])
    assert [point["traffic_class"] for point in loaded.points(graph, classes)] == [0, 104]
    with pytest.raises(Unavailable, match="atomics are 8 B"):
        list(loaded.points(graph, probe.narrow(loaded, ["verb=atomic_cas", "nbytes=64"])))
    gpu = list(loaded.points(graph, probe.narrow(loaded, ["memory=gpu"])))
    assert gpu
    assert not any(point["verb"].startswith("atomic") for point in gpu)


def test_latency_stream_and_overhead_make_one_loggp_model() -> None:
    """One way T = L + 2o + (S-1)G, a stream max(g, o) + (S-1)G, posting o: what went in comes out."""
    from dataclasses import replace as changed

    from iobench import fit, probe
    from iobench.record import Line
    from iobench.topology.graph import Topology

    from make_run import run_of

    latency, gap, overhead, per_byte = 1.2e-6, 0.4e-6, 0.1e-6, 1 / 24e9
    loaded, graph = probe.load("rdma"), Topology("x")
    graph.add("port:mlx5_0/1", "port", device="mlx5_0", port=1, state="ACTIVE")
    draws = np.random.default_rng(1)
    lines = []
    narrowed = probe.narrow(loaded, ["verb=write", "qps=1", "direction=one", "load=0"])
    for point in loaded.points(graph, narrowed):
        grown = (point["nbytes"] - 1) * per_byte
        seconds = {"latency": latency + 2 * overhead + grown, "bandwidth": gap + grown, "overhead": overhead}
        for launch in range(3):
            samples = (seconds[point["test"]] * (1 + 0.002 * draws.standard_normal(30))).tolist()
            line = Line("rdma", "sha256:0", point, launch, mode=point["completion"], proven=True, verified=True)
            lines.append(changed(line, seconds=[samples], nbytes=point["nbytes"], moved=point["nbytes"], ops=1))
    run = run_of(lines, topology=graph, models={"rdma": [dict(model) for model in loaded.models]})
    (model,) = [one.model for one in fit.fit_run(run) if one.kind == "loggp" and one.model]
    found = {name: parameter.value for name, parameter in model.parameters.items()}
    assert found["o"] == pytest.approx(overhead, rel=0.05)
    assert found["L"] == pytest.approx(latency, rel=0.1)
    assert found["max(g,o)"] == pytest.approx(gap, rel=0.1)
    assert found["G"] == pytest.approx(per_byte, rel=0.02)
