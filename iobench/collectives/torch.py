"""The engine "torch": torch.distributed on NCCL, what users of it get.

Target of a group of ranks: ``Torch``. torch's all_reduce, broadcast and reduce are in place only; the others are not.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from iobench.collectives.device import GpuRank, Launch
from iobench.collectives.ops import ROOT, Work
from iobench.errors import Unavailable
from iobench.needs import missing

if TYPE_CHECKING:
    from iobench.gpu import Device
    from iobench.ranks.child import Rank

_TYPES = {"float16": "float16", "float32": "float32", "bfloat16": "bfloat16"}
INPLACE = ("all_reduce", "broadcast", "reduce")  # these have no other form in torch
_TIMEOUT = datetime.timedelta(minutes=30)  # the parent's deadline is the one that counts


def supports(op: str, dtype: str, inplace: bool) -> bool:
    """Tell whether torch offers the operation in this form."""
    return dtype in _TYPES and inplace == (op in INPLACE)


class Distributed:
    """torch.distributed's operations on one stream of one device."""

    def __init__(self, device: Device, stream: Any, rank: Rank) -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist, self.device, self.stream, self.rank = torch, dist, device, stream, rank
        self.place = torch.device("cuda", device.index)
        torch.cuda.set_device(self.place)
        torch.cuda.set_stream(torch.cuda.ExternalStream(stream.ptr, device=self.place))  # for good: entering costs time
        dist.init_process_group("nccl", timeout=_TIMEOUT, device_id=self.place)
        self._areas: list[Any] = []

    def launcher(self, work: Work, send: int, receive: int) -> Launch:
        """Return what puts one operation on the stream, which is torch's current one."""
        method: Callable[..., Launch] = getattr(self, f"_{work.op.name}")
        return method(work, send, receive)

    def capture(self, row: Sequence[Launch]) -> Launch:
        """Return the replay of a graph of the operations that ``row`` launches."""
        graph, stream = self.torch.cuda.CUDAGraph(), self.torch.cuda.current_stream(self.place)
        # torch's own watchdog thread asks for events meanwhile: only this thread's calls must be capturable
        with self.torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for launch in row:
                launch()
        replay: Launch = graph.replay
        return replay

    @contextlib.contextmanager
    def allocate(self, nbytes: int) -> Iterator[int]:
        """Yield the address of memory from torch's allocator."""
        area = self.torch.empty(nbytes, dtype=self.torch.uint8, device=self.place)
        self._areas.append(area)
        try:
            yield int(area.data_ptr())
        finally:
            self._areas = [kept for kept in self._areas if kept is not area]
            del area
            self.torch.cuda.empty_cache()

    def facts(self) -> dict[str, Any]:
        """Return the versions of torch and of the NCCL it uses."""
        return {"torch": self.torch.__version__, "nccl": ".".join(map(str, self.torch.cuda.nccl.version()))}

    def close(self) -> None:
        self.dist.destroy_process_group()

    def _tensor(self, address: int, nbytes: int, dtype: str) -> Any:
        """Return a tensor that looks into an allocated area."""
        for area in self._areas:
            start = address - area.data_ptr()
            if start >= 0 and start + nbytes <= area.numel():
                return area[start : start + nbytes].view(getattr(self.torch, _TYPES[dtype]))
        raise RuntimeError("the address lies in no allocated area")

    def _all_reduce(self, work: Work, _send: int, receive: int) -> Launch:
        return partial(self.dist.all_reduce, self._tensor(receive, work.nbytes, work.dtype))

    def _broadcast(self, work: Work, _send: int, receive: int) -> Launch:
        return partial(self.dist.broadcast, self._tensor(receive, work.nbytes, work.dtype), ROOT)

    def _reduce(self, work: Work, _send: int, receive: int) -> Launch:
        return partial(self.dist.reduce, self._tensor(receive, work.nbytes, work.dtype), ROOT)

    def _all_gather(self, work: Work, send: int, receive: int) -> Launch:
        return partial(self.dist.all_gather_into_tensor, *self._pair(work, send, receive))

    def _reduce_scatter(self, work: Work, send: int, receive: int) -> Launch:
        return partial(self.dist.reduce_scatter_tensor, *self._pair(work, send, receive))

    def _all_to_all(self, work: Work, send: int, receive: int) -> Launch:
        return partial(self.dist.all_to_all_single, *self._pair(work, send, receive))

    def _sendrecv(self, work: Work, send: int, receive: int) -> Launch:
        target, source = self._pair(work, send, receive)
        number, size = self.rank.rank, self.rank.size
        swap = [
            self.dist.P2POp(self.dist.isend, source, (number + 1) % size),
            self.dist.P2POp(self.dist.irecv, target, (number - 1) % size),
        ]

        def launch() -> None:
            for request in self.dist.batch_isend_irecv(swap):
                request.wait()

        return launch

    def _pair(self, work: Work, send: int, receive: int) -> tuple[Any, Any]:
        return (
            self._tensor(receive, work.receive_nbytes, work.dtype),
            self._tensor(send, work.send_nbytes, work.dtype),
        )


class Torch(GpuRank):
    """One rank; torch's own rendezvous by the environment contract."""

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank)
        rank.state("import torch")
        try:
            import torch
            import torch.distributed as dist
        except ImportError as error:
            raise Unavailable(missing("torch")) from error
        if not torch.cuda.is_available() or not dist.is_nccl_available():
            raise Unavailable(f"torch {torch.__version__} was built without CUDA or NCCL: install a CUDA build")

    def unique_id(self) -> None:
        """Return nothing: torch exchanges its id itself."""

    def connect(self, unique: None = None) -> dict[str, Any]:
        """Join the process group; return facts of the library."""
        from iobench import gpu

        del unique
        self.rank.state(f"init_process_group of {self.rank.size} ranks")
        stream = self._stack.enter_context(gpu.stream(self.device))
        engine = Distributed(self.device, stream, self.rank)
        self._stack.callback(engine.close)
        self.engine = engine
        return self.facts()
