"""Groups of rank processes by torchrun's environment contract; knows no transport and no library.

``group`` starts them, ``Rank`` is what each one is given, ``sockets`` proves over which TCP connections
they talk. The parent's side is launcher.py, the rank's side child.py.
"""

from __future__ import annotations

from iobench.ranks.launcher import RankFailed, RankGroup, cpu_shares, group

__all__ = ["RankFailed", "RankGroup", "cpu_shares", "group"]
