// The sections below the tower: depth, meaning, gates and attention, neurons.
"use strict";

const depthName = (d) => (d === 0 ? "embedding" : `layer ${d - 1}`);
const depthShort = (d) => (d === 0 ? "emb" : String(d - 1));

/** Norm and direction of the stream, and what the head would say at every depth. */
function drawDepth(where, prompt, token, words) {
  const depths = prompt.depth, names = depths.map((_, d) => depthShort(d));
  const norm = depths.map((d) => at(d.norm, token)), ahead = depths.map((d) => at(d.cosine_to_final, token));
  const before = depths.map((d) => (d.cosine_to_previous === null ? null : at(d.cosine_to_previous, token)));
  const top = (d) => d.lens.top.map((t) => `${quoted(words(t.id))} ${percent(t.p)}`).join(", ");
  const places = prompt.target === prompt.answer ? ["answer"] : ["answer", "target"];
  replace(where, el("h2", {}, "Depth"),
    el("div.pair", {},
      figure(lines("L2 norm of the stream by depth", [{name: "norm", values: norm}], "L2", {log: true, names}),
        "norm of the stream", ["depth", "L2"], norm.map((v, d) => [depthName(d), digits(v)])),
      figure(lines("Direction of the stream: cosine with the end and with the depth before",
        [{name: "with the end", values: ahead}, {name: "with the depth before", values: before}], "cosine", {names}),
      "direction of the stream", ["depth", "with the end", "with the depth before"],
      depths.map((_, d) => [depthName(d), digits(ahead[d]), digits(before[d])]))),
    el("p", {}, `Logit lens: what final norm and head make of the last token\u2019s stream at each depth. The answer is ${quoted(words(prompt.answer))}`,
      prompt.target === prompt.answer ? "." : `; followed is ${quoted(words(prompt.target))}.`),
    figure(lines("Probability of the final answer by depth", [{name: quoted(words(prompt.answer)), values: depths.map((d) => d.lens.answer.p)}].concat(
      prompt.target === prompt.answer ? [] : [{name: quoted(words(prompt.target)), values: depths.map((d) => d.lens.target.p)}]), "p", {names}),
    "logit lens", ["depth", ...places.flatMap((name) => [`rank of the ${name}`, "its probability"]), "top tokens"],
    depths.map((d, i) => [depthName(i), ...places.flatMap((name) => [digits(d.lens[name].rank), percent(d.lens[name].p)]), top(d)])));
}

/** Prompts that end in the same token. */
function drawMeaning(where, model, words) {
  replace(where, model.meaning.map((told) => {
    const name = (i) => `prompt ${i + 1}`;
    const names = told.mean_cosine.map((_, d) => depthShort(d));
    const series = told.pairs.map((pair) => ({name: pair.prompts.map(name).join(" and "), values: pair.cosine}));
    const apart = told.pairs.map((pair) => ({name: pair.prompts.map(name).join(" and "), values: pair.relative}));
    const parts = told.part_at_layer !== null;
    const mark = parts ? {names, mark: told.part_at_layer + 1, markText: `they part at layer ${told.part_at_layer}`} : {names};
    return el("div", {}, el("h2", {}, "Same word, other meaning"),
      el("p", {}, `${told.prompts.length} prompts end in ${quoted(words(told.token))}: one vector at the embedding, others above. `
        + (parts ? `After layer ${told.part_at_layer} they are half as far apart as they ever come.` : "They never part.")),
      el("div.pair", {},
        figure(lines("Cosine between the streams at the last token", series, "cosine", mark), "cosine by depth",
          ["depth", ...series.map((s) => s.name)], names.map((_, d) => [depthName(d), ...series.map((s) => digits(s.values[d], 6))])),
        figure(lines("Distance between the streams, as a share of their norm", apart, "share", mark), "distance by depth",
          ["depth", ...told.pairs.flatMap((pair) => [pair.prompts.map(name).join(" and "), "L2"])],
          names.map((_, d) => [depthName(d), ...told.pairs.flatMap((pair) => [percent(pair.relative[d]), digits(pair.distance[d])])]))),
      el("div.scroll", {}, table("What comes next", ["prompt", "text", "next tokens"], told.prompts.map((i) => [name(i),
        model.prompts[i].text || model.prompts[i].ids.map((id) => words(id)).join(""),
        model.prompts[i].next.slice(0, 5).map((t) => `${quoted(words(t.id))} ${percent(t.p)}`).join(", ")]))));
  }));
}

