"""How a GPU runs unscheduled loops: which of them its CTAs and threads share, whatever the sizes, `steps(nest, nodes)`.

Rounds of a loop are independent if no element, and no scalar, that one of them writes is accessed by another one. Up to
three such loops, one directly inside the other, share the rounds among the threads of the grid; all else is done in
order by each of these threads: a launch. Where only loops further inside are independent, the host goes through the
rounds of those around them, with launches for each.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.nests.nest import Access, LoopNest
from tilewright.nests.polynomial import Polynomial
from tilewright.nests.tree import Do, For, Node, When, rewritten, walk

THREADS = {1: (256, 1), 2: (32, 8), 3: (32, 8)}         # of a CTA, by how many loops share the rounds


@dataclass(frozen=True)
class Part:
    """What one launch does. `nest`: with the indices of the host's loops among its sizes; `said`: a sentence for each
    loop that stays in order."""
    nest: LoopNest
    nodes: tuple[Node, ...]
    threads: tuple[int, int]
    said: tuple[str, ...]

    @property
    def shared(self) -> list[For]:
        return [x for x, _ in walk(self.nodes) if isinstance(x, For) and x.mark]


@dataclass(frozen=True)
class Rounds:
    """What the host does in each round of a loop. `alone`: all of it, by one thread."""
    loop: For
    steps: tuple[Part | Rounds, ...]
    alone: Part


def steps(nest: LoopNest, nodes: Sequence[Node], same: Mapping[str, str], fastest: Mapping[str, int]
          ) -> tuple[Part | Rounds, ...]:
    """What is done, in this order.

    same        names of arrays that are another one, by another name
    fastest     the axis along which elements are closest in memory, of each array
    """
    return tuple([_step(nest, part, same, fastest) for part in _parts(nest, nodes)])


def _step(nest: LoopNest, part: tuple[Node, ...], same: Mapping[str, str], fastest: Mapping[str, int]) -> Part | Rounds:
    node = part[0]
    if len(part) > 1 or isinstance(node, Do):
        why = ("all loops: a variable carries a value from one to the next",) if len(part) > 1 else ()
        return Part(nest, part, (1, 1), why)
    spread = _spread(nest, node, same, fastest)
    if not spread.shared and isinstance(node, For):
        body = steps(replace(nest, sizes=(*nest.sizes, node.index)), node.body, same, fastest)
        if any(_shares(x) for x in body) and all(_private(x, y.nodes) for y in _launches(body)
                                                  for x in _scalars(nest, y.nodes)):
            return Rounds(node, body, spread)
    return spread


def vectors(nest: LoopNest, nodes: Sequence[Node], units: Mapping[str, tuple[bool, ...]]) -> tuple[Node, ...]:
    """The nodes, with the mark "each" on loops for a CPU's vectors: the outermost whose rounds are independent, and
    access elements that are the same or consecutive. `units`: the axes along which elements of an array are."""
    bounds = {x.index: x for x, _ in walk(tuple(nodes)) if isinstance(x, For)}

    def consecutive(loop: For, a: Access) -> bool | None:
        """Whether elements are; None for others that are not the same."""
        along = [(x.coefficient(loop.index), unit) for x, unit in zip(a.subscripts, units.get(a.array, ()))
                 if loop.index in x.names]
        return (along == [(1, True)] or None) if along else False

    def marked(nodes: Sequence[Node], fixed: set[str]) -> tuple[Node, ...]:
        loops = list[Node]()
        for x in nodes:
            if isinstance(x, For):
                accesses = [consecutive(x, a) for d in _statements(x.body) for a, _ in d.accesses()]
                inside = any(x.index in y.start.names | y.stop.names for y, _ in walk(x.body) if isinstance(y, For))
                if x.step == 1 and True in accesses and None not in accesses and not inside and not _carries(
                        x, nest, fixed, bounds, {}):
                    x = replace(x, mark="each")
                else:
                    x = replace(x, body=marked(x.body, fixed | {x.index}))
            loops.append(x)
        return tuple(loops)
    return marked(nodes, set(nest.sizes))


def _shares(step: Part | Rounds) -> bool:
    return bool(step.shared) if isinstance(step, Part) else any(map(_shares, step.steps))


def _launches(found: Sequence[Part | Rounds]) -> Iterator[Part]:
    for x in found:
        yield from [x] if isinstance(x, Part) else _launches(x.steps)


def _parts(nest: LoopNest, nodes: Sequence[Node]) -> list[tuple[Node, ...]]:
    """The nodes, those together that share a scalar: each part can run when the one before is over."""
    parts: list[tuple[Node, ...]] = []
    for node in nodes:
        parts.append((node,))
        scalars = _scalars(nest, (node,))
        for n, part in enumerate(parts[:-1]):
            if scalars & _scalars(nest, part):
                parts[n:] = [tuple([x for part in parts[n:] for x in part])]
                break
    return parts


def _scalars(nest: LoopNest, nodes: Sequence[Node]) -> set[str]:
    return {a.array for d in _statements(nodes) for a, _ in d.accesses()} & nest.scalars.keys()


def _statements(nodes: Sequence[Node]) -> Iterator[Do]:
    return (node for node, _ in walk(tuple(nodes)) if isinstance(node, Do))


def _spread(nest: LoopNest, node: Node, same: Mapping[str, str], fastest: Mapping[str, int]) -> Part:
    """The node with marks where loops share their rounds."""
    bounds = {x.index: x for x, _ in walk((node,)) if isinstance(x, For)}
    loops, why = list[For](), list[str]()
    fixed = set(nest.sizes)
    for loop in _chain(node):
        reason = _carries(loop, nest, fixed, bounds, same)
        if reason:
            why.append(f"{loop.index}: {reason}")
        else:
            loops.append(loop)
            fixed.add(loop.index)
    chosen = _chosen(loops, fastest, set(nest.sizes))
    marks = {x.index: f"grid.{axis}" for x, axis in zip(chosen, "xyz")}
    why += [f"{x.index}: three other loops are shared already" for x in loops if x not in chosen]

    def marked(x: Node) -> tuple[Node, ...]:
        return (replace(x, mark=marks.get(x.index, x.mark)) if isinstance(x, For) else x,)
    return Part(nest, rewritten((node,), marked), THREADS.get(len(chosen), (1, 1)), tuple(why))


def _chain(node: Node) -> list[For]:
    """Loops that hold nothing but the next one."""
    chain = list[For]()
    while isinstance(node, (For, When)):
        if isinstance(node, For):
            chain.append(node)
        if len(node.body) != 1:
            break
        node = node.body[0]
    return chain


def _chosen(found: list[For], fastest: Mapping[str, int], sizes: set[str]) -> list[For]:
    """Up to three: first the innermost one whose rounds write consecutive elements, then the outermost. Where one
    starts is the same for all rounds of a loop that is not chosen, so that an element is one thread's."""
    def consecutive(loop: For) -> int:
        return sum(d.target.subscripts[fastest.get(d.target.array, -1)].coefficient(loop.index) in (1, -1)
                   for d in _statements(loop.body) if d.target.subscripts)
    while True:
        order = sorted(found, key=consecutive)[-1:]
        order += [x for x in found if x not in order][:2]
        indices = {x.index for x in order}
        bad = [x for x in order if not x.start.names <= sizes | indices]
        if not bad:
            return order
        found = [x for x in found if x not in bad]


