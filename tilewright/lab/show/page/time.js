// The run as a strip: a row for each role, what it moves (height is cost, red is conflicts), waits, copies on their way.
function timeRows() {
  if (K.roleRows) return K.roleRows; const per = K.nt / K.warp;
  const rows = K.roles.length > 1 ? K.roles.flatMap(([role, first, warps]) => warps > 4 && !K.cpu ? Array.from({length: warps / 4}, (_, x) => ({name: `${role} ${x}`, test: w => w % per >= first + 4 * x && w % per < first + 4 * x + 4})) : [{name: role, test: w => w % per >= first && w % per < first + warps}]) : [{name: "", test: () => true}];
  const copies = K.steps.filter(s => s.kind.starts && s.kind.op === "store");
  K.copies = copies; K.waits = [];
  for (const [x, row] of rows.entries()) { let open = null;
    for (const s of K.steps) { if (s.w && !s.w.some(row.test)) continue;
      if (s.kind.op === "wake") { if (open) { K.waits.push([x, open.number, s.number, open]); open = null; } }
      else if (/barrier|wait/.test(s.kind.op + (s.kind.text || "")) && !/arrive|expect/.test(s.kind.text || "")) open = s; } }
  return K.roleRows = rows;
}
const timeHeight = () => { const rows = timeRows(); return 20 + (rows.length > 1 ? rows.length * 30 : 44) + (K.copies.length ? 22 : 0); };
function time(p) {
  const rows = timeRows(), N = K.steps.length, x0 = rows.length > 1 ? (p.w < 500 ? 44 : 62) : 0, w = (p.w - x0) / N, h = rows.length > 1 ? 30 : 44; G.time = {x0, w};
  const most = max(1, ...K.steps.map(s => s.kind.space === "shared" ? s.moved : 0)), size = s => s.kind.space === "shared" ? .16 + .84 * s.moved / most : s.q ? .35 : s.a || s.kind.op === "wgmma" ? .4 : .22;
  rows.forEach((row, r) => { const y = r * h; if (row.name) p.text(row.name, x0 - 6, y + h / 2 + 4, {size: p.w < 500 ? 9.5 : 11, fill: H.dim, align: "right"});
    for (const [x, a, b, open] of K.waits) if (x === r && b - a > 1) { const X = x0 + (a + 1) * w, wide = (b - a - 1) * w, what = (open.kind.text || "").replace(/^wait for /, ""); hatch(p, X, y + 3, wide, h - 6, H.faint); if (rows.length > 1 && wide > 8 + 6 * what.length) p.text(what, X + wide / 2, y + h / 2 + 4, {size: 10.5, align: "center", halo: 1, fill: H.dim}); }
    K.steps.forEach((s, q) => { if (s.w && !s.w.some(row.test)) return; const x = x0 + q * w, past = q <= state.step ? 1 : .42;
      if (s.kind.op === "wake") return;
      const sync = /barrier/.test(s.kind.op) && !/mbarrier/.test(s.kind.op), hue = sync ? H.ink : /wait|mbarrier|group|fence/.test(s.kind.op) ? H.S : hueOf(s), bar = size(s) * (h - 6), good = s.moved ? bar * s.ideal / s.moved : bar;
      if (sync) p.rect(x + max(0, w / 2 - 1), y + 2, max(1.5, min(w, 2)), h - 4, {fill: hue, a: past});
      else { p.rect(x, y + h - 2 - bar, max(.8, w - (w > 3 ? 1 : 0)), bar, {fill: s.moved > s.ideal && s.kind.space === "shared" ? H.bad : hue, a: past * .9}); if (s.moved > s.ideal && s.kind.space === "shared") p.rect(x, y + h - 2 - good, max(.8, w - (w > 3 ? 1 : 0)), good, {fill: hue, a: past}); } }); });
  let y = rows.length * h;
  let labelled = -99; K.steps.forEach((s, q) => { const at = K.launchAt(s); if (at > 0 && K.launchAt(K.steps[q - 1]) !== at) { p.line(x0 + q * w, 0, x0 + q * w, y, {stroke: H.ink, dash: [3, 3]}); if (p.w - x0 - q * w > 60 && q * w - labelled > 54) p.text(`launch ${at + 1}`, x0 + q * w + 3, 10, {size: 10, fill: H.dim, halo: 1}), labelled = q * w; } });
  if (K.copies.length) { p.text(x0 ? "copies" : "", x0 - 6, y + 13, {size: p.w < 500 ? 9.5 : 11, fill: H.dim, align: "right"});
    const lanes = []; for (const s of K.copies) { const end = s.arrives ?? N; let l = lanes.findIndex(e => e <= s.number); if (l < 0) l = lanes.push(0) - 1; lanes[l] = end; s.lane = l; }
    const lh = 16 / lanes.length; for (const s of K.copies) { const end = s.arrives ?? N, on = state.step >= s.number && state.step < end, hue = hueOf(s);
      p.rect(x0 + s.number * w, y + 3 + s.lane * lh, max(1.5, (end - s.number) * w), max(1.2, lh - .6), {fill: hue, a: on ? .95 : .4}); }
    y += 22; }
  const first = new Map(); K.steps.forEach(s => { const key = JSON.stringify(s.loops || {}); if (!first.has(key)) first.set(key, s.number); });
  let last = -1e9; for (const [key, q] of first) { const L = Object.entries(JSON.parse(key)), x = x0 + q * w; p.line(x, y, x, y + 5, {stroke: H.dim}); if (x - last < 62 || !L.length || x > p.w - 46) continue; last = x; const [nm, v] = L[L.length - 1]; p.text(`${nm} ${v}`, x + 3, y + 14, {size: 10.5, fill: H.dim}); }
  p.line(x0, y, p.w, y, {stroke: H.rule});
  if (state.fault) for (const s of K.steps) if (s.kind.line === state.fault.removed && s.kind.op !== "wake") { const x = x0 + (s.number + .5) * w, r = max(0, rows.findIndex(row => !s.w || s.w.some(row.test))), m = r * h + h / 2; p.path(`M${x - 4} ${m - 4}L${x + 4} ${m + 4}M${x + 4} ${m - 4}L${x - 4} ${m + 4}`, {stroke: H.bad, lw: 2}); }
  p.rect(x0 + state.step * w - 1, .75, max(3, w + 2), rows.length * h - 1, {stroke: H.ink, lw: 1.75});
}

