"""Machines for tests: sysfs and procfs trees written in code, captured trees unpacked, and what is built of them.

    python tests/machines.py

writes topologies/*.json and tests/fixtures/sysfs/*.json anew; read the difference before you commit it.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from iobench.topology import Topology, discover, save
from iobench.topology.nvml import Gpu, NvLink

ROOT = Path(__file__).resolve().parent.parent
CAPTURED = ROOT / "tests" / "fixtures" / "sysfs"
SHIPPED = ROOT / "topologies"
GIB_IN_KB = 1024**2


class Machine:
    """Writes one machine's files below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cpuinfo: list[str] = []
        self.folders: set[Path] = set()

    def file(self, path: str, text: object) -> None:
        place = self.root / path
        if place.parent not in self.folders:
            place.parent.mkdir(parents=True, exist_ok=True)
            self.folders.add(place.parent)
        place.write_text(f"{text}\n", encoding="utf-8")

    def files(self, folder: str, **texts: object) -> None:
        for name, text in texts.items():
            self.file(f"{folder}/{name}", text)

    def link(self, path: str, target: str) -> None:
        """Link ``path`` to ``target``, both from the root, relatively as sysfs does."""
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to("../" * path.count("/") + target)

    def cpus(self, count: int, sockets: int, identity: str, l2: str, l3: str, per_l3: int, flags: str = "fpu") -> None:
        """Write ``count`` CPUs in equal sockets: cpuinfo, packages and caches."""
        self.file("sys/devices/system/cpu/online", f"0-{count - 1}")
        for cpu in range(count):
            socket = cpu * sockets // count
            folder = f"sys/devices/system/cpu/cpu{cpu}"
            self.cpuinfo.append(f"processor\t: {cpu}\n{identity}\nphysical id\t: {socket}\nflags\t\t: {flags}\n")
            self.files(f"{folder}/topology", physical_package_id=socket, core_id=cpu, thread_siblings_list=cpu)
            first = cpu // per_l3 * per_l3
            group = f"{first}-{min(first + per_l3, count) - 1}" if per_l3 > 1 else str(cpu)
            caches = [(1, "Data", "32K", cpu), (1, "Instruction", "32K", cpu), (2, "Unified", l2, cpu)]
            for index, (level, kind, nbytes, shared) in enumerate([*caches, (3, "Unified", l3, group)]):
                self.files(f"{folder}/cache/index{index}", level=level, type=kind, size=nbytes)
                self.files(f"{folder}/cache/index{index}", shared_cpu_list=shared, coherency_line_size=64)
        self.file("proc/cpuinfo", "\n".join(self.cpuinfo))
        self.file("proc/self/status", f"Cpus_allowed_list:\t0-{count - 1}\nMems_allowed_list:\t0-15")

    def node(self, number: int, cpus: str, gib: float, distance: str) -> None:
        folder = f"sys/devices/system/node/node{number}"
        self.files(folder, cpulist=cpus, distance=distance)
        self.file(f"{folder}/meminfo", f"Node {number} MemTotal: {int(gib * GIB_IN_KB)} kB")

    def pci(self, chain: str, kind: str, ids: str, link: str = "", numa: int = -1, driver: str = "") -> str:
        """Write one PCI function. ``chain``: host bridge, functions; ``link``: "speed,width" or now and maximum."""
        place = f"sys/devices/{chain}"
        vendor, device = ids.split(":")
        self.files(place, vendor=f"0x{vendor}", device=f"0x{device}", subsystem_vendor=f"0x{vendor}", numa_node=numa)
        self.file(f"{place}/class", kind)
        if link:
            parts = link.split(",")
            now, most = parts[:2], parts[-2:]
            self.files(place, current_link_speed=now[0], current_link_width=now[1])
            self.files(place, max_link_speed=most[0], max_link_width=most[1])
        name = chain.rpartition("/")[2]
        self.link(f"sys/bus/pci/devices/{name}", place)
        if driver:
            self.link(f"{place}/driver", f"sys/bus/pci/drivers/{driver}")
        return place

    def nic(self, name: str, device: str, speed: int, state: str = "up") -> None:
        self.files(f"{device}/net/{name}", speed=speed, operstate=state, mtu=1500)
        self.link(f"{device}/net/{name}/device", device)
        self.link(f"sys/class/net/{name}", f"{device}/net/{name}")

    def loopback(self) -> None:
        self.files("sys/devices/virtual/net/lo", operstate="unknown", mtu=65536)
        self.link("sys/class/net/lo", "sys/devices/virtual/net/lo")

    def port(self, name: str, device: str, rate: str, state: str = "4: ACTIVE", layer: str = "InfiniBand") -> None:
        place = f"{device}/infiniband/{name}"
        self.files(f"{place}/ports/1", rate=rate, state=state, phys_state="5: LinkUp", link_layer=layer)
        self.link(f"{place}/device", device)
        self.link(f"sys/class/infiniband/{name}", place)

    def disk(self, name: str, place: str, number: str, gib: int, **more: object) -> str:
        folder = f"{place}/{name}"
        self.files(folder, dev=number, size=gib * 2 * GIB_IN_KB, **more)
        self.files(f"{folder}/queue", rotational=0, logical_block_size=512)
        self.link(f"sys/class/block/{name}", folder)
        return folder

    def mounts(self, *lines: str) -> None:
        """Write mountinfo. A line: "major:minor point type source"."""
        rows = [line.split() for line in lines]
        text = [f"{30 + n} 1 {row[0]} / {row[1]} rw - {row[2]} {row[3]} rw" for n, row in enumerate(rows)]
        self.file("proc/self/mountinfo", "\n".join(text))


