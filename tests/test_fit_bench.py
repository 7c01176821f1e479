"""The benchmark of left-out sizes: any table of its format, the odd rows named, the bars judged."""

import numpy as np
import pytest
from iobench.errors import UserError
from iobench.fit import bench

HEAD = "# made up\nsystem,dir_version,version_col,op,dtype,num_gpus,size_bytes,latency_us\n"


def rows(name="box", gpus=2, count=12, noise=0.02, seed=1, dtype="half", version=""):
    rng = np.random.default_rng(seed)
    sizes = 512 * 2 ** np.arange(count)
    times = (8 + sizes / 20e3 + np.where(sizes > 60_000, 12, 0)) * np.exp(rng.normal(0, noise, count))
    return "".join(
        f"{name},1.0,{version},all_reduce,{dtype},{gpus},{n},{t:.3f}\n" for n, t in zip(sizes, times, strict=True)
    )


def table(tmp_path, text):
    path = tmp_path / "curves.csv"
    path.write_text(text)
    return bench.read(path)


def test_curves_are_read_and_judged(tmp_path):
    curves = table(tmp_path, HEAD + "".join(rows(gpus=n, seed=n) for n in (2, 4, 8)) + rows(dtype="int8"))
    assert list(curves.curves) == [f"box 1.0 all_reduce {n}" for n in (2, 4, 8)]
    text, met = bench.table(curves)
    assert met is ("bar: median <= 3.4%, worst <= 18%: met" in text)
    assert all(label in text for label in bench.METHODS)


def test_noise_misses_the_bar(tmp_path):
    text, met = bench.table(table(tmp_path, HEAD + rows(noise=0.5)))
    assert not met
    assert "MISSED" in text


def test_short_curves_and_damaged_rows_are_named(tmp_path):
    text = (
        HEAD + rows() + rows("short", count=4) + "box,1.0,,all_reduce,half,2,x,3\nbox,1.0,,all_reduce,half,2,64,nan\n"
    )
    curves = table(tmp_path, text + "box,1.0,,all_reduce,half,2,32,0.00\n")
    assert len(curves.curves) == 1
    assert sum("line " in one for one in curves.left_out) == 3
    assert any(one.startswith("short 1.0 all_reduce 2: 4 sizes") for one in curves.left_out)
    assert "left out: short" in bench.table(curves)[0]


def test_a_size_given_twice_counts_once_in_any_order(tmp_path):
    lines = rows().splitlines(keepends=True)
    once, twice = table(tmp_path, HEAD + rows()), table(tmp_path, HEAD + "".join(lines[::-1]) + rows())
    for name, (sizes, seconds) in once.curves.items():
        assert twice.curves[name][0].tolist() == sizes.tolist()
        assert twice.curves[name][1] == pytest.approx(seconds)


@pytest.mark.parametrize(("text", "said"), [
    ("", "lacks"), ("a,b\n1,2\n", "lacks system"), (HEAD, "no curve"), (HEAD + rows(dtype="int8"), "dtype half"),
])  # fmt: skip
def test_what_is_no_such_table_is_refused(tmp_path, text, said):
    with pytest.raises(UserError, match=said):
        table(tmp_path, text)
    with pytest.raises(UserError, match="cannot read"):
        bench.read(tmp_path / "missing.csv")


def test_simple_methods_are_what_they_say():
    sizes, seconds = np.array([1.0, 2.0, 4.0, 8.0]), np.array([3.0, 4.0, 6.0, 10.0])  # 2 + S
    for name in ("alpha-beta, ordinary", "alpha-beta, relative", "straight lines", "iobench (between sizes)"):
        assert bench.METHODS[name](sizes, seconds, 3.0) == pytest.approx(5.0)
    assert bench.log_log(sizes, seconds, np.sqrt(8)) == pytest.approx(np.sqrt(24))
