"""A comparison as text, as files, on the command line: the same bytes for the same input, nothing unescaped."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from iobench import cli, sources
from iobench.errors import UserError
from iobench.record import Line
from iobench.report import comparing, contrast_figures, heatmap
from iobench.report.contrasted import parse_sizes
from iobench.units import GB, KIB, MIB, US
from tests.conftest import ROOT
from tests.make_run import hockney, run_of, save
from typer.testing import CliRunner

README = (ROOT / "README.md").read_text(encoding="utf-8")
SIZES = [1 << power for power in range(8, 24)]


def run(start, rate, name, **axes):
    point = {"op": "all_reduce", "engine": "nccl", "ranks": 8, **axes}
    made = run_of(hockney("allreduce", SIZES, start, rate, point=point, seed=name), name=name)
    made.header.run_id = name
    return made


def asked(*runs, **options):
    return comparing.Asked(runs, [each.machine for each in runs], **options)


def crossed():
    return run(10 * US, 10 * GB, "near", transport="nvlink"), run(40 * US, 40 * GB, "far", transport="ib")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    comparing.write(asked(*crossed(), at=(8 * KIB,)), folder)
    return folder


def test_the_files_are_the_same_bytes_and_an_earlier_comparison_goes(written, tmp_path):
    (tmp_path / "figures").mkdir()
    for name in ("compare-9-time.svg", "mine.svg"):
        (tmp_path / "figures" / name).write_text("old")
    comparing.write(asked(*crossed(), at=(8 * KIB,)), tmp_path)
    names = sorted(path.relative_to(written) for path in written.rglob("*.*"))
    assert [path.name for path in names] == [
        "compare.html", "compare.md",
        *(f"compare-1-{what}.{kind}" for what in ("map", "rate", "ratio", "time") for kind in ("pdf", "svg")),
    ]  # fmt: skip
    for path in names:
        assert (written / path).read_bytes() == (tmp_path / path).read_bytes(), path
    assert {path.name for path in tmp_path.rglob("*.svg")} - {path.name for path in names} == {"mine.svg"}


def test_figures_are_whole_vector_documents(written):
    for path in (written / "figures").glob("*.svg"):
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
        assert "<image" not in path.read_text()
    for path in (written / "figures").glob("*.pdf"):
        data = path.read_bytes()
        assert data.startswith(b"%PDF")
        assert b"CreationDate" not in data
        assert b"/FontFile2" in data


def test_names_from_runs_are_escaped(tmp_path):
    evil = "<script>alert(1)</script>|`x`"
    a, b = crossed()
    plain, page = comparing.write(comparing.Asked((a, b), [evil, "b & c"]), tmp_path)
    html = page.read_text(encoding="utf-8")
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "b &amp; c" in html
    assert not re.search(r'(?:src|href)="(?!data:|#)', html)
    assert "\\<script\\>" in plain.read_text(encoding="utf-8")


def test_a_run_that_cannot_be_written_says_where_to(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(UserError, match="choose another folder with --out"):
        comparing.write(asked(*crossed()), file)


def test_the_text_says_who_wins_up_to_where_and_what_a_message_costs():
    text = comparing.text(asked(*crossed(), at=(8 * KIB, MIB, 1 << 40)))
    assert "A is faster up to " in text
    assert "(95 %: " in text
    assert "| 1 MiB | " in text
    assert "| 1 TiB | not measured | not measured | - | - |" in text
    assert "| A | B 29.5 us more (3.74x) |" in text.partition("| 8 KiB")[2].partition("\n")[0]


def test_two_runs_of_the_same_points_are_compared_point_by_point():
    a, b = run(10 * US, 10 * GB, "one"), run(20 * US, 10 * GB, "two")
    text = comparing.text(asked(a, b))
    assert text.startswith("A: one")
    assert "16 points in both runs" in text
    assert "## allreduce" not in text


def test_figures_without_intervals_do_not_show_any():
    from iobench.report.contrast_figures import figures_of

    names = ("h100-nvlink", "a100-nvlink")
    runs = [sources.open(f"published:{name}") for name in names]
    found = comparing.Asked(runs, names, where={"ranks": ["8"]}).contrast
    figures = figures_of(found.matches[0], 1)
    assert [figure.name for figure in figures] == [f"compare-1-{what}" for what in ("time", "rate", "ratio", "map")]
    assert "no interval can be known" in figures[0].caption
    assert "450" not in figures[0].caption
    assert "Dashed: rate of the links of A, B" in figures[1].caption


def test_many_sizes_are_thinned_for_the_map_and_keep_their_ends():
    sizes = list(range(1, 1000))
    kept = heatmap.thinned(sizes)
    assert len(kept) <= 12
    assert (kept[0], kept[-1]) == (1, 999)
    assert heatmap.thinned([4, 8]) == [4, 8]
    assert [heatmap.number(value) for value in (1.0, 12.34, 140.2)] == ["1.00", "12.3", "140"]


@pytest.mark.parametrize("text", ["", ",", "0", "8,x", "-4"])
def test_sizes_that_are_none_are_refused(text):
    with pytest.raises(UserError):
        parse_sizes(text)


def test_where_needs_an_axis_and_values():
    assert comparing.parse_where(["ranks=8,16", "inplace=False"]) == {"ranks": ["8", "16"], "inplace": ["false"]}
    with pytest.raises(UserError, match="AXIS=VALUES"):
        comparing.parse_where(["ranks"])


# --- the command line


def invoke(*arguments):
    return CliRunner().invoke(cli.app, ["compare", *map(str, arguments)])


def test_the_readme_shows_what_the_command_prints():
    shown = README.partition("<!-- compare: begin -->\n```\n$ iobench compare ")[2].partition("\n```\n")[0]
    command, _, printed = shown.partition("\n")
    done = invoke(*command.split())
    assert done.exit_code == 0
    assert done.output.rstrip("\n") == printed


def test_runs_from_folders_and_published_curves_mix(tmp_path):
    folder = save(run(10 * US, 10 * GB, "mine", transport="nvlink"), tmp_path / "run").parent
    done = invoke(folder, "published:h100-nvlink", "--mixed", "--summary")
    assert done.exit_code == 0, done.output
    assert "mode differs: A: eager; B: pipelined" in done.output


def test_one_run_is_compared_within_by_an_axis(tmp_path):
    a, b = crossed()
    made = run_of([line for each in (a, b) for record in each for line in record.lines], name="both")
    done = invoke(save(made, tmp_path / "run").parent, "--by", "transport", "--summary")
    assert done.exit_code == 0, done.output
    assert "A: nvlink; B: ib" in done.output


def test_one_run_alone_says_what_to_do(tmp_path):
    folder = save(crossed()[0], tmp_path / "run").parent
    done = invoke(folder)
    assert isinstance(done.exception, UserError)
    assert "--by AXIS" in str(done.exception)


def pairs(rate, name, gpus=4):
    made = []
    for gpu in range(gpus):
        for peer in range(gpus):
            if gpu != peer:
                slow = 0.5 if (gpu, peer) == (1, 2) and name == "two" else 1.0
                point = {"op": "copy", "gpu": gpu, "peer": peer, "nbytes": 1 << 28}
                made += hockney("p2p", [1 << 28], 10 * US, rate * slow, point=point, seed=f"{name}{gpu}{peer}")
    made = run_of(made, name=name)
    made.header.run_id = name
    return made


def test_pairs_of_gpus_become_heat_maps_and_a_map_of_ratios():
    from iobench.report.contrast_matrices import matrices_of
    from iobench.report.contrasted import at_one_size

    found = asked(pairs(400 * GB, "one"), pairs(380 * GB, "two")).contrast
    assert len(at_one_size(found)) == 12
    figures = matrices_of(at_one_size(found))
    assert [figure.title.partition(":")[0] for figure in figures] == ["A", "B", "B over A"]
    assert "1 to 2: 0.47" in figures[2].alt or "1 to 2: 0.48" in figures[2].alt
    assert "<image" not in figures[2].svg
    assert ElementTree.fromstring(figures[0].svg) is not None


def test_a_size_that_no_source_states_is_compared_by_rate(tmp_path):
    from iobench.compare import contrast

    log = ROOT / "tests" / "fixtures" / "nvbandwidth" / "0.8-2x-h200.txt"
    other = tmp_path / "other.txt"
    slower = re.sub(r"39\d\.\d\d", lambda found: f"{float(found[0]) / 2:.2f}", log.read_text())
    other.write_text(slower)
    found = contrast([sources.open(log), sources.open(other)])
    copies = [m for m in found.matches if m.curves[0].probe == "p2p" and m.curves[0].axes.get("op") == "copy"]
    assert {m.sizes for m in copies} == {(0,)}
    ratios = [fight.ratios[0].value for m in copies for fight in m.duels]
    assert min(ratios) == pytest.approx(0.5, rel=0.01)


def test_mixed_sets_two_modes_of_one_machine_against_each_other(tmp_path):
    """The same points in two modes are not "in both runs"; --mixed is what the refusal advises."""
    point = {"op": "all_reduce", "ranks": 8}
    sizes = [1 << step for step in range(10, 26)]
    for mode, start in (("graph", 10 * US), ("eager", 30 * US)):
        save(run_of(hockney("allreduce", sizes, start, 100 * GB, point=point, mode=mode)), tmp_path / mode)
    plain, mixed = (
        invoke(tmp_path / "graph", tmp_path / "eager", "--summary", *more).stdout for more in ((), ("--mixed",))
    )
    assert "--mixed compares them all the same" in plain
    assert "A is faster" in mixed
    assert "**mind**: mode differs: A: graph; B: eager" in mixed


def test_limits_of_several_curves_are_told_apart_in_grey():
    names = ["h100-8gpu-nvlink-aws", "a100-16gpu-2nodes-hdr"]
    runs = [sources.open(f"published:{name}") for name in names]
    (match,) = comparing.Asked(runs, names, where={"inplace": ["false"]}).contrast.matches
    (rate,) = [found for found in contrast_figures.figures_of(match, 1) if found.name.endswith("rate")]
    (axes,) = rate.build().axes
    limits = [line for line in axes.lines if line.get_markevery() == [-1]]
    assert [line.get_marker() for line in limits] == ["o", "s"]
    assert axes.get_title(loc="left") == "bus bandwidth, GB/s"
    assert "marker" in rate.caption
    (matrix,) = [found for found in contrast_figures.figures_of(match, 1) if found.name.endswith("map")]
    assert "fastest" in matrix.build().axes[0].get_title(loc="left")


def jitter(name, *settings):
    """Return a run of latencies of 64 B, a round trip of two messages each, whose tail grows with the load."""
    lines = []
    for number, (load, traffic_class) in enumerate(settings):
        draws = np.random.default_rng(number).exponential(2 * US * (1 + load), (3, 500)) + 4 * US
        for launch, row in enumerate(draws):
            lines.append(
                Line(
                    "rdma",
                    "sha256:0",
                    {"verb": "send", "load": load, "traffic_class": traffic_class, "nbytes": 64},
                    launch,
                    mode="poll",
                    quantity="latency",
                    nbytes=64,
                    moved=64,
                    ops=2,
                    seconds=[row.tolist()],
                    moved_rule="half of a round trip",
                    proven=True,
                    verified=True,
                )
            )
    made = run_of(lines, name=name)
    made.header.run_id = name
    return made


def test_any_axis_of_one_run_is_compared_with_the_tails_of_its_latencies(tmp_path):
    folder = save(jitter("fabric", (0, 0), (2, 0), (0, 104), (2, 104)), tmp_path / "run").parent
    done = invoke(folder, "--by", "load", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "- A: load 0: fabric" in done.output
    rows = [line.strip("| ").split(" | ") for line in done.output.partition("## Tails of the latencies")[2].split("\n")]
    rows = [row for row in rows if row[0].startswith("rdma")]
    assert [row[:3] for row in rows] == [
        [f"rdma: traffic_class {traffic}", "64 B", f"{letter}: load {load}"]
        for traffic in (0, 104) for letter, load in (("A", 0), ("B", 2))
    ]  # fmt: skip
    assert all(row[-1] == "1500" for row in rows)
    assert "only in" not in done.output
    page = (tmp_path / "out/compare.html").read_text(encoding="utf-8")
    assert "Tails of the latencies" in page
    assert page.count("<td>B: load 2</td>") == 2
    narrowed = invoke(folder, "--by", "traffic_class", "-a", "load=2")
    assert "| rdma | 64 B | B: traffic_class 104 |" in narrowed.output
    assert "load 0" not in narrowed.output


def test_two_runs_of_other_settings_are_matched_with_an_axis_named_or_not(tmp_path):
    folders = [
        save(jitter(name, setting), tmp_path / name).parent for name, setting in (("a", (2, 0)), ("b", (2, 104)))
    ]
    plain = invoke(*folders)
    assert "A: traffic_class 0; B: traffic_class 104" in plain.output
    named = invoke(*folders, "--by", "traffic_class")
    assert "B: b traffic_class 104" in named.output
    assert named.output.count("| rdma | 64 B |") == 2
    one = invoke(folders[0], "--by", "traffic_class")
    assert isinstance(one.exception, UserError)
    assert "choose an axis with two values" in str(one.exception)
