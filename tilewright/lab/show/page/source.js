// Python with the counters of each line, and beside it the code that it became, linked by line.
const words = /\b(with|as|for|in|if|else|return|def|range|class|from|import|not|and|or|lambda|yield|True|False|None)\b/g;
function paint(text) {
  text = text.replace(/\s{3,}#/, "  #"); const cut = text.search(/(^|\s)#/), code = cut < 0 ? text : text.slice(0, cut), rest = cut < 0 ? "" : text.slice(cut);
  return escaped(code).replace(/k\.(barrier|cp_async_wait|cp_async_commit|fence_async|wgmma_wait|wgmma_commit)\(/g, "<b>k.$1(</b>").replace(/\b(a\w*_smem|a_reg|a_tiles?|a_packed|a1)\b/g, '<span class="a">$1</span>').replace(/\b(b\w*_smem|b_reg|b_tiles?|b_packed|b1)\b/g, '<span class="b">$1</span>').replace(/\bacc\b/g, '<span class="c">acc</span>') + (rest ? `<i>${escaped(rest)}</i>` : "");
}
function buildSource() {
  const by = {}, live = new Set(), key = l => K.lines[l][0] + ":" + K.lines[l][1];
  const shared = new Set(K.sites.filter(s => s.space === "shared").map(s => key(s.line)));
  for (const s of K.sites) { if (shared.has(key(s.line)) && s.space !== "shared") continue; const x = by[key(s.line)] ||= {requests: 0, bytes: 0, moved: 0, ideal: 0, shared: false, arrays: []}; x.requests += s.requests; x.bytes += s.bytes; x.moved += s.moved; x.ideal += s.ideal; x.shared ||= s.space === "shared"; x.arrays.push(s.array); }
  for (const s of K.steps) for (const l of [s.kind.line, ...s.kind.via]) live.add(key(l));
  let out = `<div class="row head"><span>requests</span><span>bytes</span><span>moved</span><span>${K.cpu ? "" : "conflicts"}</span><span></span><span class="text">moved: ${K.cpu ? "cache lines" : "sectors (global; % of them needed), passes (shared)"}</span></div>`;
  for (const block of K.sources) { out += `<div class="row file"><span></span><span></span><span></span><span></span><span></span><span class="text">${escaped(block.file)}</span></div>`;
    block.lines.forEach((text, d) => { const no = block.first + d, id = block.file + ":" + no, s = by[id], more = s && s.moved - s.ideal, kb = x => x >= 1e6 ? fmt(floor(x / 1024)) + "K" : fmt(x);
      out += `<div class="row" data-key="${escaped(id)}"${live.has(id) ? " data-go" : ""}>` + (s ? `<span>${fmt(s.requests)}</span><span>${kb(s.bytes)}</span><span>${fmt(s.moved)}</span>${K.cpu ? "<span></span>" : s.shared ? `<span class="${more ? "bad" : ""}">${fmt(more)}</span>` : `<span class="${more ? "bad" : "dim"}">${more ? Math.round(100 * s.ideal / s.moved) + " %" : ""}</span>`}` : "<span></span><span></span><span></span><span></span>") + `<span class="n">${no}</span><span class="text">${paint(text) || " "}</span><span class="bar" style="background:${s ? "var(--S)" : "none"}"></span></div>`; }); }
  $("source").innerHTML = out; K.rowsOf = {}; for (const r of $("source").querySelectorAll("[data-key]")) K.rowsOf[r.dataset.key] ||= r;
  K.upto = {}; K.steps.forEach((s, q) => (K.upto[key(s.kind.line)] ||= []).push(q));
  const tabs = ["Python", ...Object.keys(K.code || {})]; if (!tabs.includes(state.tab)) state.tab = "Python";
  $("tabs").innerHTML = tabs.map(t => `<button role="tab" data-tab="${t}" aria-selected="${t === state.tab}">${t}</button>`).join(""); buildCode();
}
function buildCode() {
  const code = K.code && K.code[state.tab]; document.querySelector(".codes").classList.toggle("both", !!code);
  for (const b of $("tabs").children) b.setAttribute("aria-selected", b.dataset.tab === state.tab);
  $("code").setAttribute("aria-label", state.tab);
  $("code").innerHTML = code ? code.map(([text, lines]) => `<div${lines.length ? ` data-line="${lines.join(" ")}"` : ""}${/^[^ \t].*:/.test(text) ? ' class="label"' : ""}>${escaped(text) || " "}</div>`).join("") : "";
}
function follow(box, row) {                                 // bring a row into view inside its own box only
  if (!row) return; const top = row.offsetTop, h = box.clientHeight; if (top < box.scrollTop + 40 || top > box.scrollTop + h - 50) box.scrollTop = max(0, top - h * .4);
}
function source() {
  const s = step(), f = state.fault, key = l => K.lines[l][0] + ":" + K.lines[l][1], on = key(f && f.line != null ? f.line : s.kind.line), via = s.kind.via.map(key);
  for (const id in K.rowsOf) { const r = K.rowsOf[id];
    r.className = "row" + (f && id === key(f.removed) ? " cut" : f && (id === on || f.other && f.other.line != null && id === key(f.other.line)) ? " race" : id === on ? " on" : !f && via.includes(id) ? " via" : "");
    const bar = r.querySelector(".bar"), q = K.upto[id] || []; bar.style.width = 160 * q.filter(x => x <= state.step).length / (q.length || 1) + "px"; }
  const shown = via.map(v => K.rowsOf[v]).filter(Boolean).pop() || K.rowsOf[on]; follow($("source"), shown);
  const line = f && f.line != null ? f.line : s.kind.line, all = [line, ...s.kind.via].map(String); let first = null;
  for (const d of $("code").children) { const hit = d.dataset.line && d.dataset.line.split(" ").includes(all[0]); d.classList.toggle("on", !!hit); if (hit && !first) first = d; }
  follow($("code"), first);
  $("srcnote").textContent = f ? "struck out: the line that is missing; red: the lines of the fault" : `line ${K.lines[s.kind.line][1]} of ${K.lines[s.kind.line][0]}${s.kind.via.length ? `, called from line ${K.lines[s.kind.via[0]][1]}` : ""}${state.tab !== "Python" && !first ? "; no instruction has this line" : ""}`;
}
function buildFaults() {
  $("breaks").hidden = !(K.faults || []).length;
  $("faults").innerHTML = (K.faults || []).map((f, x) => { const [file, no, text] = K.lines[f.removed]; return `<button class="fault" data-fault="${x}" aria-pressed="false"><code>${escaped(text)}</code><small>${escaped(file)}:${no}</small> <span class="kind ${f.kind ? "" : "none"}">${escaped(f.kind || f.message)}</span>${f.kind ? ` <small>${escaped((f.message.split(": ").slice(1).join(": ").split("\n")[0]).slice(0, 150))}</small>` : ""}</button>`; }).join("");
}
