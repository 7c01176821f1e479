"""The lab's machine: two nodes with a CPU, two without, HMAT, a CXL memory device, NVMe beside node 1, a network card.

QEMU describes latencies to the guest, it does not make them.
"""

from __future__ import annotations

from lab.vm import Machine

NODES = {0: 1024, 1: 768, 2: 256, 3: 256}  # MiB
CPUS = {0: 0, 1: 1}  # node -> CPU
INITIATOR = {0: 0, 1: 1, 2: 0, 3: 1}  # the node whose CPUs are nearest
DISTANCE = {(0, 1): 21, (0, 2): 17, (0, 3): 28, (1, 2): 28, (1, 3): 17, (2, 3): 30}
LATENCY = {(0, 0): 90, (0, 1): 140, (0, 2): 250, (0, 3): 400, (1, 0): 140, (1, 1): 90, (1, 2): 400, (1, 3): 250}  # ns
BANDWIDTH = {(0, 0): 40, (0, 1): 20, (0, 2): 12, (0, 3): 6, (1, 0): 20, (1, 1): 40, (1, 2): 6, (1, 3): 12}  # GiB/s
CXL_MIB = 512
CXL_NODE = len(NODES)  # the kernel gives the window of CXL memory the next number
NVME_NODE = 1
MIB = 1 << 20


def _numa() -> str:
    words = []
    for node, size in NODES.items():
        cpus = f",cpus={CPUS[node]}" if node in CPUS else ""
        words.append(f"-object memory-backend-ram,id=m{node},size={size}M")
        words.append(f"-numa node,nodeid={node}{cpus},memdev=m{node},initiator={INITIATOR[node]}")
    words += [f"-numa dist,src={a},dst={b},val={value}" for (a, b), value in DISTANCE.items()]
    told = "-numa hmat-lb,hierarchy=memory,initiator={},target={},data-type=access-{},{}={}"
    words += [told.format(a, b, "latency", "latency", value) for (a, b), value in LATENCY.items()]
    words += [told.format(a, b, "bandwidth", "bandwidth", f"{value}G") for (a, b), value in BANDWIDTH.items()]
    return " ".join(words)


# Two root ports: with one, every command on the CXL device succeeds and what is written to it is silently lost.
_CXL = f"""
    -object memory-backend-ram,id=cxl-memory,share=on,size={CXL_MIB}M
    -object memory-backend-ram,id=cxl-labels,share=on,size=1M
    -device pxb-cxl,bus_nr=12,bus=pcie.0,id=cxl.1
    -device cxl-rp,port=0,bus=cxl.1,id=cxl-port0,chassis=0,slot=2
    -device cxl-rp,port=1,bus=cxl.1,id=cxl-port1,chassis=0,slot=3
    -device cxl-type3,bus=cxl-port0,memdev=cxl-memory,lsa=cxl-labels,id=cxl-device0,sn=0x1
    -M cxl-fmw.0.targets.0=cxl.1,cxl-fmw.0.size=4G"""
_NVME = f"""
    -device pxb-pcie,bus_nr=64,id=pxb1,bus=pcie.0,numa_node={NVME_NODE}
    -device pcie-root-port,id=port1,bus=pxb1,chassis=2,slot=2
    -drive file={{folder}}/nvme,if=none,id=disk,format=raw,cache=unsafe
    -device nvme,drive=disk,serial=LAB,bus=port1"""
_NET = "-netdev user,id=net,restrict=on -device virtio-net-pci,netdev=net,romfile=,bus=pcie.0"

LAB = Machine(
    f"{_numa()} {_CXL} {_NVME} {_NET}",
    machine="q35,cxl=on,hmat=on",
    memory=f"{sum(NODES.values())}M,maxmem=8G,slots=8",
    cpus=len(CPUS),
    disks=(("nvme", 512 * MIB),),
)
