"""The report as a whole: files written, texts escaped, warnings that name the next step."""

from __future__ import annotations

import html
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from iobench import report, sources
from iobench.check import judge
from iobench.compare import compare
from iobench.errors import UserError
from iobench.record import Line, Run, read
from iobench.report import markdown, models, words
from iobench.report.notices import notices
from iobench.report.view import FOLD_ROWS
from iobench.units import GB, KIB, MIB
from tests.conftest import ROOT

from make_run import SOURCE, chase, demo_lines, demo_run, hockney, lines, run_of, save

EVIL = (
    '<script>alert("1")</script>|a`b*c_d*\n<img src=http://example.invalid/x onerror=1> $x^2$ & [l](http://e.invalid)'
)


class Reader(HTMLParser):
    """Counts tags, keeps attributes and text, and checks that what opens is closed."""

    VOID = frozenset({"meta", "link", "br", "img", "path", "use"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())

    def ids(self) -> list[str]:
        return [value for _, name, value in self.attributes if name == "id"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return report.write(demo_run(), tmp_path_factory.mktemp("report"))


def test_the_page_is_whole_and_needs_nothing_from_outside(demo: tuple[Path, Path]) -> None:
    text = demo[1].read_text(encoding="utf-8")
    page = Reader(text)
    assert page.open == []
    assert page.tags["figure"] == page.tags["svg"] == 5
    assert page.tags["script"] == page.tags["img"] == page.tags["iframe"] == 0
    assert max(Counter(page.ids()).values()) == 1
    outside = [v for _, name, v in page.attributes if name in ("src", "href", "xlink:href") and not v.startswith("#")]
    assert outside == ["data:,"]
    assert "default-src 'none'" in text
    assert "url(http" not in text
    assert "@import" not in text


def test_every_reference_inside_the_figures_has_its_target(demo: tuple[Path, Path]) -> None:
    text = demo[1].read_text(encoding="utf-8")
    ids = set(Reader(text).ids())
    used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', text))
    assert used
    assert used <= ids


def test_sections_come_in_order_with_the_verdict_first(demo: tuple[Path, Path]) -> None:
    headings = ["Verdict", "Key figures", "Fitted models", "dram", "allreduce", "weights", "Topology"]
    headings += ["How the numbers are made", "Facts of machine and run"]
    assert re.findall(r"<h2>(.*?)</h2>", demo[1].read_text(encoding="utf-8")) == headings
    assert re.findall(r"^## (.*)$", demo[0].read_text(encoding="utf-8"), re.MULTILINE) == headings


def test_page_and_markdown_say_the_same(demo: tuple[Path, Path]) -> None:
    page, plain = Reader(demo[1].read_text(encoding="utf-8")).text, demo[0].read_text(encoding="utf-8")
    for said in ("24.0 GB/s", "60.1 GB/s", "others used 37 % of the CPUs", "checksum of shard 2 differs", "n_half"):
        assert said in page
        assert said in plain
    for _, meaning in words.DEFINITIONS:
        assert " ".join(meaning.split()) in page
        assert meaning in plain


def test_markdown_links_to_the_figures_beside_it(demo: tuple[Path, Path]) -> None:
    links = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", demo[0].read_text(encoding="utf-8"))
    folder = demo[0].parent
    assert len(links) == 5
    assert {folder / link for link in links} == set((folder / "figures").iterdir())
    for link in links:
        assert (folder / link).read_text(encoding="utf-8").startswith("<?xml")


def test_every_markdown_table_is_rectangular(demo: tuple[Path, Path]) -> None:
    assert len(check_tables(demo[0].read_text(encoding="utf-8"))) >= 5


def check_tables(text: str) -> list[list[int]]:
    tables: list[list[int]] = [[]]
    for line in text.splitlines():
        if line.startswith("| "):
            tables[-1].append(len(re.findall(r"(?<!\\)\|", line)))
        elif tables[-1]:
            tables.append([])
    found = [table for table in tables if table]
    assert all(len(set(table)) == 1 for table in found)
    return found


def test_the_same_run_gives_the_same_bytes(demo: tuple[Path, Path], tmp_path: Path) -> None:
    again = report.write(demo_run(), tmp_path)
    for first, second in zip(demo, again, strict=True):
        assert first.read_bytes() == second.read_bytes()
    for figure in (tmp_path / "figures").iterdir():
        assert figure.read_bytes() == (demo[0].parent / "figures" / figure.name).read_bytes()


def test_a_report_can_be_made_from_the_file_alone(demo: tuple[Path, Path], tmp_path: Path) -> None:
    save(demo_run(), tmp_path)
    run = read(tmp_path)
    run.path = demo_run().path  # the folder's name stands in the next steps
    written = report.write(run, tmp_path / "new" / "folder")
    assert written[1].read_text(encoding="utf-8") == demo[1].read_text(encoding="utf-8")


def evil_run() -> Run:
    point = {"how": EVIL, "nbytes": 4096, EVIL: EVIL}
    out: list[Line] = []
    for status, more in (("ok", {}), ("suspect", {"reason": EVIL}), ("ok", {"proven": False})):
        fields: dict[str, Any] = {"path": EVIL, "moved_rule": EVIL, "mode": EVIL, "notes": [EVIL], "status": status}
        out += lines("dram", {**point, "n": len(out)}, 1e-3, **(fields | more))
    run = run_of(out, name=EVIL)
    run.header.probes["dram"] |= {
        "title": EVIL,
        "plots": [{"title": EVIL, "x": "how", "y": "latency", "series": [EVIL]}],
    }
    run.header.machine |= {"cpu": EVIL, EVIL: {"deep": EVIL}}
    run.header.environment = {"OMP_X": EVIL}
    run.header.run_id = run.header.version = run.header.created = EVIL
    run.warnings.append(EVIL)
    for node in run.header.topology["nodes"]:
        node["attrs"]["model_name"] = EVIL
    return run


def test_nothing_from_the_records_becomes_markup(tmp_path: Path) -> None:
    plain, page = report.write(evil_run(), tmp_path)
    seen = Reader(page.read_text(encoding="utf-8"))
    assert seen.open == []
    assert seen.tags["script"] == seen.tags["img"] == 0
    assert not [name for _, name, _ in seen.attributes if name.startswith("on")]
    assert '<script>alert("1")</script>|a`b*c_d*' in seen.text
    text = plain.read_text(encoding="utf-8")
    fenced = text[: text.index("## Topology")] + text[text.index("## How the numbers are made") :]
    assert not re.search(r"(?<!\\)<(script|img)", fenced)
    assert not re.search(r"(?<!\\)\[l(?<!\\)\]\(", fenced)
    assert "http://" not in fenced
    check_tables(text)
    for figure in (tmp_path / "figures").iterdir():
        assert "<script" not in figure.read_text(encoding="utf-8")


@given(st.text())
def test_text_stays_in_its_cell(value: str) -> None:
    cell = markdown.text(value)
    assert len((cell + "x").splitlines()) == 1 or not re.search(r"[\r\n\u2028\u2029]", cell)
    assert not re.search(r"(?<!\\)(?:\\\\)*[|<`]", re.sub(r"\\.", "", cell))


def test_text_leaves_plain_words_alone() -> None:
    assert (
        markdown.text("n_half, 24.0 GB/s (page cache); 1.20–1.24 us") == "n_half, 24.0 GB/s (page cache); 1.20–1.24 us"
    )
    assert markdown.text("a|b") == r"a\|b"


def test_a_fence_is_longer_than_any_in_the_text(tmp_path: Path) -> None:
    run = run_of([])
    run.header.topology["nodes"][0]["attrs"]["model"] = "````"
    run.header.topology["name"] = "````"
    text = report.write(run, tmp_path)[0].read_text(encoding="utf-8")
    block = text[text.index("## Topology") : text.index("## How the numbers are made")]
    fence = re.search(r"^(`{3,})text$", block, re.MULTILINE)
    assert fence
    assert block.rstrip().endswith(fence[1])
    assert fence[1] not in block.replace(f"{fence[1]}text", "").rstrip().removesuffix(fence[1])


def test_hundreds_of_points_are_folded(tmp_path: Path) -> None:
    out = [line for n in range(60) for kind in "abcdef" for line in point(kind, n)]
    plain, page = report.write(run_of(out), tmp_path)
    text = page.read_text(encoding="utf-8")
    assert '<details open class="tall">\n<summary>All 360 points' in text
    assert text.count("<tr class=") >= 360
    assert "<details><summary>All 360 points</summary>" in plain.read_text(encoding="utf-8")
    assert page.stat().st_size < 3_000_000


def point(kind: str, number: int) -> list[Line]:
    return lines("dram", {"kind": kind, "nbytes": 4096 + 64 * number}, 1e-6 * (1 + number), n=5, launches=1)


def test_short_tables_are_open(demo: tuple[Path, Path]) -> None:
    assert FOLD_ROWS > 22
    assert "<details open>\n<summary>All 22 points" in demo[1].read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "kind", ["empty", "skipped", "no topology", "no plots", "odd plots", "unknown probe", "no launch"]
)
def test_thin_runs_have_a_report(kind: str, tmp_path: Path) -> None:
    run = thin(kind)
    plain, page = report.write(run, tmp_path)
    assert Reader(page.read_text(encoding="utf-8")).open == []
    assert plain.read_text(encoding="utf-8").startswith("# ")
    assert isinstance(report.summary(run), list)


def thin(kind: str) -> Run:
    if kind == "empty":
        return run_of([])
    if kind == "skipped":
        return run_of(lines("dram", {}, None, status="skipped", reason="needs two GPUs", launches=1, path=""))
    if kind == "no topology":
        return run_of(demo_lines(), topology={})
    if kind == "no launch":
        return run_of([Line("dram", SOURCE, {"a": [1, 2]}, status="failed", reason="died")])
    run = demo_run()
    plots = [
        {"title": "no axis", "x": "absent", "y": "bandwidth"},
        {},
        7,
        {"x": "nbytes", "series": "ranks", "where": 3},
    ]
    for about in run.header.probes.values():
        about["plots"] = [] if kind == "no plots" else plots
    if kind == "unknown probe":
        run.header.probes = {}
    return run


def test_an_old_report_is_replaced_and_its_figures_go(tmp_path: Path) -> None:
    report.write(run_of([*lines("allreduce", {"nbytes": 8}, 1e-3), *lines("weights", {"nbytes": 8}, 1e-3)]), tmp_path)
    (tmp_path / "figures" / "notes.txt").write_text("mine")
    report.write(run_of(lines("other", {"nbytes": 8}, 1e-3)), tmp_path)
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert names == {"other-1.svg", "notes.txt"}
    assert "allreduce" not in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert not list(tmp_path.rglob(".*"))


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write the report to .*; the records are safe"):
        report.write(demo_run(), tmp_path / "file")


def test_summary_rows_have_the_columns_and_only_text() -> None:
    rows = report.summary(demo_run())
    assert {len(row) for row in rows} == {len(report.SUMMARY_COLUMNS)}
    assert all(isinstance(cell, str) for row in rows for cell in row)
    assert ("dram", "Bandwidth", "read", "24.0 GB/s", "±0.41 %", "47 %", "threads 2", "ok") in rows


def test_series_without_a_model_share_one_sentence() -> None:
    out = [line for n in range(5) for line in hockney("weights", [MIB], 1e-5, GB, point={"threads": n})]
    view = models.models_view([])
    assert view == models.ModelsView((), (), ())
    run = run_of(out, models={"weights": [{"kind": "hockney"}]})
    from iobench.fit import fit_run

    (missing,) = models.models_view(fit_run(run)).missing
    assert missing[0] == "weights (5 series)"


def test_a_comparison_as_text() -> None:
    a, b = run_of(chase([4 * KIB, 64 * MIB])), run_of(chase([4 * KIB, 64 * MIB], seed="b"))
    b.header.run_id = "other"
    found = compare(a, b)
    text = report.compare_text(found)
    assert "2 points in both runs; B against A: 2 same" in text
    assert "kernel=chase nbytes=4KiB threads=1 pages=4k" in text
    assert "1.20 ns" in text
    check_tables(text)
    rows = report.compare_rows(found)
    assert len(rows) == 2
    assert rows[0][-1] == "same"


def test_a_comparison_without_common_points_says_what_to_do() -> None:
    text = report.compare_text(compare(run_of(chase([4096])), run_of(lines("null", {"n": 1}, 1e-3))))
    assert "measure the same probes and axes on both" in text
    assert "| ---" not in text


def test_facts_are_words_and_not_python() -> None:
    from iobench.report import facts

    pages = [{"page_nbytes": 2 << 20, "total": 4}, {"page_nbytes": 1 << 30, "total": 0}]
    assert facts.rows({"memory": {"huge_pages": pages, "nodes": [0, 1]}}) == [
        ("memory.huge_pages", "page_nbytes 2 MiB, total 4; page_nbytes 1 GiB, total 0"),
        ("memory.nodes", "0, 1"),
    ]


def test_facts_of_the_machine_are_one_paragraph(demo: tuple[Path, Path]) -> None:
    said = Reader(demo[1].read_text(encoding="utf-8")).text
    assert "Some CPU, 2 CPUs. 8 GiB memory on 1 NUMA node. Caches: L1d 32 KiB, L2 1 MiB, L3 32 MiB." in said


def test_unknown_hardware_is_not_zero() -> None:
    from iobench.report import facts

    run = demo_run()
    for node in run.header.topology["nodes"]:
        node["attrs"] = {}
    said = facts.paragraph(run)
    assert "processor of unknown model" in said
    assert "memory of unknown size" in said
    assert " 0 " not in said


def test_page_escapes_alt_texts(demo: tuple[Path, Path]) -> None:
    labels = re.findall(r'<svg role="img" aria-label="([^"]*)"', demo[1].read_text(encoding="utf-8"))
    assert len(labels) == 5
    assert all("GB/s at" in label or "ns at" in label or "us at" in label for label in map(html.unescape, labels))


def test_probes_that_this_machine_cannot_run_share_a_sentence() -> None:
    parts = [lines(name, {}, None, status="skipped", reason="needs a GPU", launches=1) for name in ("hbm", "kv")]
    other = lines("p2p", {}, None, status="skipped", reason="needs two GPUs", launches=1)
    said = [text for text in report.warnings(run_of([*parts[0], *parts[1], *other])) if "skipped" in text]
    assert len(said) == 2
    assert "hbm, kv: needs a GPU." in said[0].replace("Needs", "needs")


def test_a_probe_that_cannot_run_here_has_no_empty_section(tmp_path: Path) -> None:
    skipped = lines("hbm", {}, None, status="skipped", reason="needs a GPU", launches=1)
    plain, page = report.write(run_of([*skipped, *demo_lines()]), tmp_path)
    assert "needs a GPU" in plain.read_text(encoding="utf-8").replace("Needs", "needs")
    assert "\n## hbm" not in plain.read_text(encoding="utf-8")
    assert "\n## dram" in plain.read_text(encoding="utf-8")
    assert ">hbm</h2>" not in page.read_text(encoding="utf-8")


def test_what_another_tool_measured_refers_to_no_probe() -> None:
    run = sources.open(ROOT / "tests" / "fixtures" / "logs" / "comment_signs_eaten_by_a_forum.txt")
    (told,) = [notice.text for notice in notices(run, judge(run)) if notice.kind == "unproven"]
    assert told.endswith("Do not quote the number for this path; a log with NCCL_DEBUG=INFO shows it.")
