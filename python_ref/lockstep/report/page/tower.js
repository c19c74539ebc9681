// The tower: one slice per layer. In 3D where the browser has WebGL, else the same slices flat. Each slice is a button too.
"use strict";

/** slices: [{name, kind, value, text, bad}]; from the first layer, at the bottom, up. */
class Tower {
  constructor(where, onChoose) {
    this.onChoose = onChoose;
    this.chosen = 0;
    this.slices = [];
    this.stage = el("div.stage", {});
    this.hint = el("p.hint", {"aria-live": "polite"});
    this.list = el("div.slices", {role: "group", "aria-label": "Layers, the last on top"});
    this.legendAt = el("p.key", {});
    where.append(this.stage, this.hint, this.list, this.legendAt);
    this.space = this.start();
    where.classList.toggle("flat", !this.space);
    if (!this.space) this.hint.textContent = "No WebGL in this browser: the tower is drawn flat.";
  }

  start() {
    try {
      return new Space(this.stage, (i) => this.choose(i), (i) => this.tell(i));
    } catch (error) {
      return null;
    }
  }

  show(slices) {
    this.slices = slices;
    const shares = scaled(slices.map((s) => s.value));
    const ends = PALETTE[dark() ? "dark" : "light"];
    this.colours = slices.map((s, i) => (s.value !== null ? shade(s.kind, shares[i]) : s.bad ? ends.bad : ends.none));
    if (this.space) this.space.show(slices, this.colours, shares);
    const buttons = slices.map((s, i) => {
      const button = el("button.slice", {
        type: "button", "data-layer": i, "data-kind": s.kind, title: s.text, "aria-pressed": i === this.chosen,
        onclick: () => this.choose(i), onfocus: () => this.tell(i), onmouseenter: () => this.tell(i),
        onkeydown: (event) => this.key(event, i),
      }, el("span.chip", {}), el("span", {}, s.name), el("span.number", {}, digits(s.value) + (s.bad ? " \u2717" : "")));
      button.querySelector(".chip").style.background = this.colours[i];
      return button;
    });
    replace(this.list, buttons.reverse());
    this.legend();
    this.mark();
  }

  /** Which hue is what, and from which value to which it goes. */
  legend() {
    const known = this.slices.map((s) => s.value).filter((v) => v !== null && Number.isFinite(v));
    const ramp = (kind) => {
      const steps = [0, 0.25, 0.5, 0.75, 1].map((t) => {
        const step = el("span", {});
        step.style.background = shade(kind, t);
        return step;
      });
      return el("span", {}, el("span.ramp", {"aria-hidden": "true"}, steps), typeName(kind));
    };
    replace(this.legendAt, [...new Set(this.slices.map((s) => s.kind))].sort().map(ramp),
      known.length ? el("span", {}, `from ${digits(Math.min(...known))} to ${digits(Math.max(...known))}`) : null);
  }

  key(event, i) {
    const steps = {ArrowUp: 1, ArrowDown: -1, PageUp: 4, PageDown: -4, Home: this.slices.length, End: -this.slices.length};
    if (!(event.key in steps)) return;
    event.preventDefault();
    const next = Math.min(this.slices.length - 1, Math.max(0, i + steps[event.key]));
    this.list.querySelector(`[data-layer="${next}"]`).focus();
  }

  choose(i) {
    this.chosen = i;
    this.mark();
    this.onChoose(i);
  }

  tell(i) {
    this.hint.textContent = i === null ? "" : this.slices[i].text;
    if (this.space) this.space.light(i);
  }

  close() {
    if (this.space) this.space.close();
  }

  mark() {
    for (const button of this.list.children) button.setAttribute("aria-pressed", Number(button.dataset.layer) === this.chosen);
    if (this.space) this.space.mark(this.chosen);
  }
}

/** The slices in space. Throws where there is no WebGL. */
class Space {
  constructor(stage, onChoose, onHover) {
    const canvas = el("canvas", {tabindex: 0, role: "img", "aria-label": "The tower in 3D: arrow keys turn it, plus and minus zoom; the list beside it holds the same layers"});
    if (!(canvas.getContext("webgl2"))) throw new Error("no WebGL");
    this.stage = stage;
    this.renderer = new THREE.WebGLRenderer({canvas, antialias: true, alpha: true});
    this.camera = new THREE.PerspectiveCamera(35, 1, 0.1, 200);
    this.scene = new THREE.Scene();
    this.scene.add(new THREE.AmbientLight(0xffffff, 2.2));
    const sun = new THREE.DirectionalLight(0xffffff, 1.6);
    sun.position.set(4, 10, 7);
    this.scene.add(sun);
    this.group = new THREE.Group();
    this.scene.add(this.group);
    this.controls = new THREE.OrbitControls(this.camera, canvas);
    this.controls.enablePan = false;
    this.controls.addEventListener("change", () => this.draw());
    this.onHover = onHover;
    this.hovered = null;
    this.chosen = 0;
    let down = null;
    canvas.addEventListener("pointerdown", (event) => { down = [event.clientX, event.clientY]; });
    canvas.addEventListener("pointerup", (event) => {
      const moved = down && Math.hypot(event.clientX - down[0], event.clientY - down[1]) > 4;
      const i = this.at(event);
      if (i !== null && !moved) onChoose(i);
    });
    canvas.addEventListener("pointermove", (event) => {
      const i = this.at(event);
      if (i !== this.hovered) onHover(i);
    });
    canvas.addEventListener("pointerleave", () => onHover(null));
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("webglcontextlost", (event) => event.preventDefault());
    canvas.addEventListener("webglcontextrestored", () => this.draw());
    stage.append(canvas);
    this.sizes = new ResizeObserver(() => this.resize());
    this.sizes.observe(stage);
  }

