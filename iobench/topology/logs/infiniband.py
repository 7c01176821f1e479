"""RDMA ports from ibstat, ibstatus and ibv_devinfo. The rate of a port that is down means nothing: unknown."""

from __future__ import annotations

import re

from iobench.topology import limits
from iobench.topology.graph import Topology
from iobench.topology.logs.text import finding
from iobench.topology.rdma import data_rate
from iobench.units import from_gigabits

_CA = re.compile(r"^[ \t]*CA '([^'\n]{1,64})'[ \t]*$", re.MULTILINE)
_PORT = re.compile(r"^[ \t]*Port ([0-9]{1,3}):[ \t]*$", re.MULTILINE)
_HCA = re.compile(r"^[ \t]*hca_id:[ \t]*(\S{1,64})[ \t]*$", re.MULTILINE)
_IBV_PORT = re.compile(r"^[ \t]*port:[ \t]*([0-9]{1,3})[ \t]*$", re.MULTILINE)
_FIELD = re.compile(r"^[ \t]*([A-Za-z_][A-Za-z_ ]*):[ \t]*(.*?)[ \t]*$", re.MULTILINE)
# what ibstat rounds a port's rate to, in Gb/s -> the InfiniBand generation of four lanes with that rate
_GENERATIONS = {10: "SDR", 20: "DDR", 40: "QDR", 56: "FDR", 100: "EDR", 200: "HDR", 400: "NDR", 800: "XDR"}
# the code behind ibv_devinfo's active_speed -> name and Gb/s of one lane as the kernel counts it
_SPEEDS = {1: ("SDR", 2.5), 2: ("DDR", 5.0), 4: ("QDR", 10.0), 8: ("FDR10", 10.0), 16: ("FDR", 14.0), 32: ("EDR", 25.0), 64: ("HDR", 50.0), 128: ("NDR", 100.0), 256: ("XDR", 200.0)}  # fmt: skip  # noqa: E501
_LEAST_GIGABITS = 2.5
_STATE = re.compile(r"^[ \t]*state:[ \t]*PORT_[A-Z]{1,20}", re.MULTILINE)
_STATUS = re.compile(r"^[ \t]*Infiniband device '([^'\n]{1,64})' port ([0-9]{1,3}) status:[ \t]*$", re.MULTILINE)
_SOFTWARE = re.compile(r"rxe|siw|lo[0-9]*$")


def add(text: str, graph: Topology) -> bool:
    """Add one ``port:device/N`` per port; say whether the text has any."""
    found = [*_ibstat(text), *_devinfo(text), *_status(text)]
    whole = {device for device, _, _ in found}
    for device in dict.fromkeys(match[1] for match in _HCA.finditer(text)):
        if device not in whole:
            finding(graph, f"ibv_devinfo: {device} shows no port: the output is cut")
    for device, port, fields in found:
        _add(graph, device, port, fields)
    return bool(found)


Port = tuple[str, int, dict[str, str]]


def _blocks(pattern: re.Pattern[str], text: str, end: int) -> list[tuple[str, int, int]]:
    starts = list(pattern.finditer(text, 0, end))
    stops = [match.start() for match in starts[1:]] + [end]
    return [(match[1], match.end(), stop) for match, stop in zip(starts, stops, strict=False)]


def _ports(text: str, devices: re.Pattern[str], ports: re.Pattern[str]) -> list[Port]:
    found: list[Port] = []
    for device, start, stop in _blocks(devices, text, len(text)):
        part = text[start:stop].split("\n\n\n")[0]
        inside = _blocks(ports, part, len(part)) or _unnumbered(part)
        for port, inner, outer in inside:
            fields = {match[1].strip(): match[2] for match in _FIELD.finditer(part, inner, outer)}
            found.append((device, int(port), fields))
    return found


def _unnumbered(part: str) -> list[tuple[str, int, int]]:
    """Return port 1 where a filter took the line with its number: one state is one port's, several can't be told."""
    return [("1", 0, len(part))] if len(_STATE.findall(part)) == 1 else []


def _ibstat(text: str) -> list[Port]:
    return _ports(text, _CA, _PORT)


