"""Packs what discovery reads of a machine, and nothing else, as a test fixture.

    python tests/capture_tree.py tests/fixtures/sysfs/NAME.tar.gz [ROOT]

Serial numbers, UUIDs, hardware and network addresses and host names stay out: files that discovery does not read are
not packed, and the few that may hold such things are cut down to the lines it needs. What NVML
says goes to NAME.nvml.json.
"""

# ruff: noqa: PTH112, PTH114, PTH115, PTH118, PTH208
from __future__ import annotations

import io
import json
import os
import re
import sys
import tarfile
from dataclasses import asdict
from pathlib import Path
from unittest import mock

from iobench.topology import discover as module_of_discover  # noqa: F401 - loads the module that is patched below
from iobench.topology import nvml
from iobench.topology.sysfs import Tree

_KEPT_LINES = {
    "proc/cpuinfo": r"(processor|vendor_id|cpu family|model|model name|physical id|flags|CPU \w+)\s*:.*|",
    "proc/self/status": r"(Cpus|Mems)_allowed_list:.*",
    "proc/meminfo": r"MemTotal:.*",
    "information": r"Model:.*",
    "proc/cmdline": r"$^",
}
_KEPT_FLAGS = {"hypervisor"}
_KEPT_MOUNT = re.compile(r"(ext4|xfs|btrfs|vfat|overlay|squashfs|tmpfs|zfs)")
_KEPT_POINT = re.compile(r"/|/boot(/efi)?|/tmp|/home|/data|/mnt/data|/dev/shm|/run|/usr/local/nvidia|/var/lib/docker")


class Recorder(Tree):
    """A tree that remembers which paths were asked for and which folders were listed."""

    asked: dict[str, None] = {}  # noqa: RUF012 - one recording per process
    listed: dict[str, None] = {}  # noqa: RUF012

    def path(self, *parts: str) -> str:
        self.asked["/".join(parts)] = None
        return super().path(*parts)

    def names(self, *parts: str) -> list[str]:
        self.listed["/".join(parts)] = None
        return super().names(*parts)


def main(destination: str, root: str = "/") -> None:
    with mock.patch("iobench.topology.discover.Tree", Recorder):
        sys.modules["iobench.topology.discover"].discover(root)
    entries: dict[str, tarfile.TarInfo] = {}
    content: dict[str, bytes] = {}
    for path in list(Recorder.asked):
        _visit(root, path, entries, content)
    for folder in list(Recorder.listed):
        for name in sorted(os.listdir(Path(root, folder))) if Path(root, folder).is_dir() else []:
            _visit(root, f"{folder}/{name}", entries, content, shallow=True)
    with tarfile.open(destination, "w:gz", compresslevel=9) as tar:
        for path in sorted(entries):
            tar.addfile(entries[path], io.BytesIO(content.get(path, b"")))
    gpus, _ = nvml.read() if root == "/" else ([], "")
    if gpus:
        text = json.dumps([asdict(gpu) for gpu in gpus], indent=1) + "\n"
        Path(destination.removesuffix(".tar.gz") + ".nvml.json").write_text(text, encoding="utf-8")


def _visit(
    root: str, path: str, entries: dict[str, tarfile.TarInfo], content: dict[str, bytes], shallow: bool = False
) -> None:
    """Add a path with every folder and link on the way to it."""
    here, todo, hops = "", path.split("/"), 0
    while todo and hops < 100:
        part = todo.pop(0)
        place = os.path.normpath(f"{here}/{part}").lstrip("/") if here else part
        full = os.path.join(root, place)
        if place in {".", ""} or not os.path.lexists(full):
            return
        if os.path.islink(full) and place != "proc/self":
            hops += 1
            target = os.readlink(full)
            _add(entries, place, tarfile.SYMTYPE, link=target)
            if shallow and not todo:
                return
            todo = os.path.normpath(os.path.join(here, target)).split("/") + todo
            here = ""
        elif os.path.isdir(full):
            _add(entries, place, tarfile.DIRTYPE)
            here = place
        else:
            data = _content(full, place) if not shallow else b""
            if data is not None:
                content[place] = content.get(place) or data
                _add(entries, place, tarfile.REGTYPE, nbytes=len(content[place]))
            return


def _add(entries: dict[str, tarfile.TarInfo], path: str, kind: bytes, link: str = "", nbytes: int = 0) -> None:
    info = tarfile.TarInfo(path)
    info.type, info.linkname, info.size, info.mode = kind, link, nbytes, 0o755 if kind == tarfile.DIRTYPE else 0o644
    entries[path] = info


def _content(full: str, place: str) -> bytes | None:
    try:
        data = Path(full).read_bytes()[: 1 << 20]
    except OSError:
        return None
    if place.endswith(("mountinfo", "mounts")):
        return _mounts(data.decode("utf-8", "replace"))
    pattern = next((kept for name, kept in _KEPT_LINES.items() if place.endswith(name)), None)
    if pattern is None:
        return data
    lines = [line for line in data.decode("utf-8", "replace").splitlines() if re.fullmatch(pattern, line)]
    lines = [re.sub(r"^(flags\s*:).*", lambda m: f"{m[1]} {_flags(m[0])}", line) for line in lines]
    return ("\n".join(lines) + "\n").encode()


def _flags(line: str) -> str:
    return " ".join(sorted(_KEPT_FLAGS & set(line.split())))


def _mounts(text: str) -> bytes:
    """Keep the mounts of ordinary file systems at ordinary places, without options."""
    kept = []
    for line in text.splitlines():
        head, dash, tail = line.partition(" - ")
        fields, after = head.split(), tail.split()
        if dash and "/sys/" not in fields[4] and _KEPT_MOUNT.fullmatch(after[0]) and _KEPT_POINT.fullmatch(fields[4]):
            kept.append(" ".join([*fields[:3], "/", *fields[4:6], "-", after[0], after[1], "rw"]))
    return ("\n".join(kept) + "\n").encode()


if __name__ == "__main__":
    main(*sys.argv[1:])
