// Three levels at once: global memory, what a CTA holds in shared memory (a CPU in packed panels), and registers.
const G = {};
const named = X => K.product ? "ABC"[X] : K.names[X];
const phone = w => w < 820;
// as high as the largest of the three, at some steps of the run
function levelsHeight(w) {
  if (!K) return 470; const narrow = phone(w), size = narrow ? (w - 30) / 2 : min(352, (w - 120) / 3), third = narrow ? min(w - 24, 330) : size, gap = narrow ? 6 : 9;
  let upper = trio(0, 0, size, size, K.k, K.m, K.n, gap).h, lower = 0; const keep = state.step, N = K.steps.length;
  for (let x = 0; x < 9; x++) { state.step = min(N - 1, floor(x * N / 8)); const me = K.me(state.i, state.j), tile = K.tiles[me.cta] || {i0: 0, i1: K.m, j0: 0, j1: K.n}, held = K.staging.length ? K.held(state.step, me.cta) : null;
    const box = K.cpu && held ? panels(held, tile) : tile, r3 = registers(me, step());
    upper = max(upper, trio(0, 0, size, size, held ? max(1, held.ps.length) : K.k, box.i1 - box.i0, box.j1 - box.j0, gap).h); lower = max(lower, trio(0, 0, third, third, r3.ps.length, r3.rows.length, r3.cols.length, gap).h); }
  state.step = keep; G.upper = upper; return narrow ? 54 - 12 + upper + 60 + lower + 34 : 54 + max(upper, lower) + 34;
}
const isOf = (e, X) => e && e.of === X;

