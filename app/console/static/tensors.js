// Values of tensors: as they are typed, as JSON takes them, and as bytes where JSON does not.

const INTEGERS = {
  INT8: [-128, 127], UINT8: [0, 255], INT16: [-32768, 32767], UINT16: [0, 65535],
  INT32: [-(2 ** 31), 2 ** 31 - 1], UINT32: [0, 2 ** 32 - 1], INT64: null, UINT64: null,
};
export const isInteger = (datatype) => datatype in INTEGERS;
export const isHalf = (datatype) => datatype === "FP16" || datatype === "BF16";
export const isText = (datatype) => datatype === "BYTES";

export const size = (shape) => shape.reduce((product, each) => product * each, 1);

/** A tensor cannot be made of what was typed. */
export class ValueError extends Error {}

/**
 * Reads values: JSON, nested or flat, or numbers between commas and spaces; of BYTES one element is
 * the text as it is, and of several each line is one, unless it is a list in JSON. Integers beyond 2^53 stay texts of digits, which `toJson` writes as they are.
 */
export function parseValues(text, datatype, shape) {
  let values;
  const trimmed = text.trim();
  if (isText(datatype)) {
    values = size(shape) === 1 ? [text] : listOf(trimmed) || text.split("\n");
  } else if (datatype === "BOOL") {
    values = words(trimmed).map((word) => {
      if (/^(true|1)$/i.test(word)) return true;
      if (/^(false|0)$/i.test(word)) return false;
      throw new ValueError(`${word} is neither true nor false`);
    });
  } else {
    values = words(trimmed).map((word) => number(word, datatype));
  }
  const wanted = size(shape);
  if (values.length === 1 && wanted > 1) values = Array(wanted).fill(values[0]);
  if (values.length !== wanted) {
    throw new ValueError(`the shape [${shape.join(", ")}] takes ${wanted} values, and there are ${values.length}`);
  }
  return values;
}

/** Returns the texts of a list in JSON, null where that is none: a text may begin with a bracket. */
function listOf(text) {
  if (!text.startsWith("[")) return null;
  try {
    return JSON.parse(text).flat(Infinity).map(String);
  } catch {
    return null;
  }
}

function words(text) {
  return text.split(/[\s,[\]]+/).filter(Boolean);
}

function number(word, datatype) {
  if (isInteger(datatype)) {
    if (!/^[+-]?\d+$/.test(word)) throw new ValueError(`${word} is no whole number`);
    const range = INTEGERS[datatype];
    const value = Number(word);
    if (range && (value < range[0] || value > range[1])) throw new ValueError(`${word} does not fit into ${datatype}`);
    return Number.isSafeInteger(value) ? value : BigInt(word);
  }
  const named = /^([+-]?)(?:inf|infinity)$/i.exec(word);
  const value = named ? Number(named[1] + "Infinity") : Number(word);
  if (Number.isNaN(value) && !/^nan$/i.test(word)) throw new ValueError(`${word} is no number`);
  return value;
}

/** Writes values as JSON as the server reads it: big integers without quotes, NaN and Infinity by name. */
export function toJson(value) {
  if (typeof value === "bigint" || typeof value === "number") return String(value);
  if (Array.isArray(value)) return "[" + value.map(toJson).join(",") + "]";
  if (value !== null && typeof value === "object") {
    return "{" + Object.entries(value).map(([key, each]) => JSON.stringify(key) + ":" + toJson(each)).join(",") + "}";
  }
  return JSON.stringify(value);
}

const ODD = "#number";

