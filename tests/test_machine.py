"""Facts, state and disturbances: captured trees for the facts, real processes for the verdicts."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from iobench import machine
from iobench.machine import cgroup, counters, cpu, memory, processes, read, spin, system

SPIN = "while True: pass"
TICK = system.tick_seconds()


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return root


# --- readers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0-3,8\n", [0, 1, 2, 3, 8]), ("5", [5]), ("", None), ("a-b", None), ("1-", [1]), ("0-1,,3", None)],
)
def test_number_list(text: str, expected: list[int] | None) -> None:
    assert read.number_list(text) == expected


def test_missing_odd_and_empty_files_are_unknown_not_zero(tmp_path: Path) -> None:
    tree(tmp_path, {"empty": "\n", "word": "Unknown\n", "number": " -1\n", "binary": "\x00\x01"})
    assert read.text(tmp_path / "empty") is None
    assert read.number(tmp_path / "word") is None
    assert read.number(tmp_path / "gone") is None
    assert read.number(tmp_path) is None
    assert read.number(tmp_path / "number") == -1
    assert read.chosen(tmp_path / "word") is None


# --- facts -------------------------------------------------------------------------------------------


def test_facts_of_an_empty_tree_hold_no_invented_value(tmp_path: Path) -> None:
    facts = machine.facts(tmp_path)
    assert facts["cpu"] == {}
    assert facts["memory"] == {}
    assert facts["cgroup"] == {}
    assert facts["kernel"] == {}
    assert facts["virtual"] == {"kind": "unknown"}


def test_facts_of_this_machine_are_plain_and_private() -> None:
    facts = machine.facts()
    text = json.dumps(facts, allow_nan=False)
    assert set(facts["cpu"]["allowed"]) == os.sched_getaffinity(0)
    assert facts["memory"]["total_nbytes"] > facts["memory"]["available_nbytes"] > 0
    assert facts["python"]["version"] == sys.version.split()[0]
    assert "numpy" in facts["packages"]
    host = os.uname().nodename
    assert len(host) < 4 or host not in text


def test_facts_import_no_heavy_package() -> None:
    code = "import sys; from iobench import machine; machine.facts(); print([m for m in HEAVY if m in sys.modules])"
    code = code.replace("HEAVY", "('numpy', 'torch', 'scipy', 'numba')")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_cpu_facts_of_a_physical_machine_with_cpufreq(tmp_path: Path) -> None:
    base = "sys/devices/system/cpu"
    root = tree(
        tmp_path,
        {
            "proc/cpuinfo": "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n"
            "model name\t: Intel(R) Xeon(R)\nflags\t\t: fpu avx2\n\nprocessor\t: 1\nmodel name\t: other\n",
            "proc/self/status": "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t0,2-3\nMems_allowed_list:\t0-1\n",
            f"{base}/online": "0-7\n",
            f"{base}/smt/active": "1\n",
            f"{base}/cpu0/cpufreq/scaling_governor": "powersave\n",
            f"{base}/cpu0/cpufreq/scaling_driver": "intel_pstate\n",
            f"{base}/cpu0/cpufreq/scaling_min_freq": "800000\n",
            f"{base}/cpu0/cpufreq/scaling_max_freq": "3800000\n",
            f"{base}/cpu0/cpufreq/scaling_cur_freq": "2500000\n",
            f"{base}/intel_pstate/no_turbo": "1\n",
            f"{base}/vulnerabilities/meltdown": "Not affected\n",
            f"{base}/vulnerabilities/retbleed": "Mitigation: IBRS\n",
        },
    )
    facts = cpu.facts(root)
    assert (facts["vendor"], facts["family"], facts["model"]) == ("GenuineIntel", 6, 143)
    assert facts["allowed"] == [0, 2, 3]
    assert facts["smt"] is True
    assert facts["frequency"] == {
        "driver": "intel_pstate", "governor": "powersave", "min_hz": 8e8, "max_hz": 3.8e9, "boost": False,
    }  # fmt: skip
    assert facts["mitigations"] == {"retbleed": "Mitigation: IBRS"}
    assert cpu.frequencies(root, [0, 1]) == [2.5e9]
    assert system.virtual(root)["kind"] == "physical"
    assert memory.facts(root) == {"nodes_allowed": [0, 1]}


def test_frequency_comes_from_cpuinfo_without_cpufreq(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {"proc/cpuinfo": "processor: 0\ncpu MHz: 2445.4\nprocessor: 1\ncpu MHz: odd\nprocessor: 2\ncpu MHz: 1000\n"},
    )
    assert cpu.frequencies(root, [0, 1]) == [2445.4e6]


def test_memory_facts(tmp_path: Path) -> None:
    mm = "sys/kernel/mm"
    root = tree(
        tmp_path,
        {
            "proc/meminfo": "MemTotal:  1024 kB\nMemAvailable:  512 kB\nSwapTotal: 0 kB\nHugePages_Total: 3\nodd\n",
            f"{mm}/transparent_hugepage/enabled": "always [madvise] never\n",
            f"{mm}/transparent_hugepage/defrag": "always defer defer+madvise [madvise] never\n",
            f"{mm}/hugepages/hugepages-1048576kB/nr_hugepages": "0\n",
            f"{mm}/hugepages/hugepages-2048kB/nr_hugepages": "16\n",
            f"{mm}/hugepages/hugepages-2048kB/free_hugepages": "4\n",
            f"{mm}/hugepages/hugepages-odd/nr_hugepages": "4\n",
            "proc/sys/kernel/numa_balancing": "1\n",
        },
    )
    assert memory.facts(root) == {
        "total_nbytes": 1 << 20,
        "available_nbytes": 1 << 19,
        "swap_total_nbytes": 0,
        "thp": "madvise",
        "thp_defrag": "madvise",
        "huge_pages": [{"page_nbytes": 2 << 20, "total": 16, "free": 4}, {"page_nbytes": 1 << 30, "total": 0}],
        "numa_balancing": 1,
    }


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/cpuinfo": "flags : fpu hypervisor\n"}, "virtual"),
        ({"proc/cpuinfo": "flags : fpu\n", "sys/class/dmi/id/product_name": "KVM"}, "virtual"),
        ({"proc/cpuinfo": "CPU implementer : 0x41\n"}, "unknown"),
        ({"sys/class/dmi/id/product_name": "PowerServer 12"}, "physical"),
    ],
)
def test_virtual_physical_unknown(tmp_path: Path, files: dict[str, str], expected: str) -> None:
    assert system.virtual(tree(tmp_path, files))["kind"] == expected


def test_container_hints_and_command_line(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            ".dockerenv": "",
            "proc/self/mounts": "overlay / overlay rw,lowerdir=x 0 0\nproc /proc proc rw 0 0\n",
            "proc/cmdline": "BOOT_IMAGE=/vmlinuz root=UUID=1234 ip=10.0.0.5 isolcpus=2-3 mitigations=off\n",
        },
    )
    assert system.virtual(root)["container"] == ["docker", "overlay root"]
    assert system.kernel(root) == {"command_line": ["isolcpus=2-3", "mitigations=off"]}


# --- control groups ----------------------------------------------------------------------------------


def test_cgroup_v2_tightest_of_the_path(tmp_path: Path) -> None:
    group = "sys/fs/cgroup"
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user.slice/job\n",
            f"{group}/user.slice/cpu.max": "150000 100000\n",
            f"{group}/user.slice/memory.max": "2147483648\n",
            f"{group}/user.slice/job/cpu.max": "max 100000\n",
            f"{group}/user.slice/job/memory.max": "max\n",
            f"{group}/user.slice/job/cpu.stat": "usage_usec 5\nnr_throttled 2\nthrottled_usec 30000\n",
            f"{group}/user.slice/cpu.stat": "nr_throttled 1\nthrottled_usec 10000\n",
        },
    )
    assert cgroup.facts(root) == {"version": "v2", "cpu_quota_cpus": 1.5, "memory_limit_nbytes": 2 << 30}
    assert cgroup.throttled(root) == {"count": 3, "seconds": pytest.approx(0.04)}


@pytest.mark.parametrize("mount", ["cpu,cpuacct", "cpu"])
def test_cgroup_v1_limits(tmp_path: Path, mount: str) -> None:
    group = "sys/fs/cgroup"
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/job\n1:cpu,cpuacct:/job\n",
            f"{group}/{mount}/job/cpu.cfs_quota_us": "50000\n",
            f"{group}/{mount}/job/cpu.cfs_period_us": "100000\n",
            f"{group}/{mount}/cpu.cfs_quota_us": "-1\n",
            f"{group}/{mount}/job/cpu.stat": "nr_periods 9\nnr_throttled 4\nthrottled_time 500000000\n",
            f"{group}/memory/job/memory.limit_in_bytes": "1073741824\n",
            f"{group}/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert cgroup.facts(root) == {"version": "v1", "cpu_quota_cpus": 0.5, "memory_limit_nbytes": 1 << 30}
    assert cgroup.throttled(root) == {"count": 4, "seconds": pytest.approx(0.5)}


@pytest.mark.parametrize("limit", ["9223372036854771712", "18446744073709551615", "max", "-1", "odd"])
def test_cgroup_unlimited_memory_is_no_limit(tmp_path: Path, limit: str) -> None:
    files = {
        "proc/self/cgroup": "4:memory:/\n0::/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": limit,
        "sys/fs/cgroup/memory.max": limit,
    }
    assert "memory_limit_nbytes" not in cgroup.facts(tree(tmp_path, files))


@pytest.mark.parametrize("path", ["/docker/0123456789ab", "/../../sibling", "/"])
def test_cgroup_path_of_the_host_inside_a_container(tmp_path: Path, path: str) -> None:
    files = {"proc/self/cgroup": f"0::{path}\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}
    assert cgroup.facts(tree(tmp_path, files))["cpu_quota_cpus"] == 2.0


@pytest.mark.parametrize("quota", ["0 0", "max", "100000 0", "-5 100000", "", "a b"])
def test_cgroup_odd_quotas_are_no_quota(tmp_path: Path, quota: str) -> None:
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": quota}
    assert cgroup.cpu_quota(tree(tmp_path, files)) is None


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
    def stat(parent: int, session: int, used: int, reaped: int) -> str:
        return f"1 (a) b) (c) S {parent} 1 {session} 0 -1 0 0 0 0 0 {used} 0 {reaped} 0 20 0 1 0 5\n"

    root = tree(
        tmp_path,
        {
            "proc/2/stat": stat(0, 0, 0, 0),
            "proc/9/stat": stat(2, 0, 7, 0),  # a kernel thread
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


@contextlib.contextmanager
def _spinning(session: bool) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-S", "-c", SPIN], start_new_session=session)
    try:
        time.sleep(0.15)
        yield process
    finally:
        process.kill()
        process.wait()


def _watched(session: int, seconds: float) -> dict[str, dict[str, object]]:
    watch = machine.Watch(session, os.sched_getaffinity(0))
    watch.begin()
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        time.sleep(0.1)
        watch.sample()
    return watch.end()


def _watched_until(session: int, seen: Callable[[dict[str, Any]], bool]) -> dict[str, dict[str, Any]]:
    """Watch again until ``seen``: on a busy machine the spinner starts late and gets little at times."""
    for _ in range(60):
        state = _watched(session, 0.5)
        if seen(state["during"]):
            break
    return state


def _needs_proc_stat(state: dict[str, dict[str, object]]) -> None:
    if "others_cpus" not in state["during"]:
        pytest.skip("/proc/stat is not kept up on this system")


def test_a_foreign_spinner_is_noticed() -> None:
    with _spinning(session=True):
        state = _watched_until(1 << 22, lambda during: during.get("others_cpus", 1.0) > 0.15)
    _needs_proc_stat(state)
    assert state["during"]["others_cpus"] > 0.15
    assert "others used" in machine.disturbance(state, os.sched_getaffinity(0))


def test_our_own_load_is_not_blamed_on_others() -> None:
    """The same spinner is others' load to a stranger and no load of others to its own session."""
    with _spinning(session=True) as process:
        cpus = os.sched_getaffinity(0)
        ours, strangers = machine.Watch(process.pid, cpus), machine.Watch(1 << 22, cpus)
        differences = []
        for _ in range(40):
            ours.begin()
            strangers.begin()
            time.sleep(0.6)
            state, other = ours.end()["during"], strangers.end()["during"]
            _needs_proc_stat({"during": state})
            # Whatever else runs on this machine is in both figures: the difference is the spinner alone. The two
            # read the counters one after the other: what happens in between may be in one figure only.
            differences.append((state["own_cpus"], other["others_cpus"] - state["others_cpus"]))
            if state["own_cpus"] > 0.05 and differences[-1][1] == pytest.approx(state["own_cpus"], abs=0.1):
                return
    pytest.fail(f"own CPUs and the difference of others' CPUs: {differences}")


