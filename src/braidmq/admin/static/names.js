// Names of topics, queues, keys and headers, made safe to display: clients choose them.
//
// A name may be 64 KiB of anything. So it is isolated from the direction of the text around it,
// truncated in lists, and its invisible characters (controls, direction marks, zero-width ones,
// unusual spaces) are spelled out, so that no two names differ only by what cannot be seen.

import { h } from "./dom.js";

const LISTED_CHARS_MAX = 120;
const TITLE_CHARS_MAX = 60;

// Controls, soft hyphen, zero-width and direction marks, separators, byte order mark.
const UNSEEN = /([\u0000-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\ufff9-\ufffb])/u;

// Spaces of other widths, variation selectors and tags. In a payload they belong to a language
// and are left alone.
const BLANK = /([\u00a0\u034f\u1680\u180b-\u180f\u2000-\u200a\u202f\u205f\u2800\u3000\ufe00-\ufe0f\u{e0000}-\u{e0fff}])/u;

/** Return *name* as an element, truncated to *max* characters. */
export function named(name, { max = LISTED_CHARS_MAX } = {}) {
  const whole = [...name.slice(0, 2 * max)];
  const cut = name.length > max && (whole.length > max || name.length > 2 * max);
  const text = cut ? whole.slice(0, max).join("") : name;
  return h("bdi", { class: "name" }, text.split(BLANK).map((piece, index) =>
    index % 2 ? h("span", { class: "unseen" }, number(piece)) : spelt(piece)),
    cut && h("span", { class: "cut" }, `… ${name.length.toLocaleString("en")} characters`));
}

/** Return *text* in pieces, invisible characters as code points; *lines* keeps line breaks and tabs. */
export function spelt(text, { lines = false } = {}) {
  return text.split(UNSEEN).map((piece, index) =>
    index % 2 && !(lines && (piece === "\n" || piece === "\t"))
      ? h("span", { class: "unseen" }, number(piece))
      : piece);
}

function number(character) {
  return `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
}

/** Return *name* as plain text for titles and labels. */
export function plain(name) {
  const marked = (text, pattern) => text.split(pattern).map((piece, i) => (i % 2 ? number(piece) : piece)).join("");
  const text = marked(marked(name, UNSEEN), BLANK);
  return text.length > TITLE_CHARS_MAX ? `${text.slice(0, TITLE_CHARS_MAX)}…` : text;
}

/** Return *name* encoded for an address; lone surrogates are replaced. */
export function inAddress(name) {
  return encodeURIComponent(String(name).toWellFormed());
}

/** Return a link to the page of a topic, or of a queue. */
export function topicLink(name, section = "topics") {
  return h("a", { href: `#/${section}/${inAddress(name)}` }, named(name));
}

/** Return the whole address of a message; *section* is where its topic is shown. */
export function messageLink(section, topic, offset) {
  return new URL(`#/${section}/${inAddress(topic)}/${offset}`, location.href).href;
}
