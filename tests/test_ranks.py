"""Groups of ranks: the contract, the answers, and every way a rank can end."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from iobench import patience, ranks
from iobench.errors import Unavailable, WrongData
from iobench.ranks import RankFailed, RankGroup, launcher
from iobench.timing.sampler import Sampler

from processes import PATIENCE_SECONDS, eventually, gone, state

WORKER = """
import os, signal, socket, sys, time
from iobench.errors import Unavailable, WrongData

HANG = 3600  # seconds: what a call that is not ended at its deadline would take
NAMES = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT EXTRA".split()

class Worker:
    def __init__(self, rank):
        self.rank = rank
        self.asked = 0
        if rank.config.get("fail_start"):
            raise RuntimeError("no device")
        if rank.config.get("hang_start"):
            rank.state("the init")
            time.sleep(HANG)

    def contract(self):
        return {name: os.environ.get(name) for name in NAMES}

    def identity(self):
        return [self.rank.rank, self.rank.size, self.rank.local_rank, self.rank.config, sorted(os.sched_getaffinity(0))]

    def count(self):
        self.asked += 1
        return self.asked

    def echo(self, value):
        return value

    def noisy(self):
        print("x" * 300000)
        return "done"

    def times(self, count):
        return [1000 + self.rank.rank] * (count if self.rank.rank == 0 or count < 100 else count - 1)

    def meet(self, count, late=0.0):
        moments = []
        for _ in range(count):
            if self.rank.rank == 1:
                time.sleep(late)
            self.rank.barrier()
            moments.append(time.perf_counter_ns())
        return moments

    def in_rank_1(self, what):
        self.rank.state("all_reduce of 65536 bytes")
        if self.rank.rank != 1:
            self.rank.state("waiting")
            time.sleep(HANG)
        getattr(self, what)()

    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def rest(self):
        time.sleep(HANG)

    def leave(self):
        print("the library gave up", file=sys.stderr, flush=True)
        os._exit(7)

    def fail(self):
        raise ValueError("bad tensor")

    def wrong(self):
        raise WrongData("element 3 is 4, not 6")

    def unavailable(self):
        raise Unavailable("needs two GPUs")

    def unspeakable(self):
        return {1, 2}

    def listen_as_master(self):
        if self.rank.rank == 0:
            with socket.socket() as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
                listener.listen()
        return True
