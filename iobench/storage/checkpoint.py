"""A checkpoint: one safetensors file or the shards of a folder, in loading order."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from iobench.errors import UserError
from iobench.storage.layout import Layout, read_layout

_NUMBERED = re.compile(r"(.*)-(\d+)-of-(\d+)\.safetensors")
_INDEX = ".safetensors.index.json"


@dataclass(frozen=True)
class Checkpoint:
    """The shards in the order they are read; every one validated."""

    path: Path
    shards: tuple[Layout, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all files, headers included."""
        return sum(shard.nbytes for shard in self.shards)

    @property
    def notes(self) -> list[str]:
        return [f"{shard.path.name}: {note}" for shard in self.shards for note in shard.notes]


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Return the checkpoint at ``path``: a safetensors file, its index.json or a folder of shards.

    Every header is read and checked against its file's size. UserError, one line, for a path that is missing,
    a missing shard, a truncated or damaged file, a git-LFS pointer, an HTML page or another format.
    """
    where = Path(path).expanduser()
    files = _files(where)
    return Checkpoint(where.absolute(), tuple(read_layout(file) for file in files))


def from_files(paths: Iterable[str | Path]) -> Checkpoint:
    """Return the checkpoint of these files, in this order; every header is checked."""
    files = [Path(path) for path in paths]
    return Checkpoint(files[0].parent.absolute(), tuple(read_layout(file) for file in files))


def _files(where: Path) -> list[Path]:
    try:
        if where.is_dir():
            return _in_folder(where)
        if not where.is_file():
            what = "no regular file" if where.exists() else "no such file or folder"
            raise UserError(f"{where}: {what}; give a safetensors file or their folder")
    except OSError as error:
        raise UserError(f"cannot read {where}: {error.strerror}; give a safetensors file or their folder") from error
    return _listed(where) if where.name.endswith(".index.json") else [where]


def _in_folder(folder: Path) -> list[Path]:
    indexes = sorted(folder.glob(f"*{_INDEX}"))
    if len(indexes) == 1:
        return _listed(indexes[0])
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(f"{folder} holds no .safetensors file; give a safetensors file or a folder of them")
    _check_complete(folder, files)
    return files


def _listed(index: Path) -> list[Path]:
    try:
        names = set(json.loads(index.read_bytes())["weight_map"].values())
        files = [index.parent / name for name in sorted(names)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{index} is no safetensors index (no weight_map of names); download it again") from error
    if not files:
        raise UserError(f"{index} lists no files; download it again")
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise UserError(f"{index} lists {len(files)} files, {len(missing)} missing ({missing[0]}); download them")
    return files


def _check_complete(folder: Path, files: list[Path]) -> None:
    """Raise where names such as model-00001-of-00003 show that shards are missing."""
    sets: dict[tuple[str, int], int] = {}
    for file in files:
        match = _NUMBERED.fullmatch(file.name)
        if match:
            key = match[1], int(match[3])
            sets[key] = sets.get(key, 0) + 1
    for (stem, total), found in sets.items():
        if found < total:
            raise UserError(f"{folder} holds {found} of {total} shards of {stem}; download the missing ones")
