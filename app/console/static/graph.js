// An ensemble as a graph: steps are boxes, tensors the edges between them, with the time at which each is there.

import { h, setText, svg } from "./dom.js";
import { time } from "./format.js";
import { linkTo } from "./models_view.js";

const BOX = { width: 172, height: 62 }, GAP = { x: 118, y: 26 }, EDGE = 14;

/** Returns mean times of a followed version in µs: of the last seconds where it had requests, else since it started. */
function means(followed) {
  if (!followed) return null;
  const { now, row } = followed;
  if (now?.success) return { request: now.request, queue: now.queue, compute: now.compute, live: true };
  if (!row.success) return null;
  return { request: row.request_us / row.success, queue: row.queue_us / row.success, compute: row.computed ? row.compute_us / row.computed : null, live: false };
}

/** Puts each step behind all that it takes tensors from; returns the steps' columns. */
function columns(graph) {
  const maker = new Map();
  graph.steps.forEach((step, index) => step.makes.forEach((tensor) => maker.set(tensor, index)));
  const found = new Array(graph.steps.length).fill(1);
  for (let round = 0; round < graph.steps.length; round++) {
    graph.steps.forEach((step, index) => {
      for (const tensor of step.takes) if (maker.has(tensor)) found[index] = Math.max(found[index], found[maker.get(tensor)] + 1);
    });
  }
  return { found, maker };
}

export class Graph {
  constructor(graph, store) {
    this.graph = graph;
    this.store = store;
    const { found, maker } = columns(graph);
    this.maker = maker;
    const last = Math.max(1, ...found) + 1;
    const boxes = [
      ...graph.inputs.map((name) => ({ kind: "tensor", title: name, column: 0, makes: [name], takes: [] })),
      ...graph.steps.map((step, index) => ({ kind: "step", title: step.model, step, index, column: found[index], makes: step.makes, takes: step.takes })),
      ...graph.outputs.map((name) => ({ kind: "tensor", title: name, column: last, makes: [], takes: [name] })),
    ];
    const byColumn = Array.from({ length: last + 1 }, (_, column) => boxes.filter((box) => box.column === column));
    const tallest = Math.max(...byColumn.map((each) => each.length));
    const height = tallest * (BOX.height + GAP.y) + GAP.y;
    for (const each of byColumn) {
      each.forEach((box, place) => {
        box.x = EDGE + box.column * (BOX.width + GAP.x);
        box.y = height / 2 + (place - (each.length - 1) / 2) * (BOX.height + GAP.y) - BOX.height / 2;
      });
    }
    const width = 2 * EDGE + last * (BOX.width + GAP.x) + BOX.width;
    this.picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "graph", role: "img", "aria-label": "the graph of the ensemble" });
    this.picture.style.width = `${width}px`;
    this.picture.style.minWidth = `${Math.round(0.72 * width)}px`;
    const arrow = svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, svg("path", { d: "M0 0L8 4L0 8z" }));
    this.picture.append(svg("defs", {}, arrow));
    this.labels = [];
    this.boxes = boxes;
    for (const to of boxes) {
      const makers = boxes.filter((from) => to.takes.some((tensor) => from.makes.includes(tensor)));
      for (const from of makers) this.edge(from, to, to.takes.filter((tensor) => from.makes.includes(tensor)), makers.length === 1);
    }
    for (const box of boxes) this.picture.append(this.box(box));
    this.about = h("p", { class: "soft" });
    this.element = h("section", { class: "card", id: "graph" }, h("h2", {}, "Ensemble"), h("div", { class: "scroll", tabIndex: 0, "aria-label": "graph, scrolls" }, this.picture), this.about);
  }

  /** Draws the way of tensors from one box to another; the label is where the way ends, if no other ends there. */
  edge(from, to, tensors, alone) {
    const x1 = from.x + BOX.width, y1 = from.y + BOX.height / 2, x2 = to.x - 2, y2 = to.y + BOX.height / 2;
    const bend = Math.min(60, (x2 - x1) / 2);
    this.picture.append(svg("path", { class: "edge", d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`, "marker-end": "url(#arrow)" }));
    const x = x2 - GAP.x / 2 + 2, y = y1 + (y2 - y1) * (alone ? 1 : x2 - x1 > GAP.x + 10 ? 0.86 : 0.5);
    const name = svg("text", { class: "tensor", x, y: y - 6, "text-anchor": "middle" }), at = svg("text", { class: "when", x, y: y + 13, "text-anchor": "middle" });
    name.textContent = cut(tensors.join(", "), 17);
    const about = svg("title");
    about.textContent = tensors.map((tensor) => `${tensor}: ${this.graph.tensors[tensor] || ""}`).join("\n");
    this.picture.append(svg("g", {}, about, name, at));
    this.labels.push({ tensor: tensors[0], at });
  }

  box(box) {
    const title = svg("text", { class: "title", x: box.x + 12, y: box.y + 24 }), line = svg("text", { class: "times", x: box.x + 12, y: box.y + 44 });
    title.textContent = cut(box.title, 20);
    const rectangle = svg("rect", { x: box.x, y: box.y, width: BOX.width, height: BOX.height, rx: box.kind === "tensor" ? BOX.height / 2 : 9, class: "box " + (box.kind === "step" ? "step" : "end") });
    const about = svg("title");
    about.textContent = box.kind === "tensor" ? `${box.title}: ${this.graph.tensors[box.title] || ""}` : box.step.when ? `${box.title}, when ${box.step.when}` : box.title;
    const group = svg("g", {}, about, rectangle, title, line);
    box.line = line;
    if (box.kind === "tensor") {
      line.textContent = cut(this.graph.tensors[box.title] || "", 22);
      title.setAttribute("x", box.x + 22);
      line.setAttribute("x", box.x + 22);
      return group;
    }
    if (box.step.when) rectangle.classList.add("sometimes");
    const versions = this.followed(box.step);
    box.link = svg("a", { href: linkTo(versions ? versions.row : { id: box.step.model }) }, group);
    return box.link;
  }

  /** The version that a step asks, as far as the page knows it. */
  followed(step) {
    const all = (this.store.rows || []).filter(({ row }) => row.id === step.model || row.name === step.model);
    return step.version > 0 ? all.find(({ row }) => row.version === step.version) : all.filter(({ row }) => row.state === "READY").pop();
  }

  draw() {
    const arrival = new Map(this.graph.inputs.map((name) => [name, 0]));
    const known = this.graph.steps.map((step) => means(this.followed(step)));
    for (let round = 0; round < this.graph.steps.length; round++) {
      this.graph.steps.forEach((step, index) => {
        const starts = step.takes.map((tensor) => arrival.get(tensor));
        if (starts.includes(undefined) || !known[index]) return;
        for (const tensor of step.makes) arrival.set(tensor, Math.max(0, ...starts) + known[index].request);
      });
    }
    for (const { tensor, at } of this.labels) {
      const us = arrival.get(tensor);
      setText(at, us === undefined ? "" : us === 0 ? "0" : "+ " + time(us));
    }
    for (const box of this.boxes) {
      if (box.kind !== "step") continue;
      const mean = known[box.index];
      setText(box.line, mean ? `${time(mean.queue)} queue · ${time(mean.compute)}` : "no requests yet");
    }
    const live = known.some((mean) => mean?.live);
    setText(this.about, `At each tensor: how long after the request it is there, by the means of the models ${live ? "in the last 10 s" : "since they were loaded"}, whoever asked them.`);
  }
}

function cut(text, length) {
  return text.length > length ? text.slice(0, length - 1) + "…" : text;
}