/** Gates and attention by layer; with two models side by side. */
function drawGates(where, models, promptIndex) {
  const parts = models.map((model) => {
    const prompt = model.prompts[Math.min(promptIndex, model.prompts.length - 1)];
    const full = prompt.layers.filter((l) => l.type === "full_attention"), linear = prompt.layers.filter((l) => l.type !== "full_attention");
    const gated = full.filter((l) => l.mixer.gate);
    const by = (layers, value, kind) => layers.map((l) => ({name: `layer ${l.index}`, short: String(l.index), value: value(l), kind}));
    const drawn = [];
    if (gated.length) {
      drawn.push(figure(bars("Mean of sigmoid(gate) by layer", by(gated, (l) => l.mixer.gate.mean, "warm"), "mean gate"), "gates", ["layer", "mean", "below 0.1", "min", "max"],
        gated.map((l) => [l.index, digits(l.mixer.gate.mean), percent(l.mixer.gate.below_tenth), digits(l.mixer.gate.min), digits(l.mixer.gate.max)])));
    }
    if (full.length) {
      drawn.push(figure(bars("Attention that the second half of the queries gives the first token", by(full, (l) => l.mixer.first_token, "warm"), "share"),
        "attention", ["layer", "first token", "entropy by head, nats"],
        full.map((l) => [l.index, percent(l.mixer.first_token), l.mixer.entropy_by_head.map((e) => digits(e, 3)).join("  ")])));
    }
    if (linear.length) {
      drawn.push(figure(bars("Mean decay by layer", by(linear, (l) => l.mixer.decay.mean, "cool"), "mean decay"), "decay, beta and state", ["layer", "decay", "beta", "norm of the state"],
        linear.map((l) => [l.index, digits(l.mixer.decay.mean), digits(l.mixer.beta.mean), digits(l.mixer.state_norm)])));
    }
    return el("div", {}, models.length > 1 ? el("h3", {}, model.name) : null, drawn);
  });
  replace(where, el("h2", {}, "Gates and attention"), el("div.pair", {}, parts));
}

/** Direct contributions and ablations. */
function drawNeurons(where, prompt, words) {
  const told = prompt.neurons;
  const favours = (row) => (row.favours ? row.favours.map((id) => quoted(words(id))).join(" ") : "\u2013");
  const top = (list) => list.map((t) => `${quoted(words(t.id))} ${percent(t.p)}`).join(", ");
  const held = (a) => (a.from_prompt === null ? "0" : `${digits(a.value)}, from prompt ${a.from_prompt}, last position`);
  replace(where, el("h2", {}, "Neurons"),
    el("p", {}, `What each MLP neuron, by itself, writes at the last position towards ${quoted(words(told.target))}: `
      + "activation \u00d7 (down_proj column \u00b7 (output embedding \u00d7 final norm\u2019s scale)). Divided by the stream\u2019s root mean square it is what it adds to the logit."),
    figure(bars("All neurons of a layer together, towards the target", told.layers.map((l) => ({name: `layer ${l.layer}`, short: String(l.layer), value: l.total,
      kind: prompt.layers[l.layer].type === "full_attention" ? "warm" : "cool"})), "contribution"),
    "neurons by layer", ["layer", "all together", "strongest", "activation", "contribution", "its column favours"],
    told.layers.map((l) => [l.layer, digits(l.total), l.top[0].neuron, digits(l.top[0].activation), digits(l.top[0].contribution), favours(l.top[0])])),
    el("div.scroll", {}, table("The strongest of all layers", ["layer:neuron", "activation", "contribution", "in logits", "its column favours"],
      told.strongest.map((row) => [`${row.layer}:${row.neuron}`, digits(row.activation), digits(row.contribution), digits(row.logit), favours(row)]))),
    el("div.scroll", {}, table("Ablation: the forward again, with one neuron held", ["layer:neuron", "held at", `p of ${quoted(words(told.target))}`, "before", "after"],
      prompt.ablations.map((a) => [`${a.layer}:${a.neuron}`, held(a), `${percent(a.before.p)} \u2192 ${percent(a.after.p)}`, top(a.before.top), top(a.after.top)]))));
}
