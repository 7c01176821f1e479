"""Intel MLC: what its options change, as its own line "Command line parameters" repeats them. Figures are made up."""

from __future__ import annotations

import pytest
from iobench import importers
from iobench.importers.log import from_bytes
from iobench.record import Run

BANNER = "Intel(R) Memory Latency Checker - v3.11b\nCommand line parameters: {}\n\n"
MATRIX = """Measuring Memory Bandwidths between nodes within system
Bandwidths are in MB/sec (1 MB/sec = 1,000,000 Bytes/sec)
{}                Numa node
Numa node            0       1
       0        {}    55389.3
       1        55351.6     161276.7
"""
READ_ONLY = "Using Read-only traffic type\n"
LATENCY = (
    "Measuring idle latencies (in ns)...\n                Numa node\nNuma node            0\n       0         {}\n"
)


def read(text: str) -> Run:
    log = from_bytes(text.encode())
    return importers.to_run(log, importers.read_log(log))


def test_runs_with_another_mix_are_other_points() -> None:
    text = BANNER.format("--bandwidth_matrix -U") + MATRIX.format(READ_ONLY, "161312.2")
    text += BANNER.format("--bandwidth_matrix -U -W5") + MATRIX.format("", "130000.5")
    run = read(text)
    assert len(run) == 8
    assert {len(record.lines) for record in run} == {1}
    rates = {r.point["kernel"]: r.bytes_per_s for r in run if (r.point["cpu_node"], r.point["memory_node"]) == (0, 0)}
    assert rates == {"read": pytest.approx(161312.2e6), "1:1 reads-writes": pytest.approx(130000.5e6)}
    assert {record.point["access"] for record in run} == {"random"}


def test_random_and_sequential_latencies_are_other_points() -> None:
    text = BANNER.format("--latency_matrix -r") + LATENCY.format("117.4")
    run = read(text + BANNER.format("--latency_matrix") + LATENCY.format("98.1"))
    assert {r.point.get("access"): r.time.median for r in run} == {
        "random": pytest.approx(117.4e-9),
        None: pytest.approx(98.1e-9),
    }


def test_other_options_tell_runs_apart_and_the_same_ones_are_launches() -> None:
    near, far = (BANNER.format(f"--idle_latency -c0 -j{node}") for node in (0, 1))
    row = "Each iteration took 202.0 core clocks (  {} ns)\n"
    run = read(near + row.format("80.8") + far + row.format("131.1") + near + row.format("80.6"))
    assert [(r.point["options"], len(r.lines)) for r in run] == [
        ("--idle_latency -c0 -j0", 2),
        ("--idle_latency -c0 -j1", 1),
    ]


def test_a_mix_of_another_number_keeps_it() -> None:
    (first, *_) = read(BANNER.format("--bandwidth_matrix -W21") + MATRIX.format("", "100.0"))
    assert first.point["kernel"] == "mix -W21"


@pytest.mark.parametrize("tail", ["\t\n", "  \n", "\n"])
def test_columns_with_a_tab_behind_the_last(tail: str) -> None:
    text = "Intel(R) Memory Latency Checker - v3.11b\nMeasuring idle latencies for sequential access (in ns)...\n"
    text += (
        f"\t\tNuma node\nNuma node\t     0\t     1{tail}       0\t  82.1\t 141.0{tail}       1\t 141.5\t  81.5{tail}"
    )
    assert [round(r.time.median * 1e9, 1) for r in read(text)] == [82.1, 141.0, 141.5, 81.5]
