// One model: how it does, its graph, a form to try it, where it runs and why, its configuration, and what it logged.

import { busy, h, setClass, setText } from "./dom.js";
import { get, post } from "./api.js";
import { batchSizes, histogram, lineChart } from "./charts.js";
import { bytes, count, gpusNamed, NONE, percent, rate, time } from "./format.js";
import { Graph } from "./graph.js";
import { linkTo, stateClass, stateName } from "./models_view.js";
import { TryIt } from "./try_it.js";

const REASONS = {
  full: "full", preferred: "preferred size", delay: "waited long enough", next_differs: "the next did not fit",
  none_waits: "nothing else waited", stopping: "stopping",
};

export class ModelView {
  constructor(store, id, version, openLog) {
    this.store = store;
    this.id = id;
    this.version = version;
    this.details = null;
    this.title = h("h1");
    this.state = h("span");
    this.reason = h("p", { class: "error" });
    this.versions = h("span", { class: "segments", role: "group", "aria-label": "Versions" });
    this.actions = h("span", { class: "actions" });
    this.facts = h("dl", { class: "facts" });
    this.charts = [
      lineChart("Requests", [{ name: "answered/s", of: (p) => p.rate, kind: "a" }, { name: "failed/s", of: (p) => p.errors, kind: "bad" }], rate),
      lineChart("Latency of clients, last 10 s", [{ name: "p99", of: (p) => p.p99, kind: "b" }, { name: "p50", of: (p) => p.p50, kind: "a" }], time),
      lineChart("Mean time of a request", [{ name: "queue", of: (p) => p.queue, kind: "queue" }, { name: "compute", of: (p) => p.compute, kind: "compute" }], time, { stacked: true }),
    ];
    this.batches = histogram(true);
    this.batchNote = h("small", { class: "soft" });
    const batchCard = h("figure", { class: "card" }, h("figcaption", {}, h("span", {}, "Batch sizes since it was loaded"), this.batchNote), this.batches);
    this.graphPlace = h("div");
    this.tryPlace = h("div");
    this.trafficPlace = h("div");
    this.planPlace = h("section", { class: "card", id: "plan" }, h("h2", {}, "Where it runs, and why"), h("p", { class: "soft" }, "…"));
    this.logPlace = h("section", { class: "card", id: "log" }, h("h2", {}, "Log"), h("button", { class: "quiet", textContent: "Show the log", id: "show-log", onclick: (event) => busy(event.target, () => this.showLog()) }));
    this.configPlace = h("div");
    this.element = h(
      "div",
      { class: "model" },
      h("header", { class: "title" }, h("a", { class: "back", href: "#/", "aria-label": "All models" }, "←"), this.title, this.state, this.versions, h("span", { class: "grow" }), this.actions),
      this.reason,
      this.facts,
      this.graphPlace,
      (this.chartPlace = h("div", { class: "charts" }, this.charts, batchCard)),
      this.tryPlace, this.trafficPlace, this.planPlace, this.logPlace,
      this.configPlace,
    );
    this.load();
  }

  get followed() {
    const all = this.store.versions(this.id);
    return all.find(({ row }) => row.version === this.version) || all.filter(({ row }) => row.state === "READY").pop() || all[all.length - 1];
  }

  async load() {
    try {
      this.take(await get("/v2/console/models/" + encodeURIComponent(this.id)));
    } catch (error) {
      if (error.header) this.store.failed(error);
      setText(this.reason, error.message);
    }
    this.loadPlan();
  }

  take(details) {
    this.details = details;
    this.shownState = this.followed?.row.state;
    if (details.graph) this.graphPlace.replaceChildren((this.graph = new Graph(details.graph, this.store)).element);
    const asked = JSON.stringify([details.inputs, details.outputs, details.versions]);
    if (details.inputs && details.versions.length && this.asked !== asked) {
      this.asked = asked; // what is typed stays when something else has changed
      const version = this.version || Number(details.versions[details.versions.length - 1]);
      this.tryIt?.close();
      this.tryPlace.replaceChildren((this.tryIt = new TryIt(details, version)).element);
    } else if (!details.versions?.length) {
      this.asked = "";
      this.tryIt?.close();
      this.tryPlace.replaceChildren();
    }
    if (details.traffic) this.trafficPlace.replaceChildren(trafficCard(this.id, details, () => this.load()));
    this.configPlace.replaceChildren(details.config ? configCard(details.config) : "");
    if (details.may_load) {
      const control = (verb, title) => h("button", { class: "quiet", id: verb, textContent: title, onclick: (event) => busy(event.target, () => this.control(verb)) });
      this.actions.replaceChildren(control("load", details.versions?.length ? "Reload" : "Load"), details.versions?.length ? control("unload", "Unload") : "");
    }
    this.draw();
  }

  async control(verb) {
    this.failure = "";
    try {
      await post(`/v2/repository/models/${encodeURIComponent(this.id)}/${verb}`, {});
    } catch (error) {
      if (error.header) this.store.failed(error);
      this.failure = error.message;
    }
    await this.store.poll();
    await this.load();
  }

