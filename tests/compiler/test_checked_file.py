"""Files with a checksum that is right and an index that is odd, and names of what is no file: refused in a sentence."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tests.compiler.test_bundles import CODES, INDEX
from tests.helpers.command_line import refused
from tilewright.compiled import bundles, packed_weights
from tilewright.compiler import bundle
from tilewright.plans.measured import choice
from tilewright.runtime.cpu import packed

ODD = (None, True, -1, 1 << 70, 0.5, float("nan"), "", "odd\0", [], [[]], [None], {}, {"a": []})


def _bundle(path):
    here = tw.detect()
    product = INDEX.products[0]
    products = (replace(product, plans=(product.plans[0]._replace(plan="in_place 4x8"),)),)
    path.write_bytes(bundle.packed(replace(INDEX, target=bundle.Target(here.name, here.code_key), products=products),
                                   CODES))
    return bundle.FILE


def _weights(path):
    tw.pack(tw.quantize(np.ones((64, 40), "f4"), "i4", axis=0, group=32)).save(path)
    return packed_weights.FILE


def _blocks(path):
    tw.pack(tw.quantize(np.ones((64, 40), "f4"), "mxfp4", axis=0)).save(path)
    return packed_weights.FILE


def _panels(path):
    tw.pack(np.ones((64, 40), "f4")).save(path)
    return packed.FILE


def _spoilt(x):
    """Every index with one value in another one's place, or one field or element less."""
    places = x.items() if isinstance(x, dict) else enumerate(x)
    for key, value in list(places):
        for odd in ODD:
            yield {**x, key: odd} if isinstance(x, dict) else [*x[:key], odd, *x[key + 1:]]
        yield {name: x[name] for name in x if name != key} if isinstance(x, dict) else x[:key] + x[key + 1:]
        if isinstance(value, (dict, list)):
            for inner in _spoilt(value):
                yield {**x, key: inner} if isinstance(x, dict) else [*x[:key], inner, *x[key + 1:]]


def _refusal(path):
    try:
        tw.load(path)
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("write", [_bundle, _weights, _blocks, _panels])
def test_an_odd_index_is_a_value_error_with_the_files_name(write, tmp_path, monkeypatch):
    monkeypatch.setattr(bundle, "used", [])
    monkeypatch.setattr(bundles.sources, "digest", lambda *modules: "")
    path = tmp_path / "file"
    kind = write(path)
    index, rest = kind.read(path)
    tw.load(path)
    spoilt = [*_spoilt(index), *ODD][::3]                   # of 13 at each place: every value at some
    for each in spoilt:
        path.write_bytes(kind.content(each, bytes(rest), 64))
        if said := _refusal(path):
            assert str(path) in said, each
    assert len(spoilt) > 50


@pytest.mark.parametrize(("make", "words"), [
    (os.mkfifo, "is a FIFO, not a regular file"), (os.mkdir, "is a directory, not a regular file"),
    (lambda path: path.symlink_to("/dev/zero"), "is a device, not a regular file")])
def test_what_is_no_regular_file_is_refused_at_once(make, words, tmp_path):
    path = tmp_path / "file"
    make(path)
    for read in (tw.load, lambda path: tw.build(path, tmp_path / "out"), packed.load, packed_weights.load):
        with pytest.raises(ValueError, match=words):
            read(path)
    for command in (("tune", "import", path), ("tune", "shapes", path), ("build", path, "-o", tmp_path / "out"),
                    ("build", "--list", path)):
        assert words in refused(*map(str, command))


def test_a_file_that_is_not_there(tmp_path):
    path = tmp_path / "none"
    with pytest.raises(FileNotFoundError) as raised:
        tw.load(path)
    assert str(raised.value) == f"{path} cannot be read: no such file or directory"
    path.write_bytes(b"\xff\xfe")
    assert "is no text in UTF-8" in refused("tune", "import", str(path))


def test_a_damaged_table_of_plans_costs_a_warning(tmp_path, monkeypatch):
    good = next(choice.TABLES.glob("*.jsonl")).read_text().splitlines()[0]
    here = tw.detect()
    monkeypatch.setattr(choice, "TABLES", tmp_path)
    for number, line in enumerate(("{", "3", "{}", json.dumps(json.loads(good) | {"l1d": None, "role": "best"}))):
        monkeypatch.setattr(choice, "TABLES", tmp_path / str(number))
        choice.TABLES.mkdir()
        (choice.TABLES / f"{here.name}.jsonl").write_text(f"{line}\n")
        choice._shipped.cache_clear()
        with pytest.warns(RuntimeWarning, match="goes on without them"):
            assert choice.shipped(here) == {}
    choice._shipped.cache_clear()
