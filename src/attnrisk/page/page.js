// Controls, and what is drawn again after a change.

// What each part of the page depends on.
const PARTS = [
  [drawControls, Object.keys(initial)],
  [drawSequence, ["task", "nu", "length", "bias", "show", "seed"]],
  [drawStep, ["step", "task"]],
  [drawRisk, ["task", "nu", "length", "bias", "show", "gap", "follow"]],
  [drawLearning, ["setting", "alpha"]],
  [drawFlow, ["flow", "run"]],
];

/** Draw what has changed since the state before; without one, everything. */
function draw(before) {
  performance.mark("draw");
  $("tip").hidden = true;
  for (const [part, keys] of PARTS) {
    if (!before || keys.some((key) => before[key] !== state[key])) part();
  }
  performance.measure("answer", "draw");
}

function update(change) {
  const before = state;
  state = withinRange({ ...state, ...change });
  history.replaceState(null, "", hashOf(state));
  draw(before);
}

function restore() {
  const { found, refused } = readHash(location.hash);
  state = found;
  $("notice").hidden = refused.length === 0;
  $("notice").textContent = `Parts of the link were ignored. ${refused.slice(0, 3).join("; ")}.`;
  draw();
}

const radios = (key) => [...document.getElementsByName(key)];

function drawControls() {
  const range = RANGES[state.task], nu = $("nu"), length = $("length");
  const last = Math.round(range.nu / NU_STEP); // one position beyond it is ν = ∞
  [nu.min, nu.max, nu.step] = [0, range.infinite ? last + 1 : last, 1];
  nu.value = state.nu === Infinity ? last + 1 : Math.round(state.nu / NU_STEP);
  nu.setAttribute("aria-valuetext", `ν = ${nuText(state.nu)}`);
  $("nu-value").textContent = nuText(state.nu);
  const lengths = LENGTHS.filter((each) => each <= range.length);
  [length.min, length.max, length.step] = [0, lengths.length - 1, 1];
  length.value = lengths.indexOf(closest(lengths, state.length));
  length.setAttribute("aria-valuetext", `${lengthText(state.length)} tokens`);
  $("length-value").textContent = lengthText(state.length);
  for (const key of ["task", "bias"]) for (const input of radios(key)) input.checked = input.value === state[key];
  for (const input of radios("show")) {
    input.checked = state.show.includes(input.value);
    input.parentElement.hidden = surfacesOf(state.task, input.value).length === 0;
  }
  for (const key of ["gap", "follow"]) $(key).checked = state[key];
  for (const key of ["setting", "flow", "run"]) $(key).value = state[key];
}

/** The elements that depend on the atlas. */
function build() {
  $("attentions").append(...names.map((name) => element("label", {},
    element("input", { type: "checkbox", name: "show", value: name }), swatch(styleOf(name)), name, " ",
    element("span", { class: "formula" }, atlas.attentions[name].formula.replace(/([ ^])-/g, "$1−")))));
  $("choice").open = innerWidth >= 900;
  $("steps").append(...STEPS.map(({ title }, i) =>
    element("button", { type: "button", "aria-label": `Step ${i + 1}: ${title}` }, String(i + 1))));
  const options = (texts) => texts.map((text, i) => element("option", { value: i }, text));
  $("setting").append(...options(atlas.learning.map(settingText)));
  $("flow").append(...options(atlas.flows.map((flow) => `${flow.attention}, ${settingText(flow)}`)));
  $("run").append(...options((atlas.flows[0]?.runs ?? []).map((run) => run.start)));
  for (const input of radios("task")) input.parentElement.hidden = !(input.value in RANGES);
  $("origin").textContent = `Atlas of attnrisk ${atlas.versions.attnrisk}, numerics ${atlas.numerics}.`;
}

function listen() {
  $("nu").oninput = ({ target }) => {
    const nu = target.value * NU_STEP;
    update({ nu: nu > RANGES[state.task].nu ? Infinity : nu });
  };
  $("length").oninput = ({ target }) => update(atLength(LENGTHS[target.value]));
  $("alpha").oninput = ({ target }) => update({ alpha: Number(target.value) });
  for (const input of radios("bias")) input.onchange = () => update({ bias: input.value });
  for (const input of radios("task")) {
    const added = input.value === "flipped" ? ["softmax", "two heads", "Bayes-softmax"] : [];
    input.onchange = () => update({ task: input.value, show: [...new Set([...state.show, ...added])] });
  }
  for (const input of radios("show")) {
    const isShown = (name) => (name === input.value ? input.checked : state.show.includes(name));
    input.onchange = () => update({ show: names.filter(isShown) });
  }
  for (const key of ["gap", "follow"]) $(key).onchange = ({ target }) => update({ [key]: target.checked });
  for (const key of ["setting", "flow", "run"]) {
    $(key).onchange = ({ target }) => update({ [key]: Number(target.value) });
  }
  $("again").onclick = () => update({ seed: (state.seed + 1) % MOST_SEEDS });
  [...$("steps").children].forEach((button, i) => (button.onclick = () => goTo(i + 1)));
  $("back").onclick = () => goTo(state.step - 1);
  $("next").onclick = () => goTo(state.step + 1);
  $("link").onclick = async () => {
    const copied = await navigator.clipboard.writeText(location.href).then(() => true, () => false);
    $("linked").textContent = copied ? "Copied." : "Copy the address of this page: it holds the state.";
  };
  $("skip").onclick = (event) => {
    event.preventDefault(); // the address holds the state
    $("sequence-title").focus();
  };
  $("controls").onsubmit = (event) => event.preventDefault();
  addEventListener("hashchange", restore);
  addEventListener("resize", () => draw());
}

build();
listen();
restore();
performance.mark("picture");
