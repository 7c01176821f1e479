"""The state of a machine while a point runs: counters, processes, what disturbed it, gaps on a CPU.

Who used the CPUs is told of a pretended machine, whose clock and counters go as the test says; real processes show
that this system's files say the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from iobench import machine
from iobench.machine import counters, processes, read, spin, system, verdict
from tests.machines import tree

SPIN = "while True: pass"
TICK = system.tick_seconds()
KERNEL_THREAD = 0x00200000
PARENT, WORKER, STRANGER = 10, 20, 30
HANG_SECONDS = 600.0  # for what takes a moment where anything works at all


# --- counters ----------------------------------------------------------------------------------------


def test_parse_stat_with_odd_lines() -> None:
    rows = [
        "cpu  9 9 9 9 9 9 9 9 0 0",
        "cpu0 1 2 3 4 5 6 7 8 9 10",
        "cpu1 1 2 3 4",  # an old kernel's columns
        "cpu2 1 2",
        "cpu3 a b c d e",
        "cpux 1 2 3 4",
        "",
        "intr 1 2 3",
        "ctxt 42",
        "ctxt",
        "procs_running",
    ]
    cpus, switches = counters.parse_stat(rows)
    assert set(cpus) == {0, 1}
    assert cpus[0] == dict(zip(counters.COLUMNS, range(1, 9), strict=True))
    assert cpus[1] == {"user": 1, "nice": 2, "system": 3, "idle": 4}
    assert switches == 42


def _reading(at: float, **ticks: int) -> counters.Counters:
    return counters.Counters(at, {0: {name: ticks.get(name, 0) for name in counters.COLUMNS}})


def test_use_counts_all_but_idle_steal_and_interrupts_as_busy() -> None:
    after = _reading(1.0, user=50, idle=30, iowait=5, steal=10, irq=5)
    found = counters.use(_reading(0.0), after, {0}, 0.01)
    assert found is not None
    assert (found.busy, found.steal, found.interrupts) == pytest.approx((0.5, 0.1, 0.05))


def test_use_is_unknown_where_proc_stat_stands_still() -> None:
    assert counters.use(_reading(0.0), _reading(1.0), {0}, 0.01) is None
    assert counters.use(_reading(0.0), _reading(1.0, idle=100), {7}, 0.01) is None


def test_process_names_with_brackets_and_blanks(tmp_path: Path) -> None:
    def stat(parent: int, session: int, used: int, reaped: int, flags: int = 0) -> str:
        return f"1 (a) b) (c) S {parent} 1 {session} 0 -1 {flags} 0 0 0 0 {used} 0 {reaped} 0 20 0 1 0 5\n"

    root = tree(
        tmp_path,
        {
            "proc/2/stat": stat(0, 0, 0, 0, KERNEL_THREAD),
            "proc/9/stat": stat(2, 0, 7, 0, KERNEL_THREAD | 0x40),
            "proc/10/stat": stat(1, 1, 100, 900),  # the parent
            "proc/20/stat": stat(10, 20, 10, 5),  # the session's leader
            "proc/21/stat": stat(20, 21, 3, 0),  # a rank with a session of its own
            "proc/30/stat": stat(10, 1, 50, 0),  # another child of the parent: not ours
            "proc/40/stat": "torn",
        },
    )
    found = processes.scan(root, session=20, tick=0.01, self_pid=10)
    assert set(found.own) == {10, 20, 21}
    assert found.kernel_seconds == pytest.approx(0.07)
    assert processes.own_seconds(processes.Scan(), found, 10) == pytest.approx(1.00 + 0.15 + 0.03)


def test_a_reaped_child_stays_in_the_account() -> None:
    before = processes.Scan({20: processes.Process(10, 20, 1.0, 0.0), 21: processes.Process(20, 20, 2.0, 0.0)})
    after = processes.Scan({20: processes.Process(10, 20, 1.1, 2.5)})
    assert processes.own_seconds(before, after, 10) == pytest.approx(0.6)
    assert not processes.leader_gone(before, after, 20)
    assert processes.leader_gone(before, processes.Scan(), 20)


# --- disturbances ------------------------------------------------------------------------------------


def test_watch_on_a_tree_without_proc_says_nothing(tmp_path: Path) -> None:
    watch = machine.Watch(1, {0}, tmp_path)
    watch.begin()
    watch.sample()
    state = watch.end()
    assert set(state["during"]) == {"seconds"}
    assert machine.disturbance(state, {0}) == ""


def test_watch_reads_throttling_and_pressure(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cpu.stat": "nr_throttled 1\nthrottled_usec 10000\n",
            "proc/pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000\n",
            "proc/loadavg": "1.50 0.5 0.5 3/120 999\n",
            "sys/class/thermal/thermal_zone0/temp": "41000\n",
            "sys/class/thermal/thermal_zone1/temp": "-273000\n",
        },
    )
    watch = machine.Watch(1, {0}, root)
    watch.begin()
    tree(
        root,
        {
            "sys/fs/cgroup/cpu.stat": "nr_throttled 4\nthrottled_usec 130000\n",
            "proc/pressure/cpu": "some avg10=0.00 total=251000\n",
            "proc/loadavg": "1.50 0.5 0.5 9/120 999\n",
        },
    )
    state = watch.end()
    assert state["before"] == {"load": 1.5, "running": 3, "temperature_celsius": 41.0}
    assert state["during"]["throttled"] == {"count": 3, "seconds": pytest.approx(0.12)}
    assert state["during"]["pressure_seconds"] == {"cpu_some": pytest.approx(0.25)}
    assert state["during"]["running_most"] == 9
    sentence = machine.disturbance(state, {0})
    assert "3 times (0.12 s)" in sentence
    assert "raise the quota" in sentence


def _state(seconds: float, **during: object) -> dict[str, dict[str, object]]:
    return {"during": {"seconds": seconds, **during}}


@pytest.mark.parametrize(
    ("state", "disturbed"),
    [
        (_state(10.0, others_cpus=0.09), False),
        (_state(10.0, others_cpus=0.11), True),
        (_state(0.1, others_cpus=0.40), False),  # 4 ticks on 2 CPUs: rounding
        (_state(0.1, others_cpus=0.50), True),
        (_state(0.3, others_cpus=0.13), False),
        (_state(0.3, others_cpus=0.20), True),
        (_state(10.0, others_cpus=0.5, own_cpus=64.0), False),  # the kernel's cost of 64 CPUs of our own
        (_state(0.1, steal_fraction=0.10), False),  # 2 ticks
        (_state(1.0, steal_fraction=0.03), True),
        (_state(10.0, steal_fraction=0.009), False),
        (_state(10.0, elsewhere_cpus=2.0, elsewhere_count=126), False),
        (_state(10.0, elsewhere_cpus=3.0, elsewhere_count=126), True),
        (_state(1.0, throttled={"count": 0, "seconds": 0.0}), False),
        ({}, False),
    ],
)
def test_limits(state: dict[str, dict[str, object]], disturbed: bool) -> None:
    assert bool(machine.disturbance(state, {0, 1})) is disturbed


def test_the_sentence_names_figure_limit_and_next_step() -> None:
    sentence = machine.disturbance(_state(1.0, others_cpus=0.42), {0, 1})
    assert sentence.startswith("others used 0.42 CPUs (limit 0.10) while it ran: stop them")


@dataclass
class Pretended:
    """A machine of two CPUs as /proc shows it. ``processes``: number -> parent, session, flags, CPU seconds so far."""

    root: Path
    now: float = 0.0
    processes: dict[int, list[Any]] = field(default_factory=dict)
    _used: float = 0.0

    def add(self, pid: int, parent: int, session: int, flags: int = 0) -> None:
        self.processes[pid] = [parent, session, flags, 0.0]
        self.goes_on(0.0)

    def goes_on(self, seconds: float, **busy: float) -> None:
        """Let time pass; ``busy`` names processes ("pid20") and the CPUs that each kept busy."""
        self.now += seconds
        for name, cpus in busy.items():
            self.processes[int(name[3:])][3] += seconds * cpus
            self._used += seconds * cpus
        ticks = [round(value / TICK) for value in (self._used, 2 * self.now - self._used)]
        rows = f"cpu0 {ticks[0]} 0 0 {ticks[1]} 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0\n"
        stats = {f"proc/{pid}/stat": self._stat(pid, *about) for pid, about in self.processes.items()}
        tree(self.root, {"proc/stat": rows, **stats})

    def _stat(self, pid: int, parent: int, session: int, flags: int, seconds: float) -> str:
        used = round(seconds / TICK)
        return f"{pid} (a) b) (c) S {parent} 1 {session} 0 -1 {flags} 0 0 0 0 {used} 0 0 0 20 0 1 0 5\n"


@pytest.fixture
def pretended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pretended:
    """The parent, its worker in a session of its own, and a stranger."""
    made = Pretended(tmp_path)
    monkeypatch.setattr(counters, "time", SimpleNamespace(perf_counter=lambda: made.now))
    monkeypatch.setattr(machine.watch, "os", SimpleNamespace(getpid=lambda: PARENT))
    for pid, parent, session in ((PARENT, 1, 1), (WORKER, PARENT, WORKER), (STRANGER, 1, STRANGER)):
        made.add(pid, parent, session)
    return made


def _seen(made: Pretended, *sessions: int, seconds: float = 2.0, **busy: float) -> list[dict[str, Any]]:
    """Return what a watch over each of ``sessions`` saw of the next ``seconds``."""
    watches = [machine.Watch(session, {0, 1}, made.root) for session in sessions]
    for watch in watches:
        watch.begin()
    made.goes_on(seconds, **busy)
    return [watch.end() for watch in watches]


def test_a_strangers_load_is_noticed(pretended: Pretended) -> None:
    (state,) = _seen(pretended, WORKER, pid30=1.0)
    assert state["during"]["others_cpus"] == pytest.approx(1.0)
    assert machine.disturbance(state, {0, 1}).startswith("others used 1.00 CPUs")


def test_our_own_load_is_not_blamed_on_others(pretended: Pretended) -> None:
    """The same load is others' to a stranger and no load of others to its own session."""
    ours, strangers = _seen(pretended, WORKER, 1 << 22, pid20=1.5, pid10=0.25)
    assert ours["during"]["own_cpus"] == pytest.approx(1.75)
    assert ours["during"]["others_cpus"] == pytest.approx(0.0)
    assert machine.disturbance(ours, {0, 1}) == ""
    assert strangers["during"]["others_cpus"] == pytest.approx(1.5)


