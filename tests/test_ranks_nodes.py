"""Ranks on several nodes: launchers' environments, agents, what becomes of a killed rank, node or lead."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from iobench import __version__
from iobench.errors import Unavailable, UserError
from iobench.ranks import RankFailed, RankGroup, job, nodes
from iobench.ranks.agent import Agent
from iobench.ranks.job import Place
from iobench.ranks.nodes import Job, Node
from iobench.ranks.wire import Broken, Wire

from processes import PATIENCE_SECONDS, eventually, gone, held_port

TARGET = """
import os, time

class Echo:
    def __init__(self, rank):
        self.rank = rank
    def who(self, **more):
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "NCCL_HOSTID")
        return {name: os.environ.get(name) for name in names} | {"pid": os.getpid()} | more
    def meet(self):
        self.rank.barrier()
        return self.rank.rank
    def die(self):
        self.rank.state("its last act")
        if self.rank.rank == 3:
            os.kill(os.getpid(), 9)
        return 0
    def sleep(self):
        self.rank.state("a long sleep")
        if self.rank.rank == 2:
            time.sleep(3600)
        return 0
    def large(self, count):
        return list(range(count))
    def fail(self):
        from iobench.errors import WrongData
        if self.rank.rank == 3:
            raise WrongData("one byte is wrong")
        return 0
