"""The emulated hardware lab: a virtual machine with NUMA, CXL, NVMe and RDMA that this machine does not have."""
