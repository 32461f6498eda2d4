// A payload in several views: JSON, text, hexadecimal, or sealed.
//
// The broker does not interpret payloads, so every view that the bytes allow is offered, the most
// likely one first. A sealed payload cannot be decrypted here.

import { fill, h } from "./dom.js";
import { bytes, plural } from "./format.js";
import { named, spelt } from "./names.js";
import { badge, copyButton, facts } from "./pieces.js";

const COLOURED_CHARS_MAX = 65_536;
const HEX_BYTES_MAX = 16_384;
const PREVIEW_CHARS_MAX = 200;
const SEAL_HEADERS = ["schemaId", "recipientKeyId", "senderPublicKey"];

/** Return a payload of the API as `{json, text, bytes}`; forms it does not have are null. */
export function contentOf(message) {
  if (typeof message.payload_base64 === "string") {
    const raw = fromBase64(message.payload_base64);
    return { json: null, text: utf8(raw), bytes: raw };
  }
  const value = message.payload;
  if (typeof value === "string" && message.encoding !== "json") return { json: null, text: value, bytes: new TextEncoder().encode(value) };
  if (value === undefined) return { json: null, text: "", bytes: new Uint8Array() };
  return { json: JSON.stringify(value, null, 2), text: null, bytes: null, compact: JSON.stringify(value) };
}

/** Return the bytes of base64 text. */
export function fromBase64(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

/** Return base64 of bytes. */
export function toBase64(raw) {
  let text = "";
  for (const byte of raw) text += String.fromCharCode(byte);
  return btoa(text);
}

function utf8(raw) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(raw);
  } catch {
    return null;
  }
}

/** Return the start of a payload as one line of text. */
export function preview(message) {
  if (message.sealed) return badge("sealed");
  const content = contentOf(message);
  const text = content.json === null ? content.text : message.sent ?? content.compact;
  if (text === null) return h("span", { class: "muted" }, `${bytes(message.size ?? content.bytes.length)}, binary`);
  if (text === "") return h("span", { class: "muted" }, "empty");
  return h("bdi", {}, spelt(text.slice(0, PREVIEW_CHARS_MAX).replace(/\s+/g, " ")));
}

/**
 * Return the views of a message's payload, with a button for each.
 *
 * *letter* fetches the verbatim JSON; it is called when a view needs it.
 */
export function payloadViews(message, letter) {
  const content = contentOf(message);
  const views = viewsOf(message, content, asSent(message, content, letter));
  const place = h("div", { class: "payload-view" });
  const buttons = views.map(([name, make]) => h("button", {
    type: "button", "aria-pressed": "false", onclick: () => choose(name, make),
  }, name));

  async function choose(name, make) {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.textContent === name));
    const made = make();
    if (made instanceof Promise) fill(place, code("…"));
    fill(place, await made);
  }

  choose(...views[0]);
  const copied = content.json ?? content.text;
  return h("div", { class: "payload" },
    h("div", { class: "payload-bar" },
      h("div", { class: "segmented", role: "group", "aria-label": "Show the payload as" }, buttons),
      h("span", { class: "muted" }, bytes(message.size)),
      copied !== null && copyButton(copied, "Copy the payload")),
    place);
}

/** Return a function that resolves to `{text, bytes, rewritten}`, verbatim where possible. */
function asSent(message, content, letter) {
  if (content.json === null) return async () => content;
  return async () => {
    const shortest = new TextEncoder().encode(content.compact);
    const text = message.sent ?? (shortest.length === message.size ? content.compact : await letter());
    return text === null
      ? { text: content.compact, bytes: shortest, rewritten: true }
      : { text, bytes: new TextEncoder().encode(text) };
  };
}

function viewsOf(message, content, sent) {
  const views = [];
  if (message.sealed) views.push(["Sealed", () => sealed(message)]);
  if (content.json !== null) views.push(["JSON", () => code(coloured(content.json))]);
  else if (content.text !== null && jsonOf(content.text) !== null) views.push(["JSON", () => code(coloured(jsonOf(content.text)))]);
  if (content.json !== null || content.text !== null) views.push(["Text", async () => textView(await sent())]);
  views.push(["Hex", async () => hexView(await sent())]);
  return views;
}

function jsonOf(text) {
  try {
    const value = JSON.parse(text);
    return typeof value === "object" && value !== null ? JSON.stringify(value, null, 2) : null;
  } catch {
    return null;
  }
}

function code(content, kind = null) {
  return h("pre", { class: kind, tabindex: "0" }, content);
}

const TOKENS = /("(?:\\.|[^"\\])*")(\s*:)?|\b(true|false|null)\b|(-?\d[\d.eE+-]*)/g;

/** Return JSON text with syntax highlighting. */
function coloured(text) {
  if (text.length > COLOURED_CHARS_MAX) return text;
  const pieces = [];
  let at = 0;
  for (const token of text.matchAll(TOKENS)) {
    const [whole, string, colon, word, number] = token;
    const kind = string ? (colon ? "json-name" : "json-string") : word ? "json-word" : number ? "json-number" : "";
    const shown = string ?? whole;
    pieces.push(text.slice(at, token.index), h("span", { class: kind }, spelt(shown)), whole.slice(shown.length));
    at = token.index + whole.length;
  }
  return [...pieces, text.slice(at)];
}

function textView({ text, rewritten }) {
  return [rewritten && rewrittenNote(), code(spelt(text, { lines: true }))];
}

function hexView({ bytes: raw, rewritten }) {
  return [
    rewritten && rewrittenNote(),
    code(hexLines(raw.subarray(0, HEX_BYTES_MAX)), "hex"),
    raw.length > HEX_BYTES_MAX && h("p", { class: "muted hint-text" }, `The first ${bytes(HEX_BYTES_MAX)} of ${bytes(raw.length)}.`),
  ];
}

function rewrittenNote() {
  return h("p", { class: "muted hint-text" }, "This is the JSON in compact form, without its original whitespace.");
}

/** Return a hex dump: offset, bytes and ASCII. */
export function hexLines(raw) {
  const width = matchMedia("(max-width: 640px)").matches ? 8 : 16;
  const lines = [];
  for (let at = 0; at < raw.length; at += width) {
    const row = [...raw.subarray(at, at + width)];
    const hex = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(3 * width - 1);
    const ascii = row.map((byte) => (byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${hex}  ${ascii}`);
  }
  return lines.join("\n") || "no bytes";
}

function sealed(message) {
  const about = SEAL_HEADERS.filter((name) => message.headers?.[name])
    .map((name) => [name, h("code", {}, named(message.headers[name]))]);
  return h("div", { class: "sealed" },
    h("p", {}, `${plural(message.size, "byte")}, end-to-end encrypted. Only the holder of the recipient's private key can decrypt it; the broker cannot.`),
    about.length > 0 && facts(about));
}

/** Return the headers of a message as facts. */
export function headerList(headers) {
  const pairs = Object.entries(headers ?? {});
  if (pairs.length === 0) return h("p", { class: "muted nothing" }, "No headers.");
  return facts(pairs.map(([name, value]) => [named(name), named(String(value), { max: 2_000 })]));
}