def _of(session: int) -> list[int]:
    return list(processes.scan(Path("/"), session, TICK, -1).own)


def test_a_rank_that_leaves_the_session_stays_ours() -> None:
    rank = f"subprocess.run([sys.executable, '-S', '-c', {SPIN!r}], start_new_session=True, timeout=120)"
    code = f"import subprocess, sys; {rank}"
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        state = _watched_until(
            process.pid, lambda during: during.get("own_cpus", 0) > 0.05 and len(_of(process.pid)) > 1
        )
    finally:
        with contextlib.suppress(ProcessLookupError):
            for pid in _of(process.pid):
                os.kill(pid, 9)
        process.wait()
    assert state["during"]["own_cpus"] > 0.05


def test_short_quiet_points_raise_no_alarm(tmp_path: Path) -> None:
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
    monkeypatch.setattr(machine.watch, "_FRESH_SECONDS", 60.0)
    watch = machine.Watch(os.getsid(0), os.sched_getaffinity(0))
    watch.begin()
    first = watch.end()
    watch.begin()
    second = watch.end()
    assert second["before"] is first["after"]
    monkeypatch.setattr(machine.watch, "_FRESH_SECONDS", 0.0)
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
    monkeypatch.setattr(time, "perf_counter_ns", lambda: next(ticks))
    lost, spun, longest = spin._spin(1_000_000)
    assert (lost, spun, longest) == (300_000 + 670_000, 1_000_000, 670_000)


