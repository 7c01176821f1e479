"""Sockets, CPUs and their data caches, from /sys/devices/system/cpu and /proc/cpuinfo."""

from __future__ import annotations

import os
from typing import Any

from iobench.topology import limits
from iobench.topology.graph import Node, Topology
from iobench.topology.sysfs import Tree, cpu_list, integer, size
from iobench.units import GHZ, KHZ

_CPU = "sys/devices/system/cpu"
_MOST_HZ = 10 * GHZ  # a higher clock is a broken table
_SUFFIX = {"Data": "d", "Unified": ""}


def add(tree: Tree, graph: Topology) -> None:
    """Add the machine, its sockets, its online CPUs and the caches that hold data."""
    info = _cpuinfo(tree)
    online = _online(tree, info)
    graph.add("machine", "machine", **_identity(info.get(online[0], {}) if online else {}))
    graph.facts["virtual"] = _virtual(tree, info)
    allowed = allowed_cpus(tree)
    for cpu in online:
        socket = _socket(tree, cpu, info.get(cpu, {}))
        if socket is not None and f"socket:{socket}" not in graph.nodes:
            graph.add(f"socket:{socket}", "socket", **_identity(info.get(cpu, {})))
            graph.link("machine", f"socket:{socket}", "contains")
        graph.add(f"cpu:{cpu}", "cpu", socket=socket, allowed=None if allowed is None else cpu in allowed)
        graph.add(f"cpu:{cpu}", "cpu", **_core(tree, cpu))
    _add_caches(tree, graph, online)


def row_of(graph: Topology, socket: int | None) -> dict[str, Any] | None:
    """Return the processor's row of limits.toml; of the machine's where the socket is unknown."""
    node = graph.node(f"socket:{socket}") or graph.nodes["machine"]
    return limits.cpu(node.get("vendor"), node.get("family"), node.get("model"), node.get("model_name"))


def allowed_cpus(tree: Tree) -> tuple[int, ...] | None:
    """Return the CPUs that this process may run on, None where a captured tree does not say."""
    listed = status_list(tree, "Cpus_allowed_list")
    if listed is None and tree.live:
        return tuple(sorted(os.sched_getaffinity(0)))
    return listed


def status_list(tree: Tree, name: str) -> tuple[int, ...] | None:
    """Return one list of /proc/self/status."""
    for line in (tree.text("proc/self/status") or "").splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return cpu_list(value)
    return None


def _cpuinfo(tree: Tree) -> dict[int, dict[str, str]]:
    """Return /proc/cpuinfo as processor -> field -> text."""
    found: dict[int, dict[str, str]] = {}
    for block in (tree.text("proc/cpuinfo") or "").split("\n\n"):
        pairs = (line.partition(":") for line in block.splitlines())
        fields = {key.strip(): value.strip() for key, _, value in pairs}
        number = integer(fields.get("processor"))
        if number is not None:
            found[number] = fields
    return found


def _identity(fields: dict[str, str]) -> dict[str, Any]:
    """Return the processor's make: x86 names it by vendor, family and model, Arm by implementer and part."""
    if "CPU implementer" in fields:
        vendor, family, model = (fields.get(f"CPU {name}") for name in ("implementer", "architecture", "part"))
    else:
        vendor, family, model = (fields.get(name) for name in ("vendor_id", "cpu family", "model"))
    name = fields.get("model name")
    return {
        "vendor": vendor or None,
        "family": integer(family),
        "model": integer(model),
        "model_name": None if name in {"", "unknown", "Unknown"} else name,
    }


def _virtual(tree: Tree, info: dict[int, dict[str, str]]) -> bool | None:
    """Tell whether this is a virtual machine; None where nothing tells (Arm has no such flag)."""
    if tree.exists("sys/hypervisor/type"):
        return True
    flags = next((fields["flags"] for fields in info.values() if "flags" in fields), None)
    return None if flags is None else "hypervisor" in flags.split()


def _online(tree: Tree, info: dict[int, dict[str, str]]) -> list[int]:
    listed = tree.cpus(_CPU, "online")
    if listed:
        return list(listed)
    folders = [integer(name[3:]) for name in tree.names(_CPU) if name.startswith("cpu")]
    found = [cpu for cpu in folders if cpu is not None and tree.text(_CPU, f"cpu{cpu}", "online") != "0"]
    if found or info or not tree.live:
        return found or sorted(info)
    return list(range(os.cpu_count() or 1))


def _socket(tree: Tree, cpu: int, fields: dict[str, str]) -> int | None:
    number = tree.number(_CPU, f"cpu{cpu}", "topology/physical_package_id")
    return number if number is not None else integer(fields.get("physical id"))


def _core(tree: Tree, cpu: int) -> dict[str, Any]:
    folder = f"{_CPU}/cpu{cpu}"
    khz = tree.number(folder, "cpufreq/cpuinfo_max_freq")
    siblings = tree.cpus(folder, "topology/thread_siblings_list")
    return {
        "core": tree.number(folder, "topology/core_id"),
        "siblings": list(siblings) if siblings else None,
        "max_hz": khz * KHZ if khz and khz * KHZ < _MOST_HZ else None,
    }


def _add_caches(tree: Tree, graph: Topology, online: list[int]) -> None:
    """Add one node per cache: CPUs that list the same set share it."""
    seen: dict[tuple[str, tuple[int, ...]], str] = {}
    count: dict[str, int] = {}
    for cpu in online:
        for index in tree.names(_CPU, f"cpu{cpu}", "cache"):
            cache = _cache(tree, f"{_CPU}/cpu{cpu}/cache/{index}", cpu, online)
            if cache is None:
                continue
            key = (cache["name"], tuple(cache["cpus"]))
            if key not in seen:
                number = count[cache["name"]] = count.get(cache["name"], -1) + 1
                seen[key] = graph.add(f"cache:{cache.pop('name')}:{number}", "cache", **cache).id
            _link_core(graph, seen[key], graph.nodes[f"cpu:{cpu}"])


def _cache(tree: Tree, folder: str, cpu: int, online: list[int]) -> dict[str, Any] | None:
    """Return one cache's attributes; None for an instruction cache, which holds no data, and for an unreadable one."""
    level, kind = tree.number(folder, "level"), tree.text(folder, "type")
    if not level or kind not in _SUFFIX:
        return None
    shared = {*(tree.cpus(folder, "shared_cpu_list") or ()), cpu}
    return {
        "name": f"L{level}{_SUFFIX[kind]}",
        "level": level,
        "type": kind,
        "nbytes": size(tree.text(folder, "size")),
        "cpus": sorted(shared & set(online)),
        "line_nbytes": tree.number(folder, "coherency_line_size") or None,
    }


def _link_core(graph: Topology, cache: str, cpu: Node) -> None:
    """Link a cache to a CPU: no level feeds a core faster than the core can load and store."""
    core = limits.core(row_of(graph, cpu.get("socket")), cpu.get("max_hz"))
    if core is None:
        graph.link(cache, cpu.id, "core")
        return
    loads, stores = core.load_bytes_per_s, core.store_bytes_per_s
    attrs = {"load_bytes_per_s": loads, "store_bytes_per_s": stores, "max_hz": core.max_hz}
    graph.link(cache, cpu.id, "core", loads + stores, duplex=False, source=core.source, attrs=attrs)
