// One-line notices at the foot of the page, announced to screen readers too.

import { fill, h, icon, unseen } from "./dom.js";

const GOOD_NEWS_MS = 6_000;

const place = document.getElementById("notices");
let timer = 0;

/** Show a success; it disappears by itself. *more* may be a link. */
export function say(text, more = null) {
  show(text, more, "good");
  timer = setTimeout(clear, GOOD_NEWS_MS);
}

/** Show an error; it stays until it is dismissed or replaced. */
export function complain(error) {
  if (error?.name === "AbortError") return; // the user left the page, which cancelled the request
  show(sentence(error), null, "bad");
}

/** Return an error as one line that begins with a capital and ends with a full stop. */
export function sentence(error) {
  const text = String(error?.message ?? error).replace(/\s+/g, " ").trim();
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?…]$/.test(text) ? "" : ".");
}

/** Remove the notice. */
export function clear() {
  clearTimeout(timer);
  place.replaceChildren();
}

function show(text, more, kind) {
  clearTimeout(timer);
  fill(place, h("div", { class: `notice ${kind}` },
    h("span", { class: "notice-text" }, text, more && " ", more),
    h("button", { type: "button", class: "quiet", onclick: clear }, icon("close"), unseen("Dismiss"))));
}