function levels(p) {
  const {m, n, k} = K, s = step(), me = K.me(state.i, state.j), narrow = phone(p.w), top = 54, {i, j} = state;
  const size = narrow ? (p.w - 30) / 2 : min(352, (p.w - 120) / 3), third = narrow ? min(p.w - 24, 330) : size, gap = narrow ? 6 : 9;
  const X = narrow ? [4, p.w - size - 4, (p.w - third) / 2] : [4, (p.w - size) / 2, p.w - size - 4];
  const Y = narrow ? [top - 12, top - 12, top - 12 + (G.upper || size) + 58] : [top, top, top];
  const tile = K.tiles[me.cta] || {i0: 0, i1: m, j0: 0, j1: n};
  const held = K.staging.length ? K.held(state.step, me.cta) : {A: new Map(), B: new Map(), ps: []};
  const whole = !K.staging.length, ps = whole ? Array.from({length: k}, (_, x) => x) : held.ps, place = new Map(ps.map((x, y) => [x, y]));
  const box = K.cpu && !whole ? panels(held, tile) : tile, rows2 = box.i1 - box.i0, cols2 = box.j1 - box.j0, deep2 = max(ps.length, 1);
  const r3 = registers(me, s), g1 = G.g1 = trio(X[0], Y[0], size, size, k, max(m, K.rows), n, gap); g1.A.h = K.rows * g1.u; g1.C.h = m * g1.u;
  const g2 = G.g2 = Object.assign(trio(X[1], Y[1], size, size, deep2, rows2, cols2, gap), {box, ps, place});
  const g3 = G.g3 = Object.assign(trio(X[2], Y[2], third, third, r3.ps.length, r3.rows.length, r3.cols.length, gap), {r3});
  const title = (x, y, a, b, hue) => { p.text(a, x, y - (narrow ? 19 : 37), {weight: 650, size: narrow ? 12.5 : 13.5, fill: hue, halo: 1}); if (!narrow) p.text(b, x, y - 21, {size: 11.5, fill: H.dim}); };

  // zoom lines: from a CTA's tile to the second level, from a thread's corner of it to the third
  const from1 = {x: g1.C.x + box.j0 * g1.u, y: g1.C.y + box.i0 * g1.u, w: cols2 * g1.u, h: rows2 * g1.u};
  const near = r3.rows.every((r, x) => !x || r === r3.rows[x - 1] + 1) && r3.cols.every((c, x) => !x || c === r3.cols[x - 1] + 1);
  const seen2 = r3.rows[0] >= box.i0 && r3.cols[0] >= box.j0 && r3.rows[0] < box.i1 && r3.cols[0] < box.j1;
  const from2 = {x: g2.C.x + (r3.cols[0] - box.j0) * g2.u, y: g2.C.y + (r3.rows[0] - box.i0) * g2.u, w: (near ? r3.cols.length : 1) * g2.u, h: (near ? r3.rows.length : 1) * g2.u};
  const zoom = (f, M, hue, down) => {
    if (down) { p.path(`M${f.x} ${f.y + f.h}L${M.x} ${M.y}L${M.x + M.w} ${M.y}L${f.x + f.w} ${f.y + f.h}Z`, {fill: hue, a: .05}); return; }
    p.path(`M${f.x + f.w} ${f.y}L${M.x} ${M.y}L${M.x} ${M.y + M.h}L${f.x + f.w} ${f.y + f.h}Z`, {fill: hue, a: .05});
    p.path(`M${f.x + f.w} ${f.y}L${M.x} ${M.y}M${f.x + f.w} ${f.y + f.h}L${M.x} ${M.y + M.h}`, {stroke: hue, a: .45}); };
  zoom(from1, g2.C, H.S); if (seen2) zoom(from2, g3.C, H.R, narrow);
  for (const g of [g2, g3]) for (const M of [g.A, g.B, g.C]) p.rect(M.x, M.y, M.w, M.h, {fill: H.bg});

  // 1: global memory
  const tr = tile.i1 - tile.i0, tc = tile.j1 - tile.j0, done = K.done(i, j, state.step), share = done.size / k;
  title(X[0], Y[0], "Global memory", K.parts > 1 ? `${named(2)} ${m} × ${n} in ${K.parts} tiles of ${tr} × ${tc}, one for each ${K.words.cta}` : K.cpu ? `A ${m} × ${k}, B ${k} × ${n}, C ${m} × ${n}` : `${named(2)} ${m} × ${n}, the tile of one ${K.words.cta}`, H.ink);
  matrix(p, g1.A, H.A, g1.u, 0, tr); matrix(p, g1.B, H.B, g1.u, tc, 0); matrix(p, g1.C, H.C, g1.u, tc, tr, {a: .05 + .3 * share, ga: .6});
  for (const x of runs(ps, whole)) { const w = (x[1] - x[0] + 1) * g1.u, f = held.A.get(x[0])?.flying || held.B.get(x[0])?.flying;
    const slab = (M, a, b, c, d, hue) => { if (f) hatch(p, a, b, c, d, hue); else p.rect(a, b, c, d, {fill: hue, a: .28}); p.rect(a, b, c, d, {stroke: hue, lw: f ? 1 : 2}); };
    if (!whole && held.A.has(x[0])) slab(g1.A, g1.A.x + x[0] * g1.u, g1.A.y + box.i0 * g1.u, w, rows2 * g1.u, H.A);
    if (!whole && held.B.has(x[0])) slab(g1.B, g1.B.x + box.j0 * g1.u, g1.B.y + x[0] * g1.u, cols2 * g1.u, w, H.B); }
  p.rect(from1.x, from1.y, from1.w, from1.h, {stroke: H.S, lw: 2.5});
  const lit = touched(s, me);
  for (const [ids, a] of [[lit.others, .45], [lit.mine, 1]]) {
    cells(p, g1.A, g1.u, ids.filter(e => isOf(e, "A")).map(e => [e.i, e.p]), {fill: H.A, a});
    cells(p, g1.B, g1.u, ids.filter(e => isOf(e, "B")).map(e => [e.p, e.j]), {fill: H.B, a});
    cells(p, g1.C, g1.u, ids.filter(e => isOf(e, "C")).map(e => [e.i, e.j]), {fill: H.C, a}); }
  band(p, g1.A, g1.u, i, 0, 1, k, H.A); band(p, g1.B, g1.u, 0, j, k, 1, H.B); if (K.scales) blocks(p, g1, s, i, j); cross(p, g1, i, j, i, j, narrow);
  name(p, g1.A, named(0), H.A, 6, g1.A.h - 7); if (K.names[1] !== "-") name(p, g1.B, named(1), H.B, g1.B.w - 17, 18); name(p, g1.C, named(2), H.C, g1.C.w - 18, g1.C.h - 8);

  // 2: what the CTA holds
  second(p, g2, held, whole, s, me, done, narrow, title, X[1], Y[1], lit);
  if (near && seen2 && !K.cpu && !K.tensor) matrix(p, g2.C, H.C, g2.u, r3.cols.length, r3.rows.length, {a: 0, ga: .3});
  if (!near && !whole && seen2) cells(p, g2.C, g2.u, r3.rows.flatMap(r => r3.cols.map(c => [r - box.i0, c - box.j0])), {fill: H.R, a: .35});
  if (seen2) p.rect(from2.x, from2.y, max(from2.w, 2), max(from2.h, 2), {stroke: H.R, lw: near ? 2.5 : 1.5});
  cross(p, g2, i - box.i0, j - box.j0);

  // 3: registers
  third_(p, g3, s, me, done, narrow, title, X[2], Y[2]);
  if (!state.fault) links(p, s, me, narrow);
  else race(p, narrow);
}

