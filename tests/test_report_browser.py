"""The page in headless Chromium: nothing fetched, nothing cut, readable on a phone, on paper, in the dark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from iobench import report
from iobench.record import Leg, Line

import devtools
from make_run import demo_lines, hockney, lines, run_of

pytestmark = pytest.mark.skipif(devtools.find() is None, reason="no Chromium here: apt-get install chromium")

PAPER = 1039  # CSS pixels between the margins of A4 landscape
FOLDED = 120

# Right of every element that is not inside a box that scrolls by itself.
TOO_WIDE = """[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll *') && !e.closest('svg *'))
  .filter(e => e.getBoundingClientRect().right > innerWidth + 0.5).map(e => e.outerHTML.slice(0, 120))"""
ON_PAPER_TOO_WIDE = """[...document.querySelectorAll('body *')].filter(e => !e.closest('svg *'))
  .filter(e => e.getBoundingClientRect().right > innerWidth + 0.5).map(e => e.outerHTML.slice(0, 120))"""
SIZES = """[...document.querySelectorAll('svg, table')].map(e => {
  // what a closed <details> holds has a size all the same
  const r = e.checkVisibility() ? e.getBoundingClientRect() : {width: 0, height: 0};
  return [e.id || e.closest('figure').id, r.width, r.height]})"""
# Texts of a figure that stick out of it, and pairs of them that cover each other.
CUT = """[...document.querySelectorAll('svg')].flatMap(s => { const b = s.getBoundingClientRect();
  return [...s.querySelectorAll('text')].filter(t => { const r = t.getBoundingClientRect();
    return r.left < b.left - 1 || r.right > b.right + 1 || r.top < b.top - 1 || r.bottom > b.bottom + 1})
  .map(t => s.closest('figure').id + ': ' + t.textContent)})"""
COVERED = """[...document.querySelectorAll('svg')].flatMap(s => {
  const all = [...s.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]), bad = [];
  for (let i = 0; i < all.length; i++) for (let j = i + 1; j < all.length; j++) { const [a, b] = [all[i][1], all[j][1]];
    const w = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const h = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (w > 1 && h > 3) bad.push(s.closest('figure').id + ': ' + all[i][0] + ' / ' + all[j][0]) }
  return bad})"""
COLOURS = """[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color,
  getComputedStyle(document.querySelector('figcaption')).color,
  ...[...document.querySelectorAll('svg text')].map(t => getComputedStyle(t).fill)]"""


def big_run() -> list[Line]:
    """Return the demo and what strains the layout: long names, many curves, bars with long labels, many points."""
    out = demo_lines()
    legs = [Leg("mem:0", "cpu:0")]
    for threads in (1, 2, 4, 8, 16, 32, 64):
        point = {"engine": "a rather long engine name", "threads": threads}
        out += hockney(
            "many", [4096 << n for n in range(8)], 1e-5 / threads, 1e9 * threads, point=point, launches=1, n=5
        )
    for number in range(FOLDED):
        out += lines("folded", {"nbytes": 64 * (number + 1)}, 1e-6 * (number + 1), launches=1, n=100, legs=legs)
    for method in ("buffered, evicted before every sample", "o_direct_" + "x" * 60):
        point = {"method": method}
        out += lines("bars", point, 1e-3, moved=1 << 24, legs=legs, path="/a/very/long/" + "path/" * 30)
    return out


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[devtools.Page]:
    _, html = report.write(run_of(big_run()), tmp_path_factory.mktemp("page"))
    with devtools.browser() as address:
        tab = devtools.Page(address)
        tab.media()
        tab.size(1200)
        tab.open(html.as_uri())
        yield tab
        tab.close()


@pytest.fixture(autouse=True)
def _fresh(page: devtools.Page) -> None:
    page.media()
    page.size(1200)


def boxes(page: devtools.Page) -> dict[str, tuple[float, float]]:
    return {name: (width, height) for name, width, height in page.evaluate(SIZES)}


def luminance(colour: str) -> float:
    channels = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    """Return the contrast of two colours as WCAG 2 defines it, 1 to 21."""
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def test_nothing_is_fetched_and_the_console_is_silent(page: devtools.Page) -> None:
    asked = [request["request"]["url"] for request in page.of("Network.requestWillBeSent")]
    assert len([url for url in asked if url.startswith("file:")]) == 1
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    for event in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
        assert page.of(event) == []
    assert page.evaluate("performance.getEntriesByType('resource').length") == 0
    assert page.evaluate("document.scripts.length") == 0


@pytest.mark.parametrize("width", [1200, 768, 360])
def test_every_figure_and_table_is_there(page: devtools.Page, width: int) -> None:
    page.size(width, mobile=width < 500)
    found = boxes(page)
    figures = {name for name in found if re.fullmatch(r"(dram|allreduce|weights|many|folded|bars)-\d", name)}
    assert len(figures) >= 8
    assert {"key-figures", "fitted-models", "points-1", "points-6"} <= set(found)
    assert all(box_width > 50 and height > 30 for box_width, height in found.values())
    long = "[...document.querySelectorAll('.tall .scroll')].map(s => [s.clientHeight, s.scrollHeight])"
    heights = page.evaluate(long)
    assert len(heights) == 3  # two long tables and the facts
    assert all(seen <= 31 * 16 for seen, _ in heights)
    assert all(whole > seen for seen, whole in heights[:2])


@pytest.mark.parametrize("width", [1200, 768, 360])
def test_the_page_never_scrolls_sideways(page: devtools.Page, width: int) -> None:
    page.size(width, mobile=width < 500)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("innerWidth") == width
    assert page.evaluate(TOO_WIDE) == []
    # wide tables are reached by scrolling their own box
    assert page.evaluate(
        "[...document.querySelectorAll('.scroll')].every(s => getComputedStyle(s).overflowX == 'auto')"
    )


@pytest.mark.parametrize("width", [1200, 360])
def test_texts_in_figures_are_neither_cut_nor_covered(page: devtools.Page, width: int) -> None:
    page.size(width, mobile=width < 500)
    assert page.evaluate(CUT) == []
    assert page.evaluate(COVERED) == []


def test_texts_can_be_read_on_a_phone(page: devtools.Page) -> None:
    page.size(360, mobile=True)
    heights = page.evaluate("[...document.querySelectorAll('svg text')].map(t => t.getBoundingClientRect().height)")
    assert min(heights) > 7
    size = "parseFloat(getComputedStyle(document.querySelector('{}')).fontSize)"
    assert page.evaluate(size.format("body")) >= 14
    assert page.evaluate(size.format("td")) >= 11


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_from_the_background(page: devtools.Page, scheme: str) -> None:
    page.media(scheme=scheme)
    back, *texts = page.evaluate(COLOURS)
    assert (luminance(back) < 0.1) == (scheme == "dark")
    assert len(texts) > 20
    assert min(contrast(back, text) for text in texts) >= 4.5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_paper_everything_is_unfolded_white_and_within_the_margins(page: devtools.Page, scheme: str) -> None:
    page.media("print", scheme)
    page.size(PAPER)
    assert page.evaluate(ON_PAPER_TOO_WIDE) == []
    assert all(width > 50 and height > 30 for width, height in boxes(page).values())
    assert luminance(page.evaluate(COLOURS)[0]) == 1.0
    hidden = "[...document.querySelectorAll('.scroll')].filter(s => s.scrollHeight > s.clientHeight + 1).length"
    assert page.evaluate(hidden) == 0
    assert page.evaluate(CUT) == []


def test_it_prints_to_pdf(page: devtools.Page) -> None:
    page.media("")  # nothing emulated: what the printer gets by itself
    data = page.pdf()
    assert data.startswith(b"%PDF-")
    assert data.rstrip().endswith(b"%%EOF")
    whole = pages(data)
    page.evaluate("document.querySelectorAll('details.tall').forEach(d => d.style.display = 'none')")
    without = pages(page.pdf())
    page.evaluate("document.querySelectorAll('details.tall').forEach(d => d.style.display = '')")
    assert whole >= without + 3, "the long tables are not whole on paper"


def pages(data: bytes) -> int:
    found: list[Any] = re.findall(rb"/Type\s*/Pages\s*/Count\s+(\d+)|/Count\s+(\d+)", data)
    assert found
    return max(int(a or b) for a, b in found)