def test_gaps_without_a_usable_cpu() -> None:
    assert machine.gaps([4095]) == {"fraction": 0.0, "longest_seconds": 0.0, "cpus": 0}


# --- environment -------------------------------------------------------------------------------------


def test_environment_is_an_allow_list() -> None:
    given = {"NCCL_DEBUG": "INFO", "GLOO_SOCKET_IFNAME": "lo", "HOME": "/root", "PATH": "/bin", "XNCCL_A": "1"}
    assert machine.environment(given) == {"GLOO_SOCKET_IFNAME": "lo", "NCCL_DEBUG": "INFO"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FI_AUTH_KEY", "1"),
        ("KVIKIO_S3_TOKEN", "short"),
        ("NCCL_X", "https://someone:word@host/x"),
        ("UCX_X", "0123456789abcdef0123456789abcdef01"),
        ("CUDA_X", "ghp_abcdefgh12345678"),
        ("OMP_X", "-----BEGIN PRIVATE KEY-----"),
        ("NCCL_HOSTID", "node17"),
        ("NCCL_COMM_ID", "node17:5000"),
    ],
)
def test_secrets_and_host_names_are_left_out(name: str, value: str) -> None:
    assert machine.environment({name: value}) == {}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0,1", "0,1"),
        ("mlx5_0:1,mlx5_1:1", "mlx5_0:1,mlx5_1:1"),
        ("/home/somebody/topo.xml", "/home/<user>/topo.xml"),
        ("192.168.0.7:500", "<address>:500"),
        ("fe80::1ff:fe23:4567:890a", "<address>"),
        ("aa:bb:cc:dd:ee:ff", "<address>"),
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-<uuid>"),
        ("/usr/lib/x86_64-linux-gnu/libnccl-net.so", "/usr/lib/x86_64-linux-gnu/libnccl-net.so"),
    ],
)
def test_private_values_are_masked(value: str, expected: str) -> None:
    assert machine.environment({"NCCL_X": value}) == {"NCCL_X": expected}
