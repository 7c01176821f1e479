"""A run on several nodes: the launcher's environment (torchrun, srun, mpirun), and how the nodes find each other.

The launcher starts ``iobench run`` on every node, one process per node (more are sent home). The first becomes the
lead: it waits for the others and measures. The others become agents until the lead ends. Contracts:

- torchrun: RANK, LOCAL_RANK, GROUP_RANK, GROUP_WORLD_SIZE, MASTER_ADDR (PyTorch, "Torch Distributed Elastic")
- srun: SLURM_PROCID, SLURM_LOCALID, SLURM_NODEID, SLURM_STEP_NUM_NODES, SLURM_STEP_NODELIST (srun(1))
- mpirun: OMPI_COMM_WORLD_RANK, _LOCAL_RANK, _LOCAL_SIZE, _SIZE (Open MPI); PMI_RANK, PMI_SIZE, MPI_LOCALRANKID,
  MPI_LOCALNRANKS (MPICH, Intel MPI); both need MASTER_ADDR
"""

from __future__ import annotations

import contextlib
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from iobench import __version__
from iobench.errors import UserError
from iobench.ranks.agent import Agent
from iobench.ranks.nodes import Job, Node
from iobench.ranks.wire import Broken, Wire

PORT = 29517  # torchrun's own rendezvous has 29500
PORT_VARIABLE = "IOBENCH_PORT"
GATHER_SECONDS = 120.0
_HELLO_SECONDS = 10.0
_HELLO_NBYTES = 4096
_KNOCK_SECONDS = 2.0


@dataclass(frozen=True)
class Place:
    """Where in a job this process stands. ``address`` is the lead's, as the other nodes reach it."""

    launcher: str
    node: int
    nodes: int
    local_rank: int
    address: str
    port: int = PORT

    @property
    def leads(self) -> bool:
        return self.node == 0


def place(environment: Mapping[str, str]) -> Place | None:
    """Return this process's place in a job of several nodes; None where there is one node only."""
    for read in (_torchrun, _srun, _open_mpi, _mpich):
        found = read(environment)
        if found and found.nodes > 1:
            return found
    return None


def _torchrun(env: Mapping[str, str]) -> Place | None:
    if "RANK" not in env or "LOCAL_RANK" not in env or "GROUP_RANK" not in env:
        return None
    nodes = _number(env, "GROUP_WORLD_SIZE") or _number(env, "WORLD_SIZE") // max(_number(env, "LOCAL_WORLD_SIZE"), 1)
    return _place("torchrun", env, _number(env, "GROUP_RANK"), nodes, _number(env, "LOCAL_RANK"))


def _srun(env: Mapping[str, str]) -> Place | None:
    if "SLURM_PROCID" not in env or "SLURM_STEP_NUM_NODES" not in env:
        return None
    first = env.get("MASTER_ADDR") or first_host(env.get("SLURM_STEP_NODELIST", ""))
    node, nodes = _number(env, "SLURM_NODEID"), _number(env, "SLURM_STEP_NUM_NODES")
    return _place("srun", {**env, "MASTER_ADDR": first}, node, nodes, _number(env, "SLURM_LOCALID"))


