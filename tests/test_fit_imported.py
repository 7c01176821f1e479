"""Logs of other tools through import and fit: each gets the model that iobench's own probe would get."""

import math
import re
from pathlib import Path

import pytest
from iobench import export, fit, importers
from iobench.importers.write import merged
from iobench.units import GB, KIB, MIB, NS, US

LOGS = Path(__file__).parent / "fixtures" / "logs"
SIZES = [2 << k for k in range(23)]


def models(run):
    return [one for one in fit.fit_run(run) if one.model]


def tuned(text):
    """Put the line in which NCCL tells its choice before each row of nccl-tests."""
    lines = []
    for line in text.splitlines():
        if row := re.match(r"\s+(\d+)\s+\d+\s+float", line):
            choice = f"Algo RING proto {'LL' if int(row[1]) <= MIB else 'SIMPLE'} channel{{Lo..Hi}}={{0..23}}"
            lines.append(f"vm:1:1 [0] NCCL INFO AllReduce: {row[1]} Bytes -> {choice}")
        lines.append(line)
    return "\n".join(lines)


def test_a_tuning_log_gives_the_borders_of_the_segments(tmp_path):
    log = tmp_path / "tuned.log"
    log.write_text(tuned((LOGS / "h200x2_nccl_tests_all_reduce_nvlink.txt").read_text()))
    for one in models(importers.read(log)):
        assert one.kind == "piecewise"
        assert one.model.steps == (2 * MIB,)
        assert MIB < one.model.parameters["break1"].value < 2 * MIB
        assert "break2" not in one.model.parameters
        assert "ring/simple takes over from ring/ll at 2 MiB" in one.model.findings


def test_single_figures_have_intervals_from_how_far_they_lie_from_the_curve():
    for one in models(importers.read(LOGS / "h200x2_nccl_tests_all_reduce_nvlink.txt")):
        a = one.model.parameters["a1"]
        assert a.low < 0.99 * a.value < 1.01 * a.value < a.high
    points = [
        fit.FitPoint(n, [[1.5 * (10 * US + n / (20 * GB)) if n == 4 * KIB else 10 * US + n / (20 * GB)]]) for n in SIZES
    ]
    for name, found in fit.fit(points, "hockney").parameters.items():
        assert found.low < 0.99 * found.value < 1.01 * found.value < found.high, name


def perftest(kind, row):
    head = (
        "-" * 87 + f"\n                    RDMA_Write {kind} Test\n Dual-port       : OFF\t\tDevice         : mlx5_0\n"
    )
    head += " Number of qps   : 1\t\tTransport type : IB\n Connection type : RC\t\tUsing SRQ      : OFF\n"
    return head + "-" * 87 + "\n" + row + "-" * 87 + "\n"


def test_latency_and_bandwidth_of_perftest_become_one_loggp_model(tmp_path):
    latency = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   "
    latency += "99% percentile[usec]   99.9% percentile[usec]\n"
    stream = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n"
    for n in SIZES:
        one, each = 1.8 * US + (n - 1) / (24 * GB), 0.25 * US + (n - 1) / (24 * GB)
        us = one / US
        latency += f" {n} 1000 {us:.3f} {us:.3f} {us:.3f} {us:.3f} 0.00 {us:.3f} {us:.3f}\n"
        stream += f" {n} 5000 0.00 {n / each / MIB:.2f} {1 / each / 1e6:.6f}\n"
    (tmp_path / "lat.txt").write_text(perftest("Latency", latency))
    (tmp_path / "bw.txt").write_text(perftest("BW", stream))
    run = merged([importers.read(tmp_path / "lat.txt"), importers.read(tmp_path / "bw.txt")])
    (model,) = [one.model for one in models(run) if one.kind == "loggp"]
    assert model.parameters["L+2o"].value == pytest.approx(1.8 * US, rel=0.02)
    assert model.parameters["max(g,o)"].value == pytest.approx(0.25 * US, rel=0.02)
    assert model.parameters["B"].value == pytest.approx(24 * GB, rel=0.02)


def test_loaded_latencies_of_mlc_become_a_curve_over_bandwidth(tmp_path):
    rows = [
        (delay, 90 + 12 * u / (1 - u), 100_000 * u)
        for delay, u in zip((0, 8, 50, 100, 300, 700, 1500), (0.97, 0.95, 0.8, 0.6, 0.4, 0.2, 0.05), strict=True)
    ]
    text = "Intel(R) Memory Latency Checker - v3.11\n\nMeasuring Loaded Latencies for the system\n"
    text += (
        "Using Read-only traffic type\nInject\tLatency\tBandwidth\nDelay\t(ns)\tMB/sec\n==========================\n"
    )
    log = tmp_path / "mlc.txt"
    log.write_text(text + "".join(f" {delay:05d}\t{ns:.2f}\t {rate:.1f}\n" for delay, ns, rate in rows))
    (one,) = models(importers.read(log))
    assert one.kind == "loaded"
    assert one.model.parameters["L0"].value == pytest.approx(90 * NS, rel=0.02)
    assert one.model.parameters["Bmax"].value == pytest.approx(100 * GB, rel=0.02)
    (few,) = [one for one in fit.fit_run(importers.read(LOGS / "mlc-3.5-two-sockets-all-tables.txt")) if not one.model]
    assert "4 loads: a loaded model needs 5; measure more, as in -a delay=0,64" in few.reason


def test_a_tuning_log_is_enough_for_a_tuner_file(tmp_path):
    log = tmp_path / "tuned.log"
    log.write_text(tuned((LOGS / "h200x2_nccl_tests_all_reduce_nvlink.txt").read_text()))
    lines = [line for line in export.export(str(log), "nccl-tuner").splitlines() if not line.startswith("#")]
    middle = math.isqrt(MIB * 2 * MIB)
    assert lines == [
        f"allreduce,8,{middle},ring,ll,-1,1,2",
        f"allreduce,{middle + 1},{512 * MIB},ring,simple,-1,1,2",
    ]
