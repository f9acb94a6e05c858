"""Code from the cache: recorded and compiled once, with what a launch must know."""

from __future__ import annotations

import re

import pytest

from tests.helpers.processes import printed
from tilewright.compiler import artefact, cache
from tilewright.compiler.manifest import Entry, Parameter
from tilewright.ir import Kernel, f32, f64, i32, ptr
from tilewright.targets import target

DYNAMIC = "tests.compiler.test_artefact:emit_two"
calls = []


def emit_two(SIZE=16):
    """Two kernels, one with all its shared memory declared, one that needs more than can be."""
    calls.append(SIZE)
    functions = []
    for name, elements, threads in (("little", SIZE, 64), ("much", 13 << 10, (32, 4))):
        k = Kernel(name, threads=threads, n=i32, x=f64, a=ptr(f32))
        smem = k.smem("s", (elements,), f32)
        smem[k.thread[0]] = 1.0
        k.barrier()
        k.args[2][k.thread[0]] = smem[k.thread[1]]
        functions.append(k.function)
    return functions


@pytest.fixture(autouse=True)
def nothing_cached(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(artefact, "_found", {})
    calls.clear()
    return tmp_path


def test_what_a_launch_must_know():
    code = artefact.code(emit_two, target("sm_80"))
    parameters = Parameter("n", "i32", 0, 4), Parameter("x", "f64", 8, 8), Parameter("a", "ptr", 16, 8)
    much = 52 << 10
    assert code.entries == {"little": Entry("little", (64, 1), 64, 0, parameters),
                            "much": Entry("much", (32, 4), much, much, parameters)}
    assert [each["argument_bytes"] for each in code.manifests] == [24, 24]
    assert code.manifests[1]["shape"] == [32, 4, 1]
    assert code.text.count(".visible .entry") == 2
    assert code.text.count(".extern .shared") == 1
    declared = re.findall(r"^\s*\.param \.[a-z]+(\d+) .*little_param_(\d)", code.text, re.M)  # what the driver goes by
    assert declared == [("32", "0"), ("64", "1"), ("64", "2")]


def test_it_is_compiled_once(nothing_cached, monkeypatch):
    t = target("sm_90a")
    code = artefact.code(emit_two, t, 32)
    assert artefact.code(DYNAMIC, t, 32) is artefact.code(emit_two, t, 32) is code
    monkeypatch.setattr(artefact, "_found", {})
    assert artefact.code(DYNAMIC, t, 32) == code
    assert calls == [32]
    assert len(list(nothing_cached.iterdir())) == 1
    assert artefact.code(emit_two, t, SIZE=64) == artefact.code(emit_two, t, SIZE=64) != code
    assert artefact.code(emit_two, target("sm_80"), 32) != code
    assert calls == [32, 64, 32]
    assert cache.info()["entries"] == 3


def test_recorded_kernels_are_cached_by_what_they_record():
    """`compiled` gives the same code, and one file for each set of kernels."""
    t = target("sm_90a")
    assert artefact.compiled(emit_two(), t) == artefact.compiled(emit_two(), t) == artefact.code(emit_two, t)
    assert artefact.compiled(emit_two()[0], t).entry.name == "little"
    assert cache.info()["entries"] == 3


def test_cached_code_needs_neither_llvm_nor_the_emitter(nothing_cached):
    code = (
        "import sys; from tilewright.compiler import artefact; from tilewright.targets import target\n"
        "c = artefact.code('tilewright.kernels.gpu.copy:emit_copy', target('sm_80'), 'f32', TARGET='f64')\n"
        "print(len(c.entries), 'llvmlite' in sys.modules, 'tilewright.kernels' in sys.modules)"
    )
    assert [printed(code).split() for _ in range(2)] == [["1", "True", "True"], ["1", "False", "False"]]


def test_what_is_refused_is_not_cached(nothing_cached):
    with pytest.raises(NotImplementedError, match="much needs 106496 bytes of shared memory, and sm_86 gives"):
        artefact.code("tests.compiler.test_artefact:emit_too_much", target("sm_86"))
    assert list(nothing_cached.iterdir()) == []


def emit_too_much():
    k = Kernel("much", threads=32)
    k.smem("s", (26 << 10,), f32)
    return k.function
