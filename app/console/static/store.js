// Follows the server's state, and makes rates and quantiles of the differences between what it counts.

import { get } from "./api.js";

const POLL_MS = 1000;
const AWAY_MS = 5000;
const KEPT = 120;
const WINDOW_MS = 10_000;
const SET_BACK_MS = 60_000; // no ingress gives out a state that is as old
const SUMS = ["success", "failed", "queue_us", "compute_us", "request_us", "computed", "batches",
  "inferences", "cache_hits"];

/** Returns the quantile of counts by bucket in microseconds, by interpolation; null without any. */
export function quantile(counts, bounds, share) {
  const total = counts.reduce((sum, each) => sum + each, 0);
  if (!total) return null;
  let left = share * total;
  for (let place = 0; place < counts.length; place++) {
    if (left <= counts[place] && counts[place]) {
      const low = place ? bounds[place - 1] : 0;
      const high = place < bounds.length ? bounds[place] : 2 * bounds[bounds.length - 1];
      return low + ((high - low) * left) / counts[place];
    }
    left -= counts[place];
  }
  return bounds[bounds.length - 1];
}

/** Returns whether no counter of a row is less than it was; one that fell was begun anew, or counted elsewhere. */
function grown(now, before) {
  const counts = now.latency || [];
  return SUMS.every((name) => (now[name] || 0) >= (before[name] || 0)) &&
    (before.latency || []).every((count, place) => (counts[place] || 0) >= count);
}

/** Returns what was counted between two rows of which the later has grown. */
function difference(now, before) {
  const past = before.latency || [];
  const found = { latency: (now.latency || []).map((count, place) => count - (past[place] || 0)) };
  for (const name of SUMS) found[name] = (now[name] || 0) - (before[name] || 0);
  return found;
}

/** One model version over the last two minutes. */
class Followed {
  constructor(row) {
    this.row = row;
    this.snapshots = [];
    this.history = [];
    this.now = null;
  }

  /** Takes the next row; where it cannot be compared with the one before, nothing is counted and the window begins anew. */
  take(row, atMs, bounds, comparable) {
    const last = this.snapshots[this.snapshots.length - 1];
    this.row = row;
    if (last && !(comparable && grown(row, last.row))) this.snapshots = [];
    this.snapshots.push({ row, atMs });
    while (this.snapshots.length > 2 && atMs - this.snapshots[1].atMs >= WINDOW_MS) this.snapshots.shift();
    if (!last) return;
    const seconds = (atMs - last.atMs) / 1000, first = this.snapshots[0];
    const step = difference(row, this.snapshots.length > 1 ? last.row : row);
    const window = difference(row, first.row);
    const point = {
      atMs,
      rate: step.success / seconds,
      clients: step.latency.reduce((sum, each) => sum + each, 0) / seconds,
      errors: step.failed / seconds,
      p50: quantile(window.latency, bounds, 0.5),
      p99: quantile(window.latency, bounds, 0.99),
      queue: window.success ? window.queue_us / window.success : null,
      compute: window.computed ? window.compute_us / window.computed : null,
      request: window.success ? window.request_us / window.success : null,
      batch: window.batches ? window.inferences / window.batches : null,
      inFlight: row.in_flight || 0,
      pending: row.pending || 0,
      latency: window.latency,
      success: window.success,
      failed: window.failed,
    };
    this.now = point;
    this.history.push(point);
    if (this.history.length > KEPT) this.history.shift();
  }
}

/** Which nodes a state has the counts of, dead ones too: another ingress may know of fewer. */
const nodeIds = (state) => state.nodes.map((node) => node.id).sort().join();

export class Store extends EventTarget {
  constructor() {
    super();
    this.state = null;
    this.models = new Map();
    this.totals = [];
    this.error = null;
    this._timer = 0;
    this._asking = false;
    document.addEventListener("visibilitychange", () => document.hidden || this.poll());
  }

  /** Asks now, and then every second; a page that nobody looks at asks seldom. */
  async poll() {
    clearTimeout(this._timer);
    if (this._asking) return;
    this._asking = true;
    const began = performance.now();
    try {
      this._take(await get("/v2/console/state"));
      this.error = null;
    } catch (error) {
      this.error = error;
    }
    this._asking = false;
    this.dispatchEvent(new Event("change"));
    const pause = (document.hidden || this.error ? AWAY_MS : POLL_MS) - (performance.now() - began);
    this._timer = setTimeout(() => this.poll(), Math.max(200, pause));
  }

  _take(state) {
    const older = this.state ? this.state.at_ms - state.at_ms : -1;
    if (older >= SET_BACK_MS) this._forget(); // the server's clock was set back
    else if (older >= 0) return; // of another ingress, or the same again
    const nodes = nodeIds(state), comparable = this.state !== null && nodes === nodeIds(this.state);
    this.state = state;
    const seen = new Set();
    const merged = [];
    const total = { clients: 0, errors: 0, inFlight: 0, pending: 0, latency: [], atMs: state.at_ms };
    for (const row of state.models) {
      const key = row.id + "/" + row.version;
      seen.add(key);
      let followed = this.models.get(key);
      if (!followed) this.models.set(key, (followed = new Followed(row)));
      followed.take(row, state.at_ms, state.bounds_us, comparable);
      merged.push(followed);
      if (!followed.now) continue;
      for (const name of ["clients", "errors", "inFlight", "pending"]) total[name] += followed.now[name];
      followed.now.latency.forEach((count, place) => (total.latency[place] = (total.latency[place] || 0) + count));
    }
    for (const key of this.models.keys()) if (!seen.has(key)) this.models.delete(key);
    this.rows = merged;
    total.latency = Array.from(total.latency, (count) => count || 0);
    total.p50 = quantile(total.latency, state.bounds_us, 0.5);
    total.p99 = quantile(total.latency, state.bounds_us, 0.99);
    if (this.totals.push(total) > KEPT) this.totals.shift();
  }

  _forget() {
    this.state = null;
    this.models.clear();
    this.totals = [];
  }

  /** Returns the versions of a model, followed, in order. */
  versions(id) {
    return (this.rows || []).filter((each) => each.row.id === id);
  }
}
