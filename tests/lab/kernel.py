"""The guest's kernel: a stock Debian package, unpacked into a cache; the initramfs is built from it."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.packages import program

BOOT_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
_LEFT_OUT = ("gpu", "media", "net/wireless", "staging", "scsi", "iio", "hid", "usb", "comedi")
_HERE = Path(__file__).parent
_PREPARE_SECONDS = 600


class LabError(Exception):
    """The lab can't be set up: the sentence says what to do."""


@dataclass(frozen=True)
class Kernel:
    """An unpacked kernel package: ``image`` to boot, ``modules`` the folder of its modules."""

    release: str
    image: Path
    modules: Path
    initramfs: Path


def cache_folder() -> Path:
    """Return where the kernel lies between runs: IOBENCH_LAB_CACHE, else iobench/lab in the user's cache."""
    own = os.environ.get("IOBENCH_LAB_CACHE")
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(own) if own else Path(cache) / "iobench" / "lab"


def get() -> Kernel:
    """Return the kernel, downloaded and unpacked the first time; LabError where that fails."""
    top = cache_folder()
    with locked():
        folders = sorted(top.glob("linux-image-*"), key=lambda path: path.stat().st_mtime)
        folder = folders[-1] if folders else _unpack(top)
        release = next((folder / "lib/modules").iterdir()).name
        kernel = Kernel(
            release, folder / f"boot/vmlinuz-{release}", folder / f"lib/modules/{release}", folder / "initramfs"
        )
        _build_initramfs(kernel, folder)
        return kernel


def _unpack(top: Path) -> Path:
    """Download the newest kernel of the distribution and unpack image and modules below ``top``."""
    package = newest_package(_run(["apt-cache", "depends", "linux-image-amd64"]))
    with tempfile.TemporaryDirectory(dir=top) as temporary:
        work = Path(temporary)
        _run(["apt-get", "download", package], cwd=work)
        (deb,) = work.glob("*.deb")
        target = work / "unpacked"
        target.mkdir()
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(deb)], stdout=subprocess.PIPE) as source:
            left_out = [f"--exclude=*/kernel/drivers/{name}" for name in (*_LEFT_OUT, "../sound")]
            _run(["tar", "-x", "-C", str(target), *left_out, "--wildcards", "./boot/vmlinuz*", "./lib/modules/*"],
                 stdin=source.stdout)  # fmt: skip
        release = next((target / "lib/modules").iterdir()).name
        _run([program("depmod") or "depmod", "-b", str(target), release])
        return target.rename(top / package)


def newest_package(text: str) -> str:
    """Return the kernel that the meta package stands for, from what apt-cache depends says."""
    found = re.findall(r"Depends: (linux-image-[0-9]\S*-amd64)$", text, re.MULTILINE)
    if not found:
        raise LabError("apt knows no package linux-image-amd64: run apt-get update, on Debian")
    return str(found[0])


def _build_initramfs(kernel: Kernel, folder: Path) -> None:
    """Pack busybox, the init script and the modules that reach the host's file system."""
    if kernel.initramfs.exists() and kernel.initramfs.stat().st_mtime > (_HERE / "guest/init").stat().st_mtime:
        return
    modules = boot_modules(kernel, folder)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        root = Path(temporary)
        for name in ("bin", "modules"):
            (root / name).mkdir()
        shutil.copy("/bin/busybox", root / "bin/busybox")
        shutil.copy(_HERE / "guest/init", root / "init")
        (root / "init").chmod(0o755)
        for module in modules:
            shutil.copy(module, root / "modules")
        order = "".join(f"{module.name}\n" for module in modules)
        (root / "modules/order").write_text(order)
        names = "\n".join(["."] + [str(path.relative_to(root)) for path in sorted(root.rglob("*"))])
        with (folder / "initramfs.new").open("wb") as file:
            _run(["cpio", "--create", "--format=newc", "--quiet"], cwd=root, input=names, stdout=file)
        (folder / "initramfs.new").rename(kernel.initramfs)


def boot_modules(kernel: Kernel, folder: Path) -> list[Path]:
    """Return the files of BOOT_MODULES and of what they need, in the order in which to load them."""
    found: dict[Path, None] = {}
    for name in BOOT_MODULES:
        ask = [program("modprobe") or "modprobe", "-d", str(folder), "-S", kernel.release, "--show-depends", name]
        for line in _run(ask).splitlines():
            words = line.split()
            if words[0] == "insmod":
                found[Path(words[1])] = None
    return list(found)


@contextmanager
def locked() -> Iterator[None]:
    """Two runs at once must not unpack or compile into one folder: the cache, made where it is missing."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / "lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _run(command: Sequence[str], **more: object) -> str:
    options = {"stdout": subprocess.PIPE, **more}
    try:
        done = subprocess.run(
            command,
            stderr=subprocess.PIPE,
            text=True,
            timeout=_PREPARE_SECONDS,
            check=False,
            **options,  # type: ignore[call-overload]
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LabError(f"{command[0]}: {error}; mend that and run make lab again") from error
    if done.returncode:
        raise LabError(
            f"{' '.join(command[:3])} failed: {done.stderr.strip()[-300:]}; mend that and run make lab again"
        )
    return done.stdout or ""
