"""The report on a terminal: rows, warnings, models."""

from __future__ import annotations

import io

from iobench import report
from iobench.report import models
from iobench.units import GB, US
from rich.console import Console

from make_run import demo_run, hockney, lines, run_of


def test_show_prints_the_rows_and_the_warnings() -> None:
    console = Console(file=io.StringIO(), width=140, force_terminal=False)
    report.show(console, demo_run())
    said = console.file.getvalue()  # type: ignore[attr-defined]
    for words_ in ("Pointer chase", "L1d", "1.20 ns", "points: 34 ok, 1 wrong", "checksum of shard 2 differs"):
        assert words_ in said
    for warning in report.warnings(demo_run()):
        assert warning in said  # no line is cut where the output is no terminal


def test_a_narrow_terminal_breaks_no_name_and_no_figure() -> None:
    run = run_of(hockney("allreduce", [8 << n for n in range(10)], 20 * US, GB, point={"placement": "apart"}))
    console = Console(file=io.StringIO(), width=60, force_terminal=False)
    report.show(console, demo_run())
    report.show_models(console, run)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    for words_ in ("\ndram: Pointer chase\n", "24.0 GB/s", "±0.41 %", "\nallreduce placement=apart, eager\n"):
        assert words_ in said


def test_show_takes_brackets_as_text() -> None:
    run = run_of(lines("dram", {"kernel": "[red]x[/red]"}, 1e-3, status="suspect", reason="[bold]busy[/bold] [/x]"))
    console = Console(file=io.StringIO(), width=140, force_terminal=False)
    report.show(console, run)
    assert "[bold]busy[/bold] [/x]" in console.file.getvalue()  # type: ignore[attr-defined]


def test_show_models_prints_parameters_findings_and_what_has_none() -> None:
    run = run_of(hockney("allreduce", [8 << n for n in range(10)], 20 * US, GB) + hockney("weights", [8], 1e-5, GB))
    run.header.probes["weights"]["models"] = [{"kind": "hockney"}]
    console = Console(file=io.StringIO(), width=160, force_terminal=False)
    report.show_models(console, run)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "hockney" in said
    assert "no model." in said
    rows = report.model_rows(run)
    assert {len(row) for row in rows} == {len(models.COLUMNS)}
    assert [row[1] for row in rows][:2] == ["a", "B"]
    assert rows[0][2].endswith(" us")


def test_a_mode_that_is_an_axis_is_named_once() -> None:
    point = {"mode": "graph"}
    run = run_of(hockney("allreduce", [8 << n for n in range(10)], 20 * US, GB, point=point, mode="graph"))
    assert models.view_of(run).rows[0][0] == "allreduce mode=graph"