// blocks of elements that share a scale: the selected row's and column's framed, filled where a step moves their scales
function blocks(p, g, s, i, j) {
  const {group} = K.scales, wide = ceil(K.k / group), draw = (X, at, b, o) => { const n = min(group, K.k - b * group) * g.u, e = o.stroke ? 2 : 0; if (X) p.rect(g.B.x + at * g.u - e, g.B.y + b * group * g.u, g.u + 2 * e, n, o); else p.rect(g.A.x + b * group * g.u, g.A.y + at * g.u - e, n, g.u + 2 * e, o); };
  for (const x of scalesOf(s)) { const X = x >= K.m * wide, y = X ? x - K.m * wide : x; draw(X, floor(y / wide), y % wide, {fill: H.S, a: .35}); }
  for (let b = 0; b < wide; b++) { for (const [X, at] of [[0, i], [1, j]]) draw(X, at, b, {stroke: H.S, lw: 1}); }
}
function scalesOf(s) {                                      // numbers of the scales that a step moves
  const found = new Set(); for (const q of s.q || []) for (const ref of q[3] || []) for (const x of K.patterns[ref[0]]) if (x >= 0) found.add(x + ref[1]); return found;
}

const runs = (list, skip) => { const out = []; if (skip) return out; for (const x of list) { const l = out[out.length - 1]; if (l && x === l[1] + 1 && x % 64) l[1] = x; else out.push([x, x]); } return out; };
const band = (p, M, u, r, c, h, w, hue) => M.w && p.rect(M.x + c * u, M.y + r * u, max(w * u, 1), max(h * u, 1), {fill: hue, a: .75});
const name = (p, M, s, hue, dx, dy) => M.w && p.text(s, M.x + dx, M.y + dy, {weight: 700, size: 15, fill: hue, halo: 1});
function cross(p, g, r, c, i, j, narrow) {
  const [x, y] = mid(g.C, g.u, r, c); if (r < 0 || c < 0 || y > g.C.y + g.C.h || x > g.C.x + g.C.w) return;
  p.line(g.A.x + g.A.w, y, x, y, {stroke: H.A, a: .6}); if (g.B.w) p.line(x, g.B.y + g.B.h, x, y, {stroke: H.B, a: .6});
  const u = max(g.u, 3); p.rect(x - u / 2 - 1, y - u / 2 - 1, u + 2, u + 2, {fill: H.C, stroke: H.ink, lw: 1.5});
  if (i == null) return; const low = i > K.m * .72, flip = j > K.n * (narrow ? .4 : .72);
  p.text(`${named(2)}[${i},${j}]`, x + (flip ? -8 : 8), y + (low ? -8 : 16), {size: 12, weight: 600, mono: 1, fill: H.C, halo: 1, align: flip ? "right" : "left"});
}
function panels(held, tile) {                               // rows of A and columns of B that a CPU has packed
  const of = map => { let a = 1e9, b = -1; for (const col of map.values()) for (const x of col.cells.keys()) { a = min(a, x); b = max(b, x + 1); } return [a, b]; };
  const [i0, i1] = of(held.A), [j0, j1] = of(held.B);
  return {i0: i1 < 0 ? tile.i0 : i0, i1: i1 < 0 ? tile.i1 : i1, j0: j1 < 0 ? tile.j0 : j0, j1: j1 < 0 ? tile.j1 : j1};
}
// elements that a step moves, by the selected thread's CTA and by others
function touched(s, me) {
  const key = state.step + "/" + me.cta + K.id; if (touched.key === key) return touched.now; touched.key = key;
  const mine = [], others = [];
  for (const q of s.q || []) K.every(s, q, (byte, id, t) => { const into = floor(t / K.nt) === me.cta ? mine : others;
    if (s.kind.array === K.names[2]) { const c = floor(byte / K.itemC); into.push({of: "C", i: floor(c / K.n), j: c % K.n}); }
    else if (id >= 0) into.push({...K.element(id), id, t}); });
  return touched.now = {mine, others};
}

