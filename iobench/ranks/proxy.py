"""Stands on the lead for a rank of another node: same pipes, same shared memory, same end as the rank itself.

Started by launcher.py in place of child.py; where to go stands in the environment.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading

from iobench.ranks.child import die_with
from iobench.ranks.nodes import VARIABLE
from iobench.ranks.shared import SharedState
from iobench.ranks.wire import Wire

CONNECT_SECONDS = 10.0
ADDRESS, PORT, TOKEN, GROUP = (f"IOBENCH_AGENT_{name}" for name in ("ADDRESS", "PORT", "TOKEN", "GROUP"))
_OWN = (ADDRESS, PORT, TOKEN, GROUP, VARIABLE)
# what a node has of its own: the lead's would be wrong there
_KEPT = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
_PREFIXES = ("NCCL_", "UCX_", "OMP_", "GLOO_", "CUDA_", "TORCH_", "FI_")
_LOST = 98


def main() -> None:
    """Be one rank; argv holds the descriptors and the parent's process id (0: don't watch it)."""
    commands_fd, answers_fd, shared_fd, parent = map(int, sys.argv[2:6])
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    shared = SharedState(shared_fd, size)
    place = os.environ[ADDRESS], int(os.environ[PORT])
    shared.write(rank, f"connecting to the agent of its node, port {place[1]}")
    try:
        wire = Wire(socket.create_connection(place, CONNECT_SECONDS))
    except OSError as error:
        sys.stderr.write(
            f"no agent answers on the rank's node ({error.strerror or error}): is its process still there?\n"
        )
        os._exit(_LOST)
    wire.connection.settimeout(None)
    wire.send(token=os.environ[TOKEN], group=os.environ[GROUP], environment=environment(os.environ))
    threading.Thread(target=_commands, args=(commands_fd, wire), daemon=True).start()
    _exit(_follow(wire, answers_fd, shared, rank))


def environment(own: os._Environ[str] | dict[str, str]) -> dict[str, str]:
    """Return the variables that go to the other node: the contract and the libraries' settings, nothing else."""
    return {
        name: value
        for name, value in own.items()
        if name not in _OWN and (name in _KEPT or name.startswith(_PREFIXES)) and name != "CUDA_VISIBLE_DEVICES"
    }


def _follow(wire: Wire, answers_fd: int, shared: SharedState, rank: int) -> int | None:
    """Pass on what comes; return how the rank ended, None where the connection was lost."""
    with os.fdopen(answers_fd, "w", encoding="utf-8") as answers:
        for message in wire.messages():
            if "answer" in message:
                answers.write(message["answer"] + "\n")
                answers.flush()
            elif "state" in message:
                shared.write(rank, str(message["state"]))
            elif "ended" in message:
                sys.stderr.write(f"{message.get('tail', '')}\n")
                sys.stderr.flush()
                return int(message["ended"])
    return None


def _exit(code: int | None) -> None:
    """End as the rank ended."""
    sys.stdout.flush()
    if code is None:
        sys.stderr.write("the connection to the rank's node was lost\n")
        sys.stderr.flush()
        os._exit(_LOST)
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _commands(fd: int, wire: Wire) -> None:
    with os.fdopen(fd, encoding="utf-8") as pipe:
        for line in pipe:
            wire.send(command=line.rstrip("\n"))
    wire.close()
