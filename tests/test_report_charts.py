"""Figures, tables and key figures: which points they show, and that they look the same every time."""

from __future__ import annotations

import re
from typing import Any

import pytest
from iobench.check import judge
from iobench.record import Line, Run
from iobench.report import draw, ticks
from iobench.report.charts import MOST_BARS, MOST_CURVES, Chart, cache_sizes, charts_of, x_text
from iobench.report.figures import figures_of
from iobench.report.keyfigures import best_per_chart, key_figures
from iobench.report.names import half_width, pairs_text, percent, range_text
from iobench.report.table import Table, table_of
from iobench.units import GB, KIB, MIB, NS, US, format_seconds, short_rate, short_seconds

from make_run import MEMORY_LIMIT, chase, demo_run, hockney, lines, make_testbox, run_of


def charts(run: Run, probe: str) -> list[Chart]:
    return charts_of(run, probe, judge(run))


def table(run: Run, probe: str = "dram") -> Table:
    return table_of(run, probe, judge(run))


def column(found: Table, name: str) -> list[str]:
    return [row.cells[found.columns.index(name)] for row in found.rows]


def with_plots(out: list[Line], *plots: dict[str, Any]) -> Run:
    run = run_of(out)
    for about in run.header.probes.values():
        about["plots"] = list(plots)
    return run


def test_declared_plots_are_drawn_with_their_points() -> None:
    bandwidth, latency = charts(demo_run(), "dram")
    assert [curve.label for curve in bandwidth.curves] == ["read", "copy", "triad"]
    assert [mark.x for mark in bandwidth.curves[0].marks] == [1, 2]
    assert bandwidth.curves[0].marks[1].y == pytest.approx(24 * GB, rel=0.01)
    assert (latency.y, latency.log_x, latency.bars) == ("latency", True, False)
    assert latency.caches == (("L1d", 32 * KIB), ("L2", MIB), ("L3", 32 * MIB))
    assert len(latency.marks) == 16


def test_an_undeclared_axis_is_never_averaged_over() -> None:
    out = [line for t in (1, 2) for line in hockney("x", [8, 16, 32], t * US, GB, point={"t": t})]
    (chart,) = charts(with_plots(out, {"title": "T", "x": "nbytes", "y": "latency"}), "x")
    assert [curve.label for curve in chart.curves] == ["t 1", "t 2"]
    assert all(len(curve.marks) == 3 for curve in chart.curves)


def test_modes_never_share_a_curve() -> None:
    out = hockney("x", [8, 16], US, GB) + hockney("x", [32, 64], US, GB, mode="graph")
    (chart,) = charts(with_plots(out, {"title": "T", "x": "nbytes", "y": "latency"}), "x")
    assert [curve.label for curve in chart.curves] == ["eager", "graph"]


def test_default_plots_take_the_size_as_x_and_one_figure_per_quantity() -> None:
    out = hockney("x", [8, 16, 32], US, GB, point={"op": "read"}) + chase([4096, 8192], probe="x")
    found = charts(with_plots(out), "x")
    assert [(chart.title, chart.x, chart.y) for chart in found] == [
        ("Bandwidth", "nbytes", "bandwidth"),
        ("Latency", "nbytes", "latency"),
    ]


def test_words_on_x_become_bars_and_so_does_a_single_value() -> None:
    (words,) = charts(demo_run(), "weights")[:1]
    assert words.bars
    out = [line for name in ("a", "b") for line in lines("x", {"name": name, "n": 7}, 1e-3, moved=4096)]
    (single,) = charts(with_plots(out, {"title": "T", "x": "n", "y": "bandwidth", "series": ["name"]}), "x")
    assert single.bars
    assert draw._bar_label(single, single.curves[0], single.marks[0]) == "a"


