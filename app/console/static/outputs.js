// What a model answered, as numbers, text, bars or an image: the one that fits best is shown first.

import { h } from "./dom.js";
import { halfValue, imageLayout, isHalf, isText, size } from "./tensors.js";

const SHOWN_NUMBERS = 400, SHOWN_BARS = 12, SHOWN_TEXT = 20_000;

/** Reads an answer with tensors in binary behind its JSON; returns outputs with `data`. */
export function readOutputs(document, rest) {
  let at = 0;
  return document.outputs.map((output) => {
    const bytes = output.parameters?.binary_data_size;
    if (bytes === undefined) return output;
    const view = new DataView(rest, at, bytes);
    at += bytes;
    const data = isHalf(output.datatype)
      ? Array.from({ length: bytes / 2 }, (_, place) => halfValue(view.getUint16(2 * place, true), output.datatype))
      : [];
    return { ...output, data };
  });
}

/** Returns the least and the greatest of the values that are finite: of any number of them, as arguments of a function cannot be. */
function extent(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (!Number.isFinite(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : [0, 0];
}

function short(value) {
  if (typeof value !== "number" || Number.isInteger(value) || !Number.isFinite(value)) return String(value);
  return Math.abs(value) >= 1e5 || Math.abs(value) < 1e-4 ? value.toExponential(4) : String(Math.round(value * 1e5) / 1e5);
}

function numbers(output) {
  const flat = output.data.flat(Infinity);
  const columns = output.shape.length > 1 ? output.shape[output.shape.length - 1] : flat.length;
  const rows = [];
  if (output.shape.length > 1 && columns <= 16) {
    for (let at = 0; at < Math.min(flat.length, SHOWN_NUMBERS); at += columns) {
      rows.push(h("tr", {}, flat.slice(at, at + columns).map((value) => h("td", {}, short(value)))));
    }
  }
  const shown = rows.length ? h("table", { class: "values" }, h("tbody", {}, rows)) : h("pre", {}, flat.slice(0, SHOWN_NUMBERS).map(short).join("  "));
  const left = flat.length - SHOWN_NUMBERS;
  return h("div", {}, shown, left > 0 ? h("p", { class: "soft" }, `and ${left.toLocaleString("en")} more`) : null);
}

function text(output) {
  return h("div", {}, output.data.flat(Infinity).slice(0, 100).map((each) => h("pre", { class: "answer-text" }, String(each).slice(0, SHOWN_TEXT))));
}

function bars(output) {
  const flat = output.data.flat(Infinity), values = flat.map(Number);
  const per = output.shape[output.shape.length - 1];
  const row = values.slice(0, per);
  const rank = (value) => (Number.isNaN(value) ? -Infinity : value);
  const best = row.map((value, place) => [place, value]).sort((a, b) => rank(b[1]) - rank(a[1]) || 0).slice(0, SHOWN_BARS);
  const chosen = per <= SHOWN_BARS ? row.map((value, place) => [place, value]) : best;
  const [low, high] = extent(row), most = Math.max(-low, high, 1e-12);
  const lines = chosen.map(([place, value]) => {
    const bar = h("i", { class: value < 0 ? "negative" : "" });
    bar.style.width = `${Math.min(100, (100 * Math.abs(value)) / most) || 0}%`;
    return h("li", { class: place === best[0][0] ? "best" : "" }, h("span", {}, String(place)), h("span", { class: "track" }, bar), h("b", {}, short(flat[place])));
  });
  const left = per - chosen.length;
  return h("div", {}, h("ol", { class: "bars" }, lines), left > 0 ? h("p", { class: "soft" }, `the highest ${chosen.length} of ${per.toLocaleString("en")}`) : null);
}

function image(output, layout) {
  const flat = output.data.flat(Infinity).map(Number), plane = layout.width * layout.height;
  const [low, high] = extent(flat.slice(0, plane * layout.channels));
  const [from, to] = low >= 0 && high <= 1 ? [0, 1] : low >= 0 && high <= 255 ? [0, 255] : [low, high];
  const canvas = h("canvas", { width: layout.width, height: layout.height, class: "pixels", role: "img", "aria-label": `${output.name} as an image` });
  const pixels = new ImageData(layout.width, layout.height);
  for (let place = 0; place < plane; place++) {
    for (let channel = 0; channel < 3; channel++) {
      const own = layout.channels === 1 ? 0 : channel;
      const value = flat[layout.first ? own * plane + place : place * layout.channels + own];
      pixels.data[4 * place + channel] = (255 * (value - from)) / (to - from || 1);
    }
    pixels.data[4 * place + 3] = 255;
  }
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return canvas;
}

/** Returns an output with a choice of ways to look at it. */
export function showOutput(output) {
  const ways = [];
  const per = output.shape[output.shape.length - 1] || 0;
  const layout = imageLayout(output.shape, output.datatype);
  const numeric = !isText(output.datatype) && output.datatype !== "BOOL";
  if (isText(output.datatype)) ways.push(["Text", () => text(output)]);
  if (numeric && layout && size(output.shape) >= 192) ways.push(["Image", () => image(output, layout)]);
  if (numeric && per > 1 && output.shape.slice(0, -1).every((each) => each === 1)) ways.push(["Bars", () => bars(output)]);
  ways.push(["Numbers", () => numbers(output)]);
  if (numeric && layout && size(output.shape) < 192) ways.push(["Image", () => image(output, layout)]);
  const place = h("div", { class: "shown" });
  const buttons = ways.map(([name, show]) => h("button", { textContent: name, onclick: () => choose(name, show) }));
  function choose(name, show) {
    place.replaceChildren(show());
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.textContent === name));
  }
  choose(...ways[0]);
  return h(
    "section",
    { class: "output", dataset: { output: output.name } },
    h("header", {}, h("b", {}, output.name), h("code", { class: "type" }, `${output.datatype} [${output.shape.join(", ")}]`),
      buttons.length > 1 ? h("span", { class: "segments small" }, buttons) : null),
    place,
  );
}
