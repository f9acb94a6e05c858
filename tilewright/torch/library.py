"""Registration of tilewright's operators with torch: schema, kernels, shapes for the compiler, derivatives,
autocast.

An operator's kernel runs on tensors of one device: the CPU's, or a GPU's on torch's current stream, without waiting for
it. `fake` says what the kernel returns without memory (meta tensors, torch.compile), with the same checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any

import torch
from torch._functorch.autograd_function import enable_single_level_autograd_function
from torch.autograd import forward_ad

from tilewright.api import tensor_repeats

NAMESPACE, KERNEL = "tilewright", "kernel"
DEVICES = {"CPU": "cpu", "CUDA": "cuda"}  # dispatch keys and devices; torch on ROCm calls its GPUs by CUDA's names
TAGS = tuple(getattr(torch.Tag, name) for name in ("pt2_compliant_tag", "flexible_layout") if hasattr(torch.Tag, name))

library = torch.library.Library(NAMESPACE, "DEF")


def define(schema: str, kernel: Callable[..., Any], fake: Callable[..., Any], *, autocast: bool = False,
           repeated: int = 0) -> Any:
    """The operator of this schema, "name(Tensor a, ...) -> Tensor". Any strides are taken.

    autocast    in an autocast region floating-point arguments are brought to the region's dtype first
    repeated    how many of its arguments, the first ones, are tensors, if its kernel is one product, which is repeated
                for tensors like those of an earlier call
    """
    name = schema.partition("(")[0]
    library.define(schema, tags=TAGS)

    def again(*given: Any) -> Any:          # in the state in which torch's dispatcher calls kernels
        tensors = [x for x in given[:repeated] if x is not None]
        how = KERNEL, name, *given[repeated:], *[x is None for x in given[:repeated]]
        return tensor_repeats.call(kernel, given, how, tensors)
    for key in DEVICES:
        library.impl(name, again if repeated else kernel, key)
    qualified = f"{NAMESPACE}::{name}"
    torch.library.register_fake(qualified, fake, lib=library)
    operator = getattr(getattr(torch.ops, NAMESPACE), name).default
    if autocast:
        for key, device in DEVICES.items():
            library.impl(name, _in_autocast(operator, f"Autocast{key}", device), f"Autocast{key}")
    return operator


def shaped(result: Callable[..., Any]) -> Callable[..., Any]:
    """The fake of an operator whose result has the dtype and the shape that `result` gives for its arguments."""
    def fake(*given: Any, **options: Any) -> torch.Tensor:
        dtype, shape = result(*given, **options)
        like = next(x for x in given if isinstance(x, torch.Tensor))
        return torch.empty(shape, dtype=dtype, device=like.device)
    return fake


def differentiate(operator: Any, backward: Callable[..., Any], setup: Callable[..., None],
                  tangent: Callable[..., Any]) -> None:
    """Register an operator's derivatives, which may be differentiated again. `inputs`: all arguments in the schema's
    order.

    setup(ctx, inputs, output)          saves what `backward` needs
    backward(ctx, *gradients)           a gradient, or None, for each input
    tangent(inputs, tangents, output)   forward mode: the output's tangent, from those of inputs, some of them None
    """
    arguments = operator._schema.arguments
    positional = sum(not x.kwarg_only for x in arguments)

    def below(keyset: Any, inputs: tuple[Any, ...]) -> Any:
        options = {x.name: y for x, y in zip(arguments[positional:], inputs[positional:])}
        with torch._C._AutoDispatchBelowAutograd():
            return operator.redispatch(keyset & torch._C._after_autograd_keyset, *inputs[:positional], **options)

    def forward(ctx: Any, *inputs: Any) -> Any:
        with _outer_levels():
            output = below(inputs[-1], inputs[:-1])
        setup(ctx, inputs[:-1], output)
        return output

    node: Any = type(f"{operator._schema.name}_backward".replace("::", "_"), (torch.autograd.Function,), {
        "forward": staticmethod(forward), "backward": staticmethod(lambda ctx, *g: (*backward(ctx, *g), None))})
    apply = super(torch.autograd.Function, node).apply          # of one level of torch.func's: that whose turn it is

    def kernel(keyset: Any, *args: Any, **options: Any) -> Any:
        left_out = arguments[len(args):]                        # the dispatcher leaves out what is at its default
        inputs = (*args, *(options.get(x.name, x.default_value) for x in left_out))
        if forward_ad._current_level >= 0:                      # some may have tangents
            primals, tangents = zip(*map(_unpacked, inputs))
            if any(t is not None for t in tangents):
                output = operator(*primals[:positional], **dict(zip((x.name for x in arguments[positional:]),
                                                                    primals[positional:])))
                return _dual(output, tangent(primals, tangents, output))
        if not (torch.is_grad_enabled() and torch._C._any_requires_grad(*inputs)):
            return below(keyset, inputs)
        with enable_single_level_autograd_function():
            return apply(*inputs, keyset)
    library.impl(operator._schema.name.partition("::")[2], kernel, "Autograd", with_keyset=True)


@contextmanager
def _outer_levels() -> Iterator[None]:
    """Within the forward pass of a torch.autograd.Function, which turns both modes of differentiation off: on again for
    the other levels of torch.func's transforms."""
    if not torch._C._are_functorch_transforms_active():
        yield
        return
    with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
        yield


def _unpacked(x: Any) -> tuple[Any, Any]:
    """An argument, and its tangent."""
    return tuple(forward_ad.unpack_dual(x)) if isinstance(x, torch.Tensor) else (x, None)


def _dual(output: Any, tangent: Any) -> Any:
    if isinstance(output, tuple):
        return tuple(map(_dual, output, tangent))
    return forward_ad.make_dual(output, tangent)


def total(*terms: torch.Tensor | None) -> Any:
    """The sum of terms that are not None, of which there is one at least."""
    return reduce(torch.add, [x for x in terms if x is not None])


def refuse_gradients(operator: Any, why: str, tangent: Callable[..., Any] | None = None) -> None:
    """Give an operator without a backward pass a RuntimeError where a gradient would be needed, or a tangent unless
    there is a function for it."""
    name = operator._schema.name

    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(f"{name} has no backward pass: {why}")

    def refused(*given: Any) -> Any:
        raise RuntimeError(f"{name} has no forward-mode derivative: {why}")
    differentiate(operator, backward, lambda ctx, inputs, output: None, tangent or refused)


def _in_autocast(operator: Any, key: str, device: str) -> Callable[..., Any]:
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def kernel(*args: Any, **options: Any) -> Any:
        dtype = torch.get_autocast_dtype(device)

        def cast(x: Any) -> Any:
            eligible = isinstance(x, torch.Tensor) and x.dtype in CAST and x.device.type == device
            return x.to(dtype) if eligible else x
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return operator(*map(cast, args), **{name: cast(x) for name, x in options.items()})
    return kernel


CAST = {torch.float32, torch.float16, torch.bfloat16}  # as torch's own: f64 stays