def test_a_rank_that_leaves_the_session_stays_ours(pretended: Pretended) -> None:
    pretended.add(21, parent=WORKER, session=21)
    (state,) = _seen(pretended, WORKER, pid21=0.8)
    assert state["during"]["own_cpus"] == pytest.approx(0.8)
    assert machine.disturbance(state, {0, 1}) == ""


def test_kernel_threads_are_told_by_their_flag(pretended: Pretended) -> None:
    """In a container process 2 may be a shell: what it started is no kernel thread."""
    pretended.add(2, parent=0, session=0, flags=KERNEL_THREAD)
    pretended.add(9, parent=2, session=0, flags=KERNEL_THREAD | 0x40)
    (state,) = _seen(pretended, WORKER, pid9=0.6)
    assert state["during"]["kernel_thread_cpus"] == pytest.approx(0.6)
    assert machine.disturbance(state, {0, 1}) == ""
    pretended.processes[2][:3] = [1, 1, 0]
    pretended.processes[9][:3] = [2, 1, 0]
    (state,) = _seen(pretended, WORKER, pid9=0.6)
    assert "others used 0.60 CPUs" in machine.disturbance(state, {0, 1})


own_proc = pytest.mark.skipif(
    Path("/proc/self").resolve().name != str(os.getpid()), reason="/proc shows another PID namespace than ours"
)


