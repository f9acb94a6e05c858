// Memory in rows, and under the same columns the lanes of a warp: banks of shared memory, sectors or cache lines else.
function picked() {
  const wanted = s => s.q && (!s.kind.bulk || s.kind.space === "shared") && (state.pick === "follow" ? true : s.kind.op + " " + s.kind.array === state.pick), me = K.me(state.i, state.j);
  const s = step(); if (wanted(s) && K.takesPart(s, me)) return s;
  for (const d of [-1, 1]) for (let q = state.step; q >= 0 && q < K.steps.length; q += d) if (wanted(K.steps[q]) && K.takesPart(K.steps[q], me)) return K.steps[q];
  return null;
}
// {"lane,element": pass}, passes of each turn, and the fewest: of one request of the selected warp
function served(s, q, me) {
  const cost = q[2] >= 0 ? K.costs[q[2]] : null, phases = cost && cost.phase >= 0 ? K.phases[cost.phase] : [[0]], seen = new Map(), turns = new Map();
  const bytes = s.kind.width * s.kind.item, banks = s.kind.banks || 32;
  for (let lane = 0; lane < K.warp; lane++) { const first = K.at(q[0], me.warp * K.warp + lane); if (first < 0) continue;
    const rows = q[1].length || 1;
    for (let e = 0; e < s.kind.width; e++) { const turn = phases[min(e, phases.length - 1)][lane] ?? 0; if (!turns.has(turn)) turns.set(turn, Array.from({length: banks}, () => []));
      for (let w = 0; w < max(1, s.kind.item / 4); w++) { const word = floor((first + e) * s.kind.item / 4) + w, own = turns.get(turn)[word % banks]; if (!own.includes(word)) own.push(word);
        const pass = own.indexOf(word), key = lane + "," + floor(e * rows / s.kind.width); seen.set(key, max(seen.get(key) || 0, pass)); } } }
  const load = [...turns.values()].map(t => max(...t.map(b => b.length)));
  return {seen, load, turns, banks, total: load.reduce((a, b) => a + b, 0), bytes, told: cost && (cost.warps.find(w => w[0] === me.warp) || [0, 0, 0])};
}
// a tile in shared memory as a bulk copy lays it out: in each row of 128 bytes the pieces of k, by number
function pieces(p, s) {
  const me = K.me(state.i, state.j), x0 = 58, cw = (p.w - x0 - 4) / 8, rh = 15, y0 = 34, x = K.held(state.step, me.cta), col = hueOf(s), at = K.cellsOf(s.kind.array, me.cta), own = [];
  $("bankname").textContent = "Layout"; $("verdict").innerHTML = `<b>${escaped(s.kind.array)}</b> as it lies in memory: the number is the piece of 16 bytes of k, permuted so that a column of pieces lies in different banks`;
  const per = 16 / K.item, e0 = s.q[0][1].length ? K.patterns[s.q[0][0][0]][0] + s.q[0][0][1] : 0, first = floor(e0 * s.kind.item / 128) * 128, rows = floor((p.h - y0 - 8) / rh);
  p.text("bank", x0 - 6, y0 - 5, {size: 9.5, fill: H.dim, align: "right"}); for (let b = 0; b < 8; b++) p.text(4 * b, x0 + (b + .5) * cw, y0 - 5, {size: 9.5, fill: H.dim, align: "center"});
  for (let r = 0; r < rows; r++) { const start = first + r * 128, y = y0 + r * rh; p.text(fmt(start), x0 - 6, y + 11, {size: 9.5, fill: H.dim, align: "right"});
    for (let b = 0; b < 8; b++) { const id = at.ids[(start + b * 16) / K.item]; if (id === undefined) continue; const e = id >= 0 ? K.element(id) : null, n = e ? floor(e.p / per) % 8 : -1, mine = e && (e.of === "A" ? e.i === state.i : e.j === state.j);
      p.rect(x0 + b * cw + .5, y + .5, cw - 1, rh - 1, e ? {fill: col, a: .18 + .1 * n} : {fill: H.grey, a: .13}); if (mine) p.rect(x0 + b * cw + 1, y + 1, cw - 2, rh - 2, {stroke: H.ink, lw: 1.5});
      if (e) p.text(n, x0 + (b + .5) * cw, y + rh / 2 + .5, {size: 10, weight: 600, align: "center", base: "middle"}); } }
  G.lanes = null;
}
function banks(p) {
  const s = picked(), me = K.me(state.i, state.j); $("verdict").textContent = ""; if (!s) { p.text("no access of this kind", 8, 20, {fill: H.dim}); return; }
  if (s.kind.bulk) return pieces(p, s);
  const shared = s.kind.space === "shared", hue = hueOf(s), x0 = p.w < 420 ? 42 : 58, n = shared ? s.kind.banks || 32 : 32, cw = (p.w - x0 - 4) / n;
  const own = s.q.map((q, x) => [q, x]).filter(([q]) => Array.from({length: K.warp}, (_, l) => K.at(q[0], me.warp * K.warp + l)).some(x => x >= 0));
  if (!own.length) { p.text(`${K.words.warp} ${me.warp} takes no part`, 8, 20, {fill: H.dim}); return; }
  const [q, number] = own[min(state.request, own.length - 1)], v = served(s, q, me), granule = K.cpu ? 64 : 32;
  if (shared && !s.kind.starts && v.told && v.total !== v.told[1]) console.error(`passes of step ${s.number}: ${v.total}, and the simulator counts ${v.told[1]}`);
  const verb = s.kind.op, what = `<b>${escaped(s.kind.array)}</b>`, one = `${K.cpu ? "" : `${K.words.warp} ${me.warp % (K.nt / K.warp)}’s `}${s.kind.starts ? "copy" : verb}${own.length > 1 ? ` (${min(state.request, own.length - 1) + 1} of ${own.length})` : ""} of ${what}`;
  const [, moved, ideal] = v.told || [0, 0, 0], unit = shared ? ["pass", "passes"] : K.cpu ? ["line", "lines"] : ["sector", "sectors"];
  $("verdict").innerHTML = K.cpu ? one : `${one}: <span class="${moved > ideal ? "bad" : ""}">${fmt(moved)} ${unit[moved === 1 ? 0 : 1]}</span>` + (moved > ideal ? ` where ${ideal} would do${shared ? `: <span class="bad">${fmt(moved - ideal)} conflicts</span>` : ""}` : shared ? ", no conflict" : ", the fewest there could be");
  $("bankname").textContent = shared ? (n === 64 ? "64 banks" : "Banks") : K.cpu ? "Cache lines" : "Sectors";
  // memory
  const unitBytes = shared ? 4 : 4, rowBytes = n * unitBytes, touchedBytes = new Map();
  for (let l = 0; l < K.warp; l++) { const first = K.at(q[0], me.warp * K.warp + l); if (first < 0) continue;
    for (let e = 0; e < s.kind.width; e++) for (let w = 0; w < max(1, s.kind.item / 4); w++) { const word = floor((first + e) * s.kind.item / 4) + w; const pass = shared ? v.seen.get(l + "," + floor(e * (q[1].length || 1) / s.kind.width)) || 0 : 0; touchedBytes.set(word, max(touchedBytes.get(word) || 0, pass)); } }
  const rowsHere = [...new Set([...touchedBytes.keys()].map(w => floor(w / n)))].sort((a, b) => a - b);
  const size = shared && K.arrays[s.kind.array] ? ceil(K.arrays[s.kind.array].size * K.arrays[s.kind.array].item / rowBytes) : 0;
  const all = shared && size <= 10 ? Array.from({length: size}, (_, x) => x) : rowsHere.slice(0, 12), rh = 13, y0 = 34;
  p.text(`${s.kind.array} as it lies in memory${all.length < rowsHere.length ? `: ${all.length} of ${rowsHere.length} rows touched` : ""}, ${n} words a row`, x0, 11, {size: 11, fill: H.dim});
  for (let b = 0; b < n; b += n === 64 ? 8 : 4) p.text(b, x0 + (b + .5) * cw, y0 - 5, {size: 9.5, fill: H.dim, align: "center"});
  p.text(shared ? "bank" : "word", x0 - 6, y0 - 5, {size: 9.5, fill: H.dim, align: "right"});
  all.forEach((row, x) => { const y = y0 + x * rh; p.text(fmt(row * rowBytes / (shared ? 4 : 1)), x0 - 6, y + 10, {size: 9.5, fill: H.dim, align: "right"});
    for (let b = 0; b < n; b++) { const word = row * n + b, pass = touchedBytes.get(word); p.rect(x0 + b * cw + .5, y + .5, cw - 1, rh - 1, pass == null ? {fill: H.grey, a: .13} : {fill: pass ? H.bad : hue}); }
    if (!shared) for (let b = 0; b <= n; b += granule / 4) p.line(x0 + b * cw, y - 1, x0 + b * cw, y + rh, {stroke: H.dim, a: .7}); });
  // lanes
  const y1 = y0 + all.length * rh + 30, lh = min(13, (p.h - y1 - 4) / K.warp); G.lanes = {y: y1, h: lh, x0};
  if (K.cpu) { p.text("one thread: its vector is a piece of this row", x0, y1 - 8, {size: 11, fill: H.dim}); return; }
  p.text(shared ? `lanes of the ${K.words.warp}; the number is the pass that serves it` : `lanes of the ${K.words.warp}, and the word of the row that each touches`, x0, y1 - 8, {size: 11, fill: H.dim});
  for (let b = 0; b <= n; b += shared ? (n === 64 ? 8 : 4) : granule / 4) p.line(x0 + b * cw, y1, x0 + b * cw, y1 + K.warp * lh, {stroke: H.rule});
  const lane = me.g % K.warp; p.rect(x0 - 40 < 0 ? 0 : x0 - 40, y1 + lane * lh, p.w, lh, {fill: H.R, a: .16});
  for (let l = 0; l < K.warp; l++) { if (l % 8 === 0) p.text(`lane ${l}`, x0 - 6, y1 + l * lh + min(10, lh), {size: 9.5, fill: H.dim, align: "right"});
    const first = K.at(q[0], me.warp * K.warp + l); if (first < 0) continue;
    for (let e = 0; e < s.kind.width; e++) for (let w = 0; w < max(1, s.kind.item / 4); w++) { const word = floor((first + e) * s.kind.item / 4) + w, pass = shared ? v.seen.get(l + "," + floor(e * (q[1].length || 1) / s.kind.width)) || 0 : 0, x = x0 + word % n * cw;
      p.rect(x + .5, y1 + l * lh + .5, cw - 1, max(1, lh - 1), {fill: pass ? H.bad : hue, a: .9});
      if (shared && cw > 8 && lh > 8.5) p.text(pass + 1, x + cw / 2, y1 + l * lh + lh / 2 + .5, {size: 8.5, weight: 600, fill: H.bg, align: "center", base: "middle"}); } }
}
const hueOf = s => { for (const q of s.q || []) for (const ref of q[1]) { const id = K.patterns[ref[0]].find(x => x >= 0); if (id != null) return K.element(id + ref[1]).of === "A" ? H.A : H.B; }
  return s.kind.array === K.names[0] ? H.A : s.kind.array === K.names[1] ? H.B : s.kind.array === K.names[2] ? H.C : s.kind.op === "fma" || s.kind.op === "mma" || s.kind.op === "wgmma" ? H.C : H.dim; };

