// card.js
//
// A schedule's card: measured above simulated above memory, on one scale, zoomed and panned together.

const cardId = (run) => `run-${run.schedule.replace(/[^\w.-]/g, "_")}`;

class Card {
  // `shared` is {stretch: () => height of lanes, limit: milliseconds that all cards show}.
  constructor(run, shared) {
    this.run = run;
    this.stretch = shared.stretch;
    this.measured = readTimeline(run.measured, run.pipeline_ms ?? run.ms?.median);
    this.simulated = readTimeline(run.simulated, run.simulated_ms ?? this.measured?.end);
    this.strips = [];
    this.twins = new Map();
    this.root = element("article.card", { id: cardId(run), "data-schedule": run.schedule, "aria-label": run.schedule });
  }

  get end() {
    return Math.max(this.measured?.end ?? 0, this.simulated?.end ?? 0);
  }

  // The largest idle share of a rank in either timeline: what a full bar means.
  mostIdle() {
    const shares = [this.measured, this.simulated].filter(Boolean)
      .flatMap((timeline) => timeline.ranks.map((rank) => idleOf(rank) / (rank.time || 1)));
    return Math.max(0, ...shares);
  }

  build(limit) {
    this.view = new View(limit);
    this.view.watchers.push(() => this.redraw());
    this.root.append(element("header", {}, element("h3", {}, this.run.schedule), ...this.summary()));
    if (this.run.failure) return;
    this.addActions("measured", "Measured", this.measured, "This host wrote no timeline.");
    this.addActions("simulated", "Simulated", this.simulated, "No simulation of this schedule is known.");
    if (this.measured) this.addMemory(this.measured);
  }

  summary() {
    if (this.run.failure) return [element("p.facts.bad", {}, capital(failureText(this.run)))];
    const facts = element("p.facts", {}, this.facts());
    return this.measured || this.simulated ? [facts, this.buttons()] : [facts];
  }

  facts() {
    const { measured, simulated } = this;
    if (!measured || !simulated) return "";
    const ratio = simulated.end / measured.end - 1;
    if (!simulated.hasUnit && !isNumber(this.run.simulated_ms)) {
      return "The simulation has no unit of time: it is drawn as wide as what was measured.";
    }
    return `One step took ${milliseconds(measured.end)}; simulated ${milliseconds(simulated.end)}, ` +
      `${percent(Math.abs(ratio))} ${ratio < 0 ? "less" : "more"}.`;
  }

  buttons() {
    const button = (text, label, action) =>
      element("button", { type: "button", "aria-label": label, title: label, onclick: action }, text);
    this.shown = element("output", { "aria-live": "off", title: "the time that is shown" });
    return element("span.buttons", { role: "group", "aria-label": `Zoom of ${this.run.schedule}` }, this.shown,
      button("◂", "earlier", () => this.view.pan(-0.25)),
      button("▸", "later", () => this.view.pan(0.25)),
      button("−", "zoom out", () => this.view.zoom(2)),
      button("+", "zoom in", () => this.view.zoom(0.5)),
      button("fit", "show this step alone", () => this.view.set(0, this.end)),
      button("all", "show as much time as the longest schedule takes", () => this.view.reset()));
  }

  addActions(kind, title, timeline, missing) {
    if (!timeline) {
      this.root.append(element("div.block", {},
        element("header", {}, element("h4", {}, title), element("p", {}, missing))));
      return;
    }
    const shares = idleShares(timeline);
    const total = shares.reduce((sum, share) => sum + share, 0);
    const parts = PARTS.map((part, index) => `${part} ${percent(shares[index])}`).join(", ");
    const waits = shareOf(timeline, (rank) => rank.waits);
    const within = waits > 0 ? `, of which ${percent(waits)} waiting for messages within actions` : "";
    this.addStrip(kind, title, timeline,
      `${milliseconds(timeline.end)}. Idle ${percent(total)} of the ranks' time: ${parts}${within}.`);
  }

  addMemory(timeline) {
    const what = timeline.countsBytes ? "bytes of live activations"
      : "live (stage, micro-batch) counted from the actions, since this host reports no bytes";
    const highest = `highest on any rank: ${memoryText(timeline, timeline.mostMemory)}`;
    this.addStrip("memory", "Memory over time", timeline, `${what}; ${highest}, the height of a lane.`);
  }

  addStrip(kind, title, timeline, text) {
    const name = `${this.run.schedule}, ${title.toLowerCase()}: ${timeline.ranks.length} ranks over time. ` +
      "Arrow keys go from action to action, plus and minus zoom, 0 shows all.";
    const strip = new Strip(this, kind, timeline, name);
    this.strips.push(strip);
    this.root.append(element("div.block", { "data-block": kind },
      element("header", {}, element("h4", {}, title), element("p", {}, text)), strip.root));
  }

  // The same action on the same rank of the other timeline.
  twinOf(strip, rank, span) {
    const other = strip.kind === "measured" ? this.simulated : this.measured;
    if (!other) return null;
    if (!this.twins.has(other)) {
      const named = other.ranks.flatMap((row) => row.spans.map((one) => [`${row.rank} ${one.cell}`, one]));
      this.twins.set(other, new Map(named));
    }
    return this.twins.get(other).get(`${rank.rank} ${span.cell}`) ?? null;
  }

