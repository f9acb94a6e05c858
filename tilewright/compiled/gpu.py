"""A GEMM by one plan on one GPU, whoever made it: one recorded kernel, its code from the cache, and the launches that a
product takes. `nvidia` and `amd` say by which emitter and options, and what the code uses."""
from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from tilewright.compiled.base import Compiled, CompiledGemm, Launch
from tilewright.compiler import artefact
from tilewright.forks import cached_property

if TYPE_CHECKING:
    from tilewright.ir.program import Function


class GpuCode(Compiled):
    """Recorded kernels for a GPU."""

    @cached_property
    def loadable(self) -> artefact.Code:
        """What a driver loads, and the manifests of the kernels."""
        return artefact.compiled(list(self.functions), self.target)


class GpuKernel(CompiledGemm, GpuCode):
    """A GEMM by one plan on a GPU."""

    emitters: ClassVar[dict[str, str]]              # algorithm → "package.module:function"
    maker: ClassVar[str]                            # of runtime.gpu.recipe, which calls and binds it

    @property
    def options(self) -> dict[str, Any]:
        """What the plan's emitter is called with."""
        raise NotImplementedError

    @cached_property
    def functions(self) -> tuple[Function, ...]:    # type: ignore[override]    # recorded when somebody looks
        if self.empty:
            return ()
        from tilewright.compiler import llvm
        module, _, name = self.emitters[self.plan.algorithm].partition(":")
        with llvm.uncollected():
            return (getattr(import_module(module), name)(**self.options),)

    @cached_property
    def loadable(self) -> artefact.Code:
        """The same from the cache, if it is there: then nothing is recorded."""
        if self.empty:
            raise ValueError(self._no_code)
        return artefact.code(self.emitters[self.plan.algorithm], self.target, **self.options)

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        return () if self.empty else (self._launch(),)

    def _launch(self) -> Launch:
        raise NotImplementedError

    def __call__(self, a: Any, b: Any, out: Any = None, *, alpha: Any = 1.0, beta: Any = 0.0) -> Any:
        return self._maker.call(self, a, b, out, alpha=alpha, beta=beta)

    def bind(self, a: Any, b: Any, out: Any = None, *, alpha: Any = 1.0, beta: Any = 0.0) -> Any:
        return self._maker.bind(self, a, b, out, alpha=alpha, beta=beta)

    @property
    def _maker(self) -> Any:
        from tilewright.runtime.gpu import recipe
        return getattr(recipe, self.maker)