// where the selected element's operands are: address, sector, bank, lane, register
function where() {
  const me = K.me(state.i, state.j), s = step(), {i, j} = state; let p = K.depth(s, me); if (p < 0) p = 0;
  const held = K.staging.length ? K.held(state.step, me.cta) : null, rows = [];
  const bytes = [ITEM[K.formats[0]] || 1, ITEM[K.formats[1]] || 1, K.itemC], ld = K.layout || {};
  const shown = (X, a, b, id, hue, item) => { const name = K.names[X], out = []; let at = null;
    for (const st of K.steps) { if (st.kind.array !== name || !st.q) continue; for (const q of st.q) { if (at != null || !q[1].length) continue;
      K.every(st, q, (byte, x) => { if (x === id && at == null) at = byte; }); } if (at != null) break; }
    out.push(at == null ? `${name}: not read in this run` : `${name} + ${fmt(floor(at))} bytes${item === .5 && !K.cpu ? at % 1 ? ", high 4 bits" : ", low 4 bits" : ""}, ${K.cpu ? "line " + floor(at / 64) : "sector " + floor(at / 32)}`);
    if (held) { const col = (X ? held.B : held.A).get(p), c = col && col.cells.get(X ? j : i);
      if (c) { const byte = floor(c[1] * K.item); out.push(`${c[0]} + ${fmt(byte)}${K.cpu ? "" : `, bank ${floor(byte / 4) % 32}`}${c[2] ? " (on its way)" : ""}`); } else out.push(K.cpu ? "not packed now" : "not in shared memory now"); }
    const first = K.loaded(me).get(id); if (first != null) out.push(first <= state.step ? (K.tensor ? `in registers of ${K.words.warp} ${me.warp % (K.nt / K.warp)}` : "in a register") : `read in step ${first}`);
    for (const name of K.between) { const found = K.passed(name).get(id); if (found) out.push(`${name} + ${fmt(found[0])} bytes, sector ${floor(found[0] / 32)}, written in step ${found[1]}`); }
    if (K.scales) { const [value, number] = K.scale(X, X ? j : i, p), from = K.scaled().get(number), first = floor(p / K.scales.group) * K.scales.group; out.push(`times ${value}, the scale of k ${first} to ${min(K.k, first + K.scales.group) - 1}${from ? ` (${from.array} + ${fmt(from.byte)} bytes, sector ${floor(from.byte / 32)}; read in step ${from.step} by lane ${from.lane}${from.others ? ` and ${from.others} more` : ""})` : ""}`); }
    rows.push(`<tr><td style="color:var(--${hue})">${X ? `B[${p},${j}]` : `A[${i},${p}]`} = ${X ? K.b[p * K.n + j] : K.a[i * K.k + p]}</td><td>${out.join(" · ")}</td></tr>`); };
  if (K.traced && K.product) { shown(0, i, p, i * K.k + p, "A", bytes[0]); shown(1, p, j, K.mk + p * K.n + j, "B", bytes[1]); }
  const owner = K.owner[i * K.n + j], lane = K.cpu ? "" : owner < 0 ? "its thread is not recorded" : `${K.words.cta} (${me.bx}, ${me.by}), thread (${me.tx}, ${me.ty}), ${K.words.warp} ${me.warp % (K.nt / K.warp)} lane ${me.lane}`;
  rows.push(`<tr><td style="color:var(--C)">${named(2)}[${i},${j}]</td><td>${lane}${!K.cpu && K.register[i * K.n + j] >= 0 ? `, sum ${K.register[i * K.n + j]} of its ${(K.cells.get(owner) || []).length}` : ""}${K.cpu ? "" : " · "}${K.names[2]} + ${fmt((i * K.n + j) * K.itemC)} bytes</td></tr>`);
  $("where").innerHTML = `<table>${rows.join("")}</table>`;
}
