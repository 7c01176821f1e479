"""Many series at once: the models are those of each series alone, whatever else is fitted with it."""

import numpy as np
import pytest
from iobench.errors import UserError
from iobench.fit import FitPoint, Model, alike, fit, fit_run
from iobench.fit.alike import Plain, fit_alike, plain
from iobench.units import GB, US

from make_run import hockney, run_of

SHAPES = [(4, 1, 1), (5, 1, 2), (30, 1, 5), (9, 1, 8), (12, 1, 23), (7, 2, 9), (6, 3, 4), (8, 5, 7), (4, 4, 1)]


def series(rng: np.random.Generator, sizes: int, launches: int, iterations: int, seed: int) -> Plain:
    """Return times of a random transfer: some fall with size, some do not grow, some leap."""
    nbytes = np.sort(rng.choice(1 << np.arange(3, 40), sizes, replace=False))
    start, rate = rng.uniform(0, 30) * US, 10 ** rng.uniform(-2, 3) * GB
    curve = start + nbytes / rate * np.exp(rng.normal(0, rng.choice([0, 0.01, 1]), sizes))
    samples = curve[:, None, None] * np.exp(rng.normal(0, 0.05, (sizes, launches, iterations)))
    order = rng.permutation(sizes)
    return Plain(nbytes[order].tolist(), samples[order].tolist(), seed)


def alone(one: Plain, draws: int) -> Model:
    points = [
        FitPoint(nbytes, tuple(np.array(row) for row in rows))
        for nbytes, rows in zip(one.nbytes, one.samples, strict=True)
    ]
    return fit(points, "hockney", one.seed, draws)


def numbers(model: Model) -> list[float]:
    found = [model.error, model.between]
    for parameter in model.parameters.values():
        found += [parameter.value, parameter.low, parameter.high]
    return found + [value for point in model.measured for value in point[:4]]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_series_among_many_gets_the_model_that_it_gets_alone(shape: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(sum(shape))
    many = [series(rng, *shape, seed) for seed in range(40)]
    for together, one in zip(fit_alike("hockney", many, 50), many, strict=True):
        single = alone(one, 50)
        assert numbers(together) == pytest.approx(numbers(single), rel=1e-9, abs=0, nan_ok=True)
        assert (together.findings, together.valid, together.kind) == (single.findings, single.valid, single.kind)


@pytest.mark.parametrize("shape", SHAPES)
def test_neither_the_chunk_nor_the_company_changes_a_bit(
    shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(sum(shape))
    many = [series(rng, *shape, seed) for seed in range(70)]
    whole = [model.to_dict() for model in fit_alike("hockney", many, 40)]
    for chunk in (1, 7):
        monkeypatch.setattr(alike, "CHUNK", chunk)
        assert [model.to_dict() for model in fit_alike("hockney", many, 40)] == whole


def test_a_run_of_series_alike_and_odd_ones_keeps_its_order() -> None:
    sizes = [8 << step for step in range(8)]
    made = []
    for number, some in enumerate((sizes, sizes[:5], sizes, sizes[:2], sizes)):
        made += hockney("p", some, (number + 1) * US, 1 * GB, point={"series": number})
    found = fit_run(run_of(made, models={"p": [{"kind": "hockney"}]}))
    assert [one.series for one in found] == [f"series={number}" for number in range(5)]
    starts = [one.model.parameters["a"].value if one.model else None for one in found]
    assert starts == [pytest.approx((n + 1) * US, rel=0.05) if n != 3 else None for n in range(5)]
    assert found[3].reason == "2 sizes: a hockney model needs 4; measure more, as in -a nbytes=8:64M"


@pytest.mark.parametrize(
    ("sizes", "samples"),
    [
        ([1, 1], [[[1.0]], [[1.0]]]),
        ([0, 1], [[[1.0]], [[1.0]]]),
        ([1, 2], [[[1.0]], [[1.0, 2.0]]]),
        ([1, 2], [[[1.0]], [[1.0], [1.0]]]),
        ([1, 2], [[[1.0, 2.0], [1.0]], [[1.0, 2.0], [1.0]]]),
        ([1, 2], [[[]], [[]]]),
        ([1, 2], [[], []]),
        ([1, 2], [[[1.0]], [[float("nan")]]]),
        ([1, 2], [[[1.0]], [[float("inf")]]]),
        ([1, 2], [[[1.0]], [[0.0]]]),
    ],
)
def test_what_is_odd_is_left_to_the_fit_of_one(sizes: list[int], samples: list[list[list[float]]]) -> None:
    assert plain(sizes, samples, 0, ["", ""]) is None


def test_aggregates_and_samples_are_not_mixed() -> None:
    assert plain([1, 2], [[[1.0]], [[2.0]]], 0, ["", "mean of 20"]) is None
    made = plain([1, 2], [[[1.0]], [[2.0]]], 0, ["mean of 20"] * 2)
    assert made is not None
    assert made.aggregate == "mean of 20"


def test_a_kind_without_a_batch_is_fitted_one_by_one() -> None:
    assert alike.suits("hockney", 4)
    assert not alike.suits("hockney", 3)
    assert not alike.suits("levels", 100)
    with pytest.raises(UserError):
        alike.suits("no such kind", 4)
