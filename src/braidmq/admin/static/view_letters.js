// The dead letters of one queue: why each died, its content, and how to replay it.

import { get, path, post } from "./api.js";
import { confirm } from "./dialogs.js";
import { busy, fill, h } from "./dom.js";
import { plural } from "./format.js";
import { messageHeads, messageRow } from "./messages.js";
import { named, plain, topicLink } from "./names.js";
import { complain, say, sentence } from "./notices.js";
import { badge, emptyState, facts, heading } from "./pieces.js";
import { purge } from "./view_queues.js";

const PAGE_LETTERS = 50;
const REASONS = {
  maxRetries: "retries exhausted",
  expired: "expired",
  overflow: "queue full",
  rejected: "rejected",
  tooLarge: "too large",
};
const MARK_CHARS_MAX = 40;

export function view({ params, signal }) {
  const queue = params.name;
  const rows = h("div", { class: "messages", role: "list" });
  const told = h("div", { class: "messages-told", role: "status" });
  const more = h("button", { type: "button", hidden: true, onclick: () => busy(more, () => load(next)) }, "More letters");
  let next = null;

  async function load(from = null) {
    try {
      const page = await get(path("dead-letters"), { query: { queue, from, limit: PAGE_LETTERS }, signal, exact: true });
      const items = page.letters.map((letter) => h("div", { role: "listitem" }, row(letter)));
      if (from === null) fill(rows, items);
      else rows.append(...items);
      next = page.next;
      more.hidden = next === null;
      fill(told, !rows.hasChildNodes() && next === null && emptyState("No dead letters", "All of them were replayed, purged or consumed."));
    } catch (error) {
      if (signal.aborted) return;
      fill(rows);
      fill(told, error.status === 404
        ? emptyState("No dead letters", "This dead-letter queue does not exist, or no longer does.")
        : h("div", { class: "problem-box", role: "alert" }, sentence(error)));
    }
  }

  function row(letter) {
    const replay = h("button", { type: "button", onclick: () => busy(replay, () => replayOne(letter)) }, "Replay this letter");
    return messageRow(queue, letter, {
      section: "dead-letters",
      marks: letter.reason ? [badge(reason(letter, { max: MARK_CHARS_MAX }), "warn")] : [],
      about: h("section", {}, h("h3", {}, "Dead letter"), facts([
        ["Reason", letter.reason ? reason(letter) : "unknown"],
        ["Died in", letter.deathQueue ? topicLink(letter.deathQueue) : "unknown"],
        ["After", plural(letter.attempts, "delivery", "deliveries")],
        ["Id", named(letter.id)],
      ])),
      actions: [replay],
    });
  }

  async function replayOne(letter) {
    try {
      const { replayed } = await post(path("dead-letters", "replay"), { queue, offset: letter.offset }, { long: true });
      if (replayed === 0) throw new Error("That letter is no longer in the queue");
      say("Letter replayed.", topicLink(letter.deathQueue));
    } catch (error) {
      complain(error);
    }
    await load();
  }

  async function replayAll() {
    let sent = 0;
    const done = await confirm({
      title: "Replay all letters?",
      text: "Each letter returns to where it died and is delivered again, starting with the first attempt.",
      action: "Replay all",
      danger: false,
      act: async () => { sent = (await post(path("dead-letters", "replay"), { queue }, { long: true })).replayed; },
    });
    if (!done) return;
    say(`${plural(sent, "letter")} replayed.`);
    await load();
  }

  async function purgeAll() {
    if (await purge(queue, { what: "dead letters" })) await load();
  }

  load();
  return {
    title: `Dead letters of ${plain(queue)}`,
    element: h("div", {},
      heading(named(queue), {
        above: h("p", { class: "crumbs" }, h("a", { href: "#/dead-letters" }, "Dead letters")),
        actions: [
          h("button", { type: "button", onclick: () => load() }, "Refresh"),
          h("button", { type: "button", onclick: replayAll }, "Replay all…"),
          h("button", { type: "button", class: "danger", onclick: purgeAll }, "Purge…"),
        ],
      }),
      h("section", { class: "panel messages-panel letters", "aria-label": "Letters" }, told, messageHeads("Reason"), rows, h("div", { class: "actions" }, more))),
  };
}

// A publisher may have set this header, to any text: "constructor" too.
function reason(letter, cut = {}) {
  return Object.hasOwn(REASONS, letter.reason) ? REASONS[letter.reason] : named(letter.reason, cut);
}
