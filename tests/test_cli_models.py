"""The verbs predict, export, fit --save and bench-scale: what they print, where they write, how they refuse."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from iobench import cli
from tests.conftest import ROOT
from typer.testing import CliRunner

from collective_runs import collective_run
from make_run import save

EIGHT = ("--op", "all_reduce", "--ranks", "8", "-n", "64M")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(collective_run(ops=("all_reduce",)), tmp_path_factory.mktemp("run")).parent


def call(*arguments: object) -> str:
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def refusal(*arguments: object) -> str:
    with pytest.raises(cli.UserError) as caught:
        CliRunner().invoke(cli.app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_run_and_its_models_file_predict_alike(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "topologies" / "4x-a100.models.json"
    said = call("fit", run, "--save", file)
    assert str(file) in said
    assert "hop_within: 1.0" in said
    assert "bytes_per_s_within: 3" in said
    assert json.loads(file.read_text())["type"] == "machine-models"
    text = call("predict", run, *EIGHT)
    assert text == call("predict", file, *EIGHT)
    assert "busbw" in text


def test_an_export_goes_to_a_file_or_the_terminal(run: Path, tmp_path: Path) -> None:
    shown = call("export", run, "--format", "table")
    file = tmp_path / "table.csv"
    call("export", run, "--format", "table", "--out", file)
    assert file.read_text() == shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("predict", "RUN", "--op", "broadcast", "--ranks", "4", "-n", "1M"), "never measured"),
        (("predict", "RUN", "--op", "all_reduce", "--ranks", "4", "-n", "big"), "not a size"),
        (("predict", "RUN", "--op", "all_reduce", "--ranks", "4", "-n", "1M", "-a", "dtype"), "no AXIS=VALUE"),
        (("predict", "no/such", "--op", "all_reduce", "--ranks", "4", "-n", "1M"), "cannot read"),
        (("predict", "published:nothing", "-n", "1M"), "no published curve"),
        (("export", "RUN", "--format", "simai"), "no export format"),
        (("export", "RUN", "--format", "nccl-tuner"), "NCCL_DEBUG"),
        (("export", "RUN", "--format", "table", "--out", "no/such/folder/x"), "choose another file"),
        (("bench-scale", "no/such.csv"), "cannot read"),
    ],
)
def test_refusals_are_one_line(run: Path, arguments: tuple[str, ...], words: str) -> None:
    assert words in refusal(*[str(run) if argument == "RUN" else argument for argument in arguments])


def test_the_examples_of_the_readme_are_true() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.partition("## Models and predictions")[2].partition("\n## ")[0]
    blocks = re.findall(r"```\n\$ iobench ([^\n]*)\n(.*?)```", section, re.DOTALL)
    found = [(command, output) for command, output in blocks if command.startswith(("predict", "export"))]
    assert len(found) >= 2
    for command, output in found:
        assert call(*command.split()) == output


def test_the_bench_says_whether_its_bars_are_met(tmp_path: Path) -> None:
    head = "system,dir_version,version_col,op,dtype,num_gpus,size_bytes,latency_us"
    good, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    rows = [
        f"x,1,1,alltoall,half,{n},{1024 << k},{n + (1 << k) * (n - 1) / n:.4f}" for n in (2, 4, 8) for k in range(16)
    ]
    good.write_text("\n".join(["# made up", head, *rows]) + "\n")
    assert "met" in call("bench-scale", good)
    slow = [row.rpartition(",")[0] + ",99999" if ",8," in row else row for row in rows]
    bad.write_text("\n".join([head, *slow]) + "\n")
    result = CliRunner().invoke(cli.app, ["bench-scale", str(bad)])
    assert result.exit_code == 1
    assert "MISSED" in result.output
