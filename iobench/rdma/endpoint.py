"""One side of a measurement: device, queue pairs, registered memory; told of the other side, ready to post."""

from __future__ import annotations

import contextlib
import secrets
from typing import Any

from iobench.errors import Unavailable
from iobench.rdma import memory, ports
from iobench.rdma.setup import ATOMICS, MTU, Info, Setup, layout
from iobench.rdma.verbs import Verbs
from iobench.topology.sysfs import Tree

RECEIVES, STREAM_RECEIVES = 64, 512  # posted ahead on each queue pair where the other side sends
_MOST_INLINE = 220  # what common devices take without a longer work request
QKEY = 0x11111111
_RETRIES, _TIMEOUT, _RNR_TIMER = 7, 14, 12  # 7 times 67 ms and up; 0.64 ms (InfiniBand's encodings)
_READS_AT_ONCE = 16
FLOW_DEPTH = 16
_HOPS = 64


class Endpoint:
    """Opened by ``with``; ``info`` is for the other side, ``connect`` takes what it says."""

    def __init__(self, setup: Setup, verbs: Verbs, tree: Tree | None = None) -> None:
        self.setup, self.verbs, self.tree = setup, verbs, tree or Tree()
        self.head, self.slot, self.bulk_at = layout(setup)
        self.nbytes = self.bulk_at + (setup.flow_nbytes if setup.flows else 0)
        self.psn = secrets.randbelow(1 << 24)
        self.receives = STREAM_RECEIVES if setup.depth > 1 else RECEIVES
        self.qps: list[Any] = []
        self.flows: list[Any] = []
        self.handles: list[Any] = []  # UD's address handles, one per queue pair
        self.inline = False
        self.peer: Info | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Endpoint:
        with contextlib.ExitStack() as undo:
            undo.callback(self._stack.close)
            self._open()
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _open(self) -> None:
        setup, verbs = self.setup, self.verbs
        self.port = ports.choose(ports.read(self.tree), setup.device)
        self.gid = self.port.gid(setup.gid) if self.port.gids or self.port.ethernet else None
        with verbs.doing(f"opening {self.port.device}"):
            self.context = self._kept(verbs.device.Context(name=self.port.device))
            self.attributes = self.context.query_device()
            self.state = self.context.query_port(self.port.number)
            self.pd = self._kept(verbs.pd.PD(self.context))
        self._check()
        self.memory = self._stack.enter_context(
            memory.registered(verbs, self.pd, self.nbytes, self._access(), setup.memory, setup.node, setup.gpu)
        )
        self._queues()

    def _check(self) -> None:
        """Refuse what this device cannot do, before anything is made for it."""
        if self.setup.verb in ATOMICS and int(self.attributes.atomic_caps) == 0:
            raise Unavailable(f"{self.port.name} has no atomic operations")
        largest = {code: nbytes for nbytes, code in MTU.items()}.get(int(self.state.active_mtu), 4096)
        if self.setup.transport == "UD" and self.setup.nbytes > largest:
            raise Unavailable(f"a UD message is at most one packet: {largest} bytes on {self.port.name}")
        if self.setup.nbytes > int(self.state.max_msg_sz):
            raise Unavailable(f"{self.port.name} sends messages of at most {int(self.state.max_msg_sz)} bytes")

    def _kept(self, thing: Any) -> Any:
        self._stack.callback(thing.close)
        return thing

    def _access(self) -> int:
        names = (
            "LOCAL_WRITE",
            "REMOTE_WRITE",
            "REMOTE_READ",
            *(("REMOTE_ATOMIC",) if self.setup.verb in ATOMICS else ()),
        )
        return sum(self.verbs.constant(f"ACCESS_{name}") for name in names)

    def _queues(self) -> None:
        setup, verbs = self.setup, self.verbs
        with verbs.doing("making completion queues"):
            channels = [None, None]
            if setup.events:
                channels = [self._kept(verbs.cq.CompChannel(self.context)) for _ in channels]
            room = setup.qps * (setup.depth + 1) + 16, setup.qps * self.receives + 16
            self.send_cq, self.recv_cq = (
                self._kept(verbs.cq.CQ(self.context, size, None, channel, 0))
                for size, channel in zip(room, channels, strict=True)
            )
            if setup.flows:
                self.flow_cq = self._kept(verbs.cq.CQ(self.context, setup.flows * (FLOW_DEPTH + 1) + 16, None, None, 0))
        self.qps = [self._queue_pair(self.send_cq, setup.depth) for _ in range(setup.qps)]
        self.flows = [self._queue_pair(self.flow_cq, FLOW_DEPTH) for _ in range(setup.flows)]

    def _queue_pair(self, send_cq: Any, depth: int) -> Any:
        """Make one queue pair, with room for inline data where the device has it."""
        setup, verbs = self.setup, self.verbs
        wanted = setup.nbytes if setup.inline and setup.nbytes <= _MOST_INLINE and setup.memory == "host" else 0
        if setup.verb in (*ATOMICS, "read"):
            wanted = 0
        for inline in dict.fromkeys((wanted, 0)):
            cap = verbs.qp.QPCap(
                max_send_wr=depth + 1, max_recv_wr=self.receives, max_send_sge=1, max_recv_sge=1, max_inline_data=inline
            )
            init = verbs.qp.QPInitAttr(
                qp_type=verbs.constant(f"QPT_{setup.transport}"), scq=send_cq, rcq=self.recv_cq, cap=cap, sq_sig_all=0
            )  # pyverbs' default is a completion for every send
            try:
                with verbs.doing(f"making a queue pair of depth {depth}"):
                    made = self._kept(self._made(init))
            except verbs_error(inline):
                continue
            self.inline = bool(inline)
            return made
        raise AssertionError  # the last attempt raises

    def _made(self, init: Any) -> Any:
        verbs = self.verbs
        if self.setup.transport != "UD":
            return verbs.qp.QP(self.pd, init)
        attr = verbs.qp.QPAttr(port_num=self.port.number)
        attr.qkey = QKEY
        return verbs.qp.QP(self.pd, init, attr)

    @property
    def info(self) -> Info:
        return Info(
            qps=[int(qp.qp_num) for qp in self.qps],
            psn=self.psn,
            gid=str(self.context.query_gid(self.port.number, self.gid.index)) if self.gid else "::",
            lid=int(self.state.lid),
            ethernet=self.port.ethernet,
            mtu=int(self.state.active_mtu),
            rkey=int(self.memory.mr.rkey),
            address=self.memory.address,
            nbytes=self.nbytes,
            flows=[int(qp.qp_num) for qp in self.flows],
        )

    def connect(self, peer: Info) -> None:
        """Bring the queue pairs to where they can send to ``peer``'s."""
        if len(peer.qps) != len(self.qps) or len(peer.flows) != len(self.flows) or peer.nbytes < self.nbytes:
            raise Unavailable("the two sides were set up differently: use one version of iobench on both")
        if peer.ethernet != self.port.ethernet:
            raise Unavailable("one side is InfiniBand and the other Ethernet: choose ports of one network")
        self.peer = peer
        for flow, (mine, theirs) in enumerate(
            [*zip(self.qps, peer.qps, strict=True), *zip(self.flows, peer.flows, strict=True)]
        ):
            bulk = flow >= len(self.qps)
            with self.verbs.doing("connecting a queue pair"):
                if self.setup.transport == "UD":
                    self.handles.append(self._kept(self.verbs.addr.AH(self.pd, attr=self._way(bulk))))
                else:
                    mine.to_rts(self._attributes(theirs, bulk))

    @property
    def path(self) -> dict[str, Any]:
        """What the packets carry: the path record of the measured queue pairs, without addresses."""
        assert self.peer is not None
        routed = self._routed(self.setup.traffic_class)
        found = {"dlid": self.peer.lid, "service_level": self.setup.service_level, "global": routed}
        return found | (
            {"sgid_index": self.gid.index if self.gid else 0, "traffic_class": self.setup.traffic_class,
             "hop_limit": _HOPS} if routed else {}
        )  # fmt: skip

    def _routed(self, traffic_class: int) -> bool:
        """Tell whether packets have a global header: on Ethernet always, on InfiniBand where it says something."""
        return self.peer is not None and (self.peer.ethernet or traffic_class > 0)

    def _way(self, bulk: bool) -> Any:
        """Return the address of the other side's port: by GID on Ethernet, by LID on InfiniBand of one subnet."""
        verbs, setup, peer = self.verbs, self.setup, self.peer
        assert peer is not None
        classes = setup.flow_class if bulk else setup.traffic_class
        if not self._routed(classes):
            return verbs.addr.AHAttr(dlid=peer.lid, sl=setup.service_level, is_global=0, port_num=self.port.number)
        route = verbs.addr.GlobalRoute(
            dgid=verbs.addr.GID(peer.gid),
            sgid_index=self.gid.index if self.gid else 0,
            hop_limit=_HOPS,
            traffic_class=classes,
        )
        return verbs.addr.AHAttr(
            gr=route, dlid=peer.lid, sl=setup.service_level, is_global=1, port_num=self.port.number
        )

    def _attributes(self, theirs: int, bulk: bool) -> Any:
        peer, attr = self.peer, self.verbs.qp.QPAttr(port_num=self.port.number)
        assert peer is not None
        asked = MTU.get(self.setup.mtu, 0)
        attr.path_mtu = min(asked or peer.mtu, peer.mtu, int(self.state.active_mtu))
        attr.dest_qp_num = theirs
        attr.rq_psn, attr.sq_psn = peer.psn, self.psn
        reads = max(1, min(_READS_AT_ONCE, int(self.attributes.max_qp_rd_atom)))
        attr.max_rd_atomic = attr.max_dest_rd_atomic = reads
        attr.min_rnr_timer, attr.timeout = _RNR_TIMER, _TIMEOUT
        attr.retry_cnt, attr.rnr_retry = _RETRIES, self.setup.rnr_retry
        attr.qp_access_flags = self._access()
        attr.ah_attr = self._way(bulk)
        return attr

    flow_depth = FLOW_DEPTH

    @property
    def mtu_nbytes(self) -> int:
        """The packets' payload on the path that was made."""
        assert self.peer is not None
        code = min(MTU.get(self.setup.mtu, 0) or self.peer.mtu, self.peer.mtu, int(self.state.active_mtu))
        return {number: nbytes for nbytes, number in MTU.items()}.get(code, 0)

    def source_at(self, qp: int) -> int:
        """Return where in the memory queue pair ``qp`` sends from."""
        return qp * self.slot + self.head

    def target_at(self, qp: int) -> int:
        """Return where in the memory queue pair ``qp`` receives into."""
        return (self.setup.qps + qp) * self.slot + self.head


def verbs_error(inline: int) -> tuple[type[Exception], ...]:
    """Return what to catch while trying: with room for inline data a refusal, without it nothing."""
    from iobench.errors import RdmaError

    return (RdmaError,) if inline else ()