def test_where_takes_a_value_or_a_list() -> None:
    out = [line for op in "abc" for line in hockney("x", [8, 16], US, GB, point={"op": op})]
    plot = {"title": "T", "x": "nbytes", "y": "latency", "series": ["op"]}
    one, two = charts(with_plots(out, {**plot, "where": {"op": "a"}}, {**plot, "where": {"op": ["a", "c"]}}), "x")
    assert len(one.curves) == 1
    assert [curve.label for curve in two.curves] == ["a", "c"]


def test_too_many_curves_become_several_figures_that_lose_no_point() -> None:
    out = [
        line for op in ("read", "write") for t in range(1, 8)
        for line in hockney("x", [8, 16], t * US, GB, point={"op": op, "t": t}, launches=1, n=5)
    ]  # fmt: skip
    found = charts(with_plots(out, {"title": "T", "x": "nbytes", "y": "latency", "series": ["t"]}), "x")
    assert [chart.title for chart in found] == ["T: read", "T: write"]
    assert all(len(chart.curves) == 7 <= MOST_CURVES for chart in found)
    assert found[0].curves[0].label == "t 1"


def test_too_many_bars_become_several_figures() -> None:
    out = [
        line
        for op in "abc"
        for t in range(10)
        for line in lines("x", {"op": op, "t": t}, 1e-3, moved=8, launches=1, n=5)
    ]
    found = charts(with_plots(out, {"title": "T", "x": "op", "y": "bandwidth", "series": ["t"]}), "x")
    assert sum(len(chart.marks) for chart in found) == 30
    assert all(len(chart.marks) <= MOST_BARS for chart in found)


def test_cache_sizes_are_data_caches_each_once() -> None:
    run = demo_run()
    run.header.topology["nodes"].append(
        {"id": "cache:L1i:0", "kind": "cache", "attrs": {"level": 1, "type": "Instruction", "nbytes": 65536}}
    )
    run.header.topology["nodes"].append({"id": "cache:L9:0", "kind": "cache", "attrs": {"level": 9}})
    assert cache_sizes(run) == (("L1d", 32 * KIB), ("L2", MIB), ("L3", 32 * MIB))


def test_a_clock_that_did_not_move_is_left_out_of_the_figures() -> None:
    run = run_of(
        [*lines("x", {"nbytes": 8}, 1e-06), Line("x", "s", {"nbytes": 16}, nbytes=16, moved=16, seconds=[[0.0] * 9])]
    )
    assert [mark.x for chart in charts_of(run, "x", {}) for mark in chart.marks] == [8]


def test_svg_is_the_same_every_time_and_carries_no_date() -> None:
    for chart in charts(demo_run(), "dram"):
        text = draw.svg(chart)
        assert text == draw.svg(chart)
        assert "<dc:date>" not in text
        assert "Matplotlib v" not in text


def test_marks_that_are_not_to_be_used_are_crossed_and_named() -> None:
    run = demo_run()
    figure = figures_of(run, "dram", judge(run))[0]
    assert draw.ALARM in figure.svg
    assert ">impossible<" in figure.svg
    assert "impossible: triad" in figure.caption
    assert draw.ALARM not in figures_of(run, "dram", judge(run))[1].svg


def test_curves_differ_in_marker_and_line_and_not_only_in_colour() -> None:
    assert len(set(draw.MARKERS)) == len(draw.MARKERS) >= MOST_CURVES
    assert len(set(draw.COLOURS)) == len(draw.COLOURS) >= MOST_CURVES
    assert len({(str(draw.DASHES[n % 4]), draw.MARKERS[n]) for n in range(8)}) == 8


def test_axes_speak_kib_and_gbps() -> None:
    run = demo_run()
    bandwidth, latency = (figure.svg for figure in figures_of(run, "dram", judge(run)))
    assert ">GB/s<" in bandwidth
    for text in (">4 KiB<", ">128 MiB<", ">100 ns<", ">L1d 32 KiB<", ">L3 32 MiB<"):
        assert text in latency
    assert "limit 51.2 GB/s" in bandwidth


