"""Matrix products with the shapes of prefill and decode in FP16, BF16 and FP8: a yardstick for comparing machines.

Path: operands in a GPU's memory, through its tensor cores, the result back to memory; by torch (cuBLAS, cuBLASLt).
``tokens`` rows meet the weights of one layer of the model: few rows are decode (the weights' bytes decide), many are
prefill (arithmetic decides).

Clock: CUDA events around launches that a gate holds back until all are enqueued; launch cost stays outside. Weights
rotate over more than 4 times the L2 cache, as those of a model's layers do.

Bytes: each operand read once, the result written once; ``flops`` in the evidence is 2 * rows * columns * depth per
operation. FLOP/s and the place on the roofline follow from these and the time. Operands are random: products of
zeros run faster than real ones.

Not in the number: allocation, random numbers, quantising, verification. Running it draws the GPU's full power for
a fraction of a second per point. Rows of every result, the first and the last among them, are verified against a
float32 product of the same operands; unwritten results are found because the output is poisoned first.

Cross-checked against the tensor cores' rates in the GPU's data sheet, which no product may exceed.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iobench.errors import Unavailable, WrongData
from iobench.needs import missing
from iobench.probe import Axis, Plot, Samples
from iobench.record import Leg

if TYPE_CHECKING:
    from iobench.gpu import Device, Watch
    from iobench.timing.sampler import Sampler, Timed
    from iobench.topology.graph import Topology

AXES = {
    "model": Axis(("llama-3-8b", "llama-3-70b"), "whose layer: hidden sizes 4096 and 8192"),
    "gpu": Axis(tuple(range(64)), "number of the GPU in the topology; unless given, the first"),
    "product": Axis(
        ("qkv", "out", "gate_up", "down"), "attention's inputs and output, the feed-forward's first and second product"
    ),
    "dtype": Axis(("fp16", "bf16", "fp8"), "of the operands; fp8 is E4M3 with one scale per operand, its result BF16"),
    "tokens": Axis((1, 32, 256, 4096), "rows: sequences decoded together, or tokens of a prompt", minimum=1),
    "mode": Axis(("events",), "how products are timed", choices=("events", "graph")),
}
LAUNCHES = 3
POINT_SECONDS = 0.1
PLOTS = (
    Plot("Matrix product: time", x="tokens", y="latency", series=("dtype", "product"), where={"model": "llama-3-8b"}),
    Plot("Matrix product: time", x="tokens", y="latency", series=("dtype", "product"), where={"model": "llama-3-70b"}),
)

# config.json of the models: hidden_size, intermediate_size, num_key_value_heads * head_dim
_SIZES = {"llama-3-8b": (4096, 14336, 1024), "llama-3-70b": (8192, 28672, 1024)}
_NBYTES = {"fp16": 2, "bf16": 2, "fp8": 1}
_RESULT_NBYTES = 2
_TORCH_TYPES = {"fp16": "float16", "bf16": "bfloat16", "fp8": "float8_e4m3fn"}
_POOL_FACTOR = 4
_SAMPLED_ROWS = 8
# ||result - reference|| / ||reference||: rounding of the result (2^-11 and 2^-9 at most) with room for summation order
# (FP8 products add up in fewer bits than float32 has)
_TOLERANCE = {"fp16": 2e-3, "bf16": 8e-3, "fp8": 2e-2}
_PRIME = 1_000_003


@dataclass(frozen=True)
class Shape:
    """One product: [rows, depth] times [depth, columns]."""

    rows: int
    depth: int
    columns: int

    @property
    def flops(self) -> int:
        """Multiplications and additions of one product."""
        return 2 * self.rows * self.depth * self.columns

    def moved(self, item_nbytes: int) -> int:
        """The least bytes that one product moves."""
        operands = self.rows * self.depth + self.depth * self.columns
        return operands * item_nbytes + self.rows * self.columns * _RESULT_NBYTES


def shape_of(model: str, product: str, tokens: int) -> Shape:
    """Return the shape of a product of one layer."""
    hidden, inner, cached = _SIZES[model]
    depth, columns = {
        "qkv": (hidden, hidden + 2 * cached),
        "out": (hidden, hidden),
        "gate_up": (hidden, 2 * inner),
        "down": (inner, hidden),
    }[product]
    return Shape(tokens, depth, columns)


def points(topology: "Topology", axes: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    found = [int(node.id.split(":")[1]) for node in topology.of("gpu") if node.get("vendor") == "NVIDIA"]
    if not found:
        raise Unavailable("needs an NVIDIA GPU: the topology shows none")
    chosen = [number for number in axes["gpu"] if number in found]
    if not chosen:
        raise Unavailable(f"needs gpu:{axes['gpu'][0]}: the topology has {', '.join(f'gpu:{n}' for n in found)}")
    names = ("model", "product", "dtype", "tokens", "mode")
    for gpu in chosen[:1] if axes["gpu"] == AXES["gpu"].values else chosen:
        for values in itertools.product(*(axes[name] for name in names)):
            yield {"gpu": gpu, **dict(zip(names, values, strict=True))}


def measure(point: dict[str, Any], sampler: "Sampler") -> Samples:
    from iobench import gpu
    from iobench.timing import cuda

    device = gpu.at(f"gpu:{point['gpu']}")
    torch = _torch(device, point["dtype"])
    shape = shape_of(point["model"], point["product"], point["tokens"])
    with gpu.using(device):
        stream = sampler.shared(("stream", device.index), lambda: gpu.stream(device))
        with stream, torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr, device=device.index)), _room(torch):
            work = Products(torch, shape, point["dtype"], device, sampler.launch * _PRIME + point["tokens"])
            work.poison()
            with gpu.watch([device]) as seen:
                if point["mode"] == "graph":
                    timed = cuda.graph(sampler, work.enqueue, stream, ops=work.slots)
                else:
                    timed = cuda.events(sampler, work.enqueue, stream)
            error = work.check()
    return _samples(point, work, timed, error, seen)


def _torch(device: "Device", dtype: str) -> Any:
    """Return torch where it can multiply in this format on the device; else Unavailable."""
    try:
        import torch
    except ImportError as error:
        raise Unavailable(missing("torch")) from error
    if not torch.cuda.is_available():
        raise Unavailable(f"torch {torch.__version__} was built without CUDA or finds no driver: install a CUDA build")
    if dtype == "fp8" and (device.compute_capability < (8, 9) or not hasattr(torch, "_scaled_mm")):
        raise Unavailable(f"needs FP8 tensor cores (compute capability 8.9 or more): {device.name} has none")
    if dtype == "bf16" and device.compute_capability < (8, 0):
        raise Unavailable(f"needs BF16 tensor cores (compute capability 8.0 or more): {device.name} has none")
    return torch


@contextlib.contextmanager
def _room(torch: Any) -> Iterator[None]:
    """Give torch's cached memory back at the end: the next point's buffers are other sizes."""
    try:
        yield
    finally:
        torch.cuda.empty_cache()


class Products:
    """Operands on a device, so many sets of weights that they outgrow the L2, and one result for each."""

    def __init__(self, torch: Any, shape: Shape, dtype: str, device: "Device", seed: int) -> None:
        self.torch, self.shape, self.dtype, self.device = torch, shape, dtype, device
        place = f"cuda:{device.index}"
        weights = shape.depth * shape.columns * _NBYTES[dtype]
        self.slots = max(-(-_POOL_FACTOR * device.l2_nbytes // weights), 1)
        self._random = torch.Generator(device=place).manual_seed(seed)
        self.left = self._operand(shape.rows, shape.depth)
        # the weights lie as [columns, depth], as a Linear layer's do, and are used transposed
        self.right = [self._operand(shape.columns, shape.depth).t() for _ in range(self.slots)]
        kind = torch.float16 if dtype == "fp16" else torch.bfloat16
        self.results = [torch.empty(shape.rows, shape.columns, dtype=kind, device=place) for _ in range(self.slots)]
        self._one = torch.ones((), dtype=torch.float32, device=place)
        self._multiply: Callable[[Any, Any], Any] = self._scaled if dtype == "fp8" else self._plain

    def _operand(self, rows: int, columns: int) -> Any:
        torch, place = self.torch, f"cuda:{self.device.index}"
        values = torch.randn(rows, columns, generator=self._random, device=place, dtype=torch.float16)
        return values.to(getattr(torch, _TORCH_TYPES[self.dtype]))

    def _plain(self, right: Any, result: Any) -> Any:
        return self.torch.mm(self.left, right, out=result)

    def _scaled(self, right: Any, result: Any) -> Any:
        one, kind = self._one, result.dtype  # fast accumulation: what inference engines use
        return self.torch._scaled_mm(self.left, right, one, one, out_dtype=kind, use_fast_accum=True, out=result)

    def enqueue(self, turn: int) -> None:
        """Put one product on the current stream."""
        slot = turn % self.slots
        self._multiply(self.right[slot], self.results[slot])

    def poison(self) -> None:
        """Fill the results with NaN."""
        for result in self.results:
            result.fill_(float("nan"))
        self.torch.cuda.synchronize(self.device.index)

    def check(self) -> float:
        """Return the largest relative error over all results; WrongData where one is above its format's.

        What the timed products left is verified; only results they did not reach, poisoned still, are computed first.
        """
        for slot, result in enumerate(self.results):
            if bool(result[0, 0].isnan()):
                self.enqueue(slot)
        torch, rows = self.torch, self._rows()
        left, worst = self.left[rows].float(), 0.0
        for right, result in zip(self.right, self.results, strict=True):
            reference = torch.mm(left, right.float())
            error = float((result[rows].float() - reference).norm() / reference.norm())
            if not error <= _TOLERANCE[self.dtype] or bool(result.isnan().any()):
                raise WrongData(f"product differs from float32's by {error:.2g} of its norm, or holds NaN")
            worst = max(worst, error)
        return worst

    def _rows(self) -> list[int]:
        """Return the rows to verify: the first, the last, and some between."""
        last, count = self.shape.rows - 1, min(_SAMPLED_ROWS, self.shape.rows)
        return sorted({round(last * number / max(count - 1, 1)) for number in range(count)})


def _samples(point: dict[str, Any], work: Products, timed: "Timed", error: float, seen: "Watch") -> Samples:
    shape, device, item = work.shape, work.device, _NBYTES[point["dtype"]]
    moved = shape.moved(item)
    # the weights alone rotate: at most an L2 full of them is left from the round before, and the rest may stay cached
    weights = work.slots * shape.depth * shape.columns * item
    crossed = max(weights - device.l2_nbytes, 0) // work.slots
    legs = [] if device.vram is None or device.node is None else [Leg(device.vram, device.node, moved=crossed)]
    if legs:
        legs[0].bytes_per_s = device.peak_bytes_per_s
    return Samples(
        timed=timed,
        nbytes=moved,
        moved=moved,
        moved_rule="each operand read once, the result written once",
        quantity="latency",
        mode=point["mode"],
        verified=True,
        path=f"{device.name}'s memory to its tensor cores and back",
        proven=True,
        evidence={
            "flops": shape.flops, "rows": shape.rows, "depth": shape.depth, "columns": shape.columns,
            "slots": work.slots, "relative_error": error, "torch": work.torch.__version__,
            "memory_nbytes_at_least": crossed, "peak_bytes_per_s": device.peak_bytes_per_s, "watch": seen.evidence(),
        },
        legs=legs,
        suspect=seen.suspect,
    )  # fmt: skip
