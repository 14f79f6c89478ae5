// A form made from a model's metadata: it sends a real request, shows the answer, and how to ask the same elsewhere.

import { busy, copyButton, h, setText } from "./dom.js";
import { givenHeaders, modelPath, send } from "./api.js";
import { time } from "./format.js";
import { readOutputs, showOutput } from "./outputs.js";
import { curlLine, pythonLines, requestFile } from "./snippets.js";
import { fromJson, fromPixels, halfBytes, imageLayout, isHalf, isInteger, isText, parseValues, SCALES, size, toJson, ValueError } from "./tensors.js";

const MAX_ELEMENTS = 4 << 20;
const VARIABLE_IMAGE = 224;

/** One input: its shape, and values that are typed, made or taken from an image. */
class InputField {
  constructor(tensor) {
    this.tensor = tensor;
    this.values = null; // of an image
    this.dims = tensor.shape.map((dim, place) =>
      dim >= 0
        ? h("span", { class: "dim" }, String(dim))
        : h("input", { class: "dim", type: "number", min: 0, value: 1, "aria-label": `${tensor.name}: dimension ${place + 1}`, oninput: () => this.shapeChanged() }));
    this.text = h("textarea", { class: "values", spellcheck: false, rows: isText(tensor.datatype) ? 2 : 3, "aria-label": `${tensor.name}: values` });
    this.text.value = isText(tensor.datatype) ? "" : tensor.datatype === "BOOL" ? "false" : "0";
    this.text.placeholder = isText(tensor.datatype) ? "a text; each line is an element where there are several" : "1, 2, 3 or JSON; one value fills the tensor";
    this.use = h("input", { type: "checkbox", checked: !tensor.optional, "aria-label": `send ${tensor.name}` });
    this.file = h("input", { type: "file", accept: "image/*", "aria-label": `${tensor.name}: image`, onchange: () => this.takeFile() });
    this.scale = h("select", { "aria-label": `${tensor.name}: scale of pixels`, onchange: () => this.drawn && this.takePixels() }, Object.keys(SCALES).map((name) => h("option", {}, name)));
    this.canvas = h("canvas", { class: "pixels", hidden: true, role: "img", "aria-label": "the image as the model gets it" });
    this.note = h("small", { class: "soft" });
    const tools = [h("button", { class: "quiet small", textContent: "Zeros", onclick: () => this.fill(() => 0) }),
      h("button", { class: "quiet small", textContent: "Random", onclick: () => this.fill(Math.random) })];
    this.imageTools = h("span", { class: "image-tools" }, h("label", { class: "button quiet small" }, "Image…", this.file), isInteger(tensor.datatype) ? null : this.scale);
    this.element = h(
      "fieldset",
      { class: "input", dataset: { input: tensor.name } },
      h("legend", {}, tensor.optional ? this.use : null, h("b", {}, tensor.name), h("code", { class: "type" }, tensor.datatype),
        h("span", { class: "dims" }, "[", this.dims, "]"), tensor.optional ? h("small", { class: "soft" }, "optional") : null),
      this.text,
      this.canvas,
      h("div", { class: "tools" }, isText(tensor.datatype) ? h("label", { class: "button quiet small" }, "File…", this.textFile()) : tools, this.imageTools, this.note),
    );
    this.text.oninput = () => this.typed();
    this.shapeChanged();
  }

  textFile() {
    const file = h("input", { type: "file", "aria-label": `${this.tensor.name}: file` });
    file.onchange = async () => (this.text.value = await file.files[0].text());
    return file;
  }

  get shape() {
    return this.tensor.shape.map((dim, place) => (dim >= 0 ? dim : Math.max(0, Math.floor(Number(this.dims[place].value) || 0))));
  }

  get datatype() {
    return this.tensor.datatype;
  }

  /** Where an image goes: dimensions that are free become those of a usual image. */
  get layout() {
    const shape = this.tensor.shape, free = shape.map((dim, place) => dim < 0 && place > 0);
    if (shape.length >= 3 && free.some(Boolean)) {
      return imageLayout(shape.map((dim, place) => (dim >= 0 ? dim : place === 0 ? 1 : Math.max(2, Number(this.dims[place].value) || 0))), this.datatype)
        || imageLayout(shape.map((dim, place) => (dim >= 0 ? dim : place === 0 ? 1 : VARIABLE_IMAGE)), this.datatype);
    }
    return imageLayout(this.shape, this.datatype);
  }

  shapeChanged() {
    this.imageTools.hidden = !this.layout;
    setText(this.note, "");
  }

  typed() {
    this.values = null;
    this.canvas.hidden = true;
    this.drawn = null;
  }

