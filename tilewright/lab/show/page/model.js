"use strict";
// The record, ready to be asked: who owns which element, what lies where after a step, what is known of C.
const $ = id => document.getElementById(id), floor = Math.floor, ceil = Math.ceil, max = Math.max, min = Math.min;
const fmt = x => x.toLocaleString("en-US");
const many = (n, word) => `${fmt(n)} ${n === 1 ? word : word.endsWith("s") ? word + "es" : word + "s"}`;
const ITEM = {float64: 8, float32: 4, float16: 2, bfloat16: 2, int8: 1, uint8: 1, int32: 4, e2m1: .5};

async function unpack(element) {
  const bytes = Uint8Array.from(atob(element.textContent.trim()), c => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

class Model {
  constructor(data) {
    Object.assign(this, data);
    [this.m, this.n, this.k] = data.size;
    this.mk = this.rows * this.k;
    this.nt = this.cpu ? 1 : this.lanes;                    // lanes that a CTA counts for, of the largest of all launches
    if (!this.launches.length) this.launches = [["", 0, this.grid[0], this.threads, 1e9]];
    this.ctas = max(1, ceil(this.total / this.nt));
    this.item = min(...this.formats.slice(0, 2).map(x => ITEM[x] || 1));                            // bytes of a cell of memory
    this.itemC = ITEM[this.formats[2]] || 4;
    this.steps.forEach((s, number) => { s.number = number; s.kind = this.kinds[s.k]; Object.assign(s, this.cost(s)); });
    this.top = max(1, ...this.steps.filter(s => s.kind.space === "shared").map(s => s.moved));
    this.counted = this.product && this.steps.some(s => s.a && s.a.length && s.b.length);        // are its products known?
    this.products = this.steps.filter(s => s.a && s.b && ["fma", "mma", "wgmma"].includes(s.kind.op));
    this.tensor = this.steps.some(s => s.kind.op === "mma" || s.kind.op === "wgmma");
    this.staging = [...new Set(this.steps.filter(s => s.kind.op === "store" && (this.cpu || s.kind.space === "shared") && !this.names.includes(s.kind.array)
      && (s.q || []).some(q => q[1].length)).map(s => s.kind.array))];
    this.between = [...new Set(this.steps.filter(s => s.kind.op === "store" && !this.cpu && s.kind.space === "global" && !this.names.includes(s.kind.array)).map(s => s.kind.array))];
    this.own();
    this.reset();
  }

  // ---- references
  at(ref, t) { const x = this.patterns[ref[0]][t]; return x === undefined || x < 0 ? -1 : x + ref[1]; }
  element(id) { return id < this.mk ? {of: "A", i: floor(id / this.k), p: id % this.k} : {of: "B", p: floor((id - this.mk) / this.n), j: (id - this.mk) % this.n}; }
  cost(s) {
    let moved = 0, ideal = 0;
    if (!s.kind.bulk) for (const q of s.q || []) if (q[2] >= 0) for (const [, a, b] of this.costs[q[2]].warps) { moved += a; ideal += b; }
    return {moved, ideal};
  }
  // ids that a thread moves by a request, in memory order: [byte in the array, id or -1]
  moves(s, q, t) {
    const first = this.at(q[0], t); if (first < 0) return [];
    const bytes = s.kind.width * s.kind.item, ids = q[1], rows = ids.length || floor(bytes / this.item) || 1;
    return Array.from({length: rows}, (_, r) => [first * s.kind.item + r * bytes / rows, ids.length ? this.at(ids[r], t) : -1]);
  }
  every(s, q, f, from = 0, to = this.total) {               // f(byte, id, thread) of a request
    if (s.kind.bulk) { const own = q[2], P = this.patterns[q[0][0]], I = q[1].length ? this.patterns[q[1][0][0]] : null;
      if (own >= from - this.nt && own < to) P.forEach((x, e) => f((x + q[0][1]) * s.kind.item, I && I[e] >= 0 ? I[e] + q[1][0][1] : -1, own)); return; }
    for (let t = from; t < to; t++) for (const [byte, id] of this.moves(s, q, t)) f(byte, id, t);
  }

  // ---- who owns an element of C: whose multiply-adds make it, or on tensor cores who stores it
  own() {
    const {m, n} = this; this.owner = new Int32Array(m * n).fill(-1); this.register = new Int32Array(m * n).fill(-1);
    const stores = this.steps.filter(s => s.kind.op === "store" && s.kind.array === this.names[2]);
    let left = m * n;
    if (!this.tensor) for (const s of this.products) { if (!left) break;
      for (let t = 0; t < this.total; t++) { const {a, b} = this.operands(s, t); let r = 0;
        for (const x of a) for (const y of b) if (x.p === y.p) { const c = x.i * n + y.j; if (this.owner[c] < 0) { this.owner[c] = t; this.register[c] = r; left--; } r++; } } }
    const count = new Map();
    if (left) for (const s of stores) for (const q of s.q) this.every(s, q, (byte, _, t) => {
      const c = floor(byte / this.itemC), span = s.kind.bulk ? 1 : max(1, floor(s.kind.item / this.itemC));
      if (!s.kind.bulk && s.q[0][1].length > 1 && byte % s.kind.item) return;
      for (let e = 0; e < span; e++) if (c + e < m * n && this.owner[c + e] < 0) { this.owner[c + e] = t; this.register[c + e] = count.get(t) || 0; count.set(t, (count.get(t) || 0) + 1); } });
    this.tiles = Array.from({length: this.ctas}, () => null);
    const grow = (box, i, j) => box ? {i0: min(box.i0, i), i1: max(box.i1, i + 1), j0: min(box.j0, j), j1: max(box.j1, j + 1)} : {i0: i, i1: i + 1, j0: j, j1: j + 1};
    for (let c = 0; c < m * n; c++) { const cta = this.owner[c] < 0 ? 0 : floor(this.owner[c] / this.nt); this.tiles[cta] = grow(this.tiles[cta], floor(c / n), c % n); }
    this.parts = this.tiles.filter(Boolean).length; this.cells = new Map(); this.owner.forEach((t, c) => { if (!this.cells.has(t)) this.cells.set(t, []); this.cells.get(t).push(c); });
  }
  // threads beside the owner that make products of an element: of other parts of k, added up at the end
  makers(c) {
    if (this.further) return this.further.get(c);
    this.further = new Map(); const one = new Set(), owner = this.owner[0];
    for (const s of this.products) { const {a, b} = this.operands(s, owner); for (const x of a) for (const y of b) if (x.p === y.p && x.i === 0 && y.j === 0) one.add(x.p); }
    if (one.size >= this.k) return undefined;
    for (const s of this.products) for (let t = 0; t < this.total; t++) { const {a, b} = this.operands(s, t); for (const x of a) for (const y of b) if (x.p === y.p) { const e = x.i * this.n + y.j; if (this.owner[e] === t) continue; let own = this.further.get(e); if (!own) this.further.set(e, own = new Set()); own.add(t); } }
    return this.further.get(c);
  }
  launchOf(cta) { return this.launches.filter(x => x[1] <= cta).pop(); }
  // of a step: the number of its launch, and its name; -1 where there is one launch only
  launchAt(s) { if (this.launches.length < 2 || !s.w || !s.w.length) return -1; return this.launches.indexOf(this.launchOf(floor(s.w[0] * this.warp / this.nt))); }
  // the scale of A[i, p], or of B[p, j], and its number
  scale(X, at, p) { const S = this.scales, blocks = ceil(this.k / S.group), x = at * blocks + floor(p / S.group); return [(X ? S.b : S.a)[x], x + (X ? this.m * blocks : 0)]; }
  operands(s, t) {                                          // of a thread's multiply-adds: elements of A and of B
    const of = list => list.map(ref => this.at(ref, t)).filter(x => x >= 0).map(x => this.element(x));
    return {a: of(s.a), b: of(s.b)};
  }
  me(i, j) {
    const g = max(0, this.owner[i * this.n + j]), cta = floor(g / this.nt), t = g % this.nt, [, first, wide, threads] = this.launchOf(cta);
    return {g, cta, t, tx: t % threads[0], ty: floor(t / threads[0]), warp: floor(g / this.warp), lane: g % this.warp,
      bx: (cta - first) % wide, by: floor((cta - first) / wide), register: this.register[i * this.n + j]};
  }
  // which steps make C[i, j], and of which p: [[step, [p ...]] ...]
  made(i, j, me) {
    const key = i + "," + j; this.known ||= new Map(); if (this.known.has(key)) return this.known.get(key);
    const found = [];
    for (const s of this.products) { const all = new Set();
      if (s.kind.op === "wgmma") { const ps = new Set(), qs = new Set(); for (const [list, into, test] of [[s.a, ps, e => e.i === i], [s.b, qs, e => e.j === j]])
        for (const [warps, ref] of list) this.patterns[ref[0]].forEach(x => { const e = this.element(x + ref[1]); if (test(e)) into.add(e.p); }); for (const p of ps) if (qs.has(p)) all.add(p); }
      // each thread, or warp, by itself: where k is split, others than the owner make products, too
      else for (const group of s.kind.op === "fma" ? [[me.g, ...(this.makers(i * this.n + j) || [])]] : s.w.map(w => Array.from({length: this.warp}, (_, l) => w * this.warp + l))) { const ps = new Set(), qs = new Set();
        for (const t of group) { const {a, b} = this.operands(s, t); for (const e of a) if (e.i === i) ps.add(e.p); for (const e of b) if (e.j === j) qs.add(e.p); }
        for (const p of ps) if (qs.has(p)) all.add(p); }
      if (all.size) found.push([s.number, [...all]]); }
    if (this.known.size > 500) this.known.clear();
    this.known.set(key, found); return found;
  }
  done(i, j, step) {                                        // the p whose products C[i, j] holds after a step
    const ps = new Set(); for (const [number, list] of this.made(i, j, this.me(i, j))) if (number <= step) for (const p of list) ps.add(p); return ps;
  }
  sum(i, j, ps) { if (!this.counted) return this.stored(i, j); let t = 0; const S = this.scales; for (const p of ps) t += this.a[i * this.k + p] * this.b[p * this.n + j] * (S ? this.scale(0, i, p)[0] * this.scale(1, j, p)[0] : 1); return t; }

  stored(i, j) {                                            // of a kernel that is no product: the element, once it is written
    if (!this.when) { this.when = new Map(); for (const s of this.steps) if (s.kind.op === "store" && s.kind.array === this.names[2]) for (const q of s.q) this.every(s, q, byte => { const c = floor(byte / this.itemC); if (!this.when.has(c)) this.when.set(c, s.number); }); }
    const c = i * this.n + j; return (this.when.get(c) ?? 1e9) <= state.step ? +(+this.c[c]).toPrecision(3) : "·";
  }

  // ---- what lies where, after so many steps
  reset() { this.now = -1; this.memory = new Map(); }
  cellsOf(array, cta) {
    const key = array + "/" + cta; let x = this.memory.get(key);
    if (!x) { const size = ceil((this.arrays[array] ? this.arrays[array].size * this.arrays[array].item : 1) / this.item) + 8; this.memory.set(key, x = {ids: new Int32Array(size).fill(-1), until: new Int32Array(size)}); }
    return x;
  }
  replay(step) {
    if (step < this.now) this.reset();
    for (; this.now < step; this.now++) { const s = this.steps[this.now + 1];
      if (s.kind.op !== "store" || this.names.includes(s.kind.array)) continue;
      const until = s.kind.starts ? s.arrives ?? 1e9 : 0;
      for (const q of s.q) this.every(s, q, (byte, id, t) => { const x = this.cellsOf(s.kind.array, this.cpu ? 0 : floor(t / this.nt)), c = floor(byte / this.item); x.ids[c] = id; x.until[c] = until; }); }
  }
  // of a CTA: columns p of A and rows p of B that are held, and where
  held(step, cta) {
    const key = step + "/" + cta; if (this.heldKey === key) return this.heldNow; this.replay(step); this.heldKey = key;
    const A = new Map(), B = new Map();
    for (const array of this.staging) { const x = this.cellsOf(array, cta), shape = (this.arrays[array] || {}).shape || [], stages = shape.length > 2 ? shape[0] : 1;
      x.ids.forEach((id, c) => { if (id < 0) return; const e = this.element(id), into = e.of === "A" ? A : B, at = e.of === "A" ? e.i : e.j; let col = into.get(e.p);
        if (!col) into.set(e.p, col = {cells: new Map(), flying: 0, array, stage: floor(c / (x.ids.length - 8) * stages)});
        const flying = x.until[c] > step; if (flying) col.flying++; col.cells.set(at, [array, c, flying]); }); }
    return this.heldNow = {A, B, ps: [...new Set([...A.keys(), ...B.keys()])].sort((x, y) => x - y)};
  }
  // where an array of global memory between launches has each id: [byte, step]
  passed(array) {
    this.passes ||= {}; if (this.passes[array]) return this.passes[array]; const found = this.passes[array] = new Map();
    for (const s of this.steps) if (s.kind.op === "store" && s.kind.array === array) for (const q of s.q) if (q[1].length) this.every(s, q, (byte, id) => { if (id >= 0 && !found.has(id)) found.set(id, [byte, s.number]); });
    return found;
  }
  // scales of blocks: number → where global memory has it, and who reads it first
  scaled() {
    if (this.readScales) return this.readScales; const found = this.readScales = new Map();
    for (const s of this.steps) if (s.kind.op === "load" && s.kind.space === "global") for (const q of s.q) for (const [r, ref] of (q[3] || []).entries()) this.patterns[ref[0]].forEach((x, t) => { if (x < 0) return; const number = x + ref[1], known = found.get(number);
      if (known) { if (known.step === s.number) known.others++; return; } found.set(number, {array: s.kind.array, byte: this.at(q[0], t) * s.kind.item + r, step: s.number, lane: t % this.warp, others: 0}); });
    return found;
  }
  // ids that a thread (of a tensor core's product: its warp) has loaded: id → the first step
  loaded(me) {
    const key = this.tensor ? "w" + me.warp : "t" + me.g; if (this.loadedKey === key) return this.loadedNow; this.loadedKey = key;
    const from = this.tensor ? me.warp * this.warp : me.g, to = this.tensor ? from + this.warp : from + 1, found = new Map();
    for (const s of this.steps) if (s.kind.op === "load" && s.q && !s.kind.starts && !s.kind.bulk) for (const q of s.q) if (q[1].length)
      for (let t = from; t < to; t++) for (const [, id] of this.moves(s, q, t)) if (id >= 0 && !found.has(id)) found.set(id, s.number);
    return this.loadedNow = found;
  }
  // the p that a step is about, for a thread or its warp: of what it moves or multiplies
  depth(s, me) {
    const warp = me.warp;
    if (s.a && s.kind.op === "wgmma") { const ref = (s.a[0] || s.b[0] || [])[1]; return ref ? this.element(this.patterns[ref[0]].find(x => x >= 0) + ref[1]).p : -1; }
    const lists = s.a ? s.a : (s.q || []).flatMap(q => q[1]);
    for (const ref of lists) for (const t of this.tensor ? Array.from({length: this.warp}, (_, l) => warp * this.warp + l) : [me.g]) { const id = this.at(ref, t); if (id >= 0) return this.element(id).p; }
    if (s.kind.bulk && s.q && s.q[0][1].length) { const r = s.q[0][1][0]; return this.element(this.patterns[r[0]].find(x => x >= 0) + r[1]).p; }
    return -1;
  }
  takesPart(s, me) { return !s.w || s.w.includes(me.warp); }
}
