"""All forms of the products, as they run on GPUs, between threads of this process: streams are the order of calls,
flags are words that threads wait for, symmetric memory is the host's. Every sum is compared with float64."""

from __future__ import annotations

import os
import threading
import time
from contextlib import nullcontext
from itertools import product
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from tilewright.torch.distributed import experts, model, peers, products  # noqa: E402
from tilewright.torch.distributed.schedules import Flag, Post  # noqa: E402

BF16, F8 = torch.bfloat16, torch.float8_e4m3fn
DEAR = "TILEWRIGHT_DEAR_TESTS" in os.environ


class Host:
    """What all ranks share."""

    def __init__(self, ranks, size=1 << 16):
        self.ranks, self.size, self.flags, self.lock = ranks, size, {}, threading.Condition()
        self.bytes = torch.zeros(ranks, peers.SLOTS, size, dtype=torch.uint8)
        for rank, slot, peer in product(range(ranks), range(peers.SLOTS), range(ranks)):
            self.flags[rank, slot, Flag("free", peer)] = 1


class Stream:
    def wait_stream(self, other):
        pass


class Number(int):
    """A rank of Peers, and what a group's rank() is."""

    def __call__(self):
        return int(self)


class Rank:
    """In place of Peers, Memory, and a group."""

    def __init__(self, host, rank):
        self.host, self.rank, self.ranks, self.turn = host, Number(rank), host.ranks, 0

    def size(self):
        return self.ranks

    def agree(self, call):
        pass

    def memory(self, size):
        assert size <= self.host.size, size
        return self

    def next_slot(self):
        self.turn = (self.turn + 1) % peers.SLOTS
        return self.turn

    def view(self, slot, rank, at, shape, dtype):
        count = shape[0]*shape[1]*dtype.itemsize
        assert at + count <= self.host.size
        return self.host.bytes[rank, slot, at:at + count].view(dtype).view(shape)

    def numbers(self, given):
        return torch.tensor(given, dtype=torch.int32)

    def streams(self):
        return Stream(), Stream()

    def using(self, stream):
        return nullcontext()

    def calling(self):
        return nullcontext()

    def signal(self, stream, slot, step, label):
        host = self.host
        with host.lock:
            if isinstance(step, Post):
                for rank, flag in step.flags:
                    assert not host.flags.get((rank, slot, flag)), (rank, flag)
                    host.flags[rank, slot, flag] = 1
            else:
                places = [(self.rank, slot, flag) for flag in step.flags]
                assert host.lock.wait_for(lambda: all(host.flags.get(x) for x in places), 20), step
                host.flags.update(dict.fromkeys(places, 0))
            host.lock.notify_all()


@pytest.fixture
def together(monkeypatch):
    """A function that calls one function of a rank in a thread for each, and returns results in the order of ranks."""
    mine = threading.local()
    monkeypatch.setattr(products, "group_of", lambda name: mine.rank)
    monkeypatch.setattr(products, "reach", lambda group, device: mine.rank)

    def call(ranks, function):
        host, results, failed = Host(ranks), [None]*ranks, []

        def run(rank):
            mine.rank = Rank(host, rank)
            try:
                time.sleep(0.001 * ((rank * 7) % 3))
                results[rank] = function(rank)
            except BaseException as error:
                failed.append(error)
        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]
        return results
    return call


def operands(dtype, *shape):
    if dtype in (torch.int8, torch.int32):
        return torch.randint(-100, 100, shape, dtype=dtype)
    return torch.randn(shape).to(dtype)


CASES = [(3, torch.int8, False, 0),
         *[(2, BF16, False, 8e-3), (2, F8, True, 8e-3), (4, torch.float32, False, 1e-6)]*DEAR]


@pytest.mark.parametrize(("ranks", "dtype", "scaled", "tolerance"), CASES, ids=str)
def test_every_form_gives_the_sums_of_float64(together, ranks, dtype, scaled, tolerance):
    torch.manual_seed(ranks)
    m, k, n = 4, 16, 8
    a, b = operands(dtype, ranks, m*ranks, k), operands(dtype, ranks, k, n)
    s, t = torch.rand(ranks, m*ranks, 1) + 0.5, torch.rand(ranks, 1, n) + 0.5
    wide_a, wide_b = a.double() * (s if scaled else 1), b.double() * (t if scaled else 1)
    sums = torch.einsum("rmk,rkn->mn", wide_a, wide_b)
    out_dtype = BF16 if scaled else None
    options = [(form, pieces) for form, pieces in model.candidates("scatter") if form != "pair" and pieces < 4]

    def near(x, wanted):
        assert ((x.double() - wanted).norm() <= tolerance * wanted.norm()).item()

    def scattered(name):
        def call(rank):
            scales = (s[rank], t[rank]) if scaled else (None, None)
            return [getattr(products, name)(a[rank], b[rank], *scales, out_dtype, "", str(model.Plan(*plan)))
                    for plan in options]
        return together(ranks, call)
    for rank, found in enumerate(scattered("_scatter")):
        for x in found:
            near(x, sums[rank*m:(rank + 1)*m])
    everywhere = scattered("_all")
    for found in everywhere:
        for x, same in zip(found, everywhere[0]):
            near(x, sums)
            assert torch.equal(x, same)

    plans = [plan for plan in model.candidates("gather") if plan.form != "pair" and plan.pieces < 4]
    whole = torch.cat(list(wide_a[:, :m]))

    def call(rank):
        scales = (s[rank, :m], [t[rank], t[rank]]) if scaled else (None, [])
        return [products._gather(a[rank, :m], [b[rank], b[rank]], *scales, out_dtype, "", str(plan), True)
                for plan in plans]
    for rank, found in enumerate(together(ranks, call)):
        for first, second, rows in found:
            near(first, whole @ wide_b[rank])
            assert torch.equal(first, second)
            assert torch.equal(rows.view(torch.uint8), torch.cat(list(a[:, :m])).view(torch.uint8))


