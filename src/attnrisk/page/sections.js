// The sections of the page, each drawn from the state.

// ---- One sequence ----------------------------------------------------------------------------------------------

const LONGEST_DRAWN = 1000, MOST_BARS = 24, ROW = 66, LINE = 14, BOXES = 44;

/** Uniform numbers of a seed, the same in every browser (mulberry32). */
function randomNumbers(seed) {
  let a = seed >>> 0;
  return () => {
    a = (a + 0x6d2b79f5) >>> 0;
    let t = Math.imul(a ^ (a >>> 15), a | 1);
    t = (t + Math.imul(t ^ (t >>> 7), t | 61)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** A sequence of the task: the fields of its tokens along k*, their values along v*, and the place of the needle. */
function drawTokens(task, nu, length, seed) {
  const uniform = randomNumbers(seed);
  const gaussian = () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
  const fields = Array.from({ length }, gaussian), values = Array.from({ length }, gaussian);
  if (task !== "max") {
    const needle = Math.floor(uniform() * length), sign = task === "flipped" && uniform() < 0.5 ? -1 : 1;
    fields[needle] += sign * Math.sqrt(nu);
    return { fields, values, needle };
  }
  const gumbel = () => -Math.log(-Math.log(1 - uniform()));
  const race = fields.map((field) => (nu === Infinity ? field : nu * field + gumbel()));
  return { fields, values, needle: race.indexOf(race.reduce((a, b) => Math.max(a, b))) };
}

function drawSequence() {
  const { task, nu, bias, seed } = state, length = Math.min(state.length, LONGEST_DRAWN);
  const { fields, values, needle } = drawTokens(task, nu, length, seed);
  const strength = (i) => (task === "flipped" ? Math.abs(fields[i]) : fields[i]);
  const largest = fields.map((_, i) => i).sort((a, b) => strength(b) - strength(a));
  const shown = [...new Set([needle, ...largest])].slice(0, MOST_BARS).sort((a, b) => a - b);
  const at = (numbers) => shown.map((i) => numbers[i]), narrow = $("sequence").clientWidth < 560;
  const tokens = { title: "field of each token along k*", heights: at(fields) };
  const rows = state.show.flatMap((name) => {
    const surface = surfaceOf(task, name, bias, nu);
    if (!surface) return [];
    const minimum = minimumAt(surface, nu, length), weights = weightsOf(name, fields, minimum);
    const others = sum(weights) - weights[needle];
    const shares = `needle ${shortNumber(weights[needle])}, others ${shortNumber(others)}`;
    const predicted = `|v| = ${threeDigits(minimum.v)}, predicts ${fixed(minimum.v * dot(weights, values), 2)}`;
    return [{
      title: narrow ? `${name.slice(0, 16)}: ${shares}` : `${name.slice(0, 30)}: ${shares}, ${predicted}`,
      more: narrow ? predicted : "",
      heights: at(weights), style: styleOf(name), normalised: atlas.attentions[name].family !== "element-wise",
    }];
  });
  $("sequence-note").textContent = `The label is ${fixed(values[needle], 2)}: the value of the needle, `
    + `token ${lengthText(needle + 1)} of ${lengthText(length)}. `
    + (length > MOST_BARS ? `The ${MOST_BARS} tokens with the largest fields are shown. ` : "")
    + (length < state.length ? `This sequence is cut to ${lengthText(length)} tokens. ` : "");
  drawBars($("sequence"), tokens, rows, { needle: shown.indexOf(needle), values: at(values), numbers: shown });
}
const shortNumber = (value) =>
  (Math.abs(value) < 0.005 && value !== 0 ? withMinus(value.toExponential(0)) : fixed(value, 2));

/** The tokens as boxes with their values, their fields, and a row of weights for each attention. */
function drawBars(place, tokens, rows, { needle, values, numbers }) {
  const width = Math.max(260, place.clientWidth), step = width / values.length;
  const label = `One sequence. ${rows.map(({ title, more }) => (more ? `${title}, ${more}` : title)).join(". ")}`;
  const high = ROW + (rows.some((row) => row.more) ? LINE : 0), height = BOXES + ROW + rows.length * high;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const kind = (i) => (i === needle ? "needle" : "other");
  const middle = (i) => step * (i + 0.5);
  values.forEach((value, i) => {
    const box = { class: `token-${kind(i)}`, x: step * (i + 0.04), width: step * 0.92, y: 18, height: 22, rx: 3 };
    const token = svg.appendChild(shape("g", {}));
    token.append(shape("title", {}, `token ${numbers[i] + 1}, value ${fixed(value, 2)}${i === needle ? ", the needle" : ""}`));
    token.append(shape("rect", box));
    if (step >= 36) token.append(shape("text", { class: "token-value", x: middle(i), y: 33, "text-anchor": "middle" }, fixed(value, 2)));
  });
  const at = Math.min(width - 22, Math.max(22, middle(needle)));
  svg.append(shape("text", { class: "needle-label", x: at, y: 13, "text-anchor": "middle" }, "needle"));
  if (at > 150) svg.append(shape("text", { class: "quiet", x: 0, y: 13 }, step >= 36 ? "tokens and their values" : "tokens"));
  const shared = rows.filter((row) => row.normalised).flatMap((row) => row.heights);
  [tokens, ...rows].forEach(({ title, more, heights, style, normalised: isNormalised }, line) => {
    const scaled = isNormalised ? shared : heights; // weights that sum to one share a scale
    const most = Math.max(1e-9, ...scaled), least = Math.min(0, ...scaled);
    const top = BOXES + (line && ROW + (line - 1) * high), bottom = top + (line ? high : ROW) - 4;
    const y = (value) => bottom - ((value - least) / (most - least)) * 40;
    if (style) svg.append(shape("path", { class: `curve ${style}`, d: `M0 ${top + 11}h17` }));
    svg.append(shape("text", { x: style ? 22 : 0, y: top + 15 }, title));
    if (more) svg.append(shape("text", { x: 22, y: top + 15 + LINE }, more));
    heights.forEach((value, i) => {
      svg.append(shape("rect", {
        class: `bar-${kind(i)}`, x: step * (i + 0.12), width: step * 0.76,
        y: Math.min(y(value), y(0)), height: Math.max(1, Math.abs(y(value) - y(0))),
      }));
    });
    svg.append(shape("path", { class: "axis", d: `M0 ${y(0)}H${width}` }));
  });
  place.replaceChildren(svg);
}

// ---- Least risk ------------------------------------------------------------------------------------------------

const SMALLEST_GAP = 1e-6; // of the logarithmic axis

function drawRisk() {
  const { task, nu, length, bias } = state;
  const possible = [BAYES, FLOOR, ...state.show]
    .filter((name) => surfacesOf(task, name).length || atlas.attentions[name]?.of_user);
  const listed = possible.map((name) => ({ name, surface: surfaceOf(task, name, bias, nu) }));
  const present = listed.filter((each) => each.surface);
  drawRiskAgainstNu(state);
  drawRiskAgainstLength(state, present);
  drawValues(state, present, listed.filter((each) => !each.surface));
}

/** Curves of the risk, or of its distance to Bayes, which is the first; `at(x)` gives risk and error. */
function riskChart(title, axis, here, curves, places, head) {
  const { gap } = state;
  const reference = gap ? places.map((place) => curves[0].at(place).risk) : [];
  const drawn = gap ? curves.filter(({ name }) => name !== BAYES) : curves;
  const height = (risk, i) => (gap ? Math.max(risk - reference[i], SMALLEST_GAP) : risk);
  return {
    title: `${gap ? "gap to the Bayes risk" : "risk"} against ${title}`,
    x: axis,
    y: gap ? { low: SMALLEST_GAP, high: 1, log: true } : { low: 0, high: 1 },
    here,
    curves: drawn.map(({ name, at }) => ({
      style: styleOf(name), points: places.map((place, i) => [place, height(at(place).risk, i)]),
    })),
    read: (place) => [head(place), ...curves.map(({ name, at }) => `${labelOf(name)} ${withError(at(place))}`)],
  };
}

function drawRiskAgainstNu({ task, nu, length, bias, show }) {
  const range = RANGES[task];
  const curves = [BAYES, FLOOR, ...show].flatMap((name) => {
    const surface = surfaceOf(task, name, bias, 0);
    return surface ? [{ name, at: alongNu(surface, length) }] : [];
  });
  const places = Array.from({ length: 121 }, (_, i) => range.nu * (i / 120) ** 1.5);
  const axis = { low: 0, high: range.nu, label: "signal ν" };
  const title = `ν, L = ${lengthText(length)}`;
  drawChart($("risk-nu"), riskChart(title, axis, Math.min(nu, range.nu), curves, places, (at) => `ν = ${nuText(at)}`));
}

function drawRiskAgainstLength({ task, nu, length, follow }, present) {
  const range = RANGES[task], growing = follow && nu !== Infinity && nu > 0, slope = nu / Math.log(length);
  // With ν = slope · log L, as far as the atlas has that ν.
  const longest = growing ? Math.min(range.length, Math.exp(range.nu / slope)) : range.length;
  const signalAt = (at) => (growing ? Math.min(range.nu, slope * Math.log(at)) : nu);
  const curves = present.map(({ name, surface }) => ({
    name, at: growing ? (at) => alongNu(surface, Math.min(at, longest))(signalAt(at)) : alongLength(surface, nu),
  }));
  const places = Array.from({ length: 81 }, (_, i) => 2 * (longest / 2) ** (i / 80));
  const axis = { low: 2, high: range.length, log: true, label: "tokens L" };
  const head = (at) => `L = ${lengthText(Math.min(at, longest))}${growing ? `, ν = ${nuText(signalAt(at))}` : ""}`;
  const title = `L, ν = ${growing ? `${slope.toFixed(2)} log L` : nuText(nu)}`;
  drawChart($("risk-length"), riskChart(title, axis, length, curves, places, head));
}

function drawValues({ task, nu, length, bias }, present, absent) {
  const rows = present.map(({ name, surface }) => ({
    name, found: alongNu(surface, length)(nu), at: surface.m_kk && minimumAt(surface, nu, length),
  }));
  const bayes = rows[0].found, floor = rows.find(({ name }) => name === FLOOR)?.found;
  // By risk, but within the errors no attention comes before its lower bound: the Bayes risk, or the floor.
  const bound = (name) => (atlas.attentions[name]?.family === "element-wise" && floor ? floor : bayes).risk;
  const place = ({ name, found }) => Math.max(found.risk, bound(name));
  rows.sort((a, b) => place(a) - place(b));
  const line = ({ name, found, at }) => tableRow(styleOf(name), labelOf(name), {
    risk: withError(found) + (at ? markOf(at.result) : ""),
    "gap to Bayes": name === BAYES ? "" : gapText(found, bayes),
    "best k": at ? sizeText(at.k, at.result.includes("|k|")) : "",
    "best b": at ? biasText(name, at) : "",
  });
  const lacking = (name) => (surfacesOf(task, name).length ? "bias" : "task");
  const missing = ({ name }) => tableRow(styleOf(name), labelOf(name), { risk: `not computed for this ${lacking(name)}` });
  $("values-title").textContent = `${task} task, ν = ${nuText(nu)}, L = ${lengthText(length)}, bias ${BIASES[bias]}`;
  $("values").replaceChildren(...rows.map(line), ...absent.map(missing));
}
const BIASES = { [DEFAULT]: "as published", [FREE]: "tuned", [NONE]: "0" };
const markOf = (result) => (result.startsWith("infimum") ? " (limit)" : result.startsWith("converged") ? "" : ` (${result})`);
const biasText = (name, { bias, result }) =>
  (atlas.attentions[name].takes_bias ? sizeText(bias, /bias|weights vanish/.test(result)) : "no effect");

/** A row of a table; on narrow screens each cell shows the name of its column. */
function tableRow(style, title, cells) {
  const row = element("tr", { role: "row" }, element("th", { role: "rowheader", scope: "row" }, swatch(style), title));
  for (const [name, text] of Object.entries(cells)) row.append(element("td", { role: "cell", "data-column": name }, text));
  return row;
}

function gapText(found, bayes) {
  const gap = found.risk - bayes.risk, error = found.error + bayes.error;
  return Math.abs(gap) <= error ? `0 within ${Math.max(error, 1e-7).toExponential(0)}` : withError({ risk: gap, error });
}
const threeDigits = (value) => withMinus(String(Number(value.toPrecision(3))));
/** k or the bias, or the limit of one that grows without bound. */
function sizeText(value, grows) {
  if (Math.abs(value) < SMALLEST_SIZE) return "0";
  if (grows || Math.abs(value) >= 999) return value < 0 ? "→ −∞" : "→ ∞";
  return threeDigits(value);
}

// ---- Learning from data ----------------------------------------------------------------------------------------

const OPTIMUM = "Bayes optimum", REACHED = "message passing";
const settingText = ({ task, nu, length }) => `${task} task, ν = ${nu === "inf" ? "∞" : nu}, L = ${length}`;
const closest = (values, at) => values.reduce((a, b) => (Math.abs(Math.log(b / at)) < Math.abs(Math.log(a / at)) ? b : a));

function drawLearning() {
  const setting = atlas.learning[state.setting];
  if (!setting) return;
  const curves = { [OPTIMUM]: setting.optimal, [REACHED]: setting.reachable, ...setting.curves };
  const style = (name) => ({ [OPTIMUM]: "bayes", [REACHED]: "floor" })[name] ?? styleOf(name);
  const alphas = [...new Set(Object.values(curves).flat().map(([alpha]) => alpha))].sort((a, b) => a - b);
  const slider = $("alpha"), index = Math.min(state.alpha, alphas.length - 1), alpha = alphas[index];
  [slider.min, slider.max, slider.step, slider.value] = [0, alphas.length - 1, 1, index];
  slider.setAttribute("aria-valuetext", `α = ${alpha}`);
  $("alpha-value").textContent = alpha;

  const pointAt = (points, at) => points.find((each) => each[0] === at) ?? [at, null, null, true, "not computed"];
  const textAt = ([, risk, error]) => (risk === null ? "no value" : withError({ risk, error }));
  const known = (points) => points.filter(([, risk]) => risk !== null);
  const { information, algorithmic } = setting.thresholds;
  // No line goes through the jump of the optimum, nor through a point that did not converge.
  const line = (name, points) => points.flatMap(([at, risk, , converged], i) => {
    const jump = name === OPTIMUM && information && i && points[i - 1][0] < information && at >= information;
    const point = [at, converged ? risk : null];
    return jump ? [[at, null], point] : [point];
  });
  drawChart($("risk-alpha"), {
    title: `test risk, ${settingText(setting)}`,
    x: {
      low: alphas[0], high: alphas.at(-1), log: true, label: "sequences per dimension α",
      ticks: [0.5, 1, 2, 4, 8, 16].filter((at) => at >= alphas[0] && at <= alphas.at(-1)),
    },
    y: { low: 0, high: 1.1 },
    here: alpha,
    shade: information && algorithmic ? [information, algorithmic] : undefined,
    curves: Object.entries(curves).map(([name, points]) => ({
      style: style(name), points: line(name, points), crosses: known(points).filter((each) => !each[3]),
    })),
    read: (place) => {
      const at = closest(alphas, place);
      return [`α = ${at}`, ...Object.entries(curves).map(([name, points]) => {
        const point = pointAt(points, at);
        return `${name} ${textAt(point)}${point[3] ? "" : " (not converged)"}`;
      })];
    },
  });
  $("learned-title").textContent = `${settingText(setting)}, α = ${alpha}`;
  $("learned").replaceChildren(...Object.entries(curves).map(([name, points]) => {
    const point = pointAt(points, alpha);
    return tableRow(style(name), name, { "test risk": textAt(point), note: point[4] });
  }));
}

// ---- Gradient flow ---------------------------------------------------------------------------------------------

const OVERLAPS = [
  ["m_kk", "c0", "k with k*"], ["m_vv", "c1", "v with v*"],
  ["m_kv", "c2 element-wise", "k with v*"], ["m_vk", "c6 element-wise", "v with k*"],
];

function drawFlow() {
  const flow = atlas.flows[state.flow];
  if (!flow) return;
  const run = flow.runs[state.run], times = atlas.times;
  const last = Math.min(times.at(-1), Math.max(10, 3 * run.end_time)); // beyond the end nothing moves
  const path = (key) => times.flatMap((time, i) => (time <= last * 1.001 ? [[time, run[key][i]]] : []));
  const reading = (columns) => (place) => {
    const time = closest(times, place), i = times.indexOf(time);
    return [`time ${Number(time.toPrecision(3))}`, ...columns.map(([key, , text]) => `${text} ${fixed(run[key][i], 3)}`)];
  };
  const axis = { low: times[0], high: last, log: true, label: "time" };
  const all = OVERLAPS.flatMap(([key]) => run[key]);
  drawChart($("flow-overlaps"), {
    title: "overlaps with the teacher", x: axis,
    y: { low: Math.min(0, Math.floor(2 * Math.min(...all)) / 2), high: Math.max(1, Math.ceil(2 * Math.max(...all)) / 2) },
    curves: OVERLAPS.map(([key, style]) => ({ style, points: path(key) })),
    read: reading(OVERLAPS),
  });
  drawChart($("flow-risk"), {
    title: "risk", x: axis, y: { low: 0, high: Math.max(1, Math.ceil(5 * Math.max(...run.risk)) / 5) },
    curves: [{ style: "bayes", points: path("risk") }],
    read: reading([["risk", "", "risk"]]),
  });
  const legend = OVERLAPS.flatMap(([, style, text]) => [swatch(style), `${text}; `]);
  $("flow-note").replaceChildren(...legend, `overlap of the trained k or v with the teacher’s k* or v*. `
    + `Gradient flow on the risk with infinite data, ${settingText(flow)}; final risk ${fixed(run.risk.at(-1), 4)}, ${run.result}.`);
}
