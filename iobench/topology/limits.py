"""Physical limits out of topologies/limits.toml. What has no row there has no limit: None, never a guess."""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass
from typing import Any

from iobench.paths import data_dir
from iobench.units import GB, GHZ, from_gigabits, from_gigahertz, from_gigatransfers, from_megatransfers

FILE = "limits.toml"


@dataclass(frozen=True)
class Limit:
    """An upper bound in bytes per second, where it comes from, and the bound above which a rate is doubtful."""

    bytes_per_s: float
    source: str
    warn_bytes_per_s: float | None = None


@dataclass(frozen=True)
class Core:
    """What one core can move between its registers and its first-level cache per second, at its highest clock."""

    load_bytes_per_s: float
    store_bytes_per_s: float
    max_hz: float
    source: str


@functools.cache
def table() -> dict[str, Any]:
    """Return limits.toml as plain data."""
    with (data_dir("topologies") / FILE).open("rb") as file:
        return tomllib.load(file)


def pcie(generation: int | None, width: int | None) -> Limit | None:
    """Return the limit of a PCIe link per direction: transfers * lanes * line code / 8."""
    row = _row(table()["pcie"]["generation"], "generation", generation)
    if row is None or not width:
        return None
    raw = from_gigatransfers(row["gigatransfers"], width, row["encoding"])
    return Limit(raw, _source(row), raw * table()["pcie"]["payload_share"])


def pcie_generation(gigatransfers: float) -> int | None:
    """Return the PCIe generation that runs at this speed, None for a speed that none has."""
    row = _row(table()["pcie"]["generation"], "gigatransfers", gigatransfers)
    return row["generation"] if row else None


def cxl_warning(link_bytes_per_s: float) -> float:
    """Return what CXL flits leave of a link's rate: more than that is doubtful."""
    return link_bytes_per_s * float(table()["cxl"]["payload_share"])


def nvlink(generation: int | None, links: int) -> Limit | None:
    """Return the limit of ``links`` NVLinks of one generation per direction."""
    row = _row(table()["nvlink"], "generation", generation)
    return Limit(row["gigabytes_per_s"] * GB * links, _source(row)) if row and links > 0 else None


def infiniband(gigabits: float, name: str | None) -> Limit | None:
    """Return the data rate per direction of an InfiniBand port that the kernel shows as ``gigabits`` (``name``)."""
    row = _row(table()["infiniband"], "name", name)
    return Limit(from_gigabits(gigabits) * row["share"], _source(row)) if row and gigabits > 0 else None


def gpu_memory(product: str | None) -> Limit | None:
    """Return the memory limit of a GPU by its product name, reads and writes together."""
    for row in table()["gpu"] if product else []:
        if re.search(row["name"], product or ""):
            return Limit(row["gigabytes_per_s"] * GB, _source(row))
    return None


def gpu_product(vendor: str | None, device: str | None) -> str | None:
    """Return the product name behind a PCI id, where the table has it."""
    row = _row(table()["gpu"], "device", device) if vendor in {"0x10de", "0x1002"} else None
    return row.get("product") if row else None


def cpu(vendor: str | None, family: int | None, model: int | None, name: str | None = None) -> dict[str, Any] | None:
    """Return the row of a processor, None for an unknown one."""
    if vendor is None or family is None or model is None:
        return None
    for row in table()["cpu"]:
        low, high = row["models"]
        same = row["vendor"] == vendor and row["family"] == family and low <= model <= high
        if same and re.search(row.get("name", ""), name or ""):
            return dict(row)
    return None


def dram(row: dict[str, Any] | None) -> Limit | None:
    """Return one socket's memory limit, reads and writes together: channels * transfers * 8 bytes."""
    if not row or "channels" not in row:
        return None
    figures = f"{row['channels']} channels x {row['megatransfers']} MT/s x 8 bytes"
    return Limit(from_megatransfers(row["megatransfers"], row["channels"]), _short(row, figures))


def socket_link(row: dict[str, Any] | None) -> Limit | None:
    """Return the limit between two sockets per direction, as many links as a board can wire."""
    if not row or "socket_link_count" not in row:
        return None
    lanes = row["socket_link_lanes"] * row["socket_link_count"]
    figures = f"at most {lanes} lanes x {row['socket_link_gigatransfers']} GT/s between two sockets"
    return Limit(from_gigatransfers(row["socket_link_gigatransfers"], lanes), _short(row, figures))


def core(row: dict[str, Any] | None, max_hz: int | None = None) -> Core | None:
    """Return one core's load and store limits at the higher of the table's clock and the one that sysfs shows."""
    if not row or "load_bytes" not in row:
        return None
    hertz = max(from_gigahertz(row["max_ghz"]), float(max_hz or 0))
    figures = f"{row['load_bytes']} bytes loaded and {row['store_bytes']} stored per cycle at {hertz / GHZ:.3g} GHz"
    return Core(row["load_bytes"] * hertz, row["store_bytes"] * hertz, hertz, _short(row, figures))


def _row(rows: list[dict[str, Any]], key: str, value: Any) -> dict[str, Any] | None:
    return next((row for row in rows if value is not None and row.get(key) == value), None)


def _short(row: dict[str, Any], figures: str) -> str:
    """Return a source that names the row and the figures taken from it; the row itself names the documents."""
    return f"{FILE}: {row['product']}, {figures} [{row['confidence']}]"


def _source(row: dict[str, Any]) -> str:
    return f"{FILE}: {row['source']} [{row['confidence']}]"