function second(p, g, held, whole, s, me, done, narrow, title, x0, y0, lit) {
  const {box, ps, place} = g, cta = K.cpu ? "" : ` of ${K.words.cta} (${me.bx}, ${me.by})`, rows = box.i1 - box.i0, cols = box.j1 - box.j0;
  const said = whole ? [K.cpu ? "Rows and columns" : narrow ? `${K.words.cta} (${me.bx}, ${me.by})` : `The tile${cta}`, K.cpu ? "nothing is packed: the loops read A and B themselves" : "nothing is shared: each thread reads global memory itself"]
    : K.cpu ? ["Packed panels", `A ${rows} × ${ps.length} and B ${ps.length} × ${cols}, copied once, used many times`]
    : [narrow ? `Shared, ${K.words.cta} (${me.bx}, ${me.by})` : `Shared memory${cta}`, `${stages(held)}, ${K.threads[0] * K.threads[1]} threads`];
  title(x0, y0, said[0], said[1], H.S);
  const fine = g.u > 5 ? 1 : 0;
  matrix(p, g.A, H.A, g.u, fine, fine, {ga: .14, a: whole ? .08 : .04}); matrix(p, g.B, H.B, g.u, fine, fine, {ga: .14, a: whole ? .08 : .04});
  for (const M of whole ? [] : [g.A, g.B]) p.rect(M.x - 3, M.y - 3, M.w + 6, M.h + 6, {stroke: H.S, lw: 1.5, a: .9});
  matrix(p, g.C, H.C, g.u, 0, 0, {a: .05 + .2 * done.size / K.k});
  warps(p, g, me, narrow);
  // what is held: solid; on its way: hatched
  for (const [map, M, hue, down] of [[held.A, g.A, H.A, 0], [held.B, g.B, H.B, 1]]) for (const [q, col] of map) {
    const o = place.get(q) * g.u, list = [...col.cells.keys()].sort((a, b) => a - b), base = down ? box.j0 : box.i0;
    for (let a = 0; a < list.length;) { let b = a; while (b + 1 < list.length && list[b + 1] === list[b] + 1 && col.cells.get(list[b + 1])[2] === col.cells.get(list[a])[2]) b++;
      const start = (list[a] - base) * g.u, len = (list[b] - list[a] + 1) * g.u, R = down ? [M.x + start, M.y + o, len, g.u] : [M.x + o, M.y + start, g.u, len];
      if (col.cells.get(list[a])[2]) p.rect(...R, {fill: hue, a: .13}); else p.rect(...R, {fill: hue, a: .36});
      a = b + 1; } }
  for (const [a, b] of runs(ps, whole)) { const q = held.A.get(a) || held.B.get(a); if (!q) continue; const x = g.A.x + place.get(a) * g.u, w = (place.get(b) - place.get(a) + 1) * g.u;
    if (held.A.get(a)?.flying) hatch(p, x, g.A.y, w, g.A.h, H.A); if (held.B.get(a)?.flying) hatch(p, g.B.x, g.B.y + place.get(a) * g.u, g.B.w, w, H.B);
    if (ps.length && place.get(a)) { p.line(x, g.A.y - 3, x, g.A.y + g.A.h + 3, {stroke: H.S, lw: 1.5}); p.line(g.B.x - 3, g.B.y + place.get(a) * g.u, g.B.x + g.B.w + 3, g.B.y + place.get(a) * g.u, {stroke: H.S, lw: 1.5}); }
    if (w > 26 && !narrow) p.text(q.flying ? "on its way" : `k ${a}–${b}`, x + w / 2, g.A.y - 7, {size: 10.5, weight: 600, align: "center", fill: H.A, halo: 1}); }
  const spot = (list, o) => { cells(p, g.A, g.u, list.filter(e => isOf(e, "A") && place.has(e.p)).map(e => [e.i - box.i0, place.get(e.p)]), {fill: H.A, ...o}); cells(p, g.B, g.u, list.filter(e => isOf(e, "B") && place.has(e.p)).map(e => [place.get(e.p), e.j - box.j0]), {fill: H.B, ...o});
    cells(p, g.C, g.u, list.filter(e => isOf(e, "C")).map(e => [e.i - box.i0, e.j - box.j0]).filter(([r, c]) => r >= 0 && c >= 0 && r < rows && c < cols), {fill: H.C, ...o}); };
  if (!(s.kind.starts && s.kind.op === "load")) { spot(lit.mine, {a: .6}); if (!K.cpu) spot(lit.mine.filter(e => floor(e.t / K.warp) === me.warp), {a: 1}); }
  if (!state.fault && s.kind.space === "shared" && s.moved > s.ideal) { const bad = []; for (const q of s.q) { const v = served(s, q, me); for (const [key, pass] of v.seen) if (pass) { const [lane, e] = key.split(",").map(Number), x = K.moves(s, q, me.warp * K.warp + lane)[e]; if (x && x[1] >= 0) bad.push(K.element(x[1])); } }
    cells(p, g.A, g.u, bad.filter(e => isOf(e, "A") && place.has(e.p)).map(e => [e.i - box.i0, place.get(e.p)]), {fill: H.bad}); cells(p, g.B, g.u, bad.filter(e => isOf(e, "B") && place.has(e.p)).map(e => [place.get(e.p), e.j - box.j0]), {fill: H.bad}); }
  for (const q of ps) { if (whole || held.A.get(q)?.cells.has(state.i)) band(p, g.A, g.u, state.i - box.i0, place.get(q), 1, 1, H.A); if (whole || held.B.get(q)?.cells.has(state.j)) band(p, g.B, g.u, place.get(q), state.j - box.j0, 1, 1, H.B); }
  const mark = K.depth(s, me); if (mark >= 0 && place.has(mark) && !narrow && g.u > 3) p.text(`k ${mark}`, g.A.x + (place.get(mark) + .5) * g.u, g.A.y + g.A.h + 14, {size: 10.5, weight: 600, align: "center", fill: H.A, halo: 1});
  if (!whole) { name(p, g.A, !K.product ? K.staging[0] : K.cpu ? "packed A" : "sA", H.A, 5, g.A.h - 7); name(p, g.B, K.cpu ? "packed B" : "sB", H.B, max(4, g.B.w - (K.cpu ? 68 : 26)), 19); }
  if (!ps.length) p.text(narrow ? "empty" : "nothing has been copied yet", g.C.x + g.C.w / 2, g.C.y + g.C.h / 2, {size: 12, fill: H.dim, align: "center"});
}
function stages(held) {
  const widths = a => (K.arrays[a] || {shape: []}).shape.join(" × "); return K.staging.slice(0, 3).map(a => `${a} ${widths(a)}`).join(", ") || "—";
}
function warps(p, g, me, narrow) {                          // the selected warp's elements of C
  if (K.cpu) return; const list = []; const from = me.warp * K.warp;
  for (let t = from; t < from + K.warp; t++) for (const c of K.cells.get(t) || []) list.push([floor(c / K.n) - g.box.i0, c % K.n - g.box.j0]);
  if (!list.length) return; cells(p, g.C, g.u, list, {fill: H.R, a: .14});
  const low = list.reduce((a, [r]) => max(a, r), 0), right = list.reduce((a, [, c]) => max(a, c), 0);
  if (!(narrow && state.fault)) p.text(`${K.words.warp} ${me.warp % (K.nt / K.warp)}`, g.C.x + (right + 1) * g.u - 5, g.C.y + (low + 1) * g.u - 6, {size: 11.5, weight: 600, fill: H.R, align: "right", halo: 1});
}

