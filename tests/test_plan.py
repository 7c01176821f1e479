"""What a run will measure: launches in turns, what is done, how long it takes; and a budget that is spent."""

from __future__ import annotations

from pathlib import Path

import pytest
from iobench import plan, record
from iobench.errors import UserError
from iobench.plan import Request
from iobench.record import point_key
from iobench.run import Session
from iobench.topology.graph import Topology
from iobench.writer import Writer
from tests.conftest import ROOT

GRAPH = Topology("here")


def null(**more: object) -> plan.Plan:
    return plan.make(Request(probes=["null"], axes=["kind=empty,sleep"], **more), GRAPH)  # type: ignore[arg-type]


def test_all_probes_have_their_first_launch_before_any_has_its_second(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text((ROOT / "probes" / "null.py").read_text())
    request = Request(probes=["null", "other"], axes=["kind=empty"], probe_dirs=[str(tmp_path)])
    order = [(job.probe.name, job.launch) for job in plan.make(request, GRAPH).jobs()]
    assert order == [(name, launch) for launch in range(3) for name in ("null", "other")]


def test_what_is_done_is_left_out() -> None:
    made = null(launches=2)
    done = {(point_key("null", {"kind": "empty"}), 0), (point_key("null", {"kind": "sleep"}), 0)}
    assert [(job.launch, len(job.points)) for job in made.jobs(done)] == [(1, 2)]
    assert [len(job.points) for job in made.jobs({(point_key("null", {"kind": "empty"}), 1)})] == [2, 1]


def test_estimates() -> None:
    made = null()
    assert made.lines == 6
    assert made.estimate(made.jobs()) == pytest.approx(0.6)
    quick = null(quick=True)
    assert quick.lines == 2
    assert quick.estimate(quick.jobs()) == pytest.approx(2 * 0.1 * plan.QUICK_SHARE)
    assert null(budget=7.0).estimate([]) == 7.0


def test_a_request_survives_the_header_and_what_a_newer_version_adds() -> None:
    request = Request(probes=["dram"], axes=["threads=1"], budget=3.0)
    assert Request.from_dict({**request.to_dict(), "lines": 3, "unheard": 1}) == request


def test_an_axis_must_belong_to_one_of_the_probes() -> None:
    made = plan.make(Request(probes=["null", "dram"], axes=["kind=empty"]), GRAPH)
    assert made.points["null"] == [{"kind": "empty"}]
    with pytest.raises(UserError, match="no probe of this run has an axis 'kidn'"):
        plan.make(Request(probes=["null", "dram"], axes=["kidn=empty"]), GRAPH)
    with pytest.raises(UserError, match="malformed"):
        plan.make(Request(probes=["null", "dram"], axes=["kind"]), GRAPH)


def test_a_budget_that_the_first_launch_may_exceed_says_so() -> None:
    wish = sum(job.seconds(False) for job in null(launches=1).jobs())
    for made, short in ((null(budget=wish / 2), True), (null(budget=wish * 2), False), (null(), False)):
        assert bool(made.longer(list(made.jobs()))) is short
    made = null(budget=wish / 2)
    assert not made.longer([job for job in made.jobs() if job.launch > 0]), "of a resumed run the first is done"


def test_no_launch_begins_after_the_budget_but_each_point_gets_one(tmp_path: Path) -> None:
    from iobench import run as runs

    made = null(launches=3, budget=0.01)
    header = record.Header("id", "now", "0", {"name": "here"}, GRAPH.to_dict(), made.request.to_dict())
    session = Session(made, tmp_path, Writer.create(tmp_path, header), set())
    session.execute(runs.Observer())
    session.close()
    assert [len(entry.lines) for entry in record.read(tmp_path)] == [1, 1]


@pytest.mark.parametrize(("disturbed", "again"), [(1, 1), (2, 0)])
def test_disturbed_points_are_measured_once_more_unless_most_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disturbed: int, again: int
) -> None:
    from iobench import run as runs

    begun = []

    class Launch:
        """Writes a line per point; the first ``disturbed`` points of the first launch are suspect."""

        def __init__(self, job, request, folder, scratch, write) -> None:  # type: ignore[no-untyped-def]
            self.job, self.write = job, write

        def run(self, budget, begin) -> None:  # type: ignore[no-untyped-def]
            begun.append((self.job.launch, len(self.job.points)))
            for number, point in enumerate(self.job.points):
                status = "suspect" if self.job.launch == 0 and number < disturbed else "ok"
                probe = self.job.probe
                line = record.Line(probe.name, probe.source, point, self.job.launch, status, seconds=[[1.0]], mode="m")
                self.write(line)

    monkeypatch.setattr(runs, "Launch", Launch)
    made = null(launches=2)
    header = record.Header("id", "now", "0", {"name": "here"}, GRAPH.to_dict(), made.request.to_dict())
    session = Session(made, tmp_path, Writer.create(tmp_path, header), set())
    session.execute(runs.Observer())
    session.close()
    assert begun == [(0, 2), (1, 2), *[(2, 1)] * again]
    assert record.read(tmp_path).records[0].status == ("ok" if again else "suspect")


def test_one_name_and_one_assignment_need_no_list(tmp_path: Path) -> None:
    import iobench

    found = iobench.run("null", "kind=empty", out=tmp_path / "r", launches=1)
    assert [entry.point for entry in found] == [{"kind": "empty"}]