def test_chunks_of_experts_come_back_in_order(together, monkeypatch):
    monkeypatch.setattr(experts, "name_of", lambda group: "")
    table = [[3, 0, 2, 4, 1, 1], [0, 0, 5, 0, 2, 2], [2, 2, 2, 2, 2, 2]]
    rows = [torch.randn(sum(row), 4) for row in table]
    seen = threading.local()

    def work(x, offs):
        seen.calls = getattr(seen, "calls", 0) + 1
        assert offs[-1] == len(x)
        expert = torch.repeat_interleave(torch.arange(2), torch.diff(offs, prepend=torch.zeros(1, dtype=torch.int32)))
        return x[:, :3] * (expert[:, None] + 1)

    def call(rank):
        return [experts.apply_experts(rows[rank], table, work, width=3) for _ in range(3)], seen.calls
    for rank, (found, calls) in enumerate(together(3, call)):
        factor = torch.repeat_interleave(torch.arange(6) % 2 + 1, torch.tensor(table[rank]))
        assert calls == 9
        assert all(torch.equal(x, rows[rank][:, :3] * factor[:, None]) for x in found)


def test_sums_of_rows_that_are_no_multiple_of_ranks(together):
    a, b = torch.randn(2, 7, 8), torch.randn(2, 8, 3)
    for found in together(2, lambda rank: products._all(a[rank], b[rank], None, None, None, "", "one")):
        assert torch.allclose(found, torch.einsum("rmk,rkn->mn", a, b), atol=1e-5)
    with pytest.raises(ValueError, match="no multiple of 2 ranks"):
        together(2, lambda rank: products._all(a[rank], b[rank], None, None, None, "", "pieces"))


def test_the_model_overlaps_where_that_gains():
    """The shapes of docs/distributed.md."""
    for rows in (4096, 1024):
        gather, scatter = (model.Product(rows, n, k, 2, 2, 2) for n, k in ((4096, 8192), (8192, 4096)))
        assert model.choose("gather", gather).form == "pieces"
        assert model.choose("scatter", scatter).form in ("stores", "pieces")


def test_plans_are_read():
    assert model.parse("pieces:4", "scatter") == model.Plan("pieces", 4)
    assert str(model.Plan("one")) == "one"
    for text, kind in (("stores", "gather"), ("pieces:9", "scatter"), ("pieces:x", "scatter"), ("all", "reduce")):
        with pytest.raises(ValueError, match="plan must be one of"):
            model.parse(text, kind)


def group_of_two(**more):
    """Peers of rank 0, without a device."""
    made = object.__new__(peers.Peers)
    vars(made).update({"rank": 0, "ranks": 2, "group": SimpleNamespace(group_name="g"), "broken": "", "kinds": set(),
                       "said": 0, "store": torch.distributed.HashStore()} | more)
    return made


def test_a_rank_that_does_not_come_is_an_error_in_the_thread_that_waits(monkeypatch):
    monkeypatch.setattr(peers, "_timeout", 0.02)
    word = torch.zeros(1, dtype=torch.int32)
    group = group_of_two(word=word, table=[(0, "", 0), (1, "scatter (pieces, pieces: 2)", 0.02)],
                         caller=threading.get_ident())
    watch = threading.Thread(target=group._look, daemon=True)

    def waits():
        watch.start()
        word[0] = 1                 # as a kernel that gives up
        watch.join(10)
        time.sleep(0.01)            # an exception of another thread comes between two lines
    with pytest.raises(peers.PeerTimeout, match=r"rank 0 has waited 0.02 s in scatter .* for rank 1 of the group"):
        waits()
    with pytest.raises(peers.PeerTimeout, match="no further call"):
        group.agree("x")


def test_ranks_that_call_different_things_are_told(monkeypatch):
    group = group_of_two()
    group.store.set("tilewright/1/1", "all_gather_matmul of 3 x 4 rows")
    with pytest.raises(ValueError, match=r"rank 0 makes all_gather_matmul of 2 x 4 rows, and rank 1 .* of 3 x 4 rows"):
        group.agree("all_gather_matmul of 2 x 4 rows")
    monkeypatch.setattr(peers, "_timeout", 0.02)
    with pytest.raises(peers.PeerTimeout, match="for rank 1 of the group g to make the same call"):
        group.agree("something else")
