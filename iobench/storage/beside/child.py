"""Runs one loader in this process: an order on standard input, then a line per load; answers go to a pipe.

Lines in: the order (JSON), then "poison", "load" or "check". Answers: {"ready": facts} or {"unavailable": text}, then
{"poisoned": true}, {"seconds": s, "facts": facts} per load, {"checked": bytes} or {"wrong": text} per check,
{"error": text} for what fails.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, TextIO

import numpy as np

from iobench.errors import IobenchError, Unavailable, UserError, WrongData
from iobench.storage import files as held
from iobench.storage import verify
from iobench.storage.beside import loaders
from iobench.storage.checkpoint import Checkpoint, from_files


def main() -> None:
    """Serve the parent until it closes standard input."""
    answers = os.fdopen(int(sys.argv[1]), "w", buffering=1)

    def answer(**what: Any) -> None:
        answers.write(json.dumps(what) + "\n")

    lines = _orders()
    order = loaders.Order(**json.loads(lines.readline()))
    try:
        checkpoint = from_files(order.paths)
        loader = loaders.make(order, checkpoint)
        answer(ready=loader.facts())
    except (Unavailable, UserError) as reason:
        answer(unavailable=str(reason))
        return
    except (ImportError, OSError, RuntimeError, ValueError, AttributeError, TypeError) as error:
        answer(unavailable=f"{order.loader} does not start here: {_line(error)}")
        return
    expected: dict[tuple[int, int], Any] = {}
    for line in lines:
        answer(**_done(line.strip(), loader, checkpoint, expected))


def _orders() -> TextIO:
    """Return standard input under another number: cuFile closes 0 where nvidia-fs is loaded without its devices."""
    lines = os.fdopen(os.dup(0), "r")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    return lines


def _done(verb: str, loader: loaders.Loader, checkpoint: Checkpoint, expected: Any) -> Any:
    try:
        if verb == "poison":
            loader.poison()
            return {"poisoned": True}
        if verb == "check":
            return {"checked": check(loader, checkpoint, expected)}
        began = time.perf_counter()
        loader.load()
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "facts": loader.facts()}
    except WrongData as wrong:
        return {"wrong": str(wrong)}
    except IobenchError as error:
        return {"error": str(error)}
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        return {"error": _line(error)}


def check(loader: loaders.Loader, checkpoint: Checkpoint, expected: dict[tuple[int, int], Any]) -> int:
    """Compare the sums of every part with those of the file's bytes; WrongData where one differs. Returns bytes."""
    looked = 0
    for area, part in loader.parts():
        key = area.shard, area.offset
        if key not in expected:
            expected[key] = held.area_sums(checkpoint, area)
        found = _sums(part, area.nbytes)
        verify.compare(found, expected[key], f"{checkpoint.shards[area.shard].path.name}, {area.name}")
        looked += area.nbytes
    return looked


def _sums(part: Any, nbytes: int) -> Any:
    if isinstance(part, np.ndarray):
        if part.size != nbytes:
            raise WrongData(f"{part.size} bytes instead of {nbytes}")
        return verify.sums(part)
    from iobench import gpu
    from iobench.storage import ongpu

    address = part.data_ptr() if hasattr(part, "data_ptr") else part.data.ptr
    return ongpu.sums(int(address), nbytes, gpu.device(0))


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


if __name__ == "__main__":
    main()
