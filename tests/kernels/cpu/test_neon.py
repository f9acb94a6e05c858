"""The same emitters for AArch64: assembled everywhere, and run under qemu where that and a compiler are installed.

    apt-get install qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross     (or ziglang, from PyPI, as the compiler)
"""

from __future__ import annotations

import importlib.util
import shutil
import struct
import subprocess
import sys

import numpy as np
import pytest

from tilewright.compiler import llvm
from tilewright.inspect.resources import functions, hot_loop
from tilewright.kernels.cpu.microkernel import emit_microkernel
from tilewright.kernels.cpu.packing import emit_pack
from tilewright.targets import target

NEON = target("neon")
TYPES = {"f32": np.float32, "f64": np.float64}
MODES = (("packed", "packed"), ("rows", "rows"), ("columns", "masked"))
TILES = ((8, 3), (6, 4), (26, 1), (1, 2))
QEMU = next(filter(None, map(shutil.which, ("qemu-aarch64", "qemu-aarch64-static"))), None)

DRIVER = """
#include <stdio.h>
#include <stdlib.h>
typedef long i64;
%(declarations)s
static void *take(i64 bytes) {
    void *p = aligned_alloc(64, (bytes + 127) / 64 * 64);
    if (bytes && fread(p, 1, bytes, stdin) != bytes) exit(2);
    return p;
}
int main(void) {
    i64 h[12]; double s[2];
    if (fread(h, 8, 12, stdin) != 12 || fread(s, 8, 2, stdin) != 2) return 1;
    char *a = take(h[1]), *b = take(h[2]), *c = take(h[3]);
    switch (h[0]) { %(cases)s default: return 3; }
    return fwrite(c, 1, h[3], stdout) != h[3];
}
"""


def kernels() -> list:
    """(function, C statement that calls it with the numbers h, the scalars s and the arrays a, b, c)"""
    found = []
    for dtype, c_type in (("f32", "float"), ("f64", "double")):
        for mr, nv in TILES:
            for mode in MODES:
                function = emit_microkernel(NEON, dtype, mr, nv, *mode)
                name = function.name
                call = f"{name}(h[4], a, h[5], b, h[6], c, h[7], h[8], s[0], s[1], b, 0)"
                declaration = (f"void {name}(i64, void *, i64, void *, i64, void *, i64, i64, {c_type}, {c_type}, "
                               "void *, i64);")
                found.append((function, declaration, call))
        for kind in ("across", "along", "any"):
            function = emit_pack(NEON, dtype, 8, kind)
            declaration = f"void {function.name}(i64, i64, i64, void *, i64, i64, void *);"
            found.append((function, declaration, f"{function.name}(h[4], h[5], h[6], a, h[7], h[8], c)"))
    return found


@pytest.mark.parametrize(("dtype", "mr", "nv"), [("f32", 8, 3), ("f32", 6, 4), ("f64", 8, 3), ("f64", 12, 2)])
def test_the_hot_loop(dtype, mr, nv):
    """8x12 f32: 24 multiply-adds by lane, 3 vectors of B, 8 elements of A, and no vector on the stack."""
    asm = llvm.assembly(emit_microkernel(NEON, dtype, mr, nv), NEON)
    loop = hot_loop(asm)
    assert (loop.fma, loop.loads, loop.elements, loop.spills) == (mr * nv, nv, mr, 0), loop.text
    assert (".s[" if dtype == "f32" else ".d[") in loop.text, "the elements of A are taken by lane"


def test_every_kernel_assembles():
    emitted = [function for function, _, _ in kernels()]
    code = llvm.object_code(emitted, NEON)
    assert code[:4] == b"\x7fELF"
    assert struct.unpack_from("<H", code, 18) == (183,)         # EM_AARCH64
    assert functions(llvm.assembly(emitted, NEON)) == [function.name for function in emitted]


# ---- run

