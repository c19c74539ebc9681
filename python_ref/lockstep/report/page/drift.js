// The drift view: the JSON of verify, bisect, matrix and check on the same tower. What a JSON lacks is left out.
"use strict";

const VERDICTS = ["identical", "agrees", "rounding", "deviates", "dtype", "shape", "missing", "non_finite"];
const worse = (a, b) => (VERDICTS.indexOf(b) > VERDICTS.indexOf(a) ? b : a);

/** The worst verdict that this run lets pass: a replay says it; verify and matrix by their options; bisect asks for rounding. */
function gateOf(data) {
  const options = data.options || {};
  if (options.passes) return options.passes;
  if (options.bitwise || data.command === "check") return "identical";
  return data.command === "verify" && !options.accept ? "agrees" : "rounding";
}

function layerOf(point) {
  const found = /^model\.(?:language_model\.)*layers\.(\d+)(?:[.@ ]|$)/.exec(point);  // a file may have more before it
  return found ? Number(found[1]) : null;
}

class DriftPage {
  constructor(root, data) {
    this.data = data;
    this.gate = gateOf(data);
    this.types = (data.model && data.model.layer_types) || [];
    this.pair = 0;
    this.layer = 0;
    this.head = el("header", {});
    this.legsAt = el("section.legs", {id: "legs", "aria-label": "The legs of the verdict"});
    this.towerAt = el("section.tower", {id: "tower", "aria-label": "The tower"});
    this.panelAt = el("section.panel", {id: "panel", "aria-label": "The chosen layer"});
    this.faultsAt = el("section", {id: "faults"});
    this.outsideAt = el("section", {id: "outside"});
    const first = this.types.length ? el("div.first", {}, this.towerAt, this.panelAt) : null;
    replace(root, this.head, el("main", {}, this.legsAt, this.faultsAt, first, this.outsideAt), el("footer", {}, environment(data), this.environments()));
    if (first) this.tower = new Tower(this.towerAt, (layer) => { this.layer = layer; this.drawLayer(); });
    this.draw();
    const worst = this.rows.find((row) => row.bad && row.layer !== null && row.layer < this.types.length);
    if (first && worst) this.tower.choose(worst.layer);
  }

  passing(verdict, gate = this.gate) {
    return VERDICTS.includes(verdict) && VERDICTS.indexOf(verdict) <= VERDICTS.indexOf(gate);
  }

  draw() {
    this.rows = this.collect();
    this.drawHead();
    this.drawLegs();
    this.drawFaults();
    if (this.tower) this.drawTower();
    this.drawOutside();
  }

  /** One row per point, sublayer or tensor: {name, layer, verdict, ratio, difference, cells}. */
  collect() {
    const {data} = this;
    if (data.command === "bisect") {
      const faulty = new Map((data.faults || []).map((f) => [f.point, f]));
      return (data.drift || []).map((d) => {
        const ratio = d.injected !== null && d.floor ? d.injected / d.floor : null, fault = faulty.get(d.point);
        return {name: d.point, layer: layerOf(d.point), verdict: fault ? fault.verdict || "deviates" : "rounding", bad: Boolean(fault), ratio,
          difference: d.injected, cells: [d.input || "\u2013", digits(d.inherited, 3), digits(d.injected, 3), digits(d.floor, 3)]};
      });
    }
    if (data.command === "check") {
      const tensors = (data.tensors || []).map((t) => ({name: t.name, layer: layerOf(t.name), verdict: t.verdict, bad: !this.passing(t.verdict), ratio: null,
        difference: this.passing(t.verdict) ? 0 : 1, cells: [String(t.expected), String(t.found)]}));
      return [...tensors, ...this.pointRows((data.replay && data.replay.points) || [], data.replay ? gateOf(data.replay) : null)];
    }
    let points = data.points || [];
    if (data.command === "matrix" && data.pairs && data.pairs.length) points = points.filter((p) => p.pair === this.pair);
    return this.pointRows(points, this.gate);
  }

  pointRows(points, gate) {
    return points.map((p) => ({name: p.point, layer: layerOf(p.point), verdict: p.verdict, bad: !this.passing(p.verdict, gate), ratio: p.ratio === undefined ? null : p.ratio,
      difference: p.max_abs === undefined ? null : p.max_abs, cells: [p.input || "\u2013", digits(p.max_abs, 3), digits(p.floor, 3)]}));
  }

