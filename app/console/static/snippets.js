// The request that was sent, as a line of curl and as Python: both must work where they are pasted.

import { isHalf, toJson } from "./tensors.js";

const INLINE = 6000;
const NUMPY = {
  BOOL: "bool", INT8: "int8", INT16: "int16", INT32: "int32", INT64: "int64", UINT8: "uint8", UINT16: "uint16",
  UINT32: "uint32", UINT64: "uint64", FP16: "float16", BF16: "float32", FP32: "float32", FP64: "float64", BYTES: "object",
};

/** Returns a word of a POSIX shell. */
export function shellWord(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : "'" + text.replaceAll("'", "'\\''") + "'";
}

/** Returns a literal of Python. */
export function pythonText(text) {
  return JSON.stringify(text).replace(/[\u007f-\uffff]/g, (unit) => "\\u" + unit.charCodeAt(0).toString(16).padStart(4, "0"))
    .replace(/\\u(d[89ab]..)\\u(d[c-f]..)/g, (_, high, low) =>
      "\\U" + (0x10000 + ((parseInt(high, 16) & 0x3ff) << 10) + (parseInt(low, 16) & 0x3ff)).toString(16).padStart(8, "0"));
}

/** Which header stands for a key in what is shown: its name, and the environment variable that has the value. */
function shownHeaders(headers) {
  return Object.keys(headers).map((name) => [name, name === "authorization" ? "Bearer $EAGLERAY_CLIENT_KEY" : "$EAGLERAY_HEADER"]);
}

/** A file that goes with the snippet, where the request is too long for a line or has bytes; null without one. */
export function requestFile(request) {
  if (request.bytes) return "request.bin";
  return request.json.length > INLINE ? "request.json" : null;
}

/** `request` is {origin, path, json, bytes, headers}. */
export function curlLine(request) {
  const file = requestFile(request);
  const words = ["curl", "-s", shellWord(request.origin + request.path)];
  for (const [name, value] of shownHeaders(request.headers)) words.push("-H", `"${name}: ${value}"`);
  if (request.bytes) words.push("-H", shellWord("Inference-Header-Content-Length: " + request.json.length));
  words.push(file ? "--data-binary @" + file : "-d " + shellWord(request.json));
  if (request.binaryOutput) words.push("--output answer.bin");
  return words.join(" ");
}

/** `inputs` are {name, datatype, shape, data}; `origin` is the server's. */
export function pythonLines(request) {
  const { model, version, inputs, outputs } = request;
  const file = request.json.length > INLINE && !inputs.some((each) => isHalf(each.datatype)) ? requestFile(request) : null;
  const secure = request.origin.startsWith("https:");
  const headers = shownHeaders(request.headers);
  const lines = [];
  if (file) lines.push("import json");
  if (headers.length) lines.push("import os");
  if (file || headers.length) lines.push("");
  lines.push("import numpy as np", "import tritonclient.http as triton", "");
  const host = request.origin.replace(/^https?:\/\//, "");
  lines.push(`client = triton.InferenceServerClient(${pythonText(host)}${secure ? ", ssl=True" : ""})`);
  if (file) lines.push(`sent = {each["name"]: each["data"] for each in json.load(open("${file}"))["inputs"]}`);
  lines.push("inputs = []");
  for (const input of inputs) {
    const shape = `[${input.shape.join(", ")}]`, type = NUMPY[input.datatype];
    const values = file ? `sent[${pythonText(input.name)}]` : pythonValues(input);
    lines.push(`array = np.array(${values}, dtype=np.${type === "object" ? "object_" : type === "bool" ? "bool_" : type}).reshape(${shape})`);
    lines.push(`inputs.append(triton.InferInput(${pythonText(input.name)}, ${shape}, "${input.datatype}"))`);
    lines.push("inputs[-1].set_data_from_numpy(array)");
  }
  const more = [pythonText(model), "inputs"];
  if (version) more.push(`model_version="${version}"`);
  if (headers.length) {
    const shown = headers.map(([name]) => name === "authorization"
      ? `"authorization": "Bearer " + os.environ["EAGLERAY_CLIENT_KEY"]`
      : `${pythonText(name)}: os.environ["EAGLERAY_HEADER"]`);
    more.push(`headers={${shown.join(", ")}}`);
  }
  const sequence = request.parameters;
  if (sequence) more.push(`sequence_id=${sequence.sequence_id}`, "sequence_start=True", "sequence_end=True");
  lines.push(`result = client.infer(${more.join(", ")})`);
  for (const output of outputs) lines.push(`print(${pythonText(output)}, result.as_numpy(${pythonText(output)}))`);
  return lines.join("\n") + "\n";
}

function pythonValues(input) {
  const values = input.data;
  const first = values[0];
  if (values.length > 16 && values.every((each) => each === first)) return `[${pythonValue(first)}] * ${values.length}`;
  return "[" + values.map(pythonValue).join(", ") + "]";
}

function pythonValue(value) {
  if (typeof value === "string") return pythonText(value) + ".encode()";
  if (value === true) return "True";
  if (value === false) return "False";
  if (value === Infinity || value === -Infinity || Number.isNaN(value)) return `float("${String(value).replace("Infinity", "inf")}")`;
  return toJson(value);
}
