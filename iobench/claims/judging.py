"""The ruling on a claim: impossible (which bound, by how much), unlikely (far from which measurement), or possible."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from iobench import busbytes
from iobench.claims import bounds
from iobench.claims.bounds import Measured, Rate
from iobench.claims.table import Claim
from iobench.units import format_rate, format_seconds, format_size

RULINGS = ("impossible", "unlikely", "possible")
ROUNDING = 0.02  # of published stages
FAR = 1.5  # more than half as much again away from what was measured


@dataclass(frozen=True)
class Ruling:
    """``factor``: by how much the claim passes the bound (impossible) or is away from what was measured (unlikely)."""

    claim: Claim
    word: str
    sentence: str
    factor: float | None = None
    source: str = ""


def judge(claims: Iterable[Claim]) -> list[Ruling]:
    """Return the ruling on each claim."""
    return [_judged(claim) for claim in claims]


def _judged(claim: Claim) -> Ruling:
    rate = bounds.rate(claim)
    for found in (_unequal(claim), _too_much(claim, rate), _too_soon(claim, rate), _far(claim)):
        if found is not None:
            return found
    return _possible(claim, rate)


def _unequal(claim: Claim) -> Ruling | None:
    """Return the ruling on stages that do not add up to the whole."""
    whole = sum(claim.stages)
    if not claim.stages or claim.seconds is None or abs(whole / claim.seconds - 1) <= ROUNDING:
        return None
    sentence = f"its stages add up to {format_seconds(whole)}, not to {format_seconds(claim.seconds)}"
    return Ruling(claim, "impossible", sentence, max(whole / claim.seconds, claim.seconds / whole), "the claim itself")


def _too_much(claim: Claim, rate: Rate | None) -> Ruling | None:
    """Return the ruling on a rate above the limit of the link."""
    if rate is None or claim.bytes_per_s is None:
        return None
    shown = claim.bytes_per_s * rate.share
    if shown <= rate.bytes_per_s:
        return None
    factor = shown / rate.bytes_per_s
    sentence = f"{_rate_words(claim, rate)} against {format_rate(rate.bytes_per_s)} ({rate.words})"
    return Ruling(claim, "impossible", sentence, factor, rate.source)


def _too_soon(claim: Claim, rate: Rate | None) -> Ruling | None:
    """Return the ruling on a time below the least one: one crossing, and then the bytes at the full rate."""
    found = bounds.floor(claim)
    if found is None or claim.seconds is None:
        return None
    least, words, source = found
    transfer = claim.nbytes * rate.share / rate.bytes_per_s if rate and claim.nbytes else 0.0
    if claim.seconds >= least + transfer:
        return None
    more = f" + {format_seconds(transfer)} for the bytes" if transfer > least / 100 else ""
    sentence = f"{format_seconds(claim.seconds)} against at least {format_seconds(least)} ({words}){more}"
    return Ruling(claim, "impossible", sentence, (least + transfer) / claim.seconds, source)


def _far(claim: Claim) -> Ruling | None:
    """Return the ruling on a figure that is far from everything that was measured of its like."""
    known = bounds.measured(claim)
    distances = [(_distance(claim, one), one) for one in known]
    usable = [(away, one) for away, one in distances if away is not None]
    if not usable or min(max(away, 1 / away) for away, _ in usable) <= FAR:
        return None
    # the nearest of what was measured is what the claim must be explained against
    away, nearest = min(usable, key=lambda pair: max(pair[0], 1 / pair[0]))
    shown = format_rate if nearest.is_rate else format_seconds
    ends = dict.fromkeys((shown(nearest.low), shown(nearest.high)))
    factor = max(away, 1 / away)
    word = "faster" if away > 1 else "slower"
    sentence = f"{factor:.1f} times {word} than measured: {' to '.join(ends)} ({nearest.words})"
    return Ruling(claim, "unlikely", sentence, factor, nearest.source)


def _distance(claim: Claim, known: Measured) -> float | None:
    """Return how many times faster the claim is than the nearer end of what was measured (below 1: slower)."""
    value = claim.bytes_per_s if known.is_rate else claim.seconds
    if value is None:
        return None
    nearest = min(max(value, known.low), known.high)
    return value / nearest if known.is_rate else nearest / value


def _possible(claim: Claim, rate: Rate | None) -> Ruling:
    known = bounds.measured(claim)
    if rate is not None and claim.bytes_per_s is None and claim.seconds is not None:
        most = format_size(int(claim.seconds * rate.bytes_per_s))
        at = f"{format_rate(rate.bytes_per_s)} ({rate.words})"
        return Ruling(claim, "possible", f"no size given: true for at most {most} at {at}", None, rate.source)
    inside = next((one for one in known if _distance(claim, one) is not None), None)
    if inside is not None:
        shown = format_rate if inside.is_rate else format_seconds
        ends = dict.fromkeys((shown(inside.low), shown(inside.high)))
        return Ruling(claim, "possible", f"measured: {' to '.join(ends)} ({inside.words})", None, inside.source)
    if rate is not None and claim.bytes_per_s is not None:
        sentence = f"{_rate_words(claim, rate)}, below {format_rate(rate.bytes_per_s)} ({rate.words})"
        return Ruling(claim, "possible", sentence, None, rate.source)
    return Ruling(claim, "possible", "nothing is known that speaks against it: name its machine or link", None, "")


def _rate_words(claim: Claim, rate: Rate) -> str:
    shown = format_rate((claim.bytes_per_s or 0.0) * rate.share)
    return f"bus bandwidth {shown}" if claim.op in busbytes.OPS else shown