  async loadPlan() {
    try {
      const plan = await get("/v2/console/plan");
      this.planPlace.replaceChildren(h("h2", {}, "Where it runs, and why"), ...planOf(plan, this.id, this.store));
    } catch (error) {
      this.planPlace.replaceChildren(h("h2", {}, "Where it runs, and why"), h("p", { class: "soft" }, error.message));
    }
  }

  async showLog() {
    try {
      const { nodes } = await get(`/v2/console/models/${encodeURIComponent(this.id)}/log`);
      const parts = nodes.map(({ node, lines, failed }) => {
        const code = h("ol", { class: "log" }, lines.map((line, place) => h("li", { class: failed.includes(place) ? "failed" : "" }, line)));
        requestAnimationFrame(() => {
          const mark = code.querySelector(".failed:last-of-type") || code.lastElementChild;
          const marks = code.querySelectorAll(".failed"), last = marks[marks.length - 1] || mark;
          if (last) code.scrollTop = last.offsetTop - code.offsetTop - code.clientHeight / 2;
        });
        return h("div", {}, nodes.length > 1 ? h("h3", {}, this.store.nodeName(node)) : null, code);
      });
      this.logPlace.replaceChildren(h("h2", {}, "Log"), ...(parts.length ? parts : [h("p", { class: "soft" }, "Nothing was logged.")]),
        h("div", { class: "again" }, h("button", { class: "quiet small", textContent: "Again", onclick: (event) => busy(event.target, () => this.showLog()) })));
    } catch (error) {
      if (error.header) this.store.failed(error);
      setText(this.logPlace.querySelector("p") || this.logPlace.appendChild(h("p", { class: "soft" })), `The log is not shown: ${error.message}`);
    }
  }

  draw() {
    const followed = this.followed;
    if (!followed) {
      setText(this.title, this.id);
      setText(this.reason, this.store.rows ? "There is no such model." : "");
      return;
    }
    const { row, now, history } = followed;
    document.title = `${row.name} · Eagleray`;
    setText(this.title, row.name);
    const failed = row.state === "UNAVAILABLE" && row.reason !== "unloaded";
    if (failed && !this.logAsked) {
      this.logAsked = true;
      this.reason.after(this.logPlace); // it is what a person has come for
      this.showLog();
    }
    this.chartPlace.hidden = row.state !== "READY" && !row.success;
    setClass(this.state, stateClass(row));
    setText(this.state, stateName(row));
    const trouble = this.failure || (row.state === "READY" && !row.reason ? "" : row.reason) || "";
    setText(this.reason, trouble);
    this.reason.hidden = !trouble;
    const all = this.store.versions(this.id);
    const key = all.map((each) => each.row.version).join() + "/" + row.version;
    if (key !== this.versionsShown) {
      this.versionsShown = key;
      this.versions.replaceChildren(...(all.length > 1 ? all : []).map((each) =>
        h("a", { href: linkTo(each.row), class: "button", "aria-current": each.row.version === row.version ? "true" : null }, "v" + each.row.version)));
    }
    if (this.details && this.shownState !== undefined && this.shownState !== row.state) {
      this.shownState = row.state;
      this.load(); // what can be done has changed with the state
    }
    const clients = (row.latency || []).reduce((sum, each) => sum + each, 0);
    const facts = [
      ["requests", row.success === undefined ? NONE : count(row.success)],
      ["failed", count(row.failed || 0)],
      ["in flight", count(row.in_flight || 0)],
      ["waiting", count(row.pending || 0)],
      ["running", count(row.executing || 0)],
      ["oldest waits", row.oldest_us ? time(row.oldest_us) : NONE],
      ["batch, mean", now?.batch ? count(Math.round(now.batch * 10) / 10) : NONE],
      ["to clients", count(clients)],
      ["errors to clients", count(row.client_errors || 0)],
      ["cache hits", row.cache_hits ? count(row.cache_hits) : NONE],
      ["processes", row.ready === undefined ? NONE : [`${row.ready}`, row.loading ? `+ ${row.loading} loading` : "", row.unready ? `+ ${row.unready} not ready` : ""].filter(Boolean).join(" ")],
      ["backend", row.backend || NONE],
      ["loaded in", row.load_s ? time(row.load_s * 1e6) : NONE],
    ];
    if (!this.factValues) {
      this.factValues = facts.map(([name]) => [h("dt", {}, name), h("dd")]);
      this.facts.append(...this.factValues.map((pair) => h("div", {}, pair)));
    }
    facts.forEach(([, value], place) => setText(this.factValues[place][1], value));
    for (const chart of this.charts) chart.set(history);
    this.batches.set(batchSizes(row.batch_sizes), "batches of");
    setText(this.batchNote, Object.entries(row.batch_reasons || {}).sort((a, b) => b[1] - a[1]).slice(0, 3).map(([name, times]) => `${REASONS[name]}: ${count(times)}`).join(" · "));
    this.graph?.draw();
  }

