"""RDMA on a device made of callbacks: every operation and loop, both forms of pyverbs, what goes wrong."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from iobench.errors import RdmaError, Unavailable, UserError, WrongData
from iobench.rdma import compiled, counters, loops, measure, native, ports, slow, timed, verbs
from iobench.rdma.setup import Info, Setup
from iobench.timing.sampler import Sampler

import fake_verbs
from processes import PATIENCE_SECONDS
from rdma_sides import Sides, sound_sides, sysfs, use_all_loops

OPERATIONS = [
    ("write", "RC"), ("send", "RC"), ("write_imm", "RC"), ("read", "RC"), ("atomic_fadd", "RC"), ("atomic_cas", "RC"),
    ("send", "UD"), ("write", "UC"),
]  # fmt: skip


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[Sides]:
    with sound_sides(tmp_path) as made:
        yield made


def setup_of(verb: str, transport: str = "RC", **more: object) -> Setup:
    nbytes = 8 if verb.startswith("atomic") else 300
    return replace(Setup(verb, nbytes, transport), **more)


@pytest.mark.parametrize(("verb", "transport"), OPERATIONS)
@pytest.mark.parametrize("loop", ["native", "pyverbs"])
def test_every_byte_of_each_operation_arrives(sides: Sides, verb: str, transport: str, loop: str) -> None:
    facts = sides.join(setup_of(verb, transport, loop=loop, traffic_class=104))
    assert facts[0]["loop"] == loop
    path = {"dlid": 0, "service_level": 0, "global": True, "sgid_index": 0, "traffic_class": 104, "hop_limit": 64}
    assert facts[0]["path"] == path
    first, second = sides.call("exchange", count=10, verify=True)
    assert len(first) == 10
    assert min(first) > 0
    assert second == []
    assert len(sides.call("exchange", count=3, verify=False)[0]) == 3
    if verb == "atomic_fadd":
        assert sides.call("word")[1] == 1 + 13
    # the answer may be on its way while the next message is already asked for: both count alike
    assert [one.loops.turn for one in sides.sides] == [14, 14]


@pytest.mark.parametrize(("verb", "transport"), OPERATIONS)
@pytest.mark.parametrize("loop", ["native", "pyverbs"])
def test_a_stream_is_stamped_and_its_last_bytes_compared(
    sides: Sides, verb: str, transport: str, loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (timed, slow):  # none is lost, however late it comes
        monkeypatch.setattr(module, "QUIET_SECONDS", PATIENCE_SECONDS)
    sides.join(setup_of(verb, transport, loop=loop, qps=2, depth=16, every=4))
    sides.call("fill", turn=1)
    answers = sides.call("stream", total=160, marks=[32, 64, 96], both=False)  # UD: fewer than receives are posted
    stamps = answers[0]["stamps"]
    assert stamps == sorted(stamps)
    assert len(stamps) == 3
    assert answers[1]["received"] == (160 if verb in ("send", "write_imm") else None)
    compared = sides.call("check", turn=1, both=False)
    assert sum(compared) == (0 if verb.startswith("atomic") else 600)


def test_both_directions_at_once(sides: Sides) -> None:
    sides.join(setup_of("send", qps=2, depth=16, every=4))
    sides.call("fill", turn=1)
    answers = sides.call("stream", total=160, marks=[32, 64], both=True)
    assert [answer["received"] for answer in answers] == [160, 160]
    assert sides.call("check", turn=1, both=True) == [600, 600]


def test_bulk_flows_run_beside_until_they_are_ended(sides: Sides) -> None:
    sides.join(setup_of("send", flows=2, flow_nbytes=4096))
    sides.call("load", on=True)
    assert len(sides.call("exchange", count=5, verify=True)[0]) == 5
    moved = sides.call("load", on=False)
    assert all(answer["messages"] > 0 for answer in moved)


@pytest.mark.parametrize("flat", [True, False])
def test_both_forms_of_pyverbs(tmp_path: Path, flat: bool) -> None:
    loaded = fake_verbs.loaded(flat)
    assert loaded.form == ("enums" if flat else "libibverbs_enums")
    assert loaded.constant("QPT_RC") == 2
    assert type(loaded.constant("SEND_SIGNALED")) is int
    assert loaded.names() == ["fake0"]
    with pytest.raises(Unavailable, match="pyverbs"):
        loaded.constant("QPT_XYZ")
    made = Sides(sysfs(tmp_path), flat)
    made.join(setup_of("write"))
    assert len(made.call("exchange", count=2, verify=True)[0]) == 2
    made.close()


def test_without_pyverbs_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyverbs", None)
    monkeypatch.setattr(verbs, "_PLACES", ())
    with pytest.raises(Unavailable, match="python3-pyverbs") as caught:
        verbs.load()
    assert "\n" not in str(caught.value)


def test_a_system_pyverbs_for_another_python_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "pyverbs"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "device.cpython-27-x86_64-linux-gnu.so").touch()
    monkeypatch.setattr(verbs, "_PLACES", (str(tmp_path),))
    assert verbs.places() == []
    (folder / f"device{__import__('importlib.machinery').machinery.EXTENSION_SUFFIXES[0]}").touch()
    assert verbs.places() == [folder]


def test_wrong_data_is_found_by_both_loops(sides: Sides) -> None:
    for loop in ("native", "pyverbs"):
        sides.join(setup_of("read", loop=loop))
        fake_verbs.DEVICE.corrupt = True
        with pytest.raises(WrongData, match=r"byte|message 0"):
            sides.sides[0].exchange(2, True)
        fake_verbs.DEVICE.corrupt = False


@pytest.mark.parametrize("loop", ["native", "pyverbs"])
def test_a_wrong_key_is_named(sides: Sides, loop: str) -> None:
    infos = sides.call("prepare", setups=[setup_of("read", loop=loop).to_dict()] * 2)
    infos[1]["rkey"] += 999
    sides.call("connect", peers=infos)
    with pytest.raises(RdmaError, match="remote access error"):
        sides.sides[0].exchange(1, False)


def test_no_receive_posted_and_a_full_queue(sides: Sides) -> None:
    sides.join(setup_of("send", depth=4, every=4, rnr_retry=0))
    peer = next(iter(fake_verbs.DEVICE.numbers[qp.qp_num] for qp in sides.sides[1].endpoint.qps))
    peer.receives.clear()
    with pytest.raises(RdmaError, match="no receive posted"):
        sides.sides[0].loops.post_batches(1, 4)
    sides.join(setup_of("write", depth=4, every=4))
    with pytest.raises(RdmaError, match="queue is full"):
        sides.sides[0].loops.post_batches(1, 100)


def test_a_silent_peer_ends_by_the_limit(sides: Sides) -> None:
    sides.join(setup_of("write"))
    side = sides.sides[0].loops
    side.table[loops.LIMIT] = int(0.2e9)
    with pytest.raises(RdmaError, match="nothing came"):
        side.exchange(1, False)


def test_lost_datagrams_are_counted(sides: Sides) -> None:
    sides.join(setup_of("send", "UD", depth=16, every=4))
    sides.call("fill", turn=1)
    fake_verbs.DEVICE.drop = 8
    sides.sides[0].stream(64, [16], False)  # all that is to come lies there before anybody waits for it
    assert sides.sides[1].stream(64, [16], False)["received"] == 56


def test_a_device_without_inline_data(sides: Sides) -> None:
    assert sides.join(setup_of("write", nbytes=64))[0]["inline"]
    fake_verbs.DEVICE.refuse_inline = True
    assert not sides.join(setup_of("write", nbytes=64))[0]["inline"]
    assert len(sides.call("exchange", count=2, verify=True)[0]) == 2


def test_no_loop_is_compiled_while_somebody_waits(tmp_path: Path) -> None:
    use_all_loops(tmp_path)
    for name, signature in compiled.SIGNATURES.items():
        found = [tuple(str(kind) for kind in each) for each in getattr(loops, name).signatures]
        assert found == [tuple(str(kind) for kind in signature)], name


def test_a_point_becomes_samples(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "pair_of", lambda point, sampler: sides)
    for test, verb, unit in (("latency", "write", 2), ("latency", "read", 1), ("bandwidth", "send", 0)):
        stream = {"depth": 16, "every": 4} if test == "bandwidth" else {}
        samples = measure.measure(point_of(verb=verb, test=test, **stream), Sampler(budget=0.05, max_samples=30))
        assert samples.verified
        assert samples.proven
        assert samples.evidence["overhead"]["seconds_per_empty_poll"][0] > 0
        assert samples.timed.ops == unit or test == "bandwidth"
        assert ("half" in samples.moved_rule) == (test == "latency" and verb == "write")
        assert "looped back" in samples.path
        assert samples.evidence["congestion"] == [{}, {}]
        if test == "bandwidth":
            assert samples.evidence["lost"] == 0
            assert samples.evidence["bytes_compared_after"] == 300


def test_a_lossy_stream_is_suspect(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "pair_of", lambda point, sampler: sides)

    fake_verbs.DEVICE.drop = 0
    point = point_of(verb="send", transport_type="UD", test="bandwidth", depth=16, every=4)
    original = sides.call

    def losing(method: str, *args: object, **more: object) -> object:
        fake_verbs.DEVICE.drop = 3 if method == "stream" else 0
        return original(method, *args, **more)

    monkeypatch.setattr(sides, "call", losing)
    monkeypatch.setattr(timed, "QUIET_SECONDS", 0.05)
    samples = measure.measure(point, Sampler(budget=0.01, min_samples=1, max_samples=2))
    assert "were lost" in samples.suspect


def point_of(**more: object) -> dict[str, object]:
    point: dict[str, object] = {
        "verb": "write", "transport_type": "RC", "test": "latency", "completion": "poll", "memory": "host", "qps": 1,
        "depth": 1, "every": 1, "direction": "one", "inline": "auto", "load": 0, "load_class": 0, "mtu": 0,
        "service_level": 0, "traffic_class": 0, "loop": "native", "nodes": 1, "nbytes": 300,
    }  # fmt: skip
    return point | more


def test_structs_are_those_of_the_c_headers(tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or not Path("/usr/include/infiniband/verbs.h").exists():
        pytest.skip("needs a C compiler and infiniband/verbs.h (libibverbs-dev)")
    places = {
        "ibv_send_wr": {"remote": "wr.rdma.remote_addr", "rkey_or_qpn": "wr.rdma.rkey", "qkey": "wr.ud.remote_qkey",
                        "swap": "wr.atomic.swap", "atomic_rkey": "wr.atomic.rkey", "imm_data": "imm_data"},
        "ibv_recv_wr": {"sg_list": "sg_list"},
        "ibv_wc": {"status": "status", "byte_len": "byte_len", "imm_data": "imm_data", "sl": "sl"},
        "ibv_sge": {"lkey": "lkey"},
    }  # fmt: skip
    ours = {"ibv_send_wr": native.SendWR, "ibv_recv_wr": native.RecvWR, "ibv_wc": native.WC, "ibv_sge": native.SGE}
    more = {
        ("ibv_qp", "context"): native.QP_CONTEXT, ("ibv_qp", "pd"): native.QP_PD,
        ("ibv_qp", "send_cq"): native.QP_SEND_CQ, ("ibv_qp", "recv_cq"): native.QP_RECV_CQ,
        ("ibv_qp", "qp_num"): native.QP_NUM, ("ibv_qp", "qp_type"): native.QP_TYPE,
        ("ibv_cq", "channel"): native.CQ_CHANNEL, ("ibv_comp_channel", "fd"): native.CHANNEL_FD,
        ("ibv_context", "ops.poll_cq"): native.OP_POLL_CQ, ("ibv_context", "ops.post_send"): native.OP_POST_SEND,
        ("ibv_context", "ops.post_recv"): native.OP_POST_RECV, ("ibv_ah", "pd"): native.AH_PD,
        ("ibv_context", "ops.req_notify_cq"): native.OP_REQ_NOTIFY_CQ,
    }  # fmt: skip
    wanted = [(f"sizeof(struct {name})", ctypes.sizeof(kind)) for name, kind in ours.items()]
    for name, fields in places.items():
        wanted += [(f"offsetof(struct {name},{c})", getattr(ours[name], py).offset) for py, c in fields.items()]
    wanted += [(f"offsetof(struct {name},{field})", at) for (name, field), at in more.items()]
    body = "\n".join(f'_Static_assert({text} == {value}, "{text}");' for text, value in wanted)
    source = tmp_path / "places.c"
    source.write_text(f"#include <stddef.h>\n#include <infiniband/verbs.h>\n{body}\n")
    done = subprocess.run([compiler, "-c", str(source), "-o", os.devnull], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_struct_that_does_not_fit_is_not_followed() -> None:
    class Odd(ctypes.Structure):
        _fields_ = [("pointer", ctypes.c_uint64)]

    assert native.find(Odd(0), 5, 2) is None
    assert native.find(Odd(0xDEAD0000), 5, 2) is None
    assert native.find(Odd(id(Odd)), 5, 2) is None


def test_a_message_is_told_from_every_other() -> None:
    seen = set()
    for turn in range(4):
        for salt in timed.MINE:
            data = np.empty(4096, np.uint8)
            loops.fill(data, np.uint64(turn), np.uint64(salt))
            assert data[-1] == turn
            seen.add(data.tobytes())
            assert loops.first_wrong(data, np.uint64(turn), np.uint64(salt)) == -1
            swapped = np.concatenate([data[1024:2048], data[:1024], data[2048:]])
            assert loops.first_wrong(swapped, np.uint64(turn), np.uint64(salt)) == 0
    assert len(seen) == 8


def test_counters_of_congestion_and_of_what_was_sent(tmp_path: Path) -> None:
    tree = sysfs(tmp_path)
    (port,) = ports.read(tree)
    before = counters.read(tree, port)
    assert before == {"hw_counters/sent_pkts": 17}
    after = before | {
        "hw_counters/sent_pkts": 40, "counters/port_xmit_data": 100, "ethtool/rx_prio3_pause": 5,
        "hw_counters/np_ecn_marked_roce_packets": 2, "net/rx_dropped": 0, "ethtool/rx_bytes": 9,
    }  # fmt: skip
    assert counters.congestion(before, after) == {
        "ethtool/rx_prio3_pause": 5,
        "hw_counters/np_ecn_marked_roce_packets": 2,
    }
    assert counters.sent(before, after) == {"sent_pkts": 23, "port_xmit_data": 400}
    assert counters.statistics("no such interface") == {}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"verb": "fly"}, "has no fly"), ({"nbytes": -1}, "out of range"), ({"nbytes": 1 << 40}, "out of range"),
        ({"nbytes": "8"}, "is a int"), ({"qps": True}, "is a int"), ({"depth": 2, "every": 4}, "above depth"),
        ({"mtu": 7}, "choose one"), ({"device": "../../etc"}, "no name"), ({"hack": 1}, "no 'hack'"),
        ({"transport": "UD"}, "UD has no write"), ({"memory": "disk"}, "host or gpu"),
    ],
)  # fmt: skip
def test_a_set_up_that_makes_no_sense_is_refused(change: dict[str, object], says: str) -> None:
    with pytest.raises(UserError, match=says):
        Setup.of({"verb": "write", "nbytes": 8} | change)


def test_what_the_other_side_tells_is_checked(sides: Sides) -> None:
    good = sides.call("prepare", setups=[setup_of("write").to_dict()] * 2)[0]
    assert Info.of(good).to_dict() == good
    for change in (
        {"qps": []}, {"qps": [-1]}, {"qps": ["x"]}, {"psn": 1 << 30}, {"gid": "localhost; rm"}, {"mtu": 9},
        {"rkey": 1 << 40}, {"address": -5}, {"ethernet": 1}, {"lid": 1 << 17}, {"more": 1},
    ):  # fmt: skip
        with pytest.raises(UserError, match=r"version of iobench|one version"):
            Info.of(good | change)


def test_rows_of_perftest_are_found() -> None:
    from iobench.crosscheck import rdma

    text = """ Connection type : RC
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99%   99.9%
 8       1000          30.12          900.50       46.52              51.00          10.1            90.1  800.0