@contextlib.contextmanager
def _started(code: str) -> Iterator[int]:
    """Run Python ``code`` in a session of its own; yield its number, end it and all that it started."""
    process = subprocess.Popen([sys.executable, "-S", "-c", code], start_new_session=True)
    try:
        yield process.pid
    finally:
        for pid in [*processes.scan(Path("/"), process.pid, TICK, -1).own, process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        process.wait()


def _wait(until: Callable[[], bool]) -> None:
    end = time.monotonic() + HANG_SECONDS
    while not until():
        assert time.monotonic() < end, "nothing of it came"
        time.sleep(0.02)


@own_proc
def test_real_processes_are_accounted_to_their_session() -> None:
    rank = f"subprocess.run([sys.executable, '-S', '-c', {SPIN!r}], start_new_session=True)"
    with _started(f"import subprocess, sys; {rank}") as leader:

        def scan(session: int) -> dict[int, processes.Process]:
            return processes.scan(Path("/"), session, TICK, -1).own

        _wait(lambda: any(pid != leader and one.seconds > 0.05 for pid, one in scan(leader).items()))
        (child,) = set(scan(leader)) - {leader}
        assert os.getsid(child) == child
        assert not {leader, child} & set(scan(1 << 22))


@own_proc
def test_a_real_spinner_is_noticed() -> None:
    """Watched again until it is: on a busy machine it starts late and gets little at times."""
    cpus = os.sched_getaffinity(0)
    seconds = max(0.5, 4 * verdict._noise_cpu_seconds(len(cpus)))
    with _started(SPIN) as spinner:
        for _ in range(100):
            state = _watched(1 << 22, seconds)
            if "others used" in machine.disturbance(state, cpus):
                return
        used = processes.scan(Path("/"), spinner, TICK, -1).own[spinner].seconds
    if "others_cpus" not in state["during"]:
        pytest.skip("/proc/stat is not kept up on this system")
    if used < 0.2 * 100 * seconds:
        pytest.skip("this system gives the spinner no CPU")
    pytest.fail(f"not noticed: {state['during']}")


def _watched(session: int, seconds: float) -> dict[str, dict[str, Any]]:
    watch = machine.Watch(session, os.sched_getaffinity(0))
    watch.begin()
    time.sleep(seconds)
    watch.sample()
    return watch.end()


def test_short_quiet_points_raise_no_alarm() -> None:
    """A fake quiet machine with every rounding that whole ticks allow: never an alarm at 0.1 s."""
    rng = random.Random(1)
    for _ in range(200):
        seconds, own = 0.1, rng.uniform(0, 2)
        idle = [(1 - own / 2) * seconds / TICK + rng.uniform(-1, 1) for _ in range(2)]
        before = counters.Counters(0.0, {i: dict.fromkeys(counters.COLUMNS, 0) for i in range(2)})
        after = counters.Counters(
            seconds,
            {i: dict.fromkeys(counters.COLUMNS, 0) | {"idle": max(0, int(v)), "user": 10} for i, v in enumerate(idle)},
        )
        used = counters.use(before, after, {0, 1}, TICK)
        assert used is not None
        state = _state(seconds, others_cpus=max(used.busy / seconds - own, 0), own_cpus=own)
        assert machine.disturbance(state, {0, 1}) == ""


def test_state_is_json() -> None:
    json.dumps(_watched(os.getsid(0), 0.1), allow_nan=False)


def test_points_right_after_each_other_share_a_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.watch, "_FRESH_SECONDS", float("inf"))
    watch = machine.Watch(os.getsid(0), os.sched_getaffinity(0))
    watch.begin()
    first = watch.end()
    watch.begin()
    second = watch.end()
    assert second["before"] is first["after"]
    monkeypatch.setattr(machine.watch, "_FRESH_SECONDS", -1.0)
    watch.begin()
    assert watch.end()["before"] is not second["after"]


