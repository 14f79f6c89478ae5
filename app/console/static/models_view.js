// All models: a row for each version, drawn again only where it is seen and something has changed.

import { h, setClass, setText } from "./dom.js";
import { batchSizes, histogram, sparkline, splitBar } from "./charts.js";
import { count, NONE, rate, time } from "./format.js";

const COLUMNS = [
  ["name", "Model", (f) => f.row.name],
  ["state", "State", (f) => ["UNAVAILABLE", "LOADING", "UNLOADING", "READY", ""].indexOf(f.row.state)],
  ["rate", "Requests/s", (f) => -(f.now ? f.now.rate : 0)],
  ["p50", "p50", (f) => -(f.now?.p50 || 0)],
  ["p99", "p99", (f) => -(f.now?.p99 || 0)],
  ["time", "Queue · compute", (f) => -((f.now?.queue || 0) + (f.now?.compute || 0))],
  ["batch", "Batches", (f) => -(f.now?.batch || 0)],
  ["flight", "In flight", (f) => -((f.now?.inFlight || 0) + (f.now?.pending || 0))],
  ["where", "Runs", (f) => f.row.placement || "~"],
];
const FILTERS = [
  ["all", "All", () => true],
  ["busy", "Busy", (f) => f.now && f.now.rate > 0],
  ["failed", "Not ready", (f) => f.row.state !== "READY" && f.row.state !== ""],
];

const order = new Intl.Collator("en", { numeric: true }).compare;

export const linkTo = (row) => "#/model/" + encodeURIComponent(row.id) + (row.version ? "/" + row.version : "");

export function stateName(row) {
  return row.state || "not loaded";
}

export function stateClass(row) {
  return "pill " + { READY: "good", UNAVAILABLE: "bad", LOADING: "warn", UNLOADING: "warn" }[row.state];
}

class Line {
  constructor(followed) {
    this.followed = followed;
    this.cells = {
      name: h("span", { class: "name" }),
      state: h("span", {}),
      rate: h("b"),
      spark: sparkline(),
      p50: h("span"),
      p99: h("span"),
      split: splitBar(),
      time: h("small"),
      batch: histogram(),
      flight: h("span"),
      where: h("small", { class: "soft" }),
      reason: h("small", { class: "reason" }),
    };
    const c = this.cells;
    const cell = (name, title, ...inner) => h("span", { class: "cell " + name, role: "cell", dataset: { title } }, ...inner);
    this.element = h(
      "a",
      { class: "row", role: "row", href: linkTo(followed.row) },
      cell("name", "Model", c.name, c.reason),
      cell("state", "State", c.state),
      cell("rate", "Requests/s", c.rate, c.spark),
      cell("p50 number", "p50", c.p50),
      cell("p99 number", "p99", c.p99),
      cell("time", "Queue · compute", c.split, c.time),
      cell("batch", "Batches", c.batch),
      cell("flight number", "In flight", c.flight),
      cell("where", "Runs", c.where),
    );
    this.element.line = this;
    this.seen = true;
  }

  draw() {
    const { row, now } = this.followed, c = this.cells;
    if (c.name.childElementCount === 0 || c.name.dataset.name !== row.name) {
      c.name.dataset.name = row.name;
      c.name.replaceChildren(h("span", {}, row.name), row.version ? h("small", { class: "version" }, "v" + row.version) : "");
    }
    setText(c.reason, row.state === "READY" && !row.reason ? "" : row.reason || "");
    setClass(c.state, stateClass(row));
    setText(c.state, stateName(row));
    setText(c.rate, now ? rate(now.rate) : NONE);
    c.spark.set(this.followed.history.map((point) => point.rate));
    setText(c.p50, time(now?.p50));
    setText(c.p99, time(now?.p99));
    c.split.set(now?.queue, now?.compute);
    setText(c.time, now && (now.queue !== null || now.compute !== null) ? `${time(now.queue)} · ${time(now.compute)}` : NONE);
    c.batch.set(batchSizes(row.batch_sizes), "batches of");
    setText(c.flight, now ? count(now.inFlight) + (now.pending ? ` (${count(now.pending)} wait)` : "") : NONE);
    setText(c.where, row.placement ? [row.placement, row.device, row.replicas > 1 ? "× " + row.replicas : ""].filter(Boolean).join(" ") : "");
  }
}

