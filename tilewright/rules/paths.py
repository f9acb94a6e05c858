"""In which order the operands of einsum are multiplied, two at a time.

A path is a list of pairs: positions in the list of operands, which leave it, and what comes of them is appended; the
paths of numpy.einsum_path and opt_einsum are such lists, too. The best one is found for up to `MOST_OPTIMAL` operands
by dynamic programming over subsets (R. Pfeifer, J. Haegeman and F. Verstraete, "Faster identification of optimal
contraction sequences for tensor networks", Phys. Rev. E 90, 2014); above, in each step the pair is taken whose product
takes the least memory beyond that of its operands. opt_einsum's searches, if it is installed, take its place, and that
of "greedy".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.util import find_spec
from itertools import combinations
from math import inf, prod
from typing import Any

from tilewright.rules.subscripts import Label, Labels, Terms, resolve

Path = list[tuple[int, ...]]

MOST_OPTIMAL = 8        # operands; the number of splits of subsets is 3^8
NAMES = ("greedy", "optimal")
TRAFFIC = 16            # multiply-adds in the time that an element of an intermediate result takes to be written, read


@lru_cache(maxsize=1024)
def _resolved(labels: tuple[Labels, ...], output: Labels | None, of: tuple[tuple[int, ...], ...],
              optimize: Any) -> tuple[Terms, Path]:
    terms = resolve(labels, output, of)
    return terms, chosen(optimize, terms)


def check_given(optimize: Any, operands: int, invariant: str) -> None:
    """ValueError if the sizes of axes decide the order of products that must not depend on them."""
    if invariant == "rows" and operands > 2 and (isinstance(optimize, str) or optimize is True):
        raise ValueError(f"optimize must be False or a path with batch_invariant=True and {operands} operands, not "
                         f"{optimize!r}, by which sizes decide the order of products")


def resolved(labels: Sequence[Any], output: Any, of: Sequence[tuple[int, ...]], optimize: Any) -> tuple[Terms, Path]:
    """Terms and path, found once for calls alike."""
    if isinstance(optimize, (list, tuple)):
        optimize = tuple(tuple(step) if isinstance(step, list) else step for step in optimize)
    return _resolved(tuple(map(tuple, labels)), None if output is None else tuple(output), tuple(of), optimize)


def chosen(optimize: Any, terms: Terms) -> Path:
    """The path that `optimize` of einsum asks for. TypeError and ValueError for what einsum does not take."""
    count = len(terms.inputs)
    if isinstance(optimize, (list, tuple)) and not (len(optimize) == 2 and optimize[0] in NAMES):
        return _given(optimize[1:] if optimize and optimize[0] == "einsum_path" else optimize, count)
    limit = inf                                 # of elements of a product in between
    if isinstance(optimize, (list, tuple)):
        optimize, limit = optimize[0], inf if optimize[1] is None else optimize[1]
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit > 0:
            raise ValueError(f"optimize must be (name, the most elements of a product in between), not {limit!r}")
    if not (optimize is True or optimize is False or optimize in NAMES):
        raise ValueError(f"optimize must be True, False, 'greedy', 'optimal' or a path, not {optimize!r}")
    if count <= 2 or optimize is False:
        return [(0,)] if count == 1 else [(0, 1), *[(0, at) for at in range(count - 2, 0, -1)]]
    inputs = [frozenset(term) for term in terms.inputs]
    output = frozenset(terms.output)
    if optimize != "greedy" and count <= MOST_OPTIMAL:
        return optimal(inputs, output, terms.sizes, limit)
    if _has_opt_einsum() and limit == inf:
        from opt_einsum import paths

        search = {True: paths.auto, "greedy": paths.greedy, "optimal": paths.optimal}[optimize]
        return [tuple(step) for step in search(inputs, output, terms.sizes)]
    return (optimal if optimize == "optimal" else greedy)(inputs, output, terms.sizes, limit)


@cache
def _has_opt_einsum() -> bool:
    return find_spec("opt_einsum") is not None


def _given(path: Sequence[Any], count: int) -> Path:
    left, steps = count, Path()
    for step in path:
        positions = tuple(step) if isinstance(step, (list, tuple)) else ()
        if not positions or len(set(positions)) < len(positions) or not all(
                isinstance(at, int) and 0 <= at < left for at in positions):
            raise ValueError(f"optimize is a path with the step {step!r}, and a step must be different positions "
                             f"among the {left} operands that are left")
        left += 1 - len(positions)
        steps.append(positions)
    if left != 1:
        raise ValueError(f"optimize is a path that leaves {left} of {count} operands; it must leave one")
    return steps


class _Bits:
    """Sets of labels as the bits of a number, and the sizes of arrays with them, each computed once."""

    def __init__(self, sizes: dict[Label, int]) -> None:
        self.sizes = [*sizes.values()]
        self.bit = {label: 1 << at for at, label in enumerate(sizes)}
        self.known: dict[int, int] = {}

    def set(self, labels: frozenset[Label]) -> int:
        return sum(self.bit[label] for label in labels)

    def size(self, labels: int) -> int:
        if (elements := self.known.get(labels)) is None:
            elements = self.known[labels] = prod(size for at, size in enumerate(self.sizes) if labels >> at & 1)
        return elements


def _none_within(limit: float) -> ValueError:
    return ValueError(f"optimize must allow larger products in between: there is no path whose products have at most "
                      f"{limit:g} elements")


def optimal(inputs: Sequence[frozenset[Label]], output: frozenset[Label], sizes: dict[Label, int], limit: float = inf
            ) -> Path:
    """The path of the fewest operations; an element of an intermediate result counts as TRAFFIC of them. ValueError if
    none has intermediate results of at most `limit` elements."""
    count, bits = len(inputs), _Bits(sizes)
    everything = (1 << count) - 1
    size, known, terms = bits.size, bits.known, [*map(bits.set, inputs)]
    within = [0] * (everything + 1)             # subset → labels of its operands
    for subset in range(1, everything + 1):
        within[subset] = within[subset & (subset - 1)] | terms[(subset & -subset).bit_length() - 1]
    out = bits.set(output)
    kept = [labels & (within[everything ^ subset] | out) if subset & (subset - 1) else labels  # those of its product
            for subset, labels in enumerate(within)]
    best: dict[int, tuple[float, int]] = {1 << i: (0.0, 0) for i in range(count)}
    for subset in sorted(range(1, everything + 1), key=int.bit_count):
        lowest, part = subset & -subset, (subset - 1) & subset
        if not part or (subset != everything and size(kept[subset]) > limit):
            continue
        least, made = (inf, 0), TRAFFIC * size(kept[subset])
        while part:
            if part & lowest and part in best and subset ^ part in best:        # each split once
                rest = subset ^ part
                labels = kept[part] | kept[rest]
                work = (known.get(labels) or size(labels)) + made
                least = min(least, (best[part][0] + best[rest][0] + work, part))
            part = (part - 1) & subset
        if least[1]:
            best[subset] = least
    if everything not in best:
        raise _none_within(limit)
    path, order = Path(), [1 << i for i in range(count)]

    def take(subset: int) -> None:
        part = best[subset][1]
        if not part:
            return
        take(part)
        take(subset ^ part)
        pair = tuple(sorted((order.index(part), order.index(subset ^ part))))
        for at in reversed(pair):
            order.pop(at)
        order.append(subset)
        path.append(pair)

    take(everything)
    return path


def greedy(inputs: Sequence[frozenset[Label]], output: frozenset[Label], sizes: dict[Label, int], limit: float = inf
           ) -> Path:
    """In each step the pair whose product exceeds its operands in size by the least, of these that of the fewest
    operations; pairs without a common label last. ValueError if a step has none of at most `limit` elements."""
    bits, path = _Bits(sizes), Path()
    out, terms = bits.set(output), dict(enumerate(map(bits.set, inputs)))
    # What a pair keeps does not depend on what is done before: a label of it that others have stays with one of them.
    known: dict[tuple[int, int], tuple[bool, int, int, tuple[int, int], int]] = {}

    def look(i: int, j: int) -> None:
        rest, together = out, terms[i] | terms[j]
        for at, labels in terms.items():
            rest |= labels if at not in (i, j) else 0
        kept = together & rest
        growth = bits.size(kept) - bits.size(terms[i]) - bits.size(terms[j])
        known[i, j] = not terms[i] & terms[j], growth, bits.size(together), (i, j), kept

    for i, j in combinations(terms, 2):
        look(i, j)
    for new in range(len(inputs), 2 * len(inputs) - 1):
        pairs = [x for x in known.values() if len(terms) == 2 or bits.size(x[-1]) <= limit]
        if not pairs:
            raise _none_within(limit)
        *_, pair, kept = min(pairs)
        order = [*terms]
        path.append((order.index(pair[0]), order.index(pair[1])))
        known = {at: x for at, x in known.items() if at[0] not in pair and at[1] not in pair}
        del terms[pair[0]], terms[pair[1]]
        terms[new] = kept
        for at in order:
            if at in terms:
                look(at, new)
    return path
