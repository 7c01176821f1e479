"""The wheel: built, installed in a clean environment, used there; and what it says it needs."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# The name on PyPI where it is not the name that is imported.
DISTRIBUTION = {"llvmlite": "numba"}
OPTIONAL = {"pandas", "pynvml", "cupy", "kvikio", "pyverbs", "safetensors", "fastsafetensors", "runai_model_streamer"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("build", reason="needs the package build")
    pytest.importorskip("hatchling", reason="needs the package hatchling")
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = out.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel in it; its dependencies are lent by the environment of the tests."""
    home = tmp_path_factory.mktemp("clean") / "venv"
    pytest.importorskip("pip", reason="needs pip")
    venv.create(home, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", "venv", vars={"base": str(home), "platbase": str(home)}))
    python = str(home / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--isolated", "--python", python, "--disable-pip-version-check"]
    command = [*pip, "install", "-q", "--no-index", "--no-deps", str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # Paths named in a .pth file are searched, but .pth files in them are not read: a checkout that is
    # installed there in editable mode stays out of sight.
    lent = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (site / "lent.pth").write_text("\n".join(lent) + "\n")
    return home / "bin" / "python"


def run(python: Path, *args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([str(python), *args], capture_output=True, text=True, cwd=cwd, env=env, check=False)


def test_data_is_inside_and_nothing_else_lands_in_site_packages(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"iobench"}
    assert "iobench/_data/probes/null.py" in names
    assert "iobench/_data/topologies/limits.toml" in names
    assert any(name.startswith("iobench/report/") and name.endswith((".html", ".j2", ".jinja")) for name in names)
    metadata = next(name for name in names if name.endswith("entry_points.txt"))
    assert "iobench = iobench.cli:main" in zipfile.ZipFile(wheel).read(metadata).decode()


def test_list_and_a_probe_run_from_the_wheel(clean: Path, tmp_path: Path) -> None:
    where = run(clean, "-c", "import iobench; print(iobench.__file__)", cwd=tmp_path)
    assert str(clean.parent.parent) in where.stdout
    listed = run(clean.parent / "iobench", "list", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert "\nnull" in f"\n{listed.stdout}"
    done = run(clean, "-m", "iobench", "run", "null", "--quick", "-a", "kind=empty", "--out", "r", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "r" / "report.html").stat().st_size > 1000


def imports(file: Path) -> set[str]:
    """Return the top-level names that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add((node.module or "").partition(".")[0])
    return found


def test_every_import_is_declared() -> None:
    declared = {re.split(r"[<>=\[ ]", text)[0].lower() for text in PROJECT["dependencies"]}
    used = set().union(*map(imports, [*(ROOT / "iobench").rglob("*.py"), *(ROOT / "probes").glob("*.py")]))
    foreign = used - set(sys.stdlib_module_names) - {"iobench"} - OPTIONAL
    undeclared = {name for name in foreign if DISTRIBUTION.get(name, name).lower() not in declared}
    assert undeclared == set()
    assert declared <= {DISTRIBUTION.get(name, name).lower() for name in foreign}, "declared but never imported"


def test_extras_and_supported_versions() -> None:
    assert {"cuda12", "cuda13", "rdma"} <= set(PROJECT["optional-dependencies"])
    for extra in ("cuda12", "cuda13"):
        text = " ".join(PROJECT["optional-dependencies"][extra])
        assert all(word in text for word in ("cupy", "kvikio", "nvidia-ml-py", extra[4:]))
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert {f"Programming Language :: Python :: 3.{n}" for n in (11, 12, 13)} <= set(PROJECT["classifiers"])


def test_the_list_of_needed_packages_is_the_declared_one() -> None:
    from iobench.needs import PACKAGES

    assert {re.split(r"[<>=]", text)[0] for text in PROJECT["dependencies"]} == set(PACKAGES)


def test_an_interpreter_without_the_packages_is_told_which(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    venv.create(bare, with_pip=False, symlinks=True)
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    command = [str(bare / "bin" / "python"), "-m", "iobench", "list"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "typer" in done.stderr
    assert "numba" in done.stderr
