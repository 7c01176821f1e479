"""The nodes of a job: where each one's ranks are started, and how a worker process learns of them.

The lead node starts its own ranks; every other node runs an agent (agent.py) that starts ranks on request. Worker
processes find the agents in one variable of the environment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from iobench.errors import Unavailable, UserError

VARIABLE = "IOBENCH_NODES"


@dataclass(frozen=True)
class Node:
    """One node: ``address`` and ``port`` of its agent, both empty for the lead. ``environment`` goes to its ranks."""

    name: str
    address: str = ""
    port: int = 0
    token: str = ""
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def local(self) -> bool:
        return not self.port


@dataclass(frozen=True)
class Job:
    """All nodes, the lead first, and the address under which the others reach it."""

    nodes: tuple[Node, ...]
    lead: str = "127.0.0.1"

    def export(self, environment: dict[str, str]) -> None:
        """Put the job into the environment of processes to be started."""
        environment[VARIABLE] = json.dumps({"lead": self.lead, "nodes": [asdict(node) for node in self.nodes]})

    def take(self, count: int) -> tuple[Node, ...]:
        """Return the first ``count`` nodes; Unavailable where the job has fewer."""
        if count > len(self.nodes):
            raise Unavailable(
                f"needs {count} nodes, this job has {len(self.nodes)}: start it on all of them, as in "
                "torchrun --nnodes 2 --nproc-per-node 1 -m iobench run allreduce"
            )
        return self.nodes[:count]


ALONE = Job((Node("node-1"),))


def current(environment: Mapping[str, str] | None = None) -> Job:
    """Return the job that this process belongs to; one node where nothing says otherwise."""
    text = (os.environ if environment is None else environment).get(VARIABLE, "")
    if not text:
        return ALONE
    try:
        data = json.loads(text)
        return Job(tuple(Node(**node) for node in data["nodes"]), str(data["lead"]))
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{VARIABLE} is damaged ({error!r}): unset it") from error


def shares(nodes: Sequence[Node], ranks: int) -> list[int]:
    """Return how many ranks each node gets: equal parts; UserError where they would differ."""
    each, rest = divmod(ranks, len(nodes))
    if rest or not each:
        raise UserError(
            f"{ranks} ranks can't be shared equally by {len(nodes)} nodes: choose a multiple of {len(nodes)}"
        )
    return [each] * len(nodes)