"""
    assert rdma.figures(text)[4] == "46.52"
    assert rdma.figures("Couldn't connect to 127.0.0.1:18515") == []
    assert rdma._same_order([(1.0, 2.0), (1.05, 1.9), (3.0, 9.0)]), "a tie has no order"
    assert not rdma._same_order([(1.0, 2.0), (3.0, 1.0)])
    heading, row = text.splitlines()[1:3]
    unsorted = f"{heading}\n#, usec\n1, 46706.7\n2, 22.602\n3, 22\n---------\n{heading}\n{row}\n"
    assert rdma.samples(unsorted) == pytest.approx([46706.7e-6, 22.602e-6, 22e-6])
    assert rdma.figures(unsorted)[4] == "46.52"


def test_rounds_of_two_speeds_are_pooled_before_the_medians_are_compared() -> None:
    from iobench.crosscheck import rdma

    draws = np.random.default_rng(3)
    fast, slow = 20e-6, 40e-6

    def rounds(speeds: list[float]) -> list[list[float]]:
        return [(speed * (1 + 0.05 * draws.standard_normal(500))).tolist() for speed in speeds]

    row = rdma.Pooled("send 8 B", latency=True)
    row.mine += rounds([slow, fast, fast, slow, fast, fast, slow, fast])
    row.theirs += rounds([fast, slow, fast, fast, slow, fast, fast, slow])
    row.ours += [float(np.median(one)) for one in row.mine]
    row.peers += [float(np.median(one)) for one in row.theirs]
    assert row.ratio.median == pytest.approx(1, abs=0.05), "both are fast in five rounds of eight"
    assert row.ratio.low < 1 < row.ratio.high
    assert "single rounds 0.5" in row.text()
    assert rdma._judge([row], lambda text: None)
    row.mine[:] = rounds([2 * slow] * 8)
    del row.ratio
    assert not rdma._judge([row], lambda text: None)


def test_points_of_the_probe() -> None:
    from iobench import probe
    from iobench.topology.graph import Topology

    loaded, graph = probe.load("rdma"), Topology("x")
    with pytest.raises(Unavailable, match="this machine has none"):
        list(loaded.points(graph, probe.narrow(loaded, [])))
    graph.add("port:mlx5_0/1", "port", device="mlx5_0", port=1, state="DOWN")
    with pytest.raises(Unavailable, match="mlx5_0/1 is down"):
        list(loaded.points(graph, probe.narrow(loaded, [])))
    graph.add("port:mlx5_1/1", "port", device="mlx5_1", port=1, state="ACTIVE")
    every = list(loaded.points(graph, probe.narrow(loaded, [])))
    assert {point["verb"] for point in every} == set(loaded.axes["verb"].values)
    for point in every:
        measure.setups(point)
    sizes = [point["nbytes"] for point in loaded.points(graph, probe.narrow(loaded, ["verb=read", "nbytes=2:1G"]))]
    assert set(sizes) == {1 << n for n in range(1, 31)}
    classes = probe.narrow(loaded, ["traffic_class=0,104", "load=2", "verb=send", "nbytes=64", "completion=poll"])
    assert [point["traffic_class"] for point in loaded.points(graph, classes)] == [0, 104]
    with pytest.raises(Unavailable, match="atomics are 8 B"):
        list(loaded.points(graph, probe.narrow(loaded, ["verb=atomic_cas", "nbytes=64"])))
    gpu = list(loaded.points(graph, probe.narrow(loaded, ["memory=gpu"])))
    assert gpu
    assert not any(point["verb"].startswith("atomic") for point in gpu)


def test_latency_stream_and_overhead_make_one_loggp_model() -> None:
    """One way T = L + 2o + (S-1)G, a stream max(g, o) + (S-1)G, posting o: what went in comes out."""
    from dataclasses import replace as changed

    from iobench import fit, probe
    from iobench.record import Line
    from iobench.topology.graph import Topology

    from make_run import run_of

    latency, gap, overhead, per_byte = 1.2e-6, 0.4e-6, 0.1e-6, 1 / 24e9
    loaded, graph = probe.load("rdma"), Topology("x")
    graph.add("port:mlx5_0/1", "port", device="mlx5_0", port=1, state="ACTIVE")
    draws = np.random.default_rng(1)
    lines = []
    narrowed = probe.narrow(loaded, ["verb=write", "qps=1", "direction=one", "load=0"])
    for point in loaded.points(graph, narrowed):
        grown = (point["nbytes"] - 1) * per_byte
        seconds = {"latency": latency + 2 * overhead + grown, "bandwidth": gap + grown, "overhead": overhead}
        for launch in range(3):
            samples = (seconds[point["test"]] * (1 + 0.002 * draws.standard_normal(30))).tolist()
            line = Line("rdma", "sha256:0", point, launch, mode=point["completion"], proven=True, verified=True)
            lines.append(changed(line, seconds=[samples], nbytes=point["nbytes"], moved=point["nbytes"], ops=1))
    run = run_of(lines, topology=graph, models={"rdma": [dict(model) for model in loaded.models]})
    (model,) = [one.model for one in fit.fit_run(run) if one.kind == "loggp" and one.model]
    found = {name: parameter.value for name, parameter in model.parameters.items()}
    assert found["o"] == pytest.approx(overhead, rel=0.05)
    assert found["L"] == pytest.approx(latency, rel=0.1)
    assert found["max(g,o)"] == pytest.approx(gap, rel=0.1)
    assert found["G"] == pytest.approx(per_byte, rel=0.02)


class Gpu(np.ndarray):
    """cupy's array as far as it is used here: the CPU reaches it by copies only."""

    @property
    def data(self) -> object:  # type: ignore[override]
        return __import__("types").SimpleNamespace(ptr=self.ctypes.data)

    def get(self) -> np.ndarray:
        return np.array(self)

    def set(self, values: np.ndarray) -> None:
        self[:] = values


