"""The forms in which a topology offers memory beyond the sockets' own, and what keeps the rest of it from use. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from iobench.topology.graph import Node, Topology

LOCAL, NODE, DEVDAX, INTERLEAVE, STAND_IN = "local", "node", "devdax", "interleave", "stand-in"


@dataclass(frozen=True)
class Form:
    """One way to the memory: ``kind``, the NUMA ``node`` or the dax ``device``, and the ``cpus`` that are nearest.

    ``near`` is those CPUs' own memory node. ``label`` says in words what it is and what shows that; ``nbytes`` how
    much there is (None: unknown); ``declared`` what the firmware says of it (read_seconds, read_bytes_per_s).
    """

    kind: str
    near: int
    cpus: tuple[int, ...]
    label: str
    node: int | None = None
    device: str = ""
    nbytes: int | None = None
    declared: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def forms(topology: Topology) -> list[Form]:
    """Return every form there is: CPU-less nodes (and interleaved with the near one), devdax, the local memory first.

    Remote memory of other sockets comes last, as a stand-in: it is not CXL.
    """
    far = [_node_form(topology, node) for node in _far_nodes(topology)]
    dax = [_devdax_form(topology, node) for node in topology.of("dax") if node.get("mode") == DEVDAX]
    found = [form for form in (*far, *dax) if form is not None]
    local = dict.fromkeys(form.near for form in found)
    mixed = [_interleaved(form) for form in found if form.kind == NODE and _has_memory(topology, form.near)]
    return [*(_local_form(topology, number) for number in local if _has_memory(topology, number)), *found, *mixed]


def stand_ins(topology: Topology) -> list[Form]:
    """Return the memory of every other node with CPUs, seen from the first one: remote NUMA memory, no CXL."""
    first = next((number for number in _cpu_nodes(topology)), None)
    if first is None:
        return []
    found = []
    for node in topology.of("numa"):
        number = _number(node)
        if number != first and node.get("has_cpu") and _usable(node) and _has_memory(topology, number):
            label = f"stand-in: remote NUMA memory of node {number}, not CXL"
            found.append(_form(topology, STAND_IN, node, first, label))
    return [_local_form(topology, first), *found] if found and _has_memory(topology, first) else found


def loaders(topology: Topology, form: Form) -> tuple[tuple[int, ...], bool]:
    """Return the CPUs that may load beside a chase on the form's first one, and whether they are other nodes'.

    Those of other nodes only where the nearest node has no second CPU for this process.
    """
    if len(form.cpus) > 1:
        return tuple(sorted(form.cpus)[1:]), False
    mine = (_number(cpu) for cpu in topology.of("cpu") if cpu.get("allowed") is not False)
    return tuple(cpu for cpu in mine if cpu not in form.cpus), True


def obstacles(topology: Topology) -> list[str]:
    """Return a sentence on every CXL or dax memory that can't be used as it stands, with the command for it."""
    found = [text for node in topology.of("cxl") for text in _of_cxl(topology, node)]
    found += [text for node in topology.of("dax") for text in _of_dax(node)]
    found += [
        f"memory of NUMA node {_number(node)} is not this process's to use (Mems_allowed_list): "
        "run it where its control group's cpuset holds the node"
        for node in topology.of("numa")
        if node.get("has_cpu") is False and node.get("has_memory") and node.get("allowed") is False
    ]
    return found


def _of_cxl(topology: Topology, node: Node) -> Iterator[str]:
    name = node.id.partition(":")[2]
    if node.get("type") == "memory device" and node.get("state") == "present, not mapped":
        kind = "ram" if node.get("volatile_bytes") else "pmem"
        yield (
            f"{name} is present, not mapped: cxl create-region -m -t {kind} -d decoder0.0 -w 1 {name} makes a region "
            "of it (cxl list -D shows the decoders)"
        )
    elif node.get("type") == "region" and not any(
        there.startswith("dax:") for there, _ in topology.neighbours(node.id)
    ):
        if any(dax.get("region") == node.id for dax in topology.of("dax")):
            return
        command = f"daxctl create-device -r {name}" if node.get("mode") == "ram" else _namespace(name)
        yield f"{name} is mapped, nothing uses it: {command} makes a dax device of it"


def _namespace(region: str) -> str:
    return f"ndctl create-namespace -m devdax -r {region}"


def _of_dax(node: Node) -> Iterator[str]:
    name = node.id.partition(":")[2]
    if node.get("mode") == DEVDAX:
        yield (
            f"{name} is a devdax device: measuring it overwrites what it holds, so ask for it with -a form=devdax, or "
            f"make it a NUMA node with daxctl reconfigure-device --mode=system-ram {name}"
        )
    elif node.get("mode") is None:
        yield f"{name} has no driver: daxctl reconfigure-device --mode=devdax {name}"
    elif node.get("state") in ("offline", "partly online"):
        online, blocks = node.get("memory_blocks_online"), node.get("memory_blocks")
        yield f"{name} is {node.get('state')} ({online} of {blocks} blocks): daxctl online-memory {name}"


