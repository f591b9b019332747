// figures.js
//
// The table of runs and the sentences around it. A cell's data-figure names its place in comparison.json, and
// data-value holds the figure with all its digits.

const at = (object, path) => path.split(".").reduce((value, key) => value?.[key], object) ?? null;

// A large figure with a small one below it, both by their place in a run.
const COLUMNS = [
  {
    head: "Time per iteration", figure: "ms.median", show: milliseconds, least: true,
    below: [["ms.low", number], ["ms.high", number]], join: (low, high) => `${low} to ${high}`,
    meaning: "Median over the iterations of all rounds, warm-up left out; below it the quartiles.",
  },
  {
    head: "Predicted", figure: "predicted_ms", show: milliseconds, needs: "cost_file",
    below: [["predicted_difference", signedPercent]], join: (text) => `${text} from measured`,
    meaning: "An iteration by the cost file and the schedule alone, as dualpipe plan gives it; below it how far that " +
      "is from the median.",
  },
  {
    head: "Speed-up", figure: "speedup.value", show: (value) => (isNumber(value) ? `${value.toFixed(3)}×` : "–"),
    below: [["speedup.low", fixed], ["speedup.high", fixed]], join: (low, high) => `${low} to ${high}`,
    meaning: "How many times as fast as the baseline; below it the 95 % interval over the rounds, of which it takes 3.",
  },
  {
    head: "Pipeline, simulated", figure: "pipeline_ms", show: milliseconds, below: [["simulated_ms", milliseconds]],
    join: (text) => `simulated ${text}`,
    meaning: "From the first action of a step to its last, without the optimizer; below it what is simulated.",
  },
  { head: "Bubble", figure: "bubble", show: percent, least: true, 
    meaning: "Idle share of the ranks' time, waiting for messages within actions included; median of the steps." },
  {
    head: "Exposed exchange", figure: "exposed_ms", show: milliseconds,
    meaning: "How long a rank did nothing but wait for exchanges, per iteration.",
  },
  {
    head: "Utilisation", figure: "utilization", show: percent,
    meaning: "Share of the ranks' time spent on actions, exposed communication left out.",
  },
  {
    head: "Peak activations", figure: "peak_activations", show: plain, below: [["peak_activation_bytes", bytes]],
    meaning: "Most (stage, micro-batch) that a rank holds at once, and their bytes.",
  },
  {
    head: "Parameters per rank", figure: "parameter_bytes", show: bytes,
    below: [["parameter_copies", (value) => (isNumber(value) ? `${value}×` : "–")]],
    join: (copies) => `${copies} over the ranks`,
    meaning: "Most bytes of parameters on a rank, and how many copies of the model the ranks hold together.",
  },
  { head: "Optimizer per rank", figure: "optimizer_bytes", show: bytes, meaning: "Bytes of a rank's optimizer state." },
  {
    head: "Largest loss difference", figure: "loss_difference", show: difference,
    meaning: "From the baseline's loss in the same iteration, relative; where the baseline failed, from the first's.",
  },
  {
    head: "Largest grad norm difference", figure: "grad_norm_difference", show: difference,
    meaning: "Likewise of the gradient norm.",
  },
];

// Some stand only where the comparison has what they need.
const columnsOf = (comparison) => COLUMNS.filter(({ needs }) => !needs || comparison[needs]);

function signedPercent(share) {
  return isNumber(share) ? `${share < 0 ? "" : "+"}${percent(share)}` : "–";
}

function fixed(value) {
  return isNumber(value) ? value.toFixed(3) : "–";
}

function difference(value) {
  if (!isNumber(value)) return "–";
  return value === 0 ? "none" : value.toExponential(1);
}

function figureSpan(run, figure, show) {
  const value = at(run, figure);
  const text = show(value);
  const title = isNumber(value) ? String(value) : "not known";
  return element("span", { "data-figure": figure, "data-value": JSON.stringify(value), title }, text);
}

// A line from quartile to quartile with a mark at the median, on one scale for all rows.
function spread(run, most) {
  const [low, median, high] = ["ms.low", "ms.median", "ms.high"].map((figure) => at(run, figure));
  if (![low, median, high, most].every(isNumber)) return null;
  const x = (value) => `${(100 * value) / most}%`;
  const bar = (name, from, to, y, height) =>
    svgElement("rect", { class: name, x: x(from), width: x(to - from), y, height });
  const mark = svgElement("rect", { class: "median", x: x(median), width: 2, y: 0, height: 10 });
  return svgElement("svg", { class: "spread", "aria-hidden": "true" }, bar("track", 0, median, 2, 6),
    bar("quartiles", low, high, 2, 6), mark);
}

function figureCell(run, column, best, most) {
  const cell = element("td", {}, figureSpan(run, column.figure, column.show));
  if (column.least && isNumber(best) && at(run, column.figure) === best) cell.classList.add("best");
  const below = (column.below ?? []).map(([figure, show]) => figureSpan(run, figure, show));
  if (below.some((span) => span.textContent !== "–")) cell.append(smallPrint(below, column.join));
  if (column.figure === "ms.median") cell.append(spread(run, most) ?? "");
  return cell;
}

