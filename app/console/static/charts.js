// Small pictures of numbers, in SVG. Each is made once and then changed.

import { h, svg, setText } from "./dom.js";

/** A line without axes; `set(values)` draws them, the last at the right. */
export function sparkline(width = 96, height = 24) {
  const area = svg("path", { class: "spark-area" }), line = svg("path", { class: "spark-line" });
  const picture = svg("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" }, area, line);
  picture.set = (values) => {
    const shown = values.slice(-60);
    const most = Math.max(...shown, 1e-9);
    const at = (value, place) =>
      `${(width - (shown.length - 1 - place) * (width / 59)).toFixed(1)},${(height - 1.5 - (value / most) * (height - 4)).toFixed(1)}`;
    const path = shown.length > 1 && Math.max(...shown) > 0 ? "M" + shown.map(at).join("L") : "";
    line.setAttribute("d", path);
    const left = (width - (shown.length - 1) * (width / 59)).toFixed(1);
    area.setAttribute("d", path && `${path}L${width},${height}L${left},${height}Z`);
  };
  return picture;
}

/** Two parts of a whole, as a bar. */
export function splitBar() {
  const first = h("i", { class: "queue" }), second = h("i", { class: "compute" });
  const bar = h("span", { class: "split" }, first, second);
  bar.set = (a, b) => {
    const whole = (a || 0) + (b || 0);
    first.style.width = whole ? `${(100 * a) / whole}%` : "0";
    second.style.width = whole ? `${(100 * b) / whole}%` : "0";
  };
  return bar;
}

/** Counts by label, as columns; with `labels` they are written below. */
export function histogram(labels = false) {
  const box = h("span", { class: labels ? "histogram tall" : "histogram", role: "img" });
  let drawn = "";
  box.set = (pairs, what = "") => {
    const key = JSON.stringify(pairs);
    if (key === drawn) return;
    drawn = key;
    const most = Math.max(...pairs.map(([, count]) => count), 1);
    box.replaceChildren(
      ...pairs.map(([label, count]) => {
        const bar = h("i", { title: `${what} ${label}: ${count.toLocaleString("en")}` });
        bar.style.height = `${Math.max(count ? 6 : 0, (100 * count) / most)}%`;
        return labels ? h("span", { class: "column" }, h("span", { class: "well" }, bar), h("small", {}, label)) : bar;
      }),
    );
    box.setAttribute("aria-label", pairs.map(([label, count]) => `${what} ${label}: ${count}`).join(", "));
  };
  return box;
}

/** Returns batch sizes by powers of two, as [[label, count], …]. */
export function batchSizes(sizes) {
  const found = new Map();
  for (const [size, count] of Object.entries(sizes || {})) {
    const power = Math.ceil(Math.log2(Math.max(1, Number(size))));
    found.set(power, (found.get(power) || 0) + count);
  }
  const last = Math.max(0, ...found.keys());
  return Array.from({ length: found.size ? last + 1 : 0 }, (_, power) => {
    const high = 2 ** power, low = power > 1 ? 2 ** (power - 1) + 1 : high;
    return [low === high ? String(high) : `${low}–${high}`, found.get(power) || 0];
  });
}

const WIDTH = 480, HEIGHT = 150, LEFT = 0, BOTTOM = 18, TOP = 12, SECONDS = 120;

function niceMaximum(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 7.5, 10, 15].map((step) => step * power).find((step) => step >= value * 1.02);
}

