// Elements, numbers as text, and charts as SVG. Text is only ever set as text: names may be anybody's.

const $ = (id) => document.getElementById(id);

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
function shape(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

/** The classes of the line of an attention: its colour, and dashes for those that weigh each token alone. */
function styleOf(name) {
  if (name === BAYES) return "bayes";
  if (name === FLOOR) return "floor";
  const wide = name === "softmax" ? " softmax" : "";
  return `c${names.indexOf(name) % 16} ${atlas.attentions[name]?.family ?? ""}${wide}`;
}
function swatch(style) {
  const made = shape("svg", { class: "swatch", "aria-hidden": "true", viewBox: "0 0 26 11" });
  made.append(shape("path", { class: `curve ${style}`, d: "M0 5.5H26" }));
  return made;
}

const LABELS = { [BAYES]: "Bayes risk", [FLOOR]: "element-wise floor" };
const labelOf = (name) => LABELS[name] ?? name;
const nuText = (nu) => (nu === Infinity ? "∞" : String(Number(nu.toFixed(2))));
const lengthText = (length) => Math.round(length).toLocaleString("en");
const withMinus = (text) => text.replace(/^-/, "−");
/** A number with so many decimals, and without a sign where it is rounded to 0. */
function fixed(value, decimals) {
  const text = value.toFixed(decimals);
  return Number(text) === 0 ? text.replace("-", "") : withMinus(text);
}
/** How many decimals of a number its error allows. */
const decimalsOf = (error) => Math.min(8, Math.max(2, Math.ceil(-Math.log10(error))));
function withError({ risk, error }) {
  return error ? `${fixed(risk, decimalsOf(error))} ± ${error.toExponential(0)}` : fixed(risk, 4);
}
function powerText(value) {
  if (value >= 0.01 && value < 1e4) return String(Number(value.toPrecision(2)));
  const power = String(Math.round(Math.log10(value)));
  return "10" + power.replace(/./g, (sign) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(sign)]);
}

/** Round numbers, or powers of ten, within an axis. */
function ticksOf({ low, high, log }) {
  if (log) {
    const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
    const every = last - first > 7 ? 2 : 1;
    return Array.from({ length: last - first + 1 }, (_, i) => 10 ** (first + i)).filter((_, i) => i % every === 0);
  }
  const raw = (high - low) / 5, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((each) => each * power >= raw) * power;
  const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(6)));
}

/** From the values of an axis to pixels, and back. */
function scaleOf({ low, high, log }, from, to) {
  const transformed = (value) => (log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low));
  const scale = (value) => from + (to - from) * transformed(value);
  scale.back = (pixel) => {
    const share = Math.min(1, Math.max(0, (pixel - from) / (to - from)));
    return log ? low * (high / low) ** share : low + share * (high - low);
  };
  return scale;
}