@pytest.mark.parametrize(("verb", "test"), [("send", "latency"), ("read", "latency"), ("write", "bandwidth")])
def test_gpu_memory_is_compared_by_copies(sides: Sides, monkeypatch: pytest.MonkeyPatch, verb: str, test: str) -> None:
    import contextlib
    import sys
    import types

    from iobench.rdma import memory

    class Device(contextlib.nullcontext[None]):
        def __init__(self, number: int) -> None:
            super().__init__()

        def synchronize(self) -> None:
            pass

    cupy = types.SimpleNamespace(
        uint8=np.uint8, cuda=types.SimpleNamespace(Device=Device), zeros=lambda n, kind: np.zeros(n, kind).view(Gpu)
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)  # type: ignore[arg-type]
    refused = Unavailable("this driver offers no dma-buf")
    monkeypatch.setattr(memory, "_dma_buf", lambda address, length: (_ for _ in ()).throw(refused))
    monkeypatch.setattr(memory, "_PEER_MODULES", ("no/such/module",))
    monkeypatch.setattr(measure, "pair_of", lambda point, sampler: sides)
    stream = {"depth": 16, "every": 4} if test == "bandwidth" else {}
    point = point_of(verb=verb, test=test, memory="gpu", **stream)
    with pytest.raises(Unavailable, match=r"no dma-buf.*nvidia-peermem is not loaded.*modprobe"):
        measure.measure(point, Sampler(budget=0.01))
    monkeypatch.setattr(memory, "_PEER_MODULES", ("sys",))
    samples = measure.measure(point, Sampler(budget=0.02, min_samples=2, max_samples=5))
    assert samples.evidence["sides"][0]["memory"] == "GPU memory by nvidia-peermem"
    assert samples.evidence["verified_operations"] == 2 * (4 if test == "bandwidth" else 1)
    fake_verbs.DEVICE.corrupt = True
    with pytest.raises(WrongData):
        measure.measure(point, Sampler(budget=0.02, min_samples=2, max_samples=5))


