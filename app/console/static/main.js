// Chooses the view by the address, and has what is the same in all: the bar, the theme, keys, and the keyboard.

import { h, setText } from "./dom.js";
import { forgetKeys, hasKey, post, setHeader } from "./api.js";
import { ClusterView } from "./cluster_view.js";
import { ModelView } from "./model_view.js";
import { ModelsView } from "./models_view.js";
import { Store } from "./store.js";

const THEMES = ["", "light", "dark"];
const main = document.getElementById("main");
const trouble = document.getElementById("trouble");
const store = new Store();
let view = null, shown = null, modelsView = null, declined = false, indexed = false;

store.node = (id) => store.state?.nodes.find((node) => node.id === id);
store.nodeName = (id) => store.node(id)?.address || id.slice(0, 8);
store.failed = (error) => {
  askForKey(error);
  return error;
};

/** Returns what a part of the address stands for; one that was typed wrong is a name that no model has. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function route() {
  const [, kind, id, version] = location.hash.split("/");
  const place = kind === "model" && id ? "model" : kind === "cluster" ? "cluster" : "models";
  const key = [place, id, version].join("/");
  if (key === shown) return;
  shown = key;
  view?.close();
  document.title = "Eagleray";
  if (place === "models") view = modelsView = new ModelsView(store);
  else if (place === "cluster") view = new ClusterView(store);
  else view = new ModelView(store, decoded(id), Number(version) || 0);
  main.replaceChildren(view.element);
  for (const link of document.querySelectorAll("#bar nav a[data-view]")) {
    if (link.dataset.view === place) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  window.scrollTo(0, 0);
  view.draw();
}

function draw() {
  const { state, error } = store;
  if (error?.header && !declined) askForKey(error);
  trouble.hidden = !error || (Boolean(error.header) && !declined);
  setText(trouble, error ? `${error.message}${state ? "; what you see is from before" : ""}` : "");
  if (state && !indexed) {
    indexed = true; // in explicit mode, what could be loaded is known once somebody has asked for the index
    post("/v2/repository/index", {}).catch(() => {});
  }
  if (state) {
    const { name, version, ready } = state.server;
    const place = document.getElementById("server");
    if (!place.firstChild) place.append(h("span", { class: "pill" }), h("small", { class: "soft" }));
    place.firstChild.className = "pill " + (ready ? "good" : "warn");
    setText(place.firstChild, ready ? "ready" : "not ready");
    setText(place.lastChild, `${name} ${version}`);
  }
  const key = document.getElementById("key");
  key.hidden = !hasKey() && !error?.header;
  key.textContent = hasKey() ? "Key ✕" : "Key…";
  key.title = hasKey() ? "Forget the key" : "Give a key";
  if (state) view.draw();
}

function askForKey(error) {
  const ask = document.getElementById("ask");
  if (ask.open) return;
  const own = error.header === "authorization";
  const field = h("input", { type: "password", autocomplete: "off", id: "key-value", "aria-label": own ? "API key" : error.header });
  const use = h("button", { class: "primary", textContent: "Use", id: "use-key", onclick: () => {
    if (!field.value) return;
    setHeader(error.header, own ? "Bearer " + field.value : field.value);
    ask.close();
    store.error = null;
    shown = null;
    route();
    store.poll();
  } });
  field.onkeydown = (event) => event.key === "Enter" && use.click();
  ask.replaceChildren(
    h("h2", { id: "ask-title" }, own ? "API key" : `Header ${error.header}`),
    h("p", {}, error.message),
    h("p", { class: "soft" }, "It stays in this tab, and is sent to this server only."),
    h("div", { class: "tools" }, field, use, h("button", { class: "quiet", textContent: "Not now", onclick: () => ask.close() })));
  ask.onclose = () => {
    declined = !hasKey();
    draw();
  };
  ask.showModal();
}

function theme(step) {
  let chosen = "";
  try {
    chosen = localStorage.getItem("eagleray-theme") || "";
    if (step) {
      chosen = THEMES[(THEMES.indexOf(chosen) + step) % THEMES.length];
      localStorage.setItem("eagleray-theme", chosen);
    }
  } catch {
    /* no storage: as the system */
  }
  document.documentElement.dataset.theme = chosen;
  document.getElementById("theme").title = { "": "As the system", light: "Light", dark: "Dark" }[chosen];
}

document.getElementById("theme").onclick = () => theme(1);
document.getElementById("key").onclick = () => {
  forgetKeys();
  declined = false;
  store.poll();
};
document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    if (!shown.startsWith("models")) location.hash = "#/";
    route();
    modelsView.search.focus();
  } else if (event.key === "Escape" && event.target === modelsView?.search) {
    event.target.value = "";
    modelsView.draw();
  } else if (event.key === "Escape" && !typing && !document.getElementById("ask").open) {
    location.hash = "#/";
  } else if (event.key === "ArrowDown" && event.target === modelsView?.search) {
    event.preventDefault();
    modelsView.body.firstElementChild?.focus();
  }
});
window.addEventListener("hashchange", route);
store.addEventListener("change", draw);
theme(0);
route();
store.poll();
