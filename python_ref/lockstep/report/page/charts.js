// Small drawings: bars and lines, with axes that say their ends.
"use strict";

const CHART = {width: 640, height: 220, left: 56, right: 12, top: 24, bottom: 34};

function frame(label, height = CHART.height) {
  return svg("svg.chart", {viewBox: `0 0 ${CHART.width} ${height}`, role: "img", "aria-label": label});
}

function range(values, zero) {
  const known = values.filter((v) => v !== null && Number.isFinite(v));
  let low = Math.min(...known), high = Math.max(...known);
  if (!known.length) low = 0, high = 1;
  if (zero) low = Math.min(low, 0), high = Math.max(high, 0);
  if (low === high) high = low + (low === 0 ? 1 : Math.abs(low));
  return [low, high];
}

function axis(chart, low, high, y, label, logarithmic) {
  const {left, width, right} = CHART;
  const marks = logarithmic ? [low, Math.sqrt(low * high), high] : [low, (low + high) / 2, high];
  for (const value of marks) {
    chart.append(svg("line.grid", {x1: left, x2: width - right, y1: y(value), y2: y(value)}),
      svg("text.tick", {x: left - 6, y: y(value) + 4, "text-anchor": "end"}, digits(value, 3)));
  }
  chart.append(svg("text.tick", {x: 4, y: 13}, label));
}

/** bars("...", [{name, value, kind, title}], "unit"); kind is a class: it carries the colour. mark is one too. */
function bars(label, items, unit, mark = "bar") {
  const chart = frame(label), {left, right, top, bottom, width, height} = CHART;
  const [low, high] = range(items.map((item) => item.value), true);
  const y = (v) => top + (height - top - bottom) * (1 - (v - low) / (high - low));
  axis(chart, low, high, y, unit);
  const step = (width - left - right) / items.length;
  items.forEach((item, i) => {
    if (item.value === null || item.value === undefined) return;
    const from = y(Math.max(item.value, 0)), to = y(Math.min(item.value, 0));
    const bar = svg(`rect.${mark}.` + (item.kind || "plain"),
      {x: left + i * step + step * 0.12, width: step * 0.76, y: from, height: Math.max(to - from, 0.75)},
      svg("title", {}, item.title || `${item.name}: ${digits(item.value)}`));
    chart.append(bar);
    if (items.length <= 12) {
      chart.append(svg("text.tick", {x: left + (i + 0.5) * step, y: height - 18, "text-anchor": "middle"}, item.short || item.name));
    } else if (i % Math.ceil(items.length / 12) === 0) {
      chart.append(svg("text.tick", {x: left + (i + 0.5) * step, y: height - 18, "text-anchor": "middle"}, item.short || item.name));
    }
  });
  return chart;
}

/** lines("...", [{name, values, kind}], "unit", {log, mark, names}); one value per depth. */
function lines(label, series, unit, options = {}) {
  const chart = frame(label), {left, right, top, bottom, width, height} = CHART;
  const every = series.flatMap((s) => s.values);
  const logarithmic = options.log && every.some((v) => v !== null) && every.every((v) => v === null || v > 0);
  const [low, high] = range(every, false);
  const scaled = (v) => (logarithmic ? Math.log(v / low) / Math.log(high / low) : (v - low) / (high - low));
  const y = (v) => top + (height - top - bottom) * (1 - scaled(v));
  axis(chart, low, high, y, unit, logarithmic);
  const count = Math.max(...series.map((s) => s.values.length));
  const x = (i) => left + (width - left - right) * (count > 1 ? i / (count - 1) : 0.5);
  const name = (i) => (options.names ? options.names[i] : String(i));
  for (let i = 0; i < count; i += Math.ceil(count / 13)) {
    chart.append(svg("text.tick", {x: x(i), y: height - 18, "text-anchor": "middle"}, name(i)));
  }
  if (options.mark !== undefined && options.mark !== null) {
    chart.append(svg("line.mark", {x1: x(options.mark), x2: x(options.mark), y1: top, y2: height - bottom}),
      svg("text.tick", {x: x(options.mark) + 4, y: top + 10}, options.markText || ""));
  }
  const dashes = ["", "7 4", "2 3", "10 3 2 3", "1 5"];
  series.forEach((s, n) => {
    const path = s.values.map((v, i) => (v === null ? "" : `${i && s.values[i - 1] !== null ? "L" : "M"}${x(i).toFixed(1)} ${y(v).toFixed(1)}`)).join("");
    chart.append(svg("path.line.series" + (n % 5), {d: path, "stroke-dasharray": dashes[n % 5]}, svg("title", {}, s.name)));
    s.values.forEach((v, i) => {
      if (v !== null) chart.append(svg("circle.dot.series" + (n % 5), {cx: x(i), cy: y(v), r: 2.5}, svg("title", {}, `${s.name}, ${name(i)}: ${digits(v)}`)));
    });
  });
  if (series.length > 1) {
    const legend = el("ul.legend", {}, series.map((s, n) => el("li", {}, svg("svg.swatch", {viewBox: "0 0 28 8", "aria-hidden": "true"},
      svg("line.line.series" + (n % 5), {x1: 0, x2: 28, y1: 4, y2: 4, "stroke-dasharray": dashes[n % 5]})), s.name)));
    return el("div", {}, chart, legend);
  }
  return chart;
}

/** A histogram over [0, 1]. */
function histogram(label, counts, kind) {
  const total = counts.reduce((a, b) => a + b, 0);
  return bars(label, counts.map((n, i) => ({
    name: `${digits(i / counts.length, 2)} to ${digits((i + 1) / counts.length, 2)}`,
    short: digits(i / counts.length, 2), value: total ? n / total : 0, kind,
  })), "share", "bin");
}
