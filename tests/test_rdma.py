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
from rdma_sides import Sides, point_of, sound_sides, sysfs, use_all_loops

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


def test_completions_that_were_not_asked_for_are_noticed(sides: Sides) -> None:
    sides.join(setup_of("write", depth=16, every=4))
    for qp in sides.sides[0].endpoint.qps:
        qp.every_one = True
    with pytest.raises(RdmaError, match="more completions than signalled"):
        sides.sides[0].stream(64, [16], False)
