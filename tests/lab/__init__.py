"""The emulated hardware lab: a virtual machine with NUMA, CXL, NVMe and RDMA that this machine does not have.

``make lab`` runs its tests. ``machine.LAB`` is what QEMU emulates, ``setup`` what is set up in it, ``kernel`` the stock
Debian kernel (cached in ~/.cache/iobench/lab), ``vm.Guest`` the running machine. A test takes the fixture ``guest``,
booted and set up once for all tests of its file (CXL as devdax, /mnt/nvme mounted, rxe0 up); files run side by side:

    def test_something(guest: Guest) -> None:
        done = guest.run("ibv_devinfo -d rxe0", timeout=60)   # bash, as root; the host's root is the guest's, read-only
        assert done.code == 0, done.text
        cli.call(guest, cli.run_line("rdma", "rdma -a nbytes=8"))  # iobench run ..., short, no report
        run = cli.measured(guest, "rdma")                          # the records, read on this side

``guest.shared`` is /run/lab in the guest. Starting Python and importing numba take ten times as long as here, so
several command lines belong into one ``cli.call``, whose process they share. Kernels are compiled on this side: a
probe with new ones adds a use of each to ``compile_kernels``.
"""
