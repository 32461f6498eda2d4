// Small parts of every view: headings, tiles, badges, empty states, copy buttons.

import { fill, h, icon, unseen } from "./dom.js";
import { count, exactMoment, moment } from "./format.js";
import { me } from "./session.js";

export const STRANDS = ["blip", "vibe", "qumbed", "http", "spark"];
const STRAND_NAMES = { blip: "Blip", vibe: "Vibe", qumbed: "Qumbed", http: "HTTP", spark: "Spark", flight: "Flight" };
const COPIED_MS = 1_500;
const TILE_CHARS_MAX = 11; // in the large letters of a tile

/** Return the display name of a strand. */
export function strandName(strand) {
  return STRAND_NAMES[strand] ?? String(strand ?? "–");
}

/** Return a strand with its colour. */
export function strandBadge(strand) {
  return h("span", { class: "strand" },
    h("i", { class: `swatch ${STRAND_NAMES[strand] ? `of-${strand}` : ""}`, "aria-hidden": "true" }),
    strandName(strand));
}

/** Return a short word in a frame; *kind* is "", "good", "warn" or "bad". */
export function badge(text, kind = "") {
  return h("span", { class: `badge ${kind}` }, text);
}

/** Return the head of a page: title, description and actions. */
export function heading(title, { about = null, actions = [], above = null } = {}) {
  return h("header", { class: "page-head" },
    h("div", { class: "page-words" },
      above,
      h("h1", { tabindex: "-1" }, title),
      about && h("p", { class: "muted about" }, about)),
    actions.length > 0 && h("div", { class: "actions" }, actions));
}

/** Return numbers in a row; each of *tiles* is `{label, value, note, kind, href}`. */
export function tiles(list) {
  return h("div", { class: "tiles-place" }, h("dl", { class: list.length === 5 ? "tiles five" : "tiles" }, list.map((tile) =>
    h("div", { class: `tile ${tile.kind ?? ""} ${tile.value?.length > TILE_CHARS_MAX ? "long" : ""}` },
      h("dt", {}, tile.label),
      h("dd", { "data-number": tile.id ?? null },
        tile.href ? h("a", { href: tile.href }, tile.value) : tile.value,
        tile.note && h("small", {}, tile.note))))));
}

/** Return a point in time, to the microsecond and with its zone in the tooltip. */
export function when(iso) {
  if (!iso) return "–";
  return h("time", { datetime: iso, title: exactMoment(iso) }, moment(iso));
}

/** Return a button that puts *text* on the clipboard. */
export function copyButton(text, label = "Copy") {
  const words = unseen(label);
  const button = h("button", { type: "button", class: "quiet copy", title: label }, icon("copy"), words);
  button.addEventListener("click", async () => {
    const done = await copied(text, button);
    fill(button, icon(done ? "done" : "close"), unseen(done ? "Copied" : "The browser blocked copying"));
    setTimeout(() => fill(button, icon("copy"), words), COPIED_MS);
  });
  return button;
}

async function copied(text, near) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Without TLS a remote page has no clipboard API; the deprecated way still works.
    const area = h("textarea", { class: "unseen-text", value: text, "aria-hidden": "true" });
    near.after(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    near.focus();
    return done;
  }
}

/** Return a command with a button to copy it. */
export function command(text) {
  return h("div", { class: "command" }, h("code", {}, text), copyButton(text, "Copy the command"));
}

/** Return the placeholder of an empty list: what would be here, and how to get it. */
export function emptyState(title, text, commands = []) {
  return h("div", { class: "empty" },
    h("p", { class: "empty-title" }, title),
    h("p", { class: "muted" }, text),
    commands.map(command));
}

/** Return what one row and several are called; a key that is no administrator's lists only its own. */
export function ownNoun(one) {
  return me.admin ? [one, `${one}s`] : [`${one} of this key`, `${one}s of this key`];
}

/** Return a section with a title. */
export function panel(title, ...children) {
  const id = `panel-${title.toLowerCase().replace(/[^a-z]+/g, "-")}`;
  return h("section", { class: "panel", "aria-labelledby": id },
    h("h2", { id }, title), children);
}

/** Return a list of terms and values; null values are left out. */
export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== null && value !== undefined)
    .map(([term, value]) => h("div", {}, h("dt", {}, term), h("dd", {}, value))));
}

/** Return a reader's lag, coloured by severity. */
export function lag(value) {
  if (value === null || value === undefined) return h("span", { class: "muted" }, "–");
  return h("span", { class: value === 0 ? "muted" : value >= 10_000 ? "warn-text" : "" }, count(value));
}
