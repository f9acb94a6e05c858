"""What the ranks of a group do in products that exchange rows: steps of two streams each, as data.

A schedule is a list of steps in the order in which the host gives them to the device. Stream COMPUTE is the caller's,
stream COPY brings pieces to other ranks; `Follow` makes one wait for what the other was given before. The same list is
run on GPUs (run.py) and on simulated ones by tests, which look for races.

Memory has names. `rows`, `result` and `partial` are a rank's own; a `landing` is symmetric: others write into it. Each
is so many blocks, one for a rank, which are cut into pieces. Two calls in a row use two slots of landings.

Stream COPY only copies and posts, which copy engines do: a product that has all multiprocessors would hold up a kernel
until it ends. Flags are words of 32 bits, each in the memory of the rank that waits for it, which is 0 or 1. `Post`
writes 1, `Await` waits for 1 and writes 0. `free` says that a rank reads the slot no longer that others write: each
call waits for all of them first, and posts its own when it has read everything. So constants suffice, also in CUDA
graphs that are replayed, and no rank gets ahead of another by more than the slots.
"""

from __future__ import annotations

from typing import NamedTuple

COMPUTE, COPY = 0, 1
FORMS = "pair", "one", "pieces", "stores"
MOST_PIECES = 8


class Part(NamedTuple):
    """Rows of a buffer: of a block, or of all blocks if it is None; a piece of it, or all."""

    buffer: str
    block: int | None
    piece: int | None = None
    rank: int | None = None     # whose landing; None: this rank's own memory


class Flag(NamedTuple):
    name: str                   # "free", "data" or "done"
    block: int
    piece: int = 0


class Multiply(NamedTuple):
    """The product of rows, plus a partial sum, to memory here or of another rank."""

    stream: int
    rows: Part
    to: Part
    plus: Part | None = None


class Copy(NamedTuple):
    stream: int
    source: Part
    to: Part


class Add(NamedTuple):
    """The sum of parts in their order, rounded once."""

    stream: int
    parts: tuple[Part, ...]
    to: Part


class Post(NamedTuple):
    stream: int
    flags: tuple[tuple[int, Flag], ...]     # (rank, flag)


class Await(NamedTuple):
    stream: int
    flags: tuple[Flag, ...]
    senders: tuple[int, ...]                # of each flag


class Follow(NamedTuple):
    """This stream waits for what the other one was given until now."""

    stream: int


Step = Multiply | Copy | Add | Post | Await | Follow


class _Call:
    """The steps of one rank, as they are written down."""

    def __init__(self, rank: int, ranks: int, pieces: int) -> None:
        self.rank, self.ranks, self.pieces = rank, ranks, range(pieces)
        self.steps: list[Step] = []
        # the next ones first, so that at any time ranks write to different ones
        self.after = [(rank + s) % ranks for s in range(1, ranks)]
        self.before = [(rank - s) % ranks for s in range(1, ranks)]

    def enter(self) -> None:
        """Wait until nobody reads this slot."""
        self.wait(COMPUTE, *[Flag("free", peer) for peer in self.after])

    def wait(self, stream: int, *flags: Flag, sender: int | None = None) -> None:
        """For flags of the rank of their block, or of `sender`."""
        self.steps.append(Await(stream, flags, tuple(f.block if sender is None else sender for f in flags)))

    def send(self, source: Part, to: Part, flag: Flag) -> None:
        assert to.rank is not None
        self.steps += [Copy(COPY, source, to), Post(COPY, ((to.rank, flag),))]

    def leave(self) -> list[Step]:
        """This rank has read what landed in its slot, and its copies are done."""
        free = Post(COMPUTE, tuple((peer, Flag("free", self.rank)) for peer in self.after))
        forked = any(step.stream == COPY for step in self.steps)
        return [*self.steps, *[Follow(COMPUTE)]*forked, free]


def gather(form: str, rank: int, ranks: int, pieces: int) -> list[Step]:
    """Rows of all ranks are multiplied: own ones first, those of others as their pieces land; form "one": by one
    product, when all have landed."""
    call, own = _Call(rank, ranks, pieces), rank
    call.enter()
    call.steps.append(Follow(COPY))
    for peer in call.after:
        for piece in call.pieces:
            call.send(Part("rows", 0, piece), Part("landing", own, piece, peer), Flag("data", own, piece))
    if form == "one":
        call.steps.append(Copy(COMPUTE, Part("rows", 0), Part("landing", own, None, own)))
        call.wait(COMPUTE, *[Flag("data", source, piece) for source in call.before for piece in call.pieces])
        call.steps.append(Multiply(COMPUTE, Part("landing", None, None, own), Part("result", None)))
        return call.leave()
    call.steps.append(Multiply(COMPUTE, Part("rows", 0), Part("result", own)))
    for source in call.before:
        for piece in call.pieces:
            call.wait(COMPUTE, Flag("data", source, piece))
            call.steps.append(Multiply(COMPUTE, Part("landing", source, piece, own), Part("result", source, piece)))
    return call.leave()


