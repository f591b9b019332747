// page.js
//
// Elements and numbers, as the other files make them.

// element("p.quiet", {title: "..."}, "text", child, ...): strings become text, never markup.
function element(kind, attributes = {}, ...children) {
  const [name, ...classes] = kind.split(".");
  const made = document.createElement(name);
  if (classes.length) made.className = classes.join(" ");
  return filled(made, attributes, children);
}

function svgElement(name, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function filled(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

const byId = (id) => document.getElementById(id);
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// Four digits or so; a dash for what is not known.
function number(value, digits = 4) {
  if (!isNumber(value)) return "–";
  if (value === 0) return "0";
  const size = Math.floor(Math.log10(Math.abs(value)));
  if (size >= 6 || size < -3) return value.toExponential(1).replace("e+", "e");
  return value.toFixed(Math.max(0, Math.min(digits - 1, digits - 1 - size)));
}

// Without zeros that say nothing: "40 MB".
const plain = (value, digits = 4) => (isNumber(value) ? String(Number(number(value, digits))) : "–");

function milliseconds(value) {
  if (!isNumber(value)) return "–";
  return value !== 0 && Math.abs(value) < 0.01 ? `${number(1000 * value, 2)} µs` : `${number(value)} ms`;
}

const percent = (share) => (isNumber(share) ? `${(100 * share).toFixed(1)} %` : "–");

function bytes(value) {
  if (!isNumber(value)) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (Math.abs(value) >= 1000 && unit + 1 < units.length) {
    value /= 1000;
    ++unit;
  }
  return `${plain(value)} ${units[unit]}`;
}

const capital = (text) => text[0].toUpperCase() + text.slice(1);
const failureText = (run) => `${run.not_run ? "not run" : "failed"}: ${run.failure}`;

function sentenceList(names) {
  return names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
}

// Round steps for an axis: 1, 2 or 5 times a power of ten, at most `most` of them in `range`.
function roundStep(range, most) {
  const raw = range / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(raw));
  return power * [1, 2, 5, 10].find((step) => step * power >= raw * (1 - 1e-9));
}

function tickLabel(value, step) {
  return value.toFixed(Math.min(20, Math.max(0, -Math.floor(Math.log10(step) + 1e-9))));
}
