"""What a port and its network interface count, and how the interface is set: PFC pauses, ECN marks, discards, offloads.

Drivers name their counters as they like: what matters is picked by the words in the names. Interface statistics and
settings come from the ethtool ioctl (linux/ethtool.h), so no program is needed; what a driver lacks is left out.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import re
import socket
import struct
from collections.abc import Mapping
from typing import Any

from iobench.rdma.ports import Port
from iobench.topology.sysfs import Tree

_CLASS = "sys/class/infiniband"
_SIOCETHTOOL = 0x8946
_GET_SSET_INFO, _GET_STRINGS, _GET_STATS = 0x37, 0x1B, 0x1D
_STATISTICS_SET = 1
_MOST_STATISTICS = 1 << 14
_NAME_NBYTES = 32
# settings that are one number each: ethtool's "get" commands
_FLAGS = {"rx_checksum": 0x14, "tx_checksum": 0x16, "scatter_gather": 0x18, "tso": 0x1E, "gso": 0x23, "gro": 0x2B}
_MORE_FLAGS, _LRO, _NTUPLE, _RXHASH = 0x25, 1 << 15, 1 << 27, 1 << 28
_PAUSE, _COALESCE = 0x12, 0x0E
_CONGESTION = re.compile(
    r"pause|pfc|ecn|cnp|discard|drop|out_of_buffer|congest|out_of_seq|retry|rnr|nak|timeout|overrun|xmit_wait|duplicate",
    re.IGNORECASE,
)
_SENT = re.compile(r"^(?:port_xmit_data|port_xmit_packets|sent_pkts|unicast_xmit_packets)$")


def read(tree: Tree, port: Port) -> dict[str, int]:
    """Return "source/name" -> count of the port and, on Ethernet, of its interface."""
    folder = f"{_CLASS}/{port.device}/ports/{port.number}"
    found: dict[str, int] = {}
    for kind in ("counters", "hw_counters"):
        for top in (folder, *([f"{_CLASS}/{port.device}"] if kind == "hw_counters" else [])):
            for name in tree.names(top, kind):
                value = tree.number(top, kind, name)
                if value is not None and name != "lifespan":
                    found.setdefault(f"{kind}/{name}", value)
    for interface in port.interfaces:
        which = f"{interface}/" if len(port.interfaces) > 1 else ""  # a bond has two or more
        for name in ("rx_dropped", "tx_dropped", "rx_errors", "tx_errors", "rx_missed_errors"):
            value = tree.number("sys/class/net", interface, "statistics", name)
            if value is not None:
                found[f"net/{which}{name}"] = value
        if tree.live:
            found |= {f"ethtool/{which}{name}": value for name, value in statistics(interface).items()}
    return found


def congestion(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return how much the counters of pauses, ECN, discards and retries grew; those that stand still are left out."""
    grown = {name: after[name] - before.get(name, 0) for name in after}
    return {name: count for name, count in sorted(grown.items()) if count > 0 and _CONGESTION.search(name)}


def watched(counts: Mapping[str, int]) -> int:
    """Return how many counters of congestion there are: none that grew means something only if some are read."""
    return sum(1 for name in counts if _CONGESTION.search(name))


def sent(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return how much the counters of what the port sent grew; port_xmit_data in bytes (it counts words of four)."""
    out = {}
    for name in after:
        last = name.rpartition("/")[2]
        if name.startswith(("counters/", "hw_counters/")) and _SENT.match(last):
            grown = after[name] - before.get(name, 0)
            out[last] = grown * 4 if last == "port_xmit_data" else grown
    return out


def settings(tree: Tree, port: Port) -> dict[str, Any]:
    """Return the settings of the port's interface, of a bond's first one; {} where it has none."""
    if not port.interfaces:
        return {}
    name = port.interfaces[0]
    found: dict[str, Any] = {"interface_mtu": tree.number("sys/class/net", name, "mtu")}
    if not tree.live:
        return found
    for word, command in _FLAGS.items():
        value = _value(name, command)
        if value is not None:
            found[word] = bool(value)
    more = _value(name, _MORE_FLAGS)
    if more is not None:
        found |= {"lro": bool(more & _LRO), "ntuple": bool(more & _NTUPLE), "rxhash": bool(more & _RXHASH)}
    pause = _words(name, _PAUSE, 4)
    if pause:
        found |= {"pause_autoneg": bool(pause[1]), "pause_rx": bool(pause[2]), "pause_tx": bool(pause[3])}
    coalesce = _words(name, _COALESCE, 23)
    if coalesce:
        found |= {"rx_usecs": coalesce[1], "rx_frames": coalesce[2], "adaptive_rx": bool(coalesce[10])}
    return found


def statistics(interface: str) -> dict[str, int]:
    """Return a driver's own statistics (ethtool -S); {} where it has none or does not say."""
    with contextlib.suppress(OSError, struct.error):
        asked = array.array("B", struct.pack("=IIQI", _GET_SSET_INFO, 0, 1 << _STATISTICS_SET, 0))
        _ioctl(interface, asked)
        count = struct.unpack_from("=I", asked, 16)[0]
        if not 0 < count <= _MOST_STATISTICS:
            return {}
        names = array.array(
            "B", struct.pack("=III", _GET_STRINGS, _STATISTICS_SET, count) + bytes(count * _NAME_NBYTES)
        )
        _ioctl(interface, names)
        values = array.array("B", struct.pack("=II", _GET_STATS, count) + bytes(8 * count))
        _ioctl(interface, values)
        text = names.tobytes()[12:]
        words = [
            text[at : at + _NAME_NBYTES].split(b"\0")[0].decode("ascii", "replace")
            for at in range(0, len(text), _NAME_NBYTES)
        ]
        return dict(zip(words, struct.unpack_from(f"={count}Q", values, 8), strict=False))
    return {}


def _value(interface: str, command: int) -> int | None:
    words = _words(interface, command, 2)
    return words[1] if words else None


def _words(interface: str, command: int, count: int) -> tuple[int, ...]:
    """Return a setting's words, () where the driver does not offer it."""
    data = array.array("B", struct.pack("=I", command) + bytes(4 * (count - 1)))
    try:
        _ioctl(interface, data)
    except OSError:
        return ()
    return struct.unpack(f"={count}I", data)


def _ioctl(interface: str, data: array.array[int]) -> None:
    """Hand ``data`` to the interface's driver, which writes its answer there."""
    address, _ = data.buffer_info()
    request = struct.pack("16sP", interface.encode()[:15], address).ljust(40, b"\0")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCETHTOOL, request)