def test_dollars_and_markup_in_labels_are_plain_text() -> None:
    out = [line for op in ("$a^2$", "<b>&") for line in hockney("x", [8, 16], US, GB, point={"op": op})]
    (chart,) = charts(with_plots(out, {"title": "T", "x": "nbytes", "y": "latency", "series": ["op"]}), "x")
    text = draw.svg(chart)
    assert ">$a^2$<" in text
    assert "&lt;b&gt;&amp;" in text


def test_inline_svg_takes_its_colours_from_the_page() -> None:
    run = demo_run()
    inline = figures_of(run, "dram", judge(run))[0].inline
    assert "var(--ink)" in inline
    assert "var(--c0)" in inline
    assert not re.findall(r"#[0-9a-f]{6}\b", inline)
    assert "<metadata" not in inline
    assert inline.startswith('<svg role="img" aria-label="Bandwidth. read: 14.0 GB/s at 1 to 24.0 GB/s at 2')
    assert set(re.findall(r' id="([^"]*)"', inline)) == {
        i for i in re.findall(r' id="([^"]*)"', inline) if "dram-1-" in i
    }


def test_a_png_is_a_png() -> None:
    assert draw.png(charts(demo_run(), "weights")[0], dpi=50).startswith(b"\x89PNG")


def test_key_figures_are_the_best_rate_the_ends_and_each_cache() -> None:
    run = demo_run()
    found = [figure for probe in ("dram", "allreduce", "weights") for figure in key_figures(charts(run, probe))]
    said = {(figure.chart, figure.what, figure.where): figure.value for figure in found}
    assert said["Bandwidth", "copy", "threads 2"] == "24.0 GB/s"
    assert ("Bandwidth", "triad", "threads 2") not in said  # impossible
    levels = [(figure.what, figure.value) for figure in found if figure.chart == "Pointer chase"]
    assert [level for level, _ in levels] == ["L1d", "L2", "L3", "memory"]
    assert levels[0][1] == "1.20 ns"
    assert said["Time", "ranks 2", "8 B"] == "199 us"
    assert said["Time", "ranks 2", "32 MiB"].endswith(" ms")


def test_a_level_is_read_where_nothing_else_adds_to_it() -> None:
    times = {4 * KIB: 1.2, 2 * MIB: 9.0, 4 * MIB: 16.0, 8 * MIB: 90.0, 128 * MIB: 150.0}
    out = []
    for nbytes, ns in times.items():
        out += lines("dram", {"nbytes": nbytes}, ns * NS, noise=1e-4, quantity="latency", moved=64)
    run = with_plots(out, {"title": "T", "x": "nbytes", "y": "latency", "caches": True})
    levels = {figure.what: figure.value for figure in key_figures(charts(run, "dram"))}
    # 2 MiB still has hits in the L2 of 1 MiB, 8 MiB misses the TLB
    assert levels == {"L1d": "1.20 ns", "L3": "16.0 ns", "memory": "150 ns"}


def test_a_tile_prefers_sound_points_to_fast_ones() -> None:
    out = lines("x", {"op": "a"}, 1e-3, moved=MIB) + lines(
        "x", {"op": "b"}, 1e-4, moved=MIB, status="suspect", reason="busy"
    )
    run = with_plots(out, {"title": "T", "x": "op", "y": "bandwidth", "series": ["op"]})
    (figure,) = key_figures(charts(run, "x"))
    assert (figure.where, figure.status) == ("a", "ok")
    run = with_plots(out, {"title": "T", "x": "nbytes", "y": "bandwidth", "series": ["op"]})
    figures = key_figures(charts(run, "x"))
    assert [f.status for f in figures] == ["ok", "suspect"]
    assert best_per_chart(figures) == figures[:1]


