"""RDMA over soft-RoCE: every operation, what goes wrong, the probe itself, and perftest beside it in the same guest."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from iobench import check, fit
from iobench.cli import app
from iobench.record import Run, read
from typer.testing import CliRunner

from lab import cli, setup
from lab.rdma_operations import COUNT, EVENTS, LARGE, OPERATIONS, STREAMS
from lab.vm import Guest

_PATIENCE = 1800.0  # seconds: a minute or two where nobody else wants the CPUs
_SMALL = "-a verb=send -a transport_type=RC -a test=latency -a completion=poll -a nbytes=64"


@pytest.fixture(scope="module")
def said(guest: Guest) -> dict[str, Any]:
    """What the two processes in the guest said of each operation."""
    words = [f"{name}={shlex.quote(value)}" for name, value in cli.environment().items()]
    done = guest.run(" ".join(["env", *words, sys.executable, "-m", "lab.rdma_operations"]), timeout=_PATIENCE)
    if "needs pyverbs" in done.err:
        pytest.skip(f"Debian's python3-pyverbs is for another Python than {sys.version.split()[0]}")
    assert done.code == 0, done.text
    return dict(json.loads(done.out.splitlines()[-1]))


@pytest.fixture(scope="module")
def ran(guest: Guest, said: dict[str, Any]) -> Guest:
    """The probe as a user runs it, small; two traffic classes, alone and beside bulk flows; two packet sizes."""
    narrowed = "-a nbytes=8 -a depth=1,16 -a every=1,4 -a qps=1 -a load=0 -a completion=poll -a direction=one"
    cli.call(
        guest,
        cli.run_line("rdma", f"rdma {narrowed}"),
        cli.run_line("jitter", f"rdma {_SMALL} -a load=0,1 -a traffic_class=0,96"),
        cli.run_line("packets", f"rdma {_SMALL} -a load=0 -a mtu=256,1024"),
        timeout=_PATIENCE,
    )
    return guest


@pytest.fixture(scope="module")
def probed(ran: Guest) -> Run:
    return cli.measured(ran, "rdma")


@pytest.fixture(scope="module")
def settings(ran: Guest) -> Path:
    return ran.shared


def test_ten_thousand_of_each_without_a_wrong_byte(said: dict[str, Any]) -> None:
    for verb, transport, _ in OPERATIONS:
        assert said[f"{transport} {verb}"]["count"] == COUNT
        facts = said[f"{transport} {verb}"]["facts"]
        assert facts["loop"] == "native"
        assert facts["port"] == f"{setup.RDMA_DEVICE}/1"
        assert "RoCE v2, routable" in facts["gid"]


def test_events_large_messages_and_loops_in_python(said: dict[str, Any]) -> None:
    assert all(said[f"{transport} {verb} events"]["count"] == 200 for verb, transport, _ in EVENTS)
    assert all(said[f"{transport} {verb} {nbytes}"]["count"] == 4 for verb, transport, nbytes in LARGE)
    python, compiled = said["RC send pyverbs"]["facts"], said["RC send"]["facts"]
    assert python["loop"] == "pyverbs"
    assert min(python["seconds_per_empty_poll"], compiled["seconds_per_empty_poll"]) > 0


def test_streams_arrive_whole(said: dict[str, Any]) -> None:
    for verb, transport, nbytes in STREAMS:
        for both in (False, True):
            told = said[f"stream {transport} {verb} {'both' if both else 'one'}"]
            assert told["compared"] == 2 * nbytes * (2 if both else 1)
            if transport == "RC" and verb == "send":
                assert [count for count in told["received"] if count is not None] == [320] * (2 if both else 1)


def test_small_messages_while_bulk_flows_run(said: dict[str, Any]) -> None:
    assert said["load"]["count"] == 100
    assert all(side["messages"] > 0 for side in said["load"]["moved"])


def test_what_goes_wrong_is_said_as_it_is(said: dict[str, Any]) -> None:
    for name, text in {
        "wrong_key": "remote access error",
        "wrong_address": "remote access error",
        "no_receive": "no receive posted",
        "full_queue": "the queue is full",
        "killed": "rank 1 killed by signal 9",
    }.items():
        assert text in said[name]["text"], said[name]
        # a call that runs into its deadline instead says so, in other words
        assert said[name]["error"] == ("RankFailed" if name == "killed" else "RdmaError")


def test_the_probe(probed: Run) -> None:
    failed = [f"{record.point} {record.reason}" for record in probed if record.status == "failed"]
    assert not failed
    measured = [record for record in probed if record.used]
    assert {record.point["verb"] for record in measured} >= {"write", "read", "send", "write_imm", "atomic_fadd"}
    assert all(line.verified for record in measured for line in record.used)
    verdicts = check.judge(probed)
    assert {verdicts[record.key].status for record in measured} == {"emulated"}
    assert not any(fitted.model for fitted in fit.fit_run(probed))
    for record in measured:
        assert record.first.evidence["sent_by_port"][0]["sent_pkts"] > 0


def test_settings_are_compared_by_one_command(settings: Path, tmp_path: Path) -> None:
    """What an emulator measured is compared with nothing; as another machine's, each value has its row and tails."""
    told = compared(settings / "jitter", "--by", "load")
    assert "not compared: 2 emulated" in told
    jitter, packets = (as_measured(settings / name, tmp_path / name) for name in ("jitter", "packets"))
    told = compared(jitter, "--by", "load")
    for traffic_class in (0, 96):
        for side in ("A: load 0", "B: load 1"):
            assert re.search(
                rf"^\| rdma: traffic_class {traffic_class} \| 64 B \| {side} \| .* \| 1000 \|$", told, re.M
            ), told
    told = compared(jitter, "--by", "traffic_class", "-a", "load=1")
    assert re.search(r"^\| rdma \| 64 B \| B: traffic_class 96 \| .* \|$", told, re.M), told
    told = compared(packets, "--by", "mtu")
    assert re.search(r"^\| rdma \| 64 B \| A: mtu 256 \| .* \|$", told, re.M), told
    told = compared(jitter, packets)
    assert "A: mtu 0; B: mtu 1024" in told or "A: mtu 0; B: mtu 256" in told, told


