"""Sizes, times and rates: what is read, what is refused, what is printed."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from iobench.errors import UserError
from iobench.units import (
    GIB,
    KIB,
    MIB,
    format_rate,
    format_seconds,
    format_size,
    parse_seconds,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0", 0),
        ("8", 8),
        ("8B", 8),
        ("4KiB", 4096),
        ("4k", 4096),
        (" 4 KiB ", 4096),
        ("512M", 512 * MIB),
        ("1.5G", 1610612736),
        ("1GB", 10**9),
        ("1.5KB", 1500),
        ("2tib", 2 * 1024**4),
        ("0.5K", 512),
        ("9007199254740993", 2**53 + 1),  # a float would round it
    ],
)
def test_parse_size(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize(
    "text",
    ["", " ", "K", "-1", "-4K", "+4", "4X", "4KiBB", "1e3", "1,5G", "0x10", "4 K i B", "1.G", ".5G", "0.5", "0.1K",
     "nan", "inf", "٣", "4\u212a", "1_000", "9" * 5000, "9" * 400 + ".5", "8E", "16777216T"],
)  # fmt: skip
def test_parse_size_refuses(text: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_size(text)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=20))
def test_parse_size_of_any_text_is_a_size_or_a_user_error(text: str) -> None:
    try:
        nbytes = parse_size(text)
    except UserError:
        return
    assert isinstance(nbytes, int)
    assert 0 <= nbytes < 2**63


@given(st.integers(0, 2**63 - 1))
def test_plain_bytes_round_trip(nbytes: int) -> None:
    assert parse_size(str(nbytes)) == nbytes


@given(st.integers(0, 2**40), st.sampled_from([1, KIB, MIB, GIB]))
def test_format_size_is_within_half_a_percent(count: int, unit: int) -> None:
    number, suffix = format_size(count * unit).split()
    shown = float(number) * {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": 1024**4}[suffix]
    assert shown == pytest.approx(count * unit, rel=0.005)
    assert "e" not in number


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (65536, "64 KiB"), (1536, "1.5 KiB"), (1023 * 1024 + 1, "1023 KiB"), (GIB, "1 GiB")],
)
def test_format_size(nbytes: int, text: str) -> None:
    assert format_size(nbytes) == text


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90.0), ("500ms", 0.5), ("2m", 120.0), ("1h", 3600.0), ("2.5us", 2.5e-6), ("0", 0.0)]
)
def test_parse_seconds(text: str, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "-1", "1d", "1e3", "1:30", "nan", "9" * 400])
def test_parse_seconds_refuses(text: str) -> None:
    with pytest.raises(UserError):
        parse_seconds(text)


@given(st.text(max_size=20))
def test_parse_seconds_of_any_text_is_finite_or_a_user_error(text: str) -> None:
    with contextlib.suppress(UserError):
        assert math.isfinite(parse_seconds(text))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.5, "1.50 s"), (0.0123, "12.3 ms"), (5e-6, "5.00 us"), (50e-9, "50.0 ns"), (0.0, "0 ns"), (math.inf, "-")],
)
def test_format_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@given(st.floats(1e3, 1e14))
def test_format_rate_keeps_three_digits(bytes_per_s: float) -> None:
    number, unit = format_rate(bytes_per_s).split()
    assert unit == "GB/s"
    assert float(number) * 1e9 == pytest.approx(bytes_per_s, rel=0.0051)
