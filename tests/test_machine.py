"""Facts about the machine out of captured trees: readers, processors, memory, control groups, environment."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from iobench import machine
from iobench.machine import cgroup, cpu, memory, read, system
from tests.conftest import cli_environment
from tests.machines import tree

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


def test_facts_of_this_machine_are_plain_and_private(monkeypatch: pytest.MonkeyPatch) -> None:
    name, _, *others = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result([name, "a-host-of-ours", *others]))
    monkeypatch.setattr(platform, "_uname_cache", None, raising=False)
    monkeypatch.setattr(socket, "gethostname", lambda: "a-host-of-ours")
    really, asked = read.text, []
    monkeypatch.setattr(read, "text", lambda path: asked.append(path.name) or really(path))
    facts = machine.facts()
    text = json.dumps(facts, allow_nan=False)
    assert os.sched_getaffinity(0) <= set(facts["cpu"]["allowed"])  # which may hold CPUs that are not plugged in
    assert facts["memory"]["total_nbytes"] >= facts["memory"]["available_nbytes"] >= 0
    assert facts["python"]["version"] == platform.python_version()
    assert "numpy" in facts["packages"]
    assert "a-host-of-ours" not in text
    assert "osrelease" in asked
    assert "hostname" not in asked


def test_facts_import_no_heavy_package() -> None:
    code = "import sys; from iobench import machine; machine.facts(); print([m for m in HEAVY if m in sys.modules])"
    code = code.replace("HEAVY", "('numpy', 'torch', 'scipy', 'numba')")
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=cli_environment())
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


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