"""


@pytest.fixture
def target(tmp_path: Path) -> str:
    file = tmp_path / "echo.py"
    file.write_text(TARGET)
    return f"{file}:Echo"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let hellos be as late as they like."""
    monkeypatch.setattr("iobench.ranks.agent.HELLO_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(job, "_HELLO_SECONDS", PATIENCE_SECONDS)


@pytest.fixture
def agent() -> Iterator[Agent]:
    made = Agent("127.0.0.1", "secret")
    yield made
    made.close()


@pytest.fixture
def group(target: str, agent: Agent) -> Iterator[RankGroup]:
    two = (Node("node-1"), Node("node-2", "127.0.0.1", agent.port, "secret", {"NCCL_HOSTID": "second"}))
    made = RankGroup(target, 4, nodes=two, start_seconds=PATIENCE_SECONDS, call_seconds=PATIENCE_SECONDS)
    yield made
    made.close()


def test_ranks_of_both_nodes_by_torchruns_contract(group: RankGroup) -> None:
    answers = group.call("who", more=1)
    assert [answer["RANK"] for answer in answers] == ["0", "1", "2", "3"]
    assert [answer["LOCAL_RANK"] for answer in answers] == ["0", "1", "0", "1"]
    assert [answer["GROUP_RANK"] for answer in answers] == ["0", "0", "1", "1"]
    assert {answer["LOCAL_WORLD_SIZE"] for answer in answers} == {"2"}
    assert [answer["NCCL_HOSTID"] for answer in answers] == [None, None, "second", "second"]
    assert len({answer["pid"] for answer in answers}) == 4


def test_only_the_libraries_variables_cross() -> None:
    from iobench.ranks.proxy import environment

    own = {
        "RANK": "2",
        "NCCL_NET": "Socket",
        "HOME": "/root",
        "AWS_SECRET_ACCESS_KEY": "x",
        "CUDA_VISIBLE_DEVICES": "0",
    }
    assert environment(own) == {"RANK": "2", "NCCL_NET": "Socket"}


def test_the_barrier_is_one_of_each_node(group: RankGroup) -> None:
    for _ in range(3):
        assert group.call("meet") == [0, 1, 2, 3]


def test_large_answers_arrive_whole(group: RankGroup) -> None:
    assert [len(answer) for answer in group.call("large", count=100_000)] == [100_000] * 4


def test_a_killed_rank_of_the_other_node_is_named_with_its_last_state(group: RankGroup) -> None:
    with pytest.raises(RankFailed, match="rank 3 killed by signal 9 while in its last act"):
        group.call("die")
    assert group.call("meet") == [0, 1, 2, 3]


def test_a_silent_rank_of_the_other_node_is_named_within_the_deadline(group: RankGroup) -> None:
    group.call("meet")
    start = time.monotonic()
    group._send({"call": "sleep", "arguments": {}}, PATIENCE_SECONDS)
    assert eventually(lambda: group._state(2) == "a long sleep")
    with pytest.raises(RankFailed, match=r"rank 2 gave no answer within 0\.5 s while in a long sleep"):
        group._gather(0.5)
    assert time.monotonic() - start < 2 * PATIENCE_SECONDS


def test_wrong_data_there_stays_wrong_data_here(group: RankGroup) -> None:
    from iobench.errors import WrongData

    with pytest.raises(WrongData, match="one byte is wrong"):
        group.call("fail")


def test_a_node_that_goes_takes_its_ranks_with_it_and_is_said(group: RankGroup, agent: Agent) -> None:
    pids = [answer["pid"] for answer in group.call("who")]
    agent.close()
    with pytest.raises(RankFailed, match=r"rank [23] .*"):
        group.call("meet")
    assert all(gone(pid) for pid in pids)


def test_nobody_listens_where_an_agent_was(agent: Agent) -> None:
    agent.close()
    with socket.socket() as keeper:  # so that nobody else can be there by now
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", agent.port))
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", agent.port), PATIENCE_SECONDS)


def test_closing_the_group_ends_the_other_nodes_ranks(group: RankGroup) -> None:
    pids = [answer["pid"] for answer in group.call("who")]
    group.close()
    assert all(gone(pid) for pid in pids)


def test_a_missing_agent_is_a_sentence(target: str, port: int) -> None:
    two = (Node("node-1"), Node("node-2", "127.0.0.1", port, "x"))
    group = RankGroup(target, 2, nodes=two, start_seconds=PATIENCE_SECONDS)
    with pytest.raises(RankFailed, match="no agent answers on the rank's node"):
        group.call("who")
    group.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"", b"\n", b"GET / HTTP/1.1\r\n\r\n", b'{"token": "wrong"}\n', b'{"token": "secret"}\n', b"[1]\n",
        b"\xff" * 100,
        b'{"token": "secret", "group": "g", "environment": {"LOCAL_RANK": "5", "LOCAL_WORLD_SIZE": "2"}}\n',
        b'{"token": "secret", "group": "g", "environment": {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "999999999"}}\n',
        b'{"token": "secret", "group": 3, "environment": {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}}\n',
    ],
)  # fmt: skip
def test_an_agent_starts_nothing_for_strangers(agent: Agent, sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr("iobench.ranks.agent.spawn", lambda *arguments: started.append(arguments))
    with socket.create_connection(("127.0.0.1", agent.port)) as stranger:
        stranger.sendall(sent)
        stranger.shutdown(socket.SHUT_WR)
        stranger.settimeout(PATIENCE_SECONDS)
        assert stranger.recv(100) == b""
    assert started == []


def test_a_message_without_end_is_refused() -> None:
    one, other = socket.socketpair()
    sender, receiver = Wire.__new__(Wire), Wire.__new__(Wire)
    for wire, end in ((sender, one), (receiver, other)):
        wire.connection, wire._lock, wire._rest = end, threading.Lock(), b""

    def endless() -> None:
        with contextlib.suppress(OSError):  # the receiver goes
            one.sendall(b"x" * 10_000_000)

    thread = threading.Thread(target=endless)
    thread.start()
    with pytest.raises(Broken, match="more than 1000 bytes"):
        receiver.receive(1000)
    other.close()
    thread.join()
    one.close()


# --- the launchers


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}, None),
        (
            {
                "RANK": "9", "LOCAL_RANK": "1", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "GROUP_RANK": "1",
                "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "29500",
            },
            Place("torchrun", 1, 2, 1, "192.0.2.1"),
        ),
        (
            {
                "SLURM_PROCID": "3", "SLURM_LOCALID": "0", "SLURM_NODEID": "3", "SLURM_STEP_NUM_NODES": "4",
                "SLURM_STEP_NODELIST": "gpu[07-09,12]", "IOBENCH_PORT": "4000",
            },
            Place("srun", 3, 4, 0, "gpu07", 4000),
        ),
        ({"SLURM_PROCID": "0", "SLURM_NNODES": "4", "SLURM_NODELIST": "gpu[1-4]"}, None),  # sbatch's own script
        (
            {
                "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "MASTER_ADDR": "192.0.2.1",
            },
            Place("mpirun", 1, 2, 1, "192.0.2.1"),
        ),
        (
            {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1", "MASTER_ADDR": "a"},
            Place("mpirun", 1, 2, 0, "a"),
        ),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
          "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, None),
    ],
)  # fmt: skip
def test_places_of_the_launchers(environment: dict[str, str], expected: Place | None) -> None:
    assert job.place(environment) == expected


def test_mpirun_without_an_address_says_what_to_give() -> None:
    names = {"RANK": "0", "SIZE": "2", "LOCAL_RANK": "0", "LOCAL_SIZE": "1"}
    with pytest.raises(UserError, match="mpirun -x MASTER_ADDR"):
        job.place({f"OMPI_COMM_WORLD_{name}": value for name, value in names.items()})


