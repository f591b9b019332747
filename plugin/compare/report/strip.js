// strip.js
//
// A strip of lanes, one per rank: labels, a canvas that is zoomed, panned and asked what lies where, figures per lane.

const LEAST_PITCH = 10;
const MOST_PITCH = 30;
const LANES_HEIGHT = 400;

// Height of a lane, in pixels; `stretch` is the reader's wish.
function pitchOf(ranks, stretch) {
  return Math.round(Math.min(MOST_PITCH, Math.max(LEAST_PITCH, LANES_HEIGHT / ranks)) * stretch);
}

class Strip {
  // `card` is the Card around it; `kind` is "measured", "simulated" or "memory".
  constructor(card, kind, timeline, name) {
    Object.assign(this, { card, kind, timeline, cursor: null });
    this.canvas = element("canvas", { tabindex: 0, role: "img", "aria-label": name, "data-strip": kind });
    this.crosshair = element("div.crosshair", { hidden: "" });
    this.marker = element("div.marker", { hidden: "" });
    this.range = element("div.range", { hidden: "" });
    this.labels = element("div.labels", { "data-head": "rank stages" });
    this.shares = element("div.shares", { "data-head": kind === "memory" ? "peak" : "idle" });
    this.fillLabels();
    this.root = element("div.strip", {}, this.labels,
      element("div.stage", {}, this.canvas, this.range, this.marker, this.crosshair), this.shares);
    this.listen();
  }

  fillLabels() {
    const most = Math.max(...this.timeline.ranks.map((rank) => this.card.mostIdle(rank)));
    for (const rank of this.timeline.ranks) {
      const stages = rank.stages.length ? `stage${rank.stages.length > 1 ? "s" : ""} ${rank.stages.join(", ")}` : "";
      this.labels.append(element("div", { "data-rank": rank.rank, title: `rank ${rank.rank}, ${stages}` },
        element("span", {}, String(rank.rank)), element("small", {}, rank.stages.join(", "))));
      this.shares.append(element("div", { "data-rank": rank.rank }, ...this.share(rank, most)));
    }
  }

  share(rank, most) {
    if (this.kind === "memory") return [memoryText(this.timeline, peakMemory(rank))];
    const time = rank.time || 1;
    const bar = element("span.bar", {});
    rank.idle.forEach((idle, part) =>
      bar.append(element(`i.i${part}`, { style: `width:${(100 * idle) / time / (most || 1)}%` })));
    bar.title = PARTS.map((part, index) => `${part} ${percent(rank.idle[index] / time)}`).join(", ");
    return [bar, element("span", {}, percent(idleOf(rank) / time))];
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    canvas.addEventListener("pointermove", (event) => this.onMove(event));
    canvas.addEventListener("pointerdown", (event) => this.onDown(event));
    canvas.addEventListener("pointerup", (event) => this.onUp(event));
    canvas.addEventListener("pointercancel", () => this.stopDragging());
    canvas.addEventListener("pointerleave", () => this.leave());
    canvas.addEventListener("dblclick", (event) => this.card.view.zoom(0.5, this.timeAt(event)));
    canvas.addEventListener("keydown", (event) => this.onKey(event));
    canvas.addEventListener("blur", () => this.leave());
  }

  get pitch() {
    return pitchOf(this.timeline.ranks.length, this.card.stretch());
  }

  layOut() {
    const { pitch } = this;
    const font = `${Math.min(11.5, pitch * 0.92)}px`;
    this.canvas.style.height = `${AXIS + pitch * this.timeline.ranks.length}px`;
    for (const side of [this.labels, this.shares]) {
      for (const lane of side.children) Object.assign(lane.style, { height: `${pitch}px`, fontSize: font });
    }
  }

  draw() {
    if (!this.canvas.clientWidth) return;
    const painter = new Painter(this.canvas, this.card.view, this.pitch);
    painter.axis(this.timeline.end);
    if (this.kind === "memory") painter.memory(this.timeline);
    else painter.actions(this.timeline);
    this.canvas.dataset.phases = Boolean(painter.withPhases);
    this.placeMarker();
  }

