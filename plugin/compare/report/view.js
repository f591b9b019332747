// view.js
//
// Which part of time is shown. Timelines that are zoomed together share a View.

class View {
  constructor(limit) {
    this.limit = limit;  // Milliseconds.
    this.start = 0;
    this.end = limit;
    this.watchers = [];
  }

  get length() {
    return this.end - this.start;
  }

  isWhole() {
    return this.length >= this.limit * (1 - 1e-9);
  }

  set(start, end) {
    const length = Math.min(this.limit, Math.max(end - start, this.limit * 1e-5));
    this.start = Math.min(Math.max(0, start), this.limit - length);
    this.end = this.start + length;
    for (const watcher of this.watchers) watcher();
  }

  // `at` stays where it is.
  zoom(factor, at = (this.start + this.end) / 2) {
    this.set(at - (at - this.start) * factor, at + (this.end - at) * factor);
  }

  pan(share) {
    this.set(this.start + share * this.length, this.end + share * this.length);
  }

  reset() {
    this.set(0, this.limit);
  }

  // Moves, without zooming, until [start, end] is seen.
  reveal(start, end) {
    if (start >= this.start && end <= this.end) return;
    const from = start < this.start ? start : Math.min(start, end - this.length);
    this.set(from, from + this.length);
  }
}
