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
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) element.append(child);
  }
  return element;
}

function replace(element, ...children) {
  element.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined));
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

const mean = (list) => list.reduce((sum, x) => sum + x, 0) / list.length;
