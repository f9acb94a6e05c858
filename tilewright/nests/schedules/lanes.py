"""`lanes`: threads side by side share the rounds of the loops that a CTA, or a row of its threads, has.

    for i (block.x):                    lanes 32:
      m = -inf                          for i (block.x): for lane < 32 (thread.x):
      for j: m = max with x[i, j]         m = -inf; m_part = -inf
      for j: y[i, j] = x[i, j] - m        for j.o: m_part = max with x[i, 32*j.o + lane]
                                          m_part = max of the threads' m_part, in each of them; m = max with m_part
                                          for j.o: y[i, 32*j.o + lane] = x[i, 32*j.o + lane] - m

Scalars are computed by every thread, elements outside of loops are stored by one of them. Lanes of a warp exchange
partial sums; those of several warps go through shared memory. Rows that several loops read can be held in registers
(held.py).
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator

from tilewright.ir import Type, i32
from tilewright.nests.nest import Access, Term, leaves
from tilewright.nests.polynomial import Polynomial, polynomial
from tilewright.nests.schedules.dependences import dependences
from tilewright.nests.schedules.held import Held, held_rows, over_held
from tilewright.nests.schedules.operations import Done
from tilewright.nests.schedules.partial import REDUCTIONS, identity, in_parts
from tilewright.nests.schedules.scans import BITS, Extremum, Scan, combined, extremum, scan, shared
from tilewright.nests.schedules.scheduled import Illegal, Scheduled
from tilewright.nests.tree import Buffer, Do, For, Node, Sync, When, replaced, rewritten, walk

WARP = 32
UNROLLED = 4            # rounds of a thread that are written as code, so that their loads are on their way together
LANE, OF_WARP, IN_WARP = "lane", "lane.warp", "lane.place"


def lanes(s: Scheduled, threads: int, hold: bool = False) -> Done:
    """Share the rounds of all loops inside of those that are bound among so many threads."""
    if threads % WARP or not WARP <= threads <= 1024:
        raise Illegal(f"lanes are a multiple of {WARP} threads up to 1024, not {threads}")
    around, nodes = list[For](), s.nodes
    while len(nodes) == 1 and isinstance(nodes[0], For) and nodes[0].mark:
        around.append(nodes[0])
        nodes = nodes[0].body
    marks = [x.mark for x in around]
    if not marks or any(not x.startswith("block") and x != "thread.y" for x in marks):
        raise Illegal("lanes share what is inside of CTAs, or of rows of their threads: bind loops to block.x and "
                      f"thread.y before, not to {', '.join(marks) or 'nothing'}")
    if staged := [d.target.array for d, _ in s.statements if s.space(d.target.array) in ("shared", "memory")]:
        raise Illegal(f"{staged[0]} is a buffer of the CTA, to which lanes would write for several rounds at once")
    if threads > WARP and "thread.y" in marks:
        raise Illegal("lanes of several warps are all threads of a CTA: nothing may be bound to thread.y")
    sharing = _Sharing(s, threads)
    loaded = sharing.hold(nodes) if hold else ()
    body = (*loaded, *sharing.nodes(nodes))
    if not sharing.shared:
        raise Illegal("no loop has rounds that threads could share")
    rings = [(OF_WARP, 0, WARP, threads // WARP), (IN_WARP, 0, 1, WARP)] if threads > WARP else []
    rings += [(name, 0, bit, 2) for name, bit in BITS.items()] if sharing.scans else []
    tree: tuple[Node, ...] = (For(LANE, polynomial(0), polynomial(threads), 1, body, around[-1].line, "thread.x",
                                  rings=tuple(rings)),)
    for loop in reversed(around):
        tree = (For(loop.index, loop.start, loop.stop, loop.step, tree, loop.line, loop.mark, loop.below, loop.rings),)
    said = f"lanes: {threads} threads share the rounds of {', '.join(dict.fromkeys(sharing.shared))}"
    if hold:
        arrays = ", ".join(dict.fromkeys(x.row.array for x in sharing.held))
        said += f"; rows of {arrays} are held in registers: only read"
    sums = f"; {', '.join(dict.fromkeys(sharing.sums))} in parts, which are added up in another order"
    return Scheduled(tree, s.arrays, {**s.buffers, **sharing.buffers}), said + sums * bool(sharing.sums)


class _Sharing:
    """Nodes as the threads share them, with the buffers and the names of loops and sums that this takes."""

    def __init__(self, s: Scheduled, threads: int) -> None:
        self.s, self.threads = s, threads
        self.buffers: dict[str, Buffer] = {}
        self.shared, self.sums, self.scans = list[str](), list[str](), False
        self.held = list[Held]()
        self.meet = Sync("warp" if threads == WARP else "cta")
        self.serial = False                         # inside of a loop whose rounds follow each other

    def hold(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        """The copies of rows that are held, with which each thread begins."""
        loops = [n for n in nodes if isinstance(n, For) and not n.mark and self.reduced(n) is not None]
        self.held = held_rows(self.s, loops, self.threads, lambda array, shape: self.buffer(
            f"{array}_row", self.s.element(array), shape, "registers").array)
        if not self.held:
            raise Illegal("no array has a row that several loops read, and that registers can hold")
        return tuple([x.copied(polynomial(LANE)) for x in self.held])

    def nodes(self, nodes: tuple[Node, ...]) -> Iterator[Node]:
        """Every thread comes by here in every round."""
        for node in nodes:
            if isinstance(node, Do):
                yield from self.once(node)
            elif isinstance(node, When):
                yield When(node.conditions, tuple(self.nodes(node.body)))
            elif isinstance(node, For) and not node.mark:
                reduced = self.reduced(node)
                if reduced is not None:
                    yield from self.rounds(node, reduced)
                elif (scanned := scan(self.s, node, self.register)) is not None:
                    yield from self.scanned(node, scanned)
                elif (best := extremum(self.s, node)) is not None:
                    yield from self.extremum(node, best)
                else:
                    yield from self.loop(node)
            else:
                raise Illegal("lanes share loops that no operation but split, reorder and bind has changed")

    def once(self, do: Do) -> Iterator[Node]:
        """A statement outside of shared loops."""
        if self.s.space(do.target.array) == "registers":
            yield do
            return
        yield from self.met((do,), (When((polynomial(0) - polynomial(LANE),), (do,)),))

    def met(self, written: Iterable[Do], nodes: Iterable[Node]) -> Iterator[Node]:
        """Nodes with these statements; threads meet before and after them if others use what they write."""
        def used(d: Do) -> bool:
            users = [x for x, _ in self.s.statements if any(a.array == d.target.array for a, _ in x.accesses())]
            return self.s.space(d.target.array) != "registers" and (self.serial or len(users) > 1 or any(
                a.array == d.target.array for a in leaves(d.value)))
        meet = (self.meet,) if any(map(used, written)) else ()
        yield from (*meet, *nodes, *meet)

    def loop(self, loop: For) -> Iterator[Node]:
        """A loop whose rounds follow each other, with what is inside of it shared."""
        before, self.serial = self.serial, True
        body = tuple(self.nodes(loop.body))
        self.serial = before
        yield For(loop.index, loop.start, loop.stop, loop.step, body, loop.line, below=loop.below)

    def reduced(self, loop: For) -> list[Do] | None:
        """The statements that add up over a loop's rounds; None if those cannot be shared."""
        inside = [n for n, _ in walk((loop,)) if isinstance(n, Do)]
        loops = [n for n, _ in walk((loop,)) if isinstance(n, For)]
        if loop.extent is None or loop.extent < 2 or loop.step != 1 or loop.below or any(x.mark for x in loops):
            return None
        own = {x.index for x in loops}

        def uses(array: str) -> int:
            return sum(a.array == array for d in inside for a in {a for a, _ in d.accesses()})
        sums = [d for d in inside if d.reduce in REDUCTIONS and uses(d.target.array) == 1
                and not own & {x for p in d.target.subscripts for x in p.names}]
        apart = {d.target.array for d in sums}
        for d in dependences(self.s.nodes, self.s.privates()):
            if d.array not in apart and loop.index in d.loops and d.distance(loop.index) != 0:
                return None
        return sums

    def rounds(self, loop: For, sums: list[Do]) -> Iterator[Node]:
        """A loop whose rounds are shared."""
        places = {}
        for d in sums:
            places[id(d)] = access = self.part(d)
            yield Do(access, "", ("number", identity(d.reduce, self.s.element(d.target.array))), d.line)
        body = tuple(rewritten(loop.body, lambda n: (
            Do(places[id(n)], n.reduce, n.value, n.line) if id(n) in places else n,)))
        written = [n for n, _ in walk(loop.body) if isinstance(n, Do) and id(n) not in places]
        yield from self.met(written, self.distributed(loop, body))
        for d in sums:
            yield from self.combined(places[id(d)], d)
            total = tuple(self.once(Do(d.target, d.reduce, ("load", places[id(d)]), d.line)))
            asked = self.asked(loop, d)
            yield from (When(asked, total),) if asked else total

    def asked(self, loop: For, d: Do) -> tuple[Polynomial, ...]:
        """The conditions around a sum that are the same in all rounds: that its element is there, for one."""
        own = {n.index for n, _ in walk((loop,)) if isinstance(n, For)}
        around = next(around for n, around in walk((loop,)) if n is d)
        return tuple([c for x in around if isinstance(x, When) for c in x.conditions if not own & {*c.names}])

    def part(self, d: Do) -> Access:
        """A thread's part of a sum."""
        self.sums.append(d.target.array)
        return self.register("part", d)

    def register(self, what: str, d: Do) -> Access:
        """A new one, for parts of a statement's sums."""
        array = d.target.array
        element = self.buffers[array].element if array in self.buffers else in_parts(self.s, d)
        return self.buffer(f"{array}_{what}", element)

    def buffer(self, base: str, element: Type, shape: tuple[int, ...] = (), space: str = "shared") -> Access:
        """A new register, or memory of this shape."""
        name, n = base, 2
        while name in self.buffers or name in self.s.buffers or name in self.s.arrays:
            name, n = f"{base}{n}", n + 1
        self.buffers[name] = Buffer(shape, space if shape else "registers", element)
        return Access(name, ())

    def extremum(self, loop: For, best: Extremum) -> Iterator[Node]:
        """A loop that looks for an extremum and what belongs to it."""
        line, array = best.do.line, best.best.array
        own = best.best, *best.beside
        place, mask, *flags = (self.buffer(f"{array}_{x}", i32) for x in ("round", "mask", "tie", "later", "taken"))
        others = {x: self.buffer(f"{x.array}_other", self.s.element(x.array)) for x in own}
        others[place] = self.buffer(f"{array}_other_round", i32)
        noted = (Do(mask, "", ("where", best.taken, ("number", 1), ("number", 0)), line),
                 Do(place, "", ("where", ("ne", ("load", mask), ("number", 0)), ("index", polynomial(loop.index)),
                                ("load", place)), line))
        body = tuple(rewritten(loop.body, lambda n: (*noted, n) if n == best.do else (n,)))
        written = [n for n, _ in walk(loop.body) if isinstance(n, Do)]
        yield Do(place, "", ("number", -1), line)
        yield from self.met(written, self.distributed(loop, body))
        registers = (*own, place)
        distance = WARP // 2
        while distance:
            exchanged: list[Term] = [(f"lane_xor{distance}", ("load", x)) for x in registers]
            yield from combined(best, own, place, others.__getitem__, flags, exchanged)
            distance //= 2
        if self.threads == WARP:
            return
        warps = self.threads // WARP
        rooms = [self.buffer(f"{x.array}s", self.buffers[others[x].array].element, (warps,)).array for x in registers]

        def of_warp(room: str, p: Polynomial) -> Access:
            return Access(room, (p,))
        yield When((polynomial(0) - polynomial(IN_WARP),), tuple(
            [Do(of_warp(room, polynomial(OF_WARP)), "", ("load", x), line) for x, room in zip(registers, rooms)]))
        yield self.meet
        for x, room in zip(registers, rooms):
            yield Do(x, "", ("load", of_warp(room, polynomial(0))), line)
        for warp in range(1, warps):
            yield from combined(best, own, place, others.__getitem__, flags,
                                [("load", of_warp(room, polynomial(warp))) for room in rooms])
        yield self.meet

    def scanned(self, loop: For, found: Scan) -> Iterator[Node]:
        """A loop with a running sum."""
        self.scans = True
        self.shared.append(loop.index)
        self.sums.append(found.do.target.array)
        written = [n for n, _ in walk(found.rest) if isinstance(n, Do)]
        nodes = shared(loop, found, self.threads, UNROLLED, (LANE, OF_WARP, IN_WARP), self.register, self.buffers,
                       self.meet)
        yield from self.met(written, (*found.before, *nodes))

    def distributed(self, loop: For, body: tuple[Node, ...]) -> Iterator[Node]:
        """The loop, each thread with every so manieth round."""
        self.shared.append(loop.index)
        if mine := [x for x in self.held if loop.index in x.loops]:
            yield over_held(self.s, loop, body, mine, polynomial(LANE))
            return
        extent, outer = loop.extent or 0, f"{loop.index}.o"
        divides = extent % self.threads == 0
        turns = -(-extent // self.threads)
        unrolled = UNROLLED if divides and turns % UNROLLED == 0 else 1
        turn = polynomial(outer) * unrolled + (polynomial(f"{loop.index}.u") if unrolled > 1 else 0)
        index = loop.start + turn * self.threads + polynomial(LANE)
        body = replaced(body, {loop.index: index})
        if not divides:
            body = (When((loop.stop - 1 - index,), body),)
        if unrolled > 1:
            body = (For(f"{loop.index}.u", polynomial(0), polynomial(unrolled), 1, body, loop.line, "unroll"),)
        yield For(outer, polynomial(0), polynomial(turns // unrolled), 1, body, loop.line)

    def combined(self, part: Access, d: Do) -> Iterator[Node]:
        """The sum of the threads' parts in each of them."""
        mine = ("load", part)
        distance = WARP // 2
        while distance:
            yield Do(part, d.reduce, (f"lane_xor{distance}", mine), d.line)
            distance //= 2
        if self.threads == WARP:
            return
        warps, name = self.threads // WARP, f"{part.array}s"
        self.buffers[name] = Buffer((warps,), "shared", self.buffers[part.array].element)

        def of_warp(p: Polynomial) -> Access:
            return Access(name, (p,))
        yield When((polynomial(0) - polynomial(IN_WARP),), (Do(of_warp(polynomial(OF_WARP)), "", mine, d.line),))
        yield self.meet
        yield Do(part, "", ("load", of_warp(polynomial(0))), d.line)
        for warp in range(1, warps):
            yield Do(part, d.reduce, ("load", of_warp(polynomial(warp))), d.line)
        yield self.meet
