"""The lab's runner, without a virtual machine: what it needs, what it asks QEMU for, how it fails."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from lab import cli, kernel, machine, packages, vm
from lab.kernel import LabError

APT = """linux-image-amd64
  Depends: linux-image-6.1.0-57-amd64
  Recommends: firmware-linux-free
"""


def test_the_kernel_behind_the_meta_package() -> None:
    assert kernel.newest_package(APT) == "linux-image-6.1.0-57-amd64"
    with pytest.raises(LabError, match="apt-get update"):
        kernel.newest_package("")


def test_missing_packages_are_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "program", lambda name: None if name == "qemu-system-x86_64" else f"/bin/{name}")
    reason = packages.why_not()
    assert "qemu-system-x86" in reason
    assert packages.INSTALL in reason


def test_without_apt_the_sentence_names_debian(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "program", lambda name: None)
    assert "Debian" in packages.why_not()


def test_the_machine_that_is_asked_for() -> None:
    words = machine.LAB.arguments.split()
    assert words.count("-numa") == 4 + 6 + 8 + 8
    assert all("initiator=" in word for word in words if word.startswith("node,"))
    ports = [word for word in words if word.startswith("cxl-rp,")]
    assert len(ports) == 2, "with one root port what is written to CXL memory is silently lost"
    assert all(
        "bus=" in word for word in words if word.startswith(("nvme,", "virtio-net", "cxl-rp", "cxl-type3", "pcie-root"))
    )


def test_the_guest_gets_nothing_of_the_host_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("IOBENCH_LAB_CACHE", str(tmp_path))
    monkeypatch.setenv("SECRET", "1")
    line = cli.script("run null", "topology")
    assert f"NUMBA_CACHE_DIR={tmp_path}/kernels" in line
    assert line.endswith("lab.many 'run null' topology")
    assert "SECRET" not in line


def test_the_guest_is_told_the_rate_of_its_clock() -> None:
    x86 = "processor\t: 0\nflags\t\t: fpu tsc constant_tsc\nbogomips\t: 4890.85\n"
    assert vm.clock_of(x86) == "tsc_early_khz=2445425"
    assert vm.clock_of(x86.replace("constant_tsc", "x")) == ""
    assert vm.clock_of("processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd\n") == ""


def guest(tmp_path: Path) -> tuple[vm.Guest, socket.socket]:
    made = vm.Guest(machine.LAB)
    made.folder, made.shared = tmp_path, tmp_path
    made._port, other = socket.socketpair()
    return made, other


def test_an_answer_that_is_there_is_read_after_the_deadline_too(tmp_path: Path) -> None:
    made, other = guest(tmp_path)
    assert made._line(0.0) is None
    other.sendall(b"done 1 0\n")
    assert made._line(0.0) == "done 1 0"
    other.close()
    assert made._line(0.0) is None


def test_a_script_and_its_answer(tmp_path: Path) -> None:
    made, other = guest(tmp_path)
    other.sendall(b"done 1 3\r\n")
    (tmp_path / "1.out").write_text("said")
    done = made.run("true", modules=["rdma_rxe"], timeout=600)
    assert (done.code, done.out, done.err) == (3, "said", "")
    assert other.recv(100) == b"1\n"
    assert (tmp_path / "1.sh").read_text() == "modprobe -a rdma_rxe || exit 125\ntrue\n"


def test_a_script_that_never_answers_ends_the_machine(tmp_path: Path) -> None:
    made, _other = guest(tmp_path)
    (tmp_path / "console").write_text("kernel said this")
    with pytest.raises(LabError, match="kernel said this"):
        made.run("sleep inf", timeout=0.05)
    with pytest.raises(LabError, match="gone"):
        made.run("true")


def test_a_boot_that_hangs_is_tried_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    boots: list[bool] = []
    made = vm.Guest(vm.Machine(""))
    made.folder, made.shared = tmp_path, tmp_path
    none = kernel.Kernel("0", tmp_path, tmp_path, tmp_path)
    monkeypatch.setattr(kernel, "get", lambda: none)
    monkeypatch.setattr(made, "_boot", lambda booted: boots.append(True) or len(boots) == 2)
    made._start()
    assert len(boots) == 2
    monkeypatch.setattr(made, "_boot", lambda booted: False)
    with pytest.raises(LabError, match="two boots"):
        made._start()