export class ModelsView {
  constructor(store) {
    this.store = store;
    this.lines = new Map();
    this.sort = ["name", 1];
    this.filter = "all";
    this.order = "";
    this.search = h("input", { type: "search", placeholder: "Search ( / )", "aria-label": "Search models", id: "search", spellcheck: false });
    this.search.oninput = () => this.draw();
    this.filters = h("span", { class: "segments", role: "group", "aria-label": "Which models" }, FILTERS.map(([key, title]) =>
      h("button", { dataset: { key }, onclick: () => ((this.filter = key), this.draw()) }, title + " ", h("small"))));
    this.heads = COLUMNS.map(([key, title, of]) => h("button", { class: "head " + key, role: "columnheader", onclick: () => this.sortBy(key) }, title));
    this.body = h("div", { class: "rows", role: "rowgroup" });
    this.empty = h("p", { class: "soft pad" });
    this.tiles = [
      ["rate", "requests/s, of clients", (t) => rate(t.clients), (t) => t.clients],
      ["p50", "p50, of clients", (t) => time(t.p50), (t) => t.p50 || 0],
      ["p99", "p99, of clients", (t) => time(t.p99), (t) => t.p99 || 0],
      ["flight", "in flight", (t) => count(t.inFlight), (t) => t.inFlight],
      ["errors", "failed/s", (t) => rate(t.errors), (t) => t.errors],
    ].map(([key, title, text, of]) => {
      const value = h("b"), spark = sparkline(160, 36);
      return { element: h("div", { class: "tile " + key }, h("small", {}, title), value, spark), value, spark, text, of };
    });
    this.element = h(
      "div",
      { class: "models" },
      h("section", { class: "tiles", "aria-label": "All models together" }, this.tiles.map((tile) => tile.element)),
      h("div", { class: "tools" }, this.search, this.filters),
      h("div", { class: "table card", role: "table", "aria-label": "Models" },
        h("div", { class: "row heads", role: "row" }, this.heads), this.body, this.empty),
    );
    this.watcher = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        entry.target.line.seen = entry.isIntersecting;
        if (entry.isIntersecting) entry.target.line.draw();
      }
    }, { rootMargin: "300px" });
    this.body.onkeydown = (event) => this.onKey(event);
  }

  sortBy(key) {
    this.sort = [key, this.sort[0] === key ? -this.sort[1] : 1];
    this.draw();
  }

  onKey(event) {
    const row = event.target.closest(".row");
    const to = { ArrowDown: row?.nextElementSibling, ArrowUp: row?.previousElementSibling, Home: this.body.firstElementChild, End: this.body.lastElementChild }[event.key];
    if (!row || !(event.key in { ArrowDown: 1, ArrowUp: 1, Home: 1, End: 1 })) return;
    event.preventDefault();
    if (to) to.focus();
    else if (event.key === "ArrowUp") this.search.focus();
  }

  draw() {
    if (!this.store.rows) return;
    const wanted = this.search.value.trim().toLowerCase();
    const [key, direction] = this.sort;
    const of = COLUMNS.find((column) => column[0] === key)[2];
    const chosen = FILTERS.find(([name]) => name === this.filter)[2];
    for (const button of this.filters.children) {
      const matching = this.store.rows.filter(FILTERS.find(([name]) => name === button.dataset.key)[2]).length;
      setText(button.lastElementChild, String(matching));
      button.setAttribute("aria-pressed", String(button.dataset.key === this.filter));
    }
    this.heads.forEach((head, place) => {
      const sorted = COLUMNS[place][0] === key ? (direction > 0 ? "ascending" : "descending") : "none";
      if (head.getAttribute("aria-sort") !== sorted) head.setAttribute("aria-sort", sorted);
    });
    const shown = this.store.rows.filter((f) => chosen(f) && (!wanted || f.row.name.toLowerCase().includes(wanted)));
    // A moving order would carry rows away from under the finger: it stays as long as one is pointed at.
    if (key !== "name" && this.body.matches(":hover") && this.order.startsWith(this.sort.join())) {
      shown.sort((a, b) => this.place(a) - this.place(b));
    } else {
      const texts = new Map(shown.map((each) => [each, of(each)]));
      shown.sort((a, b) => {
        const x = texts.get(a), y = texts.get(b);
        const by = typeof x === "number" ? x - y : order(x, y);
        return by * direction || order(a.row.name, b.row.name) || a.row.version - b.row.version;
      });
    }
    const lines = shown.map((followed) => this.line(followed));
    const arranged = this.sort.join() + " " + shown.map(({ row }) => row.id + "/" + row.version).join(" ");
    if (arranged !== this.order) {
      this.order = arranged;
      this.places = new Map(shown.map((each, place) => [each, place]));
      const focused = document.activeElement;
      for (const line of lines) line.element.line = line;
      this.body.replaceChildren(...lines.map((line) => line.element));
      if (this.body.contains(focused)) focused.focus({ preventScroll: true });
    }
    for (const line of lines) if (line.seen) line.draw();
    setText(this.empty, lines.length ? "" : this.store.rows.length ? "No model fits." : "There are no models.");
    this.empty.hidden = lines.length > 0;
    const totals = this.store.totals, last = totals[totals.length - 1];
    for (const tile of this.tiles) {
      setText(tile.value, last && totals.length > 1 ? tile.text(last) : NONE);
      tile.spark.set(totals.map(tile.of));
    }
  }

  place(followed) {
    return this.places?.get(followed) ?? Infinity;
  }

  line(followed) {
    let line = this.lines.get(followed);
    if (!line) {
      line = new Line(followed);
      this.lines.set(followed, line);
      this.watcher.observe(line.element);
      line.draw();
    }
    return line;
  }

  close() {
    this.watcher.disconnect();
  }
}