  show(slices, colours, shares) {
    for (const mesh of [...this.group.children]) {
      this.group.remove(mesh);
      mesh.geometry.dispose();
      mesh.material.dispose();
      for (const edge of mesh.children) { edge.geometry.dispose(); edge.material.dispose(); }
    }
    const placed = this.height;
    this.height = slices.length * 0.42;
    slices.forEach((slice, i) => {
      const width = 2.4 + 2.2 * (slice.value === null ? 0 : shares[i]);
      const geometry = new THREE.BoxGeometry(width, 0.3, width);
      const mesh = new THREE.Mesh(geometry, new THREE.MeshLambertMaterial({color: new THREE.Color(colours[i])}));
      mesh.position.y = i * 0.42 - this.height / 2;
      mesh.userData.layer = i;
      mesh.add(new THREE.LineSegments(new THREE.EdgesGeometry(geometry), new THREE.LineBasicMaterial({color: slice.bad ? 0xd00000 : 0x000000, transparent: !slice.bad, opacity: slice.bad ? 1 : 0.25})));
      this.group.add(mesh);
    });
    if (this.height !== placed) this.home();
    this.mark(this.chosen);
  }

  home() {
    const far = Math.max(this.height, 5) * 1.5 + 3.5;
    this.camera.position.set(far * 0.62, far * 0.42, far * 0.72);
    this.controls.target.set(0, 0, 0);
    this.controls.update();
  }

  at(event) {
    const box = this.renderer.domElement.getBoundingClientRect();
    const place = new THREE.Vector2(2 * (event.clientX - box.left) / box.width - 1, 1 - 2 * (event.clientY - box.top) / box.height);
    const ray = new THREE.Raycaster();
    ray.setFromCamera(place, this.camera);
    const hit = ray.intersectObjects(this.group.children, false)[0];
    return hit ? hit.object.userData.layer : null;
  }

  /** Where a slice is on the screen: for whoever tests the page. */
  place(i) {
    const mesh = this.group.children[i], box = this.renderer.domElement.getBoundingClientRect();
    const edge = new THREE.Vector3(mesh.geometry.parameters.width / 2, mesh.position.y, mesh.geometry.parameters.depth / 2).project(this.camera);
    return [box.left + (edge.x + 1) / 2 * box.width, box.top + (1 - edge.y) / 2 * box.height];
  }

  key(event) {
    const turn = {ArrowLeft: [-0.15, 0], ArrowRight: [0.15, 0], ArrowUp: [0, -0.12], ArrowDown: [0, 0.12]}[event.key];
    const zoom = {"+": 0.88, "=": 0.88, "-": 1.14}[event.key];
    if (!turn && !zoom && event.key !== "Home") return;
    event.preventDefault();
    if (event.key === "Home") return void this.home();
    const p = this.camera.position;
    if (zoom) p.multiplyScalar(zoom);
    if (turn) {
      const far = p.length();
      const side = Math.atan2(p.x, p.z) + turn[0];
      const up = Math.min(3.0, Math.max(0.15, Math.acos(p.y / far) + turn[1]));
      p.set(far * Math.sin(up) * Math.sin(side), far * Math.cos(up), far * Math.sin(up) * Math.cos(side));
    }
    this.controls.update();
    this.draw();
  }

  light(i) {
    this.hovered = i;
    this.paint();
  }

  mark(i) {
    this.chosen = i;
    this.paint();
  }

  paint() {
    for (const mesh of this.group.children) {
      const i = mesh.userData.layer;
      mesh.material.emissive.set(i === this.hovered ? 0x444444 : 0x000000);
      const edge = mesh.children[0].material, size = i === this.chosen ? 1.08 : 1;
      mesh.scale.set(size, 1, size);
      if (!edge.transparent) continue;  // a faulty slice keeps its red edges
      edge.opacity = i === this.chosen ? 1 : 0.25;
      edge.color.set(dark() ? 0xffffff : 0x000000);
    }
    this.draw();
  }

  resize() {
    const {clientWidth: width, clientHeight: height} = this.stage;
    if (!width || !height) return;
    this.renderer.setPixelRatio(Math.min(devicePixelRatio, 2));
    this.renderer.setSize(width, height, false);
    this.camera.aspect = width / height;
    this.camera.updateProjectionMatrix();
    this.draw();
  }

  /** Gives the graphics memory back: a browser allows few such canvases. */
  close() {
    this.closed = true;
    this.sizes.disconnect();
    this.controls.dispose();
    this.renderer.dispose();
    this.renderer.forceContextLoss();
  }

  draw() {
    if (this.waiting || this.closed) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      if (this.closed) return;
      this.renderer.render(this.scene, this.camera);
    });
  }
}
