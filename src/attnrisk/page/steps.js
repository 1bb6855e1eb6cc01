// The guided path. All numbers in its text are read from the atlas.

const HAYSTACK = 1e6, HAYSTACK_NU = 4 * Math.log(HAYSTACK);
const NEAR = { nu: 9, length: 16, follow: false };

/** The least risk on the spiked task, in three digits. */
function risk(name, bias, nu = NEAR.nu, length = NEAR.length) {
  const found = riskAt("spiked", name, bias, nu, length);
  return found ? found.risk.toFixed(3) : "(not computed)";
}
const inHaystack = (name) => risk(name, FREE, HAYSTACK_NU, HAYSTACK);

const STEPS = [
  {
    title: "One token matters",
    state: { ...NEAR, bias: NONE, show: ["softmax"] },
    text: () => `Every token has a field along a hidden direction k*. The field of the needle is larger by √ν on average; those
      of the others are noise. The attention must put its weight on the needle without knowing where it is. Press “New
      sequence” a few times: at ν = 9 and 16 tokens the needle usually stands out, but not always.`,
  },
  {
    title: "Softmax weighs tokens as Bayes does",
    state: { ...NEAR, bias: NONE, show: ["softmax"] },
    text: () => `With the best k, the softmax weight of a token is the probability, given all fields, that it is the needle. No
      predictor can do better: the risk of softmax, ${risk("softmax", NONE)}, is the Bayes risk, ${risk(BAYES, NONE)}, and
      this holds at every ν and every L.`,
  },
  {
    title: "Without comparing tokens there is a floor",
    state: { ...NEAR, bias: FREE, show: ["softmax", "sigmoid", "erf", "linear"] },
    text: () => `Sigmoid, erf and linear attention weigh each token by its own score alone. Even the best function of one score
      does not go below the element-wise floor, ${risk(FLOOR, NONE)}. Sigmoid with a bias reaches ${risk("sigmoid", FREE)},
      linear attention only ${risk("linear", NONE)}. The distance from the floor to the Bayes risk, ${risk(BAYES, NONE)}, is
      what normalisation is worth.`,
  },
  {
    title: "Normalised, but not exponential",
    state: { ...NEAR, bias: NONE, show: ["softmax", "softplus", "relu", "relu2", "taylor-2"] },
    text: () => `Now every weight is divided by the sum of all, and only the kernel differs. Without a bias, softplus has risk
      ${risk("softplus", NONE)}, ReLU ${risk("relu", NONE)}, Taylor-2 ${risk("taylor-2", NONE)} and squared ReLU
      ${risk("relu2", NONE)}, against ${risk("softmax", NONE)} for softmax. But a bias has no effect on softmax, and it has
      one on these kernels: the comparison is not fair yet.`,
  },
  {
    title: "Give every score a bias",
    state: { ...NEAR, bias: FREE, show: ["softmax", "softplus", "elu+1", "relu", "relu2", "taylor-2"] },
    text: () => `Softplus and elu+1 behave as eˣ for very negative x. With a bias b → −∞ only that tail is used, and they become
      softmax: ${risk("softplus", FREE)} and ${risk("elu+1", FREE)}. Squared ReLU becomes a normalised threshold,
      ${risk("relu2", FREE)}. Taylor-2 gains little, ${risk("taylor-2", FREE)}: it grows like χ² on both
      sides, so that no bias makes the weight of ordinary tokens small.`,
  },
  {
    title: "A long haystack decides",
    state: {
      nu: Number((4 * Math.log(1000)).toFixed(2)), length: 1000, follow: true, bias: FREE,
      show: ["softmax", "sigmoid", "softplus", "relu", "relu2", "taylor-2"],
    },
    text: () => `Let the sequence grow to a million tokens, with ν = 4 log L, so that the needle can still be found. What decides
      is whether the average weight of an ordinary token can be pushed below 1/L of the needle’s weight: by an exponential
      tail (softmax ${inHaystack("softmax")}, softplus ${inHaystack("softplus")}) or by a threshold (squared ReLU
      ${inHaystack("relu2")}). Taylor-2 has neither, and fails:
      ${inHaystack("taylor-2")}. Growth at the top is not needed. Softmax has the tail without a bias to tune.`,
  },
];

function goTo(step) {
  const { show, ...rest } = STEPS[step - 1].state;
  update({ task: "spiked", gap: false, ...rest, show: show.filter((name) => name in atlas.attentions), step });
}

function drawStep() {
  const { title, text } = STEPS[state.step - 1];
  $("step").replaceChildren(element("h3", {}, `${state.step}. ${title}`), element("p", {}, text()));
  [...$("steps").children].forEach((button, i) => {
    if (i + 1 === state.step) button.setAttribute("aria-current", "step");
    else button.removeAttribute("aria-current");
  });
  $("back").disabled = state.step === 1;
  $("next").disabled = state.step === STEPS.length;
}
