// lanes.js
//
// What a comparison says of time, as the page draws it: actions, gaps and live memory of every rank, in milliseconds.

const MILLISECONDS = { s: 1000, ms: 1, us: 0.001 };
const KINDS = { F: "forward", B: "backward", I: "input gradient", W: "weight gradient" };
const PARTS = ["warm-up", "steady", "cool-down"];

// The operations of a cell in the text form: one, or the forward and the backward of an overlapped pair.
function parseCell(cell) {
  return [...String(cell).matchAll(/(\d+)([FBIW])(\d+)/g)].map(([text, stage, kind, microBatch]) => ({
    text,
    stage: Number(stage),
    kind,
    microBatch: Number(microBatch),
  }));
}

const isForward = (span) => span.ops.some((op) => op.kind === "F");
const isBackward = (span) => span.ops.some((op) => op.kind === "B" || op.kind === "I");

// Sets what a rank does nothing in while its pipeline is at work: `gaps` between actions, `waits` for messages within
// them, `idle`, the sum of both by part. Warm-up is before its first backward, cool-down after its last forward.
function findIdle(rank, { start, end }) {
  const { spans } = rank;
  const steadyFrom = spans.find(isBackward)?.start ?? Infinity;
  const steadyTo = Math.max(steadyFrom, spans.findLast(isForward)?.end ?? 0);
  const partOf = (from, to) => (to <= steadyFrom ? 0 : from >= steadyTo ? 2 : 1);
  const gaps = [];
  const add = (from, to) => {
    if (to - from > 1e-9 * end) gaps.push({ start: from, end: to, part: partOf(from, to) });
  };
  let reached = start;
  for (const span of spans) {
    add(reached, span.start);
    reached = Math.max(reached, span.end);
  }
  add(reached, end);
  const idle = PARTS.map((_, part) =>
    gaps.filter((gap) => gap.part === part).reduce((sum, gap) => sum + gap.end - gap.start, 0));
  for (const span of spans) idle[partOf(span.start, span.end)] += span.waited;
  const waits = spans.reduce((sum, span) => sum + span.waited, 0);
  Object.assign(rank, { gaps, idle, waits, time: end - start });
}

// From a pipeline's first action to its last. Those beside each other begin and end by themselves.
function windowsOf(ranks) {
  const windows = new Map();
  for (const { pipeline, spans } of ranks) {
    const window = windows.get(pipeline) ?? { start: Infinity, end: 0 };
    window.start = Math.min(window.start, spans[0].start);
    window.end = spans.reduce((last, span) => Math.max(last, span.end), window.end);
    windows.set(pipeline, window);
  }
  return windows;
}

// Live (stage, micro-batch) over time: from the start of F to the end of B or W.
function countLive(spans) {
  const changes = [];
  for (const span of spans) {
    for (const op of span.ops) {
      if (op.kind === "F") changes.push([span.start, 1]);
      if (op.kind === "B" || op.kind === "W") changes.push([span.end, -1]);
    }
  }
  changes.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  let live = 0;
  return changes.map(([time, change]) => [time, (live += change)]);
}

function readRank(entry, scale) {
  const spans = (entry.spans ?? [])
    .map(([cell, start, end, waited]) =>
      ({ cell, ops: parseCell(cell), start: start * scale, end: end * scale, waited: (waited ?? 0) * scale }))
    .sort((a, b) => a.start - b.start);
  const phases = (entry.phases ?? [])
    .map(([name, start, end, waited]) => ({
      name,
      op: parseCell(name)[0] ?? {},
      start: start * scale,
      end: end * scale,
      waited: isNumber(waited) ? waited * scale : null,
    }))
    .sort((a, b) => a.start - b.start);
  const samples = (entry.memory ?? []).map(([time, value]) => [time * scale, value]);
  return {
    rank: entry.rank,
    pipeline: entry.pipeline ?? 0,
    stages: entry.stages ?? [],
    spans,
    phases,
    longestPhase: Math.max(0, ...phases.map((phase) => phase.end - phase.start)),
    memory: samples.length ? samples : countLive(spans),
    countsBytes: samples.length > 0,
  };
}

