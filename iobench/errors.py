"""The errors a user can meet, and the exit status of each."""

from __future__ import annotations

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USER = 2
EXIT_WRONG_DATA = 3


class IobenchError(Exception):
    """Any error that iobench raises on purpose."""


class UserError(IobenchError):
    """Something the user can mend: one line that says what to do next (exit 2)."""


class Unavailable(IobenchError):
    """This machine lacks what a point needs: becomes a skipped record, exit 0."""


class WrongData(IobenchError):
    """The bytes that arrived are not the bytes that were sent (exit 3)."""


class RdmaError(IobenchError):
    """An operation on an RDMA device failed; the sentence says which and why."""
