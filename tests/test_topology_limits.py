"""Limits: figures worked out by hand, every row with its source, and nothing for what is not there."""

from __future__ import annotations

import re

import pytest
from iobench.topology import limits
from iobench.units import GB, from_gigabits, from_gigahertz, from_gigatransfers, from_megabits, from_megatransfers


def rows() -> list[dict[str, object]]:
    table = limits.table()
    return [*table["pcie"]["generation"], *table["nvlink"], *table["infiniband"], *table["gpu"], *table["cpu"]]


def test_every_row_has_a_source_and_a_known_confidence() -> None:
    assert len(rows()) > 40
    for row in rows():
        assert len(str(row["source"])) > 10, row
        assert row["confidence"] in {"specified", "derived", "recalled"}, row
    assert limits.table()["pcie"]["payload_source"]
    assert limits.table()["cxl"]["payload_source"]


# raw and MPS 256 figures per direction of x16 links, in GB/s
@pytest.mark.parametrize(
    ("generation", "raw", "warn_low", "warn_high"),
    [
        (1, 4.0, 3.6, 3.8),
        (2, 8.0, 7.2, 7.5),
        (3, 15.754, 14.20, 14.62),
        (4, 31.508, 28.40, 29.23),
        (5, 63.015, 56.80, 58.46),
        (6, 128.0, 110, 119),
    ],
)
def test_pcie_x16(generation: int, raw: float, warn_low: float, warn_high: float) -> None:
    limit = limits.pcie(generation, 16)
    assert limit is not None
    assert limit.bytes_per_s / GB == pytest.approx(raw, rel=1e-4)
    assert limit.warn_bytes_per_s is not None
    assert warn_low <= limit.warn_bytes_per_s / GB <= warn_high
    quarter = limits.pcie(generation, 4)
    assert quarter is not None
    assert quarter.bytes_per_s * 4 == pytest.approx(limit.bytes_per_s)


@pytest.mark.parametrize(("generation", "width"), [(None, 16), (5, None), (None, None), (8, 16), (0, 16), (5, 0)])
def test_pcie_unknown(generation: int | None, width: int | None) -> None:
    assert limits.pcie(generation, width) is None


@pytest.mark.parametrize(
    ("generation", "links", "gigabytes"), [(3, 12, 300), (4, 18, 450), (5, 18, 900), (2, 6, 150), (1, 4, 80)]
)
def test_nvlink_per_direction(generation: int, links: int, gigabytes: float) -> None:
    limit = limits.nvlink(generation, links)
    assert limit is not None
    assert limit.bytes_per_s == gigabytes * GB


def test_nvlink_unknown() -> None:
    assert limits.nvlink(None, 18) is None
    assert limits.nvlink(4, 0) is None
    assert limits.nvlink(99, 4) is None


@pytest.mark.parametrize(
    ("vendor", "family", "model", "gigabytes"),
    [
        ("AuthenticAMD", 23, 49, 204.8),
        ("AuthenticAMD", 25, 0, 204.8),
        ("AuthenticAMD", 25, 1, 204.8),
        ("AuthenticAMD", 25, 15, 204.8),
        ("AuthenticAMD", 25, 16, 460.8),
        ("AuthenticAMD", 25, 17, 460.8),
        ("AuthenticAMD", 25, 160, 460.8),
        ("AuthenticAMD", 26, 2, 614.4),
        ("AuthenticAMD", 26, 17, 614.4),
        ("GenuineIntel", 6, 106, 204.8),
        ("GenuineIntel", 6, 143, 307.2),
        ("GenuineIntel", 6, 207, 358.4),
        ("GenuineIntel", 6, 173, 844.8),
    ],
)
def test_memory_of_a_socket(vendor: str, family: int, model: int, gigabytes: float) -> None:
    limit = limits.dram(limits.cpu(vendor, family, model))
    assert limit is not None
    assert limit.bytes_per_s / GB == pytest.approx(gigabytes)
    assert limit.source.startswith("limits.toml: ")


