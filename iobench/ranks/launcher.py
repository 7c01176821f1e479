"""The parent's side: start N ranks by torchrun's environment contract, command them, end them.

No call outlives its deadline. When a rank dies, raises or hangs, the whole group is ended and the error
names the rank and what it did last; the next call starts a fresh group.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iobench import errors
from iobench.errors import IobenchError
from iobench.patience import Patience
from iobench.ranks import proxy
from iobench.ranks.nodes import ALONE, Node, shares
from iobench.ranks.shared import SharedState
from iobench.ranks.spawn import Process, spawn

START_SECONDS = 300.0  # a start imports large libraries, in every rank at once
CALL_SECONDS = 30.0
_GRACE_SECONDS = 2.0  # after the first failure: let the others' answers arrive, so that the cause is named
_TICK_SECONDS = 0.5  # between two looks
_REAP_SECONDS = 30.0  # between a rank's last pipe and its end lie microseconds, and whoever has the CPU meanwhile
_END_SECONDS = 2.0
_MOST_FAILED_STARTS = 2


class RankFailed(IobenchError):
    """A rank died, raised or gave no answer in time; the notes hold tracebacks and captured output."""


@dataclass
class _Trouble:
    """What went wrong in one rank, in the order noticed."""

    rank: int
    kind: str  # "signal", "exit", "error" or "silent"
    sentence: str
    error: str = ""
    details: str = ""


class RankGroup:
    """N rank processes that run one target; started by the first call, alive until ``close``.

    ``pins`` gives the CPUs on which each rank and all its threads may run, None those of the parent.
    ``nodes`` share the ranks in equal parts, the lead first; ``lead`` is its address for the others.
    ``cpus`` are the CPUs each rank may run on, read back in the rank. ``generation`` counts starts: a
    change tells that the ranks are new and hold nothing of what earlier calls made.
    """

    def __init__(
        self,
        target: str,
        size: int,
        *,
        config: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        pins: Sequence[Sequence[int]] | None = None,
        nodes: Sequence[Node] = ALONE.nodes,
        lead: str = ALONE.lead,
        start_seconds: float = START_SECONDS,
        call_seconds: float = CALL_SECONDS,
    ) -> None:
        if size < 1 or (pins is not None and len(pins) != size):
            raise ValueError(f"{size} ranks, pins {pins}: one set of CPUs per rank, or None")
        shares(nodes, size)
        self.target, self.size = target, size
        self.nodes, self.lead = tuple(nodes), lead
        self._name = uuid.uuid4().hex
        self.config, self.environment = dict(config or {}), dict(environment or {})
        self.pins, self.start_seconds, self.call_seconds = pins, start_seconds, call_seconds
        self.cpus: list[list[int]] = []
        self.generation = 0
        self.port = 0
        self._processes: list[Process] = []
        self._shared: SharedState | None = None
        self._failed_starts: list[IobenchError] = []

    @property
    def pids(self) -> list[int]:
        """The ranks' process ids, empty when none run."""
        return [process.popen.pid for process in self._processes]

    def call(self, method: str, deadline: float | None = None, **arguments: Any) -> list[Any]:
        """Call ``method`` of the target's object in every rank at once; return the answers by rank.

        Arguments and answers are what JSON can hold. Raises RankFailed, or the WrongData, Unavailable or
        UserError that a rank raised, within ``deadline`` seconds (and two of grace; as long again where a rank
        does not even read). The group outlives only the latter, and only if every rank answered: then none is
        stuck in the operation.
        """
        if not self._processes:
            self._start()
        seconds = self.call_seconds if deadline is None else deadline
        self._send({"call": method, "arguments": arguments}, seconds)
        return self._gather(seconds)

    def durations(self, method: str, deadline: float | None = None, **arguments: Any) -> list[list[float]]:
        """Call ``method``, which answers a list of nanoseconds; return seconds as [rank][iteration]."""
        rows = self.call(method, deadline, **arguments)
        if len({len(row) for row in rows}) != 1:
            raise RankFailed(f"ranks answered unequal numbers of durations: {[len(row) for row in rows]}")
        return [[nanoseconds * 1e-9 for nanoseconds in row] for row in rows]

    def close(self) -> None:
        """End all ranks, orderly where they answer, by signal otherwise, and reap them."""
        if self._processes and any(process.popen.poll() is None for process in self._processes):
            with contextlib.suppress(OSError):
                self._send({"call": ""}, _END_SECONDS)
            self._wait(_END_SECONDS)
        self._kill()

    def _start(self) -> None:
        if len(self._failed_starts) >= _MOST_FAILED_STARTS:
            raise self._failed_starts[-1]
        self.generation += 1
        with contextlib.ExitStack() as undo:
            undo.callback(self._kill)
            try:
                self._launch()
            except IobenchError as error:
                self._failed_starts.append(error)
                raise
            undo.pop_all()
        self._failed_starts.clear()

    def _launch(self) -> None:
        with _shared_memory(self.size) as shared_fd, _reserved_port() as self.port:
            self._shared = SharedState(shared_fd, self.size)
            for rank in range(self.size):
                self._shared.write(rank, "the start of Python")
                self._processes.append(self._spawn(rank, shared_fd))
            self._begin()

    def _begin(self) -> None:
        for rank, process in enumerate(self._processes):
            start = {"target": self.target, "config": self.config}
            pin = list(self.pins[rank]) if self.pins is not None else None
            _write(process, {**start, "pin": pin}, self.start_seconds)
        self.cpus = self._gather(self.start_seconds)

    def _spawn(self, rank: int, shared_fd: int) -> Process:
        # The kernel's "parent died" is in truth "the thread that started me died": only the main one lasts.
        watched = os.getpid() if threading.current_thread() is threading.main_thread() else 0
        place, node, contract = self._contract(rank)
        environment = {**os.environ, **self.environment, **node.environment, **contract}
        if not node.local:
            environment |= {proxy.ADDRESS: node.address, proxy.PORT: str(node.port), proxy.TOKEN: node.token}
            environment[proxy.GROUP] = f"{self._name}-{self.generation}-{place}"
        try:
            return spawn(environment, shared_fd, watched, "child" if node.local else "proxy")
        except OSError as error:
            raise RankFailed(f"rank {rank} could not be started: {error.strerror}") from error

    def _contract(self, rank: int) -> tuple[int, Node, dict[str, str]]:
        """Return the number of a rank's node, the node, and torchrun's variables for the rank."""
        each = self.size // len(self.nodes)
        place, local = divmod(rank, each)
        values = {"RANK": rank, "LOCAL_RANK": local, "WORLD_SIZE": self.size, "LOCAL_WORLD_SIZE": each}
        values |= {"GROUP_RANK": place, "MASTER_PORT": self.port}
        lead = self.lead if len(self.nodes) > 1 else "127.0.0.1"
        return place, self.nodes[place], {"MASTER_ADDR": lead, **{name: str(value) for name, value in values.items()}}

    def _send(self, message: dict[str, Any], seconds: float) -> None:
        for process in self._processes:
            _write(process, message, seconds)

    def _gather(self, seconds: float) -> list[Any]:
        """Return every rank's next answer; end the group and raise when one fails or is late."""
        answers: dict[int, Any] = {}
        troubles: list[_Trouble] = []
        wait = Patience(seconds)
        with selectors.DefaultSelector() as selector:
            for rank, process in enumerate(self._processes):
                selector.register(process.answers, selectors.EVENT_READ, rank)
            while selector.get_map() and wait.left > 0:
                for key, _ in selector.select(min(wait.left, _TICK_SECONDS)):
                    if self._receive(key.data, answers, troubles):
                        selector.unregister(key.fileobj)
                        wait.left = min(wait.left, _GRACE_SECONDS) if troubles else wait.left
                wait.look()
        if len(answers) < self.size:
            raise self._failure(answers, troubles, seconds)
        return [answers[rank] for rank in range(self.size)]

    def _receive(self, rank: int, answers: dict[int, Any], troubles: list[_Trouble]) -> bool:
        """Read what one rank sent; tell whether it has answered or ended."""
        process = self._processes[rank]
        data = os.read(process.answers, 1 << 20)
        process.received += data
        if not data:
            troubles.append(self._death(rank))
        elif not data.endswith(b"\n"):
            return False
        else:
            message = json.loads(process.received)
            process.received.clear()
            if "value" in message:
                answers[rank] = message["value"]
            else:
                sentence = f"raised {message['error']} in {self._state(rank)}: {message['text']}"
                troubles.append(_Trouble(rank, "error", sentence, message["error"], message["traceback"]))
        return True

    def _death(self, rank: int) -> _Trouble:
        popen = self._processes[rank].popen
        with contextlib.suppress(subprocess.TimeoutExpired):
            popen.wait(_REAP_SECONDS)
        code, doing = popen.returncode, self._state(rank)
        if code is None:
            return _Trouble(rank, "silent", f"closed its pipe while in {doing}")
        if code < 0:
            return _Trouble(rank, "signal", f"killed by signal {-code} while in {doing}")
        return _Trouble(rank, "exit", f"ended with exit status {code} while in {doing}")

    def _failure(self, answers: dict[int, Any], troubles: list[_Trouble], seconds: float) -> IobenchError:
        """Return the error that names the cause, after ending a group that can't go on."""
        heard = answers.keys() | {trouble.rank for trouble in troubles}
        silent = [self._silence(rank, seconds) for rank in range(self.size) if rank not in heard]
        # A death makes the others' transports raise, so it explains their errors and their silence.
        order = {"signal": 0, "exit": 1, "error": 2, "silent": 3}
        causes = sorted([*troubles, *silent], key=lambda trouble: order[trouble.kind])
        first = causes[0]
        text = f"rank {first.rank} {first.sentence}"
        if first.kind == "silent":
            text = "; ".join(f"rank {trouble.rank} {trouble.sentence}" for trouble in causes)
        elif first.kind in ("signal", "exit") and (said := self._processes[first.rank].tail()):
            text += f"; its last output: {said.splitlines()[-1]}"
        error = _kind(first)(text)
        details = [trouble.details for trouble in causes if trouble.details]
        details += [f"rank {rank} printed:\n{said}" for rank, p in enumerate(self._processes) if (said := p.tail())]
        if isinstance(error, RankFailed) and details:
            error.add_note("\n".join(details))
        if len(heard) < self.size or any(_kind(trouble) is RankFailed for trouble in troubles):
            self._kill()
        return error

    def _silence(self, rank: int, seconds: float) -> _Trouble:
        stopped = " (stopped by a signal)" if _process_state(self._processes[rank].popen.pid) == "T" else ""
        return _Trouble(rank, "silent", f"gave no answer within {seconds:.3g} s while in {self._state(rank)}{stopped}")

    def _state(self, rank: int) -> str:
        return (self._shared.read(rank) if self._shared else "") or "an unknown state"

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.popen.wait(max(0.0, end - time.monotonic()))

    def _kill(self) -> None:
        for process in self._processes:
            if process.popen.poll() is None:
                process.popen.send_signal(signal.SIGKILL)
        for process in self._processes:
            process.close()
        self._processes.clear()
        if self._shared:
            self._shared.close()
            self._shared = None


