// What the tests ask of an open page. Contrast is computed as WCAG 2 has it.
globalThis.checks = {
  /** Every visible text and every line of a chart: what it is, its contrast, and the least that is allowed. */
  contrasts() {
    const rgb = (colour) => colour.match(/[\d.]+/g).map(Number);
    const linear = (c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    const luminance = (colour) => {
      const [r, g, b] = rgb(colour).slice(0, 3).map((c) => linear(c / 255));
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ratio = (a, b) => {
      const [light, dark] = [luminance(a), luminance(b)].sort((p, q) => q - p);
      return (light + 0.05) / (dark + 0.05);
    };
    const behind = (node) => {
      for (let at = node; at; at = at.parentElement) {
        const colour = getComputedStyle(at).backgroundColor;
        if ((rgb(colour)[3] ?? 1) > 0) return colour;
      }
      return "rgb(255, 255, 255)";
    };
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const text = walker.currentNode.textContent.trim(), node = walker.currentNode.parentElement;
      if (!text || !node.checkVisibility() || node.closest("script, option")) continue;
      const style = getComputedStyle(node);
      const colour = node.namespaceURI.includes("svg") ? style.fill : style.color;
      found.push([text.slice(0, 40), ratio(colour, behind(node)), node.closest(":disabled, .skip") ? 0 : 4.5]);
    }
    for (const line of document.querySelectorAll("svg .curve")) {
      if (!line.checkVisibility()) continue;
      found.push([`line ${line.getAttribute("class")}`, ratio(getComputedStyle(line).stroke, behind(line)), 3]);
    }
    return found;
  },

  /** Elements that a screen reader has no name for. */
  unnamed() {
    const named = (node) => {
      const labels = [...(node.labels ?? [])].map((label) => label.textContent);
      const others = (node.getAttribute("aria-labelledby") ?? "").split(" ").map((id) => document.getElementById(id));
      const own = node.matches("button") ? node.textContent : (node.caption?.textContent ?? "");
      const all = [...labels, ...others.map((each) => each?.textContent), node.getAttribute("aria-label"), own];
      return all.join("").trim() !== "";
    };
    const looked = document.querySelectorAll("button, input, select, table, [role], section, nav, iframe, svg");
    const parts = "[role=rowgroup], [role=row], [role=rowheader], [role=columnheader], [role=cell]"; // of a table
    return [...looked]
      .filter((node) => !node.matches(`[aria-hidden=true], [role=status], ${parts}`) && !named(node))
      .map((node) => node.outerHTML.slice(0, 120));
  },

  /** Move a slider: milliseconds until it is drawn, and until that is on the screen. The second frame begins when the
   * first has been painted. */
  move([id, value]) {
    const slider = document.getElementById(id), begun = performance.now();
    slider.value = value;
    slider.dispatchEvent(new Event("input", { bubbles: true }));
    const drawn = performance.getEntriesByName("answer").at(-1).duration;
    return new Promise((done) => {
      requestAnimationFrame(() => requestAnimationFrame(() => done([drawn, performance.now() - begun])));
    });
  },
};