"""


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("ranks") / "worker.py"
    file.write_text(WORKER)
    return f"{file}:Worker"


@contextlib.contextmanager
def grouped(worker: str, size: int, **options: Any) -> Iterator[RankGroup]:
    """Yield a group whose starts and calls take as long as they like."""
    with ranks.group(
        worker, size, **{"start_seconds": PATIENCE_SECONDS, "call_seconds": PATIENCE_SECONDS, **options}
    ) as made:
        yield made


def silenced(group: RankGroup, states: list[str], seconds: float, method: str, **arguments: Any) -> None:
    """Call, wait until each rank has come to its state, however long that takes, and begin the deadline only then."""
    group.call("echo", value=0)
    group._send({"call": method, "arguments": arguments}, PATIENCE_SECONDS)
    assert eventually(lambda: [group._state(rank) for rank in range(group.size)] == states)
    group._gather(seconds)


def test_ranks_get_torchruns_environment(worker: str) -> None:
    with grouped(worker, 2, environment={"EXTRA": "yes"}) as group:
        first, second = group.call("contract")
        assert first == {
            "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(group.port), "EXTRA": "yes",
        }  # fmt: skip
        assert second["RANK"] == second["LOCAL_RANK"] == "1"
        assert second["MASTER_PORT"] == first["MASTER_PORT"]


def test_ranks_stay_alive_over_calls_and_share_nothing_with_the_parent(worker: str) -> None:
    with grouped(worker, 2, config={"depth": 3}) as group:
        assert [row[:4] for row in group.call("identity")] == [[0, 2, 0, {"depth": 3}], [1, 2, 1, {"depth": 3}]]
        assert group.call("count") == [1, 1]
        pids = group.pids
        assert group.call("count") == [2, 2]
        assert group.pids == pids
        assert os.getpid() not in pids
    assert all(map(gone, pids))
    assert group.pids == []


def test_answers_larger_than_a_pipe_and_loud_ranks_do_not_block(worker: str) -> None:
    value = list(range(60000))
    with grouped(worker, 2) as group:
        assert group.call("echo", value=value) == [value, value]
        assert group.call("noisy") == ["done", "done"]


def test_pins_are_read_back_in_the_rank(worker: str) -> None:
    cpu = min(os.sched_getaffinity(0))
    with grouped(worker, 2, pins=[[cpu], [cpu]]) as group:
        assert [row[4] for row in group.call("identity")] == [[cpu], [cpu]]
        assert group.cpus == [[cpu], [cpu]]


def test_shares_are_equal_and_disjoint_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 1, 8, 4, 9})
    assert ranks.cpu_shares(2) == [[1, 3], [4, 8]]
    assert ranks.cpu_shares(5) == [[1], [3], [4], [8], [9]]
    assert ranks.cpu_shares(6) is None


def test_master_port_can_be_listened_on(worker: str) -> None:
    with grouped(worker, 2) as group:
        assert group.call("listen_as_master") == [True, True]


def test_durations_become_seconds_by_rank(worker: str) -> None:
    with grouped(worker, 2) as group:
        assert group.durations("times", count=3) == [[pytest.approx(1e-6)] * 3, [pytest.approx(1.001e-6)] * 3]
        with pytest.raises(RankFailed, match=r"unequal numbers of durations: \[100, 99\]"):
            group.durations("times", count=100)


def test_barrier_holds_the_early_rank_until_the_late_one_comes(worker: str) -> None:
    with grouped(worker, 2) as group:
        early, late = group.call("meet", count=5, late=0.05)
    for before, now in zip(late[:-1], early[1:], strict=True):
        assert now - before > 45e6  # each round, the early rank leaves only after the late one's sleep


def test_more_ranks_than_cpus_meet_too(worker: str) -> None:
    size = len(os.sched_getaffinity(0)) + 1
    if size > 9:
        pytest.skip(f"would start {size} processes")
    with grouped(worker, size) as group:
        assert [len(row) for row in group.call("meet", count=50)] == [50] * size


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("die", "rank 1 killed by signal 9 while in all_reduce of 65536 bytes"),
        ("leave", "rank 1 ended with exit status 7 while in all_reduce of 65536 bytes; its last output: the library"),
        ("fail", "rank 1 raised ValueError in all_reduce of 65536 bytes: bad tensor"),
        ("unspeakable", None),
    ],
)
def test_a_failed_rank_ends_the_group_at_once_and_is_named(worker: str, what: str, sentence: str | None) -> None:
    with grouped(worker, 2) as group:
        group.call("count")
        pids = group.pids
        start = time.monotonic()
        if sentence is None:
            with pytest.raises(RankFailed, match=r"rank [01] raised TypeError in .*set is not JSON serializable"):
                group.call(what, deadline=3 * PATIENCE_SECONDS)
        else:
            with pytest.raises(RankFailed) as caught:
                group.call("in_rank_1", deadline=3 * PATIENCE_SECONDS, what=what)
            assert sentence in str(caught.value)
            assert "\n" not in str(caught.value)
        assert time.monotonic() - start < PATIENCE_SECONDS
        assert all(map(gone, pids))


def test_traceback_is_kept_apart_from_the_sentence(worker: str) -> None:
    with grouped(worker, 2) as group, pytest.raises(RankFailed) as caught:
        group.call("in_rank_1", what="fail")
    assert 'raise ValueError("bad tensor")' in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("what", "kind", "text"),
    [("wrong", WrongData, "element 3 is 4, not 6"), ("unavailable", Unavailable, "needs two GPUs")],
)
def test_the_projects_own_errors_keep_their_kind(worker: str, what: str, kind: type[Exception], text: str) -> None:
    with grouped(worker, 2) as group, pytest.raises(kind, match=f"rank 1 .*{text}"):
        group.call("in_rank_1", what=what)


def test_wrong_data_in_a_rank_leaves_the_others_able_to_go_on(worker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_GRACE_SECONDS", PATIENCE_SECONDS)  # one of the two may be late
    with grouped(worker, 2) as group:
        group.call("count")
        with pytest.raises(WrongData, match=r"rank [01] raised WrongData in the start: element 3 is 4, not 6"):
            group.call("wrong")
        assert group.call("count") == [2, 2]


def test_hung_ranks_end_at_the_deadline_with_their_states(worker: str) -> None:
    with grouped(worker, 2) as group:
        group.call("count")
        pids = group.pids
        start = time.monotonic()
        with pytest.raises(RankFailed) as caught:
            silenced(group, ["waiting", "all_reduce of 65536 bytes"], 0.5, "in_rank_1", what="rest")
        assert time.monotonic() - start < 2 * PATIENCE_SECONDS
        # on a machine that stops processes one may be stopped at the very end
        assert str(caught.value).replace(" (stopped by a signal)", "") == (
            "rank 0 gave no answer within 0.5 s while in waiting; "
            "rank 1 gave no answer within 0.5 s while in all_reduce of 65536 bytes"
        )
        assert all(map(gone, pids))


def test_a_stopped_rank_that_reads_nothing_cannot_block_the_parent(
    worker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "_END_SECONDS", 0.3)
    with grouped(worker, 1) as group:
        group.call("count")
        os.kill(group.pids[0], signal.SIGSTOP)
        assert eventually(lambda: state(group.pids[0]) == "T")
        start = time.monotonic()
        with pytest.raises(
            RankFailed, match=r"gave no answer within 0\.2 s while in the start \(stopped by a signal\)"
        ):
            group.call("echo", deadline=0.2, value="x" * 1_000_000)
        assert time.monotonic() - start < PATIENCE_SECONDS


def test_a_stop_of_everybody_is_no_silence(worker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between any two looks at the clock lies an hour, as after a night in a stopped shell."""
    hours = itertools.count(step=3600)
    monkeypatch.setattr(patience, "time", types.SimpleNamespace(monotonic=lambda: next(hours)))
    with grouped(worker, 2) as group:
        assert group.call("count") == [1, 1]


