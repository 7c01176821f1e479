"""The sign of a full-duplex link: seen where mixes exceed reads and local memory does not, never out of noise."""

from __future__ import annotations

import pytest
from iobench.cxl import signature
from iobench.record import Run
from iobench.report.models import view_of
from iobench.topology.graph import Topology
from iobench.units import GB, MIB

from make_run import lines, run_of

NBYTES = 64 * MIB


def mixes_run(rates: dict[str, dict[str, float]], noise: float = 0.001, emulator: str = "") -> Run:
    """Return a run of {form: {kernel: GB/s}}; each form is a node of its own."""
    out = []
    for node, (form, kernels) in enumerate(rates.items()):
        for kernel, rate in kernels.items():
            point = {"form": form, "node": node, "kernel": kernel, "to": "cpu", "threads": 4, "nbytes": NBYTES}
            out += lines("cxl", point, NBYTES / (rate * GB), noise=noise, moved=NBYTES, quantity="bandwidth")
    run = run_of(out, topology=Topology("bare"), models={"cxl": []})
    run.header.machine["virtual"] = {"emulator": emulator}
    return run


LOCAL = {"read": 100.0, "triad": 95.0, "copy": 90.0}


@pytest.mark.parametrize(
    ("rates", "said"),
    [
        # a public dump of MLC: all reads 31.0 GB/s, 3:1 43.7, 1:1 46.0; every DRAM dump falls
        ({"local": LOCAL, "node": {"read": 31.0, "triad": 43.7, "copy": 46.0}}, "the sign of a full-duplex link"),
        ({"node": {"read": 31.0, "copy": 46.0}}, "the sign of a full-duplex link"),
        ({"local": LOCAL, "stand-in": {"read": 60.0, "triad": 57.0, "copy": 54.0}}, "no sign of a full-duplex link"),
        # a core that stores faster than it reads does so in local memory too
        ({"local": {"read": 20.0, "copy": 26.0}, "node": {"read": 12.0, "copy": 15.0}}, "tells nothing"),
    ],
)
def test_what_mixes_say(rates: dict[str, dict[str, float]], said: str) -> None:
    ((name, text),) = signature.sentences(mixes_run(rates))
    assert name == f"cxl {list(rates)[-1]}, node {len(rates) - 1}"
    assert said in text
    assert ("in local memory" in text) is ("local" in rates)


def test_the_best_mix_is_named_with_its_ratio() -> None:
    ((_, text),) = signature.sentences(mixes_run({"local": LOCAL, "node": {"read": 31.0, "triad": 43.7, "copy": 46.0}}))
    assert text.startswith("copy (1 to 1) moves 1.48 times (")
    assert "0.95 times in local memory" in text


def test_noise_is_no_sign() -> None:
    ((_, text),) = signature.sentences(mixes_run({"node": {"read": 30.0, "copy": 30.3}}, noise=0.2))
    assert "tells nothing" in text


def test_reads_or_mixes_alone_say_nothing_and_an_emulator_never() -> None:
    assert not list(signature.sentences(mixes_run({"local": LOCAL, "node": {"read": 31.0}})))
    assert not list(signature.sentences(mixes_run({"node": {"copy": 31.0, "chase": 1.0}})))
    both = {"node": {"read": 31.0, "copy": 46.0}}
    assert not list(signature.sentences(mixes_run(both, emulator="QEMU TCG")))
    assert "full-duplex" in dict(view_of(mixes_run(both)).findings)["cxl node, node 0"]
