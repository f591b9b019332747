// describe.js
//
// The words for what lies under the pointer or the keyboard's cursor.

const MOST_PHASES = 14;

function opWords(op) {
  return `${KINDS[op.kind]} of micro-batch ${op.microBatch} in stage ${op.stage}`;
}

function spanWords(span) {
  if (!span.ops.length) return span.cell;
  return capital(span.ops.map(opWords).join(", overlapped with the "));
}

function timesTable(entry, twin, otherName) {
  const row = (...cells) => element("tr", {}, ...cells.map((cell) => element("td", {}, cell)));
  const table = element("table", {},
    element("tr", {}, ...["", "start", "end", "duration"].map((head) => element("th", { scope: "col" }, head))),
    row("this", ...[entry.start, entry.end, entry.end - entry.start].map(milliseconds)));
  if (twin) table.append(row(otherName, ...[twin.start, twin.end, twin.end - twin.start].map(milliseconds)));
  return table;
}

function phaseTable(phases, span, time) {
  const heads = ["phase", "after", "duration", "waited"].map((head) => element("th", { scope: "col" }, head));
  const table = element("table.phases", {}, element("tr", {}, ...heads));
  for (const phase of phases.slice(0, MOST_PHASES)) {
    const here = time !== null && phase.start <= time && time < phase.end;
    table.append(element(here ? "tr.here" : "tr", {},
      element("td", {}, phase.name),
      element("td", {}, milliseconds(phase.start - span.start)),
      element("td", {}, milliseconds(phase.end - phase.start)),
      element("td", {}, phase.waited === null ? "" : milliseconds(phase.waited))));
  }
  if (phases.length > MOST_PHASES) {
    table.append(element("tr", {}, element("td", { colspan: 4 }, `and ${phases.length - MOST_PHASES} more`)));
  }
  return table;
}

// `twin` is the same action in the other timeline, if any; `time` is where the pointer is, or null.
function describeSpan(rank, span, twin, otherName, time) {
  const title = span.ops.map((op) => op.text).join(" + ") || span.cell;
  const parts = [
    element("p", {}, element("b", {}, title), ` on rank ${rank.rank}`),
    element("p", {}, spanWords(span)),
    timesTable(span, twin, otherName),
  ];
  if (span.waited) parts.push(element("p", {}, `Waited ${milliseconds(span.waited)} of it for messages`));
  const phases = phasesOf(rank, span);
  if (phases.length) parts.push(phaseTable(phases, span, time));
  return parts;
}

function describeGap(rank, gap) {
  return [
    element("p", {}, element("b", {}, "Idle"), ` on rank ${rank.rank}, ${PARTS[gap.part]}`),
    timesTable(gap, null, ""),
  ];
}

function memoryText(timeline, value) {
  if (timeline.countsBytes) return bytes(value);
  return `${value} live activation${value === 1 ? "" : "s"}`;
}

function describeMemory(timeline, rank, time) {
  return [
    element("p", {}, element("b", {}, memoryText(timeline, memoryAt(rank, time))), ` on rank ${rank.rank}`),
    element("p", {}, `at ${milliseconds(time)}; at most ${memoryText(timeline, peakMemory(rank))}`),
  ];
}

const tooltip = {
  show(content, x, y) {
    const box = byId("tooltip");
    box.replaceChildren(...content);
    box.hidden = false;
    const [width, height] = [box.offsetWidth, box.offsetHeight];
    box.style.left = `${Math.max(4, x + 16 + width > innerWidth ? x - width - 12 : x + 16)}px`;
    box.style.top = `${Math.max(4, y + 16 + height > innerHeight ? y - height - 12 : y + 16)}px`;
  },
  hide() {
    byId("tooltip").hidden = true;
  },
};
