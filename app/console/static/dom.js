// Makes elements. Whatever comes from a server becomes a text node or a property, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** Returns an element; `properties` are properties, listeners (`onclick`), `dataset`, or attributes with `-`. */
export function h(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (name === "dataset") Object.assign(made.dataset, value);
    else if (name === "class") made.className = value;
    else if (name === "role" || name.includes("-")) made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return made;
}

/** Returns an SVG element with attributes. */
export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children.flat());
  return made;
}

/** Sets text where it differs: what stays the same is not drawn again. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setClass(element, name) {
  if (element.className !== name) element.className = name;
}

/** Returns a button that copies what `text()` returns. */
export function copyButton(text) {
  const button = h("button", { class: "quiet small copy", textContent: "Copy" });
  button.onclick = async (event) => {
    event.preventDefault(); // it may stand in the summary of what opens
    try {
      await navigator.clipboard.writeText(text());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select and copy";
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  };
  return button;
}

/** Has a button be off, and say so, until what it started has ended. */
export async function busy(button, work) {
  button.disabled = true;
  button.classList.add("busy");
  try {
    return await work();
  } finally {
    button.disabled = false;
    button.classList.remove("busy");
  }
}
