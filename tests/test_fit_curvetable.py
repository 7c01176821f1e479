"""Tables of published latencies: how people save them, and rows that are no measurement."""

import pytest
from iobench.errors import UserError
from iobench.fit import curvetable

HEAD = ",".join(curvetable.COLUMNS) + "\n"
ROWS = "box,1.0,2.0,all_reduce,half,8,512,8.5\nbox,1.0,2.0,all_reduce,half,8,1024,9\n"


def read(tmp_path, text):
    path = tmp_path / "curves.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return curvetable.read(path)


@pytest.mark.parametrize("text", [
    HEAD + ROWS,
    "\ufeff# saved by a spreadsheet\n" + HEAD + ROWS,
    (HEAD + ROWS).replace("\n", "\r\n"),
    (HEAD + ROWS).replace(",", " , "),
    "# a\n\n" + HEAD + "# b\n" + ROWS.replace("\n", "\n# c\n\n"),
    HEAD.strip() + ",host\n" + ROWS.replace("\n", ",x\n"),
    HEAD + ROWS.replace("512", "512.0").replace("1024", "1.024e3"),
])  # fmt: skip
def test_every_way_to_save_a_table_reads_the_same(tmp_path, text):
    table = read(tmp_path, text)
    assert table.left_out == []
    assert [(row.gpus, row.nbytes, row.seconds) for row in table.rows] == [(8, 512, 8.5e-6), (8, 1024, 9e-6)]
    assert table.rows[0].names == ("box", "1.0", "2.0", "all_reduce", "half")


@pytest.mark.parametrize(("end", "said"), [
    ("8,512,0", "latency_us is 0, no time"), ("8,512,-3", "latency_us is -3"), ("8,512,nan", "latency_us is nan"),
    ("8,512,inf", "latency_us is inf"), ("8,512,", "no latency_us"), ("8", "no size_bytes"),
    ("8,0,3", "size_bytes is 0"),
    ("8,512.5,3", "size_bytes is 512.5"), ("8,1e400,3", "size_bytes is 1e400"), ("two,512,3", "num_gpus is 'two'"),
    ("0,512,3", "num_gpus is 0"), ("8,5\0,3", "size_bytes is"), ('"8,512,3', "num_gpus is '8,512,3'"),
])  # fmt: skip
def test_a_row_that_is_no_measurement_is_named_by_its_line_and_the_others_stay(tmp_path, end, said):
    table = read(tmp_path, HEAD + "box,1.0,2.0,all_reduce,half," + end + "\n" + ROWS)
    assert len(table.rows) == 2
    (sentence,) = table.left_out
    assert sentence.startswith("line 2: ")
    assert said in sentence


@pytest.mark.parametrize(("text", "said"), [
    ("", "lacks system"), (HEAD.replace(",latency_us", "") + ROWS, "lacks latency_us"),
    ((HEAD + ROWS).encode("utf-16"), "cannot read"), ((HEAD + ROWS).replace(",", ";"), "lacks system"),
])  # fmt: skip
def test_what_is_no_table_is_refused_in_one_line(tmp_path, text, said):
    with pytest.raises(UserError, match=said) as refused:
        read(tmp_path, text)
    assert "\n" not in str(refused.value)
    with pytest.raises(UserError, match="cannot read"):
        curvetable.read(tmp_path)


def test_a_thousand_bad_rows_are_counted_not_all_shown(tmp_path):
    lines = curvetable.shown(read(tmp_path, HEAD + "x,1,1,all_reduce,half,8,512,0\n" * 1000).left_out)
    assert len(lines) == 21
    assert lines[-1] == "left out: 980 more like these"
