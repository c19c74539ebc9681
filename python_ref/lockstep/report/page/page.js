// The page: what the JSON holds, drawn. It computes nothing but means and scales.
"use strict";

function themeButton(redraw) {
  return el("button", {id: "theme", type: "button", onclick: () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    redraw();
  }}, "Dark or light");
}

function environment(data) {
  if ((data.models || []).length > 1) {
    return data.models.map((model) => [el("h3", {}, model.name), environment({...data, models: null, model, pedigree: model.pedigree})]);
  }
  const p = data.pedigree || {}, say = (name, value) => (value === null || value === undefined || value === "" ? null : [el("dt", {}, name), el("dd", {}, String(value))]);
  return el("dl.facts.foot", {}, say("command", data.command), say("verdict", data.verdict), say("torch", p.torch), say("transformers", p.transformers),
    say("dtype", p.dtype), say("attention", p.attn), say("variant", p.variant), say("threads", p.threads), say("CPU", p.cpu_capability),
    say("digest", data.model && data.model.digest), say("format", data.format_version));
}

class InspectPage {
  constructor(root, data) {
    this.data = data;
    this.model = 0;
    this.prompt = 0;
    this.token = null;
    this.layer = Math.min(3, data.models[0].layer_types.length - 1);
    this.statistic = "l2";
    this.head = el("header", {});
    this.towerAt = el("section.tower", {id: "tower", "aria-label": "The tower"});
    this.panelAt = el("section.panel", {id: "panel", "aria-label": "The chosen layer", tabindex: -1});
    this.depthAt = el("section", {id: "depth"});
    this.meaningAt = el("section", {id: "meaning"});
    this.gatesAt = el("section", {id: "gates"});
    this.neuronsAt = el("section", {id: "neurons"});
    this.writesAt = el("section", {id: "writes"});
    replace(root, this.head, el("main", {}, el("div.first", {}, this.towerAt, this.panelAt), this.depthAt, this.meaningAt, this.gatesAt, this.neuronsAt,
      this.writesAt), el("footer", {}, environment(data)));
    this.tower = new Tower(this.towerAt, (layer) => { this.layer = layer; this.drawLayer(); });
    this.writes = new Writes(this.writesAt);
    this.draw();
  }

  get now() { return this.data.models[this.model]; }
  get told() { return this.now.prompts[this.prompt]; }

  words(id) {
    const text = this.now.vocabulary[String(id)];
    return text === undefined ? `[${id}]` : text;
  }

  /** Before another page takes this one's place. */
  close() {
    this.writes.stop();
    this.tower.close();
  }

  draw() {
    const {now, told} = this, words = (id) => this.words(id);
    this.drawHead();
    this.drawTower();
    this.drawLayer();
    drawDepth(this.depthAt, told, this.token, words);
    drawMeaning(this.meaningAt, now, words);
    drawGates(this.gatesAt, this.data.models, this.prompt);
    drawNeurons(this.neuronsAt, told, words);
    this.writes.show(told, words);
  }

  drawHead() {
    const {now, told} = this, check = told.sum_check;
    const pick = (id, label, options, value, act) => el("label.pick", {}, label, el("select", {id, onchange: (event) => act(event.target.value)},
      options.map(([key, text]) => el("option", {value: key, selected: String(key) === String(value)}, text))));
    replace(this.head, el("h1", {}, "Inside ", el("span", {}, now.name)),
      el("p", {}, `${now.family}, ${now.layer_types.length} layers, ${now.parameters.toLocaleString("en")} parameters. Captures of `
        + `${this.data.options.source === "hf" ? "Hugging Face\u2019s model" : "the mirror"} in ${this.data.options.dtype}.`),
      el("div.controls", {},
        this.data.models.length > 1 ? pick("model", "Model ", this.data.models.map((m, i) => [i, m.name]), this.model, (i) => {
          this.model = Number(i);
          this.prompt = Math.min(this.prompt, this.now.prompts.length - 1);
          this.token = null;
          this.layer = Math.min(this.layer, this.now.layer_types.length - 1);
          this.draw();
        }) : null,
        pick("prompt", "Prompt ", now.prompts.map((p, i) => [i, `${i + 1}: ${p.text === null ? `${p.ids.length} ids` : p.text}`]), this.prompt,
          (i) => { this.prompt = Number(i); this.token = null; this.draw(); }),
        pick("token", "Token ", [["", "mean over all"], ...told.ids.map((id, i) => [i, `${i}: ${quoted(this.words(id))}`])], this.token === null ? "" : this.token,
          (i) => { this.token = i === "" ? null : Number(i); this.drawTower(); this.drawLayer(); drawDepth(this.depthAt, this.told, this.token, (id) => this.words(id)); }),
        themeButton(() => this.draw())),
      (now.pedigree && now.pedigree.failed || []).length ? el("p.check", {"data-passes": "false"},
        `\u2717 Could not judge: the reference failed its own checks: ${now.pedigree.failed.join(", ")}.`) : null,
      told.finite ? null : el("p.check", {"data-passes": "false"}, "\u2717 Something in this forward is not finite: a dash stands in its place."),
      el("p.check", {"data-passes": String(check.passes)}, check.passes ? "\u2713 " : "\u2717 ",
        `Sum check: the stream at the last layer is the embedding plus all ${2 * now.layer_types.length} writes, off by ${digits(check.error, 3)} of ${digits(check.bound, 3)} allowed.`),
      el("p", {}, "Next: ", told.next.slice(0, 5).map((t) => `${quoted(this.words(t.id))} ${percent(t.p)}`).join(", ")));
  }

  drawTower() {
    const {told} = this;
    this.tower.chosen = this.layer;
    this.tower.show(told.layers.map((l) => {
      const norm = at(l.captures[6].l2, this.token);
      return {name: `layer ${l.index}`, kind: l.type, value: norm, text: `layer ${l.index}, ${typeName(l.type)}: L2 ${digits(norm)}`};
    }));
  }

  drawLayer() {
    drawPanel(this.panelAt, this.told.layers[this.layer], this.token, this.statistic, (s) => { this.statistic = s; this.drawLayer(); });
    this.tower.chosen = this.layer;
  }
}

function start() {
  const root = document.getElementById("page"), text = document.getElementById("data").textContent;
  const live = document.getElementById("live");
  if (live) return void new LivePage(root, JSON.parse(live.textContent));
  try {
    const data = JSON.parse(text);
    window.lockstep = data.command === "inspect" ? new InspectPage(root, data) : new DriftPage(root, data);
  } catch (error) {
    replace(root, el("header", {}, el("h1", {}, "This file cannot be drawn"), el("p.problem", {}, `It is not as this release writes it: ${error.message}`)));
  }
}

document.addEventListener("DOMContentLoaded", start);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (window.lockstep) window.lockstep.draw(); });