def test_the_table_has_a_column_for_what_varies_and_a_sentence_for_what_does_not() -> None:
    found = table(demo_run())
    assert found.columns[:4] == ("kernel", "nbytes", "threads", "pages")
    assert "mode" not in found.columns
    assert "Every point: eager." in found.shared
    assert "Samples / launches of every point: 60 / 3." in found.shared
    assert column(found, "nbytes")[0] == "4 KiB"
    ((title, entries),) = found.legends
    assert title == "Bytes rules"
    assert [text for _, text in entries] == [
        "one cache line",
        "read, write-allocate",
        "copy, write-allocate",
        "nbytes once",
    ]
    assert column(found, "bytes rule")[0] == "a"
    assert column(found, "verdict")[-1] == "skipped"
    assert column(found, "median")[-1] == "-"
    assert column(found, "of limit")[-2] == "117 %"


def test_long_paths_stand_as_letters_and_keep_their_proof() -> None:
    paths = ("memory of node 0, 4 KiB pages, CPU 0", "memory of node 0, 2 MiB pages, CPU 0")
    out = [line for n in (0, 1) for line in lines("dram", {"n": n}, 1e-3, path=paths[n], proven=n == 0)]
    found = table(run_of(out))
    assert column(found, "path taken") == ["A (proven)", "B (unproven)"]
    assert found.legends == (("Paths", (("A", paths[0]), ("B", paths[1]))),)
    short = table(run_of([line for n in "ab" for line in lines("dram", {"n": n}, 1e-3, path=f"cache {n}")]))
    assert column(short, "path taken") == ["cache a (proven)", "cache b (proven)"]
    assert short.legends == ()


def test_quantiles_stand_only_where_n_allows() -> None:
    few = table(
        run_of(lines("dram", {"n": 1}, 1e-3, launches=1, n=19) + lines("dram", {"n": 2}, 1e-3, launches=1, n=19))
    )
    assert "P95" not in few.columns
    some = table(
        run_of(lines("dram", {"k": 1}, 1e-3, launches=1, n=20) + lines("dram", {"k": 2}, 1e-3, launches=5, n=20))
    )
    assert column(some, "P95").count("-") == 0
    assert column(some, "P99")[0] == "-"
    assert column(some, "P99")[1] != "-"
    assert column(some, "n") == ["20 / 1", "100 / 5"]
    assert [text == "-" for text in column(some, "mean")] == [True, False]
    assert "P99.9" not in some.columns
    many = lines("dram", {"k": 1}, 1e-3, launches=1, n=1000) + lines("dram", {"k": 2}, 1e-3, launches=1, n=999)
    assert [text == "-" for text in column(table(run_of(many)), "P99.9")] == [False, True]


def test_the_ends_of_a_narrow_interval_differ() -> None:
    out = [line for n in (1, 2) for line in lines("dram", {"n": n}, 118e-6, noise=1e-4 * n)]
    for text in column(table(run_of(out)), "95 % interval"):
        low, high = text.removesuffix(" us").split("–")
        assert float(low) < float(high)


@pytest.mark.parametrize(
    ("seconds", "text"), [(999.6e-9, "1.00 us"), (999.4e-9, "999 ns"), (0.9996, "1.00 s"), (1234.0, "1234 s")]
)
def test_a_time_that_rounds_up_to_a_unit_is_shown_in_it(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_axes_may_have_the_names_of_columns() -> None:
    out = [
        line for n in (1, 2) for line in lines("dram", {"rate": n, "verdict": f"v{n}", "path taken": n}, 1e-3, moved=GB)
    ]
    found = table(run_of(out))
    assert found.columns[:3] == ("rate", "verdict", "path taken")
    assert [row.cells[0] for row in found.rows] == ["1", "2"]
    assert [row.status for row in found.rows] == ["ok", "ok"]


def test_the_headers_unit_decides_what_is_a_size() -> None:
    run = run_of([line for n in (4096, 8192) for line in lines("dram", {"block": n, "nbytes": n}, 1e-3)])
    run.header.probes["dram"]["axes"] = {"block": {"unit": "bytes"}}
    assert column(table(run), "block") == ["4 KiB", "8 KiB"]


@pytest.mark.parametrize(
    ("pairs", "text"),
    [
        ({"op": "read", "threads": 2, "nbytes": 65536}, "read, threads 2, 64 KiB"),
        ({"pages": "4k"}, "pages 4k"),
        ({"huge": True, "x": 1.5}, "huge True, x 1.5"),
        ({"path": ""}, "path "),
        ({"inplace": "no", "algo": "auto", "dtype": "float32"}, "inplace no, algo auto, float32"),
        ({}, ""),
    ],
)
def test_points_in_words(pairs: dict[str, Any], text: str) -> None:
    assert pairs_text(run_of([]), "dram", pairs) == text


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(0.0041, "0.41 %"), (0.469, "47 %"), (1.5, "150 %"), (1e-7, "< 0.001 %"), (0.0, "0 %"), (float("inf"), "-")],
)
def test_percent(fraction: float, text: str) -> None:
    assert percent(fraction) == text


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(0.0041, "±0.41 %"), (1e-7, "< ±0.001 %"), (0.0, "±0 %"), (10.5, "over ±1000 %"), (float("inf"), "-")],
)
def test_half_an_intervals_width(fraction: float, text: str) -> None:
    assert half_width(fraction) == text


