"""Products with your own arithmetic: distances, kernel sums, binary networks. `python examples/own_arithmetic.py`"""
from __future__ import annotations

import numpy as np

import tilewright as tw


def distances(x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """Of all pairs of points, as by scipy.spatial.distance.cdist."""
    return {
        "euclidean": tw.contract(lambda p, q: (p - q)**2, x, y.T, epilogue=lambda acc: tw.sqrt(acc)),
        "cityblock": tw.contract(lambda p, q: abs(p - q), x, y.T),
        "chebyshev": tw.contract(lambda p, q: abs(p - q), x, y.T, reduce="max"),
    }


def kernel_sums(x: np.ndarray, y: np.ndarray, weights: np.ndarray, width: float) -> np.ndarray:
    """The sum over all y of weight * exp(-|x - y|^2 / width^2), for each x: a row of the matrix is reduced where it is
    computed."""
    factor = -1 / width**2
    return tw.contract(lambda p, q: (p - q)**2, x, y.T, operands={"weights": weights},
                       epilogue=lambda acc, weights: tw.row_sum(weights * tw.exp(acc * factor)))


def layer_of_signs(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """sign(x) @ sign(w) of a binary network, with 32 signs in a number: those that are equal less those that differ."""
    words = [np.ascontiguousarray(np.packbits(z > 0, axis=1)).view(np.int32) for z in (x, w.T)]
    return tw.contract(lambda p, q: tw.popcount(p ^ q), words[0], words[1].T, operands={"signs": x.shape[1]},
                       epilogue=lambda acc, signs: signs - 2*acc)


def main() -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((n, 10), np.float32) for n in (70, 90))
    each = (x[:, None].astype(np.float64) - y)
    found = distances(x, y)
    for name, order in (("euclidean", 2), ("cityblock", 1), ("chebyshev", np.inf)):
        assert np.allclose(found[name], np.linalg.norm(each, order, axis=-1), rtol=1e-5)
    weights = rng.random(90, np.float32)
    assert np.allclose(kernel_sums(x, y, weights, 2), (weights * np.exp(-(each**2).sum(-1) / 4)).sum(1), rtol=1e-5)
    activations, layer = rng.standard_normal((40, 256)), rng.standard_normal((256, 30))
    assert (layer_of_signs(activations, layer) == np.sign(activations) @ np.sign(layer)).all()
    print("distances, kernel sums and a layer of signs: as by NumPy")


if __name__ == "__main__":
    main()
