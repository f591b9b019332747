// paint.js
//
// Draws lanes on a canvas: actions in the colours of `dualpipe draw`, idle time hatched, phases below their actions,
// memory as an area.

// [light, dark] shades, with the number's colour; plugin/analysis/picture_style.cc has the same.
const COLOURS = {
  F: ["#f8b566", "#bf5a0a"],
  B: ["#7cc47f", "#2b7436"],
  I: ["#8fd8c4", "#17796a"],
  W: ["#d3ebab", "#5d7a1f"],
};
const NUMBER_COLOURS = ["#263238", "#ffffff"];
const OTHER_COLOUR = "#9aa5ab";
const PART_COLOURS = ["warm", "steady", "cool"];
const AXIS = 22;  // Pixels above the first lane.
const FONT = 'system-ui, "Segoe UI", Helvetica, Arial, "DejaVu Sans", sans-serif';

const colourOf = (op) => COLOURS[op.kind]?.[op.dark ? 1 : 0] ?? OTHER_COLOUR;

function hatch(context, colour) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const pen = tile.getContext("2d");
  pen.globalAlpha = 0.2;
  pen.fillStyle = colour;
  pen.fillRect(0, 0, 6, 6);
  pen.globalAlpha = 0.75;
  pen.strokeStyle = colour;
  pen.lineWidth = 1.1;
  for (const shift of [-6, 0, 6]) {
    pen.moveTo(shift - 1, 7);
    pen.lineTo(shift + 7, -1);
  }
  pen.stroke();
  return context.createPattern(tile, "repeat");
}

// Cells as halves of a pair or whole, in pixels: [op, from, to].
function cellsOf(span, x) {
  const [from, to] = [x(span.start), x(span.end)];
  if (span.ops.length < 2) return [[span.ops[0] ?? {}, from, to]];
  const middle = (from + to) / 2;
  return [[span.ops[0], from, middle], [span.ops[1], middle, to]];
}

class Painter {
  // Sizes in CSS pixels; `view` says which time lies where.
  constructor(canvas, view, pitch) {
    const prints = Boolean(document.documentElement.dataset.print);
    const ratio = Math.max(window.devicePixelRatio || 1, prints ? 3 : 1);
    this.leastFont = prints ? 5 : 7.5;
    this.width = canvas.clientWidth;
    this.height = canvas.clientHeight;
    canvas.width = Math.round(this.width * ratio);
    canvas.height = Math.round(this.height * ratio);
    this.pen = canvas.getContext("2d");
    this.pen.scale(ratio, ratio);
    this.view = view;
    this.pitch = pitch;
    this.lane = pitch >= 8 ? pitch - Math.max(1, Math.round(pitch * 0.12)) : pitch;
    this.scale = this.width / view.length;
    const inks = new Map();
    this.ink = (name) => inks.get(name) ?? inks.set(name, color(name)).get(name);
    this.x = (time) => (time - view.start) * this.scale;
  }

  top(index) {
    return AXIS + index * this.pitch;
  }

  // The entries of a row that are in view; they start in order.
  *visible(entries, longest = 0) {
    let index = Math.max(0, lastStarted(entries, this.view.start - longest));
    for (; index < entries.length && entries[index].start < this.view.end; ++index) {
      if (entries[index].end > this.view.start) yield entries[index];
    }
  }

  axis(end) {
    const { pen, view } = this;
    const step = roundStep(view.length, this.width / 90);
    pen.font = `11px ${FONT}`;
    pen.textAlign = "center";
    pen.textBaseline = "alphabetic";
    for (let index = Math.ceil(view.start / step - 1e-9); index * step <= view.end; ++index) {
      const x = this.x(index * step);
      pen.fillStyle = this.ink("grid");
      pen.fillRect(x - 0.5, AXIS - 5, 1, this.height);
      const label = `${tickLabel(index * step, step)}${index === 0 ? " ms" : ""}`;
      const half = pen.measureText(label).width / 2;
      pen.fillStyle = this.ink("quiet");
      pen.fillText(label, Math.min(Math.max(x, half), this.width - half), AXIS - 9);
    }
    pen.fillStyle = this.ink("text");
    pen.fillRect(this.x(end) - 1, AXIS - 5, 1.5, this.height);
  }

  // Whether there is room for phases below the actions of a lane.
  showsPhases(timeline) {
    if (this.lane < 18 || !timeline.hasPhases) return false;
    const most = this.width / 9;
    return timeline.ranks.every((rank) => {
      let count = 0;
      for (const phase of this.visible(rank.phases, rank.longestPhase)) if (phase && ++count > most) return false;
      return true;
    });
  }

  actions(timeline) {
    const hatches = PART_COLOURS.map((name) => hatch(this.pen, this.ink(name)));
    this.withPhases = this.showsPhases(timeline);
    this.cellHeight = this.withPhases ? Math.round(this.lane * 0.56) : this.lane;
    this.font = this.fontOf(timeline);
    timeline.ranks.forEach((rank, index) => {
      const top = this.top(index);
      for (const gap of this.visible(rank.gaps)) {
        this.pen.fillStyle = hatches[gap.part];
        this.pen.fillRect(this.x(gap.start), top, (gap.end - gap.start) * this.scale, this.lane);
      }
      this.row(rank, top);
      if (this.withPhases) this.phases(rank, top + this.cellHeight + 1, this.lane - this.cellHeight - 1);
    });
  }

