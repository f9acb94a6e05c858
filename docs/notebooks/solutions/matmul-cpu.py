# Solutions of matmul-cpu.ipynb, which the tests use. Each part is the cell of the exercise, without its last line.

# %% cpu.peak
def peak(cores, ghz, lanes, fmas_per_clock):
    return 2 * cores * ghz * lanes * fmas_per_clock

# %% cpu.loads
# (m/MR) (n/NR) tiles, each with MR + NR elements in each of k steps
def loads(m, n, k, MR, NR):
    return m // MR * (n // NR) * (MR + NR) * k

# %% cpu.tile
# 4*3 + 3 + 1 = 16 registers; 5*5 + 5 + 1 = 31 of 32
tiles = {"x86-avx2": (4, 3), "x86-avx512": (5, 5)}

# %% cpu.micro
def emit_micro(MR, NV):
    k = Kernel("micro", kc=i64, a=ptr(f32), b=ptr(f32), c=ptr(f32))
    kc, a, b, c = k.args
    a, b, c = a.view(MR, 1), b.view(8 * NV, 1), c.view(8 * NV, 1)
    acc = k.tile(MR, NV, vec(f32, 8))
    with k.loop(kc) as p:
        row = [k.load(b.at(p, 8 * j), vec(f32, 8), align=4) for j in range(NV)]
        for i in range(MR):
            element = k.broadcast(a[p, i], 8)
            for j in range(NV):
                acc[i, j] = k.fma(element, row[j], acc[i, j])
    for i in range(MR):
        for j in range(NV):
            k.store(c.at(i, 8 * j), acc[i, j], align=4)
    return k.function

# %% cpu.blocks
def blocks(l1, l2, l3, MR, NR):
    KC = l1 // (4 * NR)
    MC = l2 // 2 // (4 * KC) // MR * MR
    NC = l3 // 2 // (4 * KC) // NR * NR
    return MC, KC, NC

# %% cpu.pack
# A is packed once for each block of NC columns, in panels of MR rows; B once, in panels of NR columns
def packed(m, n, k, MC, KC, NC):
    MR, NR = 6, 16

    def up(x, y):
        return -(-x // y)
    return up(n, NC) * up(m, MR) * MR * k + up(n, NR) * NR * k
