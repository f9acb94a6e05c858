"""k.print: lines by the simulator, nothing in compiled code."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.readings import both
from tilewright import targets
from tilewright.compiler.llvm import assembly
from tilewright.ir import Kernel, bf16, f32, i32, i64, ptr, vec
from tilewright.simulator import Fault, run


def emit(printing=True, threads=4, **options):
    k = Kernel("printing", threads=threads, n=i32, x=ptr(f32), z=ptr(f32))
    n, x, z = k.args
    i = k.block[0] * 4 + k.thread[0]
    with k.when(i < n):
        value = x[i] * 2.0
        if printing:
            k.print("value", i, value, **{name: make(i) for name, make in options.items()})
        z[i] = value
    return k.function


def test_a_line_for_each_active_thread(capsys):
    x = np.arange(6, dtype=np.float32)
    report = run(emit(), 6, x, x.copy(), grid=2)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(report.printed) == 6
    assert lines[5].startswith("test_prints.py:")
    assert lines[5].endswith(": value by block (1, 0) thread (1, 0): 5 10.0")
    assert [p[1:] for p in report.printed] == [("value", (i // 4, 0), (i % 4, 0), (i, 2.0 * i)) for i in range(6)]
    assert report.printed[0].line.text.startswith('k.print("value"')
    assert "print" not in report.instructions


def test_a_condition_chooses_threads(capsys):
    x = np.arange(8, dtype=np.float32)
    report = run(emit(when=lambda i: i % 4 == 1), 6, x, x.copy(), grid=2)
    assert [p.values[0] for p in report.printed] == [1, 5]
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_lines_are_limited(capsys):
    x = np.arange(64, dtype=np.float32)
    report = run(emit(most=lambda i: 3), 64, x, x.copy(), grid=16)
    assert [p.values[0] for p in report.printed] == [0, 1, 2]
    *shown, last = capsys.readouterr().out.splitlines()
    assert len(shown) == 3
    assert "more than 3 lines" in last


def test_lines_stand_before_the_fault_that_they_explain(capsys):
    x = np.arange(8, dtype=np.float32)
    with pytest.raises(Fault, match=r"store of z\[6\]"):
        run(emit(), 8, x, np.zeros(6, np.float32), grid=2)
    assert len(capsys.readouterr().out.splitlines()) == 8


def test_vectors_pointers_and_other_types(capsys):
    k = Kernel("kinds", n=i64, x=ptr(f32), h=ptr(bf16))
    n, x, h = k.args
    smem = k.local("own", (4,), f32)
    smem[1] = 0.5
    k.print("kinds", n, k.load(x, vec(f32, 2)), x + n, n < 3, h[0], smem + 1, k.pointer(n, f32))
    from ml_dtypes import bfloat16

    report = run(k.function, 2, np.array([1, 2, 3], np.float32), np.ones(1, bfloat16))
    assert report.printed[0][1:] == ("kinds", (), 0, (2, [1.0, 2.0], "x[2]", True, 1.0, "own[1]", "0x2"))
    assert ": kinds: 2 [1.0, 2.0] x[2] True 1.0 own[1] 0x2\n" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["sm_80", "gfx950", "x86-avx2"])
def test_compiled_code_leaves_it_out(name):
    def code(printing):
        if name == "x86-avx2":
            k = Kernel("printing", x=ptr(f32))
            (x,) = k.args
            if printing:
                k.print("x", x[0] * 2.0, when=x[1] > 0.0)
            x[0] = 1.0
            return assembly(k.function, targets.target(name))
        k = Kernel("printing", threads=64, warp=64 if name == "gfx950" else 32, x=ptr(f32))
        (x,) = k.args
        if printing:
            k.print("x", x[k.thread[0]])
        x[k.thread[0]] = 1.0
        return assembly(k.function, targets.target(name))
    assert code(True) == code(False)


def test_both_readings_agree(capsys):
    k = Kernel("sum", n=i64, x=ptr(f32))
    n, x = k.args
    total = k.variable(f32, 0.0)
    with k.loop(n) as i:
        total.set(total.get() + x[i])
        k.print("running sum", i, total.get(), when=i == n - 1)
    x[0] = total.get()
    both(k.function, 4, np.arange(4, dtype=np.float32))
    assert capsys.readouterr().out.endswith(": running sum: 3 6.0\n")


def test_mistakes():
    k = Kernel("mistaken", n=i64)
    with pytest.raises(TypeError, match="begins with a label, which is text"):
        k.print(k.args[0])
    with pytest.raises(TypeError, match="an operand must be a value of the kernel, not 3"):
        k.print("x", 3)
    with pytest.raises(TypeError, match="a condition is"):
        k.print("x", when=True)
    with pytest.raises(ValueError, match=r"k\.print: most must be a whole number from 1 on, not 0"):
        k.print("x", most=0)
