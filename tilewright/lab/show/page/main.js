// What is selected, and what changes it: pointer, keys, buttons, the address.
let D, K, MODELS;
const state = {step: 0, i: 0, j: 0, pick: "follow", request: 0, fault: null, play: null, tab: "Python", chip: "", figure: ""};
const step = () => K.steps[state.step];

function use(id, keep = true) {
  const old = K; K = MODELS[id] ||= ready(D.records.find(x => x.id === id));
  if (old && keep && old !== K) state.step = floor(state.step / old.steps.length * K.steps.length);
  state.step = min(state.step, K.steps.length - 1); state.i = min(state.i, K.m - 1); state.j = min(state.j, K.n - 1); state.fault = null; state.request = 0;
  $("title").textContent = `${K.title}, ${K.m} × ${K.n} × ${K.k}`; document.title = $("title").textContent;
  const picks = [...new Set(K.steps.filter(s => s.q && (s.kind.space === "shared" || K.staging.includes(s.kind.array))).map(s => s.kind.op + " " + s.kind.array))].slice(0, 4);
  $("picks").innerHTML = ["follow", ...picks].map(x => `<button data-pick="${escaped(x)}">${escaped(x.replace("_smem", ""))}</button>`).join(""); if (!picks.includes(state.pick)) state.pick = "follow";
  for (const b of $("records").children) b.setAttribute("aria-pressed", b.dataset.id === K.id);
  buildSource(); buildFaults(); lead(); size(); go(state.step);
}
function ready(data) { const x = new Model(data); x.words = data.target.startsWith("gfx") ? {cta: "workgroup", warp: "wave"} : {cta: "CTA", warp: "warp"}; return x; }
function lead() {
  const moved = K.sites.reduce((t, s) => t + s.elements, 0), how = Object.entries(K.chosen).map(([x, y]) => x === "plan" ? y : `${x}=${y}`).join(" ");
  $("lead").innerHTML = `${K.product ? '<span class="c">C</span> = <span class="a">A</span> <span class="b">B</span>' : `<span class="c">${escaped(K.names[2])}</span> from <span class="a">${escaped(K.names[0])}</span>`} on ${escaped(K.target)}${K.idea ? ": " + escaped(K.idea) : ""}. ${K.cpu ? "One thread" : K.launches.length > 1 ? `${K.launches.length} launches, one after the other (${K.launches.map(x => `${escaped(x[0])}: ${many(x[4], K.words.cta)}`).join("; ")})` : `${many(K.ctas, K.words.cta)} of ${K.threads[0] * K.threads[1]} threads`}, ${fmt(moved)} loads and stores of elements, recorded by the simulator${how ? ` (${escaped(how)})` : ""}. Point at an element of ${K.product ? "C" : escaped(K.names[2])} to see what made it.`;
  $("foot").innerHTML = `Made by <b>${escaped(D.command)}</b>. The simulator runs all ${K.words.cta}s in step, which a chip does not; it counts what the kernel asks for, without caches and without time. ${K.traced ? "Which element lies where was found by running the kernel on operands that hold the digits of their own numbers." : !K.product ? "" : "Operands of this format cannot hold the numbers of their elements, so what lies in registers is not drawn."} <button id="svg">levels as SVG</button>`;
  $("svg").onclick = () => { const b = $("levels").getBoundingClientRect(), p = new SvgPen(b.width, b.height); levels(p); const a = document.createElement("a"); a.href = URL.createObjectURL(new Blob([p], {type: "image/svg+xml"})); a.download = `${K.id}.svg`; a.click(); };
}
function say() {
  const s = step(), f = state.fault, now = $("now"); now.className = f ? "race" : "";
  now.querySelector(".at").textContent = Object.entries(s.loops || {}).map(([x, y]) => `${x} ${y}`).slice(K.cpu ? -4 : -2).join(" · ") || `step ${s.number}`;
  now.querySelector(".say").innerHTML = f ? escaped(f.message) : said(s);
  const me = K.me(state.i, state.j), done = K.done(state.i, state.j, state.step);
  $("caption").textContent = `Step ${s.number + 1} of ${K.steps.length}. ${named(2)}[${state.i},${state.j}]${K.cpu ? "" : ` belongs to thread (${me.tx}, ${me.ty}) of ${K.words.cta} (${me.bx}, ${me.by}), ${K.words.warp} ${me.warp % (K.nt / K.warp)}`}; ${K.counted ? `it holds ${done.size} of ${K.k} products, ${K.sum(state.i, state.j, done)}` : K.stored(state.i, state.j) === "·" ? "it is not written yet" : `it is ${K.stored(state.i, state.j)}`}.${K.staging.length ? ` In ${K.cpu ? "packed panels" : "shared memory"} now: ${heldText(me)}.` : ""}`;
}
function heldText(me) {
  const h = K.held(state.step, me.cta), r = map => { const ps = [...map.keys()].sort((a, b) => a - b), fly = [...map.values()].filter(c => c.flying).length; return ps.length ? `k ${ps[0]} to ${ps[ps.length - 1]}${fly ? `, ${fly} of ${ps.length} columns on their way` : ""}` : "nothing"; };
  return `of ${named(0)} ${r(h.A)}${K.names[1] === "-" ? "" : `; of ${named(1)} ${r(h.B)}`}`;
}
let frame = 0;
function draw() { frame = 0; levels(new CanvasPen($("levels"))); banks(new CanvasPen($("banks"))); time(new CanvasPen($("time"))); say(); source(); where(); buttons(); }
function refresh() { if (!frame) frame = requestAnimationFrame(draw); }
function go(q) {
  state.step = max(0, min(K.steps.length - 1, q)); const t = $("time");
  t.setAttribute("aria-valuenow", state.step); t.setAttribute("aria-valuemax", K.steps.length - 1); t.setAttribute("aria-valuetext", `step ${state.step + 1} of ${K.steps.length}: ${step().kind.op} ${step().kind.array || ""}`);
  refresh();
}
function clear() { if (state.fault) { state.fault = null; refresh(); } }
function jump(d, what) {                                    // to the next step of another round of the loops, or another k
  const me = K.me(state.i, state.j), key = s => what === "round" ? JSON.stringify(s.loops || {}) : K.depth(s, me); let q = state.step; const a = key(step());
  do q += d; while (K.steps[q] && (key(K.steps[q]) === a || key(K.steps[q]) === -1)); if (!K.steps[q]) q = d > 0 ? K.steps.length - 1 : 0;
  if (d < 0) { const b = key(K.steps[q]); while (K.steps[q - 1] && key(K.steps[q - 1]) === b) q--; } clear(); go(q);
}
function play(on) {
  clearInterval(state.play); state.play = on ? setInterval(() => { if (state.step >= K.steps.length - 1) return play(false); clear(); go(state.step + 1); }, 380) : null;
  $("play").textContent = on ? "❚❚ pause" : "▶\uFE0E play"; $("play").setAttribute("aria-label", on ? "pause" : "play");
}
function breakIt(which) {
  const list = K.faults || []; if (!list.length) { const other = D.records.find(r => (r.faults || []).some(f => f.kind)); if (!other || other.id === K.id) return; use(other.id); return breakIt(); }
  play(false); const f = list[which ?? max(0, list.findIndex(x => x.kind === "race"))]; state.fault = state.fault === f ? null : f;
  if (state.fault && f.step >= 0) { go(f.step);
    if (f.here && !K.cpu) { const cta = ctaOf(f.here), own = K.cells.get(cta * K.nt + (f.here.thread[1] || 0) * K.launchOf(cta)[3][0] + f.here.thread[0]); if (own && own.length) { state.i = floor(own[0] / K.n); state.j = own[0] % K.n; } } }
  refresh();
}
function buttons() {
  for (const b of $("picks").children) b.setAttribute("aria-pressed", b.dataset.pick === state.pick);
  for (const b of $("faults").children) b.setAttribute("aria-pressed", K.faults[+b.dataset.fault] === state.fault);
  const some = D.records.some(r => (r.faults || []).length); $("break").hidden = !some; $("break").setAttribute("aria-pressed", !!state.fault); $("break").textContent = state.fault ? "Put it back" : "Break it";
}
function hit(ev) {
  const r = $("levels").getBoundingClientRect(), x = ev.clientX - r.left, y = ev.clientY - r.top, {g1, g2, g3} = G; if (!g3) return null;
  const on = (M, u) => x >= M.x && y >= M.y && x < M.x + M.w && y < M.y + M.h && [floor((y - M.y) / u), floor((x - M.x) / u)]; let c;
  const inside = ([i, j]) => i >= 0 && j >= 0 && i < K.m && j < K.n ? [i, j] : null;
  if ((c = on(g1.C, g1.u))) return inside(c); if ((c = on(g2.C, g2.u))) return inside([g2.box.i0 + c[0], g2.box.j0 + c[1]]);
  if ((c = on(g3.C, g3.u))) return inside([g3.r3.rows[c[0]], g3.r3.cols[c[1]]]);
  if ((c = on(g1.A, g1.u))) return inside([c[0], state.j]); if ((c = on(g1.B, g1.u))) return inside([state.i, c[1]]);
  if ((c = on(g2.A, g2.u))) return inside([g2.box.i0 + c[0], state.j]); if ((c = on(g2.B, g2.u))) return inside([state.i, g2.box.j0 + c[1]]);
  return null;
}
function size() {
  $("banks").style.height = K && K.cpu ? "96px" : ""; const w = $("levels").clientWidth; $("levels").style.height = levelsHeight(w) + "px";
  if (K) { strip(); $("time").style.height = (innerWidth <= 900 ? min(timeHeight(), 108) : timeHeight()) + "px"; refresh(); } if (D) plans();
}
function listen() {
  $("records").onclick = e => { if (e.target.dataset.id) use(e.target.dataset.id); };
  $("picks").onclick = e => { if (!e.target.dataset.pick) return; if (state.pick === e.target.dataset.pick) state.request++; else state.request = 0; const s = picked(); if (s && state.request >= s.q.length) state.request = 0; state.pick = e.target.dataset.pick; refresh(); };
  $("tabs").onclick = e => { if (!e.target.dataset.tab) return; state.tab = e.target.dataset.tab; buildCode(); refresh(); };
  $("prev").onclick = () => { clear(); go(state.step - 1); }; $("next").onclick = () => { clear(); go(state.step + 1); }; $("play").onclick = () => play(!state.play);
  $("break").onclick = () => breakIt(state.fault ? K.faults.indexOf(state.fault) : undefined); $("faults").onclick = e => { const b = e.target.closest("[data-fault]"); if (b) breakIt(+b.dataset.fault); };
  const point = e => { const c = hit(e); if (!c) return; if (e.type === "pointerdown") clear(); if (!state.fault && (c[0] !== state.i || c[1] !== state.j)) { [state.i, state.j] = c; refresh(); } };
  $("levels").addEventListener("pointermove", point); $("levels").addEventListener("pointerdown", point);
  const scrub = e => { const r = $("time").getBoundingClientRect(); clear(); go(floor((e.clientX - r.left - G.time.x0) / G.time.w)); };
  $("time").addEventListener("pointerdown", e => { $("time").setPointerCapture(e.pointerId); play(false); scrub(e); }); $("time").addEventListener("pointermove", e => { if (e.buttons) scrub(e); });
  $("banks").addEventListener("pointermove", e => { if (!G.lanes || state.fault || K.cpu) return; const r = $("banks").getBoundingClientRect(), l = floor((e.clientY - r.top - G.lanes.y) / G.lanes.h), me = K.me(state.i, state.j), own = K.cells.get(me.warp * K.warp + l); if (l < 0 || l >= K.warp || !own) return; state.i = floor(own[0] / K.n); state.j = own[0] % K.n; refresh(); });
  $("source").onclick = e => { const r = e.target.closest("[data-go]"); if (!r) return; clear(); const N = K.steps.length, key = l => K.lines[l][0] + ":" + K.lines[l][1];
    for (let d = 1; d <= N; d++) { const s = K.steps[(state.step + d) % N]; if ([s.kind.line, ...s.kind.via].some(l => key(l) === r.dataset.key)) return go((state.step + d) % N); } };
  $("code").onclick = e => { const r = e.target.closest("[data-line]"); if (!r) return; clear(); const N = K.steps.length, own = r.dataset.line.split(" "); for (let d = 1; d <= N; d++) { const s = K.steps[(state.step + d) % N]; if (own.includes(String(s.kind.line))) return go((state.step + d) % N); } };
  addEventListener("keydown", e => { if (/^(SELECT|INPUT|TEXTAREA)$/.test(e.target.tagName) || e.ctrlKey || e.metaKey || e.altKey) return; if (e.target.tagName === "BUTTON" && (e.key === " " || e.key === "Enter")) return;
    const d = e.key === "ArrowRight" || e.key === "ArrowDown" ? 1 : e.key === "ArrowLeft" || e.key === "ArrowUp" ? -1 : 0;
    if (d) { e.preventDefault(); play(false); if (/Up|Down/.test(e.key)) jump(d, "round"); else if (e.shiftKey) jump(d, "k"); else { clear(); go(state.step + d); } }
    else if (e.key === "Home") { e.preventDefault(); clear(); go(0); } else if (e.key === "End") { e.preventDefault(); clear(); go(K.steps.length - 1); }
    else if (e.key === " ") { e.preventDefault(); play(!state.play); } else if (e.key === "b") $("break").click(); else if (e.key === "Escape") clear();
    else if (e.key === "v") { const x = D.records.findIndex(r => r.id === K.id); use(D.records[(x + 1) % D.records.length].id); }
    else if ("wasd".includes(e.key)) { state.i = max(0, min(K.m - 1, state.i + (e.key === "s") - (e.key === "w"))); state.j = max(0, min(K.n - 1, state.j + (e.key === "d") - (e.key === "a"))); clear(); refresh(); } });
  addEventListener("resize", size); matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { hues(); refresh(); });
}
async function start() {
  hues(); D = await unpack($("data")); MODELS = {};
  if (D.records.length > 1) for (const r of D.records) { const b = document.createElement("button"); b.textContent = r.short || r.title; b.title = r.idea; b.dataset.id = r.id; $("records").append(b); }
  listen(); drawings(); const q = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  K = ready(D.records[0]); MODELS[K.id] = K; state.i = floor(K.m * .2); state.j = min(K.n - 1, floor(K.n * .65));
  if (q.i) state.i = +q.i; if (q.j) state.j = +q.j; if (q.pick) state.pick = q.pick; if (q.tab) state.tab = q.tab;
  if (K.cpu && K.products.length && !q.i) { const {a, b} = K.operands(K.products[floor(K.products.length * .3)], 0); if (a.length && b.length) { state.i = a[0].i; state.j = b[floor(b.length / 2)].j; } }
  use(q.kernel || K.id, false); const middle = K.products.length ? K.products[floor(K.products.length * .3)].number : 0; go(q.step ? +q.step : middle); if (q.break) breakIt(+q.break - 1 || undefined);
  document.body.dataset.ready = "yes";
}
start();
