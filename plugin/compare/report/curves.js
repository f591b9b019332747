// curves.js
//
// Curves over iterations, all schedules in one chart: losses, their differences, gradient norms.

const CHART = { width: 640, height: 260, left: 62, right: 12, top: 12, bottom: 30 };
const SERIES_COLOURS = 8;

const seriesColour = (index) => `var(--s${index % SERIES_COLOURS})`;
const DASH = 9;
// Curves that coincide all show: the first is wide, the dashes of each of the others lie in the gaps of the rest.
const seriesStyle = (index, count) => index === 0 ? "stroke-width:5;opacity:0.55" : count < 3 ? "stroke-width:2"
  : `stroke-width:2.2;stroke-dasharray:${DASH} ${DASH * (count - 2)};stroke-dashoffset:${-DASH * (index - 1)}`;

function linearAxis(values) {
  let low = Math.min(...values);
  let high = Math.max(...values);
  if (low === high) [low, high] = [low - Math.abs(low || 1) * 0.05, high + Math.abs(high || 1) * 0.05];
  const step = roundStep(high - low, 5);
  const ticks = [];
  for (let index = Math.ceil(low / step); index * step <= high; ++index) ticks.push(index * step);
  const label = (tick) => (step < 1e-4 || step >= 1e6 ? tick.toExponential(1) : tickLabel(tick, step));
  return { low, high, ticks: ticks.map((tick) => [tick, label(tick)]), map: (value) => value };
}

function logAxis(values) {
  const low = Math.floor(Math.log10(Math.min(...values)));
  const high = Math.max(low + 1, Math.ceil(Math.log10(Math.max(...values))));
  const step = Math.ceil((high - low) / 6);
  const ticks = [];
  for (let power = low; power <= high; power += step) ticks.push([power, `1e${power}`]);
  return { low, high, ticks, map: Math.log10 };
}

