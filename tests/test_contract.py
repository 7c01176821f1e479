"""Every probe against every topology file: the contract that the engine relies on."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from iobench import catalogue, topology
from iobench import probe as probes
from iobench.errors import Unavailable
from iobench.paths import data_dir
from iobench.topology.graph import Topology
from tests.conftest import ROOT, cli_environment

PROBES = sorted(probes.files())
MACHINES = sorted(file.stem for file in data_dir("topologies").glob("*.json") if not file.name.endswith(".models.json"))
HEAVY = ("numpy", "torch", "cupy", "numba", "scipy", "pyverbs", "kvikio", "matplotlib")


def machine(name: str) -> Topology:
    return topology.load(data_dir("topologies") / f"{name}.json")


def test_there_are_probes_and_machines() -> None:
    assert {"null", "dram", "weights", "allreduce"} <= set(PROBES)
    assert len(MACHINES) >= 5


@pytest.mark.parametrize("name", PROBES)
@pytest.mark.parametrize("where", [*MACHINES, "empty"])
def test_points_are_pure_and_within_the_axes(name: str, where: str) -> None:
    probe = probes.load(name)
    graph = machine(where) if where != "empty" else Topology("empty")
    before = graph.to_dict()
    axes = probes.narrow(probe, [])
    try:
        points = list(probe.points(graph, axes))
        again = list(probe.points(graph, axes))
    except Unavailable as reason:
        says: str | None = str(reason)
    else:
        says = None
    if says is not None:
        assert says.strip(), "Unavailable must say what is needed"
        assert "\n" not in says
        return
    assert points == again
    assert points, "no point and no reason"
    assert graph.to_dict() == before
    for point in points:
        assert set(point) <= set(probe.axes)
        for axis, value in point.items():
            assert value in axes[axis], f"{axis}={value} is none of its values"


@pytest.mark.parametrize("name", PROBES)
def test_axes_can_be_narrowed(name: str) -> None:
    probe = probes.load(name)
    graph = topology.discover()
    for axis, spec in probe.axes.items():
        if spec.free or not spec.values:
            continue
        axes = probes.narrow(probe, [f"{axis}={spec.values[0]}"])
        try:
            points = list(probe.points(graph, axes))
        except Unavailable:
            continue
        assert all(point.get(axis, spec.values[0]) == spec.values[0] for point in points)


@pytest.mark.parametrize("name", PROBES)
def test_docstring_says_what_a_reader_needs(name: str) -> None:
    doc = ast.get_docstring(ast.parse(probes.files()[name].read_text(encoding="utf-8"))) or ""
    first, *rest = doc.splitlines()
    assert 10 < len(first) <= 120
    assert first.endswith(".")
    text = " ".join(rest).lower()
    for word in ("path", "clock", "running it", "cross-checked"):
        assert word in text, f"the docstring of {name} does not say: {word}"


@pytest.mark.parametrize("name", PROBES)
def test_every_axis_is_explained(name: str) -> None:
    probe = probes.load(name)
    assert all(axis.help and axis.values for axis in probe.axes.values())
    for plot in probe.plots:
        assert plot.x in (*probe.axes, "nbytes") or plot.x.startswith("evidence.")
        assert set(plot.over) <= set(probe.axes)
        assert plot.y in ("bandwidth", "latency")
        assert set(plot.series) | set(plot.where) <= set(probe.axes)
    assert name in catalogue.details(name)


@pytest.mark.parametrize("name", PROBES)
def test_a_probe_never_prints_or_knows_another(name: str) -> None:
    tree = ast.parse(probes.files()[name].read_text(encoding="utf-8"))
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not called & {"print", "exit", "input"}
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not any(module.startswith("probes") for module in imported)


def test_loading_all_probes_imports_no_heavy_library(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom iobench import probe\n"
        "for name in probe.files(): probe.load(name)\n"
        f"heavy = set({HEAVY!r}) & set(sys.modules)\nsys.exit(f'imported {{heavy}}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=cli_environment(), cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_engine_knows_no_probe_by_name() -> None:
    words = set(PROBES) - {"null"} | set(probes.ways()) - {"ib"}
    for file in (ROOT / "iobench").glob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        assert not texts & words, f"{file.name} names a probe"
