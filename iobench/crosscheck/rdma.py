"""RDMA beside perftest (ib_write_lat, ib_send_lat, ib_read_lat, ib_write_bw): the same port, GID and sizes, in turns.

Both run two processes on this host's first active port, on the same two CPUs. A latency is the median of the samples of
all rounds together (perftest's with --report-unsorted): each round makes new queue pairs and memory on both sides, and
how fast those are is luck, most of all under an emulator, where one round's median can be twice another's. A bandwidth
is perftest's average. What it measures differs a little, and each row says how.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from statistics import median
from typing import TYPE_CHECKING, Any

from iobench.crosscheck.peer import Row, find, heading, in_turns
from iobench.errors import UserError
from iobench.rdma import measure, pairing, ports
from iobench.rdma.pairing import Pair
from iobench.rdma.setup import Setup
from iobench.topology import discover
from iobench.topology.sysfs import Tree
from iobench.units import MIB, US, format_size

if TYPE_CHECKING:
    from iobench.stats import Interval

BAR = 1.5  # times perftest's typical latency: on emulated ports no finer bar means anything
ROUNDS, QUICK_ROUNDS = 8, 3
COUNT, QUICK_COUNT = 1000, 300
TOOLS = {"write": "ib_write_lat", "send": "ib_send_lat", "read": "ib_read_lat"}
SIZES, QUICK_SIZES = (8, 256, 4096, 65536), (8, 4096)
_STREAM, _DEPTH, _EVERY = (4096, 65536), 64, 16
_INSTALL = "apt-get install perftest"
_SECONDS = 60.0
_TRIES, _BETWEEN = 20, 0.3
_STARTS = 3  # of a server and its client: they miss each other now and then
_DRAWS = 200
_TIE = 1.1  # sizes nearer than this are equally fast: 8 and 256 bytes are one packet each
_SAMPLE = re.compile(r"^\d+, (\d+(?:\.\d+)?)$", re.MULTILINE)
_KNOWN = {
    "write": "perftest's clock runs from post to post: its own completion is inside",
    "send": "perftest's clock runs from post to post: its own completion is inside",
    "read": "the same clock: post to completion",
}

Say = Callable[[str], Any]


@dataclass(frozen=True)
class Peer:
    """perftest on one port: client and server, each on a CPU of its own, those of this side's two processes."""

    device: str
    port: int
    gid: int
    cpus: tuple[int, ...]  # none where there are fewer than two

    def run(self, tool: str, *arguments: str) -> str:
        """Return what the client printed, once that has a row of figures; "" where it never had."""
        program = find(tool) or tool
        command = [program, "-d", self.device, "-i", str(self.port), "-F", *arguments]
        if self.gid >= 0:
            command += ["-x", str(self.gid)]
        return next((text for _ in range(_STARTS) if (text := self._once(command))), "")

    def _once(self, command: list[str]) -> str:
        command = [*command, "-p", str(_free_port())]
        # a server whose client misses it waits for ever
        with subprocess.Popen(self._on_cpu(1, command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            try:
                for _ in range(_TRIES):
                    time.sleep(_BETWEEN)
                    text = _output(self._on_cpu(0, [*command, "127.0.0.1"]))
                    if figures(text):
                        return text
                    if server.poll() is not None:
                        return ""
            finally:
                if server.poll() is None:
                    server.kill()
        return ""

    def _on_cpu(self, which: int, command: list[str]) -> list[str]:
        taskset = shutil.which("taskset")
        return [taskset, "-c", str(self.cpus[which]), *command] if taskset and self.cpus else command


@dataclass
class Pooled(Row):
    """A row of latencies: the rounds' samples in seconds, of this side and of the peer."""

    mine: list[list[float]] = field(default_factory=list, kw_only=True)
    theirs: list[list[float]] = field(default_factory=list, kw_only=True)

    @property
    def middle(self) -> tuple[float, float]:
        """The medians of all samples together."""
        return _pooled(self.mine), _pooled(self.theirs)

    @cached_property
    def ratio(self) -> Interval:  # type: ignore[override]
        """The peer's pooled median over this side's, with the interval of a bootstrap that draws whole rounds."""
        import numpy as np

        from iobench.stats import Interval

        rng = np.random.default_rng(0)
        drawn = []
        for picks in rng.integers(0, len(self.mine), (_DRAWS, len(self.mine))):
            drawn.append(_pooled([self.theirs[n] for n in picks]) / _pooled([self.mine[n] for n in picks]))
        low, high = np.quantile(drawn, (0.025, 0.975))
        mine, theirs = self.middle
        return Interval(theirs / mine, float(low), float(high), sum(map(len, self.mine)), len(self.mine))

    @property
    def spread(self) -> str:
        """Return the interval, and how far one round's ratio was from another's."""
        rounds = self._ratios()
        apart = f"single rounds {min(rounds):.2f} .. {max(rounds):.2f}"
        return f"({self.ratio.low:.3f} .. {self.ratio.high:.3f}; {apart})"


def _pooled(rounds: list[list[float]]) -> float:
    import numpy as np

    return float(np.median(np.concatenate([np.asarray(each) for each in rounds])))


def run(say: Say, quick: bool = False) -> bool:
    """Compare latencies over sizes and the bandwidth of writes; True if every latency meets the bar."""
    if missing := [tool for tool in (*TOOLS.values(), "ib_write_bw") if find(tool) is None]:
        say(f"{', '.join(missing)}: not installed, and without it there is nothing to compare with: {_INSTALL}")
        return False
    port = ports.choose(ports.read(Tree()))
    gid = port.gid()
    pins = pairing.cpus_near(discover(), port.device)
    cpus = tuple(cpus[0] for cpus in pins or ())  # where each side's timed loop runs
    peer = Peer(port.device, port.number, gid.index if port.ethernet else -1, cpus)
    say(f"{port.name}, {gid}: two processes here; latency of writes and sends is half of a round trip on both sides")
    with pairing.local(pins) as pair:
        rows = _latencies(pair, peer, say, quick)
        say(heading("perftest"))
        for nbytes in _STREAM[:1] if quick else _STREAM:
            say(_bandwidth(pair, peer, nbytes).text())
    return _judge(rows, say)


def _bandwidth(pair: Pair, peer: Peer, nbytes: int) -> Row:
    row = Row(f"write {format_size(nbytes)} bandwidth, {_DEPTH} deep", known="perftest includes the ramp")
    in_turns(row, lambda: _stream(pair, nbytes), lambda: _perftest_bandwidth(peer, nbytes), QUICK_ROUNDS)
    return row


def _latencies(pair: Pair, peer: Peer, say: Say, quick: bool) -> list[Pooled]:
    say(heading("perftest"))
    rows = []
    count, rounds = (QUICK_COUNT, QUICK_ROUNDS) if quick else (COUNT, ROUNDS)
    for verb, tool in TOOLS.items():
        for nbytes in QUICK_SIZES if quick else SIZES:
            row = Pooled(f"{verb} {format_size(nbytes)}", latency=True, known=_KNOWN[verb])
            in_turns(
                row,
                lambda to=row.mine, v=verb, n=nbytes: _kept(to, _latency(pair, Setup(v, n), count)),  # type: ignore[misc]
                lambda to=row.theirs, t=tool, n=nbytes: _kept(to, _perftest_latency(peer, t, n, count)),  # type: ignore[misc]
                rounds,
            )
            say(row.text())
            rows.append(row)
    return rows


def _kept(where: list[list[float]], samples: list[float]) -> float:
    """Keep a round's samples; return their median, 0 of none."""
    where.append(samples)
    return median(samples) if samples else 0.0


def _judge(rows: list[Pooled], say: Say) -> bool:
    """Say whether each latency is within the bar and whether both sides order the sizes alike."""
    missed = [row.name for row in rows if row.reason or 1 / row.ratio.median > BAR]
    orders = []
    for verb in TOOLS:
        both = [row.middle for row in rows if row.name.startswith(f"{verb} ") and not row.reason]
        orders.append(_same_order(both))
    rest = f": not {', '.join(missed)}" if missed else ""
    say(f"{'FAIL' if missed else 'PASS'}: typical latency at most {BAR} times perftest's{rest}")
    say(f"{'PASS' if all(orders) else 'FAIL'}: larger messages take longer on both sides in the same order")
    return not missed and all(orders)


def _same_order(both: list[tuple[float, float]]) -> bool:
    """Tell whether no two sizes are clearly the one way round here and the other way there."""
    for (mine, theirs), (more_mine, more_theirs) in combinations(both, 2):
        here, there = more_mine / mine, more_theirs / theirs
        if min(here, there) < 1 / _TIE and max(here, there) > _TIE:
            return False
    return True


def _latency(pair: Pair, setup: Setup, count: int) -> list[float]:
    pairing.join(pair, setup, setup)
    pair.call("exchange", measure.seconds_for(setup.nbytes, 8), count=8, verify=True)
    durations = pair.call("exchange", measure.seconds_for(setup.nbytes, count), count=count, verify=False)[0]
    return [nanoseconds * 1e-9 / (1 if setup.verb == "read" else 2) for nanoseconds in durations]


def _stream(pair: Pair, nbytes: int) -> float:
    setup = Setup("write", nbytes, depth=_DEPTH, every=_EVERY)
    pairing.join(pair, setup, setup)
    count = 8 * _DEPTH
    deadline = measure.seconds_for(nbytes, count + 2 * _DEPTH)
    marks = [_DEPTH, _DEPTH + count]
    answers = pair.call("stream", deadline, total=count + 2 * _DEPTH, marks=marks, both=False)
    first, last = answers[0]["stamps"]
    return float(count * nbytes / ((last - first) * 1e-9))


def _perftest_latency(peer: Peer, tool: str, nbytes: int, count: int) -> list[float]:
    return samples(peer.run(tool, "-s", str(nbytes), "-n", str(count), "-U"))


def _perftest_bandwidth(peer: Peer, nbytes: int) -> float | None:
    row = figures(
        peer.run("ib_write_bw", "-s", str(nbytes), "-n", str(8 * _DEPTH), "-t", str(_DEPTH), "-Q", str(_EVERY))
    )
    return float(row[3]) * MIB if len(row) > 3 else None  # "MB/sec" of perftest are MiB/s


def samples(text: str) -> list[float]:
    """Return the latencies of --report-unsorted in seconds, as they came."""
    return [float(found) * US for found in _SAMPLE.findall(text)]


def figures(text: str) -> list[str]:
    """Return the words of the row below perftest's last heading; [] where there is none."""
    lines = text.splitlines()
    for number in reversed(range(len(lines))):
        if lines[number].lstrip().startswith("#bytes"):
            words = next((later.split() for later in lines[number + 1 :] if later.strip()[:1].isdigit()), [])
            return words if all(_is_number(word) for word in words) else []
    return []


def _is_number(word: str) -> bool:
    return word.replace(".", "", 1).isdigit()


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return ""  # the two missed each other: they are started anew
    except OSError as error:
        raise UserError(f"{command[0]} could not be started ({error}): try it by hand") from error
    return done.stdout


def _free_port() -> int:
    with socket.socket() as keeper:
        keeper.bind(("127.0.0.1", 0))
        return int(keeper.getsockname()[1])