// What the third level shows: a thread's sums, or on tensor cores a block of 16 x 8 and which lanes hold it
function registers(me, s) {
  const {i, j} = state, key = [K.id, me.g, K.tensor || K.cpu ? [i, j] : "", K.cpu ? state.step : ""].join("/");
  if (registers.key !== key) { registers.key = key;
    let rows = [i], cols = [j]; const tile = K.tiles[me.cta];
    if (K.tensor) { const span = (a, z, b, size) => { const first = a + floor((z - a) / size) * size; return Array.from({length: min(size, b - first)}, (_, x) => first + x); };
      rows = span(tile.i0, i, tile.i1, 8); cols = span(tile.j0, j, tile.j1, 8); }
    else if (K.cpu) { const t = K.products.filter(x => x.number <= state.step).pop() || K.products[0]; const {a, b} = t ? K.operands(t, 0) : {a: [], b: []};
      if (a.length && b.length) { rows = [...new Set(a.map(e => e.i))].sort((x, y) => x - y); cols = [...new Set(b.map(e => e.j))].sort((x, y) => x - y); } }
    else for (const t of K.products) { const {a, b} = K.operands(t, me.g); if (!a.some(e => e.i === i) || !b.some(e => e.j === j)) continue;
      const p = a.find(e => e.i === i).p; rows = [...new Set(a.filter(e => e.p === p).map(e => e.i))].sort((x, y) => x - y); cols = [...new Set(b.filter(e => e.p === p).map(e => e.j))].sort((x, y) => x - y); break; }
    registers.now = {rows, cols}; }
  let p = K.depth(s, me); if (p < 0 || s.kind.starts) p = (K.made(i, j, me).filter(x => x[0] <= state.step).pop() || [0, [-1]])[1][0];
  const deep = K.tensor ? 8 : 1, ps = K.tensor ? Array.from({length: min(deep, K.k)}, (_, x) => min(floor(max(p, 0) / deep) * deep, max(0, K.k - deep)) + x) : [p];
  return {...registers.now, ps, p};
}
function third_(p, g, s, me, done, narrow, title, x0, y0) {
  const {rows, cols, ps} = g.r3, u = g.u, who = K.cpu ? "the tile" : K.tensor ? `${K.words.warp} ${me.warp % (K.nt / K.warp)}` : `thread (${me.tx}, ${me.ty})`;
  title(x0, y0, K.tensor ? `Fragments of ${who}` : `Registers of ${who}`, K.tensor ? `${rows.length} × ${cols.length} of C: in each cell the lane that holds it` : !K.product ? `what it has read, and writes to ${K.names[2]}` : K.cpu ? `acc: ${rows.length} × ${cols.length} sums, in vectors along a row` : `acc: ${rows.length} × ${cols.length} sums; every a meets every b`, H.R);
  matrix(p, g.A, H.A, u, 1, 1); matrix(p, g.B, H.B, u, 1, 1); matrix(p, g.C, H.C, u, 1, 1, {a: .06 + .3 * done.size / K.k});
  for (const M of [g.A, g.B, g.C]) p.rect(M.x - 3, M.y - 3, M.w + 6, M.h + 6, {stroke: H.R, lw: 1.5, a: .9});
  const have = K.loaded(me), mult = s.a && K.takesPart(s, me), big = u > 44, text = u > 15, mono = min(10.5, u * .2);
  const cell = (M, r, c, v, sub, hue, on, strong) => { if (!M.w) return; const x = M.x + c * u, y = M.y + r * u; if (on) p.rect(x + 1, y + 1, u - 2, u - 2, {fill: hue, a: strong ? .9 : .35});
    const ink = strong && on ? H.bg : H.ink; if (v != null && text) p.text(v, x + u / 2, y + u / 2 + (big ? -3 : 0), {size: big ? 19 : min(13, u * .42), weight: 600, align: "center", base: "middle", fill: ink});
    if (sub && big) p.text(sub, x + u / 2, y + u - 8, {size: mono, mono: 1, align: "center", fill: strong && on ? H.bg : H.dim}); };
  const wg = s.kind.op === "wgmma" || K.products.some(x => x.kind.op === "wgmma");
  rows.forEach((r, x) => ps.forEach((q, y) => { const known = q >= 0 && (wg ? true : (have.get(r * K.k + q) ?? 1e9) <= state.step); cell(g.A, x, y, known ? K.a[r * K.k + q] : null, `${named(0)}[${r},${q < 0 ? "k" : q}]`, H.A, known, r === state.i && !K.tensor); }));
  cols.forEach((c, x) => ps.forEach((q, y) => { const known = q >= 0 && (wg ? true : (have.get(K.mk + q * K.n + c) ?? 1e9) <= state.step); cell(g.B, y, x, known ? K.b[q * K.n + c] : null, `B[${q < 0 ? "k" : q},${c}]`, H.B, known, c === state.j && !K.tensor); }));
  const stored = s.kind.array === K.names[2];
  const own = K.cpu ? K.done(rows[0], cols[0], state.step) : done;
  rows.forEach((r, x) => cols.forEach((c, y) => { const h = r === state.i && c === state.j, lane = K.owner[r * K.n + c];
    const v = K.tensor ? (lane < 0 ? null : lane % K.warp) : K.sum(r, c, own), hue = K.tensor && lane >= 0 ? (lane % K.warp % 4 % 2 ? H.C : H.S) : H.C;
    cell(g.C, x, y, v, `${named(2)}[${r},${c}]`, hue, mult || h || stored || K.tensor, h); if (h) p.rect(g.C.x + y * u, g.C.y + x * u, u, u, {stroke: H.ink, lw: 2}); }));
  const {i, j} = state, now = mult ? (K.made(i, j, me).find(x => x[0] === s.number) || [0, []])[1] : [];
  const list = now.length === 1 ? `C[${i},${j}] += ${K.a[i * K.k + now[0]]} · ${K.b[now[0] * K.n + j]} = ${K.sum(i, j, done)}` : K.counted ? `C[${i},${j}] = ${K.sum(i, j, done)} after ${done.size} of ${K.k} products` : `${K.names[2]}[${i},${j}] = ${K.stored(i, j)}`;
  p.text(list, narrow ? p.w - 8 : g.C.x + g.C.w, g.C.y + g.C.h + 19, {size: 12.5, mono: 1, align: "right", fill: H.ink, halo: 1});
}