@pytest.mark.parametrize(
    ("vendor", "family", "model"),
    [
        ("AuthenticAMD", 25, 80),
        ("AuthenticAMD", 15, 107),
        ("GenuineIntel", 6, 9999),
        ("0x41", 8, 0xD4F),
        (None, 25, 1),
        ("AuthenticAMD", None, 1),
        ("AuthenticAMD", 25, None),
    ],
)
def test_memory_of_an_unknown_or_a_client_processor_is_unknown(
    vendor: str | None, family: int | None, model: int | None
) -> None:
    assert limits.dram(limits.cpu(vendor, family, model)) is None


def test_sapphire_rapids_with_hbm_has_no_dram_limit() -> None:
    assert limits.dram(limits.cpu("GenuineIntel", 6, 143, "Intel(R) Xeon(R) CPU Max 9480")) is None
    assert limits.dram(limits.cpu("GenuineIntel", 6, 143, "Intel(R) Xeon(R) Platinum 8480+")) is not None


def test_core_takes_the_higher_clock() -> None:
    row = limits.cpu("AuthenticAMD", 25, 1)
    core, faster = limits.core(row), limits.core(row, 6_000_000_000)
    assert core is not None
    assert faster is not None
    assert (core.load_bytes_per_s, core.store_bytes_per_s) == (64 * 4.5e9, 32 * 4.5e9)
    assert faster.load_bytes_per_s == 64 * 6e9
    assert limits.core(row, 1_500_000_000) == core
    assert limits.core(limits.cpu("GenuineIntel", 6, 175)) is None
    assert limits.core(None) is None


def test_socket_links() -> None:
    genoa, skylake = (
        limits.socket_link(limits.cpu(*key)) for key in (("AuthenticAMD", 25, 17), ("GenuineIntel", 6, 143))
    )
    assert genoa is not None
    assert skylake is not None
    assert genoa.bytes_per_s / GB == pytest.approx(256)
    assert skylake.bytes_per_s / GB == pytest.approx(192)
    assert limits.socket_link(limits.cpu("AuthenticAMD", 25, 80)) is None


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("NVIDIA H200", 4917),
        ("NVIDIA H100 80GB HBM3", 3352),
        ("NVIDIA H100 PCIe", 3938),
        ("NVIDIA A100-SXM4-80GB", 2039),
        ("NVIDIA A100-SXM4-40GB", 1555),
        ("NVIDIA L40S", 864),
        ("AMD Instinct MI300X", 5325),
    ],
)
def test_gpu_memory(name: str, gigabytes: float) -> None:
    limit = limits.gpu_memory(name)
    assert limit is not None
    assert limit.bytes_per_s == gigabytes * GB


def test_gpu_unknown() -> None:
    assert limits.gpu_memory("NVIDIA H2000X") is None
    assert limits.gpu_memory(None) is None
    assert limits.gpu_product("0x10de", "0x2335") == "NVIDIA H200"
    assert limits.gpu_product("0x10de", "0x0001") is None
    assert limits.gpu_product("0x8086", "0x2335") is None
    assert limits.gpu_product(None, None) is None


def test_patterns_compile_and_ranges_are_in_order() -> None:
    for row in [*limits.table()["gpu"], *limits.table()["cpu"]]:
        re.compile(row.get("name", ""))
    for row in limits.table()["cpu"]:
        low, high = row["models"]
        assert low <= high
        assert row["threads"] > 0 if "channels" in row else True


def test_conversions() -> None:
    assert from_gigabits(400) == 50e9
    assert from_megabits(25000) == 3.125e9
    assert from_gigatransfers(2.5, 1, 0.8) == 250e6
    assert from_megatransfers(3200, 8) == 204.8e9
    assert from_gigahertz(3.5) == 3.5e9
