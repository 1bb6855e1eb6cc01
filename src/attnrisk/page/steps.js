// The guided path, on the spiked task. All numbers in its text are read from the atlas.

const HAYSTACK = 1e6, HAYSTACK_NU = Number((4 * Math.log(HAYSTACK)).toFixed(6));
const NEAR = { nu: 9, length: 16, follow: false };

/** The least risk, in three digits, or as many as its error allows. */
function risk(name, bias, nu = NEAR.nu, length = NEAR.length) {
  const found = riskAt("spiked", name, bias, nu, length);
  return found ? fixed(found.risk, Math.min(3, decimalsOf(found.error))) : "(not computed)";
}
const inHaystack = (name) => risk(name, FREE, HAYSTACK_NU, HAYSTACK);

const STEPS = [
  {
    title: "One token matters",
    state: { ...NEAR, bias: DEFAULT, show: ["softmax"] },
    text: () => `Every token has a field: its component along a hidden direction k*. The fields are standard normal, except that
      the field of the needle is larger by √ν. The attention has to put its weight on the needle without knowing where it is.
      Press “New sequence” a few times: at ν = 9 and 16 tokens the needle usually stands out, but not always.`,
  },
  {
    title: "Softmax computes the posterior",
    state: { ...NEAR, bias: DEFAULT, show: ["softmax"] },
    text: () => `With the best k, the softmax weight of a token is the posterior probability that it is the needle. No predictor
      can do better: the risk of softmax, ${risk("softmax", NONE)}, equals the Bayes risk, ${risk(BAYES, NONE)}, at every ν and
      every L.`,
  },
  {
    title: "Weighing each token alone is not enough",
    state: { ...NEAR, bias: DEFAULT, show: ["softmax", "sigmoid", "erf", "linear"] },
    text: () => `Sigmoid, erf and linear attention compute the weight of a token from its own score alone. The best such function
      has the risk ${risk(FLOOR, NONE)}, the element-wise floor. Sigmoid with a tuned bias reaches ${risk("sigmoid", FREE)},
      linear attention only ${risk("linear", NONE)}. The gap between the floor and the Bayes risk, ${risk(BAYES, NONE)}, is
      what normalisation over the sequence gains.`,
  },
  {
    title: "Normalised, but not exponential",
    state: { ...NEAR, bias: DEFAULT, show: ["softmax", "softplus", "relu", "relu2", "taylor-2"] },
    text: () => `These attentions divide by the sum over all tokens, as softmax does; only the kernel differs. Without a bias,
      softplus has the risk ${risk("softplus", NONE)}, ReLU ${risk("relu", NONE)}, Taylor-2 ${risk("taylor-2", NONE)} and squared
      ReLU ${risk("relu2", NONE)}, compared with ${risk("softmax", NONE)} for softmax. A bias has no effect on softmax, but it can
      help the others, so the comparison is not yet fair.`,
  },
  {
    title: "Tune a bias for every attention",
    state: { ...NEAR, bias: FREE, show: ["softmax", "softplus", "elu+1", "relu", "relu2", "taylor-2"] },
    text: () => `Softplus and elu+1 behave like eˣ for very negative x. As the bias goes to −∞ they become softmax:
      ${risk("softplus", FREE)} and ${risk("elu+1", FREE)}. Squared ReLU becomes a normalised threshold,
      ${risk("relu2", FREE)}. Taylor-2 gains little, ${risk("taylor-2", FREE)}: it grows like x² on both sides, so no bias makes
      the weights of ordinary tokens small.`,
  },
  {
    title: "Long sequences separate them",
    state: {
      nu: HAYSTACK_NU, length: HAYSTACK, follow: true, bias: FREE,
      show: ["softmax", "sigmoid", "softplus", "relu", "relu2", "taylor-2"],
    },
    text: () => `With a million tokens and ν = 4 log L = ${nuText(HAYSTACK_NU)} the needle can still be found. An attention succeeds if
      the mean weight of an ordinary token can be made smaller than 1/L of the weight of the needle. An exponential tail does so
      (softmax ${inHaystack("softmax")}, softplus ${inHaystack("softplus")}), and so does a threshold (squared ReLU
      ${inHaystack("relu2")}). Taylor-2 has neither and fails: ${inHaystack("taylor-2")}. Softmax succeeds without any bias to
      tune.`,
  },
];

function goTo(step) {
  const { show, ...rest } = STEPS[step - 1].state;
  update({ task: "spiked", gap: false, ...rest, show: show.filter((name) => name in atlas.attentions), step });
}

function drawStep() {
  const { title, text } = STEPS[state.step - 1], isAway = state.task !== "spiked";
  $("step").replaceChildren(...(isAway
    ? [element("p", {}, "The steps are about the spiked task. Choose a number to return to it.")]
    : [element("h3", {}, `${state.step}. ${title}`), element("p", {}, text())]));
  [...$("steps").children].forEach((button, i) => {
    if (i + 1 === state.step && !isAway) button.setAttribute("aria-current", "step");
    else button.removeAttribute("aria-current");
  });
  $("back").disabled = isAway || state.step === 1;
  $("next").disabled = isAway || state.step === STEPS.length;
}