// The spans, with the words that `join` puts between and after them.
function smallPrint(spans, join = (...texts) => texts.join(", ")) {
  const texts = spans.map((span) => span.textContent);
  const small = element("small");
  let rest = join(...texts);
  spans.forEach((span, index) => {
    const found = rest.indexOf(texts[index]);
    small.append(rest.slice(0, found), span);
    rest = rest.slice(found + texts[index].length);
  });
  small.append(rest);
  return small;
}

function tableRow(run, comparison, columns, best, most) {
  const name = element("th", { scope: "row" }, element("a", { href: `#${cardId(run)}` }, run.schedule));
  if (run.schedule === comparison.baseline) name.append(" ", element("span.tag", {}, "baseline"));
  const row = element("tr", { "data-schedule": run.schedule }, name);
  if (run.failure) {
    row.append(element("td.message", { colspan: columns.length }, failureText(run)));
    return row;
  }
  row.append(...columns.map((column) => figureCell(run, column, best.get(column.figure), most)));
  return row;
}

function drawTable(comparison) {
  const done = comparison.runs.filter((run) => !run.failure);
  const figures = (figure) => done.map((run) => at(run, figure)).filter(isNumber);
  const columns = columnsOf(comparison);
  const best = new Map(columns.map(({ figure }) => [figure, done.length > 1 ? Math.min(...figures(figure)) : null]));
  const most = Math.max(...figures("ms.high"), ...figures("ms.median"));
  byId("table").append(
    element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "Schedule"),
      ...columns.map((column) => element("th", { scope: "col" }, column.head)))),
    element("tbody", {}, ...comparison.runs.map((run) => tableRow(run, comparison, columns, best, most))));
  for (const { head, meaning } of columns) byId("columns").append(element("dt", {}, head), element("dd", {}, meaning));
}

const copiesOf = (run) => at(run, "parameter_copies");

function speedText(run, comparison) {
  const { value, low, high } = run.speedup ?? {};
  if (run.schedule === comparison.baseline || !isNumber(value)) return "";
  const interval = isNumber(low) && isNumber(high) ? ` (95 % interval ${fixed(low)} to ${fixed(high)})` : "";
  const doubt = interval && low <= 1 && high >= 1 ? ", which may be noise" : "";
  return `, ${fixed(value)}× as fast as ${comparison.baseline}${interval}${doubt}`;
}

function verdict(comparison) {
  const timed = comparison.runs.filter((run) => !run.failure && isNumber(at(run, "ms.median")));
  if (!timed.length) return "No schedule was timed.";
  const fastest = (runs) => runs.reduce((best, run) => (run.ms.median < best.ms.median ? run : best));
  const first = fastest(timed);
  const lead = timed.length > 1 ? `${first.schedule} is the fastest by the median: ` : `${first.schedule} takes `;
  let text = `${lead}${milliseconds(first.ms.median)} per iteration${speedText(first, comparison)}`;
  const single = timed.filter((run) => copiesOf(run) === 1);
  if (!(copiesOf(first) > 1)) return `${text}.`;
  text += `, with ${copiesText(copiesOf(first))} the parameters.`;
  if (!single.length) return text;
  const modest = fastest(single);
  const time = `${milliseconds(modest.ms.median)}${speedText(modest, comparison)}`;
  return `${text} Fastest with one copy: ${modest.schedule}, ${time}.`;
}

const copiesText = (copies) => (copies === 2 ? "twice" : `${number(copies, 2)} times`);

function copiesSentence(runs) {
  const known = runs.filter((run) => !run.failure && isNumber(copiesOf(run)));
  if (!known.length) return "How many copies of the parameters each schedule holds is not known.";
  const many = known.filter((run) => copiesOf(run) > 1);
  const names = (list) => sentenceList(list.map((run) => run.schedule));
  if (!many.length) return "Every schedule holds each parameter once, so rows compare at equal parameter memory.";
  const verb = (list, one, more) => (list.length > 1 ? more : one);
  const times = new Set(many.map(copiesOf)).size === 1 ? copiesText(copiesOf(many[0])) : "several times";
  const text = `${names(many)} ${verb(many, "holds", "hold")} ${times} the parameters`;
  const once = known.filter((run) => copiesOf(run) === 1);
  if (!once.length) return `${text}.`;
  return `${text}; ${names(once)} ${verb(once, "holds", "hold")} each parameter once.`;
}

function settingSentence(comparison) {
  const parts = [];
  const count = (value, one) => `${value} ${one}${value === 1 ? "" : "s"}`;
  if (isNumber(comparison.iterations)) parts.push(count(comparison.iterations, "iteration"));
  if (isNumber(comparison.rounds)) parts.push(count(comparison.rounds, "round"));
  if (comparison.baseline) parts.push(`baseline ${comparison.baseline}`);
  return parts.join(", ");
}

// What the comparison says of itself, or else who holds more parameters; and where schedules do not train alike.
function drawNotes(comparison) {
  const notes = comparison.notes?.length ? comparison.notes : [copiesSentence(comparison.runs)];
  byId("notes").append(...notes.map((note) => element("p", {}, note)),
    ...(comparison.mismatches ?? []).map((mismatch) => element("p.bad", {}, mismatch)));
}

function drawFigures(comparison) {
  const setting = byId("setting");
  setting.append(settingSentence(comparison));
  if (comparison.command) setting.append(element("br"), element("code", {}, comparison.command));
  byId("verdict").append(verdict(comparison));
  drawNotes(comparison);
  drawTable(comparison);
}
