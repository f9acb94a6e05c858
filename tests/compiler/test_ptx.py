"""PTX from the cache: recorded and compiled once, and what a launch must know is in the text."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tilewright.compiler import cache, ptx
from tilewright.compiler.ptx import Entry, emitted_ptx, entries
from tilewright.ir import Kernel, f32, ptr
from tilewright.targets import target

DYNAMIC = "tests.compiler.test_ptx:emit_two"
calls = []


def emit_two(SIZE=16):
    """Two kernels, one with all its shared memory declared, one that needs more than can be."""
    calls.append(SIZE)
    functions = []
    for name, elements, threads in (("little", SIZE, 64), ("much", 13 << 10, (32, 4))):
        k = Kernel(name, threads=threads, a=ptr(f32))
        smem = k.smem("s", (elements,), f32)
        smem[k.thread[0]] = 1.0
        k.barrier()
        k.args[0][k.thread[0]] = smem[k.thread[1]]
        functions.append(k.function)
    return functions


@pytest.fixture(autouse=True)
def nothing_cached(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(ptx, "_texts", {})
    calls.clear()
    return tmp_path


def test_what_a_launch_must_know():
    text = emitted_ptx(emit_two, target("sm_80"))
    much = 52 << 10
    assert entries(text) == {"little": Entry("little", (64, 1), 64, 0), "much": Entry("much", (32, 4), much, much)}
    assert text.count(".visible .entry") == 2
    assert text.count(".extern .shared") == 1


def test_it_is_compiled_once(nothing_cached, monkeypatch):
    t = target("sm_90a")
    text = emitted_ptx(emit_two, t, 32)
    assert emitted_ptx(DYNAMIC, t, 32) == emitted_ptx(emit_two, t, 32) == text
    monkeypatch.setattr(ptx, "_texts", {})
    assert emitted_ptx(DYNAMIC, t, 32) == text
    assert calls == [32]
    assert len(list(nothing_cached.iterdir())) == 1
    assert emitted_ptx(emit_two, t, SIZE=64) == emitted_ptx(emit_two, t, SIZE=64) != text
    assert emitted_ptx(emit_two, target("sm_80"), 32) != text
    assert calls == [32, 64, 32]
    assert cache.info()["entries"] == 3


def test_cached_text_needs_neither_llvm_nor_the_emitter(nothing_cached):
    code = (
        "import sys; from tilewright.compiler.ptx import emitted_ptx, entries; from tilewright.targets import target\n"
        "t = emitted_ptx('tilewright.kernels.nvidia.copy:emit_copy', target('sm_80'), 'f32', TARGET='f64')\n"
        "print(len(entries(t)), 'llvmlite.binding' in sys.modules, 'tilewright.kernels' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
           for _ in range(2)]
    assert [done.stdout.split() for done in run] == [["1", "True", "True"], ["1", "False", "False"]]


def test_what_is_refused_is_not_cached(nothing_cached):
    with pytest.raises(NotImplementedError, match="much needs 106496 bytes of shared memory, and sm_86 gives"):
        emitted_ptx("tests.compiler.test_ptx:emit_too_much", target("sm_86"))
    assert list(nothing_cached.iterdir()) == []


def emit_too_much():
    k = Kernel("much", threads=32)
    k.smem("s", (26 << 10,), f32)
    return k.function
