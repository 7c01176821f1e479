"""Where far memory's latency goes: the stages add up to what was measured, what is unknown is not made up."""

from __future__ import annotations

from pathlib import Path

import pytest
from iobench.cxl import stages
from iobench.record import Run
from iobench.report.models import view_of
from iobench.topology.graph import Topology
from iobench.units import MIB, NS

from machines import built
from make_run import lines, run_of


def cxl_run(graph: Topology, emulator: str = "") -> Run:
    out = []
    for form, node, seconds, declared in (
        ("local", 0, 100 * NS, {"read_seconds": 90 * NS}),
        ("node", 2, 260 * NS, {"read_seconds": 250 * NS}),
        ("interleave", 2, 180 * NS, {}),
    ):
        point = {"form": form, "node": node, "kernel": "chase", "pages": "base", "nbytes": 64 * MIB}
        more = {"mode": "dependent loads", "quantity": "latency", "moved": 64}
        out += lines("cxl", point, seconds, evidence={"declared": declared, "cpus": [0]}, noise=0.001, **more)
    run = run_of(out, topology=graph, models={"cxl": []})
    run.header.machine["virtual"] = {"emulator": emulator}
    return run


def test_stages_add_up_beside_what_is_declared(tmp_path: Path) -> None:
    graph = built("cxl-host", tmp_path)
    node, mixed = stages.paths(cxl_run(graph))
    rate = next(link.bytes_per_s for link in graph.links if link.kind == "cxl" and link.a == "mem:2")
    assert node.seconds == pytest.approx(260 * NS, rel=0.01)
    assert [stage.how for stage in node.stages] == ["measured", "computed", "rest"]
    assert node.stages[1].seconds == pytest.approx(2 * 68 / (rate / 2))  # over one of the region's two links
    assert node.stages[2].seconds == pytest.approx(160 * NS - 4 * 68 / rate, rel=0.02)
    assert node.stages[2].low <= node.stages[2].seconds <= node.stages[2].high
    assert (node.declared, node.declared_local) == (250 * NS, 90 * NS)
    assert node.switches == 0
    assert "declares 250 ns, 90.0 ns for local memory" in node.text()
    assert "HMAT says nothing" in mixed.text()


def test_unknown_link_is_not_made_up() -> None:
    node, _ = stages.paths(cxl_run(Topology("bare")))
    assert [stage.name for stage in node.stages] == ["local memory", "link, switches and device"]
    assert node.switches is None
    assert "switches on the way: unknown" in node.text()


def test_the_report_shows_them_and_never_those_of_an_emulator(tmp_path: Path) -> None:
    graph = built("cxl-host", tmp_path)
    found = dict(view_of(cxl_run(graph)).findings)
    assert "a load takes 260 ns" in found["cxl node, node 2"]
    assert not stages.paths(cxl_run(graph, emulator="QEMU TCG"))
    assert not view_of(cxl_run(graph, emulator="QEMU TCG")).findings