def compiler() -> list[str] | None:
    found = shutil.which("aarch64-linux-gnu-gcc")
    if found:
        return [found]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-musl"]
    return None


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A function that calls a kernel by name under qemu: run(name, numbers, scalars, a, b, c) → c as it left it."""
    cross = compiler()
    if QEMU is None or cross is None:
        pytest.skip("needs Debian's qemu-user, and gcc-aarch64-linux-gnu with libc6-dev-arm64-cross or PyPI's ziglang")
    folder = tmp_path_factory.mktemp("neon")
    found = kernels()
    cases = "".join(f"case {n}: {call}; break;\n" for n, (_, _, call) in enumerate(found))
    (folder / "main.c").write_text(DRIVER % {"declarations": "\n".join(d for _, d, _ in found), "cases": cases})
    (folder / "kernels.o").write_bytes(llvm.object_code([function for function, _, _ in found], NEON))
    subprocess.run([*cross, "-O1", "-static", "main.c", "kernels.o", "-o", "kernels"], cwd=folder, check=True)
    index = {function.name: n for n, (function, _, _) in enumerate(found)}

    def call(name, numbers, scalars, a, b, c):
        header = [index[name], a.nbytes, b.nbytes, c.nbytes, *numbers]
        sent = struct.pack("<12q2d", *header, *[0] * (12 - len(header)), *scalars) + b"".join(
            x.tobytes() for x in (a, b, c))
        done = subprocess.run([QEMU, folder / "kernels"], input=sent, capture_output=True, timeout=60)
        assert done.returncode == 0, (done.returncode, done.stderr)
        return np.frombuffer(done.stdout, c.dtype).reshape(c.shape)

    return call


def integers(rng, *shape, dtype):
    """Whose products and sums are exact, so that the result is equal and not only close."""
    return rng.integers(-8, 9, shape).astype(dtype)


@pytest.mark.parametrize("mode", MODES, ids="-".join)
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_microkernels_run(run, dtype, tile, mode):
    rng, T = np.random.default_rng(1), TYPES[dtype]
    mr, nv = tile
    v = NEON.lanes(T().itemsize)
    nr = nv * v
    for kc, cols, alpha, beta in ((17, nr, 1, 0), (1, nr - 1, 2, 1), (64, 1, 1, -3), (0, nr, 1, 2)):
        a, b = integers(rng, mr, kc, dtype=T), integers(rng, kc, cols, dtype=T)
        c = integers(rng, mr, nr + 3, dtype=T)
        want = c.copy()
        want[:, :cols] = alpha * (a @ b) + (beta * c[:, :cols] if beta else 0)
        if beta == 0:
            c[:, :cols] = np.nan
        a_sent = np.ascontiguousarray(a if mode[0] == "rows" else a.T)
        b_sent = np.zeros((kc + 1, nr), T)                # the last row lets "rows" read whole vectors
        b_sent[:kc, :cols] = b
        name = f"microkernel_{dtype}_{mr}x{nr}_{mode[0]}_{mode[1]}"
        got = run(name, [kc, kc if mode[0] == "rows" else mr, nr, nr + 3, cols], [alpha, beta], a_sent, b_sent, c)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("kind", ["across", "along", "any"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_packing_runs(run, dtype, kind):
    rng, T = np.random.default_rng(2), TYPES[dtype]
    emitted = emit_pack(NEON, dtype, 8, kind)
    v = NEON.lanes(T().itemsize)
    for valid, kc in ((8, 13), (5, 7), (1, 4)):
        width = -(-valid // v) * v
        source = rng.standard_normal((8, 16)).astype(T)                  # source[i, p], as lines
        stored = np.ascontiguousarray(source.T) if kind == "across" else source
        step_i, step_p = (1, 8) if kind == "across" else (16, 1)
        dst = np.full(kc * width + 64, np.nan, T)
        got = run(emitted.name, [kc, width, valid, step_i, step_p], [0, 0], stored, np.zeros(0, T), dst)
        np.testing.assert_array_equal(got[:kc * width].reshape(kc, width)[:, :valid].T, source[:valid, :kc])