def _carries(loop: For, nest: LoopNest, fixed: set[str], bounds: Mapping[str, For], same: Mapping[str, str]) -> str:
    """Why rounds of the loop are not independent, "" if they are. `fixed`: names that are the same for all accesses of
    an element."""
    for x in sorted(_scalars(nest, loop.body)):
        if not _private(x, loop.body):
            return f"{x} carries a value from round to round"
    accesses = [(a, w, d) for d in _statements(loop.body) for a, w in d.accesses() if a.array not in nest.scalars]
    for a, written, d in accesses:
        for b, _, _ in accesses if written else ():
            if same.get(a.array, a.array) == same.get(b.array, b.array) and not _apart(a, b, loop, fixed, bounds):
                return f"{a} of {d.line} may be {b} of another round" if a != b else f"rounds may share {a} of {d.line}"
    return ""


def _apart(a: Access, b: Access, loop: For, fixed: set[str], bounds: Mapping[str, For]) -> bool:
    """Whether different rounds access different elements: along some axis, the others' spread is less than a step."""
    for x, y in zip(a.subscripts, b.subscripts):
        c = x.coefficient(loop.index)
        if not c or y.coefficient(loop.index) != c:
            continue
        least = most = 0
        x, y = (p - Polynomial([((loop.index,), c)]) for p in (x, y))
        known = [Polynomial([t for t in p.terms if set(t[0]) <= fixed]) for p in (x, y)]
        constant = (known[0] - known[1]).constant
        ranges = [_range(p - q, bounds) for p, q in zip((x, y), known)]
        if constant is None or ranges[0] is None or ranges[1] is None:
            continue
        least, most = constant + ranges[0][0] - ranges[1][1], constant + ranges[0][1] - ranges[1][0]
        if max(abs(least), abs(most)) < abs(c) * loop.step:
            return True
    return False


def _range(p: Polynomial, bounds: Mapping[str, For]) -> tuple[int, int] | None:
    """The least and the largest value of a sum of indices whose bounds are numbers."""
    least = most = 0
    for names, c in p.terms:
        loop = bounds.get(names[0]) if len(names) == 1 else None
        first = loop.start.constant if loop else None
        if loop is None or first is None or not loop.extent:
            return None
        ends = c * first, c * (first + (loop.extent - 1) * loop.step)
        least, most = least + min(ends), most + max(ends)
    return least, most


def _private(scalar: str, nodes: Sequence[Node]) -> bool:
    """Whether each time round, a value is assigned before one is used."""
    def known(nodes: Sequence[Node], before: bool) -> tuple[bool, bool]:
        """(whether no use comes first, whether one is assigned after them)"""
        for node in nodes:
            if isinstance(node, Do):
                for a, written in node.accesses():
                    if a.array == scalar and not written and not before:
                        return False, before
                before = before or node.target.array == scalar
            elif isinstance(node, (For, When)) and not known(node.body, before)[0]:
                return False, before
        return True, before
    return known(nodes, False)[0]
