// Sliders for the plan. Every answer was asked of the planner when the page was made, for the grid of values here.
const chosenPlan = {};
function plans() {
  const P = D.plans || []; if (!P.length) { $("plans").hidden = true; return; }
  const now = P.find(x => x.target === state.chip) || P[0]; state.chip = now.target; const at = chosenPlan[now.target] ||= [...now.start];
  $("plans").innerHTML = `<h2>${now.counted ? "The step’s parameters" : "The plan"} <small>${now.problem}; move a slider, and ${now.counted ? "the simulator’s counts answer" : "the planner answers"}</small></h2><div class="planner"><div>
    <div class="slider"><label for="chip">${P.some(x => x.counted) ? "of" : "chip"}</label><select id="chip">${P.map(x => `<option value="${x.target}"${x === now ? " selected" : ""}>${x.target}: ${escaped(x.model)}</option>`).join("")}</select></div>
    ${now.axes.map((a, x) => `<div class="slider"><label for="axis${x}">${escaped(a.name)}</label><input type="range" id="axis${x}" data-axis="${x}" min="0" max="${a.values.length - 1}" step="1" value="${at[x]}"><output>${escaped(a.values[at[x]])}</output></div>`).join("")}
    </div><div id="answer" aria-live="polite"></div></div><p class="note">${escaped(now.note)}</p>`;
  $("chip").onchange = e => { state.chip = e.target.value; plans(); $("chip").focus(); };
  for (const input of $("plans").querySelectorAll("input")) input.oninput = () => { at[+input.dataset.axis] = +input.value; input.nextElementSibling.textContent = now.axes[+input.dataset.axis].values[+input.value]; answer(now, at); };
  answer(now, at);
}
const unit = t => t >= 1 ? t.toPrecision(3) + " s" : t >= 1e-3 ? (t * 1e3).toPrecision(3) + " ms" : (t * 1e6).toPrecision(3) + " µs";
function answer(now, at) {
  const index = now.axes.reduce((t, a, x) => t * a.values.length + at[x], 0);
  if (now.counted) return counted(now, now.answers[index]);
  const [plan, why, seconds, parts] = now.answers[index], best = now.best[1], worse = seconds / best - 1;
  if (why) { $("answer").innerHTML = `<span class="plan">${escaped(plan)}</span><span class="said bad">Not legal: ${escaped(why)}</span>`; return; }
  const bars = [["the planner's choice", now.best[1], "grey"], ["this plan", seconds, "C"], ...Object.entries(parts).map(([name, t]) => ["  " + name, t, "S"])], most = max(...bars.map(b => b[1])), rate = now.flops / seconds;
  const W = max(300, $("answer").clientWidth), tight = W < 480 || bars.some(b => b[0].length > 26), x0 = tight ? 0 : 170, bw = W - x0 - (tight ? 4 : 90), row = tight ? 38 : 26;
  $("answer").innerHTML = `<span class="plan">${escaped(plan)}</span><span class="said">Legal. The model expects <b>${unit(seconds)}</b>, ${(rate / 1e12).toPrecision(3)} TFLOP/s: ${Math.abs(worse) < 5e-4 ? "as long as the planner's own choice" : `${(Math.abs(worse) * 100).toFixed(Math.abs(worse) < .1 ? 1 : 0)} % ${worse > 0 ? "more" : "less"} than the planner's own choice`}.</span>
    <svg viewBox="0 0 ${W} ${bars.length * row + 4}" role="img" aria-label="times as the model expects them">${bars.map(([name, t, hue], r) => { const y = r * row, w = max(1.5, t / most * bw); return (tight ? `<text x="0" y="${y + 13}">${escaped(name.trim())} <tspan font-weight="650">${unit(t)}</tspan></text><rect x="0" y="${y + 18}" width="${w}" height="12"` : `<text x="${x0 - 10}" y="${y + 15}" text-anchor="end">${escaped(name.trim())}</text><text x="${x0 + w + 8}" y="${y + 15}" font-weight="650">${unit(t)}</text><rect x="${x0}" y="${y + 4}" width="${w}" height="15"`) + ` fill="var(--${hue})" opacity=".85"/>`; }).join("")}</svg>`;
}
// parameters of a step: what the simulator counts, beside the most of any
function counted(now, [text, why, numbers]) {
  if (why) { $("answer").innerHTML = `<span class="plan">${escaped(text)}</span><span class="said bad">Not legal: ${escaped(why)}</span>`; return; }
  const names = Object.keys(numbers).filter(x => x !== "seconds"), conflicts = names.filter(x => x.startsWith("conflicts")).reduce((t, x) => t + numbers[x], 0), W = max(300, $("answer").clientWidth), tight = W < 480, x0 = tight ? 0 : 190, bw = W - x0 - (tight ? 4 : 100), row = tight ? 38 : 26;
  $("answer").innerHTML = `<span class="plan">${escaped(text)}</span><span class="said">Legal. The model expects <b>${unit(numbers.seconds)}</b>, the least that these counts allow. ${conflicts ? `<span class="bad">${fmt(conflicts)} conflicts</span>: passes over the banks that are needed only because words lie in the same one.` : "No bank conflict."}</span><svg viewBox="0 0 ${W} ${names.length * row + 4}" role="img" aria-label="counts">` + names.map((name, r) => { const x = numbers[name], most = max(1, ...now.answers.map(a => a[2][name.replace("conflicts", "passes")] || 0)), y = r * row, w = max(x ? 1.5 : 0, x / most * bw), hue = name.startsWith("conflicts") ? "bad" : name.startsWith("passes") ? "S" : "grey";
    return (tight ? `<text x="0" y="${y + 13}">${name} <tspan font-weight="650">${fmt(x)}</tspan></text><rect x="0" y="${y + 18}" width="${w}" height="12"` : `<text x="${x0 - 10}" y="${y + 15}" text-anchor="end">${name}</text><text x="${x0 + w + 8}" y="${y + 15}" font-weight="650">${fmt(x)}</text><rect x="${x0}" y="${y + 4}" width="${w}" height="15"`) + ` fill="var(--${hue})" opacity=".85"/>`; }).join("") + "</svg>";
}
// Layouts and number formats: drawings of the library, as they are in the documentation.
function drawings() {
  const F = D.figures || []; if (!F.length) { $("figures").hidden = true; return; }
  const now = F.find(f => f.key === state.figure) || F[0];
  $("figures").innerHTML = `<h2>Layouts and formats <select id="figure" aria-label="drawing">${F.map(f => `<option value="${f.key}"${f === now ? " selected" : ""}>${escaped(f.title)}</option>`).join("")}</select></h2><div id="drawing">${now.svg}</div><p class="note">${escaped(now.caption)}</p>`;
  $("figure").onchange = e => { state.figure = e.target.value; drawings(); $("figure").focus(); };
}