class Chart {
  // `series` is [{name, index, values}], a value per iteration, null where there is none.
  constructor(title, text, series, { log = false, show = number } = {}) {
    Object.assign(this, { series, log, show, hidden: new Set() });
    this.svg = svgElement("svg", { role: "img", "aria-label": title, tabindex: 0 });
    this.readout = element("p", { "aria-live": "polite" });
    this.text = text;
    this.root = element("figure.chart", { style: "margin:0" }, element("h4", {}, title), this.readout, this.svg);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.select(null));
    this.svg.addEventListener("blur", () => this.select(null));
    this.svg.addEventListener("keydown", (event) => this.onKey(event));
    new ResizeObserver(() => this.draw()).observe(this.svg);
    this.select(null);
  }

  shown() {
    return this.series.filter(({ name }) => !this.hidden.has(name));
  }

  usable(value) {
    return isNumber(value) && (!this.log || value > 0);
  }

  draw() {
    const width = Math.max(240, this.svg.clientWidth);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${CHART.height}`);
    this.svg.replaceChildren();
    this.count = Math.max(0, ...this.series.map(({ values }) => values.length));
    const values = this.shown().flatMap((one) => one.values).filter((value) => this.usable(value));
    if (!values.length) return this.drawEmpty(width);
    this.axis = this.log ? logAxis(values) : linearAxis(values);
    const { low, high, map } = this.axis;
    const [left, right] = [CHART.left, width - CHART.right];
    this.x = (index) => (this.count < 2 ? (left + right) / 2 : left + (index / (this.count - 1)) * (right - left));
    this.y = (value) => CHART.height - CHART.bottom -
      ((map(value) - low) / (high - low)) * (CHART.height - CHART.top - CHART.bottom);
    this.drawAxes(left, right);
    for (const one of this.shown()) this.drawSeries(one);
    const heights = { y1: CHART.top, y2: CHART.height - CHART.bottom };
    this.cursor = svgElement("line", { class: "cursor", ...heights, visibility: "hidden" });
    this.svg.append(this.cursor);
  }

  drawEmpty(width) {
    this.svg.append(svgElement("text", { x: width / 2, y: CHART.height / 2, "text-anchor": "middle" },
      this.log && this.series.length ? "Nothing differs." : "Nothing to show."));
  }

  drawAxes(left, right) {
    const { low, high, ticks } = this.axis;
    const bottom = CHART.height - CHART.bottom;
    for (const [tick, label] of ticks) {
      const y = bottom - ((tick - low) / (high - low)) * (bottom - CHART.top);
      this.svg.append(svgElement("line", { class: "grid", x1: left, x2: right, y1: y, y2: y }),
        svgElement("text", { x: left - 8, y: y + 4, "text-anchor": "end" }, label));
    }
    const step = Math.max(1, roundStep(this.count, 8));
    for (let tick = 0; tick <= this.count; tick += step) {
      const iteration = Math.max(1, tick);
      if (tick === 0 && step === 1) continue;
      const place = { x: this.x(iteration - 1), y: bottom + 17, "text-anchor": "middle" };
      this.svg.append(svgElement("text", place, iteration));
    }
    this.svg.append(svgElement("text", { x: right, y: CHART.height - 1, "text-anchor": "end" }, "iteration"));
  }

  drawSeries({ name, index, values }) {
    const stroke = `stroke:${seriesColour(index)}`;
    let path = "";
    values.forEach((value, iteration) => {
      if (!this.usable(value)) return;
      const place = `${this.x(iteration).toFixed(1)} ${this.y(value).toFixed(1)}`;
      const [before, after] = [values[iteration - 1], values[iteration + 1]].map((near) => this.usable(near));
      path += `${before ? "L" : "M"}${place}`;
      // A point between two that are missing, which a line would not show.
      if (!before && !after) this.svg.append(svgElement("path", { class: "dot", d: `M${place}h0.01`, style: stroke }));
    });
    const style = this.log ? "stroke-width:1.8" : seriesStyle(index, this.series.length);
    const attributes = { class: "series", d: path, style: `${stroke};${style}`, "data-schedule": name };
    this.svg.append(svgElement("path", attributes));
  }

  point(event) {
    if (!this.x || !this.count) return;
    const box = this.svg.getBoundingClientRect();
    const share = (event.clientX - box.left - CHART.left) / (box.width - CHART.left - CHART.right);
    this.select(Math.max(0, Math.min(this.count - 1, Math.round(share * (this.count - 1)))));
  }

  onKey(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1 };
    if (!steps[event.key] || !this.count) return;
    event.preventDefault();
    this.select(Math.max(0, Math.min(this.count - 1, (this.selected ?? -1) + steps[event.key])));
  }

  // Says the values of an iteration, or the chart's own text.
  select(iteration) {
    this.selected = iteration;
    this.cursor?.setAttribute("visibility", iteration === null ? "hidden" : "visible");
    if (iteration === null) {
      this.readout.replaceChildren(this.text);
      return;
    }
    this.cursor?.setAttribute("x1", this.x(iteration));
    this.cursor?.setAttribute("x2", this.x(iteration));
    const values = this.shown().map(({ name, values: all }) => `${name} ${this.show(all[iteration])}`);
    this.readout.replaceChildren(`Iteration ${iteration + 1}: ${values.join(", ")}`);
  }
}

// Per schedule, |value - reference| / |reference| in every iteration.
function relativeDifferences(series, reference) {
  const against = series.find(({ name }) => name === reference)?.values;
  if (!against) return [];
  return series.filter(({ name }) => name !== reference).map((one) => ({
    ...one,
    values: one.values.map((value, index) => {
      const base = against[index];
      if (!isNumber(value) || !isNumber(base)) return null;
      return value === base ? 0 : Math.abs(value - base) / Math.max(Math.abs(base), Number.MIN_VALUE);
    }),
  }));
}

function differencesText(series, reference) {
  if (!series.length) return "There is no other schedule to compare with.";
  const largest = series.map(({ name, values }) => {
    const known = values.filter(isNumber);
    if (!known.length) return `${name}: not known`;
    const most = known.reduce((a, b) => Math.max(a, b));
    return `${name}: ${most === 0 ? "equal to the bit" : `at most ${most.toExponential(1)}`}`;
  });
  return `|loss − loss of ${reference}| / |loss of ${reference}|. ${largest.join("; ")}.`;
}

function drawCurves(comparison) {
  const done = comparison.runs.filter((run) => !run.failure);
  const seriesOf = (key) => done
    .map((run, index) => ({ name: run.schedule, index, values: run[key] ?? [] }))
    .filter(({ values }) => values.length);
  const [losses, norms] = [seriesOf("losses"), seriesOf("grad_norms")];
  // Where the baseline failed, another that did not.
  const reference = comparison.reference ?? comparison.baseline;
  const differences = relativeDifferences(losses, reference);
  const exact = (value) => (value === 0 ? "0" : isNumber(value) ? value.toExponential(2) : "–");
  const title = `Difference of losses from ${reference ?? "the baseline"}`;
  const charts = [
    new Chart("Loss", "Where curves are equal, all show: the first wide, the others as dashes in turn.", losses,
      { show: (value) => (isNumber(value) ? value.toPrecision(7) : "–") }),
    new Chart(title, differencesText(differences, reference), differences, { log: true, show: exact }),
    new Chart("Gradient norm", "Before clipping, of all parameters.", norms,
      { show: (value) => (isNumber(value) ? value.toPrecision(6) : "–") }),
  ];
  byId("charts").append(...charts.map((chart) => chart.root));
  byId("series").append(...done.map((run, index) => seriesButton(run.schedule, index, charts)));
}

function seriesButton(name, index, charts) {
  const line = svgElement("line", { x1: 0, x2: 28, y1: 4, y2: 4,
    style: `stroke:${seriesColour(index)};stroke-width:${index ? 2.5 : 5}` });
  return element("button", { type: "button", "aria-pressed": "true", title: "show or hide", onclick(event) {
    const shows = event.currentTarget.getAttribute("aria-pressed") !== "true";
    event.currentTarget.setAttribute("aria-pressed", shows);
    for (const chart of charts) {
      if (shows) chart.hidden.delete(name);
      else chart.hidden.add(name);
      chart.draw();
    }
  } }, svgElement("svg", { "aria-hidden": "true" }, line), name);
}