/** Reads JSON as the server writes it: with NaN and Infinity by name, and integers beyond 2^53, which become a BigInt. */
export function fromJson(text) {
  const marked = text.replace(/"[^"\\]*(?:\\.[^"\\]*)*"|-?Infinity|NaN|-?\d[\d.eE+-]*/g, (token) => {
    const plain = token[0] === '"' || (/\d/.test(token) && (!/^-?\d{16,}$/.test(token) || Number.isSafeInteger(Number(token))));
    return plain ? token : `{"${ODD}":"${token}"}`;
  });
  return JSON.parse(marked, (_, value) => {
    const token = value?.[ODD];
    return token === undefined ? value : /\d/.test(token) ? BigInt(token) : Number(token);
  });
}

/** Returns the 16 bits of a half float, rounded to the nearest. */
export function halfBits(value, datatype) {
  const view = new DataView(new ArrayBuffer(4));
  view.setFloat32(0, value);
  const bits = view.getUint32(0);
  if (datatype === "BF16") return (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16;
  const sign = (bits >>> 16) & 0x8000, exponent = ((bits >>> 23) & 0xff) - 112, mantissa = bits & 0x7fffff;
  if (exponent >= 31) return sign | 0x7c00 | (exponent === 143 && mantissa ? 0x200 : 0);
  if (exponent <= 0) {
    if (exponent < -10) return sign;
    const shift = 14 - exponent, whole = mantissa | 0x800000;
    return sign | ((whole + (1 << (shift - 1)) - 1 + ((whole >>> shift) & 1)) >>> shift);
  }
  return sign + ((exponent << 10) + ((mantissa + 0xfff + ((mantissa >>> 13) & 1)) >>> 13));
}

export function halfValue(bits, datatype) {
  const sign = bits & 0x8000 ? -1 : 1;
  if (datatype === "BF16") {
    const view = new DataView(new ArrayBuffer(4));
    view.setUint32(0, bits << 16);
    return view.getFloat32(0);
  }
  const exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  if (exponent === 31) return mantissa ? NaN : sign * Infinity;
  return sign * (exponent ? (1 + mantissa / 1024) * 2 ** (exponent - 15) : (mantissa / 1024) * 2 ** -14);
}

/** Returns half floats as the bytes of a request. */
export function halfBytes(values, datatype) {
  const view = new DataView(new ArrayBuffer(2 * values.length));
  values.forEach((value, place) => view.setUint16(2 * place, halfBits(Number(value), datatype), true));
  return new Uint8Array(view.buffer);
}

/** How an image may lie in a tensor of this shape: channels and where they are, or null. */
export function imageLayout(shape, datatype) {
  if (isText(datatype) || datatype === "BOOL" || datatype === "INT64" || datatype === "UINT64") return null;
  const inner = shape.length > 1 && shape[0] === 1 ? shape.slice(1) : shape;
  const channel = (each) => each === 1 || each === 3 || each === 4;
  if (inner.length === 3 && channel(inner[0]) && inner[1] > 1) return { channels: inner[0], height: inner[1], width: inner[2], first: true };
  if (inner.length === 3 && channel(inner[2]) && inner[0] > 1) return { channels: inner[2], height: inner[0], width: inner[1], first: false };
  if (inner.length === 2 && inner[0] > 3 && inner[1] > 3) return { channels: 1, height: inner[0], width: inner[1], first: true };
  const side = inner.length === 1 ? Math.sqrt(inner[0]) : 0;
  if (Number.isInteger(side) && side >= 4) return { channels: 1, height: side, width: side, first: true };
  return null;
}

export const SCALES = {
  "0 to 1": (value) => value / 255,
  "−1 to 1": (value) => value / 127.5 - 1,
  "0 to 255": (value) => value,
  ImageNet: (value, channel) => (value / 255 - [0.485, 0.456, 0.406][channel % 3]) / [0.229, 0.224, 0.225][channel % 3],
};

/** Returns the values of a tensor from the pixels of a canvas. */
export function fromPixels(pixels, layout, datatype, scale) {
  const { channels, width, height, first } = layout, values = new Array(channels * width * height);
  const of = isInteger(datatype) ? (value) => Math.round(value) : SCALES[scale];
  for (let place = 0; place < width * height; place++) {
    const [r, g, b, a] = pixels.slice(4 * place, 4 * place + 4);
    const parts = channels === 1 ? [0.299 * r + 0.587 * g + 0.114 * b] : [r, g, b, a];
    for (let channel = 0; channel < channels; channel++) {
      const value = of(parts[channel], channel);
      values[first ? channel * width * height + place : place * channels + channel] = Math.round(value * 1e6) / 1e6;
    }
  }
  return values;
}
