"""Kernels in a file: what is built is what runs, without a compiler, and nothing else is believed."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tilewright as tw
from tests.helpers.command_line import call, refused
from tests.helpers.processes import printed
from tilewright import shape_list
from tilewright.compiled import bundles
from tilewright.compiler import bundle
from tilewright.compiler.bundle import Chosen, Index, Piece, Product, Refused, Target
from tilewright.plans import gpu, gpu_lowering
from tilewright.plans.measured import choice

CODES = b"first piece" * 9, b"PTX" * 50 + b"machine"
INDEX = Index(
    tw.__version__, "", (), Target("sm_90a", "nvptx64"), {"date": "2026-01-01"},
    (Piece("('one', 1)", 0, 0, 0), Piece("('two', 2)", 0, 0, 0, 7)),
    (Product("gemm", {"m": 1, "n": 2, "k": 3}, 1, (Chosen(("f32", 1, 2, 3, "rows", "rows", 1), "a plan", True),)),),
)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "kernels.twk"
    path.write_bytes(bundle.packed(INDEX, CODES))
    return path


@pytest.fixture(autouse=True)
def none_in_use(monkeypatch):
    monkeypatch.setattr(bundle, "used", [])


def test_what_is_packed_is_unpacked(file):
    found = bundle.Bundle(file)
    assert found.code("('one', 1)") == (CODES[0], b"")
    assert found.code("('two', 2)") == (CODES[1][:-7], b"machine")
    assert found.code("('three', 3)") is None
    assert found.index.products == INDEX.products
    assert found.index.target == INDEX.target


def test_every_changed_byte_is_noticed(file):
    content = file.read_bytes()
    for at in (*range(70), *range(70, len(content), 7)):
        file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(Refused, match=r"no bundle|version|truncated|written to|damaged"):
            bundle.Bundle(file)


def test_every_missing_byte_is_noticed(file):
    content = file.read_bytes()
    for size in (*range(70), *range(70, len(content), 7)):
        file.write_bytes(content[:size])
        with pytest.raises(Refused, match="truncated" if size > len(bundle.FILE.magic) + 1 else "no bundle"):
            bundle.Bundle(file)
    file.write_bytes(content + b"x")
    with pytest.raises(Refused, match="has been written to"):
        bundle.Bundle(file)


def test_another_version_of_the_file(file):
    file.write_bytes(file.read_bytes().replace(b"bundle 1\n", b"bundle 9\n", 1))
    with pytest.raises(Refused, match="is a bundle of version 9, and this tilewright reads version 1: build it again"):
        bundle.Bundle(file)


@pytest.mark.parametrize("wrong", [
    {"pieces": (Piece("k", 0, 0, 0, 500), INDEX.pieces[1])},
    {"modules": "text"},
    {"made": 3},
    {"products": (Product("gemm", {}, 1, ()),)},
])
def test_an_index_that_says_what_cannot_be(file, wrong):
    """With a checksum that is right, but not written by `build`."""
    file.write_bytes(bundle.packed(replace(INDEX, **wrong), CODES))
    with pytest.raises(Refused, match="damaged"):
        bundle.Bundle(file)


def test_code_of_another_size_than_the_index_says(file, monkeypatch):
    monkeypatch.setattr(bundle.zlib, "compress", lambda code, level: bundle.zlib.compressobj().flush())
    file.write_bytes(bundle.packed(INDEX, CODES))
    with pytest.raises(Refused, match="has not the 99 bytes of its index"):
        bundle.Bundle(file).code("('one', 1)")


def test_a_plan_that_is_none(tmp_path, monkeypatch):
    here = tw.detect()
    monkeypatch.setattr(bundles.sources, "digest", lambda *modules: "")
    path = tmp_path / "kernels.twk"
    path.write_bytes(bundle.packed(replace(INDEX, target=Target(here.name, here.code_key)), CODES))
    with pytest.raises(Refused, match=r"has a plan that is none: not a plan: 'a plan'"):
        tw.load(path)
    assert not bundle.used


def test_another_tilewright(file, monkeypatch):
    with pytest.raises(Refused, match=r"was built from other sources of tilewright .* build it again"):
        tw.load(file)
    monkeypatch.setattr(bundles, "__version__", "9.9")
    with pytest.raises(Refused, match=rf"was built by tilewright {tw.__version__}: build it again with this one, 9\.9"):
        tw.load(file)
    assert not bundle.used


@pytest.mark.parametrize(("target", "says"), [
    (Target("x86-avx9", ""), "is for x86-avx9, a target that this tilewright has not"),
    (Target("x86-avx2", "", ("avx2", "fma-of-tomorrow")), r"is for x86-avx2, and this processor \(.*\) lacks fma-of"),
    (Target("x86-avx2", "another"), "with TILEWRIGHT_TARGET=x86-avx2 it would use it"),
])
def test_another_target(file, target, says):
    with pytest.raises(Refused, match=says):
        bundles._target(file, target)


def test_a_processor_with_other_extensions_is_warned_of(file):
    """Its plans for words are others, and would not be found."""
    here = tw.detect()
    assert bundles._target(file, Target(here.name, here.code_key)) is here
    with pytest.warns(RuntimeWarning, match=r"is for a processor with avx512vnni, amx-fp64, and this one has .* anew"):
        bundles._target(file, Target(here.name, here.code_key, (), ("avx512vnni", "amx-fp64")))


def test_a_gpu_that_is_not_here(tmp_path):
    built = tw.build([tw.Gemm(64, 32, 16)], tmp_path / "kernels.twk", "sm_75", workers=1)
    assert built.names == ("gemm_f32_nn_64x32x16",)
    with pytest.raises(RuntimeError, match="sm_75 code cannot run on this machine"):
        tw.load(built.path)


def test_its_plans_come_first(monkeypatch):
    target = tw.target("sm_86")
    shape = gpu_lowering.multiplied_shape(tw.Gemm(512, 512, 512), target)
    other = gpu.ranked(shape, target)[1]
    used = type("Used", (), {"index": replace(INDEX, target=Target("sm_86", "")),
                             "plans": {shape.key: Chosen(shape.key, str(other), False)}})
    assert choice.chosen(shape, target) == (gpu.choose(shape, target), "")
    monkeypatch.setattr(bundle, "used", [used])
    assert choice.chosen(shape, target) == (other, choice.PACKED)
    assert choice.best(shape, target) == other
    assert choice.chosen(shape._replace(m=513), target)[0] == gpu.choose(shape._replace(m=513), target)


PRODUCTS = """
import sys
sys.modules["llvmlite"] = None          # an import of it fails
import numpy as np
import tilewright as tw
kernels = tw.load({path!r})
rng = np.random.default_rng(0)
for threads in 1, 2:
    tw.set_num_threads(threads)
    for problem in {problems!r}:
        m, n, k, kind, layout, batch = problem
        a, b = (rng.integers(-4, 5, (*([batch] if batch > 1 else []), *shape)).astype(kind)
                for shape in ((m, k), (n, k) if layout == "nt" else (k, n)))
        b = b.swapaxes(-1, -2) if layout == "nt" else b
        for _ in range(3):              # Python's way, the builtin's, and a repeated call
            assert (tw.matmul(a, b) == np.matmul(a, b)).all(), problem
        assert (tw.matmul(a, b, alpha=2, beta=1, c=tw.matmul(a, b)) == 3 * np.matmul(a, b)).all(), problem
    name = kernels.names[-1]
    x = np.ones((30, 40), np.float32), np.ones((40, 20), np.float32)
    assert (kernels["gemm_f32_nn_30x20x40_t1"](*x) == 40).all()
