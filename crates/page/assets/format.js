// Texts for numbers, and helpers for elements. Text of users and of traffic becomes text nodes only.

export function count(n) {
  if (n == null) return "unknown";
  return Math.round(n).toLocaleString("en").replaceAll(",", "\u202f");
}

// A number in at most six characters, such as 4012 or 1.25M.
export function short(n) {
  if (n > 0 && n < 9.95) return n.toFixed(1).replace(/\.0$/, "");
  if (n < 99_999.5) return n.toFixed(0);
  if (n < 999_500) return `${(n / 1e3).toFixed(0)}k`;
  if (n < 99.95e6) return `${(n / 1e6).toFixed(2)}M`;
  if (n < 999.5e6) return `${(n / 1e6).toFixed(0)}M`;
  return `${(n / 1e9).toFixed(1)}G`;
}

export const rate = (n) => `${short(n)}/s`;

export function bytes(n) {
  if (n == null) return "unknown";
  const units = ["B", "KB", "MB", "GB", "TB"];
  let at = 0;
  let left = n;
  while (left >= 999.5 && at < units.length - 1) {
    left /= 1000;
    at += 1;
  }
  return `${at && left < 99.5 ? left.toFixed(1) : left.toFixed(0)}\u00a0${units[at]}`;
}

export const byteRate = (n) => `${bytes(n)}/s`;

export function time(ns) {
  if (ns < 1e3) return `${ns.toFixed(ns < 100 ? 1 : 0)}\u00a0ns`;
  if (ns < 1e6) return `${(ns / 1e3).toFixed(1)}\u00a0µs`;
  if (ns < 1e9) return `${(ns / 1e6).toFixed(1)}\u00a0ms`;
  return `${(ns / 1e9).toFixed(2)}\u00a0s`;
}

export function age(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  const two = (n) => String(n).padStart(2, "0");
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)}:${two(s % 60)}`;
  if (s < 86_400) return `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}`;
  return `${Math.floor(s / 86_400)} d ${Math.floor(s / 3600) % 24} h`;
}

// Replaces control characters and characters that change the direction of text.
export function visible(text) {
  return String(text ?? "").replace(/[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g, "\ufffd");
}

// An element with attributes and children. A string becomes a text node.
export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

export function setText(element, text) {
  const shown = visible(text);
  if (element.textContent !== shown) element.textContent = shown;
}

// Replaces the rows of a definition list, as far as they have changed.
export function setRows(list, rows) {
  const shown = rows.filter((row) => row);
  while (list.children.length > shown.length) list.lastElementChild.remove();
  shown.forEach(([name, value, kind], at) => {
    let row = list.children[at];
    if (!row) {
      row = make("div", {}, make("dt"), make("dd"));
      list.append(row);
    }
    setText(row.firstElementChild, name);
    setText(row.lastElementChild, value);
    row.className = kind ?? "";
  });
}