def _far_nodes(topology: Topology) -> list[Node]:
    """Return the usable memory nodes that are known to have no CPU."""
    return [
        node
        for node in topology.of("numa")
        if node.get("has_cpu") is False
        and _usable(node)
        and node.get("has_memory")
        and _number(node) not in _gpus(topology)
    ]


def _gpus(topology: Topology) -> set[Any]:
    """Return the nodes that a GPU says are its own memory."""
    return {gpu.get("memory_numa") for gpu in topology.of("gpu")} - {None}


def _node_form(topology: Topology, node: Node) -> Form | None:
    near = _nearest(topology, node)
    if near is None:
        return None
    dax = [each for each in topology.of("dax") if each.get("target_numa") == _number(node)]
    regions = sorted({str(each.get("region")) for each in dax if each.get("region")} | set(_linked(topology, node)))
    shown = ", ".join(name.partition(":")[2] for name in regions)
    if regions:
        label = f"CXL memory ({shown}) as NUMA node {_number(node)} without CPUs"
    elif dax:
        label = f"{dax[0].id.partition(':')[2]} as NUMA node {_number(node)} without CPUs; nothing shows a CXL region"
    else:
        label = f"NUMA node {_number(node)} without CPUs; nothing shows that it is CXL memory"
    notes = tuple(text for each in dax for text in _of_dax(each))
    return _form(topology, NODE, node, near, label, notes=notes)


def _linked(topology: Topology, node: Node) -> list[str]:
    return [
        str(region)
        for there, link in topology.neighbours(node.id)
        if link.kind == "cxl" and there.startswith("mem:")
        for region in link.attrs.get("regions", ())
    ]


def _devdax_form(topology: Topology, node: Node) -> Form | None:
    name, region = node.id.partition(":")[2], node.get("region")
    home = node.get("device_numa")
    nodes = _cpu_nodes(topology)
    near = home if home in nodes else next(iter(nodes), None)
    if near is None:
        return None
    what = f"CXL memory ({str(region).partition(':')[2]})" if region else "device memory; nothing shows a CXL region"
    return Form(
        DEVDAX, near, _cpus(topology, near), f"{what} as {name}, mapped", device=name, nbytes=node.get("nbytes")
    )


def _local_form(topology: Topology, number: int) -> Form:
    """Return local memory; its notes say what else is there and can't be used as it stands."""
    label, known = f"local memory of node {number}", tuple(obstacles(topology))
    return _form(topology, LOCAL, topology.nodes[f"numa:{number}"], number, label, notes=known)


def _interleaved(form: Form) -> Form:
    label = f"pages in turn on node {form.near} and on {form.label}"
    return Form(INTERLEAVE, form.near, form.cpus, label, node=form.node, nbytes=form.nbytes, notes=form.notes)


def _form(topology: Topology, kind: str, node: Node, near: int, label: str, notes: tuple[str, ...] = ()) -> Form:
    told = {
        "read_seconds": node.get("firmware_read_seconds"),
        "read_bytes_per_s": node.get("firmware_read_bytes_per_s"),
    }
    return Form(
        kind,
        near,
        _cpus(topology, near),
        label,
        node=_number(node),
        nbytes=node.get("memory_bytes"),
        declared={name: value for name, value in told.items() if value},
        notes=notes,
    )


def _nearest(topology: Topology, node: Node) -> int | None:
    """Return the node whose CPUs are nearest: by HMAT, else by distance, else the first that this process may use."""
    nodes = _cpu_nodes(topology)
    for number in node.get("initiators") or ():
        if number in nodes:
            return int(number)
    distances = {
        there: link.attrs["distance"] for there, link in topology.neighbours(node.id) if "distance" in link.attrs
    }
    return min(nodes, key=lambda number: distances.get(f"numa:{number}", 255), default=None)


def _cpu_nodes(topology: Topology) -> list[int]:
    return [_number(node) for node in topology.of("numa") if _cpus(topology, _number(node))]


def _cpus(topology: Topology, number: int) -> tuple[int, ...]:
    """Return the CPUs of a node that this process may use."""
    node = topology.node(f"numa:{number}")
    listed = [topology.node(f"cpu:{cpu}") for cpu in (node.get("cpus") or () if node else ())]
    return tuple(_number(cpu) for cpu in listed if cpu is not None and cpu.get("allowed") is not False)


def _usable(node: Node) -> bool:
    return node.get("allowed") is not False and not node.get("assumed")


def _has_memory(topology: Topology, number: int) -> bool:
    node = topology.node(f"numa:{number}")
    return node is not None and node.get("has_memory") is not False and node.get("allowed") is not False


def _number(node: Node) -> int:
    return int(node.id.partition(":")[2])
