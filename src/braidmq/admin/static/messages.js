// Messages in a list: one line each, which expands to payload and headers.

import { get, getText, path } from "./api.js";
import { busy, fill, h } from "./dom.js";
import { ZONE, bytes, count, exactMoment } from "./format.js";
import { inAddress, messageLink } from "./names.js";
import { complain } from "./notices.js";
import { headerList, payloadViews, preview } from "./payload.js";
import { copyButton, strandBadge, when } from "./pieces.js";

/** Return the headings of the columns of a list of messages; *marked* names that of the marks. */
export function messageHeads(marked = "Origin") {
  const zone = `Time (${ZONE})`;
  return h("div", { class: "message-heads" },
    h("span", { class: "message-offset" }, "Offset"),
    h("span", { class: "message-time", title: zone }, zone),
    h("span", {}, marked),
    h("span", { class: "message-size" }, "Size"),
    h("span", {}, "Payload"));
}

/**
 * Return one message of *topic* as a row; views may add *marks*, *about* and *actions*.
 *
 * *section* is where the topic is shown, for the link to the message.
 */
export function messageRow(topic, message, { section = "topics", marks = [], about = null, actions = [] } = {}) {
  const inside = h("div", { class: "message-inside" });
  const row = h("details", { class: "message", "data-offset": message.offset },
    h("summary", {},
      h("a", { class: "message-offset", href: `#/${section}/${inAddress(topic)}/${message.offset}`, title: "Open this message on its own page" }, count(message.offset)),
      h("span", { class: "message-time" }, when(message.timestamp)),
      h("span", { class: "message-marks" }, marks,
        message.origin && strandBadge(message.origin)),
      h("span", { class: "muted message-size" }, bytes(message.size)),
      h("span", { class: "message-preview" }, preview(message))),
    inside);
  // Built when it is opened: most never are.
  row.addEventListener("toggle", () => {
    if (row.open && !inside.hasChildNodes()) fill(inside, messageContents(topic, message, { section, about, actions }, inside));
  });
  return row;
}

/**
 * Return a whole message: payload, headers and envelope; *inside* is the element that holds them.
 *
 * Without a *section* there is no link to the message: it is the page's own.
 */
export function messageContents(topic, message, own, inside) {
  const { section = null, about = null, actions = [] } = own;
  return [
    message.truncated && cutNotice(topic, message, own, inside),
    payloadViews(message, () => letterOf(topic, message)),
    h("div", { class: "message-about" },
      about,
      h("section", {}, h("h3", {}, "Headers"), headerList(message.headers)),
      h("section", {}, h("h3", {}, "Envelope"), envelope(topic, message, section))),
    actions.length > 0 && h("div", { class: "actions" }, actions),
  ];
}

function envelope(topic, message, section) {
  const link = section && messageLink(section, topic, message.offset);
  const pairs = [
    ["Offset", [count(message.offset), copyButton(String(message.offset), "Copy the offset")]],
    ["Time", exactMoment(message.timestamp)],
    message.qos !== undefined && ["QoS", message.qos === 1 ? "1, durable" : String(message.qos)],
    message.priority !== undefined && message.priority !== null && ["Priority", String(message.priority)],
    link && ["Link", [h("a", { href: link }, "Its own page"), copyButton(link, "Copy the link")]],
  ];
  return h("dl", { class: "facts" }, pairs.filter(Boolean).map(([term, value]) =>
    h("div", {}, h("dt", {}, term), h("dd", {}, value))));
}

/**
 * Return a JSON payload verbatim, including whitespace, or null.
 *
 * The API copies it into its answer unchanged; parsing would lose that. Nothing but the payload
 * can stand between these two fields of the answer, and its size is known.
 */
async function letterOf(topic, message) {
  try {
    const answer = await getText(path("topics", topic, "messages", message.offset));
    const found = /"payload":(.*),"encoding":"json","size":\d/s.exec(answer)?.[1] ?? "";
    return new TextEncoder().encode(found).length === message.size ? found : null;
  } catch {
    return null; // the views then note that whitespace may differ
  }
}

function cutNotice(topic, message, own, inside) {
  const button = h("button", { type: "button", class: "small", onclick: () => busy(button, loadAll) }, "Load the whole payload");

  async function loadAll() {
    try {
      const whole = await get(path("topics", topic, "messages", message.offset), { exact: true });
      fill(inside, messageContents(topic, { ...message, ...whole, truncated: false }, own, inside));
    } catch (error) {
      complain(error);
    }
  }

  return h("p", { class: "cut-notice" }, `Only the beginning of ${bytes(message.size)} is shown. `, button);
}
