"""RDMA beside perftest (ib_write_lat, ib_send_lat, ib_read_lat, ib_write_bw): the same port, GID and sizes, in turns.

Both run two processes on this host's first active port. perftest's figure is its t_typical (the median) or its average
bandwidth; what it measures differs a little, and each row says how.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from iobench.crosscheck.peer import Row, find, heading, in_turns
from iobench.errors import UserError
from iobench.rdma import measure, pairing, ports
from iobench.rdma.pairing import Pair
from iobench.rdma.setup import Setup
from iobench.topology import discover
from iobench.topology.sysfs import Tree
from iobench.units import MIB, US, format_size

BAR = 1.5  # times perftest's typical latency: on emulated ports no finer bar means anything
ROUNDS, QUICK_ROUNDS = 9, 3
COUNT, QUICK_COUNT = 1000, 300
TOOLS = {"write": "ib_write_lat", "send": "ib_send_lat", "read": "ib_read_lat"}
SIZES, QUICK_SIZES = (8, 256, 4096, 65536), (8, 4096)
_STREAM, _DEPTH, _EVERY = (4096, 65536), 64, 16
_INSTALL = "apt-get install perftest"
_SECONDS = 60.0
_TRIES, _BETWEEN = 20, 0.3
_KNOWN = {
    "write": "perftest's clock runs from post to post: its own completion is inside",
    "send": "perftest's clock runs from post to post: its own completion is inside",
    "read": "the same clock: post to completion",
}

Say = Callable[[str], Any]


@dataclass(frozen=True)
class Peer:
    """perftest on one port: server and client, each on a CPU of its own."""

    device: str
    port: int
    gid: int

    def run(self, tool: str, *arguments: str) -> list[str]:
        """Return the words of the last row of figures; [] where it gave none."""
        program = find(tool) or tool
        number = _free_port()
        command = [program, "-d", self.device, "-i", str(self.port), "-F", "-p", str(number), *arguments]
        if self.gid >= 0:
            command += ["-x", str(self.gid)]
        # a server whose client misses it waits for ever
        with subprocess.Popen(_on_cpu(1, command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            try:
                for _ in range(_TRIES):
                    time.sleep(_BETWEEN)
                    text = _output(_on_cpu(0, [*command, "127.0.0.1"]))
                    if row := figures(text):
                        return row
                    if server.poll() is not None:
                        return []
            finally:
                if server.poll() is None:
                    server.kill()
        return []


def run(say: Say, quick: bool = False) -> bool:
    """Compare latencies over sizes and the bandwidth of writes; True if every latency meets the bar."""
    if missing := [tool for tool in (*TOOLS.values(), "ib_write_bw") if find(tool) is None]:
        say(f"{', '.join(missing)}: not installed, and without it there is nothing to compare with: {_INSTALL}")
        return False
    port = ports.choose(ports.read(Tree()))
    gid = port.gid()
    peer = Peer(port.device, port.number, gid.index if port.ethernet else -1)
    say(f"{port.name}, {gid}: two processes here; latency of writes and sends is half of a round trip on both sides")
    with pairing.local(pairing.cpus_near(discover(), port.device)) as pair:
        rows = _latencies(pair, peer, say, quick)
        say(heading("perftest"))
        for nbytes in _STREAM[:1] if quick else _STREAM:
            say(_bandwidth(pair, peer, nbytes).text())
    return _judge(rows, say)


def _bandwidth(pair: Pair, peer: Peer, nbytes: int) -> Row:
    row = Row(f"write {format_size(nbytes)} bandwidth, {_DEPTH} deep", known="perftest includes the ramp")
    in_turns(row, lambda: _stream(pair, nbytes), lambda: _perftest_bandwidth(peer, nbytes), QUICK_ROUNDS)
    return row


def _latencies(pair: Pair, peer: Peer, say: Say, quick: bool) -> list[Row]:
    say(heading("perftest"))
    rows = []
    count, rounds = (QUICK_COUNT, QUICK_ROUNDS) if quick else (COUNT, ROUNDS)
    for verb, tool in TOOLS.items():
        for nbytes in QUICK_SIZES if quick else SIZES:
            row = Row(f"{verb} {format_size(nbytes)}", latency=True, known=_KNOWN[verb])
            in_turns(
                row,
                lambda v=verb, n=nbytes: _latency(pair, Setup(v, n), count),  # type: ignore[misc]
                lambda t=tool, n=nbytes: _perftest_latency(peer, t, n, count),  # type: ignore[misc]
                rounds,
            )
            say(row.text())
            rows.append(row)
    return rows


def _judge(rows: list[Row], say: Say) -> bool:
    """Say whether each latency is within the bar and whether both sides order the sizes alike."""
    missed = [row.name for row in rows if not row.ours or 1 / row.ratio.median > BAR]
    orders = []
    for verb in TOOLS:
        mine = [row for row in rows if row.name.startswith(f"{verb} ") and row.ours]
        orders.append(_order([median(row.ours) for row in mine]) == _order([median(row.peers) for row in mine]))
    rest = f": not {', '.join(missed)}" if missed else ""
    say(f"{'FAIL' if missed else 'PASS'}: typical latency at most {BAR} times perftest's{rest}")
    say(f"{'PASS' if all(orders) else 'FAIL'}: larger messages take longer on both sides in the same order")
    return not missed and all(orders)


def _order(values: list[float]) -> list[int]:
    return sorted(range(len(values)), key=values.__getitem__)


def _latency(pair: Pair, setup: Setup, count: int) -> float:
    pairing.join(pair, setup, setup)
    pair.call("exchange", measure.seconds_for(setup.nbytes, 8), count=8, verify=True)
    durations = pair.call("exchange", measure.seconds_for(setup.nbytes, count), count=count, verify=False)[0]
    return float(median(durations)) * 1e-9 / (1 if setup.verb == "read" else 2)


def _stream(pair: Pair, nbytes: int) -> float:
    setup = Setup("write", nbytes, depth=_DEPTH, every=_EVERY)
    pairing.join(pair, setup, setup)
    count = 8 * _DEPTH
    deadline = measure.seconds_for(nbytes, count + 2 * _DEPTH)
    marks = [_DEPTH, _DEPTH + count]
    answers = pair.call("stream", deadline, total=count + 2 * _DEPTH, marks=marks, both=False)
    first, last = answers[0]["stamps"]
    return float(count * nbytes / ((last - first) * 1e-9))


def _perftest_latency(peer: Peer, tool: str, nbytes: int, count: int) -> float | None:
    row = peer.run(tool, "-s", str(nbytes), "-n", str(count))
    return float(row[4]) * US if len(row) > 4 else None


def _perftest_bandwidth(peer: Peer, nbytes: int) -> float | None:
    row = peer.run("ib_write_bw", "-s", str(nbytes), "-n", str(8 * _DEPTH), "-t", str(_DEPTH), "-Q", str(_EVERY))
    return float(row[3]) * MIB if len(row) > 3 else None  # "MB/sec" of perftest are MiB/s


def figures(text: str) -> list[str]:
    """Return the words of the row below perftest's heading; [] where there is none."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line.lstrip().startswith("#bytes"):
            words = next((later.split() for later in lines[number + 1 :] if later.strip()[:1].isdigit()), [])
            return words if all(_is_number(word) for word in words) else []
    return []


def _is_number(word: str) -> bool:
    return word.replace(".", "", 1).isdigit()


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{command[0]} did not come to an end ({error}): try it by hand") from error
    return done.stdout


def _on_cpu(which: int, command: list[str]) -> list[str]:
    cpus = sorted(os.sched_getaffinity(0))
    taskset = shutil.which("taskset")
    return [taskset, "-c", str(cpus[which]), *command] if taskset and len(cpus) > 1 else command


def _free_port() -> int:
    with socket.socket() as keeper:
        keeper.bind(("127.0.0.1", 0))
        return int(keeper.getsockname()[1])
