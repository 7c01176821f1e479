"""Records as a table of pandas: one row per record."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from iobench.errors import UserError

if TYPE_CHECKING:
    import pandas

    from iobench.record import Record


def frame(records: Iterable[Record]) -> pandas.DataFrame:
    """Return the point's axes, medians in seconds and bytes/s of each record; UserError without pandas."""
    try:
        import pandas
    except ImportError as error:
        raise UserError("to_frame() needs pandas: pip install pandas") from error
    return pandas.DataFrame([_row(record) for record in records])


def _row(record: Record) -> dict[str, Any]:
    row: dict[str, Any] = {"probe": record.probe, **record.point, "status": record.status, "mode": record.mode}
    row.update(nbytes=record.nbytes, moved=record.moved, quantity=record.quantity)
    if record.used:
        time = record.time
        row.update(seconds=time.median, n=time.n, aggregate=record.aggregate)
        row.update(seconds_low=time.low if time.known else None, seconds_high=time.high if time.known else None)
        row.update(bytes_per_s=record.bytes_per_s, launches=time.groups)
    return row