def test_a_rank_that_reads_late_gets_its_message_whole(worker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_END_SECONDS", 0.01)
    value = "x" * 1_000_000
    with grouped(worker, 1) as group:
        group.call("count")
        os.kill(group.pids[0], signal.SIGSTOP)
        assert eventually(lambda: state(group.pids[0]) == "T")
        later = threading.Timer(0.3, os.kill, (group.pids[0], signal.SIGCONT))
        later.start()
        assert group.call("echo", value=value) == [value]
        later.join()


def test_the_next_call_starts_a_fresh_group(worker: str) -> None:
    with grouped(worker, 2) as group:
        assert group.call("count") == [1, 1]
        with pytest.raises(RankFailed):
            group.call("in_rank_1", what="die")
        assert group.call("count") == [1, 1]
        assert group.generation == 2


def test_a_rank_killed_between_calls_is_named(worker: str) -> None:
    with grouped(worker, 2) as group:
        group.call("count")
        os.kill(group.pids[0], signal.SIGKILL)
        with pytest.raises(RankFailed, match="rank 0 killed by signal 9"):
            group.call("count")


def test_starts_that_fail_are_not_repeated_for_ever(worker: str) -> None:
    with grouped(worker, 2, config={"fail_start": True}) as group:
        for _ in range(4):
            with pytest.raises(RankFailed, match="raised RuntimeError in the start: no device"):
                group.call("count")
        assert group.generation == 2


def test_a_start_that_hangs_ends_at_its_deadline(worker: str) -> None:
    with grouped(worker, 2, config={"hang_start": True}, start_seconds=1.0) as group:
        with pytest.raises(RankFailed, match="rank 0 gave no answer within 1 s while in"):
            group.call("count")
        assert group.pids == []


def test_a_target_that_is_not_there_is_named(tmp_path: Path) -> None:
    with grouped(f"{tmp_path}/none.py:Worker", 1) as group, pytest.raises(RankFailed, match=r"none\.py"):
        group.call("count")


def test_leaving_ends_ranks_that_hang(worker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_END_SECONDS", 0.3)
    with grouped(worker, 1) as group:
        group.call("count")
        pids = group.pids
        os.kill(pids[0], signal.SIGSTOP)
        start = time.monotonic()
    assert time.monotonic() - start < PATIENCE_SECONDS
    assert all(map(gone, pids))


def test_sampler_keeps_one_group_for_the_launch(worker: str) -> None:
    sampler = Sampler()
    make: Callable[[], Any] = lambda: grouped(worker, 2)  # noqa: E731 - as a probe writes it
    group = sampler.shared(("ranks", 2), make)
    group.call("count")
    assert sampler.shared(("ranks", 2), make).call("count") == [2, 2]
    pids = group.pids
    sampler.close()
    assert all(map(gone, pids))


@pytest.mark.parametrize("from_thread", [False, True])
def test_ranks_die_with_a_killed_parent(worker: str, from_thread: bool) -> None:
    begin = "group.call('count'); print(*group.pids, flush=True)"
    run = f"import threading; t = threading.Thread(target=lambda: ({begin.replace('; ', ', ')})); t.start(); t.join()"
    code = f"import time; from iobench.ranks import RankGroup; group = RankGroup({worker!r}, 2, start_seconds=300)\n"
    code += f"{run if from_thread else begin}\ntime.sleep(3600)"
    root = str(Path(ranks.__file__).parents[2])
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": root}
    )
    with parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert not any(state(pid) in ("", "Z") for pid in pids)
        parent.kill()
    assert all(map(gone, pids))


def test_bad_pins_are_refused() -> None:
    with pytest.raises(ValueError, match="one set of CPUs per rank"):
        ranks.RankGroup("x:y", 2, pins=[[0]])
