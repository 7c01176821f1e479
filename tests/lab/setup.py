"""What the guest is told to set up: the commands that an administrator of such a machine would give."""

from __future__ import annotations

NVME_MOUNT = "/mnt/nvme"
RDMA_DEVICE = "rxe0"
DAX = "dax0.0"

# Drivers, and the time that the devices take to appear.
MODULES = """
modprobe -a cxl_acpi cxl_pci cxl_mem cxl_port cxl_pmem nd_pmem dax_pmem device_dax kmem nvme ext4 \
    virtio_net rdma_rxe ib_uverbs rdma_ucm 2>/run/lab/modprobe.err || cat /run/lab/modprobe.err >&2
wait_for() { for _ in $(seq 100); do [ -e "$1" ] && return; sleep 0.1; done; echo "no $1" >&2; exit 1; }
wait_for /sys/bus/cxl/devices/mem0
wait_for /dev/nvme0n1
sleep 0.5
"""

# CXL memory becomes a devdax device, the NVMe disk an ext4 file system, the network card a soft-RoCE device.
DEVICES = f"""{MODULES}
set -e
cxl create-region -m -t pmem -d decoder0.0 -w 1 -g 4096 mem0
ndctl create-namespace -m devdax -f -r region0
wait_for /dev/{DAX}
mkfs.ext4 -q -F /dev/nvme0n1
mkdir -p {NVME_MOUNT}
mount /dev/nvme0n1 {NVME_MOUNT}
card=$(ls /sys/class/net | grep -v '^lo$' | head -n 1)
ip address add 10.0.2.15/24 dev "$card"
ip link set "$card" up
rdma link add {RDMA_DEVICE} type rxe netdev "$card"
"""

# The same memory as a NUMA node without CPUs.
SYSTEM_RAM = f"daxctl reconfigure-device --mode=system-ram {DAX}"
OFFLINE = f"daxctl offline-memory {DAX}"
ONLINE = f"daxctl online-memory {DAX}"
# One block of the node's memory goes offline, the others stay.
PARTLY = """
block=$(ls -d /sys/devices/system/node/node4/memory* | tail -n 1)
echo offline > "$block/state"
"""
