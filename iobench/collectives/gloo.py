"""The engine "gloo": torch.distributed over TCP, one rank; lives in a process of its own. Parent's side: hosts.py."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iobench.errors import Unavailable, WrongData

if TYPE_CHECKING:
    from iobench.ranks.child import Rank

BUFFERS = 2
ITEM_NBYTES = 4
PERIOD = 1021  # prime: no chunk of a power of two can take another's place unseen
MOST_RANKS = 1024  # sums stay below 2**24, where float32 holds every integer
_EVENT_LOOP_NAME = "gloo_tcp_loop"
_SIOCGIFADDR = 0x8915  # netdevice(7)


class Pattern:
    """What each rank contributes and what the sum must be: whole numbers that float32 holds exactly.

    Element i of rank r is (i + 1)(r + 1)^2 mod 1021, plus 1: the squares make sets of wrong ranks differ,
    the prime keeps chunks apart whose length is a power of two.
    """

    def __init__(self, torch: Any, rank: int, size: int) -> None:
        positions = torch.arange(1, PERIOD + 1, dtype=torch.int64)
        tiles = [(positions * (number + 1) ** 2 % PERIOD + 1).to(torch.float32) for number in range(size)]
        self.mine, self.sum = tiles[rank], sum(tiles[1:], start=tiles[0])

    def fill(self, buffer: Any) -> None:
        """Write this rank's share."""
        rows, rest = _rows(buffer)
        if len(rows):
            rows.copy_(self.mine.expand_as(rows))
        rest.copy_(self.mine[: len(rest)])

    def check(self, buffer: Any) -> None:
        """Compare every element with the sum; WrongData names the first that differs."""
        rows, rest = _rows(buffer)
        if not (rows.equal(self.sum.expand_as(rows)) and rest.equal(self.sum[: len(rest)])):
            raise WrongData(self._difference(buffer))

    def _difference(self, buffer: Any) -> str:
        right = self.sum.repeat(len(buffer) // PERIOD + 1)[: len(buffer)]
        wrong = (buffer != right).nonzero().flatten()
        first = int(wrong[0])
        return (
            f"{len(wrong)} of {len(buffer)} elements differ from the sum,"
            f" the first is element {first}: {float(buffer[first])}, not {float(right[first])}"
        )


def _move_event_loop(cpu: int) -> list[int]:
    """Pin this process's gloo event loop to ``cpu``; unpin everything where it can't be found. Return its threads."""
    threads = {int(task.name): (task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()}
    loops = [thread for thread, name in threads.items() if name == _EVENT_LOOP_NAME]
    for thread in loops or threads:
        os.sched_setaffinity(thread, {cpu} if loops else range(os.cpu_count() or 1))
    return loops


def _rows(buffer: Any) -> tuple[Any, Any]:
    """Return views of the buffer: as many whole periods as it holds, one per row, and the rest."""
    whole = len(buffer) // PERIOD * PERIOD
    return buffer[:whole].view(-1, PERIOD), buffer[whole:]


def interface_towards(address: str) -> str:
    """Return the network interface whose IPv4 address this host uses to reach ``address``; Unavailable without one."""
    try:
        target = socket.getaddrinfo(address, 9, socket.AF_INET, socket.SOCK_DGRAM)[0][4]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            own = probe.getsockname()[0]
            names = [name for _, name in socket.if_nameindex() if _ipv4(probe, name) == own]
    except OSError as error:
        raise Unavailable(f"no way to {address} ({error.strerror or error}): set GLOO_SOCKET_IFNAME") from error
    if not names:
        raise Unavailable(f"no interface has the address towards {address}: set GLOO_SOCKET_IFNAME")
    return names[0]


def _ipv4(any_socket: socket.socket, interface: str) -> str:
    """Return an interface's first IPv4 address, "" where it has none."""
    try:
        answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
    except OSError:
        return ""
    return socket.inet_ntoa(answer[20:24])


class Gloo:
    """One rank: owns the process group and a pool of buffers; lives in a process of its own."""

    def __init__(self, rank: Rank) -> None:
        rank.state("import torch")
        import torch
        import torch.distributed as dist

        if not dist.is_available() or not dist.is_gloo_available():
            raise Unavailable("this torch was built without gloo: install torch from PyPI")
        torch.set_num_threads(1)
        if os.environ["WORLD_SIZE"] != os.environ["LOCAL_WORLD_SIZE"] and "GLOO_SOCKET_IFNAME" not in os.environ:
            os.environ["GLOO_SOCKET_IFNAME"] = interface_towards(os.environ["MASTER_ADDR"])
        rank.state(f"init_process_group of {rank.size} ranks")
        dist.init_process_group("gloo")
        self.event_loops = _move_event_loop(rank.config["event_loop_cpu"][rank.rank]) if rank.config else []
        self.rank, self.torch, self.all_reduce = rank, torch, dist.all_reduce
        self.pattern = Pattern(torch, rank.rank, rank.size)
        self.buffers: list[Any] = []
        self.entries: list[int] = []

    def prepare(self, nbytes: int) -> None:
        """Make the pool of buffers of this size, reduce each once (connections, pages) and check it."""
        self.rank.state(f"allocating {BUFFERS} buffers of {nbytes} bytes")
        self.buffers = [self.torch.empty(nbytes // ITEM_NBYTES, dtype=self.torch.float32) for _ in range(BUFFERS)]
        self.rank.state(f"all_reduce of {nbytes} bytes, before sampling")
        for buffer in self.buffers:
            self.pattern.fill(buffer)
            self.all_reduce(buffer)
        self.check()

    def time(self, count: int) -> list[int]:
        """Return ``count`` durations in ns. Each buffer is filled anew, so each result can be checked."""
        self.rank.state(f"all_reduce of {self.nbytes} bytes")
        now, barrier, fill, all_reduce = time.perf_counter_ns, self.rank.barrier, self.pattern.fill, self.all_reduce
        buffers, durations, entries = self.buffers, [], []
        with self.rank.quiet():
            for number in range(count):
                buffer = buffers[number % BUFFERS]
                fill(buffer)
                barrier()
                start = now()
                all_reduce(buffer)
                durations.append(now() - start)
                entries.append(start)
        self.entries = entries
        self.check()
        return durations

    def check(self) -> None:
        """Compare the results that lie in the buffers with the sum, every element of them."""
        self.rank.state(f"checking all_reduce of {self.nbytes} bytes")
        for buffer in self.buffers:
            self.pattern.check(buffer)

    def sockets(self) -> list[dict[str, Any]]:
        """Return this rank's TCP sockets with the bytes received so far."""
        from iobench.ranks import sockets

        return sockets.own()

    def facts(self) -> dict[str, Any]:
        """Return the library's version and where gloo's event loop runs, read back; [] where not placed."""
        cpus = [sorted(os.sched_getaffinity(thread)) for thread in self.event_loops]
        return {"torch": self.torch.__version__, "event_loop_cpus": cpus[0] if cpus else []}

    def last_entries(self) -> list[int]:
        """Return when this rank entered each operation of the last block (ns of the host's clock)."""
        return self.entries

    @property
    def nbytes(self) -> int:
        return int(self.buffers[0].numel()) * ITEM_NBYTES
