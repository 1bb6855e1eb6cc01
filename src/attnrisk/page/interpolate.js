// The atlas: risks between its nodes, and the weights of an attention at its best k, v and bias.

const atlas = JSON.parse(document.getElementById("atlas").textContent);
const BAYES = "bayes", FLOOR = "element-wise floor", NONE = "0", FREE = "free", DEFAULT = "default";
const names = Object.keys(atlas.attentions);

function dot(a, b) {
  let total = 0;
  for (let i = 0; i < a.length; i += 1) total += a[i] * b[i];
  return total;
}
const sum = (values) => values.reduce((a, b) => a + b, 0);

/** Nodes with their barycentric weights; lengths are rounded, so that they are not quite Chebyshev's. */
function nodesOf(at) {
  const scale = 4 / (Math.max(...at) - Math.min(...at));
  return { at, weight: at.map((a) => at.reduce((product, b) => (a === b ? product : product / ((a - b) * scale)), 1)) };
}

/** Weights of the values at the nodes for the polynomial at x, as in studies/interpolant.py. */
function barycentric(nodes, x) {
  const hit = nodes.at.findIndex((node) => Math.abs(node - x) < 1e-12);
  if (hit >= 0) return nodes.at.map((_, i) => (i === hit ? 1 : 0));
  const weights = nodes.at.map((node, i) => nodes.weight[i] / (x - node));
  const total = sum(weights);
  return weights.map((weight) => weight / total);
}

/** The interval of ascending nodes that holds x, and where x is in it. */
function locate(nodes, x) {
  if (nodes.length === 1) return [[0, 1]];
  let i = 0;
  while (i < nodes.length - 2 && nodes[i + 1] <= x) i += 1;
  const share = (x - nodes[i]) / (nodes[i + 1] - nodes[i]);
  return [[i, 1 - share], [i + 1, share]];
}

/** The same for a line between the two nodes around x. */
function hats(nodes, x) {
  const weights = nodes.at.map(() => 0);
  for (const [i, weight] of locate(nodes.at, x)) weights[i] = weight;
  return weights;
}

/** The variables in which the logit of the risk is smooth, as in studies/interpolant.py. */
const SIGNAL_PLACES = { ratio: (nu) => nu / (2 + nu), root: Math.sqrt, "shifted root": (nu) => Math.sqrt(1 + nu) - 1 };
const signalPlace = ({ variable }, nu) => SIGNAL_PLACES[variable](nu);
const lengthPlace = (length) => Math.sqrt(Math.log(length));

/** Nodes, and a function from x to the weights of the values there, remembered: surfaces over one grid share it. */
const axes = new Map();
function axisOf(at, between) {
  const key = `${between} ${at}`;
  if (!axes.has(key)) {
    const nodes = nodesOf(at), weigh = between === "linear" ? hats : barycentric, known = new Map();
    const weights = (x) => {
      if (known.size > 2000) known.clear();
      if (!known.has(x)) known.set(x, weigh(nodes, x));
      return known.get(x);
    };
    axes.set(key, { at, weights });
  }
  return axes.get(key);
}

for (const surface of atlas.surfaces) {
  surface.infinite = surface.nu[0] === "inf";
  surface.x = axisOf(surface.infinite ? [0] : surface.nu.map((nu) => signalPlace(surface, nu)), surface.between);
  surface.y = axisOf(surface.length.map(lengthPlace), surface.between);
}

const surfacesOf = (task, name) => atlas.surfaces.filter((each) => each.task === task && each.attention === name);

/** The surface of an attention that holds ν. A bias that has no effect is 0. */
function surfaceOf(task, name, bias, nu) {
  const { takes_bias: takes, default_bias: usual } = atlas.attentions[name] ?? {};
  const wanted = takes ? (bias === DEFAULT ? usual : bias) : NONE;
  const infinite = nu === Infinity;
  return surfacesOf(task, name).find((each) => each.bias === wanted && each.infinite === infinite);
}

function withinError(surface, logit) {
  const risk = 1 / (1 + Math.exp(-logit));
  return { risk, error: risk * (1 - risk) * surface.error };
}
const signalWeights = (surface, nu) => (surface.infinite ? [1] : surface.x.weights(signalPlace(surface, nu)));