try:
    kernels["nothing"]
except KeyError as error:
    assert "gemm_f32_nn_30x20x40_t1" in str(error), error
print(len(kernels), *sorted(name for name in sys.modules if "tilewright.ir" in name))
"""


def test_a_cpus_products_without_llvm(tmp_path):
    problems = [(30, 20, 40, "f4", "nn", 1), (300, 260, 280, "f4", "nt", 1), (33, 17, 20, "f8", "nn", 3)]
    formats = {"f4": "f32", "f8": "f64"}
    gemms = [tw.Gemm(m, n, k, formats[kind], layout=layout, batch=batch) for m, n, k, kind, layout, batch in problems]
    path = tmp_path / "kernels.twk"
    tw.build(gemms, path, threads=[1, 2], workers=1)
    cache = tmp_path / "cache"
    script = PRODUCTS.format(path=str(path), problems=problems)
    assert printed(script, TILEWRIGHT_CACHE_DIR=str(cache)).split() == ["6"]
    assert not cache.exists(), "something was compiled"


ATTENTION = """
import sys
sys.modules["llvmlite"] = None          # an import of it fails
import numpy as np
import tilewright as tw
kernels = tw.load({path!r})
tw.set_num_threads(1)
for problem, causal in ((tw.Attention.parse(text), "causal" in text) for text in {texts!r}):
    q, k = (np.ones((1, h, n, problem.size), np.float32) for h, n in (
        (problem.heads, problem.queries), (problem.kv_heads, problem.keys)))
    for _ in range(2):
        assert abs(tw.attention(q, k, k, causal=causal) - 1).max() < 1e-5, problem
    if not causal:
        assert abs(kernels[str(problem) + "_t1"](q, k, k) - 1).max() < 1e-5, problem
