// The nodes: what they are busy with, and the share of their processors and GPUs that each replica holds.

import { h, setText } from "./dom.js";
import { get } from "./api.js";
import { bytes, gpuName, gpusNamed, numbered, percent } from "./format.js";

const REFRESH_MS = 5000;

function meter(title, hint = "") {
  const fill = h("i"), value = h("b"), track = h("span", { class: "track" }, fill);
  const element = h("div", { class: "meter" }, h("span", { title: hint }, title), track, value);
  element.set = (share, text) => {
    fill.style.width = `${Math.min(100, 100 * (share || 0))}%`;
    fill.className = share > 0.9 ? "high" : "";
    setText(value, text);
  };
  return element;
}

export class ClusterView {
  constructor(store) {
    this.store = store;
    this.nodes = new Map();
    this.place = h("div", { class: "nodes" });
    this.about = h("p", { class: "soft about" }, "…");
    this.element = h("div", { class: "cluster" }, h("h1", {}, "Cluster"), this.about, this.place);
    this.timer = setInterval(() => this.load(), REFRESH_MS);
    this.load();
  }

  async load() {
    try {
      this.plan = await get("/v2/console/plan");
      this.draw();
    } catch (error) {
      if (error.header) this.store.failed(error);
      setText(this.about, error.message);
    }
  }

  draw() {
    const { state } = this.store;
    if (!state || !this.plan) return;
    const { deployments, embedded, replicas, unplaced } = this.plan;
    const alive = state.nodes.filter((node) => node.address);
    const gone = Object.keys(unplaced).length;
    setText(this.about, `${numbered(alive, "node")}, ${numbered(deployments, "deployment")}, ${numbered(replicas, "replica")} reached from here` +
      (embedded.length ? `, ${embedded.length} model versions in the ingresses` : "") + (gone ? `, ${gone} model${gone === 1 ? "" : "s"} without a place` : ""));
    const key = JSON.stringify([alive.map((node) => [node.id, node.gpus.map((gpu) => gpu.uuid)]), replicas, deployments.map((each) => each.key)]);
    if (key !== this.key) {
      this.key = key;
      this.nodes.clear();
      this.place.replaceChildren(...alive.map((node) => this.node(node)));
    }
    for (const node of alive) this.nodes.get(node.id)(node);
  }

  node(node) {
    const byKey = new Map(this.plan.deployments.map((each) => [each.key, each]));
    const here = this.plan.replicas.filter(([, , id]) => id === node.id).map(([key, replica, , ids]) => [byKey.get(key), replica, ids]).filter(([each]) => each);
    const cpu = meter("CPU"), memory = meter("memory"), gpus = node.gpus.map((gpu) => [meter(gpuName(gpu), gpu.uuid), meter("its memory")]);
    const cards = new Map();
    for (const [each, replica, ids] of here) {
      const where = each.gpus ? gpusNamed(node, ids) : "CPU";
      if (!cards.has(where)) cards.set(where, []);
      cards.get(where).push([each, replica]);
    }
    const groups = Array.from(cards).sort().map(([where, held]) => {
      const share = (each) => (each.gpus ? each.gpus : each.cpus);
      const whole = held.reduce((sum, [each]) => sum + share(each), 0);
      const unit = where === "CPU" ? "CPU" : "GPU";
      const full = unit === "GPU" ? Math.max(1, whole) : whole || 1;
      const bar = h("div", { class: "shares", role: "img", "aria-label": held.map(([each]) => `${each.application} ${share(each)} ${unit}`).join(", ") }, held.map(([each], place) => {
        const part = h("i", { class: "share s" + (place % 6), title: `${each.application}: ${share(each)} ${unit}` });
        part.style.width = `${(100 * share(each)) / full}%`;
        return part;
      }));
      const list = h("ul", { class: "held" }, held.map(([each, replica], place) => h("li", {},
        h("i", { class: "share s" + (place % 6) }),
        each.models.length === 1 ? h("a", { href: "#/model/" + encodeURIComponent(each.models[0].name) }, `${each.models[0].name} v${each.models[0].version}`) : h("span", { title: each.models.map((model) => model.name).join(", ") }, `${each.models.length} packed model versions`),
        h("small", { class: "soft" }, ` ${unit === "GPU" ? percent(each.gpus) : each.cpus + " CPU"} · some ${bytes(each.memory_bytes)} · ${replica.slice(-8)}`))));
      return h("div", {}, h("h3", {}, where, h("small", { class: "soft" }, unit === "GPU" ? ` ${percent(whole)} held` : ` ${Math.round(whole * 100) / 100} reserved`)), bar, list);
    });
    this.nodes.set(node.id, (now) => {
      cpu.set(now.cpu, now.cpu === undefined ? "–" : percent(now.cpu));
      memory.set(now.memory ? now.memory[0] / now.memory[1] : 0, now.memory ? `${bytes(now.memory[0])} of ${bytes(now.memory[1])}` : "–");
      now.gpus.forEach((gpu, place) => {
        gpus[place][0].set(gpu.busy, `${percent(gpu.busy)}${gpu.power_w ? `, ${Math.round(gpu.power_w)} W` : ""}`);
        gpus[place][1].set(gpu.memory[0] / gpu.memory[1], `${bytes(gpu.memory[0])} of ${bytes(gpu.memory[1])}`);
      });
    });
    return h("section", { class: "card node" }, h("h2", {}, node.address, " ", h("small", { class: "soft" }, node.id.slice(0, 8))),
      h("div", { class: "meters" }, cpu, memory, gpus), groups.length ? groups : h("p", { class: "soft" }, "No replica of a model runs here."));
  }

  close() {
    clearInterval(this.timer);
  }
}