/** Risk and error as a function of ν, at one length. */
function alongNu(surface, length) {
  const weights = surface.y.weights(lengthPlace(length));
  const column = surface.logit.map((row) => dot(row, weights));
  return (nu) => withinError(surface, dot(column, signalWeights(surface, nu)));
}

/** Risk and error as a function of the length, at one ν. */
function alongLength(surface, nu) {
  const weights = signalWeights(surface, nu);
  const row = surface.length.map((_, j) => surface.logit.reduce((total, each, i) => total + weights[i] * each[j], 0));
  return (length) => withinError(surface, dot(row, surface.y.weights(lengthPlace(length))));
}

function riskAt(task, name, bias, nu, length) {
  const surface = surfaceOf(task, name, bias, nu);
  return surface && alongNu(surface, length)(nu);
}

const SMALLEST_SIZE = 1e-5; // of k and the bias: what a search finds below it is 0 within its accuracy

/** Where the risk is least: k, v and bias, and what the search at the nearest node says of it. */
function minimumAt(surface, nu, length) {
  let nearest = { weight: -1 };
  let total = 0, logK = 0, logV = 0, ratio = 0;
  for (const [i, a] of locate(surface.x.at, surface.infinite ? 0 : signalPlace(surface, nu))) {
    for (const [j, b] of locate(surface.y.at, lengthPlace(length))) {
      const weight = a * b, k = surface.m_kk[i][j], v = surface.m_vv[i][j], bias = surface.best_bias[i][j];
      if (weight > nearest.weight) nearest = { weight, k, v, bias, result: atlas.results[surface.result[i][j]] };
      if (k < SMALLEST_SIZE || v <= 0) continue;
      // The scale of k is void for some attentions and differs from node to node; k·v and b/k are continuous.
      total += weight;
      logK += weight * Math.log(k);
      logV += weight * Math.log(v);
      ratio += (weight * bias) / k;
    }
  }
  if (total < 0.5) return nearest;
  const k = Math.exp(logK / total);
  return { k, v: Math.exp(logV / total), bias: (k * ratio) / total, result: nearest.result };
}

/** What is tabulated of an attention at any score: log φ of a kernel, or the weight itself. */
function tabulated(values, score) {
  const scores = atlas.scores, last = scores.length - 1;
  const low = Math.asinh(scores[0]), high = Math.asinh(scores[last]);
  const place = Math.floor(((Math.asinh(score) - low) / (high - low)) * last);
  const i = Math.min(last - 1, Math.max(0, place));
  const share = (score - scores[i]) / (scores[i + 1] - scores[i]);
  const [a, b] = [values[i], values[i + 1]];
  if (a === null && b === null) return -Infinity;
  if (a === null) return b + Math.log(Math.max(share, 1e-12)); // φ vanishes at one end, and is linear between
  if (b === null) return a + Math.log(Math.max(1 - share, 1e-12));
  return a + share * (b - a);
}

/** The weights that an attention gives to tokens with these fields, at the k and the bias of least risk. */
function weightsOf(name, fields, { k, bias }) {
  const attention = atlas.attentions[name];
  const scores = fields.map((field) => k * field + bias);
  if (attention.family === "heads") {
    const heads = [1, -1].map((sign) => normalised(scores.map((score) => sign * score), 0));
    return heads[0].map((weight, i) => (weight + heads[1][i]) / 2);
  }
  const found = scores.map((score) => tabulated(attention.values, score));
  if (attention.family !== "kernel") return found;
  const weights = normalised(found, attention.constant);
  if (!attention.shares) return weights;
  return weights.map((weight, i) => weight * Math.min(1, Math.max(0, tabulated(attention.shares, scores[i]))));
}

/** φ over its sum and a constant, from log φ. */
function normalised(logPhi, constant) {
  const top = logPhi.reduce((a, b) => Math.max(a, b), constant > 0 ? Math.log(constant) : -Infinity);
  if (top === -Infinity) return logPhi.map(() => 0);
  const phi = logPhi.map((each) => Math.exp(each - top));
  const total = sum(phi) + constant * Math.exp(-top);
  return phi.map((each) => each / total);
}