def _ring(call: _Call, form: str, own: Part, shared: bool = False) -> None:
    """Each block of rows goes around, from the rank after its owner to the owner, and each adds its product to it.

    form    "stores": the kernel writes into the next rank's landing; "pieces": into memory here, which is copied
    shared  the owner sends pieces of its block to all others as they are finished
    """
    rank, ranks = call.rank, call.ranks
    following = (rank + 1) % ranks
    call.enter()
    for step in range(ranks):
        block = (rank - 1 - step) % ranks
        for piece in call.pieces:
            plus = None
            if step:
                plus = Part("landing", step - 1, piece, rank)
                call.wait(COMPUTE, Flag("data", step - 1, piece), sender=(rank - 1) % ranks)
            rows = Part("rows", block, piece)
            if step == ranks - 1:
                mine = Part(own.buffer, own.block, piece)
                call.steps.append(Multiply(COMPUTE, rows, mine, plus))
                if shared:
                    call.steps.append(Follow(COPY))
                    for peer in call.after:
                        call.send(mine, Part("final", rank, piece, peer), Flag("done", rank, piece))
                continue
            landing, flag = Part("landing", step, piece, following), Flag("data", step, piece)
            if form == "stores":
                call.steps += [Multiply(COMPUTE, rows, landing, plus), Post(COMPUTE, ((following, flag),))]
            else:
                here = Part("partial", step, piece)
                call.steps += [Multiply(COMPUTE, rows, here, plus), Follow(COPY)]
                call.send(here, landing, flag)


def scatter(form: str, rank: int, ranks: int, pieces: int) -> list[Step]:
    """The sum over ranks of their products, of which each rank keeps its block of rows; form "one": after one product,
    partial sums are copied to their owners, which add them up in the order of ranks."""
    call = _Call(rank, ranks, pieces)
    if form != "one":
        _ring(call, form, Part("result", 0))
        return call.leave()
    call.enter()
    call.steps += [Multiply(COMPUTE, Part("rows", None), Part("partial", None)), Follow(COPY)]
    for peer in call.after:
        call.send(Part("partial", peer), Part("landing", rank, None, peer), Flag("data", rank))
    call.wait(COMPUTE, *[Flag("data", source) for source in call.before])
    call.steps.append(Add(COMPUTE, tuple(
        Part("partial", rank) if source == rank else Part("landing", source, None, rank) for source in range(ranks)),
        Part("result", 0)))
    return call.leave()


def reduce(form: str, rank: int, ranks: int, pieces: int) -> list[Step]:
    """The sum over ranks of their products, all of it on each rank: as scatter, and each rank sends its block to all
    others; form "one": each sends its whole product to all, and all add up in the order of ranks."""
    call = _Call(rank, ranks, pieces)
    if form == "one":
        call.enter()
        call.steps += [Multiply(COMPUTE, Part("rows", None), Part("partial", None)), Follow(COPY)]
        for peer in call.after:
            call.send(Part("partial", None), Part("whole", rank, None, peer), Flag("data", rank))
        call.wait(COMPUTE, *[Flag("data", source) for source in call.before])
        call.steps.append(Add(COMPUTE, tuple(
            Part("partial", None) if source == rank else Part("whole", source, None, rank) for source in range(ranks)),
            Part("result", None)))
        return call.leave()
    _ring(call, form, Part("result", rank), shared=True)
    for source in call.before:
        for piece in call.pieces:
            call.wait(COMPUTE, Flag("done", source, piece))
            call.steps.append(Copy(COMPUTE, Part("final", source, piece, rank), Part("result", source, piece)))
    return call.leave()


def exchange(form: str, rank: int, ranks: int, pieces: int) -> list[Step]:
    """Each block of rows goes to the rank of its number, is multiplied there, and what became of it comes back."""
    call = _Call(rank, ranks, pieces)
    call.enter()
    call.steps.append(Follow(COPY))
    for peer in call.after:
        call.send(Part("rows", peer), Part("landing", rank, None, peer), Flag("data", rank))
    call.steps.append(Multiply(COMPUTE, Part("rows", rank), Part("result", rank)))
    for source in call.before:
        call.wait(COMPUTE, Flag("data", source))
        call.steps += [Multiply(COMPUTE, Part("landing", source, None, rank), Part("partial", source)), Follow(COPY)]
        call.send(Part("partial", source), Part("final", rank, None, source), Flag("done", rank))
    for peer in call.after:
        call.wait(COMPUTE, Flag("done", peer))
        call.steps.append(Copy(COMPUTE, Part("final", peer, None, rank), Part("result", peer)))
    return call.leave()


MADE = {"gather": gather, "scatter": scatter, "reduce": reduce, "exchange": exchange}


def schedule(kind: str, form: str, rank: int, ranks: int, pieces: int) -> list[Step]:
    """The steps of one rank. kind: one of MADE; form: "one", "pieces" or "stores"."""
    return MADE[kind](form, rank, ranks, pieces)