// ---- in words
const distinct = (refs, me) => new Set(refs.map(r => K.at(r, me.g)).filter(x => x >= 0)).size;
function said(s) {
  const me = K.me(state.i, state.j), per = K.nt / K.warp, own = s.w ? s.w.filter(w => floor(w / per) === me.cta) : [], role = K.roles.find(r => own.length && own.every(w => w % per >= r[1] && w % per < r[1] + r[2])), at = K.launchAt(s), other = at >= 0 && K.launches[at] !== K.launchOf(me.cta);
  const all = !s.w || own.length === per, who = other ? `Launch ${at + 1} of ${K.launches.length}, ${escaped(K.launches[at][0])}: each thread` : K.cpu ? "The thread" : K.roles.length > 1 && role ? `The ${role[0]} ${role[2] > 1 ? `${K.words.warp}s` : K.words.warp}` : all ? "Each thread" : own.length === 1 ? `${K.words.warp[0].toUpperCase() + K.words.warp.slice(1)} ${own[0] % per}` : own.length ? `${own.length} ${K.words.warp}s` : `Another ${K.words.cta}`;
  const k = s.kind, hue = {[H.A]: "a", [H.B]: "b", [H.C]: "c"}[hueOf(s)] || "s", arr = `<span class="${hue}">${escaped(k.array || "")}</span>`, many1 = other || /^Each/.test(who) || who === "Each thread" || who === "The thread" || /^(Warp|Wave|Another)/.test(who), v = (a, b) => many1 ? a : b;
  const cost = k.space === "shared" && s.moved ? (s.moved > s.ideal ? ` <span class="bad">${fmt(s.moved)} passes for ${fmt(s.ideal)}: ${fmt(s.moved - s.ideal)} conflicts.</span>` : ` ${fmt(s.moved)} passes, no conflict.`) : k.space === "global" && s.moved && !K.cpu ? (s.moved > s.ideal ? ` <span class="bad">${fmt(s.moved)} sectors</span> where ${fmt(s.ideal)} would do.` : ` ${fmt(s.moved)} sectors, as few as there can be.`) : "";
  const n = (s.q || []).length * (k.width || 1), els = k.bulk ? "a tile" : n === 1 ? "an element" : `${n} elements${k.width > 1 ? `, ${k.width} at a time,` : ""}`;
  const p = K.depth(s, me), deep = p >= 0 ? ` at k ${p}` : "";
  if (k.op === "load" && k.starts) return `${who} ${v("asks", "ask")} for copies of ${k.bulk ? "a tile" : els} of ${arr}${deep}: they are on their way.${cost}`;
  if (k.op === "store" && k.starts) return `They go to ${arr}, and ${s.arrives == null ? "nobody waits for them" : `have come at step ${s.arrives}`}: until then nobody may touch what they fill.`;
  if (k.op === "load" && k.bulk) return `The tensor cores read ${arr}${deep} for this product.`;
  if (k.op === "load") return `${who} ${v("reads", "read")} ${els} of ${arr}${deep}${k.space === "global" ? "" : " into registers"}.${cost}`;
  if (k.op === "store") return `${who} ${v("writes", "write")} ${els} ${k.array === K.names[2] ? "of" : "to"} ${arr}${deep}.${cost}`;
  if (k.op === "fma") return `${who} ${v("makes", "make")} ${many(s.n, "multiply-add")}${K.cpu && s.a && s.a.length > s.n ? " of vectors" : ""}${deep}${s.a ? `: ${distinct(s.a, me)} of <span class="a">A</span> by ${distinct(s.b, me)} of <span class="b">B</span>` : ""}.`;
  if (k.op === "mma") return `${who.replace("Each thread", `Each ${K.words.warp}`)} ${v("makes", "make")} ${s.n === 1 ? "a matrix product by one instruction" : `${many(s.n, "matrix product")} by one instruction each`}${deep}.`;
  if (k.op === "wgmma") return `A warpgroup starts a product of tiles in shared memory${deep}: it goes on while the warps do other things.`;
  if (k.op === "wake") return `${who} ${v("goes", "go")} on: what was waited for at line ${K.lines[k.line][1]} has come.`;
  if (k.op === "barrier") return `${who} ${v("waits", "wait")} for all ${K.roles.length > 1 && role ? "of the role" : `threads of the ${K.words.cta}`} at a barrier.`;
  return `${who}: ${escaped(k.text || k.op)}.`;
}
