"""The ladder of attention: each step is right, without races, and moves what its idea says."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tilewright.lab.cli import app


def test_steps_on_hopper() -> None:
    said = CliRunner().invoke(app, ["ladder", "attention", "--size", "64", "--json", "-"])
    assert said.exit_code == 0, said.output
    steps = {row["step"]: row for row in json.loads(said.output)["steps"]}
    naive, tiled, online, registers, *_, turns = steps.values()
    assert all(row["right"] for row in steps.values())
    assert len(steps) == 6
    assert naive["shared"] > 10 * tiled["shared"]
    assert tiled["scores"] > online["scores"] == 0
    assert online["instructions"] > registers["instructions"]
    assert turns["matrix"]


def test_other_targets_are_refused() -> None:
    for wrong in (["-t", "gfx942"], ["--size", "100"]):
        assert CliRunner().invoke(app, ["ladder", "attention", *wrong]).exit_code == 2


@pytest.mark.parametrize("name", ["online", "registers"])
def test_steps_on_a_cpu(name: str) -> None:
    from tilewright import targets
    from tilewright.lab.ladder.attention_steps import ATTENTION_STEPS, counted

    assert counted(ATTENTION_STEPS[name], targets.coerce("x86-avx512"), 64, 64)["right"]
