"""How clusters of wgmma share tiles of C, and those of its last round by k."""
from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from tilewright.plans.gpu_shape import GpuShape

if TYPE_CHECKING:
    from tilewright.plans.nvidia.plan import NvidiaPlan
    from tilewright.targets.nvidia import GpuTarget

# Multiprocessors of so many that clusters of more than two CTAs find: parts of the chip, in one of which each cluster
# is, leave some over. 30 clusters of 4 and 15 of 8 run at once on the 132 of an H200 (cuOccupancyMaxActiveClusters).
IN_CLUSTERS = 11, 12
MOST_PARTS = 16         # of a tile, with `tail`
LEAST_SHARE = 4         # steps of k of a cluster
EVEN = 0.85             # of the clusters that equal parts of tiles must occupy, else shares are of equal length


class Division(NamedTuple):
    """How clusters share tiles of C (of all CTAs of a cluster together) by k: see wgmma_tiles.Tiles.

    clusters    that are launched; each has `whole` tiles in turn, then a share
    shares      of the other tiles: `share` steps of k each, on a line on which a tile begins `apart` steps behind the
                one before
    """
    tiles: int
    steps: int              # of a CTA, for a tile
    clusters: int
    whole: int
    share: int
    apart: int

    @property
    def over(self) -> int:
        """Tiles that are divided."""
        return self.tiles - self.whole

    @property
    def shares(self) -> int:
        return ceil(self.over*self.apart / self.share)

    def parts(self) -> list[int]:
        """Parts of each tile that is divided."""
        begins = range(0, self.over*self.apart, self.apart)
        return [(at + self.steps - 1) // self.share - at // self.share + 1 for at in begins]


def clusters(p: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> tuple[int, int]:
    """Tiles of C as large as those of a cluster's CTAs together, and clusters that run at once."""
    rows, columns = p.cta_m*p.cluster_m, p.cta_n*p.cluster_n
    tiles = ceil(shape.m / rows) * ceil(shape.n / columns) * shape.batch
    used, of = IN_CLUSTERS if p.ctas > 2 else (1, 1)
    most = target.sms // of * used // p.ctas
    return tiles, max(most, 1) if p.divided else min(tiles, max(most, 1))


def division(p: NvidiaPlan, shape: GpuShape, target: GpuTarget) -> Division:
    """Of a plan with `split_k`, equal parts of each tile that is left over after whole rounds, no more than there are
    clusters; with `tail`, such parts if they occupy most clusters, else shares of equal length; or of tiles alone."""
    tiles, most = clusters(p, shape, target)
    steps = ceil(ceil(shape.k / p.cta_k) / p.cluster_k)
    over = tiles % most
    if not over or not p.divided:
        return Division(tiles, steps, most, tiles, steps, steps)
    unit = max(p.promote // p.cta_k, 1)                     # of steps, whose sums have a scale in common
    least = max(min(most // over, steps, p.split_k if p.split_k > 1 else MOST_PARTS), 1)
    share = ceil(ceil(steps / least) / unit) * unit
    apart = ceil(steps / share) * share
    if p.tail and over*(apart // share) < EVEN*most:
        apart = ceil(steps / unit) * unit
        share = min(max(ceil(ceil(over*apart / most) / unit), ceil(LEAST_SHARE / unit)) * unit, apart)
    found = Division(tiles, steps, most, tiles - over, share, apart)
    return found if found.whole else found._replace(clusters=found.shares)


def round_bytes(shape: GpuShape, p: NvidiaPlan, target: GpuTarget, group_m: int) -> int:
    """Bytes of A and B that CTAs which run at once read, if clusters' tiles are taken in groups of so many rows."""
    rows, columns, together = p.cta_m*p.cluster_m, p.cta_n*p.cluster_n, clusters(p, shape, target)[1]
    tiles_m, tiles_n = ceil(shape.m / rows), ceil(shape.n / columns)
    wide = min(ceil(together / min(group_m, tiles_m)), tiles_n)
    high = min(ceil(together / wide), tiles_m)
    return (high*rows*shape.bits[0] + wide*columns*shape.bits[1]) * shape.k // 8
