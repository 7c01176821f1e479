"""Units at the edge: the only place that knows GB/s, us, KiB, 1e9 and 1024.

Inside iobench a size is ``nbytes`` (int), a time ``seconds`` (float) and a rate ``bytes_per_s``.
Binary suffixes (K, KiB, M, MiB, ...) are powers of 1024, as nccl-tests, fio and the memory tools
read them; decimal ones (KB, MB, GB, TB) are powers of 1000. GB/s is always 1e9 bytes per second.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

from iobench.errors import UserError

KIB = 1024
MIB = 1024**2
GIB = 1024**3
TIB = 1024**4
KB = 10**3
MB = 10**6
GB = 10**9
KHZ = 10**3
MHZ = 10**6
GHZ = 10**9
MOST_NBYTES = 2**63 - 1
_UNCLEAR = ("yes", "no", "on", "off", "auto")  # words that say nothing without their axis
NS = 1e-9
US = 1e-6
MS = 1e-3

_SIZE_SUFFIX = {
    "": 1, "b": 1,
    "k": KIB, "kib": KIB, "m": MIB, "mib": MIB, "g": GIB, "gib": GIB, "t": TIB, "tib": TIB,
    "kb": KB, "mb": MB, "gb": GB, "tb": 10**12,
}  # fmt: skip
_NUMBER_WITH_SUFFIX = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")
_SECONDS_SUFFIX = {"ns": NS, "us": US, "ms": MS, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def parse_size(text: str) -> int:
    """Return the bytes that ``text`` ("8", "4KiB", "512M", "1.5G", "1GB") means.

    Raises UserError for anything else, for a fraction of a byte and for negative sizes.
    """
    match = _NUMBER_WITH_SUFFIX.fullmatch(text)
    factor = _SIZE_SUFFIX.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise UserError(f"'{text}' is not a size: write bytes or a suffix, as in 8, 4KiB, 512M, 1G")
    nbytes = Decimal(match[1]) * factor  # exact, where a float would round or overflow
    if nbytes > MOST_NBYTES:
        raise UserError(f"'{text}' is larger than any memory or disk: write a size below 8 EiB")
    if nbytes != int(nbytes):
        raise UserError(f"'{text}' is not a whole number of bytes: write it in a smaller unit")
    return int(nbytes)


def parse_seconds(text: str) -> float:
    """Return the seconds that ``text`` ("90", "500ms", "2m") means; raise UserError otherwise."""
    match = _NUMBER_WITH_SUFFIX.fullmatch(text)
    factor = _SECONDS_SUFFIX.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise UserError(f"'{text}' is not a time: write seconds or a suffix, as in 90, 500ms, 2m")
    seconds = float(match[1]) * factor
    if not math.isfinite(seconds):
        raise UserError(f"'{text}' is longer than any run: write seconds or a suffix, as in 90, 500ms, 2m")
    return seconds


def format_size(nbytes: int) -> str:
    """Return ``nbytes`` in the largest binary unit that keeps it exact or to 3 digits ("64 KiB")."""
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(nbytes) >= unit:
            value = nbytes / unit
            return f"{nbytes // unit} {name}" if nbytes % unit == 0 else f"{_short(value)} {name}"
    return f"{nbytes} B"


def format_rate(bytes_per_s: float, digits: int = 3) -> str:
    """Return a rate in GB/s (1e9 bytes per second), ``digits`` significant digits at least."""
    return f"{_digits(bytes_per_s / GB, digits)} GB/s"


def format_flops(flops_per_s: float) -> str:
    """Return floating-point operations per second in TFLOP/s (1e12), or GFLOP/s below one."""
    if abs(flops_per_s) >= 1000 * GB:
        return f"{_digits(flops_per_s / GB / 1000)} TFLOP/s"
    return f"{_digits(flops_per_s / GB)} GFLOP/s"


def format_seconds(seconds: float, digits: int = 3) -> str:
    """Return a time in the unit that suits it, ns, us, ms or s; what rounds up to a unit is shown in it."""
    if not math.isfinite(seconds):
        return "-"
    shown = _rounded(abs(seconds), digits)
    for unit, name in ((1.0, "s"), (MS, "ms"), (US, "us")):
        if shown >= unit:
            return f"{_digits(seconds / unit, digits)} {name}"
    return f"{_digits(seconds / NS, digits)} ns"


def short_rate(bytes_per_s: float) -> str:
    """Return a rate as a bare number of GB/s, for an axis whose title names the unit."""
    value = bytes_per_s / GB
    return f"{value:.9f}".rstrip("0").rstrip(".") if 1e-9 <= abs(value) < 1e-3 else f"{value:.6g}"


def short_seconds(seconds: float) -> str:
    """Return a time with as few digits as it has, for an axis ("10 us")."""
    for unit, name in ((1.0, "s"), (MS, "ms"), (US, "us")):
        if abs(seconds) >= unit * (1 - 1e-9):
            return f"{seconds / unit:.6g} {name}"
    return f"{seconds / NS:.6g} ns" if seconds else "0"


def from_gigabits(gigabits_per_s: float) -> float:
    """Return bytes per second of a link rate in Gb/s (1e9 bits per second)."""
    return gigabits_per_s * GB / 8


def from_megabits(megabits_per_s: float) -> float:
    """Return bytes per second of a link rate in Mb/s, the unit of /sys/class/net/*/speed."""
    return megabits_per_s * MB / 8


def from_gigahertz(gigahertz: float) -> float:
    """Return cycles per second."""
    return gigahertz * GHZ


def from_gigatransfers(gigatransfers_per_s: float, lanes: int, encoding: float = 1.0) -> float:
    """Return bytes per second and direction of a serial link: one bit per transfer and lane, times the line code."""
    return gigatransfers_per_s * GB * lanes * encoding / 8


def from_megatransfers(megatransfers_per_s: float, channels: int, nbytes: int = 8) -> float:
    """Return bytes per second of ``channels`` memory channels, each ``nbytes`` wide (8 unless said)."""
    return megatransfers_per_s * MB * channels * nbytes


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}"


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits - 1}e}")


def _digits(value: float, digits: int = 3) -> str:
    if not math.isfinite(value):
        return "-"
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(_rounded(value, digits)))))
    return f"{value:.{min(decimals, 9)}f}"


def speaks(value: object) -> bool:
    """Tell whether the value of an axis is a word that is understood without the axis' name."""
    return isinstance(value, str) and bool(value) and not value[0].isdigit() and value not in _UNCLEAR


def format_point(point: dict[str, Any]) -> str:
    """Return a point as the user would write it: "kernel=copy nbytes=64 MiB threads=2"."""
    return " ".join(
        f"{name}={format_size(value) if name == 'nbytes' and isinstance(value, int) else value}"
        for name, value in point.items()
    )
