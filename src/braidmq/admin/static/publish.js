// The publish form: it sends exactly the bytes that were typed, and shows the offset.

import { path, post } from "./api.js";
import { busy, fill, h, icon, unseen } from "./dom.js";
import { count } from "./format.js";
import { messageLink } from "./names.js";
import { sentence } from "./notices.js";
import { fromBase64, toBase64 } from "./payload.js";

/** Shown for a key without the publish permission. */
export const MAY_NOT_PUBLISH = "This key cannot publish to the topic: it lacks the publish permission.";
const PRIORITIES = ["low", "normal", "high", "critical"];

/** Return the form for *topic*; *published* is called with the offset, null if in memory only. */
export function publishForm(topic, section, published) {
  const payload = h("textarea", { id: "payload", rows: "6", spellcheck: "false", placeholder: '{"n": 1}', "aria-describedby": "publish-told" });
  const kind = h("select", { id: "payload-kind" },
    h("option", { value: "json" }, "JSON"), h("option", { value: "text" }, "Text"), h("option", { value: "base64" }, "Binary, as base64"));
  const qos = h("select", { id: "payload-qos" },
    h("option", { value: "1" }, "1: durable"), h("option", { value: "0" }, "0: in memory only"));
  const priority = h("select", { id: "payload-priority" }, PRIORITIES.map((name, number) =>
    h("option", { value: number, selected: number === 1 }, `${number}: ${name}`)));
  const headers = headerFields();
  const told = h("p", { class: "problem", id: "publish-told", role: "status" });
  const button = h("button", { type: "submit", class: "primary" }, "Publish");

  function onsubmit(event) {
    event.preventDefault();
    busy(button, publish);
  }

  async function publish() {
    payload.removeAttribute("aria-invalid");
    fill(told);
    try {
      const { offset } = await post(path("topics", topic, "messages"), {
        payload_base64: toBase64(bytesOf(payload.value, kind.value)),
        headers: headers.value(),
        qos: Number(qos.value),
        priority: Number(priority.value),
      });
      fill(told, h("span", { class: "good-text" }, offset
        ? ["Published at offset ", h("a", { href: messageLink(section, topic, offset) }, count(offset)), "."]
        : "Published, in memory only."));
      published(offset ?? null);
    } catch (error) {
      if (error.status === undefined) payload.setAttribute("aria-invalid", "true");
      fill(told, error.status === 403 ? MAY_NOT_PUBLISH : sentence(error));
    }
  }

  return h("form", { class: "publish", onsubmit, novalidate: true },
    h("div", { class: "field" },
      h("div", { class: "label-row" }, h("label", { for: "payload" }, "Payload"),
        h("label", { class: "unseen-text", for: "payload-kind" }, "Payload type"), kind),
      payload),
    headers.element,
    h("div", { class: "field-pair" },
      h("div", { class: "field" }, h("label", { for: "payload-qos" }, "QoS"), qos),
      h("div", { class: "field" }, h("label", { for: "payload-priority" }, "Priority"), priority)),
    h("div", { class: "actions" }, button), told);
}

/** Return the bytes of *text*, whitespace included. */
function bytesOf(text, kind) {
  if (kind === "base64") {
    try {
      return fromBase64(text.trim());
    } catch {
      throw new Error("Invalid base64.");
    }
  }
  if (kind === "json") {
    try {
      JSON.parse(text);
    } catch (error) {
      throw new Error(`Invalid JSON: ${error.message.replace(/^JSON\.parse: /, "")}`);
    }
  }
  return new TextEncoder().encode(text);
}

function headerFields() {
  const rows = h("div", { class: "header-rows" });
  const add = h("button", { type: "button", class: "small", onclick: () => row(true) }, "Add header");

  function row(focus) {
    const name = h("input", { placeholder: "name", "aria-label": "Header name", autocomplete: "off", spellcheck: "false" });
    const value = h("input", { placeholder: "value", "aria-label": "Header value", autocomplete: "off", spellcheck: "false" });
    const drop = h("button", { type: "button", class: "quiet", onclick() { one.remove(); add.focus(); } }, icon("close"), unseen("Remove header"));
    const one = h("div", { class: "header-row" }, name, value, drop);
    rows.append(one);
    if (focus) name.focus();
  }

  function value() {
    const inputs = [...rows.children].map((one) => [...one.querySelectorAll("input")].map((input) => input.value));
    return Object.fromEntries(inputs.filter(([name]) => name !== ""));
  }

  return { value, element: h("fieldset", { class: "field" }, h("legend", {}, "Headers"), rows, add) };
}