def _open_mpi(env: Mapping[str, str]) -> Place | None:
    names = [f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
    return _by_ranks("mpirun", env, names)


def _mpich(env: Mapping[str, str]) -> Place | None:
    return _by_ranks("mpirun", env, ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"])


def _by_ranks(launcher: str, env: Mapping[str, str], names: list[str]) -> Place | None:
    if not all(name in env for name in names):
        return None
    rank, size, local, local_size = (_number(env, name) for name in names)
    each = max(local_size, 1)
    return _place(launcher, env, rank // each, size // each, local)


def _place(launcher: str, env: Mapping[str, str], node: int, nodes: int, local: int) -> Place:
    address = env.get("MASTER_ADDR", "")
    if nodes > 1 and not address:
        raise UserError(
            f"{launcher} started {nodes} nodes and MASTER_ADDR is not set: give the first node's address, as in "
            'mpirun -x MASTER_ADDR="$(hostname -I | cut -d" " -f1)"'
        )
    return Place(launcher, node, nodes, local, address, _number(env, PORT_VARIABLE) or PORT)


def _number(env: Mapping[str, str], name: str) -> int:
    text = env.get(name, "0") or "0"
    if not text.isdecimal():
        raise UserError(f"{name}={text} is no number: the launcher's environment is damaged")
    return int(text)


def first_host(nodes: str) -> str:
    """Return the first host of Slurm's list: "gpu[07-09,12],login1" is gpu07."""
    match = re.match(r"([^\[,]*)(?:\[(\d+)[^\]]*\])?([^,\[]*)", nodes)
    return f"{match[1]}{match[2] or ''}{match[3]}" if match else ""


@contextlib.contextmanager
def joined(environment: dict[str, str], say: Callable[[str], object]) -> Iterator[bool]:
    """Take this process's place in a job of several nodes; yield whether it is the one that measures.

    The lead's block runs once all nodes are there, with the job in ``environment``. Another node's yields False when
    the job is over, a further process of a node at once. Without a launcher: True.
    """
    at = place(environment)
    if at is None:
        yield True
    elif at.local_rank:
        yield False
    elif at.leads:
        with lead(at, say) as made:
            made.export(environment)
            yield True
    else:
        follow(at, say)
        yield False


@contextlib.contextmanager
def lead(at: Place, say: Callable[[str], object], seconds: float = GATHER_SECONDS) -> Iterator[Job]:
    """Wait for the other nodes' agents and yield the job; they end with the block.

    Raises UserError where one does not come in time, or runs another version.
    """
    token = secrets.token_hex(16)
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(_listener(at))
        say(f"waiting for {at.nodes - 1} more nodes on port {at.port}")
        found: dict[int, tuple[Wire, str, int]] = {}
        end = time.monotonic() + seconds
        while len(found) < at.nodes - 1:
            _admit(listener, end, at, found, seconds)
        for wire, _, _ in found.values():
            stack.callback(wire.close)
            wire.send(welcome=token)
        others = [Node(f"node-{n + 1}", found[n][1], found[n][2], token) for n in sorted(found)]
        yield Job((Node("node-1"), *others), at.address)


def _listener(at: Place) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(at.address, at.port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        raise UserError(
            f"cannot listen on {at.address}:{at.port} ({error.strerror or error}): MASTER_ADDR must be an address of "
            f"the first node, and {PORT_VARIABLE} a free port"
        ) from error


def _admit(
    listener: socket.socket,
    end: float,
    at: Place,
    found: dict[int, tuple[Wire, str, int]],
    seconds: float,
) -> None:
    """Take in one connection: an agent of a node that is still missing, or nobody."""
    listener.settimeout(max(end - time.monotonic(), 0.001))
    try:
        connection, peer = listener.accept()
    except TimeoutError:
        missing = [str(number) for number in range(1, at.nodes) if number not in found]
        raise UserError(
            f"node {', '.join(missing)} of {at.nodes} did not come within {seconds:g} s: is iobench started on every "
            f"node, and port {at.port} open?"
        ) from None
    wire = Wire(connection)
    connection.settimeout(_HELLO_SECONDS)
    try:
        hello = wire.receive(_HELLO_NBYTES) or {}
    except (OSError, Broken):
        hello = {}
    number, port = hello.get("node"), hello.get("port")
    if not isinstance(number, int) or not isinstance(port, int) or not 0 < number < at.nodes or number in found:
        wire.close()
        return
    if hello.get("iobench") != __version__:
        wire.close()
        raise UserError(
            f"node {number} runs iobench {hello.get('iobench')}, this is {__version__}: install one version"
        )
    connection.settimeout(None)
    found[number] = (wire, peer[0], port)


def follow(at: Place, say: Callable[[str], object], seconds: float = GATHER_SECONDS) -> None:
    """Be the agent of a node until the lead ends; UserError where the lead is not there in time."""
    wire = _knock(at, seconds)
    token = secrets.token_hex(16)
    agent = Agent(wire.connection.getsockname()[0], token)
    try:
        wire.send(iobench=__version__, node=at.node, port=agent.port)
        welcome = wire.receive(_HELLO_NBYTES)
        if not welcome or not isinstance(welcome.get("welcome"), str):
            raise UserError(f"the lead at {at.address} turned this node away: look at what it says")
        agent.trust(welcome["welcome"])
        say(f"node {at.node} of {at.nodes} starts ranks for {at.address}")
        for _ in wire.messages():
            pass
    finally:
        agent.close()
        wire.close()


def _knock(at: Place, seconds: float) -> Wire:
    end = time.monotonic() + seconds
    while True:
        try:
            connection = socket.create_connection((at.address, at.port), _KNOCK_SECONDS)
            connection.settimeout(None)
            return Wire(connection)
        except OSError as error:
            if time.monotonic() > end:
                raise UserError(
                    f"the first node does not answer at {at.address}:{at.port} ({error.strerror or error}): is iobench "
                    f"started there, and the port open? MASTER_ADDR and {PORT_VARIABLE} name them"
                ) from error
            time.sleep(0.2)
