"""A virtual machine that runs scripts: booted once, asked often.

    with Guest(machine.LAB) as guest:
        done = guest.run("ibv_devinfo", timeout=60)
        assert done.code == 0, done.text

The guest's root is this machine's root, read-only, under a tmpfs: every program and Python environment of the host
is there, whatever is written is gone afterwards. ``guest.shared`` is one folder on both sides (``/run/lab`` in the
guest). It always runs under QEMU's own translator: KVM can't execute vector instructions on emulated CXL memory,
and most build machines have none.
"""

from __future__ import annotations

import re
import select
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from lab import kernel
from lab.kernel import LabError
from lab.packages import program

BOOT_SECONDS = 150.0  # a quiet machine needs about 10: only a boot that hangs takes so long
RUN_SECONDS = 900.0
SHARED = "/run/lab"
_HERE = Path(__file__).parent
_KERNEL_LINE = "console=ttyS0 panic=-1 quiet tsc=reliable mitigations=off nokaslr audit=0 random.trust_cpu=on"


@dataclass(frozen=True)
class Machine:
    """What QEMU is to emulate: ``arguments`` beyond the base, ``disks`` name -> bytes as sparse raw files."""

    arguments: str
    machine: str = "q35"
    memory: str = "1G"
    cpus: int = 2
    disks: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Done:
    """What one script did."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def text(self) -> str:
        return f"exit {self.code} after {self.seconds:.1f} s\n{self.out}\n{self.err}"


def clock_of(cpuinfo: str) -> str:
    """Return the kernel's argument with the rate of the guest's clock, which is the host's counter; "" where unknown.

    The guest's kernel measures it at boot, and on a loaded machine sometimes finds a third of it: every deadline in the
    guest then ends three times too early. Linux gives x86 processors two bogomips for each MHz of the counter.
    """
    found = re.search(r"^bogomips\s*: ([0-9.]+)$", cpuinfo, re.MULTILINE)
    x86 = re.search(r"^flags\s*:.*\bconstant_tsc\b", cpuinfo, re.MULTILINE)
    return f"tsc_early_khz={round(float(found[1]) / 2 * 1000)}" if found and x86 else ""


class Guest:
    """A running machine; ends with the ``with`` block."""

    def __init__(self, machine: Machine, boot_seconds: float = BOOT_SECONDS) -> None:
        self.machine, self.boot_seconds = machine, boot_seconds
        self.booted = 0.0  # seconds from QEMU's start to the guest's first word
        self._count = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._port: socket.socket | None = None
        self._pending = b""

    def __enter__(self) -> Guest:
        self.folder = Path(tempfile.mkdtemp(prefix="iobench-lab-"))
        self.shared = self.folder / "shared"
        self.shared.mkdir()
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop()

    def run(self, script: str, modules: Sequence[str] = (), timeout: float = RUN_SECONDS) -> Done:
        """Run a bash script in the guest as root; return its exit status and what it wrote.

        ``modules`` are loaded first. A script that is not done after ``timeout`` seconds ends the machine with
        LabError: nothing tells what state it is in.
        """
        if self._port is None:
            raise LabError("the virtual machine is gone: an earlier script did not end")
        self._count += 1
        number, start = self._count, time.monotonic()
        load = f"modprobe -a {' '.join(modules)} || exit 125\n" if modules else ""
        (self.shared / f"{number}.sh").write_text(load + script + "\n")
        self._port.sendall(f"{number}\n".encode())
        answer = self._line(start + timeout)
        seconds = time.monotonic() - start
        if answer is None:
            state = self.console()[-2000:]
            self._stop_machine()
            raise LabError(f"no answer after {seconds:.0f} s to: {script[:200]}\n{self._output(number)}\n{state}")
        word, _, code = answer.removeprefix("done ").partition(" ")
        if word != str(number):
            raise LabError(f"the guest answered {answer!r} to script {number}")
        return Done(int(code), self._file(f"{number}.out"), self._file(f"{number}.err"), seconds)

    def console(self) -> str:
        """Return what the kernel wrote to its console."""
        return self._read(self.folder / "console")

    def _start(self) -> None:
        """Boot; a boot that hangs is tried once more."""
        booted = kernel.get()
        shutil.copy(_HERE / "guest/serve", self.shared / "serve")
        (self.shared / "modules").write_text(f"{booted.modules}\n")
        for name, nbytes in self.machine.disks:
            with (self.folder / name).open("wb") as file:
                file.truncate(nbytes)
        if not self._boot(booted) and not self._boot(booted):
            raise LabError(
                f"two boots gave no sign of life within {self.boot_seconds:.0f} s:\n{self.console()[-3000:]}"
            )

    def _boot(self, booted: kernel.Kernel) -> bool:
        self._stop_machine()
        start = time.monotonic()
        qemu = program("qemu-system-x86_64")
        if qemu is None:
            raise LabError("no qemu-system-x86_64: apt-get install qemu-system-x86")
        with (self.folder / "qemu").open("wb") as log:
            self._process = subprocess.Popen(
                # the machine ends with this process, even where that is killed
                ["setpriv", "--pdeathsig", "KILL", qemu, *self._arguments(booted)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._port = self._connect(start + self.boot_seconds)
        up = self._line(start + self.boot_seconds) if self._port else None
        self.booted = time.monotonic() - start
        return up is not None and up.startswith("up ")

    def _arguments(self, booted: kernel.Kernel) -> list[str]:
        own = self.machine
        base = f"""
            -accel tcg,thread=multi -cpu max -machine {own.machine} -m {own.memory} -smp {own.cpus}
            -nodefaults -no-user-config -display none -no-reboot
            -chardev file,id=console,path={self.folder}/console -serial chardev:console
            -chardev socket,id=orders,path={self.folder}/orders,server=on,wait=off -serial chardev:orders
            -kernel {booted.image} -initrd {booted.initramfs}
            -fsdev local,id=host,path=/,security_model=none,readonly=on,multidevs=remap
            -device virtio-9p-pci,fsdev=host,mount_tag=host,bus=pcie.0
            -fsdev local,id=lab,path={self.shared},security_model=none
            -device virtio-9p-pci,fsdev=lab,mount_tag=lab,bus=pcie.0"""
        line = f"{_KERNEL_LINE} {clock_of(Path('/proc/cpuinfo').read_text(encoding='utf-8', errors='replace'))}"
        return [*shlex.split(base), "-append", line, *shlex.split(own.arguments.format(folder=self.folder))]

    def _connect(self, end: float) -> socket.socket | None:
        while time.monotonic() < end and self._alive():
            port = socket.socket(socket.AF_UNIX)
            try:
                port.connect(f"{self.folder}/orders")
            except OSError:
                port.close()
                time.sleep(0.05)
            else:
                return port
        if not self._alive():
            raise LabError(f"QEMU ended at once: {self._read(self.folder / 'qemu')[-1000:]}")
        return None

    def _line(self, end: float) -> str | None:
        """Return the guest's next line, None where none comes before ``end`` or the machine ends."""
        while b"\n" not in self._pending:
            # looked at once more after the end: what came while this process was paused is there
            if self._port is None or not select.select([self._port], [], [], max(end - time.monotonic(), 0.0))[0]:
                return None
            data = self._port.recv(4096)
            if not data:
                return None
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return line.decode("utf-8", "replace").strip("\r\0")

    def _alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _stop_machine(self) -> None:
        if self._port is not None:
            self._port.close()
        self._port, self._pending = None, b""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _stop(self) -> None:
        self._stop_machine()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _output(self, number: int) -> str:
        return self._file(f"{number}.out")[-2000:] + self._file(f"{number}.err")[-2000:]

    def _file(self, name: str) -> str:
        return self._read(self.shared / name)

    @staticmethod
    def _read(file: Path) -> str:
        return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