def test_a_setting_is_on_the_path_that_was_taken(settings: Path) -> None:
    for name, axis in (("jitter", "traffic_class"), ("packets", "mtu")):
        for found in read(settings / name):
            for fact in found.first.evidence["sides"]:
                assert fact["path"]["traffic_class"] == found.point["traffic_class"]
                assert fact["mtu_nbytes"] == (found.point["mtu"] or 1024)
            assert found.point["load"] == 0 or all(count > 0 for count in found.first.evidence["load_messages"])
            assert min(found.first.evidence["congestion_counters"]) > 0
            assert {"interface_mtu", "gro", "tso"} <= set(found.first.evidence["interface"][0])
            assert axis in found.point


def compared(*words: object) -> str:
    done = CliRunner().invoke(app, ["compare", *map(str, words)])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


def as_measured(run: Path, to: Path) -> Path:
    """Copy a run as if no emulator had been its processor: how its numbers are set side by side can be seen then."""
    header, *rest = (run / "records.jsonl").read_text(encoding="utf-8").splitlines()
    facts = json.loads(header)
    facts["machine"]["virtual"].pop("emulator")
    to.mkdir()
    (to / "records.jsonl").write_text("\n".join([json.dumps(facts), *rest]) + "\n", encoding="utf-8")
    return to


def test_latency_beside_perftest(guest: Guest, said: dict[str, Any]) -> None:
    """Both tools give figures and a verdict on each bar follows; which one it is, a quiet machine tells."""
    done = guest.run(cli.script("crosscheck rdma --quick"), timeout=_PATIENCE)
    for verb in ("write", "send", "read"):
        for size in ("8 B", "4 KiB"):
            figures = rf"^{verb} {size} +[\d.]+ [num]?s +[\d.]+ [num]?s +[\d.]+ \("
            assert re.search(figures, done.out, re.MULTILINE), done.text
    figures = r"^write 4 KiB bandwidth, 64 deep +\S+ [kMG]?B/s +\S+ [kMG]?B/s"
    assert re.search(figures, done.out, re.MULTILINE), done.text
    assert re.search(r"^(PASS|FAIL): typical latency at most 1.5 times perftest's", done.out, re.MULTILINE), done.text
    assert re.search(r"^(PASS|FAIL): larger messages take longer on both sides", done.out, re.MULTILINE), done.text
