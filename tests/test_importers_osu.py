"""OSU micro-benchmarks: sizes of one rank's part, half round trips, both directions, all pairs."""

from __future__ import annotations

from pathlib import Path

import pytest
from iobench import importers
from iobench.errors import UserError
from iobench.importers import Imported
from iobench.importers.log import from_bytes
from iobench.record import Run

LOGS = Path(__file__).parent / "fixtures" / "logs"


def read(content: str) -> tuple[Imported, Run]:
    log = from_bytes(content.encode())
    imported = importers.read_log(log)
    return imported, importers.to_run(log, imported)


def test_bandwidth_is_in_10_to_the_6_and_the_buffers_are_named() -> None:
    run = importers.read(LOGS / "osu_bw_cuda_device_buffers_v7.txt")
    assert len(run) == 3
    last = run.records[-1]
    assert last.bytes_per_s == pytest.approx(93130.52e6)
    assert (last.point["memory"], last.point["ranks"], last.mode) == ("gpu", 2, "pipelined")


def test_a_collectives_time_is_its_mean_and_warnings_between_do_not_matter() -> None:
    run = importers.read(LOGS / "osu_reduce_full_192_ranks_v7.txt")
    assert [record.point["ranks"] for record in run] == [192] * 3
    first = run.records[0]
    assert first.time.median == pytest.approx(53.34e-6)
    assert first.aggregate == "mean of the test's iterations, mean over ranks"
    assert first.first.evidence["rows"] == ["line 6: 53.34 24.80 158.96 1000"]


def test_old_titles_pairs_directions_and_what_is_not_known() -> None:
    log = importers.load(LOGS / "osu_several_tests_old_and_new.txt")
    imported = importers.read_log(log)
    run = importers.to_run(log, imported)
    by_test = {(r.point.get("test"), r.point.get("direction"), r.nbytes): r for r in run}
    half = by_test["latency", "one", 8]
    assert (half.time.median, half.moved, half.quantity) == (pytest.approx(0.67e-6), 0, "latency")
    assert by_test["bandwidth", "one", 4096].bytes_per_s == pytest.approx(168173.26e6)
    assert by_test["bandwidth", "one", 4096].point["ranks"] == 96
    assert by_test["bandwidth", "both", 4 << 20].bytes_per_s == pytest.approx(24700.13e6)
    assert "Non-blocking Allreduce" in imported.unread[0].why
    assert any("no line names the ranks" in problem for problem in imported.problems)


def test_sizes_of_one_ranks_part_become_the_whole() -> None:
    text = "mpirun -np 4 osu_alltoall\n# OSU MPI All-to-All Personalized Exchange Latency Test v5.9\n"
    _, run = read(text + "# Size       Avg Latency(us)\n1024                    100.00\n")
    (only,) = run
    assert (only.nbytes, only.moved) == (4096, 3072)


def test_validation_that_failed_is_wrong_data() -> None:
    text = "mpirun -np 2 osu_allreduce -c\n# OSU MPI Allreduce Latency Test v7.3\n"
    text += "# Size       Avg Latency(us)   Validation\n"
    _, run = read(text + "4     1.98   Pass\n8     2.04   Fail\n")
    assert [record.wrong_data for record in run] == [False, True]
    assert run.records[0].first.verified is True


def test_quoted_mail_and_tags_are_seen_through() -> None:
    _, run = read("> > # OSU MPI Bandwidth Test v3.1.1\n> > # Size        Bandwidth (MB/s)\n> > 16    24.33\n")
    assert run.records[0].bytes_per_s == pytest.approx(24.33e6)


def test_what_has_no_sizes_is_refused_with_its_reason() -> None:
    with pytest.raises(UserError, match="Barrier Latency has no sizes"):
        read("# OSU MPI Barrier Latency Test v7.3\n# Avg Latency(us)\n            10.23\n")


@pytest.mark.parametrize(
    ("title", "unit", "op", "direction"),
    [
        ("MPI_Put Latency", "Latency (us)", "put", "one"),
        ("MPI_Get latency", "Latency (us)", "get", "one"),
        ("MPI_Fetch_and_op latency", "Latency (us)", "fetch_and_op", "one"),
        ("MPI_Get Bandwidth", "Bandwidth (MB/s)", "get", "one"),
        ("MPI_Put Bi-directional Bandwidth", "Bandwidth (MB/s)", "put", "both"),
    ],
)
def test_one_sided_operations_are_no_messages_and_nothing_of_them_is_halved(
    title: str, unit: str, op: str, direction: str
) -> None:
    head = f"# OSU {title} Test v5.7.1\n# Window creation: MPI_Win_allocate\n# Synchronization: MPI_Win_flush\n"
    imported, run = read(f"{head}# Size          {unit}\n8                      63.31\n")
    (only,) = run
    assert (only.point["op"], only.point["direction"]) == (op, direction)
    assert not any("half" in sentence for sentence in imported.normalised)
    if "us" in unit:
        assert only.time.median == pytest.approx(63.31e-6)
        assert only.first.aggregate.endswith("one operation with its synchronisation")
    else:
        assert only.bytes_per_s == pytest.approx(63.31e6)
