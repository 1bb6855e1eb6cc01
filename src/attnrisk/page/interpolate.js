// The atlas: risks between its nodes, and the weights of an attention at its best k, v and bias.

const atlas = JSON.parse(document.getElementById("atlas").textContent);
const BAYES = "bayes", FLOOR = "element-wise floor", NONE = "0", FREE = "free";
const names = Object.keys(atlas.attentions);

const dot = (a, b) => a.reduce((sum, each, i) => sum + each * b[i], 0);
const sum = (values) => values.reduce((a, b) => a + b, 0);

/** Nodes with their barycentric weights; lengths are rounded, so that they are not quite Chebyshev's. */
function nodesOf(at) {
  const scale = 4 / (Math.max(...at) - Math.min(...at));
  return { at, weight: at.map((a) => at.reduce((product, b) => (a === b ? product : product / ((a - b) * scale)), 1)) };
}

/** Weights of the values at the nodes for the value at x, as in studies/atlas.py. */
function barycentric(nodes, x) {
  const hit = nodes.at.findIndex((node) => Math.abs(node - x) < 1e-12);
  if (hit >= 0) return nodes.at.map((_, i) => (i === hit ? 1 : 0));
  const weights = nodes.at.map((node, i) => nodes.weight[i] / (x - node));
  const total = sum(weights);
  return weights.map((weight) => weight / total);
}

/** The variable in which the logit of the risk is smooth, as in studies/atlas.py. */
const signalPlace = (task, nu) => (task === "spiked" ? Math.sqrt(nu) : nu / (2 + nu));

for (const surface of atlas.surfaces) {
  surface.infinite = surface.nu[0] === "inf";
  surface.x = nodesOf(surface.infinite ? [0] : surface.nu.map((nu) => signalPlace(surface.task, nu)));
  surface.y = nodesOf(surface.length.map(Math.log));
}

/** The surface of an attention that holds ν; where a bias has no effect, the one without. */
function surfaceOf(task, name, bias, nu) {
  const wanted = atlas.attentions[name]?.takes_bias ? bias : NONE;
  const infinite = nu === Infinity;
  return atlas.surfaces.find((each) => each.task === task && each.attention === name && each.bias === wanted
    && each.infinite === infinite);
}

/** Risk and error as a function of ν, at one length. */
function alongNu(surface, length) {
  const weights = barycentric(surface.y, Math.log(length));
  const column = surface.logit.map((row) => dot(row, weights));
  return (nu) => {
    const logit = surface.infinite ? column[0] : dot(column, barycentric(surface.x, signalPlace(surface.task, nu)));
    const risk = 1 / (1 + Math.exp(-logit));
    return { risk, error: risk * (1 - risk) * surface.error };
  };
}

function riskAt(task, name, bias, nu, length) {
  const surface = surfaceOf(task, name, bias, nu);
  return surface && alongNu(surface, length)(nu);
}

/** The interval of ascending nodes that holds x, and where x is in it. */
function locate(nodes, x) {
  if (nodes.length === 1) return [[0, 1]];
  let i = 0;
  while (i < nodes.length - 2 && nodes[i + 1] <= x) i += 1;
  const share = (x - nodes[i]) / (nodes[i + 1] - nodes[i]);
  return [[i, 1 - share], [i + 1, share]];
}

/** Where the risk is least: k, v and bias, and whether the least risk is attained there. */
function minimumAt(surface, nu, length) {
  const columns = surface.length.length;
  let nearest = { weight: -1 };
  let total = 0, logK = 0, logV = 0, ratio = 0;
  for (const [i, a] of locate(surface.x.at, surface.infinite ? 0 : signalPlace(surface.task, nu))) {
    for (const [j, b] of locate(surface.y.at, Math.log(length))) {
      const weight = a * b, k = surface.m_kk[i][j], v = surface.m_vv[i][j], bias = surface.best_bias[i][j];
      const attained = surface.attained[i * columns + j] === "1";
      if (weight > nearest.weight) nearest = { weight, k, v, bias, attained };
      if (k <= 0 || v <= 0) continue;
      // The scale of k is void for some attentions and differs from node to node; k·v and b/k are continuous.
      total += weight;
      logK += weight * Math.log(k);
      logV += weight * Math.log(v);
      ratio += (weight * bias) / k;
    }
  }
  if (total < 0.5) return nearest;
  const k = Math.exp(logK / total);
  return { k, v: Math.exp(logV / total), bias: (k * ratio) / total, attained: nearest.attained };
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

/** m_vv σ(χ): the weights with which the values of the tokens are summed. */
function weightsOf(name, fields, { k, v, bias }) {
  const attention = atlas.attentions[name];
  const found = fields.map((field) => tabulated(attention.values, k * field + bias));
  if (attention.family !== "kernel") return found.map((weight) => v * weight);
  const constant = attention.constant > 0 ? Math.log(attention.constant) : -Infinity;
  const top = found.reduce((a, b) => Math.max(a, b), constant);
  if (top === -Infinity) return found.map(() => 0);
  const phi = found.map((each) => Math.exp(each - top));
  const total = sum(phi) + attention.constant * Math.exp(-top);
  return phi.map((each) => (v * each) / total);
}
