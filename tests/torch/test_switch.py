"""The switch: which functions of torch it takes, by which rule, and that nothing is left of it."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: there is nothing to switch")
twt = pytest.importorskip("tilewright.torch")

from torch.nn import functional as F  # noqa: E402
from torch.overrides import TorchFunctionMode, _get_current_function_mode  # noqa: E402

from tilewright.torch import switch  # noqa: E402

A, B, C = torch.randn(5, 7), torch.randn(7, 3), torch.randn(3)
CALLS = {
    "mm": lambda: torch.mm(A, B), "method mm": lambda: A.mm(B), "matmul": lambda: torch.matmul(A, B),
    "@": lambda: A @ B, "addmm": lambda: torch.addmm(C, A, B, beta=2, alpha=3), "linear": lambda: F.linear(A, B.t(), C),
    "layer": lambda: torch.nn.Linear(7, 3)(A),
}
NOT_OURS = {
    "out": lambda: torch.mm(A, B, out=torch.empty(5, 3)), "stack": lambda: torch.randn(2, 5, 7) @ B,
    "vector": lambda: A @ B[:, 0], "bool": lambda: A.long() @ B.long(), "sum": lambda: A.sum(),
    "sparse": lambda: A.to_sparse() @ B, "bias": lambda: F.linear(A, B.t(), torch.ones(1)),
    "bias of two axes": lambda: F.linear(A, B.t(), torch.ones(5, 1)),
    "number": lambda: F.linear(A, B.t(), torch.ones(())), "alpha": lambda: torch.addmm(C, A, B, alpha=torch.tensor(2)),
}
SHAPES = r"mat1 and mat2 shapes cannot be multiplied \(5x7 and {}x7\)"
REFUSED = (             # in torch's words
    (lambda: A @ A.double()[:2], SHAPES.format(2)), (lambda: A @ A, SHAPES.format(5)),
    (lambda: A.mm(A), SHAPES.format(5)), (lambda: torch.addmm(C, A, A), SHAPES.format(5)),
    (lambda: A @ B.double(), "expected m1 and m2 to have the same dtype, but got: float != double"),
    (lambda: torch.addmm(torch.ones(4), A, B), r"expanded size of the tensor \(3\) must match the existing size \(4\)"),
)


@pytest.fixture
def taken(monkeypatch):
    """Names of operators that ran."""
    seen = []

    class Spy(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function.namespace == "tilewright":
                seen.append(function._schema.name)
            return function(*args, **(kwargs or {}))
    with Spy():
        yield seen


@pytest.mark.parametrize("name", CALLS)
def test_always(name, taken):
    torch.manual_seed(0)
    wanted = CALLS[name]()
    assert not taken
    with twt.enable("always"):
        torch.manual_seed(0)
        found = CALLS[name]()
    assert len(taken) == 1
    assert torch.allclose(found, wanted, atol=1e-5)
    CALLS[name]()
    assert len(taken) == 1
    assert _get_current_function_mode() is None


@pytest.mark.parametrize("name", NOT_OURS)
def test_what_stays_torchs(name, taken):
    with twt.enable("always"):
        NOT_OURS[name]()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            A @ B
        for refused, words in REFUSED:
            with pytest.raises(RuntimeError, match=words):
                refused()
    assert not taken


def test_what_is_measured_decides(taken, monkeypatch):
    times = []
    monkeypatch.setattr(switch, "_faster", {})
    monkeypatch.setattr(switch, "_time", lambda theirs, ours: times.append(1) or len(times) == 1)
    with twt.enable():
        for _ in range(3):
            A @ B                       # measured once: ours
        torch.randn(6, 7) @ B           # of its kind
        assert taken == ["tilewright::mm"] * 4
        torch.randn(60, 7) @ B          # of another: torch's
        A.double() @ B.double()
    assert len(times) == 3
    assert len(taken) == 4


def test_a_real_measurement(monkeypatch):
    monkeypatch.setattr(switch, "_faster", {})
    x = A.clone().requires_grad_()
    with twt.enable():
        (x @ B).sum().backward()
        assert torch.allclose(x.grad, B.sum(1).expand(5, 7), atol=1e-5)
    (measured,) = switch._faster.values()
    assert type(measured) is bool


def test_a_rule_of_ones_own_and_gradients(taken):
    x = A.clone().requires_grad_()
    with twt.enable(lambda name, tensors: name == "mm" and tensors[0].shape[0] == 5):
        (x @ B).sum().backward()
        assert taken == ["tilewright::mm"] * 2  # and a gradient
        F.linear(A, B.t())
        A[:4] @ B
    assert len(taken) == 2


def test_as_a_function_and_nested(taken):
    on = twt.enable("always")
    A @ B
    with twt.enable("always"):
        A @ B
    A @ B
    assert len(taken) == 3

    class Other(TorchFunctionMode):
        pass
    with Other(), pytest.raises(RuntimeError, match=r"entered since, and .*Other.* is on"):
        on.disable()
    on.disable()
    on.disable()
    A @ B
    assert len(taken) == 3
    with pytest.raises(ZeroDivisionError), twt.enable("always"):
        1 / 0  # noqa: B018
    assert _get_current_function_mode() is None
    with pytest.raises(ValueError, match='rule must be "measured", "always" or a function'):
        twt.enable("fast")


def test_while_torch_compiles():
    """"always" is traced without a graph break; what would have to be measured is torch's."""
    for rule in ("always", "measured"):
        with twt.enable(rule):
            compiled = torch.compile(lambda x: F.linear(x, B.t(), C), fullgraph=True, backend="eager")
            assert torch.allclose(compiled(A), A @ B + C, atol=1e-5)
