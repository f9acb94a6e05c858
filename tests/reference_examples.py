"""Examples of docs/reference.md by name, in its order; they run in one namespace, after FIRST."""

from __future__ import annotations

FIRST = """\
import numpy as np
import tilewright as tw

draw = np.random.default_rng(0)
a, b = draw.standard_normal((6, 64), np.float32), draw.standard_normal((64, 4), np.float32)
x, one = np.array([[-1], [0.25], [4]], np.float32), np.ones((1, 1), np.float32)     # x @ one is x
"""

UNARY = ("relu", "sigmoid", "silu", "gelu", "exp", "tanh", "erf")

EXAMPLES = {
    "matmul": """\
c = tw.matmul(a, b)
print(c.shape, np.allclose(c, a @ b, atol=1e-5))
print(tw.matmul(a.astype(np.int8), b.astype(np.int8), out_dtype="i32").dtype)
y = tw.matmul(a, b, epilogue=lambda acc, bias: tw.relu(acc + bias), operands={"bias": np.ones(4, np.float32)})
print(y.min())
""",
    "gemm": """\
c = np.ones((6, 4), np.float32)
tw.gemm(2.0, a, b, -1.0, c)              # C = 2 A B - C
print(np.allclose(c, 2 * (a @ b) - 1, atol=1e-5))
""",
    "grouped_matmul": """\
experts = draw.standard_normal((3, 64, 4), np.float32)
y = tw.grouped_matmul(a, experts, [2, 2, 6])     # rows 0, 1 use the first matrix, none the second
print(np.allclose(y[2:], a[2:] @ experts[2], atol=1e-5))
""",
    "einsum": """\
print(tw.einsum("ik,kj->ji", a, b).shape, np.allclose(tw.einsum("ik,kj->ji", a, b), (a @ b).T, atol=1e-5))
""",
    "tensordot": """\
t = draw.standard_normal((3, 4, 5), np.float32)
print(tw.tensordot(t, t, ([1, 2], [1, 2])).shape)
""",
    "contract": """\
points = np.array([[0, 0], [3, 4]], np.float32)
print(tw.contract(lambda p, q: (p - q)**2, points, points.T))       # squared distances
""",
    "attention": """\
q, k, v = draw.standard_normal((3, 2, 8, 100, 64), np.float32)       # [sequences, heads, tokens, size]
print(tw.attention(q, k, v, causal=True, window=(64, 0), bias=lambda score, i, j, head: score - (i - j) * 0.1).shape)
""",
    "Reduction": """\
k = 64
variance = tw.Reduction((0.0, 0.0), step=lambda s, t, p: (s[0] + t, s[1] + t*t),
                        combine=lambda x, y: (x[0] + y[0], x[1] + y[1]),
                        result=lambda s: (s[1] - s[0]*s[0]/k) / k)
v = tw.contract(lambda x, y: x * y, a, b, reduce=variance)
print(np.allclose(v[0, 0], np.var(a[0] * b[:, 0]), rtol=1e-4))
""",
    "semiring": """\
shortest = tw.semiring(lambda x, y: x + y, reduce="min")
print(tw.plan(tw.Gemm(300, 300, 300, semiring=shortest), "zen4", threads=1))
""",
    "pack": """\
weights = tw.pack(b)                     # once
print(np.allclose(tw.matmul(a, weights), a @ b, atol=1e-5))         # many times
""",
    "Packed": """\
print(weights.shape, weights.dtype)
""",
    "PackedWeights": """\
few = tw.pack(tw.quantize(draw.standard_normal((32, 64), np.float32), "i4", group=32).T)
print(type(few).__name__, few.shape, few.nbytes, tw.matmul(a, few).shape)
""",
    "epilogue": """\
half = tw.epilogue(lambda acc, s: acc * s, s="scalar")
print(np.allclose(tw.matmul(a, b, epilogue=half, operands={"s": 0.5}), 0.5 * (a @ b), atol=1e-5))
""",
    "prologue": """\
y = tw.matmul(a, b, prologue_a=lambda x: tw.relu(x))
print(np.allclose(y, np.maximum(a, 0) @ b, atol=1e-5))
""",
    "pairs": """\
def swiglu(acc):
    gate, up = tw.pairs(acc)
    return tw.silu(gate) * up

print(tw.matmul(a, b, epilogue=swiglu).shape)
""",
    "where": """\
print(tw.matmul(x, one, epilogue=lambda acc: tw.where(acc > 0, acc, 0.5 * acc)).T)
""",
    "minimum": """\
print(tw.matmul(x, one, epilogue=lambda acc: tw.minimum(acc, 1)).T)
""",
    "maximum": """\
print(tw.matmul(x, one, epilogue=lambda acc: tw.maximum(acc, 1)).T)
""",
    "clamp": """\
print(tw.matmul(x, one, epilogue=lambda acc: tw.clamp(acc, 0, 1)).T)
""",
    **{name: f"print(tw.matmul(x, one, epilogue=lambda acc: tw.{name}(acc)).T.round(3))\n" for name in UNARY},
    "log": """\
print(tw.matmul(x, one, epilogue=lambda acc: tw.log(abs(acc))).T.round(3))
""",
    "sqrt": """\
print(tw.matmul(x, one, epilogue=lambda acc: tw.sqrt(abs(acc))).T)
""",
    "popcount": """\
bits = np.array([[0b1011], [0b0001]], np.int32)
print(tw.contract(lambda p, q: tw.popcount(p ^ q), bits, bits.T))   # Hamming distance
""",
    **{f"{axis}_{how}": f"print(tw.matmul(x, x.T, epilogue=lambda acc: (acc, tw.{axis}_{how}(acc)))[1])\n"
       for axis in ("row", "column") for how in ("sum", "max", "min", "amax", "argmax", "argmin")},
    "quantize": """\
q = tw.quantize(b, "i8", axis=-2)        # a scale for each column
print(q.elements.dtype, q.scales.shape, abs(tw.dequantize(q) - b).max() < 0.02)
""",
    "dequantize": """\
print(abs(tw.matmul(a, q) - a @ tw.dequantize(q)).max() < 1e-4)
""",
    "Quantized": """\
blocks = tw.quantize(a, "mxfp8")         # blocks of 32 along the last axis
print(blocks.shape, blocks.elements.shape, blocks.scales.shape)
""",
    "Scaled": """\
print(type(q).__name__, q.format.name, q.shape, q.nbytes)
""",
    "Attention": """\
problem = tw.Attention.parse("1x32x4096x128 bf16 kv_heads=8 causal")
print(problem.group, problem.flops, tw.plan(problem, "sm_90a"))
""",
    "Gemm": """\
problem = tw.Gemm(1000, 600, 800, "bf16", out="f32")
print(problem.flops, round(problem.intensity), problem.sums)
""",
    "detect": """\
print(tw.detect().name == tw.detect("cpu").name)
""",
    "target": """\
print(tw.target("h200").name, tw.target("zen4").name, tw.target("avx2").registers)
""",
    "plan": """\
print(tw.plan(tw.Gemm(1000, 600, 800), "zen4", threads=1))
""",
    "compile": """\
kernel = tw.compile(tw.Gemm(6, 4, 64), "x86-avx2")
print("vfmadd" in kernel.asm)
""",
    "explain": """\
print(str(tw.explain(tw.Gemm(1000, 600, 800), "zen4", threads=1)).splitlines()[0])
""",
    "Explanation": """\
why = tw.explain(tw.Gemm(4096, 4096, 4096), "h200")
print(why.title, [level.name for level in why.levels])
""",
    "einsum_path": """\
order, how = tw.einsum_path("ij,jk,kl->il", np.empty((9, 8)), np.empty((8, 7)), np.empty((7, 6)))
print(order)
""",
    "simulate": """\
report = tw.simulate(tw.compile(tw.Gemm(6, 4, 64), "zen4"), a, b)
print(np.allclose(report.result, a @ b, atol=1e-5), report.flops)
""",
    "kernel": """\
from tilewright.ir import Kernel, f32, i64, ptr
from tilewright.kernels.elementwise import each

@tw.kernel
def double(threads=None):
    k = Kernel("double", threads=threads, n=i64, x=ptr(f32))
    n, x = k.args
    with each(k, n) as i:
        x[i] = x[i] + x[i]
    return k.function

numbers = np.arange(4, dtype=np.float32)
double(4, numbers)
print(numbers)
""",
    "loops": """\
@tw.loops
def prefix_sums(x):
    for i in range(1, x.shape[0]):
        x[i] += x[i - 1]

numbers = np.ones(4, np.float32)
prefix_sums(numbers)
print(numbers)
""",
    "optimize": """\
def product(x, y, z):
    for i in range(x.shape[0]):
        for j in range(y.shape[1]):
            z[i, j] = 0
            for p in range(x.shape[1]):
                z[i, j] += x[i, p] * y[p, j]

fast = tw.optimize(product, a, b, c)
fast(a, b, c)
print(np.allclose(c, a @ b, atol=1e-5))
""",
    "Optimized": """\
print(fast.recognised, *fast.problems)
""",
    "schedule": """\
c[:] = 0
s = tw.schedule(product, a, b, c)
print(s)
""",
    "Schedule": """\
s = s.split("j", 2)
s.check()                                # in the simulator, to the bit
print(s.history[-1])
""",
    "tune": """\
@tw.kernel(THREADS=(64, 128), grid=lambda x, THREADS: x.size // THREADS)
def negate(THREADS=128):
    k = Kernel("negate", threads=THREADS, x=ptr(f32))
    i = k.block[0] * THREADS + k.thread[0]
    (x,) = k.args
    x[i] = 0.0 - x[i]
    return k.function

found = tw.tune(negate, np.ones(1024, np.float32), target="sm_80")      # without that GPU it ranks by the model
print(sorted(found.best))
""",
    "build": """\
tw.build([tw.Gemm(6, 4, 64)], "products.bundle", "x86-avx2", threads=1, workers=1)
""",
    "load": """\
weights.save("weights.packed")
print(tw.load("weights.packed").shape)
""",
    "threads": """\
with tw.threads(1):
    print(tw.get_num_threads())
""",
    "set_num_threads": """\
tw.set_num_threads(1)
print(tw.get_num_threads())
tw.set_num_threads(None)                 # the default again
""",
    "get_num_threads": """\
print(tw.get_num_threads() >= 1)
""",
}
