// Colours: data has a hue (A, B, C), a level has one for its frame (shared, registers); red is only for what is wrong.
const H = {};
function hues() {
  const s = getComputedStyle(document.documentElement);
  for (const n of ["bg", "panel", "ink", "dim", "faint", "rule", "A", "B", "C", "S", "R", "bad", "grey", "mono", "sans"]) H[n] = s.getPropertyValue("--" + n).trim();
}

// Two pens with the same strokes: one draws on a canvas, one writes SVG.
class CanvasPen {
  constructor(canvas) {
    const r = devicePixelRatio || 1, b = canvas.getBoundingClientRect(); this.w = b.width; this.h = b.height;
    const w = Math.round(b.width * r), h = Math.round(b.height * r);
    if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
    const g = this.g = canvas.getContext("2d"); g.setTransform(r, 0, 0, r, 0, 0); g.clearRect(0, 0, b.width, b.height);
  }
  style(o) { const g = this.g; g.globalAlpha = o.a ?? 1; g.lineWidth = o.lw ?? 1; g.setLineDash(o.dash || []); if (o.fill) g.fillStyle = o.fill; if (o.stroke) g.strokeStyle = o.stroke; }
  rect(x, y, w, h, o) { this.style(o); if (o.fill) this.g.fillRect(x, y, w, h); if (o.stroke) this.g.strokeRect(x, y, w, h); }
  line(x, y, X, Y, o) { this.style(o); const g = this.g; g.beginPath(); g.moveTo(x, y); g.lineTo(X, Y); g.stroke(); }
  path(d, o) { this.style(o); const p = new Path2D(d); if (o.fill) this.g.fill(p); if (o.stroke) this.g.stroke(p); }
  text(s, x, y, o = {}) {
    this.style({fill: H.ink, ...o}); const g = this.g;
    g.font = `${o.weight || 400} ${o.size || 12}px ${o.mono ? H.mono : H.sans}`; g.textAlign = o.align || "left"; g.textBaseline = o.base || "alphabetic";
    if (o.halo) { g.save(); g.globalAlpha = .9; g.strokeStyle = H.bg; g.lineWidth = 4; g.lineJoin = "round"; g.strokeText(s, x, y); g.restore(); }
    g.fillText(s, x, y);
  }
  width(s, size, mono) { this.g.font = `400 ${size}px ${mono ? H.mono : H.sans}`; return this.g.measureText(s).width; }
}
class SvgPen {
  constructor(w, h) { this.w = w; this.h = h; this.out = []; }
  n(x) { return +x.toFixed(2); }
  o(o) { return `fill="${o.fill || "none"}"` + (o.stroke ? ` stroke="${o.stroke}" stroke-width="${o.lw ?? 1}"` : "") + (o.dash ? ` stroke-dasharray="${o.dash}"` : "") + (o.a != null ? ` opacity="${(+o.a).toFixed(3)}"` : ""); }
  rect(x, y, w, h, o) { this.out.push(`<rect x="${this.n(x)}" y="${this.n(y)}" width="${this.n(w)}" height="${this.n(h)}" ${this.o(o)}/>`); }
  line(x, y, X, Y, o) { this.out.push(`<line x1="${this.n(x)}" y1="${this.n(y)}" x2="${this.n(X)}" y2="${this.n(Y)}" ${this.o(o)}/>`); }
  path(d, o) { this.out.push(`<path d="${d}" ${this.o(o)}/>`); }
  text(s, x, y, o = {}) {
    const anchor = {center: "middle", right: "end", left: "start"}[o.align || "left"];
    this.out.push(`<text x="${this.n(x)}" y="${this.n(y)}" font-size="${o.size || 12}" font-weight="${o.weight || 400}" text-anchor="${anchor}"${o.base === "middle" ? ' dominant-baseline="central"' : ""} font-family="${o.mono ? "monospace" : "sans-serif"}" fill="${o.fill || H.ink}">${escaped(s)}</text>`);
  }
  width(s, size) { return String(s).length * size * .6; }
  toString() { return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${this.n(this.w)} ${this.n(this.h)}"><rect width="100%" height="100%" fill="${H.bg}"/>${this.out.join("\n")}</svg>`; }
}
const escaped = s => String(s).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const mid = (M, u, r, c) => [M.x + (c + .5) * u, M.y + (r + .5) * u];
const curve = (x, y, X, Y) => { const d = Math.abs(X - x) > Math.abs(Y - y) ? [(x + X) / 2, y, (x + X) / 2, Y] : [x, (y + Y) / 2, X, (y + Y) / 2]; return `M${x} ${y}C${d[0]} ${d[1]} ${d[2]} ${d[3]} ${X} ${Y}`; };

// A left, B above, C in the corner: `rows` x `cols` of C, `deep` of k
function trio(x, y, w, h, deep, rows, cols, gap) {
  const flat = K.names[1] === "-", up = flat ? 0 : deep, u = min((w - gap) / (deep + cols), (h - gap) / (up + rows)), d = deep * u + gap, e = flat ? 0 : d;
  return {u, x, y, w: d + cols * u, h: e + rows * u, A: {x, y: y + e, w: deep * u, h: rows * u}, B: flat ? {x: -99, y: -99, w: 0, h: 0} : {x: x + d, y, w: cols * u, h: deep * u}, C: {x: x + d, y: y + e, w: cols * u, h: rows * u}};
}
function matrix(p, M, hue, u, gx, gy, o = {}) {
  if (!M.w) return;
  p.rect(M.x, M.y, M.w, M.h, {fill: hue, a: o.a ?? .08});
  if (gx && gx * u > 3) for (let x = gx; x < M.w / u - .01; x += gx) p.line(M.x + x * u, M.y, M.x + x * u, M.y + M.h, {stroke: hue, a: o.ga ?? .28});
  if (gy && gy * u > 3) for (let y = gy; y < M.h / u - .01; y += gy) p.line(M.x, M.y + y * u, M.x + M.w, M.y + y * u, {stroke: hue, a: o.ga ?? .28});
  p.rect(M.x, M.y, M.w, M.h, {stroke: hue, a: .75});
}
function cells(p, M, u, list, o) { if (!M.w) return;                          // [row, column] elements; runs of a row are one rectangle
  const rows = new Map(), inset = u > 6 ? .5 : 0;
  for (const [r, c] of list) { if (!rows.has(r)) rows.set(r, []); rows.get(r).push(c); }
  for (const [r, cs] of rows) { cs.sort((a, b) => a - b);
    for (let i = 0; i < cs.length;) { let e = i; while (e + 1 < cs.length && cs[e + 1] <= cs[e] + 1) e++;
      if (u > 6) for (let q = cs[i]; q <= cs[e]; q++) p.rect(M.x + q * u + inset, M.y + r * u + inset, u - 2 * inset, u - 2 * inset, o);
      else p.rect(M.x + cs[i] * u, M.y + r * u, (cs[e] - cs[i] + 1) * u, max(u, .75), o);
      i = e + 1; } }
}
function hatch(p, x, y, w, h, hue) {                        // on its way, or waiting
  p.rect(x, y, w, h, {fill: hue, a: .1});
  for (let d = -h; d < w; d += 5) { const a = max(d, 0), b = min(d + h, w); if (b > a) p.line(x + a, y + h - (a - d), x + b, y + h - (b - d), {stroke: hue, a: .55, lw: .8}); }
}
