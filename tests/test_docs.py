"""Documentation that fails a test when it is stale."""

from __future__ import annotations

import os
import re
import subprocess

import iobench
import pytest
from iobench import catalogue, cli
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def made(*arguments: str) -> str:
    """Return what make prints, as from a shell: not as a part of the make that runs the tests, with its options."""
    outside = {name: text for name, text in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "GNUMAKE"))}
    command = ["make", "-s", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=ROOT, env=outside, capture_output=True, text=True, check=True).stdout


def make_targets() -> set[str]:
    """Return every target that `make help` lists."""
    return set(re.findall(r"^make (\S+)", made("help"), re.MULTILINE))


def test_the_table_of_probes_is_generated() -> None:
    begin, end = "<!-- probes: begin -->\n", "\n<!-- probes: end -->"
    table = README.partition(begin)[2].partition(end)[0]
    assert table == catalogue.markdown_table(), "regenerate: python -m iobench list --markdown"


def test_every_make_target_in_the_documents_exists() -> None:
    named = set(re.findall(r"(?:`|^)make ([a-z][a-z-]*[a-z])", README + CONTRIBUTING, re.MULTILINE))
    assert named <= make_targets(), named - make_targets()
    assert {"bench", "test"} <= named


def test_every_verb_in_the_documents_exists() -> None:
    commands = cli.app.registered_commands
    verbs = {command.name or getattr(command.callback, "__name__", "") for command in commands}
    named = set(re.findall(r"`iobench ([a-z]+)\b", README + CONTRIBUTING))
    assert named <= verbs, named - verbs
    assert {"run", "report", "compare"} <= named


def test_every_promised_target_is_there() -> None:
    promised = "bench test list topology fit compare report lint crosscheck-dram crosscheck-storage"
    probes = "nvlink ib pcie hbm gds cxl numa dram"
    assert set(promised.split()) | {f"probe-{name}" for name in probes.split()} <= make_targets()


def test_help_is_the_default_target() -> None:
    assert made().startswith("make help")


@pytest.mark.parametrize(("name", "words"), sorted(catalogue.probes.ways().items()))
def test_a_way_through_a_probe_has_its_target(name: str, words: str) -> None:
    probe, *assignments = words.replace("-a ", "").split()
    catalogue.probes.narrow(catalogue.probes.load(probe), assignments)
    assert name not in catalogue.probes.files()
    recipe = rf"^probe-{name}: .*\n\t@\$\(IOBENCH\) run {re.escape(words)}( --budget \d+)? \$\(ARGS\)$"
    assert re.search(recipe, (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


def test_the_version_is_in_the_changelog() -> None:
    assert f"## {iobench.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_examples_in_the_package_docstring_name_real_functions() -> None:
    names = set(re.findall(r"iobench\.(\w+)\(", iobench.__doc__ or ""))
    assert names == {"run", "load", "fit", "compare"}
    assert all(callable(getattr(iobench, name)) for name in names)


def test_the_transcript_is_the_committed_reference_run() -> None:
    from iobench import report

    (name,) = re.findall(r"That is the run in `reports/reference/([^`]+)`", README)
    folder = ROOT / "reports" / "reference" / name
    run = iobench.load(folder)
    assert f"\npoints: {report.verdict_line(run)}\n" in README
    assert all((folder / name).exists() for name in ("report.md", "report.html"))
    for record in run:
        assert record.probe in catalogue.probes.files()


def test_committed_reports_name_nobody() -> None:
    odd = re.compile(
        r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"  # UUID
        r"|(?:[0-9a-f]{2}:){5}[0-9a-f]{2}"  # MAC address
        r"|\b(?!127\.)(?:\d{1,3}\.){3}\d{1,3}\b"  # IPv4 address
        r"|/home/|/root/",
        re.IGNORECASE,
    )
    for file in (ROOT / "reports" / "reference").rglob("*"):
        if file.suffix in (".jsonl", ".md", ".html"):
            assert odd.search(file.read_text(encoding="utf-8")) is None, file
