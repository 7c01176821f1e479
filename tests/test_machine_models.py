"""The models file: what is written is read again, the same run gives the same bytes, damage is one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from iobench.errors import UserError
from iobench.fit import machine_models, save
from iobench.fit.machine_models import MachineModels
from iobench.predict import Query, predict
from iobench.units import MIB

from collective_runs import collective_run


@pytest.fixture(scope="module")
def models() -> MachineModels:
    return machine_models.of_run(collective_run(ops=("all_reduce",)))


def test_it_is_written_and_read_again(models: MachineModels, tmp_path: Path) -> None:
    file = models.save(tmp_path / "new" / "4x-a100.models.json")
    again = machine_models.load(file)
    assert again == models
    for query in (Query(MIB, "all_reduce", ranks=4), Query(MIB, "all_reduce", ranks=8)):
        assert predict(again, query) == predict(models, query) == predict(file, query)


def test_the_same_run_gives_the_same_bytes(models: MachineModels, tmp_path: Path) -> None:
    first = models.save(tmp_path / "a.json").read_bytes()
    second = machine_models.of_run(collective_run(ops=("all_reduce",))).save(tmp_path / "b.json").read_bytes()
    assert first == second


def test_it_says_units_range_error_and_what_it_rests_on(models: MachineModels, tmp_path: Path) -> None:
    data = json.loads(models.save(tmp_path / "m.json").read_text())
    assert (data["type"], data["schema"], data["machine"]) == ("machine-models", 1, "4x-a100")
    assert data["rests_on"]["records"] == 18
    assert data["units"]["seconds, low, high"] == "s"
    series = data["series"][0]
    assert {"valid", "error", "parameters", "measured"} <= set(series["model"])
    scale = data["scale"][0]
    assert scale["axes"]["op"] == "all_reduce"
    assert scale["parameters"]["hop_within"]["unit"] == "s"
    assert [curve["ranks"] for curve in scale["curves"]] == [2, 4]


def damaged(models: MachineModels, folder: Path, change: Any) -> Path:
    file = models.save(folder / "m.models.json")
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))
    return file


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.pop("scale"),
        lambda data: data.update(series=[{}]),
        lambda data: data.update(series=3),
        lambda data: data["scale"][0].update(curves=[]) or data["scale"][0]["axes"].pop("op"),
        lambda data: data["scale"][0]["curves"][0]["measured"][0].update(seconds=-1),
        lambda data: data["scale"][0]["curves"][0].update(ranks=0),
        lambda data: data["scale"][0]["curves"][0].update(measured=[]),
        lambda data: data["scale"][0].update(schema=9),
        lambda data: data["scale"][0].update(switch="perhaps"),
        lambda data: data["series"][0]["model"].update(measured=[]),
        lambda data: data.update(schema=99),
        lambda data: data.update(type="something"),
    ],
)
def test_damage_is_one_line_with_the_next_step(models: MachineModels, tmp_path: Path, change: Any) -> None:
    with pytest.raises(UserError) as caught:
        machine_models.load(damaged(models, tmp_path, change))
    assert "\n" not in str(caught.value)
    assert "again with iobench fit" in str(caught.value)


@pytest.mark.parametrize("content", ["", "{", "[]", "nonsense", "[" * 100000])
def test_what_is_no_models_file_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(content)
    with pytest.raises(UserError, match="iobench fit"):
        machine_models.load(file)


def test_the_models_beside_a_run_are_read_too(models: MachineModels, tmp_path: Path) -> None:
    file = save(models.series, tmp_path / "models.json")
    assert machine_models.load(file).series == models.series


def test_a_folder_that_cannot_be_written_is_one_line(models: MachineModels, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--save"):
        models.save(tmp_path / "file" / "m.json")
