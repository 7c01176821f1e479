"""The probes and points as text: iobench list, iobench run --dry-run, the README's table."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from iobench import probe as probes
from iobench.errors import UserError
from iobench.paths import data_dir
from iobench.topology.graph import Topology
from iobench.units import format_rate, format_size


def table(dirs: Iterable[str] = ()) -> str:
    """Return one line per probe, then the ways through one that have a name of their own."""
    files = probes.files(dirs)
    width = max(map(len, files))
    lines = [f"{name:{width}}  {probes.title(file)}" for name, file in files.items()]
    lines += ["", "Also as make targets:"]
    return "\n".join([*lines, *(f"{name:{width}}  iobench run {words}" for name, words in probes.ways().items())])


def markdown_table() -> str:
    """Return the README's table of probes."""
    rows = ["| probe | measures | axes |", "|---|---|---|"]
    for name, file in probes.files().items():
        axes = ", ".join(f"`{axis}`" for axis in probes.load_file(file).axes)
        rows.append(f"| `{name}` | {probes.title(file)} | {axes} |")
    return "\n".join(rows)


def details(name: str, dirs: Iterable[str] = ()) -> str:
    """Return a probe's docstring and its axes with their values."""
    probe = probes.load(name, dirs)
    doc = ast.get_docstring(ast.parse(probe.file.read_text(encoding="utf-8"))) or ""
    lines = [f"{name}: {doc}", "", f"launches: {probe.launches}; axes (narrow with -a AXIS=VALUES):"]
    for axis_name, axis in probe.axes.items():
        lines.append(f"  {axis_name}: {axis.help}")
        lines.append(f"      {_axis_values(axis)}")
    return "\n".join(lines)


def dry_run(names: Sequence[str], assignments: Sequence[str], options: dict[str, Any], machine: str = "") -> str:
    """Return the points that a run would measure here or on ``machine`` (a topology file), and how long it takes."""
    from iobench import plan, topology
    from iobench.units import format_point

    graph = topology.load(_topology_file(machine)) if machine else topology.discover()
    made = plan.make(plan.Request(list(names), list(assignments), **options), graph)
    lines = [f"on {graph.name}:"] if machine else []
    for probe in made.probes:
        if probe.name in made.unavailable:
            lines.append(f"{probe.name}: skipped: {made.unavailable[probe.name]}")
        lines += [f"{probe.name} {format_point(point)}" for point in made.points[probe.name]]
    total, jobs = sum(len(points) for points in made.points.values()), list(made.jobs())
    setup = made.setup(jobs)
    more = f", and about {setup:.0f} s to set up" if setup >= 1 else ""
    seconds = f"up to {made.estimate(jobs):.0f} s{more}{made.longer(jobs)}"
    return "\n".join([*lines, "", f"{total} points, {made.lines} measurements, {seconds}"])


def _topology_file(name: str) -> Path:
    """Return a topology file by its path, or by its name among those that ship with iobench."""
    shipped = data_dir("topologies")
    found = next((file for file in (Path(name), shipped / f"{name}.json") if file.is_file()), None)
    if found is None:
        known = sorted(file.stem for file in shipped.glob("*.json"))
        raise UserError(f"no topology file {name}{probes.nearest(name, known)}: iobench topology --save writes one")
    return found


def path_text(graph: Topology, src: str | None, dst: str | None) -> str:
    """Return the way between two nodes hop by hop, and its bottleneck."""
    for end in (src, dst):
        if end is None:
            raise UserError("a path has two ends: give --from and --to nodes that iobench topology shows")
        if end not in graph.nodes:
            near = probes.nearest(end, graph.nodes)
            raise UserError(f"no node '{end}'{near}: give --from and --to nodes that iobench topology shows")
    path = graph.path(src or "", dst or "")
    if path is None:
        return f"{src} and {dst} are not joined in this graph"
    lines = [f"{link.a} - {link.b}: {link.kind}, {_limit(link.bytes_per_s, link.source)}" for link in path.links]
    note = "" if path.complete else " (an upper bound: some hops have no known limit)"
    narrow = path.bottleneck
    lines.append(f"bottleneck: {_limit(narrow.bytes_per_s, narrow.source) if narrow else 'unknown'}{note}")
    return "\n".join(lines)


def _limit(bytes_per_s: float | None, source: str) -> str:
    return f"{format_rate(bytes_per_s)} ({source})" if bytes_per_s is not None else "limit unknown"


def _axis_values(axis: probes.Axis) -> str:
    if axis.free:
        return "free text" + (f", default {', '.join(map(str, axis.values))}" if any(axis.values) else "")
    show = format_size if axis.unit == "bytes" else str
    shown = [show(value) for value in axis.values]
    if len(shown) > 12:
        shown = [*shown[:3], "...", *shown[-2:]]
    more = [str(choice) for choice in axis.allowed if choice not in axis.values]
    return ", ".join(shown) + (f"; also {', '.join(more)}" if more else "")
