// Asks the server, with a key where it wants one. Keys stay in this tab: in its session storage, and nowhere else.

const STORED = "eagleray-headers";
const GET_MS = 20_000;
let headers = {};
try {
  headers = JSON.parse(sessionStorage.getItem(STORED) || "{}");
} catch {
  headers = {};
}

/** An answer that is an error; `header` is the one that the server asked for, "" when it wants none. */
export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
    const restricted = /expecting header '([^']+)'/.exec(message);
    this.header = restricted ? restricted[1] : status === 401 ? "authorization" : "";
  }
}

export function setHeader(name, value) {
  if (value) headers[name] = value;
  else delete headers[name];
  sessionStorage.setItem(STORED, JSON.stringify(headers));
}

export const givenHeaders = () => ({ ...headers });
export const hasKey = () => Object.keys(headers).length > 0;

export function forgetKeys() {
  headers = {};
  sessionStorage.removeItem(STORED);
}

/** Sends a request; returns the response, which is a good one. What `signal` aborts ends with an `AbortError`. */
export async function send(method, path, body, more = {}, signal = null) {
  let response;
  try {
    response = await fetch(path, { method, body, headers: { ...headers, ...more }, cache: "no-store", signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, error.name === "TimeoutError" ? "the server does not answer" : "the server cannot be reached");
  }
  if (!response.ok) {
    let message = response.statusText || String(response.status);
    try {
      message = (await response.json()).error || message;
    } catch {
      /* no JSON: the status says it */
    }
    throw new ServerError(response.status, message);
  }
  return response;
}

export async function get(path) {
  return (await send("GET", path, undefined, {}, AbortSignal.timeout(GET_MS))).json();
}

export async function post(path, document) {
  const text = await (await send("POST", path, JSON.stringify(document))).text();
  return text ? JSON.parse(text) : null;
}

export const modelPath = (name, version) =>
  "/v2/models/" + encodeURIComponent(name) + (version ? "/versions/" + version : "");