/** Lines over the last two minutes. `series` are {name, of, kind}; `shown` writes a value. `set(points)` draws. */
export function lineChart(title, series, shown, { stacked = false } = {}) {
  const grid = svg("g", { class: "grid" }), lines = svg("g"), cursor = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  const top = svg("text", { class: "axis", x: 2, y: TOP - 3 }), middle = svg("text", { class: "axis", x: 2, y: (TOP + HEIGHT - BOTTOM) / 2 - 3 });
  for (const y of [TOP, (TOP + HEIGHT - BOTTOM) / 2, HEIGHT - BOTTOM]) grid.append(svg("line", { x1: 0, x2: WIDTH, y1: y, y2: y }));
  for (const [seconds, anchor] of [[120, "start"], [60, "middle"], [0, "end"]]) {
    const label = svg("text", { class: "axis", x: WIDTH * (1 - seconds / SECONDS), y: HEIGHT - 4, "text-anchor": anchor });
    label.textContent = seconds ? `−${seconds} s` : "now";
    grid.append(label);
  }
  const paths = series.map((each) => ({ ...each, area: svg("path", { class: `area ${each.kind}` }), line: svg("path", { class: `line ${each.kind}` }) }));
  for (const path of paths) lines.append(path.area, path.line);
  const values = series.map((each) => h("b"));
  const legend = h("span", { class: "legend" }, series.map((each, place) => h("span", {}, h("i", { class: `key ${each.kind}` }), each.name + " ", values[place])));
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "img" }, grid, lines, top, middle, cursor);
  const figure = h("figure", { class: "card" }, h("figcaption", {}, h("span", {}, title), legend), picture);
  let points = [], over = null;

  const x = (point, now) => LEFT + (WIDTH - LEFT) * (1 - (now - point.atMs) / 1000 / SECONDS);
  function draw() {
    const now = points.length ? points[points.length - 1].atMs : 0;
    const recent = points.filter((point) => now - point.atMs <= SECONDS * 1000);
    const heights = recent.map((point) => paths.map((path) => path.of(point)));
    const whole = (row) => (stacked ? row.reduce((sum, each) => sum + (each || 0), 0) : Math.max(...row.map((each) => each || 0)));
    const most = niceMaximum(Math.max(0, ...heights.map(whole)));
    const y = (value) => HEIGHT - BOTTOM - (value / most) * (HEIGHT - BOTTOM - TOP);
    const drawn = heights.some((row) => row.some(Boolean));
    setText(top, drawn ? shown(most) : "");
    setText(middle, drawn ? shown(most / 2) : "");
    paths.forEach((path, index) => {
      let line = "", area = "", piece = [];
      const end = () => {
        if (piece.length) {
          const ahead = piece.map(([left, high]) => `${left.toFixed(1)},${y(high).toFixed(1)}`).join("L");
          const back = piece.slice().reverse().map(([left, , low]) => `${left.toFixed(1)},${y(low).toFixed(1)}`).join("L");
          line += "M" + ahead;
          area += `M${ahead}L${back}Z`;
        }
        piece = [];
      };
      recent.forEach((point, place) => {
        const value = heights[place][index];
        if (value === null || value === undefined) return end();
        const low = stacked ? heights[place].slice(0, index).reduce((sum, each) => sum + (each || 0), 0) : 0;
        piece.push([x(point, now), low + value, low]);
      });
      end();
      path.line.setAttribute("d", line);
      path.area.setAttribute("d", area);
    });
    const chosen = over === null ? recent[recent.length - 1] : recent.reduce((best, point) =>
      Math.abs(x(point, now) - over) < Math.abs(x(best, now) - over) ? point : best, recent[0]);
    values.forEach((value, index) => setText(value, chosen ? shown(paths[index].of(chosen)) : "–"));
    cursor.setAttribute("visibility", over !== null && chosen ? "visible" : "hidden");
    if (chosen) for (const end of ["x1", "x2"]) cursor.setAttribute(end, x(chosen, now).toFixed(1));
    picture.setAttribute("aria-label", `${title}: ` + series.map((each, index) => `${each.name} ${values[index].textContent}`).join(", "));
  }
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    over = ((event.clientX - box.left) / box.width) * WIDTH;
    draw();
  });
  picture.addEventListener("pointerleave", () => {
    over = null;
    draw();
  });
  figure.set = (given) => {
    points = given;
    draw();
  };
  return figure;
}