  /** In multiples of the noise floor where any is known; else the size of the difference, and for check the tensors that are not as stated. */
  measure() {
    if (this.data.command === "check") return {value: (row) => Number(row.bad), name: "not as stated", add: true};
    // Without a ratio a good row is no difference, and a bad one could not be measured at all: NaN, missing, another shape.
    if (this.rows.some((row) => row.ratio !== null)) return {value: (row) => (row.ratio === null ? (row.bad ? null : 0) : row.ratio), name: "times the noise floor"};
    return {value: (row) => row.difference, name: "largest |difference| (this file holds no noise floors)"};
  }

  drawHead() {
    const {data} = this, good = data.exit_code === 0;
    const words = {0: "passes", 1: "fails", 2: "could not judge"};
    const pairs = data.command === "matrix" ? data.pairs || [] : [];
    replace(this.head, el("h1", {}, `lockstep ${data.command}: `, el("span", {}, String(data.verdict))),
      el("p.check", {"data-passes": String(good)}, `${good ? "\u2713" : "\u2717"} ${words[data.exit_code] || "no exit code"}`,
        data.model ? `: ${data.model.family}, ${this.types.length} layers` : ""),
      data.shown && data.shown.first ? el("p", {}, "First: ", el("code", {}, data.shown.first)) : null,
      el("div.controls", {}, pairs.length ? el("label.pick", {}, "Pair ", el("select", {id: "pair", onchange: (event) => { this.pair = Number(event.target.value); this.draw(); }},
        pairs.map((p, i) => el("option", {value: i, selected: i === this.pair}, `${p.a} to ${p.b}, ${p.dtype}, ${p.attn}: ${p.verdict}`)))) : null,
      themeButton(() => this.draw())));
  }

  drawLegs() {
    const {data} = this, legs = data.legs || (data.replay && data.replay.legs) || {}, boxes = [];
    const box = (name, verdict, ...lines) => boxes.push(el("div.leg", {"data-passes": verdict === null ? null : String(this.passing(verdict, name === "Provenance" ? "identical" : data.replay ? gateOf(data.replay) : this.gate))},
      el("h3", {}, name), verdict === null ? null : el("p.verdict", {}, verdict), lines.filter(Boolean).map((line) => el("p", {}, line))));
    if (legs.provenance) {
      const p = legs.provenance;
      const differing = p.differing || [];
      box("Provenance", p.verdict, p.compared === undefined ? null : `${p.compared} tensors compared`,
        ...differing.slice(0, 6).map((d) => `${d.tensor}${d.index ? ` ${JSON.stringify(d.index)}` : ""}: expected ${d.reference}, found ${d.mirror}`),
        differing.length > 6 ? `and ${differing.length - 6} more` : null, data.mirror ? `the mirror has other files: ${data.mirror.digest}` : null);
    }
    if (legs.lockstep) {
      const l = legs.lockstep;
      box("Lockstep", l.verdict, l.points === undefined ? null : `${l.identical} of ${l.points} points identical`, ...(l.raised || []).map((r) => `${r.input}: ${r.reason}`));
    }
    const coverage = legs.coverage || data.coverage;
    if (coverage) {
      box("Coverage", null, coverage.exercised ? `exercised: ${coverage.exercised.join(", ")}` : null,
        coverage.not_exercised && coverage.not_exercised.length ? `not exercised: ${coverage.not_exercised.join(", ")}` : null,
        coverage.absent && coverage.absent.length ? `absent in this model: ${coverage.absent.join(", ")}` : null);
    }
    const failed = data.pedigree && data.pedigree.failed;
    if (failed && failed.length) box("Reference", "non_finite", `failed its own checks: ${failed.join(", ")}`);
    replace(this.legsAt, boxes);
  }

  drawFaults() {
    const {data} = this, faults = data.faults || [], shown = (data.shown && data.shown.faults) || [];
    const changed = data.command === "matrix" ? ((data.pairs || [])[this.pair] || {}).changed || [] : [];
    const files = data.command === "check" ? (data.files || []).filter((f) => !this.passing(f.verdict)) : [];
    replace(this.faultsAt, faults.length ? el("h2", {}, faults.length === 1 ? "One fault" : `${faults.length} faults`) : null,
      shown.map((f) => el("article.fault", {}, el("h3", {}, f.title), f.lines.map((line) => el("p", {}, line)))),
      this.notes(),
      changed.length ? [el("h2", {}, "What changed"), el("ul", {}, changed.map((c) => el("li", {}, `${c.sublayer} (first ${c.first}, ${c.input})`)))] : null,
      files.length ? [el("h2", {}, "Files not as stated"), el("ul", {}, files.map((f) => el("li", {}, `${f.name}: ${f.verdict}`)))] : null,
      data.parameters && data.parameters.length ? [el("h2", {}, "Parameters that differ from the file"), el("ul", {}, data.parameters.map((p) =>
        el("li", {}, `${p.parameter} ${JSON.stringify(p.index)}: file ${p.file}, candidate ${p.candidate}`)))] : null);
  }