def test_watching_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample while a point runs reads the load and a few frequencies, however many CPUs and processes there are."""
    watch = machine.Watch(os.getsid(0), set(range(1000)))
    watch._cpufreq = True
    really, asked = read.text, []

    def text(path: Path) -> str | None:
        asked.append(path)
        return really(path)

    monkeypatch.setattr(read, "text", text)
    watch.sample()
    assert 1 <= len(asked) <= 10


# --- gaps --------------------------------------------------------------------------------------------


def test_gaps_restores_the_affinity_and_reports_fractions() -> None:
    before = os.sched_getaffinity(0)
    found = machine.gaps([*before, 4095], seconds=0.005)
    assert os.sched_getaffinity(0) == before
    assert found["cpus"] == len(before)
    assert 0.0 <= found["fraction"] <= 1.0
    assert found["longest_seconds"] == 0.0 or found["longest_seconds"] > spin.GAP_SECONDS


def test_gaps_counts_only_long_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0, 10_000, 20_000, 320_000, 330_000, 1_000_000])
    monkeypatch.setattr(spin, "time", SimpleNamespace(perf_counter_ns=lambda: next(ticks)))
    lost, spun, longest = spin._spin(1_000_000)
    assert (lost, spun, longest) == (300_000 + 670_000, 1_000_000, 670_000)


def test_gaps_without_a_usable_cpu() -> None:
    assert machine.gaps([4095]) == {"fraction": 0.0, "longest_seconds": 0.0, "cpus": 0}
