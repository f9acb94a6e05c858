"""TILEWRIGHT_RECORD: every call is counted, those that the builtin would repeat too, and processes append together."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.doubles import fake_cuda
from tests.helpers.processes import run, start
from tilewright import shape_list
from tilewright.api.record import Recorder
from tilewright.runtime.gpu.arrays import CUDA, DeviceArray
from tilewright.shape_list import Listed

CALLS = """
import os
import numpy as np
import tilewright as tw
a, b = np.ones((30, 20), np.float32), np.ones((20, 10), np.float32)
for _ in range(50):
    tw.matmul(a, b)
with tw.threads(1):
    tw.gemm(2.0, a, b, 1.0, np.zeros((30, 10), np.float32))
try:
    tw.matmul(a, a)
except ValueError:
    pass
if os.fork() == 0:
    tw.matmul(a.T, a)
    raise SystemExit
os.wait()
assert tw.matmul.__name__ == "matmul"
"""


def test_processes_append_what_they_called(tmp_path):
    path = tmp_path / "shapes.jsonl"
    running = [start(CALLS, cwd=tmp_path, TILEWRIGHT_RECORD=str(path), TILEWRIGHT_NUM_THREADS="2") for _ in range(2)]
    assert [(each.communicate(timeout=60)[1], each.returncode) for each in running] == [("", 0), ("", 0)]
    here = tw.detect().name
    assert shape_list.read(path) == [
        Listed(tw.Gemm(30, 10, 20), 2, here, count=100), Listed(tw.Gemm(20, 20, 30, layout="tn"), 2, here, count=2),
        Listed(tw.Gemm(30, 10, 20), 1, here, count=2)]


CONTRACTIONS = """
import numpy as np
import tilewright as tw
a, b, c = (np.ones(x, np.float32) for x in ((5, 6, 7), (7, 6, 4), (4, 3)))
for _ in range(3):
    tw.einsum("ij,jk->ik", c, c.T)              # as matmul
    tw.tensordot(a, a, ([0, 1], [0, 1]))        # m and n of one axis, k of two that merge
    tw.einsum("bij,jk->bik", a.astype("f8"), np.ones((7, 2)), threads=1)
    tw.einsum("ijk,kjl->il", a, b)              # k of two axes that do not merge
