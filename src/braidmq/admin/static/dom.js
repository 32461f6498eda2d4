// Elements without markup: a tag, attributes, children; strings become text nodes.
//
// This is the only module that creates elements. Nothing here parses HTML, so no name, header or
// payload can become markup, whatever it contains. Styles are classes; the few that depend on a
// number are set on `element.style`, which the content security policy allows.

const SVG = "http://www.w3.org/2000/svg";

// Set as properties: as attributes they would only be defaults.
const PROPERTIES = new Set(["checked", "disabled", "hidden", "open", "value"]);

/** Return an HTML element; functions among *attributes* are listeners (`onclick`). */
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** Return an SVG element. */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (PROPERTIES.has(name)) element[name] = value;
    else if (value !== false) element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...nodes(children));
  return element;
}

/** Return *children* flattened, without null, undefined and false. */
function nodes(children) {
  return children
    .flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : String(child)));
}

/** Replace the children of *element*. */
export function fill(element, ...children) {
  element.replaceChildren(...nodes(children));
  return element;
}

/**
 * Replace the children of *element*, but touch only what is different.
 *
 * For content that is redrawn often: focus, selection, a half-finished click and a screen
 * reader's position are lost with their node. Listeners cannot be compared, so an element that
 * holds a button is kept only if it is equal as a whole, and replaced otherwise.
 */
export function redraw(element, ...children) {
  adapt(element, nodes(children).map((child) => (child instanceof Node ? child : new Text(child))));
}

function adapt(element, wanted) {
  const there = [...element.childNodes];
  wanted.forEach((node, index) => {
    const old = there[index];
    if (!old) element.append(node);
    else if (!old.isEqualNode(node)) change(old, node);
  });
  for (const extra of there.slice(wanted.length)) extra.remove();
}

function change(old, node) {
  if (old.nodeType === Node.TEXT_NODE && node.nodeType === Node.TEXT_NODE) old.data = node.data;
  else if (old.nodeName !== node.nodeName || holdsButton(old) || holdsButton(node)) old.replaceWith(node);
  else {
    for (const { name } of [...old.attributes]) if (!node.hasAttribute(name)) old.removeAttribute(name);
    for (const { name, value } of node.attributes) old.setAttribute(name, value);
    adapt(old, [...node.childNodes]);
  }
}

function holdsButton(element) {
  return [element, ...element.children].some((one) => one.localName === "button");
}

const ICONS = {
  auto: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2zM8 2v12M8 5h3.8M8 8h6M8 11h3.8",
  light: "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3 3l1 1M12 12l1 1M3 13l1-1M12 4l1-1",
  dark: "M13.5 9.5A6 6 0 0 1 6.5 2.5a6 6 0 1 0 7 7z",
  copy: "M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3",
  done: "M3 8.5l3.5 3.5L13 4.5",
  close: "M4 4l8 8M12 4l-8 8",
  up: "M4 10l4-4 4 4",
  sort: "M5 6l3-3 3 3M5 10l3 3 3-3",
  down: "M4 6l4 4 4-4",
};

/** Return an icon; it is hidden from screen readers, so it needs a text beside it. */
export function icon(name) {
  return svg("svg", { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true" },
    svg("path", { d: ICONS[name] }));
}

/** Return text for screen readers only. */
export function unseen(text) {
  return h("span", { class: "unseen-text" }, text);
}

/** Call *run* now and every *ms* while the page is visible, until *signal* aborts. */
export async function every(ms, run, signal) {
  while (!signal.aborted) {
    if (!document.hidden) await run();
    await pause(ms, signal);
  }
}

/** Wait; return early, without an error, when *signal* aborts. */
export function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(end, ms);

    function end() {
      clearTimeout(timer);
      signal?.removeEventListener("abort", end); // a page stays open for days, and so does its signal
      resolve();
    }

    signal?.addEventListener("abort", end);
  });
}

/**
 * Run *work* for a button, once at a time.
 *
 * The button is not disabled meanwhile: it would lose the keyboard focus.
 */
export async function busy(button, work) {
  if (button.getAttribute("aria-disabled") === "true") return;
  button.setAttribute("aria-disabled", "true");
  try {
    await work();
  } finally {
    button.removeAttribute("aria-disabled");
  }
}