print(len(kernels), *sorted(name for name in sys.modules if "tilewright.ir" in name))
"""


def test_a_cpus_attention_without_llvm(tmp_path):
    """What a program called is recorded, built into a bundle, and runs without a compiler."""
    texts, path = ("1x4x30x16 f32 keys=70 causal", "1x4x1x16 f32 keys=90 kv_heads=2"), tmp_path / "kernels.twk"
    shapes = tmp_path / "shapes.jsonl"
    calls = "import numpy as np, tilewright as tw; tw.set_num_threads(1)\n" + "\n".join(
        f"q, k = np.ones({(1, p.heads, p.queries, p.size)}, 'f4'), np.ones({(1, p.kv_heads, p.keys, p.size)}, 'f4')\n"
        f"tw.attention(q, k, k, causal={'causal' in str(p)})" for p in map(tw.Attention.parse, texts))
    printed(calls, TILEWRIGHT_RECORD=str(shapes))
    assert {str(each.problem) for each in shape_list.read(shapes)} == {*texts}
    tw.build(shapes, path, workers=1)
    cache = tmp_path / "cache"
    script = ATTENTION.format(path=str(path), texts=texts)
    assert printed(script, TILEWRIGHT_CACHE_DIR=str(cache)).split() == ["2"]
    assert not cache.exists(), "something was compiled"


def test_attention_for_a_gpu(tmp_path):
    built = tw.build([tw.Attention.parse("1x2x70x64 bf16")], tmp_path / "kernels.twk", "sm_90a", workers=1)
    assert built.names == ("1x2x70x64 bf16",)
    found = bundle.Bundle(built.path)
    assert [chosen.plan.split()[0] for chosen in found.plans.values()] == ["attention_wgmma"]
    assert any("kernels.nvidia.attention:emit_attention" in piece.key for piece in found.index.pieces)


def test_what_cannot_be_built(tmp_path):
    path = tmp_path / "kernels.twk"
    with pytest.raises(ValueError, match="nothing to build for sm_75: gemm_f32_nn_0x1x1: the product is empty"):
        tw.build([tw.Gemm(0, 1, 1)], path, "sm_75")
    with pytest.raises(ValueError, match="threads is for CPUs, and sm_75 is a GPU: it must be None, not 2"):
        tw.build([tw.Gemm(1, 1, 1)], path, "sm_75", threads=2)
    with pytest.raises(ValueError, match="threads must be positive whole numbers, not 0"):
        tw.build([tw.Gemm(1, 1, 1)], path, threads=0)
    assert not path.exists()


def test_the_command_line(tmp_path):
    shapes, path = tmp_path / "shapes.jsonl", tmp_path / "kernels.twk"
    shapes.write_text('{"m": 20, "n": 20, "k": 20}\n{"m": 20, "n": 20, "k": 20, "a": "bf16", "target": "sm_75"}\n')
    built = call("build", shapes, "-o", path, "--threads", "1", "--workers", "1")
    assert "1 product" in built.stdout
    assert "left out: gemm_bf16-bf16-f32_nn_20x20x20: it was called on sm_75" in " ".join(built.stdout.split())
    listed = call("build", "--list", path).stdout
    assert "gemm_f32_nn_20x20x20_t1" in listed
    assert "the model's" in listed
    for wrong, says in (((), "give SHAPES"), ((shapes,), "give SHAPES"), ((shapes, "--list", path), "takes no SHAPES"),
                        ((shapes, "-o", tmp_path), "it is a directory"), (("--list", shapes), "is no bundle")):
        assert says in refused("build", *wrong)