tw.grouped_matmul(c, np.ones((2, 3, 5), np.float32), np.array([1, 4]))
"""


def test_contractions_of_labels_are_recorded(tmp_path):
    """Each call, those like an earlier one too; what has no line is said."""
    path = tmp_path / "shapes.jsonl"
    ran = run(CONTRACTIONS, cwd=tmp_path, TILEWRIGHT_RECORD=str(path), TILEWRIGHT_NUM_THREADS="2")
    assert ran.returncode == 0, ran.stderr
    lines = {(x.problem.m, x.problem.n, x.problem.k, x.problem.a): (x.count, x.threads) for x in shape_list.read(path)}
    assert lines == {(4, 4, 3, "f32"): (3, 2), (7, 7, 30, "f32"): (3, 2), (30, 2, 7, "f64"): (3, 1)}
    assert "3 calls of einsum, of two operands each, were not recorded: axes" in ran.stderr
    assert "1 calls of grouped_matmul were not recorded" in ran.stderr


A, B = np.ones((6, 8), np.float32), np.ones((8, 4), np.float32)
QUANTIZED = (tw.quantize(np.ones((6, 32), np.float32), "mxfp8"),
             tw.quantize(np.ones((32, 4), np.float32), "mxfp8", axis=-2))


@pytest.mark.parametrize(("args", "options", "listed"), [
    ((A, B), {}, Listed(tw.Gemm(6, 4, 8))),
    ((A.T, B), {"trans_a": True}, Listed(tw.Gemm(6, 4, 8))),
    ((A, B.T), {"trans_b": "t"}, Listed(tw.Gemm(6, 4, 8))),
    ((np.asfortranarray(A), B), {}, Listed(tw.Gemm(6, 4, 8, layout="tn"))),
    ((A, np.ones((4, 8), np.float32).T), {"algorithm": "fastest"},
     Listed(tw.Gemm(6, 4, 8, layout="nt"), algorithm="fastest")),
    ((A[:, :4], B[:4]), {}, Listed(tw.Gemm(6, 4, 4), strides="rows")),
    ((A[:, ::2], B[::2]), {}, Listed(tw.Gemm(6, 4, 4), strides="any")),
    ((A[0], B), {}, Listed(tw.Gemm(1, 4, 8))),
    ((A, B[:, 0].copy()), {}, Listed(tw.Gemm(6, 1, 8))),
    ((np.ones((3, 6, 8), "f8"), np.ones((3, 8, 4), "f8")), {}, Listed(tw.Gemm(6, 4, 8, "f64", batch=3))),
    ((np.ones((3, 6, 8), "f8"), np.ones((8, 4), "f8")), {}, Listed(tw.Gemm(18, 4, 8, "f64"))),
    ((A.astype("i1"), B.astype("i1")), {"out_dtype": "i32"}, Listed(tw.Gemm(6, 4, 8, "i8", out="i32"))),
    (([[1.0, 2]], [[3.0], [4]]), {}, Listed(tw.Gemm(1, 1, 2, "f64"))),
    (QUANTIZED, {}, Listed(tw.Gemm(6, 4, 32, "mxfp8"))),
    ((A[:0], B), {}, None),
    ((A, tw.pack(B)), {}, None),
    ((A, B), {"epilogue": lambda acc, s: acc * s, "operands": {"s": B[0]}},
     Listed(tw.Gemm(6, 4, 8, epilogue=tw.epilogue(lambda acc, s: acc * s, s="row").text.replace("| -", "| f32")))),
    ((A, B.astype("i1")), {"prologue_b": lambda b: b * 2.0},
     Listed(tw.Gemm(6, 4, 8, "f32", "i8", prologue_b=tw.prologue(lambda b: b * 2.0, "i8")))),
])
def test_what_a_call_is_listed_as(tmp_path, args, options, listed):
    found = Recorder(tmp_path / "shapes.jsonl")
    recording = found.recording(tw.matmul, 0)
    for _ in range(2):
        assert np.array_equal(recording(*args, **options), tw.matmul(*args, **options))
    found.write()
    if listed is None:
        assert not found.path.exists()
        return
    (line,) = shape_list.read(found.path)
    known = {"threads": tw.get_num_threads(), "target": tw.detect().name, "align": line.align, "count": 2}
    assert line == Listed(**{**vars(listed), **known})
    found.write()
    assert len(shape_list.read(found.path)) == 1


def test_contractions_are_listed(tmp_path):
    """Functions that compute the same are one line, others are not, even if it cannot be seen what they name."""
    found = Recorder(tmp_path / "shapes.jsonl")
    contract = found.recording(tw.contract, 1)
    factors = np.array([2.0, 3.0])
    for factor in factors:
        for _ in range(2):
            contract(lambda x, y, f=factor: (x - y) * float(f), A, B)
        assert contract(lambda x, y: x * y, A, B, reduce="argmin").dtype == np.int32
    found.write()
    lines = shape_list.read(found.path)
    assert sorted(each.count for each in lines) == [2, 2, 2]
    assert {each.problem.semiring for each in lines} == {
        *(tw.semiring(lambda x, y, f=f: (x - y) * f).text for f in (2.0, 3.0)),
        tw.semiring(lambda x, y: x * y, "argmin").text}


def test_a_file_that_cannot_be_written(tmp_path, capsys):
    found = Recorder(tmp_path / "missing" / "shapes.jsonl")
    found.recording(tw.matmul, 0)(A, B)
    found.write()
    assert "cannot be written" in capsys.readouterr().err


def test_arrays_on_a_gpu(tmp_path, monkeypatch):
    """Of any product: what it multiplies is a stand-in."""
    pytest.importorskip("cuda.bindings")
    fake_cuda.install(monkeypatch)
    on = CUDA.driver.device(0)
    a, b, c = (DeviceArray(CUDA, on, shape, np.dtype(dtype))
               for shape, dtype in (((72, 40), "f2"), ((40, 64), "f2"), ((72, 64), "f4")))
    found = Recorder(tmp_path / "shapes.jsonl")
    assert found.recording(lambda a, b: c, 0)(a, b=b) is c
    found.write()
    assert shape_list.read(found.path) == [Listed(tw.Gemm(72, 64, 40, "f16", out="f32"), None, on.target.name)]
