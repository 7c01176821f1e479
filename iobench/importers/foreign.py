"""Names tools whose output looks like a measurement but is not imported, so that a refusal says what the file is."""

from __future__ import annotations

import re

_COPIES = "run nvbandwidth or p2pBandwidthLatencyTest, or iobench run pcie hbm p2p"
_TOOLS = (
    (
        r"^[ \t]*BabelStream[ \t]*$|^Function[ \t]+[MG]i?Bytes/sec[ \t]+Min \(sec\)",
        "BabelStream's table",
        "run STREAM or likwid-bench for host memory, iobench run hbm for a GPU's",
    ),
    (
        r"^[ \t]*STREAM Benchmark implementation in CUDA|^Function[ \t]+Rate \(?G[iI]?B/s\)?",
        "a table in the manner of STREAM with rates in GB/s or GiB/s, as ports to GPUs print it",
        "run STREAM or likwid-bench for host memory, iobench run hbm for a GPU's",
    ),
    (r"\[CUDA Bandwidth Test\] - Starting", "the output of CUDA's bandwidthTest, which NVIDIA withdrew", _COPIES),
    (r"RocmBandwidthTest|^[ \t]*(?:Bi|Uni)directional copy peak band", "the output of rocm_bandwidth_test", _COPIES),
    (
        r"ROCm System Management Interface|Link Type between two GPUs",
        "the output of rocm-smi, whose matrices are not read",
        "give RCCL's topology file (NCCL_TOPO_DUMP_FILE), or run iobench topology on the machine",
    ),
    (
        r"^LINK TYPE TABLE:|^ACCESS TABLE:|^NUMA BW TABLE:",
        "the output of amd-smi topology, whose matrices are not read",
        "give RCCL's topology file (NCCL_TOPO_DUMP_FILE), or run iobench topology on the machine",
    ),
    (
        r"^[ \t]*\S.{0,80}: \(g=\d+\): (?:rw=|\(groupid)|^fio-[0-9.]+",
        "fio's text for people, which rounds its figures",
        "run fio with --output-format=json",
    ),
    (r"^[ \t]*[CG]NS[ \t]+= ", "nvidia-smi topo -p2p's matrix of what is supported",
     "give the output of nvidia-smi topo -m"),
    (r"^# GID\|MetricsCount\||^\| +Metric +\| +(?:HWThread|Core) ",
     "the output of likwid-perfctr, counters of a program", "run likwid-bench for a bandwidth"),
    (r'"identifier": *"nccl-tests structured output"', "JSON of a patched nccl-tests",
     "run it with -J FILE, or give its table"),
    (r"count\(elems\)[ \t]+type[ \t]+time(?::avg)?\(us\)", "nccom-test's table (AWS Neuron), whose GB are GiB",
     "run nccl-tests where there are GPUs"),
    (r"<nvidia_smi_log>", "nvidia-smi's XML (-q -x)", "give the text of nvidia-smi -q"),
    (r"^[ \t]*(?:GPU|NIC)\d+[ \t]+(?:(?:NV\d+|X|PIX|PXB|PHB|NODE|SYS)[ \t]+){2,}",
     "rows of nvidia-smi topo's matrix without its heading", "give the whole output of nvidia-smi topo -m"),
    (r"^Connecting to host \S+, port \d+|\[ ID\] Interval +Transfer", "iperf's output", "run perftest or OSU"),
    (r"^(?:Roundtrip|Send-recv) benchmark[ \t]*$", "the output of ucx-py's benchmark", "run ucx_perftest"),
    (r"^#+ ?LAT_MEM_RD|\bstride=\d+[ \t]*$", "lmbench's lat_mem_rd", "run Intel MLC, or iobench run dram"),
    (r"^Starting STRIDE|Sequential read \(\d+-bit\), size = ", "the output of bandwidth or membench", "run STREAM"),
)  # fmt: skip
_MARKS = tuple((re.compile(mark, re.MULTILINE), what, step) for mark, what, step in _TOOLS)


def known(head: str) -> tuple[str, str] | None:
    """Return what the text is and what to do instead; None for text of no tool that is known here."""
    return next(((what, step) for mark, what, step in _MARKS if mark.search(head)), None)