/** Draw a chart. `chart.read(x)` gives the lines that hovering and the arrow keys show at x. */
function drawChart(place, chart) {
  const width = Math.max(260, place.clientWidth);
  const height = Math.round(Math.min(320, Math.max(230, width * 0.6)));
  const left = 46, right = width - 12, top = 26, bottom = height - 38;
  const x = scaleOf(chart.x, left, right), y = scaleOf(chart.y, bottom, top);
  const svg = place.firstElementChild ?? place.appendChild(shape("svg", { class: "chart", tabindex: 0, role: "slider" }));
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("aria-label", `${chart.title}. Read values with the arrow keys`);
  const add = (tag, attributes, text) => svg.appendChild(shape(tag, attributes, text));

  if (chart.shade) {
    const [from, to] = chart.shade.map((value) => Math.min(right, Math.max(left, x(value))));
    add("rect", { class: "shade", x: from, y: top, width: Math.max(0, to - from), height: bottom - top });
  }
  for (const tick of ticksOf(chart.y)) {
    add("path", { class: "grid", d: `M${left} ${y(tick)}H${right}` });
    const text = chart.y.log ? powerText(tick) : withMinus(String(tick));
    add("text", { class: "quiet", x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, text);
  }
  for (const tick of chart.x.ticks ?? ticksOf(chart.x)) {
    add("path", { class: "axis", d: `M${x(tick)} ${bottom}v5` });
    const text = chart.x.log ? powerText(tick) : tick;
    add("text", { class: "quiet", x: x(tick), y: bottom + 18, "text-anchor": "middle" }, text);
  }
  add("path", { class: "axis", d: `M${left} ${bottom}H${right}` });
  add("text", { x: left, y: 14 }, chart.title);
  add("text", { x: (left + right) / 2, y: height - 4, "text-anchor": "middle" }, chart.x.label);

  const inside = (value) => Math.min(bottom, Math.max(top, y(value)));
  for (const { style, points, crosses = [] } of chart.curves) {
    let line = "", pen = "M";
    for (const [at, value] of points) {
      if (value === null) {
        pen = "M";
        continue;
      }
      line += `${pen}${x(at).toFixed(1)} ${inside(value).toFixed(1)}`;
      pen = "L";
    }
    add("path", { class: `curve ${style}`, d: line });
    // A point between two that are missing has no line to either.
    const alone = points.filter(([, value], i) =>
      value !== null && [i - 1, i + 1].every((beside) => (points[beside]?.[1] ?? null) === null));
    for (const [at, value] of alone) {
      add("path", { class: `curve ${style} dot`, d: `M${x(at).toFixed(1)} ${inside(value).toFixed(1)}h0.01` });
    }
    for (const [at, value] of crosses) {
      add("path", { class: `curve ${style} cross`, d: `M${x(at) - 4} ${inside(value) - 4}l8 8m-8 0l8 -8` });
    }
  }
  if (chart.here !== undefined) add("path", { class: "here", d: `M${x(chart.here)} ${top}V${bottom}` });
  addReading(svg, chart, x, { left, right, top, bottom, width });
}

/** Values at the pointer, or where the arrow keys lead. */
function addReading(svg, chart, x, { left, right, top, bottom, width }) {
  const cursor = svg.appendChild(shape("path", { class: "here", d: "" }));
  let pixel = chart.here === undefined ? (left + right) / 2 : x(chart.here);
  const read = () => {
    const lines = chart.read(x.back(pixel));
    svg.setAttribute("aria-valuemin", 0);
    svg.setAttribute("aria-valuemax", 100);
    svg.setAttribute("aria-valuenow", Math.round((100 * (pixel - left)) / (right - left)));
    svg.setAttribute("aria-valuetext", lines.join(", "));
    return lines;
  };
  const show = (wanted) => {
    pixel = Math.min(right, Math.max(left, wanted));
    const lines = read();
    cursor.setAttribute("d", `M${pixel} ${top}V${bottom}`);
    showTip(svg, pixel / width, lines);
  };
  read();
  svg.onpointermove = (event) => {
    const box = svg.getBoundingClientRect();
    show(((event.clientX - box.left) / box.width) * width);
  };
  svg.onpointerleave = svg.onblur = () => {
    cursor.setAttribute("d", "");
    $("tip").hidden = true;
  };
  svg.onkeydown = (event) => {
    const steps = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, Home: -60, End: 60 }[event.key];
    if (!steps) return;
    event.preventDefault();
    show(pixel + (steps * (right - left)) / 60);
  };
}

/** A small box beside the cursor, within the window. */
function showTip(svg, share, lines) {
  const tip = $("tip"), box = svg.getBoundingClientRect(), room = document.documentElement.clientWidth;
  tip.textContent = lines.join("\n");
  tip.hidden = false;
  const at = box.left + share * box.width, wide = tip.offsetWidth;
  const wanted = at + 14 + wide > room ? at - 14 - wide : at + 14;
  tip.style.left = `${Math.max(4, Math.min(wanted, room - wide - 4)) + scrollX}px`;
  tip.style.top = `${box.top + 30 + scrollY}px`;
}
