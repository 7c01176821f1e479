"""Memory policies: what forbids them, in words, and where pages lie."""

from __future__ import annotations

import errno
import os
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from iobench import hostmem, mempolicy, pageplaces
from iobench.errors import Unavailable
from iobench.mempolicy import BIND, INTERLEAVE, WEIGHTED, Placed, Policy
from iobench.units import GIB, KIB, MIB

PAGE = os.sysconf("SC_PAGE_SIZE")


def tree(root: Path, nodes: int = 2, mems: str = "0-1", free_kib: int = 8 * MIB) -> str:
    for node in range(nodes):
        folder = root / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        text = f"Node {node} MemFree:  {free_kib} kB\nNode {node} Inactive(file):  1024 kB\n"
        (folder / "meminfo").write_text(text)
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/status").write_text(f"Name:\tx\nMems_allowed_list:\t{mems}\n")
    return str(root)


def answer(code: int) -> mempolicy.MBind:
    return lambda *arguments: code


@pytest.mark.parametrize(
    ("code", "mode", "words"),
    [
        # mindspore#186, ktransformers#350, numactl#232: EPERM is a filter, not a wrong node
        (errno.EPERM, BIND, "not permitted .EPERM.*seccomp.*SYS_NICE"),
        (errno.EINVAL, BIND, "refuses memory of node 0,1 .EINVAL|refuses memory of node 0-1 .EINVAL"),
        (errno.EINVAL, WEIGHTED, "Linux 6.9"),
        (errno.ENOSYS, BIND, "no mbind .ENOSYS"),
        (errno.EFAULT, INTERLEAVE, "failed: Bad address"),
    ],
)
def test_each_refusal_has_its_own_sentence(tmp_path: Path, code: int, mode: str, words: str) -> None:
    with pytest.raises(Unavailable, match=words):
        mempolicy.apply(0, 4096, Policy((0, 1), mode), tree(tmp_path), answer(code))


def test_the_cgroup_is_read_before_anything_is_tried(tmp_path: Path) -> None:
    root = tree(tmp_path, mems="1")

    def never(*arguments: object) -> int:
        raise AssertionError("mbind was called for a node that is not allowed")

    with pytest.raises(Unavailable, match=r"node 0 is not this process's to use: its Mems_allowed_list is 1 "):
        mempolicy.apply(0, 4096, Policy((0,)), root, never)
    mempolicy.apply(0, 4096, Policy((1,)), root, answer(0))


def test_a_node_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert mempolicy.forbidden((5, 6, 7), tree(tmp_path, mems="0-7")) == "no NUMA node 5-7 on this machine"
    assert "shows no NUMA nodes" in mempolicy.forbidden((0,), str(tmp_path / "empty"))
    assert mempolicy.forbidden((0, 1), str(tmp_path)) == ""


def test_a_node_that_would_run_out_is_left_alone(tmp_path: Path) -> None:
    root = tree(tmp_path, free_kib=1024 * KIB)  # 1 GiB each
    assert mempolicy.free_nbytes(1, root) == GIB + MIB
    with pytest.raises(Unavailable, match=r"more than half of the 1 GiB free on NUMA node 1"):
        mempolicy.apply(0, GIB, Policy((1,)), root, answer(0))
    mempolicy.apply(0, GIB, Policy((0, 1), INTERLEAVE), root, answer(0))
    assert mempolicy.free_nbytes(9, root) is None


def test_the_call_gets_nodes_and_mode(tmp_path: Path) -> None:
    seen: list[object] = []
    root = tree(tmp_path)
    mempolicy.apply(8192, 4096, Policy((0, 1), WEIGHTED), root, lambda *arguments: seen.extend(arguments) or 0)
    assert seen == [8192, 4096, 6, (0, 1)]


def test_weights_are_read_where_the_kernel_has_them(tmp_path: Path) -> None:
    folder = tmp_path / mempolicy.WEIGHTS
    folder.mkdir(parents=True)
    (folder / "node0").write_text("5\n")
    (folder / "node1").write_text("0\n")
    assert mempolicy.weights((0, 1, 2), str(tmp_path)) == {0: 5}
    assert mempolicy.weights((0,), str(tmp_path / "old")) == {}


