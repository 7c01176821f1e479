"""What a run's header says of a probe's name whose lines were imported: its axes, plots and models.

The same as the probe's own file declares, in short, so that report, fit and compare treat an imported run like
one of iobench's own. A format gives its own entry in ``Imported.about`` where these do not fit.
"""

from __future__ import annotations

from typing import Any

_NBYTES = {"nbytes": {"unit": "bytes", "help": "message size"}}


def _sweep(title: str, what: str, *models: dict[str, Any]) -> dict[str, Any]:
    plots = [
        {"title": f"{what}: time", "x": "nbytes", "y": "latency", "series": []},
        {"title": f"{what}: {'bus ' if what == 'Collectives' else ''}bandwidth", "x": "nbytes", "y": "bandwidth"},
    ]
    return {"title": title, "axes": _NBYTES, "plots": plots, "matrices": [], "models": list(models)}


_LOADED = {
    "kind": "loaded",
    "where": {"kernel": "chase", "measured": "loaded"},
    "size": "evidence.load_bytes_per_s",
    "over": ("delay",),
}
_LOADED_PLOT = {
    "title": "Latency of a load against the bandwidth that others achieve",
    "x": "evidence.load_bytes_per_s",
    "y": "latency",
    "series": ["traffic"],
    "where": {"kernel": "chase", "measured": "loaded"},
    "log_x": False,
    "over": ["delay"],
    "x_name": "bandwidth of the other cores",
}
# a log tells depth, queue pairs and directions of streams only, and the completion mode differs between the two tests
_LOGGP = {
    "kind": "loggp",
    "where": {"verb": ["write", "send", "write_imm"], "direction": ["one", None], "qps": [1, None]},
    "extras": {"test": "test"},
    "over": ("depth", "every", "direction", "qps", "mode"),
}

ABOUT: dict[str, dict[str, Any]] = {
    "allreduce": _sweep("Collectives between ranks, imported", "Collectives", {"kind": "piecewise", "where": {}}),
    "rdma": _sweep(
        "RDMA operations between two hosts, imported",
        "RDMA",
        {"kind": "hockney", "where": {"test": "latency"}},
        {"kind": "hockney", "where": {"test": "bandwidth", "verb": "read"}},
        _LOGGP,
    ),
    "dram": {
        "title": "Host memory, imported",
        "axes": {},
        "plots": [_LOADED_PLOT],
        "matrices": [],
        "models": [_LOADED],
    },
}


def about(probe: str, title: str) -> dict[str, Any]:
    """Return the header's entry of ``probe``; ``title`` names the tool where nothing is declared."""
    entry = ABOUT.get(
        probe, {"title": f"{probe}, imported", "axes": _NBYTES, "plots": [], "matrices": [], "models": []}
    )
    return {**entry, "title": f"{entry['title']} from a log of {title}"}
