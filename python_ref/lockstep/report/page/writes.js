// The stream as it is written: one token's vector, write by write.
"use strict";

class Writes {
  constructor(where) {
    this.where = where;
    this.step = 0;
    this.from = 0;
    this.to = 0;
    this.timer = null;
  }

  show(prompt, words) {
    if (prompt === this.prompt) return this.draw();  // drawn anew, in other colours: it goes on
    this.stop();
    this.prompt = prompt;
    this.words = words;
    this.from = 0;
    this.to = prompt.layers.length - 1;
    this.step = 0;
    const layers = prompt.layers.map((l) => l.index);
    const pick = (id, value, act) => el("select", {id, onchange: (event) => { act(Number(event.target.value)); this.limits(); }},
      layers.map((i) => el("option", {value: i, selected: i === value}, String(i))));
    this.first = pick("from-layer", this.from, (i) => { this.from = Math.min(i, this.to); });
    this.last = pick("to-layer", this.to, (i) => { this.to = Math.max(i, this.from); });
    this.play = el("button", {type: "button", onclick: () => this.toggle()}, "Play");
    this.scrub = el("input", {type: "range", min: 0, step: 1, "aria-label": "Write", oninput: (event) => { this.stop(); this.step = Number(event.target.value); this.draw(); }});
    this.said = el("p.hint", {"aria-live": "polite"});
    this.picture = el("div", {});
    const token = prompt.stream.token;
    replace(this.where, el("h2", {}, "The stream as it is written"),
      el("p", {}, `Token ${token}, ${quoted(words(prompt.ids[token]))}: its ${prompt.stream.dims.length} strongest dims at the end, after every write. Each layer writes twice.`),
      el("div.controls", {}, this.play, el("button", {type: "button", onclick: () => this.move(-1)}, "Step back"),
        el("button", {type: "button", onclick: () => this.move(1)}, "Step"), this.scrub,
        el("label", {}, "from layer ", this.first),
        el("label", {}, "to layer ", this.last)),
      this.said, this.picture);
    this.limits();
  }

  /** The steps of the chosen layers: what came before them, two writes each, and the head's reading after the last layer. */
  steps() {
    const list = [{index: 2 * this.from, name: this.from === 0 ? "the embedding" : `what layers 0 to ${this.from - 1} left`}];
    for (let layer = this.from; layer <= this.to; ++layer) {
      const mixer = this.prompt.layers[layer].type === "full_attention" ? "self_attn" : "linear_attn";
      list.push({index: 2 * layer + 1, name: `layer ${layer}, ${mixer} writes`}, {index: 2 * layer + 2, name: `layer ${layer}, mlp writes`});
    }
    if (this.to === this.prompt.layers.length - 1 && this.prompt.stream.read) list.push({index: -1, name: "the head reads the sum, after the final norm"});
    return list;
  }

  limits() {
    this.list = this.steps();
    this.first.value = this.from;
    this.last.value = this.to;
    this.scrub.max = this.list.length - 1;
    this.step = Math.min(this.step, this.list.length - 1);
    this.draw();
  }

  move(by) {
    this.stop();
    this.step = Math.min(this.list.length - 1, Math.max(0, this.step + by));
    this.draw();
  }

  toggle() {
    if (this.timer !== null) return this.stop();
    if (this.step === this.list.length - 1) this.step = 0;
    this.timer = setInterval(() => {
      if (this.step >= this.list.length - 1) return this.stop();
      this.step += 1;
      this.draw();
    }, this.pause());
    this.play.textContent = "Pause";
    this.draw();
  }

  /** Milliseconds between two writes. Who asked for less motion gets one still picture after the other. */
  pause() {
    return matchMedia("(prefers-reduced-motion: reduce)").matches ? 2000 : 450;
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    if (this.play) this.play.textContent = "Play";
  }

  draw() {
    const {dims, values, read} = this.prompt.stream, now = this.list[this.step];
    const shown = now.index < 0 ? read : values[now.index];
    const before = now.index > 0 && this.step > 0 ? values[now.index - 1] : shown;
    this.scrub.value = this.step;
    this.said.textContent = `${this.step} of ${this.list.length - 1}: ${now.name}`
      + (now.index < 0 ? `, next is ${quoted(this.words(this.prompt.answer))}` : "");
    const kind = now.index < 0 ? "plain" : now.index % 2 ? "mixer" : "mlp";
    const written = (i) => (shown[i] === null || before[i] === null ? null : shown[i] - before[i]);
    replace(this.picture, figure(bars(`The stream: ${now.name}`, dims.map((dim, i) => ({name: `dim ${dim}`, short: String(dim), value: shown[i], kind,
      title: `dim ${dim}: ${digits(shown[i])} (${digits(written(i))} by this write)`})), "value"),
    "this moment", ["dim", "value", "this write"], dims.map((dim, i) => [dim, digits(shown[i]), digits(written(i))])));
  }
}
