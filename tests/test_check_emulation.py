"""Emulated hardware is recognised, and its times are nobody's performance: no fit, no headline, no comparison."""

from __future__ import annotations

from pathlib import Path

import pytest
from iobench import check, fit, machine, report
from iobench.compare import compare
from iobench.record import Leg, Run
from iobench.units import KIB, MIB

from make_run import chase, lines, make_testbox, run_of

SIZES = [4 * KIB << step for step in range(16)]


def tcg_run() -> Run:
    run = run_of(chase(SIZES))
    run.header.machine["virtual"] = {"kind": "virtual", "emulator": "QEMU TCG"}
    return run


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("QEMU TCG CPU version 2.5+", "QEMU TCG"),
        ("QEMU Virtual CPU version 2.5+", None),  # KVM shows this name too
        ("AMD EPYC 9354 32-Core Processor", None),
    ],
)
def test_the_processor_tells_that_it_is_a_translator(tmp_path: Path, model: str, expected: str | None) -> None:
    file = tmp_path / "proc/cpuinfo"
    file.parent.mkdir()
    file.write_text(f"processor\t: 0\nmodel name\t: {model}\nflags\t\t: fpu hypervisor\n")
    assert machine.facts(tmp_path)["virtual"].get("emulator") == expected


def test_every_measured_record_of_an_emulator_is_emulated() -> None:
    verdicts = check.judge(tcg_run()).values()
    assert {verdict.status for verdict in verdicts} == {"emulated"}
    assert all("emulated: no performance" in verdict.sentence and not verdict.usable for verdict in verdicts)
    assert all(verdict.fraction is None for verdict in verdicts)


def test_wrong_data_outranks_emulation() -> None:
    run = run_of(lines("dram", {"nbytes": MIB}, 1e-3, verified=False, status="failed", reason="wrong data: 1 byte"))
    run.header.machine["virtual"] = {"emulator": "QEMU TCG"}
    assert {verdict.status for verdict in check.judge(run).values()} == {"wrong"}


def test_no_model_no_headline_no_comparison() -> None:
    run, real = tcg_run(), run_of(chase(SIZES))
    assert report.summary(real)
    assert any(fitted.model for fitted in fit.fit_run(real))
    assert not report.summary(run)
    assert not any(fitted.model for fitted in fit.fit_run(run))
    assert not compare(run, real).rows
    assert report.verdict_line(run) == f"{len(SIZES)} emulated"
    assert any(text.startswith("emulated: ") and "no headline" in text for text in report.warnings(run))


@pytest.mark.parametrize(
    ("vendor", "device", "expected"),
    [
        ("0x1b36", "0x0010", "emulated"),  # QEMU's NVMe disk, on KVM too
        ("0x8086", "0x0d93", "emulated"),  # QEMU's CXL memory
        ("0x1af4", "0x1001", "ok"),  # virtio: how clouds attach real disks
        ("0x144d", "0xa80a", "ok"),
    ],
)
def test_a_device_that_only_qemu_has(vendor: str, device: str, expected: str) -> None:
    graph = make_testbox()
    graph.add("pci:0000:41:00.0", "pci", vendor=vendor, device=device)
    graph.add("block:nvme0n1", "block")
    graph.link("block:nvme0n1", "pci:0000:41:00.0", "function")
    graph.link("pci:0000:41:00.0", "mem:0", "pcie")
    point = lines("weights", {"nbytes": MIB}, 1e-3, legs=[Leg("block:nvme0n1", "mem:0")])
    (verdict,) = check.judge(run_of(point, topology=graph)).values()
    assert verdict.status == expected
    if expected == "emulated":
        assert "pci:0000:41:00.0 is QEMU's" in verdict.sentence
