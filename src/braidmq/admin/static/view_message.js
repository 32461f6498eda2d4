// One message on a page of its own, with an address that can be sent to a colleague.

import { get, path } from "./api.js";
import { fill, h } from "./dom.js";
import { count } from "./format.js";
import { messageContents } from "./messages.js";
import { inAddress, messageLink, named, plain } from "./names.js";
import { sentence } from "./notices.js";
import { copyButton, emptyState, heading } from "./pieces.js";

export function view({ section, params, signal, mark }) {
  const { name, offset: digits } = params;
  const offset = Number(digits);
  const place = h("div", {}, h("p", { class: "muted" }, "Loading…"));

  async function load() {
    try {
      // One row of a list: unlike the whole message it is cut where it is very large.
      const page = await get(path("topics", name, "messages"), { query: { from: offset, limit: 1 }, signal, exact: true });
      const message = page.messages[0];
      fill(place, message?.offset === offset ? shown(name, message) : nowhere());
    } catch (error) {
      if (!signal.aborted) fill(place, error.status === 404 ? nowhere() : h("div", { class: "problem-box", role: "alert" }, sentence(error)));
    }
  }

  /** Light Queues in the menu if the topic is one: its messages have this address, too. */
  async function markQueue() {
    const topic = await get(path("topics", name), { signal }).catch(() => null); // the message says what is wrong
    if (topic?.is_queue && !signal.aborted) mark("queues");
  }

  if (section === "topics") markQueue();
  if (/^[1-9]\d{0,18}$/.test(digits)) load();
  else fill(place, nowhere());
  const above = `#/${section}/${inAddress(name)}`;
  const list = section === "dead-letters" ? above : `${above}?${new URLSearchParams({ order: "asc", from: digits })}`;
  return {
    title: `Message ${digits} of ${plain(name)}`,
    element: h("div", {},
      heading([`Message ${Number.isSafeInteger(offset) ? count(offset) : plain(digits)} `, copyButton(messageLink(section, name, digits), "Copy the link")], {
        above: h("p", { class: "crumbs" }, h("a", { href: above }, named(name))),
        actions: [h("a", { class: "button", href: list }, "Show in the list")],
      }),
      place),
  };
}

function shown(topic, message) {
  const inside = h("div", { class: "panel" });
  return fill(inside, messageContents(topic, message, {}, inside));
}

function nowhere() {
  return emptyState("No such message", "The topic has no message at this offset: it was never there, or retention has removed it.");
}