  fill(make) {
    this.typed();
    const whole = isInteger(this.datatype), count = size(this.shape);
    if (make() === 0 || count > 20_000) {
      this.text.value = make === Math.random ? "" : this.datatype === "BOOL" ? "false" : "0";
      if (make === Math.random) this.values = Array.from({ length: Math.min(count, MAX_ELEMENTS) }, () => this.random(whole));
      setText(this.note, this.values ? `${count.toLocaleString("en")} random values` : "");
      return;
    }
    this.text.value = Array.from({ length: count }, () => String(this.random(whole))).join(", ");
  }

  random(whole) {
    if (this.datatype === "BOOL") return Math.random() < 0.5;
    return whole ? Math.floor(Math.random() * 10) : Math.round(Math.random() * 1e4) / 1e4;
  }

  async takeFile() {
    const file = this.file.files[0];
    if (!file) return;
    try {
      this.drawn = await createImageBitmap(file);
    } catch {
      setText(this.note, `${file.name} is no image that this browser can read`);
      return;
    }
    this.takePixels();
    setText(this.note, `${file.name}, ${this.drawn.width} × ${this.drawn.height}, becomes ${this.canvas.width} × ${this.canvas.height}`);
    this.file.value = "";
  }

  takePixels() {
    const layout = this.layout;
    const place = Math.max(0, this.tensor.shape.length - 3);
    if (this.tensor.shape.length >= 3)
    [layout.first ? null : layout.height, layout.first ? layout.height : layout.width, layout.first ? layout.width : null].forEach((length, at) => {
      const dim = this.dims[place + at];
      if (length && dim && dim.tagName === "INPUT") dim.value = length;
    });
    this.canvas.width = layout.width;
    this.canvas.height = layout.height;
    const context = this.canvas.getContext("2d", { willReadFrequently: true });
    context.fillStyle = "#000";
    context.fillRect(0, 0, layout.width, layout.height);
    context.drawImage(this.drawn, 0, 0, layout.width, layout.height);
    const pixels = context.getImageData(0, 0, layout.width, layout.height).data;
    this.values = fromPixels(pixels, layout, this.datatype, this.scale.value);
    this.canvas.hidden = false;
    this.text.value = "";
  }

  /** Returns the input as it is sent, null when it is left out. */
  read() {
    if (this.tensor.optional && !this.use.checked) return null;
    const shape = this.shape;
    try {
      if (size(shape) > MAX_ELEMENTS) throw new ValueError("that is too large for a page: use a client");
      if (this.values && this.values.length !== size(shape)) throw new ValueError("the shape has changed: choose the values again");
      const data = this.values || parseValues(this.text.value, this.datatype, shape);
      this.element.classList.remove("wrong");
      return { name: this.tensor.name, datatype: this.datatype, shape, data };
    } catch (error) {
      if (!(error instanceof ValueError)) throw error;
      this.element.classList.add("wrong");
      this.text.focus();
      throw new ValueError(`${this.tensor.name}: ${error.message}`);
    }
  }
}

