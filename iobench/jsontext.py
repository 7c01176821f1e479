"""JSON that stands in a text: what tools print between the lines of a shell or of another tool."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_STARTS = {"{": re.compile(r"^[ \t]*\{", re.MULTILINE), "{[": re.compile(r"^[ \t]*[\[{]", re.MULTILINE)}


def documents(text: str, most: int, starts: str = "{") -> Iterator[tuple[int, Any]]:
    """Yield (offset, value) of each JSON object that starts a line; ``starts="{["`` takes lists as well.

    Looks at ``most`` starts of lines; what begins like JSON and is none is passed over.
    """
    decoder, at = json.JSONDecoder(), 0
    for _ in range(most):
        match = _STARTS[starts].search(text, at)
        if match is None:
            return
        try:
            value, at = decoder.raw_decode(text, match.end() - 1)
        except (ValueError, RecursionError):
            at = match.end()
            continue
        yield match.end(), value