@pytest.mark.parametrize(
    ("text", "first"),
    [("gpu[07-09,12]", "gpu07"), ("gpu1,gpu2", "gpu1"), ("a-b[1,3].x", "a-b1.x"), ("login", "login"), ("", "")],
)
def test_first_host_of_a_slurm_list(text: str, first: str) -> None:
    assert job.first_host(text) == first


def connected(port: int) -> socket.socket:
    """Connect to who will soon listen there."""
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


@pytest.fixture
def port() -> Iterator[int]:
    with held_port() as port:
        yield port


def test_lead_and_followers_find_each_other_and_end_together(target: str, port: int) -> None:
    said, ended = [], []
    places = [Place("torchrun", node, 3, 0, "127.0.0.1", port) for node in range(3)]

    def follower(at: Place) -> None:
        job.follow(at, said.append)
        ended.append(at.node)

    threads = [threading.Thread(target=follower, args=(at,), daemon=True) for at in places[1:]]
    for thread in threads:
        thread.start()
    with job.lead(places[0], said.append) as made:
        assert [node.name for node in made.nodes] == ["node-1", "node-2", "node-3"]
        environment: dict[str, str] = {}
        made.export(environment)
        assert nodes.current(environment) == made
        patient = {"start_seconds": PATIENCE_SECONDS, "call_seconds": PATIENCE_SECONDS}
        group = RankGroup(target, 3, nodes=made.nodes, lead=made.lead, **patient)
        time.sleep(job._KNOCK_SECONDS + 0.5)  # an agent waits for as long as the job lasts
        assert [answer["GROUP_RANK"] for answer in group.call("who")] == ["0", "1", "2"]
        group.close()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert sorted(ended) == [1, 2]


def test_a_node_that_does_not_come_is_named(port: int) -> None:
    with (
        pytest.raises(UserError, match=r"node 1 of 2 did not come within 0\.3 s"),
        job.lead(Place("srun", 0, 2, 0, "127.0.0.1", port), lambda _: None, 0.3),
    ):
        pass


def test_another_version_is_refused(port: int) -> None:
    def stranger() -> None:
        with connected(port) as link:
            link.sendall(b'{"iobench": "0.0.0", "node": 1, "port": 4}\n')
            link.recv(10)

    threading.Thread(target=stranger, daemon=True).start()
    with (
        pytest.raises(UserError, match=r"node 1 runs iobench 0\.0\.0"),
        job.lead(Place("srun", 0, 2, 0, "127.0.0.1", port), lambda _: None, PATIENCE_SECONDS),
    ):
        pass


def test_garbage_on_the_port_is_turned_away_and_the_wait_goes_on(port: int) -> None:
    answers = []

    def strangers() -> None:
        for sent in (b"GET / HTTP/1.0\r\n\r\n", b'{"node": 7, "port": 1}\n', b"\xff\n", b'{"node": true}\n'):
            with connected(port) as link:
                link.sendall(sent)
                link.shutdown(socket.SHUT_WR)
                answers.append(link.recv(10))
        with connected(port) as link:
            link.sendall(json.dumps({"iobench": __version__, "node": 1, "port": 4}).encode() + b"\n")
            link.recv(100)

    thread = threading.Thread(target=strangers)
    thread.start()
    with job.lead(Place("srun", 0, 2, 0, "127.0.0.1", port), lambda _: None, PATIENCE_SECONDS) as made:
        assert answers == [b""] * 4
        assert [(node.name, node.port) for node in made.nodes] == [("node-1", 0), ("node-2", 4)]
    thread.join()


def test_a_missing_lead_is_said(port: int) -> None:
    with pytest.raises(UserError, match=r"the first node does not answer at 127\.0\.0\.1:"):
        job.follow(Place("srun", 1, 2, 0, "127.0.0.1", port), lambda _: None, 0.3)


def test_fewer_nodes_than_asked_for() -> None:
    with pytest.raises(Unavailable, match=r"needs 2 nodes, this job has 1: .* torchrun --nnodes 2"):
        nodes.ALONE.take(2)
    with pytest.raises(UserError, match="3 ranks can't be shared equally by 2 nodes"):
        nodes.shares([Node("a"), Node("b")], 3)
    with pytest.raises(UserError, match="IOBENCH_NODES is damaged"):
        nodes.current({nodes.VARIABLE: "{"})
    assert nodes.current({}) == Job((Node("node-1"),))


def test_a_signal_name_is_kept(group: RankGroup) -> None:
    pids = [answer["pid"] for answer in group.call("who")]
    os.kill(pids[2], signal.SIGTERM)
    with pytest.raises(RankFailed, match="rank 2 killed by signal 15"):
        group.call("meet")
