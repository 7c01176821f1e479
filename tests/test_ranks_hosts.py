"""Two hosts on one machine: network namespaces with a virtual cable between them, and the command line on both."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from iobench import record

from processes import PATIENCE_SECONDS

LEAD, OTHER = "192.0.2.1", "192.0.2.2"  # RFC 5737: addresses for documentation, nobody's
RATE = 25e6  # bytes per second, of the slowed cable
PORT = "29613"


def ip(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *words], check=check, capture_output=True, text=True)


@pytest.fixture
def cable() -> Iterator[tuple[str, str]]:
    """Two namespaces joined by a cable; yields their names."""
    if os.geteuid() != 0 or not shutil.which("ip") or importlib.util.find_spec("torch") is None:
        pytest.skip("needs root, ip (iproute2) and torch")
    tail = uuid4().hex[:6]
    names = f"iob-a-{tail}", f"iob-b-{tail}"
    try:
        for name in names:
            if ip("netns", "add", name, check=False).returncode:
                pytest.skip("this system lets nobody make a network namespace")
        if ip("link", "add", f"va{tail}", "netns", names[0], "type", "veth", "peer", f"vb{tail}", "netns", names[1],
              check=False).returncode:  # fmt: skip
            pytest.skip("this kernel has no virtual cable (veth)")
        for name, end, address in zip(names, "ab", (LEAD, OTHER), strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", f"v{end}{tail}")
            ip("-n", name, "link", "set", f"v{end}{tail}", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            ip("netns", "del", name, check=False)


def slowed(names: tuple[str, str]) -> bool:
    """Slow the cable down by tc's token bucket; tell whether the kernel has it."""
    if not shutil.which("tc"):
        return False
    shape = ["root", "tbf", "rate", f"{int(RATE * 8)}bit", "burst", "64kb", "latency", "50ms"]
    for name, end in zip(names, "ab", strict=True):
        device = f"v{end}{name.rpartition('-')[2]}"
        words = ["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", device, *shape]
        if subprocess.run(words, capture_output=True, check=False).returncode:
            return False
    return True


def start(name: str, node: int, *words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "RANK": str(node), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    environment |= {"GROUP_RANK": str(node), "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": LEAD, "IOBENCH_PORT": PORT}
    command = ["ip", "netns", "exec", name, sys.executable, "-m", "iobench", "run", "allreduce", *words]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL,
        cwd=Path(__file__).parents[1],
    )  # fmt: skip


@contextlib.contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """End the process with the block, whatever became of it."""
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_two_hosts_measure_together(cable: tuple[str, str], tmp_path: Path) -> None:
    slow = slowed(cable)
    more = ["--quick", "--no-report", "--deadline", str(PATIENCE_SECONDS), "--out", str(tmp_path / "run")]
    words = ["-a", "nbytes=8,1M", "-a", "ranks=2", *more]
    with ended(start(cable[1], 1)) as other, ended(start(cable[0], 0, *words)) as lead:
        said, _ = lead.communicate(timeout=3 * PATIENCE_SECONDS)
        agent, _ = other.communicate(timeout=PATIENCE_SECONDS)
    assert (lead.returncode, other.returncode) == (0, 0), said + agent
    run = record.read(tmp_path / "run")
    assert [entry.point["nbytes"] for entry in run] == [8, 1 << 20]
    for entry in run:
        assert entry.used, entry.reason
        assert entry.point["nodes"] == 2
        assert entry.first.path == "gloo over TCP between 2 nodes"
        assert entry.first.proven
        assert entry.first.evidence["loopback_connections"] == 0
    if slow:
        assert run.records[1].bytes_per_s < 1.3 * RATE
