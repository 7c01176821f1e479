"""Other people's loaders, called as their users call them, up to all bytes in private memory or on the GPU.

Each brings every tensor of some safetensors files to its target; ``parts`` then tells where each tensor's bytes lie.
safetensors maps files: on the host its tensors are views that read nothing until touched, so they are copied into
memory of the right size that was touched before, as ``load_state_dict`` does.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from iobench.errors import Unavailable
from iobench.storage.checkpoint import Checkpoint
from iobench.storage.plan import Area
from iobench.storage.verify import POISON

HOST = "host"
BUFFERED = {  # settings of loaders that read with O_DIRECT unless told otherwise
    "fastsafetensors": ("FASTSAFETENSORS_ODIRECT", "0"),
    "runai": ("RUNAI_STREAMER_FS_STRATEGY", "sync_buffered"),
}
_NEEDS = {
    "safetensors": ("safetensors", "safetensors"),
    "fastsafetensors": ("fastsafetensors", "fastsafetensors"),
    "runai": ("runai_model_streamer", "runai-model-streamer"),
    "kvikio": ("kvikio", "kvikio-cu13"),
    "kvikio-compat": ("kvikio", "kvikio-cu13"),
}


@dataclass(frozen=True)
class Order:
    """What a loader is asked for."""

    loader: str
    paths: tuple[str, ...]
    target: str = HOST
    threads: int = 1
    block: int = 1 << 20
    register: str = "once"
    buffered: bool = False  # told to read through the page cache, where a loader has such a setting
    deadline: float = 120.0


class Loader(Protocol):
    """One loader with its memory."""

    def poison(self) -> None:
        """Overwrite or let go what the load before brought."""

    def load(self) -> None:
        """Bring all bytes to the target and wait until they are there."""

    def parts(self) -> Iterator[tuple[Area, Any]]:
        """Yield what each area of the files became: a uint8 array on the host, (address, bytes) on a GPU."""

    def facts(self) -> dict[str, Any]:
        """Return what the loader says of itself: versions, counters."""


def missing(loader: str) -> str:
    """Return the sentence for a loader that is not installed, "" for one that is."""
    module, package = _NEEDS[loader]
    if importlib.util.find_spec(module) is not None:
        return ""
    return f"needs {package}, which is not installed: pip install {package}"


def make(order: Order, checkpoint: Checkpoint) -> Loader:
    """Return the loader of an order; Unavailable where it is not installed or can't do this."""
    lacking = missing(order.loader)
    if lacking:
        raise Unavailable(lacking)
    if order.loader.startswith("kvikio"):
        from iobench.storage.beside.kvik import Kvikio

        return Kvikio(order, checkpoint)
    if not any(span.end > span.begin for shard in checkpoint.shards for span in shard.spans):
        raise Unavailable("the checkpoint holds no tensor of any size, so there is nothing to load by tensors")
    names = [span.name for shard in checkpoint.shards for span in shard.spans]
    if len(set(names)) < len(names):
        raise Unavailable(
            "two shards hold a tensor of one name, of which these loaders keep one: give one of the shards"
        )
    tell(order)
    kinds: dict[str, Callable[[Order, Checkpoint], Loader]] = {
        "safetensors": Safetensors, "fastsafetensors": Fastsafetensors, "runai": Runai,
    }  # fmt: skip
    return kinds[order.loader](order, checkpoint)


def tell(order: Order) -> None:
    """Make the settings that a loader reads from its environment."""
    if order.loader == "runai":
        os.environ["RUNAI_STREAMER_CONCURRENCY"] = str(order.threads)
    if order.buffered and order.loader in BUFFERED:
        name, value = BUFFERED[order.loader]
        os.environ[name] = value