  // --- where things are

  timeAt(event) {
    const box = this.canvas.getBoundingClientRect();
    return this.card.view.start + ((event.clientX - box.left) / box.width) * this.card.view.length;
  }

  xOf(time) {
    return ((time - this.card.view.start) / this.card.view.length) * this.canvas.clientWidth;
  }

  laneAt(event) {
    const index = Math.floor((event.clientY - this.canvas.getBoundingClientRect().top - AXIS) / this.pitch);
    return index >= 0 && index < this.timeline.ranks.length ? index : null;
  }

  // What a lane holds at a time; an action as thin as a line is found from two pixels away.
  find(rank, time) {
    const index = lastStarted(rank.spans, time);
    const slack = (2 * this.card.view.length) / this.canvas.clientWidth;
    for (const near of [rank.spans[index], rank.spans[index + 1]]) {
      if (near && near.start <= time && time <= near.end) return { span: near };
      const thin = near && (near.end - near.start) < slack;
      if (thin && Math.abs((near.start + near.end) / 2 - time) < slack) return { span: near };
    }
    const gap = rank.gaps[lastStarted(rank.gaps, time)];
    return gap && time <= gap.end ? { gap } : null;
  }

  // --- pointer

  onWheel(event) {
    const horizontal = event.shiftKey ? event.deltaY : event.deltaX;
    const zooms = event.ctrlKey || event.metaKey || document.activeElement === this.canvas;
    if (Math.abs(horizontal) > Math.abs(event.deltaY) || event.shiftKey) {
      event.preventDefault();
      this.card.view.pan(horizontal / this.canvas.clientWidth);
    } else if (zooms) {
      event.preventDefault();
      const pixels = event.deltaY * (event.deltaMode === 1 ? 16 : 1);
      this.card.view.zoom(Math.exp(Math.max(-1, Math.min(1, pixels / 300))), this.timeAt(event));
    }
  }

  onDown(event) {
    if (event.button !== 0) return;
    this.canvas.setPointerCapture(event.pointerId);
    const { start, end } = this.card.view;
    this.drag = { x: event.clientX, from: this.timeAt(event), start, end, selects: event.shiftKey };
  }

  onMove(event) {
    if (this.drag) return this.dragTo(event);
    const time = this.timeAt(event);
    this.card.setCrosshair(time);
    this.cursor = null;
    const lane = this.laneAt(event);
    const rank = this.timeline.ranks[lane];
    if (lane === null || time < 0 || time > this.timeline.end) return this.hideTooltip();
    const pointer = [event.clientX, event.clientY];
    if (this.kind === "memory") return tooltip.show(describeMemory(this.timeline, rank, time), ...pointer);
    const found = this.find(rank, time);
    if (!found) return this.hideTooltip();
    this.mark(lane, found.span ?? found.gap);
    tooltip.show(this.describe(rank, found, time), ...pointer);
  }

  describe(rank, { span, gap }, time) {
    if (gap) return describeGap(rank, gap);
    return describeSpan(rank, span, this.card.twinOf(this, rank, span), this.otherName(), time);
  }

  otherName() {
    return this.kind === "measured" ? "simulated" : "measured";
  }

  dragTo(event) {
    const { drag, canvas } = this;
    if (drag.selects) {
      const [left, right] = [this.xOf(drag.from), this.xOf(this.timeAt(event))].sort((a, b) => a - b);
      Object.assign(this.range.style, { left: `${left}px`, width: `${right - left}px` });
      this.range.hidden = false;
      return;
    }
    if (Math.abs(event.clientX - drag.x) > 3) canvas.classList.add("dragging");
    const shift = ((drag.x - event.clientX) / canvas.clientWidth) * (drag.end - drag.start);
    this.card.view.set(drag.start + shift, drag.end + shift);
    this.hideTooltip();
  }

