// The state of the page, which its address holds after the #.

const RANGES = {};
for (const task of ["spiked", "max", "flipped"]) {
  const own = atlas.surfaces.filter((each) => each.task === task && each.attention === BAYES);
  const finite = own.find((each) => !each.infinite);
  if (finite) RANGES[task] = { nu: finite.nu.at(-1), length: finite.length.at(-1), infinite: own.length > 1 };
}
// Positions of the slider: two digits, evenly spaced in log L.
const LENGTHS = [...new Set(Array.from({ length: 121 }, (_, i) => {
  const raw = 2 * 5e5 ** (i / 120), unit = 10 ** Math.max(0, Math.floor(Math.log10(raw)) - 1);
  return Math.round(raw / unit) * unit;
}))];
const NU_STEP = 0.25, MOST_SEEDS = 2 ** 31 - 1, MOST_STEPS = 6;

const initial = {
  task: "spiked", nu: 9, length: 16, bias: DEFAULT,
  show: ["softmax", "softplus", "sigmoid", "linear"].filter((name) => name in atlas.attentions),
  gap: false, follow: false, seed: 5, step: 1, setting: 0, alpha: 3, flow: 0, run: 0,
};
initial.show.push(...names.filter((name) => atlas.attentions[name].of_user));
let state = { ...initial };

const whole = (low, high) => (text) => {
  const isWhole = /^\d{1,10}$/.test(text);
  if (!isWhole || +text < low || +text > high) throw new RangeError(`a whole number from ${low} to ${high}`);
  return +text;
};
const oneOf = (...words) => (text) => {
  if (!words.includes(text)) throw new RangeError(`one of ${words.join(", ")}`);
  return text;
};
const yesOrNo = (text) => oneOf("yes", "no")(text) === "yes";
const READ = {
  task: oneOf(...Object.keys(RANGES)),
  nu: (text) => {
    if (text === "inf") return Infinity;
    if (!/^\d{1,3}(\.\d{1,6})?$/.test(text)) throw new RangeError("a number");
    return +text;
  },
  length: whole(2, LENGTHS.at(-1)),
  bias: oneOf(DEFAULT, FREE, NONE),
  show: (text) => text.split(",").filter(Boolean).map((name) => oneOf(...names)(decodeURIComponent(name))),
  gap: yesOrNo,
  follow: yesOrNo,
  seed: whole(0, MOST_SEEDS),
  step: whole(1, MOST_STEPS),
  setting: whole(0, Math.max(0, atlas.learning.length - 1)),
  alpha: whole(0, 99),
  flow: whole(0, Math.max(0, atlas.flows.length - 1)),
  run: whole(0, 2),
};

function written(value) {
  if (Array.isArray(value)) return value.map(encodeURIComponent).join(",");
  if (typeof value === "boolean") return value ? "yes" : "no";
  return value === Infinity ? "inf" : String(value);
}
const hashOf = (of) => "#" + Object.entries(of).map(([key, value]) => `${key}=${written(value)}`).join("&");

/** The state of an address, and what of it was not understood. */
function readHash(hash) {
  const found = { ...initial }, refused = [];
  for (const part of hash.replace(/^#/, "").split("&").filter(Boolean).slice(0, 40)) {
    const [key, ...rest] = part.split("=");
    try {
      if (!Object.hasOwn(READ, key)) throw new RangeError("a setting of this page");
      found[key] = READ[key](rest.join("="));
    } catch (error) {
      if (!(error instanceof RangeError || error instanceof URIError)) throw error;
      const allowed = error instanceof RangeError ? error.message : "text in percent encoding";
      refused.push(`${part.slice(0, 60)} is not allowed: it must be ${allowed}`);
    }
  }
  return { found: withinRange(found), refused };
}

/** The state at another length: with ν in proportion to log L where that is wanted, as far as the atlas has that ν. */
function atLength(length) {
  const { task, nu, follow } = state;
  if (!follow || nu === Infinity || nu === 0) return { length };
  const slope = nu / Math.log(state.length), most = RANGES[task].nu;
  const cut = Math.max(2, Math.min(length, Math.floor(Math.exp(most / slope) * (1 + 1e-9))));
  return { length: cut, nu: Math.min(most, Number((slope * Math.log(cut)).toFixed(6))) };
}

/** The signal and the length cut to the range of the task. */
function withinRange(of) {
  const range = RANGES[of.task];
  const nu = of.nu === Infinity && range.infinite ? Infinity : Math.min(of.nu, range.nu);
  return { ...of, nu, length: Math.min(of.length, range.length) };
}
