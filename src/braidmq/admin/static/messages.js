// Messages in a list: one line each, which expands to payload and headers.

import { get, getText, path } from "./api.js";
import { busy, fill, h } from "./dom.js";
import { bytes, count } from "./format.js";
import { complain } from "./notices.js";
import { headerList, payloadViews, preview } from "./payload.js";
import { copyButton, strandBadge, when } from "./pieces.js";

/** Return one message of *topic* as a row; views may add *marks*, *about* and *actions*. */
export function messageRow(topic, message, { marks = [], about = null, actions = [] } = {}) {
  const inside = h("div", { class: "message-inside" });
  const row = h("details", { class: "message", "data-offset": message.offset },
    h("summary", {},
      h("span", { class: "message-offset" }, count(message.offset)),
      h("span", { class: "message-time" }, when(message.timestamp)),
      h("span", { class: "message-marks" }, marks,
        message.origin && strandBadge(message.origin),
        h("span", { class: "muted message-size" }, bytes(message.size))),
      h("span", { class: "message-preview" }, preview(message))),
    inside);
  // Built when it is opened: most never are.
  row.addEventListener("toggle", () => {
    if (row.open && !inside.hasChildNodes()) fill(inside, contents(topic, message, { about, actions }, inside));
  });
  return row;
}

function contents(topic, message, { about, actions }, inside) {
  return [
    message.truncated && cutNotice(topic, message, { about, actions }, inside),
    payloadViews(message, () => letterOf(topic, message)),
    h("div", { class: "message-about" },
      about,
      h("section", {}, h("h3", {}, "Headers"), headerList(message.headers)),
      h("section", {}, h("h3", {}, "Envelope"), envelope(message))),
    actions.length > 0 && h("div", { class: "actions" }, actions),
  ];
}

function envelope(message) {
  const pairs = [
    ["Offset", [count(message.offset), copyButton(String(message.offset), "Copy the offset")]],
    ["Time", message.timestamp?.replace("T", " ").replace("Z", " UTC")],
    message.qos !== undefined && ["QoS", message.qos === 1 ? "1, durable" : String(message.qos)],
    message.priority !== undefined && message.priority !== null && ["Priority", String(message.priority)],
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
      fill(inside, contents(topic, { ...message, ...whole, truncated: false }, own, inside));
    } catch (error) {
      complain(error);
    }
  }

  return h("p", { class: "cut-notice" }, `Only the beginning of ${bytes(message.size)} is shown. `, button);
}