AMD_MILAN = "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC 7543 32-Core Processor"
AMD_CEZANNE = AMD_MILAN.replace(": 1\n", ": 80\n").replace(
    "EPYC 7543 32-Core Processor", "Ryzen 7 PRO 5850U with Radeon Graphics"
)
INTEL_SPR = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Intel(R) Xeon(R) Platinum 8462Y+"
GEN3, GEN4, GEN5 = "8.0 GT/s PCIe", "16.0 GT/s PCIe", "32.0 GT/s PCIe"
BRIDGE, NVME, GPU, ETHERNET, INFINIBAND, CXL = "0x060400", "0x010802", "0x030200", "0x020000", "0x020700", "0x050210"


def tree(root: Path, files: dict[str, str]) -> Path:
    """Write files by their path below ``root``; return it."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return root


def laptop(root: Path) -> list[Gpu]:
    """A laptop: one socket, one NVMe disk with an encrypted root, wireless and wired network, no GPU that computes."""
    box = Machine(root)
    box.cpus(16, 1, AMD_CEZANNE, "512K", "16384K", 16)
    box.node(0, "0-15", 14, "10")
    box.pci("pci0000:00/0000:00:02.4", BRIDGE, "1022:1634", f"{GEN3},4", driver="pcieport")
    nvme = box.pci(
        "pci0000:00/0000:00:02.4/0000:02:00.0", NVME, "144d:a808", f"2.5 GT/s PCIe,4,{GEN3},4", driver="nvme"
    )
    box.pci("pci0000:00/0000:00:02.1", BRIDGE, "1022:1634", "2.5 GT/s PCIe,1", driver="pcieport")
    wired = box.pci("pci0000:00/0000:00:02.1/0000:01:00.0", ETHERNET, "10ec:8168", "2.5 GT/s PCIe,1", driver="r8169")
    box.pci("pci0000:00/0000:00:08.1", BRIDGE, "1022:1635", f"{GEN3},16", driver="pcieport")
    box.pci("pci0000:00/0000:00:08.1/0000:05:00.0", "0x030000", "1002:1638", f"{GEN3},16", driver="amdgpu")
    box.nic("enp1s0", wired, -1, "down")
    box.loopback()
    disk = box.disk("nvme0n1", f"{nvme}/nvme/nvme0", "259:0", 476)
    box.disk("nvme0n1p1", disk, "259:1", 1, partition=1)
    box.disk("nvme0n1p2", disk, "259:2", 475, partition=2)
    mapped = box.disk("dm-0", "sys/devices/virtual/block", "253:0", 475)
    box.file(f"{mapped}/dm/name", "cryptroot")
    box.link(f"{mapped}/slaves/nvme0n1p2", f"{disk}/nvme0n1p2")
    box.mounts("253:0 / ext4 /dev/mapper/cryptroot", "259:1 /boot/efi vfat /dev/nvme0n1p1", "0:30 /tmp tmpfs tmpfs")
    return []


def hgx(root: Path) -> list[Gpu]:
    """Two sockets, eight GPUs behind switches with NVLink, a network port and an NVMe disk beside each."""
    box = Machine(root)
    box.cpus(64, 2, INTEL_SPR, "2048K", "61440K", 32)
    box.node(0, "0-31", 1024, "10 21")
    box.node(1, "32-63", 1024, "21 10")
    for place in range(8):
        numa, bus = place // 4, 0x10 + 0x20 * (place % 4) + 0x80 * (place // 4)
        top = f"pci0000:{bus:02x}/0000:{bus:02x}:01.0"
        up = f"{top}/0000:{bus + 1:02x}:00.0"
        box.pci(top, BRIDGE, "8086:352a", f"{GEN5},16", numa, "pcieport")
        box.pci(up, BRIDGE, "1000:c030", f"{GEN5},16", numa, "pcieport")
        for slot in range(3):
            box.pci(
                f"{up}/0000:{bus + 2:02x}:{slot:02x}.0",
                BRIDGE,
                "1000:c030",
                f"{GEN5},{(16, 16, 4)[slot]}",
                numa,
                "pcieport",
            )
        below = [f"{up}/0000:{bus + 2:02x}:{slot:02x}.0/0000:{bus + 3 + slot:02x}:00.0" for slot in range(3)]
        box.pci(below[0], GPU, "10de:2330", f"{GEN5},16", numa, "nvidia")
        port = box.pci(below[1], INFINIBAND, "15b3:1021", f"{GEN5},16", numa, "mlx5_core")
        box.port(f"mlx5_{place}", port, "400 Gb/sec (4X NDR)")
        disk = box.pci(below[2], NVME, "144d:a824", f"{GEN4},4", numa, "nvme")
        box.disk(f"nvme{place}n1", f"{disk}/nvme/nvme{place}", f"259:{place}", 3576)
    box.loopback()
    box.mounts("259:0 / ext4 /dev/nvme0n1", *(f"259:{n} /data{n} xfs /dev/nvme{n}n1" for n in range(1, 8)))
    buses = [0x13 + 0x20 * (place % 4) + 0x80 * (place // 4) for place in range(8)]
    addresses = [f"0000:{bus:02x}:00.0" for bus in buses]
    return [_h100(address, addresses) for address in addresses]


def _h100(address: str, all_of_them: list[str]) -> Gpu:
    links = [NvLink(number, 4, "switch") for number in range(18)]
    peers = {other: True for other in all_of_them if other != address}
    return Gpu(address, "NVIDIA H100 80GB HBM3", 80 * 1024**3, 2_619_000_000, 5120, None, links, 0, peers)


def cxl_host(root: Path) -> list[Gpu]:
    """Two sockets and a node of memory interleaved over two CXL devices; a third device is there but not mapped."""
    box = Machine(root)
    identity = AMD_MILAN.replace("model\t\t: 1", "model\t\t: 17").replace("7543", "9354")
    box.cpus(64, 2, identity, "1024K", "32768K", 8)
    box.node(0, "0-31", 384, "10 32 50")
    box.node(1, "32-63", 384, "32 10 60")
    box.node(2, "", 256, "50 60 10")
    for number, bus in enumerate((0x20, 0x40, 0x60)):
        chain = f"pci0000:{bus:02x}/0000:{bus:02x}:01.1"
        box.pci(chain, BRIDGE, "1022:14ab", f"{GEN5},16", 0, "pcieport")
        device = box.pci(f"{chain}/0000:{bus + 1:02x}:00.0", CXL, "1e98:c000", f"{GEN5},8", 0, "cxl_pci")
        memory = f"{device}/mem{number}"
        box.files(memory, numa_node=0)
        box.files(f"{memory}/ram", size=f"{128 * 1024**3:#x}")
        box.files(f"{memory}/pmem", size="0x0")
        box.link(f"sys/bus/cxl/devices/mem{number}", memory)
        endpoint = f"sys/devices/platform/ACPI0017:00/root0/port1/endpoint{number + 2}"
        box.link(f"{endpoint}/uport", memory)
        box.files(f"{endpoint}/decoder{number + 2}.0", start="0x4080000000")
        box.link(f"sys/bus/cxl/devices/decoder{number + 2}.0", f"{endpoint}/decoder{number + 2}.0")
    region = "sys/devices/platform/ACPI0017:00/root0/decoder0.0/region0"
    box.files(region, size=f"{256 * 1024**3:#x}", interleave_ways=2, interleave_granularity=256, commit=1, mode="ram")
    box.files(region, target0="decoder2.0", target1="decoder3.0", resource="0x4080000000")
    box.link("sys/bus/cxl/devices/region0", region)
    dax = f"{region}/dax_region0/dax0.0"
    box.files(dax, size=256 * 1024**3, target_node=2, numa_node=0, align=2097152)
    box.link(f"{dax}/driver", "sys/bus/dax/drivers/kmem")
    box.link("sys/bus/dax/devices/dax0.0", dax)
    for block in range(4):
        box.file(f"sys/devices/system/memory/memory{2064 + block}/state", "online" if block < 3 else "offline")
        box.link(
            f"sys/devices/system/node/node2/memory{2064 + block}", f"sys/devices/system/memory/memory{2064 + block}"
        )
    box.pci("pci0000:80/0000:80:03.1", BRIDGE, "1022:14ab", f"{GEN4},4", 1, "pcieport")
    disk = box.pci("pci0000:80/0000:80:03.1/0000:81:00.0", NVME, "144d:a80a", f"{GEN4},4", 1, "nvme")
    box.disk("nvme0n1", f"{disk}/nvme/nvme0", "259:0", 1788)
    box.loopback()
    box.mounts("259:0 / xfs /dev/nvme0n1")
    return []


BUILT: dict[str, tuple[Callable[[Path], list[Gpu]], str]] = {
    "laptop": (laptop, "written after a laptop of 2021 with an AMD Ryzen 7 PRO 5850U; tests/machines.py"),
    "hgx-8x-h100": (hgx, "written after NVIDIA's HGX H100 reference design: two Sapphire Rapids; tests/machines.py"),
    "cxl-host": (cxl_host, "written after two EPYC 9354 with three CXL 1.1 x8 memory cards; tests/machines.py"),
}
SHIPPED_CAPTURES = {"cloud-vm": "cloud-vm", "2x-h200": "2x-h200", "1x-h200": "1x-h200"}
LAB_CAPTURES = [
    f"lab-four-nodes-cxl-{state}" for state in ("not-mapped", "devdax", "system-ram", "partly-online", "offline")
]  # tests/lab/capture.py makes them
CAPTURES = ["cloud-vm", "2x-h200", "1x-h200", "lab-numa-cxl-nvme-softroce", *LAB_CAPTURES]


def built(name: str, root: Path) -> Topology:
    """Return the machine ``name`` of BUILT as discovered, marked as constructed."""
    write, source = BUILT[name]
    topology = discover(root, told=write(root))
    topology.facts |= {"constructed": True, "source": source}
    return topology


def unpack(name: str, root: Path) -> Path:
    """Unpack a captured tree; returns its root."""
    with tarfile.open(CAPTURED / f"{name}.tar.gz") as tar:
        if hasattr(tarfile, "data_filter"):  # Python 3.11.4; Debian 12 has 3.11.2
            tar.extractall(root, filter="data")
        else:
            tar.extractall(root)
    return root


def captured(name: str, root: Path) -> Topology:
    """Return a captured machine as discovered, with what NVML said there."""
    told = CAPTURED / f"{name}.nvml.json"
    gpus = [gpu_from(row) for row in json.loads(told.read_text(encoding="utf-8"))] if told.is_file() else None
    topology = discover(unpack(name, root), told=gpus)
    topology.facts["source"] = f"captured by tests/capture_tree.py: {name}"
    return topology


def gpu_from(row: dict[str, object]) -> Gpu:
    links = [NvLink(**link) for link in row.pop("links")]  # type: ignore[attr-defined]
    return Gpu(**row, links=links)  # type: ignore[arg-type]


def main() -> None:
    for name in BUILT:
        with tempfile.TemporaryDirectory() as folder:
            save(built(name, Path(folder)), SHIPPED / f"{name}.json")
    for name in CAPTURES:
        with tempfile.TemporaryDirectory() as folder:
            topology = captured(name, Path(folder))
            place = SHIPPED if name in SHIPPED_CAPTURES else CAPTURED
            save(topology, place / f"{name}.json")


if __name__ == "__main__":
    sys.exit(main())
