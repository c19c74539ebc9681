// The side panel: the seven captures of one layer, and what its two sublayers wrote.
"use strict";

const SHORT = ["in", "norm 1", "mixer", "sum 1", "norm 2", "mlp", "out"];
const STATISTICS = [["mean", "mean"], ["std", "standard deviation"], ["min", "min"], ["max", "max"], ["l2", "L2 per token"],
  ["near_zero", "share of near-zeros"]];

const typeName = (type) => (type === "full_attention" ? "full attention" : "Gated DeltaNet");

/** token: an index, or null for all tokens. */
function at(list, token) {
  return token === null ? mean(list) : list[token];
}

function drawPanel(where, layer, token, statistic, onStatistic) {
  const value = (capture, name) => (token === null ? capture.all[name] : capture[name][token]);
  const choose = el("select", {id: "statistic", onchange: (event) => onStatistic(event.target.value)},
    STATISTICS.map(([key, name]) => el("option", {value: key, selected: key === statistic}, name)));
  const items = layer.captures.map((capture, i) => ({name: capture.name, short: SHORT[i], value: value(capture, statistic),
    kind: layer.type === "full_attention" ? "warm" : "cool"}));
  const name = STATISTICS.find(([key]) => key === statistic)[1];
  replace(where,
    el("h2", {}, `Layer ${layer.index}`, el("small", {}, " " + typeName(layer.type))),
    el("label.pick", {}, "Bars show ", choose),
    figure(bars(`Layer ${layer.index}: ${name} of its seven captures`, items, name),
      "the seven captures", ["capture", ...STATISTICS.map(([, long]) => long)],
      layer.captures.map((capture) => [capture.name, ...STATISTICS.map(([key]) => digits(value(capture, key)))])),
    el("div.scroll", {}, table("What each sublayer added to the stream", ["sublayer", "|delta| / |h|", "cosine with the stream"],
      ["mixer", "mlp"].map((part) => [part === "mixer" ? (layer.type === "full_attention" ? "self_attn" : "linear_attn") : "mlp",
        percent(at(layer.writes[part].relative, token)), digits(at(layer.writes[part].cosine, token), 3)]))),
    mixerDetails(layer));
}

/** What the mixer of this layer does inside: over all tokens. */
function mixerDetails(layer) {
  const told = layer.mixer;
  if (layer.type === "full_attention") {
    return el("details", {open: true}, el("summary", {}, "Attention"),
      el("dl.facts", {},
        told.gate ? [el("dt", {}, "mean of sigmoid(gate)"), el("dd", {}, digits(told.gate.mean)),
          el("dt", {}, "gates below 0.1"), el("dd", {}, percent(told.gate.below_tenth))] : null,
        el("dt", {}, "first token's share, queries from " + told.queries_from), el("dd", {}, percent(told.first_token)),
        el("dt", {}, "entropy by head, nats"), el("dd", {}, told.entropy_by_head.map((e) => digits(e, 3)).join("  "))),
      told.gate ? figure(histogram(`Layer ${layer.index}: sigmoid(gate)`, told.gate.histogram, "warm"), "sigmoid(gate)", ["from", "count"],
        told.gate.histogram.map((n, i) => [digits(i / told.gate.histogram.length, 2), n])) : null);
  }
  return el("details", {open: true}, el("summary", {}, "Gated delta rule"),
    el("dl.facts", {},
      el("dt", {}, "decay, mean"), el("dd", {}, digits(told.decay.mean)), el("dt", {}, "beta, mean"), el("dd", {}, digits(told.beta.mean)),
      told.state_norm === undefined ? null : [el("dt", {}, "norm of the state"), el("dd", {}, digits(told.state_norm)),
        el("dt", {}, "by head"), el("dd", {}, told.state_norm_by_head.map((n) => digits(n, 3)).join("  "))]),
    ["decay", "beta"].map((name) => figure(histogram(`Layer ${layer.index}: ${name}`, told[name].histogram, "cool"), name, ["from", "count"],
      told[name].histogram.map((n, i) => [digits(i / told[name].histogram.length, 2), n]))));
}