def _devinfo(text: str) -> list[Port]:
    return _ports(text, _HCA, _IBV_PORT)


def _status(text: str) -> list[Port]:
    """Return the ports of ibstatus, with the names of its fields made those of ibstat."""
    found: list[Port] = []
    starts = list(_STATUS.finditer(text))
    stops = [match.start() for match in starts[1:]] + [len(text)]
    for match, stop in zip(starts, stops, strict=False):
        fields = {field[1].strip(): field[2] for field in _FIELD.finditer(text, match.end(), stop)}
        state = fields.get("state", "").rpartition(":")[2].strip()
        physical = fields.get("phys state", "").rpartition(":")[2].strip()
        more = {"State": state, "Physical state": physical, "Rate": fields.get("rate", "")}
        found.append((match[1], int(match[2]), {**more, "Link layer": fields.get("link_layer", "")}))
    return found


def _add(graph: Topology, device: str, port: int, fields: dict[str, str]) -> None:
    words = (fields.get("State") or fields.get("state") or "").removeprefix("PORT_").split()
    state = words[0].upper() if words else None
    layer = fields.get("Link layer") or fields.get("link_layer") or None
    limit, source = _rate(fields, layer)
    if _SOFTWARE.match(device):
        limit, source = None, "a software device's rate is not physical"
    elif state != "ACTIVE":
        limit, source = None, f"unknown: the port is {(state or 'in an unknown state').lower()}"
    old = graph.node(f"port:{device}/{port}")
    if limit is None and old is not None and old.get("line_bytes_per_s"):
        limit = old.get("line_bytes_per_s")
    if old is not None and old.get("state") and state and old.get("state") != state:
        finding(graph, f"port:{device}/{port} is {old.get('state').lower()} and {state.lower()}: several machines?")
    graph.add(
        f"port:{device}/{port}",
        "port",
        device=device,
        port=port,
        state=state,
        physical_state=fields.get("Physical state") or (fields.get("phys_state") or "").split(" ")[0] or None,
        link_layer=layer,
        line_bytes_per_s=limit if state == "ACTIVE" else None,
        rate_source=source,
    )
    if state not in {"ACTIVE", None}:
        finding(graph, f"port:{device}/{port} is {state.lower()}")


def _rate(fields: dict[str, str], layer: str | None) -> tuple[float | None, str]:
    """Return the data rate per direction and where it comes from: the line code is taken off on InfiniBand."""
    if "Rate" in fields:
        return _ibstat_rate(fields["Rate"], layer)
    width = re.match(r"([0-9]{1,2})X", fields.get("active_width", ""))
    speed = re.match(r"([0-9.]{1,8}) Gbps \(([0-9]{1,4})\)", fields.get("active_speed", ""))
    if not width or not speed or int(speed[2]) not in _SPEEDS:
        return None, "unknown: no rate in the log (ibv_devinfo -v shows it)"
    name, lane = _SPEEDS[int(speed[2])]
    source = f"ibv_devinfo: {fields['active_width']}, {fields['active_speed']}"
    return _data(lane * int(width[1]), name, layer, source)


def _ibstat_rate(text: str, layer: str | None) -> tuple[float | None, str]:
    if "Gb/sec" in text:  # as the kernel writes it
        return data_rate(text, layer != "Ethernet")
    match = re.fullmatch(r"([0-9]{1,5}(?:\.[0-9])?)(?: \((FDR10)\))?", text)
    if not match or float(match[1]) < _LEAST_GIGABITS:
        return None, f"unknown: rate {text!r}"
    gigabits = float(match[1])
    name = match[2] or (_GENERATIONS.get(int(gigabits)) if gigabits == int(gigabits) else None)
    return _data(gigabits, name, layer, f"ibstat: Rate {text}")


def _data(gigabits: float, name: str | None, layer: str | None, source: str) -> tuple[float, str]:
    limit = limits.infiniband(gigabits, name) if layer != "Ethernet" else None
    if limit:
        return limit.bytes_per_s, f"{source}; {limit.source}"
    return from_gigabits(gigabits), source