def placed_of(data: np.ndarray, touched: int) -> Placed:
    """Touch the first bytes and ask; again where the kernel just moves or swaps one of the pages."""
    for _ in range(100):
        data[:touched] = 1
        found = mempolicy.placed(data)
        if found.method != "move_pages" or found.pages.total() == -(-touched // PAGE):
            break
    return found


def test_every_page_is_asked_for() -> None:
    count = 5000  # more than a sample of the pages would hold
    with hostmem.buffer(count * PAGE) as area:
        found = placed_of(area.data, count * PAGE)
        if not found.method:
            pytest.skip("neither move_pages nor numa_maps tells where pages lie here")
        if found.method == "move_pages":
            assert found.pages.total() + found.unknown == count
        assert found.known
        part = placed_of(area.data[PAGE // 2 : 3 * PAGE], 3 * PAGE - PAGE // 2)
        assert part.method != "move_pages" or part.pages.total() == 3


def test_an_untouched_page_is_unknown() -> None:
    with hostmem.buffer(8 * PAGE) as area:
        found = placed_of(area.data, PAGE)
        if found.method != "move_pages":
            pytest.skip("move_pages is not allowed here")
        assert (found.pages.total(), found.unknown) == (1, 7)
        assert not found.known
        assert not found.on((0,))


def test_without_move_pages_the_mapping_as_a_whole_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pageplaces, "_MOVE_PAGES", {})
    data = np.ones(1 << 20, np.uint8)
    assert mempolicy.placed(data).method in ("numa_maps", "")


def test_placed_knows_whether_all_lies_where_it_should() -> None:
    assert Placed(Counter({1: 5}), 0, "move_pages").on((1,))
    assert not Placed(Counter({0: 1, 1: 5}), 0, "move_pages").on((1,))
    assert not Placed(Counter({1: 5}), 1, "move_pages").on((1,))
    assert Placed(Counter({1: 5, 0: 2})).text() == "node 0: 2 pages, node 1: 5 pages"


def test_binding_to_a_node_that_is_not_there_is_refused_by_the_kernel_too() -> None:
    with hostmem.buffer(4096) as area:
        assert mempolicy._mbind(area.address, 4096, 2, (1023,)) in (errno.EINVAL, errno.EPERM, errno.ENOSYS)


def test_a_thread_is_bound_and_let_go() -> None:
    told: list[int] = []

    def bound() -> None:
        first = mempolicy.bind_thread((0,))
        if first:
            return
        data = np.ones(64 * PAGE, np.uint8)
        places = mempolicy.placed(data)
        told.extend([first, int(places.known and not places.on((0,))), mempolicy.bind_thread((1023,))])
        told.append(mempolicy.bind_thread(()))

    thread = threading.Thread(target=bound)  # a policy is a thread's own
    thread.start()
    thread.join()
    if not told:
        pytest.skip("set_mempolicy is not allowed here")
    assert told == [0, 0, errno.EINVAL, 0]


@pytest.mark.parametrize(
    ("pages", "weight", "fits"),
    [
        ({0: 500, 1: 500}, None, True),
        ({0: 550, 1: 450}, None, True),
        ({0: 700, 1: 300}, None, False),
        ({0: 750, 1: 250}, {0: 3, 1: 1}, True),
        ({0: 500, 1: 500}, {0: 3, 1: 1}, False),
        ({0: 500, 1: 480, 2: 20}, None, False),
        ({}, None, True),  # nothing tells: unproven, not astray
    ],
)
def test_interleaved_pages_are_compared_with_the_weights(
    pages: dict[int, int], weight: dict[int, int] | None, fits: bool
) -> None:
    said = mempolicy.astray(Policy((0, 1), WEIGHTED), Placed(Counter(pages), 0, "move_pages"), weight)
    assert (said == "") is fits
    assert fits or "came to lie elsewhere" in said