  onUp(event) {
    const { drag } = this;
    this.stopDragging();
    if (!drag?.selects || Math.abs(event.clientX - drag.x) < 4) return;
    const [from, to] = [drag.from, this.timeAt(event)].sort((a, b) => a - b);
    this.card.view.set(from, to);
  }

  stopDragging() {
    this.drag = null;
    this.range.hidden = true;
    this.canvas.classList.remove("dragging");
  }

  leave() {
    this.hideTooltip();
    this.card.setCrosshair(null);
  }

  hideTooltip() {
    tooltip.hide();
    this.marker.hidden = true;
    this.marked = null;
  }

  // --- keyboard

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { view } = this.card;
    const step = event.shiftKey ? null : this.kind === "memory" ? null : 1;
    const middle = this.cursor ? this.middleOfCursor() : undefined;
    const actions = {
      "+": () => view.zoom(0.5, middle),
      "=": () => view.zoom(0.5, middle),
      "-": () => view.zoom(2, middle),
      "0": () => view.reset(),
      Home: () => view.set(0, view.length),
      End: () => view.set(view.limit - view.length, view.limit),
      ArrowLeft: () => (step ? this.step(0, -1) : view.pan(-0.2)),
      ArrowRight: () => (step ? this.step(0, 1) : view.pan(0.2)),
      ArrowUp: () => this.step(-1, 0),
      ArrowDown: () => this.step(1, 0),
      Escape: () => this.leave(),
    };
    if (!actions[event.key] || (this.kind === "memory" && event.key.match(/Up|Down/))) return;
    event.preventDefault();
    actions[event.key]();
    if (this.cursor && event.key !== "Escape") this.showCursor();
  }

  middleOfCursor() {
    const span = this.timeline.ranks[this.cursor.lane].spans[this.cursor.index];
    return (span.start + span.end) / 2;
  }

  // To the next lane at the same time, or to the next action of this lane.
  step(lanes, actions) {
    const { ranks } = this.timeline;
    if (!this.cursor) {
      this.cursor = { lane: 0, index: Math.max(0, lastStarted(ranks[0].spans, this.card.view.start)) };
    } else {
      const time = this.middleOfCursor();
      const lane = Math.max(0, Math.min(ranks.length - 1, this.cursor.lane + lanes));
      const index = lanes ? Math.max(0, lastStarted(ranks[lane].spans, time)) : this.cursor.index + actions;
      this.cursor = { lane, index: Math.max(0, Math.min(ranks[lane].spans.length - 1, index)) };
    }
    const span = ranks[this.cursor.lane].spans[this.cursor.index];
    this.card.view.reveal(span.start, span.end);
  }

  showCursor() {
    const rank = this.timeline.ranks[this.cursor.lane];
    const span = rank.spans[this.cursor.index];
    this.mark(this.cursor.lane, span);
    this.card.setCrosshair(span.start);
    const box = this.canvas.getBoundingClientRect();
    const x = Math.min(Math.max(0, this.xOf(span.end)), box.width);
    const bottom = box.top + AXIS + (this.cursor.lane + 1) * this.pitch;
    tooltip.show(this.describe(rank, { span }, null), box.left + x, bottom);
  }

  // --- what lies over the canvas

  mark(lane, entry) {
    this.marked = { lane, entry };
    this.placeMarker();
  }

  placeMarker() {
    this.marker.hidden = !this.marked;
    if (!this.marked) return;
    const { lane, entry } = this.marked;
    const left = Math.max(-4, this.xOf(entry.start));
    const right = Math.min(this.canvas.clientWidth + 4, this.xOf(entry.end));
    const { style } = this.marker;
    Object.assign(style, { left: `${left - 1}px`, top: `${AXIS + lane * this.pitch - 1}px` });
    Object.assign(style, { width: `${Math.max(3, right - left + 1)}px`, height: `${this.pitch + 1}px` });
  }

  setCrosshair(time) {
    this.crosshair.hidden = time === null;
    if (time !== null) this.crosshair.style.left = `${this.xOf(time)}px`;
  }
}