  // So that the numbers of most cells fit.
  fontOf(timeline) {
    const roomForDigit = (timeline.usualCell * this.scale - 2) / timeline.digits;
    return Math.max(this.leastFont, Math.min(12, this.cellHeight * 0.72, roomForDigit / 0.62));
  }

  row(rank, top) {
    this.pen.textAlign = "center";
    this.pen.textBaseline = "middle";
    this.useFont(this.font);
    for (const span of this.visible(rank.spans)) {
      for (const [op, from, to] of cellsOf(span, this.x)) this.cell(op, from, to, top);
      if (span.ops.length > 1) this.frame(span, top);
    }
  }

  useFont(size) {
    if (size === this.usedFont) return;
    this.usedFont = size;
    this.pen.font = `${size}px ${FONT}`;
    this.digit = this.pen.measureText("0").width;
  }

  // Whether a label fits at the usual size or a little below it, which is then in use.
  fits(label, width) {
    return [this.font, Math.max(this.leastFont, 0.85 * this.font)].some((size) => {
      this.useFont(size);
      return label.length * this.digit + 1.5 <= width;
    });
  }

  cell(op, from, to, top) {
    const { pen } = this;
    const gap = to - from > 5 ? 0.8 : to - from > 2.5 ? 0.4 : 0;
    pen.fillStyle = colourOf(op);
    pen.fillRect(from, top, to - from - gap, this.cellHeight);
    if (this.cellHeight < 9 || op.microBatch === undefined) return;
    const seen = [Math.max(0, from), Math.min(this.width, to)];
    const label = String(op.microBatch);
    if (!this.fits(label, seen[1] - seen[0])) return;
    pen.fillStyle = NUMBER_COLOURS[op.dark ? 1 : 0];
    pen.fillText(label, (seen[0] + seen[1]) / 2, top + this.cellHeight / 2 + 0.5);
  }

  frame(span, top) {
    const width = (span.end - span.start) * this.scale;
    if (width < 5) return;
    this.pen.strokeStyle = this.ink("frame");
    this.pen.lineWidth = width > 14 && this.lane > 10 ? 1.4 : 0.7;
    const inset = this.pen.lineWidth / 2;
    this.pen.strokeRect(this.x(span.start) + inset, top + inset, width - 1 - 2 * inset, this.cellHeight - 2 * inset);
  }

  // Computes above, exchanges below; at the end of an exchange, how long it was waited for.
  phases(rank, top, height) {
    const { pen } = this;
    const upper = Math.round(height * 0.55);
    for (const phase of this.visible(rank.phases, rank.longestPhase)) {
      const [from, to] = [this.x(phase.start), this.x(phase.end)];
      if (phase.waited === null) {
        pen.fillStyle = colourOf(phase.op);
        pen.fillRect(from, top, to - from - 0.6, upper);
        this.phaseName(phase, from, to, top, upper, NUMBER_COLOURS[phase.op.dark ? 1 : 0]);
      } else {
        this.exchange(phase, from, to, top + upper + 1, Math.max(2, height - upper - 1));
      }
    }
  }

  exchange(phase, from, to, top, height) {
    const waitsFrom = to - phase.waited * this.scale;
    this.pen.globalAlpha = 0.55;
    this.pen.fillStyle = this.ink("exchange");
    this.pen.fillRect(from, top, to - from, height);
    this.pen.globalAlpha = 1;
    this.pen.fillStyle = this.ink("wait");
    this.pen.fillRect(waitsFrom, top, to - waitsFrom, height);
    this.phaseName(phase, from, waitsFrom, top, height, this.ink("text"));
  }

  phaseName(phase, from, to, top, height, colour) {
    if (height < 9) return;
    const label = phase.name.replace(/^\S+ /, "");
    this.useFont(Math.min(11, height - 1));
    if (this.pen.measureText(label).width + 4 > to - from) return;
    this.pen.fillStyle = colour;
    this.pen.fillText(label, (from + to) / 2, top + height / 2 + 0.5);
  }

  memory(timeline) {
    const most = timeline.mostMemory || 1;
    const { pen } = this;
    timeline.ranks.forEach((rank, index) => {
      const bottom = this.top(index) + this.lane;
      const y = (value) => bottom - (value / most) * (this.lane - 1);
      pen.fillStyle = this.ink("lane");
      pen.fillRect(this.x(0), this.top(index), timeline.end * this.scale, this.lane);
      pen.beginPath();
      pen.moveTo(this.x(0), y(0));
      let value = 0;
      for (const [time, next] of rank.memory) {
        pen.lineTo(this.x(time), y(value));
        pen.lineTo(this.x(time), y(next));
        value = next;
      }
      pen.lineTo(this.x(timeline.end), y(value));
      pen.strokeStyle = this.ink("memory");
      pen.lineWidth = 1;
      pen.stroke();
      pen.lineTo(this.x(timeline.end), y(0));
      pen.fillStyle = this.ink("memory-fill");
      pen.fill();
    });
  }
}