  close() {
    this.tryIt?.close();
  }
}

/** Returns what the plan says of one model: a table of its deployments, its replicas, and why. */
function planOf(plan, id, store) {
  const rows = plan.deployments.flatMap((each) => each.models.filter((model) => model.name === id).map((model) => [each, model]));
  const parts = rows.map(([each, model]) => {
    const running = plan.replicas.filter(([key]) => key === each.key);
    const alone = each.models.length === 1;
    return h("div", { class: "deployment" },
      h("p", {}, h("b", {}, `Version ${model.version} is ${each.placement}`), `: ${model.why || "as planned"}`),
      h("p", { class: "soft" }, `${each.application} / ${each.deployment} · ${model.instances} instance${model.instances === 1 ? "" : "s"} in each replica`,
        alone ? "" : ` · shared with ${each.models.length - 1} other model versions`, each.needs ? ` · on nodes with ${each.needs}` : "",
        each.autoscaling ? ` · ${each.autoscaling.min_replicas} to ${each.autoscaling.max_replicas} replicas` : ""),
      h("ul", { class: "replicas" }, running.map(([, replica, node, gpus]) =>
        h("li", {}, h("code", {}, replica.slice(-8)), " on ", h("b", {}, store.nodeName(node)), ` with ${each.gpus ? `${percent(each.gpus)} of ${gpusNamed(store.node(node), gpus)}` : `${each.cpus} CPU`}, some ${bytes(each.memory_bytes)}`)),
        running.length ? null : h("li", { class: "soft" }, `no replica runs (${each.replicas} planned)`)));
  });
  for (const model of plan.embedded.filter((each) => each.name === id)) {
    parts.push(h("div", { class: "deployment" }, h("p", {}, h("b", {}, `Version ${model.version} is embedded`), `: ${model.why}`), h("p", { class: "soft" }, "a copy in every ingress")));
  }
  if (plan.unplaced[id]) parts.push(h("p", { class: "error" }, plan.unplaced[id]));
  return parts.length ? parts : [h("p", { class: "soft" }, "It has no place: it is not loaded.")];
}

function configCard(lines) {
  const rows = lines.map(([text, sentence]) => h("tr", {}, h("td", {}, h("code", {}, text)), h("td", {}, sentence)));
  return h("section", { class: "card", id: "config" }, h("h2", {}, "Configuration"),
    h("div", { class: "scroll" }, h("table", { class: "config" }, h("thead", {}, h("tr", {}, h("th", {}, "config.pbtxt, completed"), h("th", {}, "what it does here"))), h("tbody", {}, rows))));
}

/** Returns what has become of the latest canary. */
function canaryLines(canary) {
  const events = (canary.history || []).slice(-6).map((each) =>
    h("li", {}, `v${each.version} at ${each.percent} %: ${each.event}, ${count(each.requests)} requests, ${percent(each.error_rate)} failed, p99 ${each.p99_ms} ms`));
  return h("div", {}, h("h3", {}, `Canary v${canary.version}: ${canary.state}, ${canary.percent} %`), h("ul", { class: "held soft" }, events));
}

/** Returns sliders for the weights of the versions; what they come to is said in percent before it is set. */
function trafficCard(id, details, done) {
  const { traffic, may_shift_traffic: may } = details;
  const versions = details.versions;
  const status = h("span", { class: "soft", role: "status" });
  const fields = versions.map((version) => {
    const slider = h("input", { type: "range", min: 0, max: 100, value: Math.round(100 * (traffic.shares[version] || 0)), disabled: !may, "aria-label": `weight of version ${version}` });
    const share = h("b");
    slider.oninput = () => show();
    return { version, slider, share, element: h("label", { class: "weight" }, h("span", {}, "v" + version), slider, share) };
  });
  function show() {
    const whole = fields.reduce((sum, { slider }) => sum + Number(slider.value), 0);
    for (const { slider, share } of fields) setText(share, whole ? percent(slider.value / whole) : NONE);
    set.disabled = !whole;
  }
  const change = (document) => async (event) => busy(event.target, async () => {
    try {
      await post(`/v2/repository/models/${encodeURIComponent(id)}/traffic`, document());
      await done();
    } catch (error) {
      setText(status, error.message);
    }
  });
  const set = h("button", { class: "primary", id: "set-traffic", textContent: "Set", onclick: change(() => ({ weights: Object.fromEntries(fields.map(({ version, slider }) => [version, Number(slider.value)])) })) });
  const clear = h("button", { class: "quiet", textContent: "As configured", onclick: change(() => ({ clear: true })) });
  const canary = traffic.canary && canaryLines(traffic.canary);
  show();
  return h("section", { class: "card", id: "traffic" }, h("h2", {}, "Traffic of requests that name no version"), fields.map((each) => each.element),
    may ? h("div", { class: "tools" }, set, clear, status) : h("p", { class: "soft" }, "It is changed where the admin API is served."), canary);
}
