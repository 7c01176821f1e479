"""In the guest: every operation ten thousand times with every byte compared, and what goes wrong, said as it is.

Prints one JSON object; run by test_rdma.py on the other side.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from iobench.errors import IobenchError
from iobench.rdma import pairing, side
from iobench.rdma.pairing import Pair
from iobench.rdma.setup import Setup

COUNT = 10_000
OPERATIONS = (
    ("write", "RC", 64), ("send", "RC", 64), ("write_imm", "RC", 64), ("read", "RC", 64), ("send", "UD", 64),
    ("atomic_fadd", "RC", 8), ("atomic_cas", "RC", 8), ("write", "UC", 64),
)  # fmt: skip
EVENTS = (("send", "RC", 64), ("read", "RC", 64), ("write_imm", "RC", 4096))
LARGE = (("write", "RC", 1 << 20), ("send", "RC", 1 << 20), ("read", "RC", 1 << 20))
STREAMS = (("write", "RC", 4096), ("send", "RC", 4096), ("read", "RC", 4096), ("send", "UD", 512))


def main() -> None:
    said: dict[str, Any] = {}
    pairing.TARGET = f"{__file__}:Greedy"
    pairing.START_SECONDS = 1200.0  # an emulator that gets a tenth of a CPU
    with pairing.local([[0], [1]]) as pair:
        for verb, transport, nbytes in STREAMS:
            for both in (False, True):
                name = f"stream {transport} {verb} {'both' if both else 'one'}"
                said[name] = stream(pair, Setup(verb, nbytes, transport, qps=2, depth=16, every=4), both)
        said["load"] = load(pair)
        for fault in (wrong_key, wrong_address, no_receive, full_queue):
            said[fault.__name__] = failing(lambda fault=fault: fault(pair))  # type: ignore[misc]
        for name, setup, count in _exchanges():
            said[name] = exchange(pair, setup, count)
        said["killed"] = failing(lambda: killed(pair))
    sys.stdout.write(json.dumps(said) + "\n")


def _exchanges() -> Iterator[tuple[str, Setup, int]]:
    for verb, transport, nbytes in OPERATIONS:
        yield f"{transport} {verb}", Setup(verb, nbytes, transport), COUNT
    for verb, transport, nbytes in EVENTS:
        yield f"{transport} {verb} events", Setup(verb, nbytes, transport, events=True), 200
    for verb, transport, nbytes in LARGE:
        yield f"{transport} {verb} {nbytes}", Setup(verb, nbytes, transport), 4
    yield "RC send pyverbs", Setup("send", 64, loop="pyverbs"), 200


def tell(text: str) -> None:
    """Say what happens now, for who waits."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def exchange(pair: Pair, setup: Setup, count: int) -> dict[str, Any]:
    start = time.monotonic()
    facts = pairing.join(pair, setup, setup)
    tell(f"{setup.transport} {setup.verb} {setup.nbytes} x {count}")
    durations, _ = pair.call("exchange", 900.0, count=count, verify=True)
    return {"count": len(durations), "seconds": round(time.monotonic() - start, 2), "facts": facts[0]}


def stream(pair: Pair, setup: Setup, both: bool) -> dict[str, Any]:
    pairing.join(pair, setup, setup)
    pair.call("fill", turn=1)
    answers = pair.call("stream", 300.0, total=320, marks=[64, 128], both=both)
    compared = pair.call("check", turn=1, both=both)
    tell(f"stream {setup.transport} {setup.verb}: {answers[0]['received']}, {answers[1]['received']}")
    return {"received": [answer["received"] for answer in answers], "compared": sum(compared)}


def load(pair: Pair) -> dict[str, Any]:
    setup = Setup("send", 64, flows=2, flow_nbytes=4096)
    pairing.join(pair, setup, setup)
    pair.call("load", on=True)
    durations, _ = pair.call("exchange", 300.0, count=100, verify=True)
    return {"count": len(durations), "moved": pair.call("load", on=False)}


def failing(act: Callable[[], object]) -> dict[str, Any]:
    start = time.monotonic()
    try:
        act()
    except IobenchError as error:
        tell(str(error))
        return {"error": type(error).__name__, "text": str(error), "seconds": round(time.monotonic() - start, 2)}
    return {"error": "", "text": "nothing went wrong"}


def _altered(pair: Pair, setup: Setup, **change: int) -> None:
    infos = pair.call("prepare", setups=[setup.to_dict()] * 2)
    infos[1] |= {name: infos[1][name] + by for name, by in change.items()}
    pair.call("connect", peers=infos)


def wrong_key(pair: Pair) -> None:
    _altered(pair, Setup("read", 64), rkey=0x1100)
    pair.call("exchange", 60.0, count=1, verify=False)


def wrong_address(pair: Pair) -> None:
    _altered(pair, Setup("read", 64), address=1 << 30)
    pair.call("exchange", 60.0, count=1, verify=False)


def no_receive(pair: Pair) -> None:
    """More sends than receives are posted, and no patience."""
    setup = Setup("send", 64, depth=1024, every=64, rnr_retry=0)
    pairing.join(pair, setup, setup)
    pair.call("post", 60.0, count=40, batch=64)


class Greedy(side.Side):
    """A side that can be made to post more receives than its queue holds."""

    def overfill(self) -> None:
        for _ in range(8):
            self.loops.arm()


def full_queue(pair: Pair) -> None:
    """Receives that nobody uses up: soft-RoCE is done with a send before the next one is posted."""
    setup = Setup("send", 64)
    pairing.join(pair, setup, setup)
    pair.call("overfill", 60.0)


def killed(pair: Pair) -> None:
    setup = Setup("write", 64)
    pairing.join(pair, setup, setup)
    assert isinstance(pair, pairing.Local)
    victim = pair.group.pids[1]
    threading.Timer(1.0, lambda: os.kill(victim, signal.SIGKILL)).start()
    pair.call("exchange", 120.0, count=1 << 20, verify=False)


if __name__ == "__main__":
    main()