// what the selected thread itself moves now, as lines from level to level
function links(p, s, me, narrow) {
  if (!s.q || s.kind.bulk || s.kind.array === K.names[2] || narrow) return;
  const {g1, g2, g3} = G, link = (a, b, hue) => { const d = curve(...a, ...b); p.path(d, {stroke: H.bg, lw: 4, a: .7}); p.path(d, {stroke: hue, lw: 1.75});
    p.path(`M${a[0] - 2.5} ${a[1]}a2.5 2.5 0 1 0 5 0a2.5 2.5 0 1 0 -5 0`, {fill: H.bg, stroke: hue, lw: 1.5}); p.path(`M${b[0] - 3} ${b[1]}a3 3 0 1 0 6 0a3 3 0 1 0 -6 0`, {fill: hue}); };
  const seen = new Set();
  for (const q of s.q) for (const [, id] of K.moves(s, q, me.g)) { if (id < 0 || seen.has(id) || seen.size > 15) continue; seen.add(id); const e = K.element(id), A = e.of === "A", hue = A ? H.A : H.B;
    const global = A ? mid(g1.A, g1.u, e.i, e.p) : mid(g1.B, g1.u, e.p, e.j), y = g2.place.get(e.p), in2 = y != null && (A ? mid(g2.A, g2.u, e.i - g2.box.i0, y) : mid(g2.B, g2.u, y, e.j - g2.box.j0));
    const x3 = A ? g3.r3.rows.indexOf(e.i) : g3.r3.cols.indexOf(e.j), y3 = g3.r3.ps.indexOf(e.p);
    const in3 = x3 >= 0 && y3 >= 0 && (A ? [g3.A.x + y3 * g3.u, g3.A.y + (x3 + .5) * g3.u] : [g3.B.x + (x3 + .5) * g3.u, g3.B.y + y3 * g3.u]);
    const from = s.kind.op === "store" ? global : K.names.includes(s.kind.array) ? global : in2, to = s.kind.op === "store" ? in2 : in3;
    if (from && to) link(from, to, hue); }
}
const ctaOf = w => { const [, first, wide] = K.launches[w.launch || 0]; return first + (w.block[1] || 0) * wide + (w.block[0] || 0); };
function race(p, narrow) {
  const f = state.fault, {g2} = G, s = step(); if (f.element == null || !f.here) return;
  const cta = ctaOf(f.here), kind = K.steps.map(x => x.kind).find(x => x.array === f.array && x.line === f.line) || s.kind;
  const number = w => w ? cta * K.nt + (w.thread[1] || 0) * K.launchOf(cta)[3][0] + w.thread[0] : -1, byte = f.element * (kind.item || K.item);
  const id = K.names.includes(f.array) ? -1 : K.cellsOf(f.array, K.cpu ? 0 : cta).ids[floor(byte / K.item)], e = id >= 0 ? K.element(id) : null;
  const y = e ? g2.place.get(e.p) : null, M = e && e.of === "A" ? g2.A : g2.B, spot = e && y != null ? (e.of === "A" ? mid(M, g2.u, e.i - g2.box.i0, y) : mid(M, g2.u, y, e.j - g2.box.j0)) : null;
  const corner = w => { const own = (K.cells.get(number(w)) || []).map(c => [floor(c / K.n) - g2.box.i0, c % K.n - g2.box.j0]); if (!own.length) return null;
    const r = min(...own.map(o => o[0])), c = min(...own.map(o => o[1])), near = own.length < 80 && own.every(o => o[0] - r < 9 && o[1] - c < 9), h = near ? max(...own.map(o => o[0])) - r + 1 : 1, w2 = near ? max(...own.map(o => o[1])) - c + 1 : 1;
    return {x: g2.C.x + c * g2.u, y: g2.C.y + r * g2.u, w: w2 * g2.u, h: h * g2.u}; };
  const arrow = (x, y, X, Y, bend) => { const mx = (x + X) / 2, my = (y + Y) / 2 + bend, dx = X - mx, dy = Y - my, l = Math.hypot(dx, dy) || 1, ux = dx / l, uy = dy / l, d = `M${x} ${y}Q${mx} ${my} ${X} ${Y}`;
    p.path(d, {stroke: H.bg, lw: 6, a: .8}); p.path(d, {stroke: H.bad, lw: 2.25}); p.path(`M${X} ${Y}L${X - 9 * ux + 5 * uy} ${Y - 9 * uy - 5 * ux}L${X - 9 * ux - 5 * uy} ${Y - 9 * uy + 5 * ux}Z`, {fill: H.bad}); };
  if (spot) p.rect(spot[0] - max(g2.u, 5) / 2 - 1, spot[1] - max(g2.u, 5) / 2 - 1, max(g2.u, 5) + 2, max(g2.u, 5) + 2, {fill: H.bad, stroke: H.bg, lw: 1.5});
  const writes = w => /store|writ|copy/.test(w.verb), say = (w, row) => { const who = K.cpu ? "" : `thread (${w.thread})`; const y0 = g2.C.y + g2.C.h - (narrow ? 24 : 28) + row * (narrow ? 13 : 17);
    p.text(`${who} ${w === f.other && /flight/.test(f.message) ? "has a copy in flight" : writes(w) ? "writes" : "reads"}${w.line != null ? `, line ${K.lines[w.line][1]}` : ""}`, narrow ? p.w - 6 : g2.C.x + 5, y0, {size: narrow ? 10.5 : 12.5, weight: 650, fill: H.bad, halo: 1, align: narrow ? "right" : "left"}); };
  for (const [w, bend] of [[f.other, 26], [f.here, -40]]) { const b = w && corner(w); if (!b) continue; p.rect(b.x, b.y, b.w, b.h, {fill: H.bad, a: .25, stroke: H.bad, lw: 2.5}); if (!spot) continue;
    if (writes(w)) arrow(b.x + 2, b.y + b.h / 2, spot[0] + 4, spot[1] + 2, bend); else arrow(spot[0] + 4, spot[1] - 2, b.x + b.w / 2, b.y, bend); }
  say(f.here, 1); if (f.other) say(f.other, 0);
  const label = `${f.array}[${f.element}]${e ? ` = ${e.of}[${e.of === "A" ? `${e.i},${e.p}` : `${e.p},${e.j}`}]` : ""}`;
  p.text(f.kind === "race" ? `${label}: who is first?` : label, narrow ? p.w - 6 : g2.C.x + 5, g2.C.y + g2.C.h - (narrow ? 38 : 47), {size: narrow ? 11 : 12.5, weight: 650, fill: H.bad, halo: 1, align: narrow ? "right" : "left"});
}
