"""Schedules of products that exchange rows, on simulated ranks: sums are right in any order that the waits allow, no
two accesses race, and a flag or a wait that is missing is found."""

import random

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from tests.torch.distributed.two_streams import Group, Race
from tilewright.torch.distributed import schedules
from tilewright.torch.distributed.schedules import Await, Follow, Post

CALLS = [(kind, form, pieces) for kind in schedules.MADE for form in ("one", "pieces", "stores") for pieces in (1, 2, 3)
         if (kind, form) != ("gather", "stores") and (kind != "exchange" or form == "pieces")]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_calls_in_a_row_give_sums_without_a_race(ranks):
    chosen = random.Random(ranks)
    for seed in range(12):
        calls = [chosen.choice(CALLS) for _ in range(5)]
        Group(ranks, calls, seed, one_queue=seed > 8).run().check()


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_each_form_alone_and_repeated_in_one_slot(call):
    """As a graph that is replayed does, which has one call."""
    Group(2, [call]*4, 0, slots=1).run().check()


@pytest.mark.parametrize("call", [("gather", "pieces", 2), ("scatter", "stores", 2), ("reduce", "pieces", 2),
                                  ("exchange", "pieces", 1)], ids=str)
def test_a_missing_wait_or_flag_is_found(call, monkeypatch):
    whole = schedules.schedule(call[0], call[1], 0, 2, 2)
    places = [n for n, step in enumerate(whole) if isinstance(step, (Await, Post, Follow))]
    if call[0] == "exchange":
        places.remove(max(n for n in places if isinstance(whole[n], Follow)))       # what comes back says as much
    original, found = schedules.schedule, {}
    for drop in places:
        def broken(kind, form, rank, ranks, pieces, drop=drop):
            steps = original(kind, form, rank, ranks, pieces)
            return steps if rank else steps[:drop] + steps[drop + 1:]
        monkeypatch.setattr("tests.torch.distributed.two_streams.schedule", broken)
        for seed in range(30):
            try:
                Group(2, [call]*4, seed).run().check()
            except (Race, AssertionError, TypeError):
                found[drop] = True
                break
    assert set(found) == set(places), [whole[n] for n in set(places) - set(found)]
