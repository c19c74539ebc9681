// Making elements. Text goes in as text, never as markup.
"use strict";

const SVG = "http://www.w3.org/2000/svg";

/** el("p.note", {title: "..."}, "text", child, ...) */
function el(what, attributes, ...children) {
  const [name, ...classes] = what.split(".");
  return fill(document.createElement(name), classes, attributes, children);
}

/** The same for the elements of a drawing. */
function svg(what, attributes, ...children) {
  const [name, ...classes] = what.split(".");
  return fill(document.createElementNS(SVG, name), classes, attributes, children);
}

function fill(element, classes, attributes, children) {
  if (classes.length) element.setAttribute("class", classes.join(" "));
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined) element.append(child);
  }
  return element;
}

/** New children for old ones; the control that had the focus has it still, and tables that were open are. */
function replace(element, ...children) {
  const active = element.contains(document.activeElement) ? nameOf(document.activeElement) : null;
  const opened = new Map([...element.querySelectorAll("details")].map((d) => [d.firstElementChild.textContent, d.open]));
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  for (const details of element.querySelectorAll("details")) {
    const before = opened.get(details.firstElementChild.textContent);
    if (before !== undefined) details.open = before;
  }
  if (active !== null && !element.contains(document.activeElement)) {
    const again = [...element.querySelectorAll("button, select, input, textarea, summary, [tabindex]")].find((e) => nameOf(e) === active);
    if (again) again.focus();
  }
}

/** What a control is known by, whichever element it is at the moment. */
function nameOf(control) {
  return control.id || `${control.tagName} ${control.dataset.layer || control.getAttribute("aria-label") || control.textContent}`;
}

/** Rows of a table below a picture: what is drawn, as text. */
function table(caption, head, rows) {
  return el("table", {}, el("caption", {}, caption),
    el("thead", {}, el("tr", {}, head.map((name) => el("th", {scope: "col"}, name)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, i) =>
      i ? el("td", {}, cell) : el("th", {scope: "row"}, cell))))));
}

/** A picture with the table that says the same. */
function figure(picture, caption, head, rows) {
  return el("figure", {}, picture, el("details", {}, el("summary", {}, "As a table: " + caption),
    el("div.scroll", {}, table(caption, head, rows))));
}

/** 4 significant digits; what is not there is a dash. */
function digits(x, count = 4) {
  if (x === null || x === undefined || !Number.isFinite(x)) return "\u2013";
  if (x !== 0 && (Math.abs(x) < 1e-3 || Math.abs(x) >= 1e6)) return x.toExponential(count - 2);
  return String(Number(x.toPrecision(count)));
}

function percent(p) {
  if (p === null || p === undefined) return "\u2013";
  return p < 0.001 && p > 0 ? (100 * p).toExponential(1) + " %" : (100 * p).toFixed(p < 0.1 ? 2 : 1) + " %";
}

/** A token as it is read: quotes, so that a space is seen, and no line break. */
function quoted(text) {
  return "\u201c" + text.replace(/\n/g, "\u23ce").replace(/\t/g, "\u21e5") + "\u201d";
}

/** Null, which is what is not finite, makes the mean null. */
const mean = (list) => (list.includes(null) ? null : list.reduce((sum, x) => sum + x, 0) / list.length);