@contextlib.contextmanager
def group(target: str, size: int, **options: Any) -> Iterator[RankGroup]:
    """Yield a RankGroup of ``size`` ranks and end it on leaving; options as of RankGroup.

    ``target`` ("file.py:name" or "package.module:name") is called once in each rank with a child.Rank;
    the public methods of what it returns answer ``call``.
    """
    ranks = RankGroup(target, size, **options)
    try:
        yield ranks
    finally:
        ranks.close()


def _kind(trouble: _Trouble) -> type[IobenchError]:
    """Return the error to raise: the project's own kinds stay what they are."""
    kind = getattr(errors, trouble.error, None)
    return kind if isinstance(kind, type) and issubclass(kind, IobenchError) else RankFailed


def _write(process: Process, message: dict[str, Any], seconds: float) -> None:
    """Write to a rank; give up on one that reads nothing for ``seconds`` or is dead: the gathering names it."""
    data = json.dumps(message).encode() + b"\n"
    with contextlib.suppress(BrokenPipeError):
        while data and select.select([], [process.commands], [], seconds)[1]:
            data = data[os.write(process.commands, data) :]


@contextlib.contextmanager
def _shared_memory(size: int) -> Iterator[int]:
    fd = SharedState.create(size)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _reserved_port() -> Iterator[int]:
    """Yield a TCP port that the kernel gives to nobody who asks for any port; rank 0 can listen on it.

    The socket stays bound and never listens: SO_REUSEADDR on both sides lets rank 0 bind beside it.
    """
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        yield int(keeper.getsockname()[1])


def _process_state(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def cpu_shares(size: int) -> list[list[int]] | None:
    """Return equal parts of the allowed CPUs, one per rank; None where there are more ranks than CPUs."""
    cpus = sorted(os.sched_getaffinity(0))
    each = len(cpus) // size
    return [cpus[rank * each : (rank + 1) * each] for rank in range(size)] if each else None
