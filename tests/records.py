"""What the tests of the records file share: a header, a sound line, files written as text."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from iobench.errors import UserError
from iobench.record import FILE_NAME, Header, Leg, Line, read

HEADER = Header("run-1", "2026-01-01T00:00:00Z", "0.1", {"name": "box"}, {"schema": 1}, {"probes": ["null"]})


def line(**changes: Any) -> Line:
    base = Line(
        probe="dram",
        source="sha256:1",
        point={"op": "copy", "threads": 2},
        nbytes=1 << 20,
        moved=2 << 20,
        seconds=[[1e-3, 2e-3, 3e-3]],
        warmup=[[5e-3]],
        legs=[Leg("mem:0", "cpu:0", 2, 1 << 20, 63e9), Leg("cpu:0", "mem:0")],
        evidence={"nodes": [0]},
        state={"during": {"steal_fraction": 0.0}},
        notes=["a note"],
        verified=True,
        proven=True,
    )
    return replace(base, **changes)


def write(folder: Path, *texts: str | bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    data = b"\n".join(text.encode() if isinstance(text, str) else text for text in texts)
    (folder / FILE_NAME).write_bytes(data)
    return folder / FILE_NAME


def changed(**values: Any) -> str:
    """A point's line with some raw JSON values put in."""
    return json.dumps({"type": "point", **asdict(line()), **values})


def refused(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        read(path)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400 + len(str(path))
    return message
