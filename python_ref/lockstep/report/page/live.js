// The live page: type a prompt, choose a model, Run. The same page is drawn from what the server on this machine answers.
"use strict";

class LivePage {
  constructor(root, live) {
    this.live = live;
    this.prompts = [];
    this.text = el("textarea", {id: "prompt-text", maxlength: live.most_characters, "aria-label": "Prompt", placeholder: "The capital of France is"});
    this.model = el("select", {id: "live-model", "aria-label": "Model", onchange: () => { this.prompts = []; this.list(); }}, live.models.map((name, i) => el("option", {value: i}, name)));
    this.run = el("button", {type: "button", id: "run", onclick: () => this.start()}, "Run");
    this.cancel = el("button", {type: "button", id: "cancel", disabled: true, onclick: () => this.ask("cancel", {})}, "Cancel");
    this.clear = el("button", {id: "clear", type: "button", onclick: () => { this.prompts = []; this.list(); }}, "Forget the prompts");
    this.bar = el("progress", {max: 1, value: 0, hidden: true});
    this.said = el("p", {id: "said", role: "status"});
    this.held = el("ol", {});
    this.below = el("div", {id: "shown"});
    replace(root, el("header", {}, el("h1", {}, "Lockstep, live"), el("p", {}, "Each prompt adds its own stream; prompts that end in the same token are compared."),
      this.text, el("div.controls", {}, live.models.length > 1 ? this.model : el("span", {}, live.models[0]), this.run, this.cancel, this.clear, this.bar), this.said, this.held), this.below);
    this.text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.start();
    });
  }

  list() {
    replace(this.held, this.prompts.map((p) => el("li", {}, quoted(p))));
  }

  say(text, bad) {
    this.said.textContent = text;
    this.said.className = bad ? "problem" : "";
  }

  async ask(what, body) {
    const answer = await fetch(what, {method: body === undefined ? "GET" : "POST", cache: "no-store",
      headers: {"X-Lockstep-Token": this.live.token, ...(body === undefined ? {} : {"Content-Type": "application/json"})},
      body: body === undefined ? undefined : JSON.stringify(body)});
    const told = await answer.json();
    if (!answer.ok) throw new Error(told.error || `the server answered ${answer.status}`);
    return told;
  }

  async start() {
    if (this.run.disabled) return;
    const prompts = this.text.value === "" ? this.prompts : [...this.prompts, this.text.value];
    if (!prompts.length) return this.say("Type a prompt first.", true);
    if (prompts.length > this.live.most_prompts) return this.say(`At most ${this.live.most_prompts} prompts; forget some first.`, true);
    this.busy(true);
    try {
      const {run} = await this.ask("run", {model: Number(this.model.value || 0), prompts});
      for (;;) {
        const state = await this.ask(`progress?run=${run}`);
        if (state.error) throw new Error(state.error);
        if (state.done) break;
        this.bar.value = state.share;
        this.say(state.text);
        await new Promise((wake) => setTimeout(wake, 200));
      }
      const data = await this.ask(`result?run=${run}`);
      this.prompts = prompts;
      this.text.value = "";
      this.list();
      this.say(`${prompts.length} prompt${prompts.length > 1 ? "s" : ""}, ${data.seconds.total} s`);
      const inside = el("div", {});
      if (window.lockstep) window.lockstep.close();
      replace(this.below, inside);
      window.lockstep = new InspectPage(inside, data);
      window.lockstep.prompt = prompts.length - 1;
      window.lockstep.draw();
    } catch (error) {
      this.say(String(error.message || error), true);
    } finally {
      this.busy(false);
    }
  }

  busy(is) {
    for (const control of [this.run, this.model, this.clear]) control.disabled = is;
    this.cancel.disabled = !is;
    this.bar.hidden = !is;
    this.bar.value = 0;
  }
}