  /** What else the JSON says of why it passes or not. */
  notes() {
    const {data} = this, coverage = data.coverage || {}, replay = data.replay || data, lines = [...((data.shown && data.shown.notes) || [])];
    if (replay.why) lines.push(replay.why);
    for (const name of coverage.extra || []) lines.push(`extra: ${name} is in the file but not in its manifest`);
    if (coverage.nan_rows) lines.push(`${coverage.nan_rows} rows hold a NaN that came from above`);
    for (const [name, reason] of Object.entries(coverage.dropped || {})) lines.push(`not run: ${name}: ${reason}`);
    const uncompared = coverage.not_compared || data.not_compared || [];
    if (uncompared.length) lines.push(`${uncompared.length} points not compared: ${uncompared.slice(0, 3).join(", ")}${uncompared.length > 3 ? ", ..." : ""}`);
    if (data.steps && data.steps.first) lines.push(`decoding ${data.steps.count} tokens: first not rounding in ${data.steps.first.input}, ${data.steps.first.point}`);
    return lines.length ? el("details", {open: true}, el("summary", {}, "Notes"), lines.map((line) => el("p", {}, line))) : null;
  }

  drawTower() {
    const measure = this.measure();
    this.tower.show(this.types.map((type, i) => {
      const mine = this.rows.filter((row) => row.layer === i), values = mine.map(measure.value).filter((v) => v !== null);
      const value = values.length ? (measure.add ? values.reduce((a, b) => a + b, 0) : Math.max(...values)) : null;
      const verdict = mine.length ? mine.map((row) => row.verdict).reduce(worse) : "not compared";
      return {name: `layer ${i}`, kind: type, value, bad: mine.some((row) => row.bad), text: `layer ${i}, ${typeName(type)}: ${verdict}, ${digits(value)} ${measure.name}`};
    }));
    this.drawLayer();
  }

  columns() {
    if (this.data.command === "bisect") return ["sublayer", "verdict", "times the floor", "input", "inherited", "injected", "floor"];
    if (this.data.command === "check") return ["tensor", "verdict", "times the floor", "expected", "found"];
    return ["point", "verdict", "times the floor", "input", "|difference|", "floor"];
  }

  listed(rows) {
    const order = [...rows].sort((a, b) => (b.bad - a.bad) || ((b.ratio || 0) - (a.ratio || 0)) || ((b.difference || 0) - (a.difference || 0)));
    const word = (row) => (this.data.command === "bisect" && !row.bad ? "no fault" : row.verdict);
    return el("div.scroll", {}, table(`${rows.length} in all, the worst first${rows.length > 200 ? "; 200 are shown" : ""}`, this.columns(),
      order.slice(0, 200).map((row) => [row.name, (row.bad ? "\u2717 " : "") + word(row), digits(row.ratio, 3), ...row.cells])));
  }

  drawLayer() {
    this.tower.chosen = this.layer;
    replace(this.panelAt, el("h2", {}, `Layer ${this.layer}`, el("small", {}, " " + typeName(this.types[this.layer]))), this.listed(this.rows.filter((row) => row.layer === this.layer)));
  }

  drawOutside() {
    const rows = this.rows.filter((row) => row.layer === null || row.layer >= this.types.length);
    replace(this.outsideAt, rows.length ? [el("h2", {}, this.types.length ? "Outside of the layers" : "Everything"), this.listed(rows)] : null,
      this.drawPower());
  }

  drawPower() {
    const {power} = this.data;
    if (!power || !Object.keys(power).length) return null;
    const standings = ["proved", "ruled_out", "not_discriminated", "same_function"];
    return el("details", {}, el("summary", {}, "Power: what each hypothesis came to, in sublayers"), el("div.scroll", {}, table("power", ["hypothesis", ...standings.map((s) => s.replace("_", " "))],
      Object.entries(power).map(([name, by]) => [name, ...standings.map((s) => (by[s] || []).length)]))));
  }

  environments() {
    const list = this.data.pedigree && this.data.pedigree.environments;
    if (!list) return null;
    return table("Environments", ["transformers", "torch", "CPU", "python"], list.map((e) => [e.transformers, e.torch, e.cpu_capability, e.python].map(String)));
  }
}
