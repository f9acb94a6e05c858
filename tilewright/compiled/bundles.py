"""`tilewright.load`: a bundle (compiler/bundle.py) put to use in this process, and its kernels by name.

Nothing is recorded, lowered or compiled, and no plan is chosen: loading takes milliseconds. A GPU's code is given to
the driver by the first product that needs it.
"""
from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tilewright import __version__, forks, targets
from tilewright.attention_problem import Attention
from tilewright.compiled import compile as compiling, packed_weights
from tilewright.compiler import bundle, checked_file, sources
from tilewright.compiler.checked_file import PANELS, Refused
from tilewright.plans import asked, gpu
from tilewright.problem import Gemm
from tilewright.runtime.cpu import amx
from tilewright.targets import CpuTarget, machine
from tilewright.text import plural

OURS = re.compile(r"tilewright(\.[a-z0-9_]+)+")         # modules whose sources are compared; no other is looked for


class Bundle:
    """Kernels and plans that tilewright.matmul uses from now on. `bundle[name]` is the kernel of that name, as
    tilewright.compile gives it; `names` are all, `path` is the file and `target` this machine's record."""

    def __init__(self, path: Path, content: bundle.Bundle, target: Any) -> None:
        self.path, self.target, self.made = path, target, dict(content.index.made)
        self._products = {product.name: product for product in content.index.products}

    @property
    def names(self) -> list[str]:
        return [*self._products]

    def __getitem__(self, name: str) -> Any:
        """KeyError, with the names that there are, for another."""
        if name not in self._products:
            raise KeyError(f"{self.path} has no kernel {name!r}; it has: {', '.join(self.names)}")
        product = self._products[name]
        return compiling.compile(problem_of(product.problem), self.target, product.plans[0].plan)

    def __iter__(self) -> Iterator[str]:
        return iter(self._products)

    def __len__(self) -> int:
        return len(self._products)

    def __contains__(self, name: object) -> bool:
        return name in self._products

    def __repr__(self) -> str:
        return f"<Bundle {self.path}: {plural(len(self), 'product')} on {self.target.name}>"


def problem_of(fields: dict[str, Any]) -> Gemm | Attention:
    """The problem with these fields."""
    return Attention(**fields) if "heads" in fields else Gemm(**fields)


def load(path: str | os.PathLike[str]) -> Any:
    """Use the kernels and plans of a file that tilewright.build or `tilewright build` wrote; or read a packed operand
    that its `save` wrote, which is returned.

    From now on tilewright.matmul and gemm use its plans and its code for its products, before tuning results and the
    kernel cache. Nothing is compiled for them, and LLVM is not loaded (on CPUs: on x86-64). Other products are planned
    and compiled as before. If several bundles have a product, the one loaded last is used.

    Like a shared library a bundle is machine code, which runs with all rights of the process: load only bundles that
    you trust. The checksum says that the file is complete, not who made it.

    OSError if the file cannot be read. ValueError with the reason for a file that is no bundle, is damaged, has
    another version of the format or of tilewright, or is for another target. RuntimeError if this machine has no such
    GPU.
    """
    place = Path(path)
    kind = checked_file.kind_of(place)
    if kind == packed_weights.FILE.name:
        return packed_weights.load(place)
    if kind == PANELS:
        return forks.imported("tilewright.runtime.cpu.packed").load(place)
    with forks.building:
        content = bundle.Bundle(place)
        _check_version(place, content.index)
        loaded = Bundle(place, content, _target(place, content.index.target))
        with checked_file.believed(place):
            _check_products(place, content, loaded.target)
        bundle.use(content)
        _forget()
        return loaded


def _check_version(path: Path, index: bundle.Index) -> None:
    """Code and what calls it belong together: the sources of both must be those that it was built from."""
    again = f"build it again with this one, {__version__}"
    if index.tilewright != __version__:
        raise Refused(f"{path} was built by tilewright {index.tilewright}: {again}")
    if not all(OURS.fullmatch(str(name)) for name in index.modules) or sources.digest(*index.modules) != index.sources:
        raise Refused(f"{path} was built from other sources of tilewright {__version__} than these: {again}")


def _check_products(path: Path, content: bundle.Bundle, target: Any) -> None:
    """Refuse a bundle whose problems or plans cannot be read. Whether a plan can run a shape is judged at its use."""
    for product in content.index.products:
        problem_of(product.problem)
    try:
        for text in content.plans.values():
            asked.plan(text.plan, target, None)
    except ValueError as error:
        raise Refused(f"{path} has a plan that is none: {error}") from None


def _target(path: Path, wanted: bundle.Target) -> Any:
    """This machine's record for the target. Refused or RuntimeError if it has none."""
    try:
        known = targets.target(wanted.name)
    except ValueError:
        raise Refused(f"{path} is for {wanted.name}, a target that this tilewright has not") from None
    if not isinstance(known, CpuTarget):
        from tilewright.runtime.gpu.engine import first_device
        engine, on = first_device(known)
        for name in (engine.compiler, "tilewright.api.products", gpu.planner(on.target).__name__):
            forks.imported(name)                        # what a first product would import
        if on.target.code_key != wanted.code:
            raise Refused(f"{path} is for {wanted.code}, and {on.name} takes {on.target.code_key}")
        return on.target
    here, flags = targets.detect(), {plain(flag) for flag in machine.processor().flags}
    if lacks := [name for name in wanted.needs if plain(name) not in flags]:
        raise Refused(f"{path} is for {wanted.name}, and this processor ({machine.processor().model}) lacks "
                      f"{', '.join(lacks)}")
    if here.code_key != wanted.code:
        raise Refused(f"{path} is for {wanted.name}, and this process multiplies by code for {here.name}; with "
                      f"TILEWRIGHT_TARGET={wanted.name} it would use it")
    own = amx.permitted(here).extensions
    if wanted.extensions and wanted.extensions != own:
        warnings.warn(f"{path} is for a processor with {', '.join(wanted.extensions)}, and this one has "
                      f"{', '.join(own)}: products by such instructions are planned and compiled anew", RuntimeWarning,
                      stacklevel=4)
    return here


def plain(flag: str) -> str:
    """LLVM's and Linux's names of a feature, spelled alike."""
    return flag.replace("_", "").replace("-", "")


def _forget() -> None:
    """What engines have chosen until now."""
    for name in ("tilewright.runtime.cpu.engine", "tilewright.runtime.gpu.engine"):
        engine = sys.modules.get(name)
        for owner in [] if engine is None else [engine] if hasattr(engine, "forget") else [engine.NVIDIA, engine.AMD]:
            owner.forget()
