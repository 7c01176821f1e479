"""Compiles the loops before anything waits for them: the first use of each would take seconds, inside a deadline."""

from __future__ import annotations

from numba import types

from iobench.rdma import loops

_WHOLE, _WORD, _FLAG = types.int64, types.uint64, types.boolean
_BYTES, _NUMBERS, _WORDS = types.uint8[::1], types.int64[::1], types.uint64[::1]
# what timed.Native and side.Side call them with
SIGNATURES = {
    "fill": (_BYTES, _WORD, _WORD),
    "first_wrong": (_BYTES, _WORD, _WORD),
    "pingpong": (
        _WORDS, _WHOLE, _WHOLE, _BYTES, _BYTES, _WORD, _WORD, _FLAG, _NUMBERS, _NUMBERS, _NUMBERS,
    ),
    "answer": (_WORDS, _WHOLE, _WHOLE, _WHOLE, _BYTES, _BYTES, _WORD, _WORD, _FLAG, _NUMBERS),
    "one_sided": (_WORDS, _WHOLE, _WHOLE, _BYTES, _BYTES, _WORD, _FLAG, _NUMBERS, _NUMBERS, _NUMBERS),
    "stream": (
        _WORDS, _WORDS, _WORDS, _WORDS, _WHOLE, _WHOLE, _WHOLE, _NUMBERS, _NUMBERS, _WORD, _NUMBERS,
    ),
    "drain": (_WORDS, _WORDS, _WORDS, _WHOLE, _WHOLE, _NUMBERS),
    "post_batches": (_WORDS, _WORD, _WORD, _WHOLE, _NUMBERS, _NUMBERS),
    "empty_polls": (_WORDS, _WHOLE),
    "post_receives": (_WORDS, _WORDS, _WORDS, _WHOLE),
}  # fmt: skip


def compile_all() -> None:
    """Compile every loop for the types it is called with, or load it from the cache."""
    for name, signature in SIGNATURES.items():
        getattr(loops, name).compile(signature)