  setCrosshair(time) {
    for (const strip of this.strips) strip.setCrosshair(time);
  }

  layOut() {
    for (const strip of this.strips) strip.layOut();
    this.redraw();
  }

  sayRange() {
    if (!this.shown) return;
    const step = roundStep(this.view.length, 400);
    this.shown.value = `${tickLabel(this.view.start, step)} to ${tickLabel(this.view.end, step)} ms`;
  }

  // Once per frame, and only while the card is near the screen.
  redraw() {
    this.stale = true;
    this.sayRange();
    if (this.waits || !this.near) return;
    this.waits = true;
    requestAnimationFrame(() => {
      this.waits = false;
      this.drawNow();
    });
  }

  drawNow() {
    this.stale = false;
    for (const strip of this.strips) strip.draw();
  }

  approach(near) {
    this.near = near;
    if (near && this.stale) this.redraw();
  }
}

// --- all cards

const STRETCHES = [1, 1.5, 2, 3];

function legendEntry(text, ...swatches) {
  return element("span", {}, ...swatches.map((style) => element("i", { style })), text);
}

function drawLegend(bidirectional) {
  const shades = (kind) => `background:linear-gradient(90deg,${COLOURS[kind][0]} 50%,${COLOURS[kind][1]} 50%)`;
  const halves = `linear-gradient(90deg,${COLOURS.F[0]} 50%,${COLOURS.B[0]} 50%)`;
  const pair = `background:${halves};outline:1.5px solid var(--frame)`;
  const idle = (name) => `background:repeating-linear-gradient(135deg,transparent 0 3px,var(--${name}) 3px 4.2px)`;
  const dark = "dark: every other stage of a rank" +
    (bidirectional ? "; under DualPipe, micro-batches that enter at the last rank" : "");
  byId("legend").append(
    legendEntry("F forward", shades("F")), legendEntry("B backward", shades("B")),
    legendEntry("I input gradient", shades("I")), legendEntry("W weight gradient", shades("W")),
    legendEntry("F and B overlapped", pair), legendEntry("idle: warm-up", idle("warm")),
    legendEntry("steady", idle("steady")), legendEntry("cool-down", idle("cool")),
    element("span.quiet", {}, `${dark}; numbers are micro-batches`));
}

// When zoomed in, phases have a row of their own, which needs a legend only where there are any.
function drawPhaseLegend() {
  byId("legend").append(
    legendEntry("zoomed in, below: phases", `background:${COLOURS.F[0]};height:6px`),
    legendEntry("exchange", "background:var(--exchange);height:5px;opacity:0.6"),
    legendEntry("of it, waited for", "background:var(--wait);height:5px"));
}

function drawToolbar(cards, setStretch) {
  const together = element("input", { type: "checkbox", id: "together" });
  let level = 0;
  const stretchBy = (by) => () => {
    level = Math.max(0, Math.min(STRETCHES.length - 1, level + by));
    setStretch(STRETCHES[level]);
  };
  byId("toolbar").append(
    element("span.buttons", { role: "group", "aria-label": "Height of lanes" }, "Lanes",
      element("button", { type: "button", "aria-label": "lower lanes", onclick: stretchBy(-1) }, "−"),
      element("button", { type: "button", "aria-label": "higher lanes", onclick: stretchBy(1) }, "+")),
    element("label", { for: "together" }, together, " zoom all schedules together"),
    element("span.hint", {}, "Ctrl + wheel zooms (after a click the wheel alone does), drag moves, " +
      "Shift + drag zooms to a range. Keys: arrows from action to action, + − zoom, Shift + arrows move, " +
      "0 shows all."));
  linkViews(cards, () => together.checked);
}

function linkViews(cards, areLinked) {
  let moving = false;
  for (const { view } of cards) {
    view.watchers.push(() => {
      if (moving || !areLinked()) return;
      moving = true;
      for (const other of cards) if (other.view !== view) other.view.set(view.start, view.end);
      moving = false;
    });
  }
}

function drawCards(comparison) {
  let stretch = 1;
  const cards = comparison.runs.map((run) => new Card(run, { stretch: () => stretch }));
  const limit = Math.max(...cards.map((card) => card.end)) || 1;
  for (const card of cards) card.build(limit * 1.002);
  byId("cards").append(...cards.map((card) => card.root));
  const timelines = cards.flatMap((card) => [card.measured, card.simulated]).filter(Boolean);
  byId("legend").hidden = byId("toolbar").hidden = !timelines.length;
  drawLegend(timelines.some((timeline) => timeline.bidirectional));
  if (timelines.some((timeline) => timeline.hasPhases)) drawPhaseLegend();
  drawToolbar(cards, (value) => {
    stretch = value;
    for (const card of cards) card.layOut();
  });
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) cards.find((card) => card.root === entry.target).approach(entry.isIntersecting);
  }, { rootMargin: "400px" });
  const sizes = new ResizeObserver((entries) => {
    for (const entry of entries) cards.find((card) => card.root === entry.target).redraw();
  });
  for (const card of cards) {
    card.layOut();
    near.observe(card.root);
    sizes.observe(card.root);
  }
  return cards;
}
