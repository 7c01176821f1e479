"""Mounted file systems that hold files, each with the block device below it, from /proc/self/mountinfo or mounts."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from iobench.topology import storage
from iobench.topology.graph import Node, Topology
from iobench.topology.sysfs import Tree

# file systems that hold no files of the user's
_PSEUDO = {
    "autofs", "binder", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs",
    "efivarfs", "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "ramfs", "rpc_pipefs", "securityfs",
    "selinuxfs", "sysfs", "tracefs",
}  # fmt: skip
_NETWORK = re.compile(
    r"(nfs4?|cifs|smb3?|smbfs|9p|virtiofs|ceph|lustre|gpfs|beegfs|wekafs|glusterfs|fuse\.\S+|afs|panfs)"
)
_UUID = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}")  # kubelet's thousands, and no business of the graph
_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Mount:
    """One line of the table. ``number``: "major:minor", empty where only /proc/mounts was there."""

    point: str
    fstype: str
    source: str
    number: str
    options: str


def add(tree: Tree, graph: Topology) -> None:
    """Add one ``mount:`` per file system that holds files, linked to its block device."""
    mounts = {
        mount.point: mount for mount in table(tree) if mount.fstype not in _PSEUDO
    }  # the last one covers the others
    blocks, mapper = storage.device_numbers(tree), storage.mapper_names(tree)
    kept = {}
    for mount in mounts.values():
        block = _block(mount, blocks, mapper)
        hidden = _UUID.search(mount.point) or (mount.fstype == "tmpfs" and "ro" in mount.options.split(","))
        if not hidden and not (block and _is_file(tree, mount.point)):
            kept[mount.point] = (mount, block)
    for point, (mount, block) in kept.items():
        if mount.fstype == "overlay" and block is None:
            block = _below_overlay(tree, mount, {name: found for name, (_, found) in kept.items()})
        _add_mount(graph, point, mount, block)
    _link_loops(tree, graph)


def table(tree: Tree) -> list[Mount]:
    """Return the mount table, empty where there is none."""
    lines = (tree.text("proc/self/mountinfo") or "").splitlines()
    found = [_from_mountinfo(line.split()) for line in lines]
    if not any(found):
        lines = (tree.text("proc/self/mounts") or tree.text("proc/mounts") or "").splitlines()
        found = [_from_mounts(line.split()) for line in lines]
    return [mount for mount in found if mount is not None]


def mount_of(graph: Topology, path: str) -> Node | None:
    """Return the mount that a file lies on, None where none is known. ``path`` is absolute and resolved."""
    place = PurePosixPath(path)
    for folder in (place, *place.parents):
        node = graph.node(f"mount:{folder}")
        if node is not None:
            return node
    return None


def _from_mountinfo(fields: list[str]) -> Mount | None:
    if "-" not in fields[6:]:
        return None
    dash = fields.index("-", 6)
    if len(fields) < dash + 4:
        return None
    options = f"{fields[5]},{fields[dash + 3]}"
    return Mount(_plain(fields[4]), fields[dash + 1], _plain(fields[dash + 2]), fields[2], options)


def _from_mounts(fields: list[str]) -> Mount | None:
    return Mount(_plain(fields[1]), fields[2], _plain(fields[0]), "", fields[3]) if len(fields) >= 4 else None


def _plain(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)


def _block(mount: Mount, blocks: dict[str, str], mapper: dict[str, str]) -> str | None:
    """Return the block device of a mount: by its number, or its source where the file system has its own number."""
    if mount.number in blocks:
        return blocks[mount.number]
    name = mount.source.rpartition("/")[2]
    if mount.source.startswith("/dev/mapper/"):
        return mapper.get(name)
    return name if mount.source.startswith("/dev/") and name in blocks.values() else None


def _is_file(tree: Tree, point: str) -> bool:
    """Tell whether a single file is mounted, as containers do with /etc/hosts. Never asked of network file systems."""
    return os.path.isfile(tree.path(point.lstrip("/")))  # noqa: PTH113


def _below_overlay(tree: Tree, mount: Mount, blocks: dict[str, str | None]) -> str | None:
    """Return the block device of an overlay's upper folder, where that folder is visible from here."""
    upper = re.search(r"(?:^|,)upperdir=([^,]+)", mount.options)
    if not upper or not tree.exists(upper[1].lstrip("/")):
        return None
    folders = (str(folder) for folder in PurePosixPath(upper[1]).parents)
    covering = next((folder for folder in folders if folder in blocks), None)
    return blocks[covering] if covering is not None else None


def _add_mount(graph: Topology, point: str, mount: Mount, block: str | None) -> None:
    known = block is not None and f"block:{block}" in graph.nodes
    node = graph.add(
        f"mount:{point}",
        "mount",
        fstype=mount.fstype,
        block=f"block:{block}" if known else None,
        memory=True if mount.fstype == "tmpfs" else None,
        network=True if _NETWORK.fullmatch(mount.fstype) else None,
        read_only=True if "ro" in mount.options.split(",") else None,
    )
    if known:
        graph.link(node.id, f"block:{block}", "mount", source="no limit of its own")
        points = [*(graph.nodes[f"block:{block}"].get("mounts") or ()), point]
        graph.add(f"block:{block}", "block", mounts=points)
    elif mount.fstype == "tmpfs":
        for numa in graph.of("numa"):
            if numa.get("has_memory") is not False:
                graph.link(node.id, numa.id, "memory", source="files in memory: the memory's limit holds")


def _link_loops(tree: Tree, graph: Topology) -> None:
    """Link a loop device to the disk that its file lies on."""
    for node in graph.of("block"):
        file = tree.text("sys/class/block", node.id.partition(":")[2], "loop/backing_file")
        below = mount_of(graph, file) if file else None
        if below is not None and below.get("block") not in {None, node.id}:
            graph.link(node.id, below.get("block"), "part", source="no limit of its own")
