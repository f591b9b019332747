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

// The idle times of a rank. Warm-up is before its first backward, cool-down after its last forward.
function findGaps(spans, end) {
  const steadyFrom = spans.find(isBackward)?.start ?? Infinity;
  const steadyTo = Math.max(steadyFrom, spans.findLast(isForward)?.end ?? 0);
  const gaps = [];
  const add = (from, to) => {
    if (to - from <= 1e-9 * end) return;
    gaps.push({ start: from, end: to, part: to <= steadyFrom ? 0 : from >= steadyTo ? 2 : 1 });
  };
  let reached = 0;
  for (const span of spans) {
    add(reached, span.start);
    reached = Math.max(reached, span.end);
  }
  add(reached, end);
  return gaps;
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
  for (const rank of timeline.ranks) {
    rank.gaps = findGaps(rank.spans, timeline.end);
    rank.idle = PARTS.map((_, part) =>
      rank.gaps.filter((gap) => gap.part === part).reduce((sum, gap) => sum + gap.end - gap.start, 0));
  }
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

// Shares of all ranks' time: [warm-up, steady, cool-down].
function idleShares(timeline) {
  const total = timeline.end * timeline.ranks.length;
  return PARTS.map((_, part) => timeline.ranks.reduce((sum, rank) => sum + rank.idle[part], 0) / total);
}

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