class _Tensors:
    """What the loaders of torch tensors share: the areas of the files, the tensors by name."""

    def __init__(self, order: Order, checkpoint: Checkpoint) -> None:
        import torch

        self._torch, self._order, self._checkpoint = torch, order, checkpoint
        self._device = "cpu" if order.target == HOST else "cuda:0"
        self._found: dict[str, Any] = {}

    def poison(self) -> None:
        """Overwrite what is there, then let it go: an allocator may hand the same memory out again."""
        self._overwrite()
        self._found = {}

    def _overwrite(self) -> None:
        for tensor in self._found.values():
            tensor.reshape(-1).view(self._torch.uint8).fill_(POISON)  # flat: a scalar has no other view of its bytes
        self._synchronize()

    def parts(self) -> Iterator[tuple[Area, Any]]:
        for number, shard in enumerate(self._checkpoint.shards):
            for span in shard.spans:
                nbytes = span.end - span.begin
                if nbytes:
                    area = Area(span.name, number, shard.data_start + span.begin, 0, nbytes, nbytes)
                    yield area, self._bytes(self._found[span.name])

    def facts(self) -> dict[str, Any]:
        from importlib import metadata

        package = _NEEDS[self._order.loader][1]
        return {"loader": f"{package} {metadata.version(package)}", "torch": self._torch.__version__}

    def _bytes(self, tensor: Any) -> Any:
        flat = tensor.contiguous().reshape(-1).view(self._torch.uint8)
        if self._order.target == HOST:
            return flat.numpy()
        if flat.data_ptr() % 8:
            flat = flat.clone()
        return flat

    def _synchronize(self) -> None:
        if self._order.target != HOST:
            self._torch.cuda.synchronize()


class Safetensors(_Tensors):
    """safetensors.safe_open, tensor by tensor."""

    def __init__(self, order: Order, checkpoint: Checkpoint) -> None:
        super().__init__(order, checkpoint)
        if order.target == HOST:
            self._found = dict(self._each(lambda tensor: self._torch.empty_like(tensor).fill_(0)))

    def poison(self) -> None:
        if self._order.target != HOST:
            super().poison()
        self._overwrite()

    def load(self) -> None:
        if self._order.target == HOST:
            for name, tensor in self._each(lambda tensor: tensor):
                self._found[name].copy_(tensor)
            return
        self._found = dict(self._each(lambda tensor: tensor))
        self._synchronize()

    def _each(self, keep: Any) -> Iterator[tuple[str, Any]]:
        from safetensors import safe_open

        for path in self._order.paths:
            with safe_open(path, framework="pt", device=self._device) as file:
                for name in file.keys():  # noqa: SIM118  it is no mapping
                    yield name, keep(file.get_tensor(name))


class Fastsafetensors(_Tensors):
    """fastsafetensors' file loader; cuFile on a GPU where it finds it, reads through its own buffers else."""

    def __init__(self, order: Order, checkpoint: Checkpoint) -> None:
        super().__init__(order, checkpoint)
        self._held: list[Any] = []

    def load(self) -> None:
        from fastsafetensors import SafeTensorsFileLoader

        host = self._order.target == HOST
        loader = SafeTensorsFileLoader(None, self._device, nogds=host, max_threads=self._order.threads)
        self._held.append(loader)
        loader.add_filenames({0: list(self._order.paths)})
        buffers = loader.copy_files_to_device()
        self._held.append(buffers)
        self._found = {name: buffers.get_tensor(name) for name in loader.get_keys()}
        self._synchronize()

    def poison(self) -> None:
        super().poison()
        while self._held:
            self._held.pop().close()


class Runai(_Tensors):
    """runai-model-streamer, asked for tensors that the caller may keep; copied where an older one only lends them."""

    def load(self) -> None:
        from runai_model_streamer import SafetensorsStreamer

        with SafetensorsStreamer() as streamer:
            takes = inspect.signature(streamer.stream_files).parameters
            here = {"device": self._device} if "device" in takes else {}
            streamer.stream_files(list(self._order.paths), **here)
            lent = self._device == "cpu" and "owned" not in takes  # its buffers are filled again then
            for name, tensor in streamer.get_tensors():
                self._found[name] = tensor.clone() if lent else tensor.to(self._device)
        self._synchronize()
