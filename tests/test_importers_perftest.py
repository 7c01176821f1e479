"""perftest: units that are said wrongly, both forms of its JSON, raw samples, which round trip a latency is."""

import pytest
from iobench.errors import UserError
from iobench.importers.formats import perftest

from peer_logs import GB, LOGS, MIB, US, asked, of_text, one, rate, read


def test_perftest_mb_is_mib() -> None:
    run = read("perftest-write-bw-mb-that-is-mib.txt")
    record = one(run, verb="write", nbytes=65536)
    assert record.bytes_per_s == pytest.approx(11728.47 * MIB)  # 12.298 GB/s, 98.39 Gb/s
    assert record.bytes_per_s * 8 / GB == pytest.approx(98.39, abs=0.01)
    assert record.first.evidence["printed"]["BW average"] == "11728.47"
    assert "1,048,576" in str(asked(run, "normalised"))


def test_perftest_small_message_takes_the_finer_message_rate() -> None:
    assert rate(read("perftest-write-bw-gbits-post-list-peak-0.txt"), nbytes=8) == pytest.approx(7.498617e6 * 8)


def test_perftest_latency_of_a_read_is_the_whole_round_trip() -> None:
    record = one(read("perftest-read-lat-frequency-warnings-in-the-table.txt"), verb="read")
    assert record.time.median == pytest.approx(1.79 * US)
    assert record.first.moved_rule == "the whole round trip"
    assert "median of 1000" in record.first.aggregate


def test_perftest_raw_samples_stay_raw() -> None:
    line = one(read("perftest-write-lat-raw-unsorted.txt"), verb="write").first
    assert line.seconds == [[pytest.approx(v * US) for v in (2.40, 2.37, 2.42, 2.50, 2.42, 2.41, 2.43, 2.42, 5.39)]]
    assert line.aggregate == ""
    assert "half of the round trip" in line.moved_rule


def test_perftest_raw_samples_that_do_not_fit_the_row_are_not_its() -> None:
    text = (
        (LOGS / "perftest-write-lat-raw-unsorted.txt")
        .read_text(encoding="utf-8")
        .replace(" 128     10 ", " 128     1000 ")
    )
    line = one(of_text(text), verb="write").first
    assert line.seconds == [[pytest.approx(2.42 * US)]]
    assert "median of 1000" in line.aggregate


def test_perftest_cycles_are_refused_with_the_way_out() -> None:
    with pytest.raises(UserError, match="run it without -C"):
        read("perftest-write-lat-in-cycles.txt")


def test_perftest_duration_has_a_mean_only() -> None:
    line = one(read("perftest-send-lat-duration-mean-only.txt"), verb="send").first
    assert (line.seconds, line.aggregate.split(" of ")[0]) == ([[pytest.approx(1.91 * US)]], "mean")


def test_perftest_overflow_gives_no_number() -> None:
    with pytest.raises(UserError, match="no row of perftest could be read"):
        read("perftest-send-bw-negative-average-overflow.txt")


def test_perftest_json_without_quotes() -> None:
    line = one(read("perftest-json-without-quotes-2023.txt"), verb="write", nbytes=128).first
    assert line.seconds == [[pytest.approx(2.42 * US)]]
    assert line.evidence["printed"]["99.9% percentile"] == "4.03"


def test_perftest_json_unit_is_told_by_the_message_rate() -> None:
    assert rate(read("perftest-json-bw-one-bare-key-sl.txt"), nbytes=65536) == pytest.approx(98.39e9 / 8, rel=1e-3)


def test_perftest_json_with_a_unit_that_fits_nothing_is_not_guessed() -> None:
    text = (LOGS / "perftest-json-bw-one-bare-key-sl.txt").read_text(encoding="utf-8")
    with pytest.raises(UserError, match="does not say its unit"):
        of_text(text.replace("98.39", "55.00"))


def test_perftest_repair_leaves_good_json_alone() -> None:
    assert perftest.repaired('{"a": {"b": 1, "c": "x: y,"}}') == {"a": {"b": 1, "c": "x: y,"}}


def test_perftest_bidirectional_rate_is_halved() -> None:
    text = (LOGS / "perftest-write-bw-mb-that-is-mib.txt").read_text(encoding="utf-8")
    run = of_text(text.replace("RDMA_Write BW Test", "RDMA_Write Bidirectional BW Test"))
    assert rate(run, direction="both") == pytest.approx(11728.47 * MIB / 2)


def test_perftest_sweep_that_ends_early_is_incomplete() -> None:
    rows = "\n".join(f" {1 << n}   5000   1.00   {(1 << n) * 1e6 / MIB:.2f}   1.000000" for n in range(1, 8))
    head = "                    RDMA_Write BW Test\n #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n"  # fmt: skip  # noqa: E501
    run = of_text(head + rows + "\n")
    assert len(run) == 7
    assert asked(run, "incomplete") == "the sweep (2 bytes to 8 MiB) ends at 128 bytes"


def test_perftest_failure_within_a_sweep_is_said_and_the_rest_kept() -> None:
    text = (LOGS / "perftest-write-bw-mb-that-is-mib.txt").read_text(encoding="utf-8").rsplit("-----", 1)[0]
    run = of_text(text + "\n Completion with error at client\n Failed status 10: wr_id 0 syndrom 0x3b\n")
    assert len(run) == 1
    assert sum("Failed status 10" in warning or "Completion with error" in warning for warning in run.warnings) >= 1


@pytest.mark.parametrize(
    ("words", "verb"),
    [("Atomic CMP_AND_SWAP", "atomic_cas"), ("Atomic FETCH_AND_ADD", "atomic_fadd"), ("Atomic", "atomic")],
)
def test_perftest_atomics_are_told_apart(words: str, verb: str) -> None:
    text = f"                    {words} Latency Test\n Connection type : RC\n"
    text += " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]\n"
    text += " 8       1000          3.00           9.00         4.50                5.00           0.50\n"
    (record,) = of_text(text)
    assert record.point["verb"] == verb
    assert record.first.moved_rule == "the whole round trip"