// DualPipe feeds a stage's two copies different micro-batches, while data-parallel copies see the same numbers.
function isBidirectional(ranks) {
  const seen = new Map();
  for (const rank of ranks) {
    const fed = new Set(rank.spans.flatMap((span) => span.ops).filter((op) => op.kind === "F" && op.stage === 0)
      .map((op) => op.microBatch));
    if (fed.size) seen.set(rank.rank, fed);
  }
  const all = [...seen.values()];
  return all.some((one) => all.some((other) => [...one].every((microBatch) => !other.has(microBatch))));
}

// Marks what a rank holds second, as `dualpipe draw` does: the other direction, or every other stage.
function shade(timeline) {
  const bidirectional = isBidirectional(timeline.ranks);
  const count = 1 + timeline.ranks.reduce((most, rank) =>
    rank.spans.reduce((top, span) => Math.max(top, ...span.ops.map((op) => op.microBatch)), most), -1);
  for (const rank of timeline.ranks) {
    const dark = (op) => bidirectional ? op.microBatch >= count / 2 : rank.stages.indexOf(op.stage) % 2 === 1;
    for (const span of rank.spans) for (const op of span.ops) op.dark = dark(op);
    for (const { op } of rank.phases) op.dark = dark(op);
  }
  Object.assign(timeline, { bidirectional, count });
}

// Null where there are no actions. `makespan` (ms) gives a timeline without a known unit its scale.
function readTimeline(entry, makespan) {
  const entries = (entry?.ranks ?? []).filter((rank) => rank?.spans?.length);
  if (!entries.length) return null;
  const last = entries.reduce((most, rank) => rank.spans.reduce((top, span) => Math.max(top, span[2]), most), 0);
  const unit = MILLISECONDS[entry.unit];
  const scale = unit ?? (isNumber(makespan) && last > 0 ? makespan / last : 1);
  const ranks = entries.map((rank) => readRank(rank, scale));
  const timeline = { ranks, end: last * scale, hasUnit: unit !== undefined };
  shade(timeline);
  const windows = windowsOf(timeline.ranks);
  for (const rank of timeline.ranks) findIdle(rank, windows.get(rank.pipeline));
  const cells = timeline.ranks.flatMap((rank) =>
    rank.spans.map((span) => (span.end - span.start) / Math.max(1, span.ops.length)));
  timeline.usualCell = cells.sort((a, b) => a - b)[cells.length >> 2];
  timeline.digits = String(timeline.count - 1).length;
  timeline.hasPhases = timeline.ranks.some((rank) => rank.phases.length);
  timeline.countsBytes = timeline.ranks.some((rank) => rank.countsBytes);
  timeline.mostMemory = Math.max(...timeline.ranks.map(peakMemory));
  return timeline;
}

const peakMemory = (rank) => rank.memory.reduce((most, sample) => Math.max(most, sample[1]), 0);
const idleOf = (rank) => rank.idle.reduce((sum, part) => sum + part, 0);

// Of all ranks' time, the part that `pick` takes of each.
function shareOf(timeline, pick) {
  const sum = (get) => timeline.ranks.reduce((all, rank) => all + get(rank), 0);
  return sum(pick) / (sum((rank) => rank.time) || 1);
}

// Shares of all ranks' time: [warm-up, steady, cool-down].
const idleShares = (timeline) => PARTS.map((_, part) => shareOf(timeline, (rank) => rank.idle[part]));

// The index of the last entry that starts at or before `time`, or -1. Entries are in the order of starting.
function lastStarted(entries, time) {
  let low = 0;
  let high = entries.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (entries[middle].start <= time) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

function memoryAt(rank, time) {
  let low = 0;
  let high = rank.memory.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rank.memory[middle][0] <= time) low = middle + 1;
    else high = middle;
  }
  return low ? rank.memory[low - 1][1] : 0;
}

// The phases that ran during a span.
function phasesOf(rank, span) {
  const slack = 1e-6 * (span.end - span.start);
  return rank.phases.filter((phase) => phase.start >= span.start - slack && phase.end <= span.end + slack);
}