def test_a_dma_buf_comes_first_and_its_descriptor_is_closed(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    import types

    from iobench.rdma import memory

    asked: list[tuple[int, int]] = []
    handles: list[int] = []

    def ranged(handle: object, address: ctypes.c_uint64, length: ctypes.c_size_t, kind: int, flags: object) -> int:
        asked.append((address.value, length.value))
        handles.append(os.memfd_create("stands for a dma-buf"))
        handle._obj.value = handles[-1]  # type: ignore[attr-defined]
        return 0

    def by_descriptor(pd: object, nbytes: int, access: int, dmabuf: int, offset: int) -> object:
        os.fstat(dmabuf)
        assert offset == 0
        return types.SimpleNamespace(nbytes=nbytes)

    driver = types.SimpleNamespace(cuMemGetHandleForAddressRange=ranged)
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: driver)
    monkeypatch.setattr(sides.sides[0].verbs.mr, "DmaBufMR", by_descriptor)
    made, how, address = memory._register_gpu(sides.sides[0].verbs, None, 4 << 20, 5000, 7)
    assert (made.nbytes, how, address) == (5000, "GPU memory by dma-buf", 0)
    assert asked == [(4 << 20, 8192)], "whole pages"
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(handles[0])


def test_completions_that_were_not_asked_for_are_noticed(sides: Sides) -> None:
    sides.join(setup_of("write", depth=16, every=4))
    for qp in sides.sides[0].endpoint.qps:
        qp.every_one = True
    with pytest.raises(RdmaError, match="more completions than signalled"):
        sides.sides[0].stream(64, [16], False)
