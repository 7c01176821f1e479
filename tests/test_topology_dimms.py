"""Memory modules and channels as found: what is there is said, what is not stays unknown."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from iobench.topology import Topology, describe, dimms, discover
from iobench.topology.dimms import modules
from iobench.topology.sysfs import Tree
from iobench.units import GB, GIB, KIB
from tests.machines import AMD_MILAN, Machine


def device(
    size: int = 0x7FFF,
    speed: int = 3200,
    width: int = 64,
    slot: str = "DIMM_A1",
    bank: str = "P0 CHANNEL A",
    extended: int = 32 * KIB,
    length: int = 0x5C,
) -> bytes:
    """Return an SMBIOS memory device as DSP0134 lays it out."""
    body = bytearray(length)
    struct.pack_into("<BBH", body, 0, 17, length, 0x1100)
    struct.pack_into("<HHH", body, 0x08, width + 8, width, size)
    body[0x10], body[0x11] = 1, 2
    for form, offset, value in (("<I", 0x1C, extended), ("<H", 0x20, min(speed, 0xFFFF)), ("<I", 0x58, speed)):
        if offset + struct.calcsize(form) <= length:
            struct.pack_into(form, body, offset, value)
    return bytes(body) + slot.encode() + b"\0" + bank.encode() + b"\0\0"


OTHER = struct.pack("<BBH", 1, 27, 1) + bytes(23) + b"Maker\0\0"  # a structure of another kind
PLAIN = struct.pack("<BBH", 32, 11, 2) + bytes(7) + b"\0\0"  # one without strings
END = struct.pack("<BBH", 127, 4, 3) + b"\0\0"


def test_modules_are_read_between_other_structures() -> None:
    found = modules(OTHER + device() + PLAIN + device(slot="DIMM_B1", bank="P0 CHANNEL B") + END + device())
    assert [module.locator for module in found] == ["P0 CHANNEL A DIMM_A1", "P0 CHANNEL B DIMM_B1"]
    assert found[0].nbytes == 32 * GIB
    assert found[0].bytes_per_s == 25.6 * GB
    assert (found[0].processor, found[0].channel) == ("0", "P0 CHANNEL A")


@pytest.mark.parametrize(
    ("more", "nbytes", "rate"),
    [
        ({"size": 0}, None, None),  # an empty slot
        ({"size": 0xFFFF}, None, None),  # of unknown size
        ({"size": 0x4000}, 16 * GIB, 25.6 * GB),
        ({"size": 0x8000 | 512}, 512 * KIB, 25.6 * GB),
        ({"extended": 0}, None, None),
        ({"speed": 0}, 32 * GIB, None),  # unknown, never 0
        ({"width": 0}, 32 * GIB, None),
        ({"speed": 70000}, 32 * GIB, None),
        ({"size": 0x4000, "length": 0x1C}, 16 * GIB, None),  # SMBIOS 2.6 has no configured speed
        ({"size": 0x4000, "length": 0x22}, 16 * GIB, 25.6 * GB),
        ({"speed": 6400, "width": 32}, 32 * GIB, 25.6 * GB),
    ],
)
def test_what_the_firmware_does_not_say_is_unknown(
    more: dict[str, int], nbytes: int | None, rate: float | None
) -> None:
    found = modules(device(**more))  # type: ignore[arg-type]
    assert [module.nbytes for module in found] == ([nbytes] if nbytes else [])
    assert [module.bytes_per_s for module in found] == ([rate] if nbytes else [])


@pytest.mark.parametrize("cut", range(0, 120, 7))
def test_a_damaged_table_ends_where_it_is_damaged(cut: int) -> None:
    whole = device() + device(slot="DIMM_B1")
    assert len(modules(whole[:cut])) <= 1
    assert len(modules(bytes([17, 0, 0, 0]) + whole)) == 0


def test_the_bound_is_never_too_low() -> None:
    table = b"".join(device(slot=f"DIMM_{c}{n}", bank=f"P0 CHANNEL {c}") for c in "AB" for n in (1, 2))
    assert dimms.bound(modules(table)) == {"0": 4 * 25.6 * GB}, "names may hide a second controller"
    assert dimms.bound(modules(table), channels=2) == {"0": 2 * 25.6 * GB}, "EDAC counts channels"
    unnamed = b"".join(device(slot=f"DIMM {n}", bank="BANK") for n in range(4))
    assert dimms.bound(modules(unnamed)) == {"": 4 * 25.6 * GB}
    assert dimms.bound(modules(table + device(speed=0))) is None
    assert dimms.bound([]) is None


def machine(root: Path, table: bytes, sockets: int = 1, flags: str = "fpu", identity: str = AMD_MILAN) -> Topology:
    box = Machine(root)
    box.cpus(16, sockets, identity, "512K", "32768K", 8, flags)
    each = 16 // sockets
    for node in range(sockets):
        box.node(node, f"{node * each}-{(node + 1) * each - 1}", 64, "10 32"[: 2 if sockets == 1 else 5])
    place = root / "sys/firmware/dmi/tables/DMI"
    place.parent.mkdir(parents=True)
    place.write_bytes(table)
    return discover(root)


def limit(graph: Topology, node: int = 0) -> tuple[float | None, str]:
    link = next(link for link in graph.links if link.kind == "dram" and link.a == f"mem:{node}")
    return link.bytes_per_s, link.source


def test_fewer_channels_than_the_processor_has_lower_the_limit(tmp_path: Path) -> None:
    table = b"".join(device(bank=f"P0 CHANNEL {c}", speed=2933) for c in "ABCD")
    graph = machine(tmp_path, table)
    rate, source = limit(graph)
    assert rate == pytest.approx(4 * 2.933 * 8 * GB)
    assert "SMBIOS" in source
    assert graph.facts["memory_modules"]["count"] == 4
    assert graph.facts["memory_channels"] == {"count": 4, "source": "SMBIOS, names of the slots"}
    assert "4 memory modules" in describe(graph)


def test_modules_never_raise_a_limit(tmp_path: Path) -> None:
    table = b"".join(device(slot=f"DIMM {n}", bank="BANK") for n in range(16))
    rate, source = limit(machine(tmp_path, table))
    assert rate == pytest.approx(204.8 * GB)
    assert "SMBIOS" not in source


def test_an_unknown_processor_gets_what_its_modules_can_do(tmp_path: Path) -> None:
    odd = AMD_MILAN.replace("model\t\t: 1", "model\t\t: 250").replace("cpu family\t: 25", "cpu family\t: 99")
    assert limit(machine(tmp_path, device(), identity=odd))[0] == 25.6 * GB


def test_sockets_share_only_what_is_known_to_be_alike(tmp_path: Path) -> None:
    alike = b"".join(device(bank=f"P{p} CHANNEL {c}") for p in (0, 1) for c in "AB")
    graph = machine(tmp_path / "alike", alike, sockets=2)
    assert [limit(graph, node)[0] for node in (0, 1)] == [2 * 25.6 * GB] * 2
    uneven = alike + device(bank="P1 CHANNEL C")
    assert limit(machine(tmp_path / "uneven", uneven, sockets=2))[0] == pytest.approx(204.8 * GB)


def test_a_virtual_machine_s_table_is_not_believed(tmp_path: Path) -> None:
    graph = machine(tmp_path, device(), flags="fpu hypervisor")
    assert "memory_modules" not in graph.facts
    assert limit(graph)[0] != 25.6 * GB


def test_edac_shows_channels_without_root(tmp_path: Path) -> None:
    box = Machine(tmp_path)
    for number, (channel, size) in enumerate(((0, 16384), (0, 16384), (1, 16384), (2, 0))):
        folder = f"sys/devices/system/edac/mc/mc0/dimm{number}"
        box.files(folder, dimm_location=f"channel {channel} slot {number % 2}", size=size)
    assert dimms.edac_channels(Tree(tmp_path)) == 2
    assert dimms.edac_channels(Tree(tmp_path / "none")) is None