export class TryIt {
  constructor(details, version) {
    this.details = details;
    this.version = version;
    this.fields = details.inputs.map((tensor) => new InputField(tensor));
    this.button = h("button", { class: "primary", textContent: "Send", id: "send", onclick: () => busy(this.button, () => this.send()) });
    this.under = null; // the request that is under way, to be aborted
    this.stop = h("button", { class: "quiet", textContent: "Stop", id: "stop", hidden: true, onclick: () => this.close() });
    this.pinned = h("input", { type: "checkbox", id: "pin" });
    this.status = h("span", { class: "soft", role: "status" });
    this.result = h("div", { class: "result" });
    this.snippets = h("div", { class: "snippets" });
    const note = details.decoupled
      ? h("p", { class: "note" }, "This model may answer many times: here, by generate_stream, each answer is shown as it comes.")
      : details.sequences ? h("p", { class: "note" }, "This model keeps sequences: each request here is a sequence of its own, its start and its end.") : null;
    this.element = h(
      "section",
      { class: "card try", id: "try", "aria-labelledby": "try-title" },
      h("h2", { id: "try-title" }, "Try it"),
      note,
      h("div", { class: "columns" },
        h("div", { class: "form" }, this.fields.map((field) => field.element),
          h("div", { class: "tools" }, this.button, this.stop, details.versions.length > 1 ? h("label", { class: "soft" }, this.pinned, ` this version (${version}) only`) : null, this.status)),
        h("div", {}, this.result, this.snippets)),
    );
    this.element.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.button.click();
    });
  }

  async send() {
    this.snippets.replaceChildren(); // those of the request before
    const { signal } = (this.under = new AbortController());
    this.stop.hidden = false;
    try {
      const inputs = this.fields.map((field) => field.read()).filter(Boolean);
      await (this.details.decoupled ? this.stream(inputs, signal) : this.infer(inputs, signal));
    } catch (error) {
      if (signal.aborted) return setText(this.status, "stopped");
      this.result.replaceChildren(h("p", { class: "error", role: "alert" }, error.status ? `${error.message} (${error.status})` : error.message));
      setText(this.status, "");
    } finally {
      this.stop.hidden = true;
    }
  }

  /** Ends the request that is under way: the server hears of it, and has the model end. */
  close() {
    this.under?.abort();
  }

  request(inputs) {
    const version = this.pinned.checked ? this.version : 0, path = modelPath(this.details.name, version);
    const halfs = inputs.filter((each) => isHalf(each.datatype));
    const described = inputs.map(({ name, datatype, shape, data }) =>
      isHalf(datatype) ? { name, datatype, shape, parameters: { binary_data_size: 2 * data.length } } : { name, datatype, shape, data });
    const binaryOutput = this.details.outputs.some((each) => isHalf(each.datatype));
    const document = { inputs: described };
    if (this.details.sequences) document.parameters = { sequence_id: 1 + Math.floor(Math.random() * 2 ** 31), sequence_start: true, sequence_end: true };
    if (binaryOutput) document.outputs = this.details.outputs.map(({ name, datatype }) => ({ name, parameters: { binary_data: isHalf(datatype) } }));
    const json = toJson(document);
    const bytes = halfs.length ? new Blob(halfs.map((each) => halfBytes(each.data, each.datatype))) : null;
    return {
      origin: location.origin, path: path + "/infer", json: new TextEncoder().encode(json).length === json.length ? json : asciiJson(json),
      bytes, binaryOutput, inputs, model: this.details.name, version, outputs: this.details.outputs.map((each) => each.name),
      parameters: document.parameters, headers: givenHeaders(),
    };
  }

  async infer(inputs, signal) {
    const request = this.request(inputs);
    const more = request.bytes ? { "Inference-Header-Content-Length": String(request.json.length) } : {};
    const body = request.bytes ? new Blob([request.json, request.bytes]) : request.json;
    const began = performance.now();
    const response = await send("POST", request.path, body, more, signal);
    const content = await response.arrayBuffer();
    setText(this.status, `${response.status} in ${time(1000 * (performance.now() - began))}`);
    const length = Number(response.headers.get("Inference-Header-Content-Length") || content.byteLength);
    const answer = new TextDecoder().decode(content.slice(0, length)), document = fromJson(answer);
    const outputs = readOutputs(document, content.slice(length));
    const raw = h("details", {}, h("summary", {}, "JSON"), h("pre", {}, answer.slice(0, 20_000)));
    this.result.replaceChildren(
      h("p", { class: "soft" }, `${document.model_name} version ${document.model_version}`), ...outputs.map(showOutput), raw);
    this.showSnippets(request, body);
  }

  /** Asks a decoupled model: JSON goes in by the names of its inputs, and answers come as events. */
  async stream(inputs, signal) {
    const path = modelPath(this.details.name, this.pinned.checked ? this.version : 0) + "/generate_stream";
    const json = toJson(Object.fromEntries(inputs.map(({ name, data }) => [name, data.length === 1 ? data[0] : data])));
    const list = h("ol", { class: "stream" }), began = performance.now();
    this.result.replaceChildren(list);
    const response = await send("POST", path, json, {}, signal);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "", count = 0;
    for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
      const events = (rest + piece.value).split("\n\n");
      rest = events.pop();
      for (const event of events) if (count++ < 500) list.append(h("li", {}, h("code", {}, event.replace(/^data: ?/, ""))));
    }
    setText(this.status, `${count} answers in ${time(1000 * (performance.now() - began))}`);
    const request = { origin: location.origin, path, json, bytes: null, headers: givenHeaders() };
    this.snippets.replaceChildren(snippet("curl", curlLine(request)));
  }

  showSnippets(request, body) {
    const file = requestFile(request);
    const save = file && h("a", { class: "button quiet small", download: file, href: URL.createObjectURL(new Blob([body])) }, `Save ${file}`);
    this.snippets.replaceChildren(
      h("p", { class: "soft" }, "The same elsewhere", file ? ", beside the file of the request: " : ":", save || ""),
      snippet("curl", curlLine(request)), snippet("Python", pythonLines(request)));
  }
}

/** Writes JSON with every character beyond ASCII escaped, so that its length in bytes is that in characters. */
function asciiJson(json) {
  return json.replace(/[\u007f-\uffff]/g, (unit) => "\\u" + unit.charCodeAt(0).toString(16).padStart(4, "0"));
}

function snippet(name, text) {
  return h("details", { class: "snippet", open: true, dataset: { snippet: name } },
    h("summary", {}, name, copyButton(() => text)), h("pre", {}, h("code", {}, text)));
}
