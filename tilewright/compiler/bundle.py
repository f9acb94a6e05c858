"""Bundles: the code and the plans of many products in one file, which a process without a compiler uses.

A file (checked_file.py) has an `Index` and code, one piece after the other, each compressed by zlib.

A piece is what the kernel cache keeps of the same code (artefact.py): the manifests before a GPU's code, or a CPU's
object; and beside PTX the machine code of it, where there was an assembler. Nothing in the file is run or believed
before its size and its checksum are right.

`use` puts a bundle in front of the kernel cache (`code`) and of the tuning results (`plan`), the last one used first.
"""
from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tilewright.compiler.checked_file import Kind, Refused, believed, check

FILE = Kind("bundle", 1, "bundle", "`tilewright build`", "build it again")
MOST_BYTES = 1 << 30                            # of a piece, unpacked
KEY = (str, int, int, int, str, str, int)       # of a Shape's or a GpuShape's key: format, m, n, k, orders, threads
KINDS: dict[str, dict[str, Any]] = {            # of the fields of what the index lists
    "index": {"tilewright": str, "sources": str, "modules": list[str], "target": dict, "made": dict[str, str],
              "pieces": list, "products": list},
    "target": {"name": str, "code": str, "needs": list[str], "extensions": list[str]},
    "piece": {"key": str, "at": int, "stored": int, "size": int, "machine": int},
    "product": {"name": str, "problem": dict, "threads": int, "plans": list},
    "plan": {"key": list[str | int], "plan": str, "measured": bool}}


@dataclass(frozen=True)
class Piece:
    """Code under the text of its key in the cache: `stored` bytes of the file, `at` so many behind the index, which
    unpack to `size`. Of those the last `machine` are an assembler's, for the text before them."""
    key: str
    at: int
    stored: int
    size: int
    machine: int = 0


class Chosen(NamedTuple):
    """The plan for a shape, by the shape's key; whether it was measured to be the fastest, or a model's choice."""
    key: tuple[Any, ...]
    plan: str
    measured: bool


@dataclass(frozen=True)
class Product:
    """A problem in the bundle: the fields of its Gemm, the threads that its call may use (1 on a GPU), the plan that it
    runs by, and those of products that stand in for it."""
    name: str
    problem: dict[str, Any]
    threads: int
    plans: tuple[Chosen, ...]


@dataclass(frozen=True)
class Target:
    """What the code is for: the target's name and code_key; of a CPU the flags of /proc/cpuinfo that the code may use,
    and the extensions that kernels were chosen for, by LLVM's names."""
    name: str
    code: str
    needs: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Index:
    """`sources` is compiler.sources.digest of the emitters' `modules`; `made`: when, where and with what."""
    tilewright: str
    sources: str
    modules: tuple[str, ...]
    target: Target
    made: dict[str, str]
    pieces: tuple[Piece, ...]
    products: tuple[Product, ...]


# ---- the file

def packed(index: Index, codes: Sequence[bytes]) -> bytes:
    """The file's content. The pieces of `index` get their places and sizes from `codes`, in their order."""
    stored = [zlib.compress(code, 9) for code in codes]
    pieces, at = [], 0
    for piece, code, short in zip(index.pieces, codes, stored, strict=True):
        pieces.append(asdict(piece) | {"at": at, "stored": len(short), "size": len(code)})
        at += len(short)
    products = [asdict(x) | {"plans": [chosen._asdict() for chosen in x.plans]} for x in index.products]
    return FILE.content(asdict(index) | {"pieces": pieces, "products": products}, b"".join(stored))


class Bundle:
    """A file's content, verified."""

    def __init__(self, path: Path) -> None:
        """OSError if it cannot be read; Refused if it is no bundle, or not whole, or of another version."""
        self.path, (index, self._codes) = path, FILE.read(path)
        with believed(path):
            self.index = _index(index)
        self._found = {piece.key: piece for piece in self.index.pieces}
        for piece in self.index.pieces:
            if piece.at + piece.stored > len(self._codes) or piece.machine > piece.size or not piece.size:
                raise Refused(f"{path} is damaged: the code of {piece.key} is not inside it")
        self.plans = {chosen.key: chosen for product in self.index.products for chosen in product.plans}

    def code(self, key: str) -> tuple[bytes, bytes] | None:
        """What the cache has under this key, and machine code for it, b"" if there is none; None: it is not here."""
        piece = self._found.get(key)
        if piece is None:
            return None
        unpacking = zlib.decompressobj()
        code = unpacking.decompress(self._codes[piece.at:piece.at + piece.stored], piece.size)
        if len(code) != piece.size or not unpacking.eof:
            raise Refused(f"{self.path} is damaged: the code of {key} has not the {piece.size:,} bytes of its index")
        return code[:len(code) - piece.machine], code[len(code) - piece.machine:]


def _index(found: Any) -> Index:
    """ValueError for what is not as `KINDS` says."""
    _check("index", found)
    of = _checked("target", found["target"])
    target = Target(of["name"], of["code"], tuple(of["needs"]), tuple(of["extensions"]))
    pieces = tuple(Piece(**_checked("piece", row)) for row in found["pieces"])
    products = []
    for row in found["products"]:
        plans = tuple(Chosen(tuple(chosen["key"]), chosen["plan"], chosen["measured"])
                      for chosen in (_checked("plan", x) for x in _checked("product", row)["plans"]))
        if not plans:
            raise ValueError(f"the product {row['name']} has no plan")
        if odd := [chosen.key for chosen in plans if tuple(map(type, chosen.key)) != KEY]:
            raise ValueError(f"{odd[0]} is no shape's key")
        products.append(Product(row["name"], row["problem"], row["threads"], plans))
    return Index(found["tilewright"], found["sources"], tuple(found["modules"]), target, found["made"], pieces,
                 tuple(products))


def _checked(kind: str, found: Any) -> dict[str, Any]:
    _check(kind, found)
    return dict(found)


def _check(kind: str, found: Any) -> None:
    check(found, KINDS[kind], kind)
    for name, value in found.items():
        if type(value) is int and not 0 <= value <= MOST_BYTES:
            raise ValueError(f"{name} of a {kind} must be from 0 to {MOST_BYTES:,}, and is {value}")


# ---- those in use

used: list[Bundle] = []


def use(found: Bundle) -> None:
    """Answer from this bundle first."""
    used.insert(0, found)


def code(key: tuple[Any, ...]) -> tuple[bytes, bytes] | None:
    """What a bundle in use has under this key of artefact.py: see Bundle.code."""
    if not used:
        return None
    text = repr(key)
    return next((piece for bundle in used if (piece := bundle.code(text)) is not None), None)


def plan(target: str, key: tuple[Any, ...]) -> Chosen | None:
    """The plan that a bundle in use has for a shape of this key on the target of this name."""
    return next((x.plans[key] for x in used if x.index.target.name == target and key in x.plans), None)


def plans(target: str) -> dict[tuple[Any, ...], str]:
    """All of them, by the keys of their shapes."""
    plan_by_key: dict[tuple[Any, ...], str] = {}
    for bundle in reversed(used):
        if bundle.index.target.name == target:
            plan_by_key |= {key: chosen.plan for key, chosen in bundle.plans.items()}
    return plan_by_key