def test_a_single_sample_has_no_interval() -> None:
    alone = lines("dram", {"nbytes": 8}, 1e-3, launches=1, n=1)
    single, several = column(table(run_of(alone + lines("dram", {"nbytes": 16}, 1e-3))), "95 % interval")
    assert single == "-"
    assert "–" in several


def test_range_names_the_unit_once() -> None:
    assert range_text("1.20 us", "1.24 us") == "1.20–1.24 us"
    assert range_text("999 ns", "1.01 us") == "999 ns – 1.01 us"
    assert range_text("-", "-") == "- – -"


@pytest.mark.parametrize(
    ("seconds", "text"), [(1e-6, "1 us"), (3e-4, "300 us"), (0.0, "0"), (2.5 * NS, "2.5 ns"), (60, "60 s")]
)
def test_short_seconds(seconds: float, text: str) -> None:
    assert short_seconds(seconds) == text


def test_short_rate_is_bare_gb_per_s() -> None:
    assert [short_rate(value * GB) for value in (1e-5, 0.001, 2.5, 1000)] == ["0.00001", "0.001", "2.5", "1000"]


def test_size_ticks_are_few_powers_of_two_within_the_data() -> None:
    for high in range(1, 60):
        values, labels = ticks.size_ticks([8, 8 << high])
        assert 1 <= len(values) <= 7
        assert values[0] == 8
        assert values[-1] <= 8 << high
        assert labels[0] == "8 B"


def test_topology_of_the_fixture_has_a_limit() -> None:
    path = make_testbox().path("mem:0", "cpu:0")
    assert path is not None
    assert path.bytes_per_s == MEMORY_LIMIT


def test_a_curve_over_what_was_measured_beside_the_time() -> None:
    out = []
    for mix in ("read", "write"):
        for delay, rate in ((0, 20e9), (64, 9e9), (65536, 1e6)):
            out += lines("loaded", {"mix": mix, "delay": delay}, 1e-7, evidence={"load_bytes_per_s": rate})
    plot = {
        "title": "T", "x": "evidence.load_bytes_per_s", "y": "latency", "series": ["mix"], "over": ["delay"],
        "x_name": "bandwidth of the others", "log_x": False,
    }  # fmt: skip
    (chart,) = charts(with_plots(out, plot), "loaded")
    assert [curve.label for curve in chart.curves] == ["read", "write"]
    assert [mark.x for mark in chart.curves[0].marks] == [1e6, 9e9, 20e9]
    assert x_text(chart, 9e9) == "9.00 GB/s"
    assert chart.x_name == "bandwidth of the others"
    assert "bandwidth of the others, GB/s" in draw.svg(chart)
    run = with_plots(out, plot)
    (view,) = figures_of(run, "loaded", judge(run))
    assert "against bandwidth of the others" in view.caption
    without = [line for line in out if line.point["delay"]]
    for line in without:
        line.evidence.clear()
    assert charts(with_plots(without, plot), "loaded") == []
