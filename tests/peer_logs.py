"""Logs of peer tools as tests read them: a fixture by its name or a text, one record, its rate, what was said."""

from pathlib import Path

from iobench import importers
from iobench.importers.log import from_bytes
from iobench.record import Record, Run

FIXTURES = Path(__file__).parent / "fixtures"
LOGS = FIXTURES / "logs"
GB, MIB, US = 1e9, 1024**2, 1e-6


def read(name: str) -> Run:
    return importers.read(LOGS / name)


def of_text(text: str, name: str = "log") -> Run:
    log = from_bytes(text.encode(), name)
    return importers.to_run(log, importers.read_log(log))


def one(run: Run, **axes: object) -> Record:
    found = [record for record in run if axes.items() <= record.point.items()]
    assert len(found) == 1, [record.key for record in found]
    return found[0]


def rate(run: Run, **axes: object) -> float:
    return one(run, **axes).bytes_per_s


def asked(run: Run, what: str) -> object:
    return run.header.request[what]
