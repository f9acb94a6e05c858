"""The address of a kernel covers the sources that its emitter imports, and no others."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.package.test_architecture import MODULES, PACKAGE, imports
from tilewright.compiler import cache, sources

X86, NVIDIA, AMD, LADDER = EMITTERS = (
    "tilewright.kernels.cpu.gemm", "tilewright.kernels.nvidia.simt_gemm", "tilewright.kernels.amd.gemm",
    "tilewright.lab.ladder.cpu4_blocked")
EVERYBODY = {X86, NVIDIA, AMD, LADDER}
# a source of each kind, and whose addresses it is in
EDITS = {
    "kernels/cpu/gemm.py": {X86}, "kernels/cpu/amx.py": {X86}, "kernels/nvidia/simt_gemm.py": {NVIDIA},
    "kernels/nvidia/operand.py": {NVIDIA}, "kernels/amd/scales.py": {AMD}, "kernels/gpu/split_k.py": {NVIDIA, AMD},
    "ir/builder.py": EVERYBODY, "ir/lower.py": EVERYBODY, "ir/ops/core.py": EVERYBODY, "ir/ops/nvidia.py": EVERYBODY,
    "compiler/llvm.py": EVERYBODY, "compiler/artefact.py": EVERYBODY, "compiler/gate.py": EVERYBODY,
    "targets/cpu.py": EVERYBODY, "forks.py": EVERYBODY,
    "plans/words.py": {X86}, "atoms/amd.py": {AMD}, "formats/records.py": {X86, AMD},
    "lab/ladder/cpu4_blocked.py": {LADDER},
    # nobody's
    "lab/ladder/cpu5_micro.py": set(), "lab/ladder/gpu08_buffered.py": set(), "kernels/cpu/entry.py": set(),
    "kernels/nvidia/gemv.py": set(), "lab/cli/kernels.py": set(), "lab/tuner/search.py": set(),
    "simulator/machine.py": set(), "runtime/cpu/engine.py": set(), "inspect/resources.py": set(),
    "api/products.py": set(), "__init__.py": set(),
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A copy of the package, whose sources are asked for."""
    copy = tmp_path / "tilewright"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.jsonl"))
    monkeypatch.setattr(sources, "PACKAGE", str(copy))
    forget()
    yield copy
    forget()


def forget():
    for kept in (sources.digest, sources._read, sources._path, sources._listed):
        kept.cache_clear()


def digests():
    forget()
    return {emitter: sources.digest(emitter) for emitter in EMITTERS}


def test_an_edit_of_each_kind_of_source(package):
    before = digests()
    assert len(set(before.values())) == len(EMITTERS)
    for name, whose in EDITS.items():
        with open(package / name, "a") as file:
            file.write("# another constant\n")
        after = digests()
        changed = {emitter for emitter in EMITTERS if after[emitter] != before[emitter]}
        exactly = not whose or name.startswith(("kernels/", "lab/ladder/"))  # others' imports of data may grow
        assert changed == whose if exactly else changed >= whose, name
        before = after
    os.rename(package / "kernels/cpu/pool.py", package / "kernels/cpu/pond.py")
    assert digests()[X86] != before[X86]


def test_a_vendors_kernels_are_in_no_others_address():
    for emitter, others in ((X86, ("nvidia", "amd")), (NVIDIA, ("cpu", "amd")), (AMD, ("cpu", "nvidia"))):
        found = sources.files(emitter)
        assert emitter in found
        for other in ("lab", "runtime", "simulator", *(f"kernels.{each}" for each in others)):
            assert not [name for name in found if f"{name}.".startswith(f"tilewright.{other}.")]


def test_imports_are_those_of_the_syntax_tree():
    """They are found by a regular expression, which takes a twentieth of the time."""
    for path in MODULES:
        expected = {name for _, name in imports(path) if name.startswith("tilewright.")}
        found = {name for name in sources._read(str(path)).imports if name != "tilewright"}
        both = [{name for name in names if sources._path(name)} for names in (found, expected)]
        assert both[0] == both[1], path


def test_an_emitter_from_elsewhere(tmp_path, monkeypatch):
    """Of a module that is not of the package its own file counts, and what it imports from the package."""
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "own_emitter.py"
    module.write_text("from tilewright.kernels.gpu import split_k\n")
    first = sources.digest("own_emitter")
    assert {"own_emitter", "tilewright.kernels.gpu.split_k"} <= sources.files("own_emitter").keys()
    module.write_text("from tilewright.kernels.gpu import split_k  # and a remark\n")
    forget()
    assert sources.digest("own_emitter") != first


def test_addresses(monkeypatch):
    """An address changes with every argument, and with the releases of tilewright and LLVM."""
    addresses = {cache.key("f", "avx2", ()), cache.key("f", "avx2", (1,)), cache.key("f", "avx512", ()), cache.key("g")}
    assert len(addresses) == 4
    assert cache.key("f", "avx2", (1,)) in addresses
    import llvmlite

    import tilewright

    assert llvmlite.__version__.encode() in cache.versions()
    assert tilewright.__version__.encode() in cache.versions()
    monkeypatch.setattr(cache, "versions", lambda: b"others")
    assert cache.key("f", "avx2", (1,)) not in addresses
