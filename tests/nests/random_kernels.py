"""Random small kernels as recorded, taken as loop nests or refused: `python -m tests.nests.random_kernels --count N`.

What is taken runs in the simulator and as a nest, on whole numbers: equal bits. Kernels that the simulator finds at
fault (races, elements outside of arrays) say nothing. `outcome(seed)` is one of taken, refused, fault, different.
"""
from __future__ import annotations

import argparse
import collections
import random
import traceback
from typing import Any

import numpy as np

from tests.nests.interpreter_of_nests import results, source
from tilewright import simulator
from tilewright.ir import Function, Kernel, f16, f32, f64, i8, i32, ptr, vec
from tilewright.ir.program import Op
from tilewright.kernels.elementwise import each
from tilewright.nests.nest import Refused
from tilewright.nests.reading.recorded import nest

SIZE = 2000                     # elements of an array
FORMATS = [(f32, f32)] * 6 + [(f16, f32), (i8, i32), (i32, i32), (f64, f64), (f32, f64)]    # of inputs, of results


class Random:
    """One random kernel."""

    def __init__(self, seed: int) -> None:
        self.r = r = random.Random(seed)
        self.gpu = r.random() < 0.75
        self.shape = (r.choice((1, 2, 3, 4)), r.choice((1, 2, 4))) if self.gpu else (1, 1)
        self.grid = (r.choice((1, 1, 2, 3)), r.choice((1, 1, 2))) if self.gpu else (1, 1)
        self.element, self.wide = r.choice(FORMATS)
        e, w = self.element, self.wide
        number = {"alpha": w} if w.is_float else {}
        self.k = k = Kernel("fuzz", threads=self.shape if self.gpu else None, N=i32, M=i32, **number, A=ptr(e),
                            B=ptr(e), C=ptr(w), D=ptr(w))
        named = dict(zip((name for name, _ in k.function.params), k.args))
        self.N, self.M, self.alpha = named["N"], named["M"], named.get("alpha")
        self.inputs, self.outputs = [named["A"], named["B"]], [named["C"], named["D"]]
        self.indices: list[Any] = []                # indices that are known here, with their most
        self.variables: list[Any] = []
        self.kept: list[Any] = []                   # values read before
        self.depth, self.infinite = 0, False
        self.who: Any = 0                           # of this thread, among all
        if self.gpu:
            (tx, ty), (bx, by) = k.thread, k.block
            x, y = self.shape
            self.tid = tx + ty * x
            self.cta = by * self.grid[0] + bx
            self.who = self.cta * (x * y) + self.tid
            self.indices = [(tx, x), (ty, y), (bx, self.grid[0]), (by, self.grid[1])]

    def record(self) -> Function:
        r = self.r
        if r.random() < 0.05 and self.wide is f32:
            self.rounds()
        elif self.gpu and r.random() < 0.3:
            self.shared()
        elif r.random() < 0.35:
            self.tile()
        elif r.random() < 0.3:
            self.parts()
        else:
            self.block(r.randint(2, 5))
        return self.k.function

    # ---- values

    def index(self) -> Any:
        """A sum of indices, sizes and constants."""
        r, found = self.r, self.k.constant(i32, self.r.choice((0, 0, 1, 2, 3)))
        for x, _ in r.sample(self.indices, min(len(self.indices), r.randint(0, 3))):
            found = found + x * r.choice((1, 1, 2, 3, 4, self.N, self.M))
        if r.random() < 0.08 and self.indices:
            x = r.choice(self.indices)[0]
            found = found + r.choice((lambda: x // 2, lambda: x % 2, lambda: (x * 4 + 1) // 4, lambda: x & 1))()
        return found

    def load(self) -> Any:
        r = self.r
        p = r.choice(self.inputs) if r.random() < 0.9 else r.choice(self.outputs)
        mask = self.order() if r.random() < 0.1 else None
        return self.k.cast(self.k.load(p + self.index(), mask=mask), self.wide)

    def value(self, depth: int = 2) -> Any:
        r, k = self.r, self.k
        if depth == 0 or r.random() < 0.3:
            how = r.random()
            if how < 0.15 and self.variables:
                return r.choice(self.variables).get()
            if how < 0.25 and self.kept:
                return r.choice(self.kept)
            if how < 0.32:
                return k.constant(self.wide, r.choice((0, 1, 2, -1)))
            if how < 0.37 and self.indices:
                return k.cast(r.choice(self.indices)[0], self.wide)
            if how < 0.42 and self.alpha is not None:
                return self.alpha
            return self.load()
        x, y = self.value(depth - 1), self.value(depth - 1)
        how = r.randint(0, 8)
        if how < 5:
            return (x + y, x * y, x - y, x * y, x + y)[how]
        if how == 5:
            return k.fma(x, y, self.value(0))
        if how == 6:
            return r.choice((k.min, k.max))(x, y)
        if how == 7:
            return k.select(self.order() if r.random() < 0.5 else r.choice((x < y, x <= y, x == y, x != y)), x, y)
        return r.choice((k.fmin, k.fmax))(x, y) if self.wide.is_float else abs(x)

    def order(self) -> Any:
        r = self.r
        if not self.indices:
            return self.N < self.M + r.choice((-1, 0, 1))
        x, most = r.choice(self.indices)
        limit = r.choice((self.N, self.M, most - 1, 1, 2))
        found = r.choice((lambda: x < limit, lambda: x <= limit, lambda: x >= limit, lambda: x == limit,
                          lambda: x + 1 < limit, lambda: x != limit))()
        if r.random() < 0.2:
            found = r.choice((lambda a, b: a & b, lambda a, b: a | b))(found, self.order())
        return ~found if r.random() < 0.1 else found

    # ---- statements

    def mine(self) -> Any:
        """An element that no other thread writes, nearly always."""
        r = self.r
        if r.random() < 0.06:
            return self.index()
        found = (self.who if self.gpu else 0) * 16 + self.k.constant(i32, r.randint(0, 3))
        for x, _ in self.indices[4 if self.gpu else 0:]:
            if r.random() < 0.7:
                found = found + x * r.choice((1, 1, 2, 3))
        return found

    def set(self) -> None:
        r, k, x = self.r, self.k, self.r.choice(self.variables)
        how = r.random()
        if how < 0.5:
            x.set(x.get() + self.value() * self.value(1))
        elif how < 0.65:
            x.set(r.choice((k.min, k.max))(x.get(), self.value()))
        elif how < 0.75:
            x.set(x.get() - self.value())
        else:
            x.set(self.value())

    def statement(self) -> None:
        r, k = self.r, self.k
        how = r.random()
        if how < 0.15 or not self.variables:
            self.variables.append(k.variable(self.wide, self.value(1) if r.random() < 0.4 else 0))
        elif how < 0.4:
            self.set()
        elif how < 0.5:
            self.kept.append(r.choice((r.choice(self.variables).get, self.load, lambda: r.choice(self.outputs)[
                self.mine()]))())
        elif how < 0.68 and self.depth < 3:
            self.loop()
        elif how < 0.76 and self.depth < 3:
            self.when()
        elif how < 0.8:
            self.vector()
        else:
            p, at = r.choice(self.outputs), self.mine()
            x = self.value()
            if r.random() < 0.2:
                x = p[at] + x
            k.store(p + at, x, mask=self.order() if r.random() < 0.1 else None)

    def vector(self) -> None:
        k, n, e = self.k, self.r.choice((2, 4)), self.element
        x = k.cast(k.load(self.r.choice(self.inputs) + self.index(), vec(e, n), align=e.bytes), vec(self.wide, n))
        x = self.r.choice((lambda: x + x, lambda: x * k.broadcast(self.value(0), n), lambda: k.shuffle(x, x, [1] * n),
                           lambda: k.pack(*(x[e] for e in reversed(range(n))))))()
        if self.r.random() < 0.3 and self.variables:
            self.r.choice(self.variables).set(k.sum(x))
        else:
            mask = k.lanes_below(self.N - 2, n) if self.r.random() < 0.2 else None
            k.store(self.r.choice(self.outputs) + self.mine() * 4, x, align=self.wide.bytes, mask=mask)

    def inner(self, count: int) -> None:
        variables, kept, indices = len(self.variables), len(self.kept), len(self.indices)
        self.depth += 1
        self.block(count)
        self.depth -= 1
        del self.variables[variables:], self.kept[kept:], self.indices[indices:]

    def loop(self) -> None:
        r = self.r
        start = r.choice((0, 0, 0, 1))
        outer = r.choice(self.indices)[0] if self.indices and r.random() < 0.2 else 0
        stop = r.choice((self.N, self.M, 2, 3, self.N - 1))
        if r.random() < 0.2:
            stop = self.k.min(self.N, outer + 2)
        kept, variables, indices = len(self.kept), len(self.variables), len(self.indices)
        with self.k.loop(stop, start=start if r.random() < 0.8 else self.k.constant(i32, 0) + outer,
                         step=r.choice((1, 1, 1, 2))) as i:
            self.indices.append((i, 5))
            self.inner(r.randint(1, 3))
        del self.kept[kept:], self.variables[variables:], self.indices[indices:]

    def when(self) -> None:
        condition = self.order() if self.r.random() < 0.8 else self.value(1) < self.value(1)
        with self.k.when(condition):
            self.inner(self.r.randint(1, 2))
        if self.r.random() < 0.25:
            with self.k.otherwise():
                self.inner(1)

    def block(self, count: int) -> None:
        for _ in range(count):
            self.statement()
        if self.variables and self.r.random() < 0.6:
            self.r.choice(self.outputs)[self.mine()] = self.r.choice(self.variables).get()

    # ---- patterns

    def rounds(self) -> None:
        with each(self.k, self.k.cast(self.N * self.M, i32)) as i:
            x, y = self.k.cast(self.inputs[0][i], self.wide), self.outputs[0][i]
            self.outputs[0][i] = self.r.choice((lambda: self.alpha * x + y, lambda: self.k.max(x, 0),
                                                lambda: x * y + self.outputs[1][i]))()

    def tile(self) -> None:
        """A register tile, its loop over k, and stores, with guards and slips."""
        r, k = self.r, self.k
        rows, cols, guarded, unrolled = r.choice((1, 2, 3)), r.choice((1, 2, 4)), r.random() < 0.4, r.random() < 0.3
        i0, j0 = (self.indices[n][0] for n in (1, 0)) if self.gpu else (k.constant(i32, 0), k.constant(i32, 1))
        i0, j0 = (i0 + self.indices[3][0] * self.shape[1]) * rows if self.gpu else i0, (
            j0 + self.indices[2][0] * self.shape[0]) * cols if self.gpu else j0
        if r.random() < 0.3:
            i0, j0 = j0, i0
        a, b, c = self.inputs[0].view(self.N, 1), self.inputs[1].view(self.M, 1), self.outputs[0].view(48, 1)
        if r.random() < 0.2:
            a = self.inputs[0].view(1, self.N)
        acc = k.tile(rows, cols, self.wide, zero=r.random() < 0.9)
        order = [(x, y) for x in range(rows) for y in range(cols)]
        if r.random() < 0.1:
            r.shuffle(order)
        scale, registers, self.infinite = r.choice((1, 1, 2)), r.random() < 0.2, guarded and r.random() < 0.5
        bare = r.random() < 0.3
        a_tile, b_tile = k.tile(rows, 1, self.wide), k.tile(1, cols, self.wide)

        def update(p: Any) -> None:
            def of(pointer: Any, at: Any, inside: Any) -> Any:
                return k.cast(k.load(pointer.at(*at), mask=inside if guarded else None), self.wide)
            if r.random() < 0.02:
                self.outputs[1][(self.who if self.gpu else 0) * 16 + k.constant(i32, 1)] = acc[0, 0]
            av = [of(a, (i0 + x * scale, p), (i0 + x * scale < self.M) & (p < self.N)) for x in range(rows)]
            bv = [of(b, (p, j0 + y), (j0 + y < self.M) & (p < self.N)) for y in range(cols)]
            if registers:
                for x, y in order:
                    a_tile[x, 0], b_tile[0, y] = av[x], bv[y]
                av, bv = [a_tile[x, 0] for x in range(rows)], [b_tile[0, y] for y in range(cols)]
            for x, y in order:
                acc[x, y] = k.fma(av[x], bv[y], acc[x, y]) if r.random() < 0.99 else acc[x, y] + av[x]
        if unrolled:
            with k.loop(self.N, step=2) as p0:
                for p in range(2):
                    update(p0 + p)
        elif r.random() < 0.2:
            for x, y in order:
                with k.loop(self.N) as p:
                    acc[x, y] = acc[x, y] + k.cast(a[i0 + x, p], self.wide) * k.cast(b[p, j0 + y], self.wide)
        else:
            with k.loop(self.N) as p:
                update(p)
        if r.random() < 0.2:
            self.kept = [acc[0, 0]]
            self.variables = []
        for x, y in order:
            at = c.at(i0 + x * scale, j0 + y)
            value = acc[x, y] if r.random() < 0.97 else self.value(1)
            if r.random() < 0.15:
                value = value + k.load(at)
            if guarded and not bare:
                with k.when((i0 + x * scale < self.M) & (j0 + y < self.M)):
                    k.store(at, value)
            else:
                k.store(at, value)

    def parts(self) -> None:
        """Registers side by side, with elements that are read and written around them, in the same order or not."""
        r, k, n = self.r, self.k, self.r.choice((2, 3, 4))
        mine = (self.who if self.gpu else 0) * 16 + k.constant(i32, 0)
        acc, p = [k.variable(self.wide, r.choice((0, 0, 1))) for _ in range(n)], r.choice(self.outputs)
        step, same, form = r.choice((1, 2)), r.random() < 0.8, r.randint(0, 5)
        if form == 5:
            copies = [k.variable(self.wide, p[mine + x]) for x in range(n)]
            for x in range(n):
                p[mine + (x * step if same else r.randint(0, 3))] = copies[x].get() + k.constant(self.wide, 1)
        q = p if r.random() < 0.7 else r.choice(self.outputs)
        with k.loop(r.choice((self.N, 2, 3))) as i:
            for x in r.sample(range(n), n) if r.random() < 0.1 else range(n):
                shift = x * step if same else r.randint(0, 3)
                acc[x].set(acc[x].get() + (q[mine + i + shift] if form < 3 else q[mine + shift]))
                if form in (0, 3):
                    p[mine + i + shift + r.choice((0, 0, 1))] = acc[x].get()
            if form == 1:
                for x in range(n):
                    p[mine + x] = acc[x].get() + k.constant(self.wide, 2)
        for x in range(n):
            value = acc[x].get()
            if form == 2:
                value = value + q[mine + (x * step if same else r.randint(0, 3))]
            p[mine + x * step + r.choice((0, 0, 0, 1))] = value

    def shared(self) -> None:
        """A buffer that the CTA fills together, barriers, and reads, with slips."""
        r, k, threads = self.r, self.k, self.shape[0] * self.shape[1]
        turns, columns = r.choice((1, 2, 3)), r.choice((1, 2, 4))
        size = threads * turns
        rows = -(-size // columns)
        pad = r.choice((0, 0, 1))
        buffer = k.smem("S", (rows + 1, columns + pad), self.wide if r.random() < 0.7 else self.element)
        held = buffer.type.element
        transposed = r.random() < 0.2
        base = self.indices[3][0] * 5 + self.indices[2][0] * 2
        variable, stages = k.variable(self.wide, 0), r.random() < 0.6
        masked, stride, place_of = r.randint(0, 3), r.choice((self.N, self.N, 3)), r.randint(0, 4)
        split = r.random() < 0.6
        sideways, straight = r.random() < 0.1, r.random() < 0.95

        def fetch(j: Any, at: Any) -> None:
            e = self.tid * turns + j if sideways else self.tid + j * threads
            row, column = e // columns, e % columns
            source = self.inputs[0] + base + at + row * stride + column
            mask = (lambda: None, lambda: None, lambda: row < self.N, lambda: at + column < self.N)[masked]()
            x = k.cast(k.load(source, mask=mask) if straight else self.value(0), held)
            if transposed and rows == columns + pad:
                row, column = column, row
            buffer[row, column] = x

        def use(q: Any) -> None:
            place = (lambda: self.indices[0][0] + q, lambda: self.indices[1][0] * columns + q,
                     lambda: self.tid + q, lambda: (self.tid + q) % size, lambda: q)[place_of]()
            row, column = (place // columns, place % columns) if split else (0, place)
            x = k.cast(buffer[row, column], self.wide)
            variable.set(variable.get() + x * (self.value(0) if r.random() < 0.5 else x))

        def over(count: int, body: Any, *more: Any) -> None:
            if r.random() < 0.5:
                with k.loop(count) as j:
                    body(j, *more)
            else:
                for j in range(count):
                    body(j, *more)

        def stage(at: Any) -> None:
            if r.random() < 0.9:
                k.barrier()
            over(turns, fetch, at)
            if r.random() < 0.93:
                k.barrier()
            over(r.choice((1, 2, columns)), use)
        if stages:
            with k.loop(self.N, step=r.choice((1, 2))) as p:
                stage(p)
        else:
            stage(k.constant(i32, 1))
        self.variables = [variable]
        self.outputs[0][self.mine()] = variable.get()


def arguments(seed: int, kernel: Random) -> list[Any]:
    rng = np.random.default_rng(seed)
    n, m = (int(x) for x in rng.integers(0, 6, 2))
    number = [float(rng.integers(-2, 3))] if kernel.alpha is not None else []
    arrays = [rng.integers(-2, 3, SIZE).astype(t.numpy) for t in (kernel.element,) * 2 + (kernel.wide,) * 2]
    if kernel.infinite and kernel.element.is_float:
        for x in arrays[:2]:
            x[rng.integers(0, 40, 8)] = np.inf
    return [n, m, *number, *arrays]


def outcome(seed: int) -> tuple[str, str]:
    """(what became of the kernel of this seed, why)."""
    kernel = Random(seed)
    function = kernel.record()
    try:
        found = nest(function, kernel.grid)
    except Refused as e:
        return "refused", e.args[0].split("\n")[0].partition(": ")[2]
    given = arguments(seed, kernel)
    by_kernel = [x.copy() if isinstance(x, np.ndarray) else x for x in given]
    try:
        with np.errstate(all="ignore"):
            simulator.run(function, *by_kernel, grid=kernel.grid if kernel.gpu else None)
    except simulator.Fault as e:
        return "fault", str(e).split("\n")[0]
    try:
        by_nest = results(found, given)
    except IndexError:
        return "different", f"{traceback.format_exc()}\n{found}\n{source(found)}"

    def same(results: list[Any]) -> bool:
        return all(np.array_equal(x, y, equal_nan=True) for x, y in zip(results, by_nest) if isinstance(x, np.ndarray))
    if not any(isinstance(x, Op) and x.operation.name == "barrier" for x in function.walk()):
        if not same(results(found, given, backwards=True)):
            return "fault", "a race within a warp, whose order the simulator knows"
    if same(by_kernel):
        return "taken", "rolled" if any(x.index.startswith("u") for s in found.statements for x in s.loops) else ""
    if any(x.dtype.kind == "f" and (np.abs(x[np.isfinite(x)]) > 1 << 22).any() for x in by_kernel
           if isinstance(x, np.ndarray)):
        return "fault", "numbers grow until they are rounded, in the order of operations"
    return "different", f"{found}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.nests.random_kernels")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    outcomes: collections.Counter[str] = collections.Counter()
    reasons: collections.Counter[str] = collections.Counter()
    for seed in range(options.seed, options.seed + options.count):
        try:
            what, why = outcome(seed)
        except Exception:
            what, why = "error", traceback.format_exc()
        outcomes[what] += 1
        if what in ("different", "error"):
            print(f"seed {seed}: {what}\n{why}\n", flush=True)
        else:
            reasons[f"{what}: {why}"[:110]] += 1
    for reason, count in reasons.most_common(40):
        print(f"{count:6} {reason}")
    print(dict(outcomes))
    return 1 if outcomes["different"] or outcomes["error"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
