// One topic or queue: its numbers, its policy, its messages, and a drawer to publish.

import { get, path, remove } from "./api.js";
import { confirm, drawer } from "./dialogs.js";
import { every, fill, h, redraw } from "./dom.js";
import { ago, count, duration } from "./format.js";
import { browser } from "./browse.js";
import { named, plain } from "./names.js";
import { say, sentence } from "./notices.js";
import { badge, copyButton, facts, heading, panel, tiles, when } from "./pieces.js";
import { warning, whenFull } from "./queue_state.js";
import { MAY_NOT_PUBLISH, publishForm } from "./publish.js";
import { me } from "./session.js";
import { drop } from "./view_queues.js";

const REFRESH_MS = 5_000;
const HEADING_CHARS_MAX = 160;
const SCHEMA_CHARS_MAX = 40;
const DRAWER_CHARS_MAX = 60;

export function view({ section, params, query, signal, mark }) {
  const { name } = params;
  const numbers = h("div", {});
  const queue = h("div", {});
  const marks = h("span", { class: "marks" });
  const messages = browser({ topic: name, section, query, signal });
  const place = h("div", {});
  const crumbs = h("p", { class: "crumbs" }, crumb(section));
  let policy = null; // of the queue, if it is one

  async function refresh() {
    try {
      const topic = await get(path("topics", name), { signal });
      messages.topicIsThere();
      redraw(numbers, topicTiles(topic));
      redraw(marks, topic.is_queue && badge("queue"), topic.schema && badge(h("span", {}, "schema ", named(topic.schema, { max: SCHEMA_CHARS_MAX }))));
      policy = topic.is_queue ? await queueOf(name, signal) : null;
      if (signal.aborted) return;
      redraw(queue, policy && queuePanel(policy));
      // A queue is a topic, too, and both addresses lead here.
      const home = topic.is_queue ? "queues" : "topics";
      redraw(crumbs, crumb(home));
      mark(home);
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 403) refuse();
      else redraw(numbers, error.status === 404
        ? h("p", { class: "muted nothing" }, "This topic does not exist yet. Its first message creates it.")
        : h("div", { class: "problem-box", role: "alert" }, sentence(error)));
    }
  }

  /** A key that may publish or subscribe may see the topic; this one may do neither. */
  function refuse() {
    redraw(numbers);
    redraw(place, h("p", { class: "muted nothing" }, MAY_NOT_PUBLISH));
  }

  const form = publishForm(name, section, async () => {
    await refresh();
    await messages.showNewest();
  });
  place.append(form);
  const publishing = drawer(h("span", {}, "Publish to ", named(name, { max: DRAWER_CHARS_MAX })), place);
  // The element is not in the page yet, and only there a dialog can open.
  if (query.get("publish")) setTimeout(() => publishing.element.isConnected && publishing.open());
  every(REFRESH_MS, refresh, signal);
  return {
    title: plain(name),
    element: h("div", {},
      heading(title(name, marks), {
        above: crumbs,
        actions: [
          h("button", { type: "button", class: "primary", onclick: publishing.open }, "Publish…"),
          me.admin && deleteButton(name, () => policy),
        ],
      }),
      numbers, queue, messages.element, publishing.element),
  };
}

function crumb(section) {
  return h("a", { href: `#/${section}` }, section === "queues" ? "Queues" : "Topics");
}

/** Return the button that deletes a topic, or the queue that *findQueue* returns. */
function deleteButton(name, findQueue) {
  async function act() {
    const queue = findQueue();
    if (queue) {
      if (await drop(queue)) location.hash = "#/queues";
      return;
    }
    const done = await confirm({
      title: "Delete this topic?",
      text: "No consumer gets its messages any more; they stay in the log for Spark until retention removes them. A topic with a queue or subscriptions is not deleted.",
      action: "Delete topic",
      typed: name,
      act: () => remove(path("topics", name), { long: true }),
    });
    if (!done) return;
    say("Topic deleted.");
    location.hash = "#/topics";
  }
  return h("button", { type: "button", class: "danger", onclick: act }, "Delete…");
}

function title(name, marks) {
  const place = h("span", {}, named(name, { max: HEADING_CHARS_MAX }));
  const whole = name.length > HEADING_CHARS_MAX && h("button", {
    type: "button", class: "small", onclick(event) {
      fill(place, named(name, { max: name.length }));
      event.target.remove();
    },
  }, "Show the full name");
  return [place, " ", copyButton(name, "Copy the name"), whole, marks];
}

function topicTiles(topic) {
  return tiles([
    { id: "messages", label: "Messages", value: count(topic.messages), note: "across restarts" },
    { label: "First offset", value: topic.first_offset ? count(topic.first_offset) : "–", note: "still in the log" },
    { label: "Last offset", value: topic.last_offset ? count(topic.last_offset) : "–" },
    { label: "Last message", value: topic.last_timestamp ? ago(topic.last_timestamp) : "–", note: topic.last_timestamp && when(topic.last_timestamp) },
    { label: "Subscriptions", value: count(topic.subscriptions), href: `#/subscriptions?${new URLSearchParams({ search: topic.name.slice(0, 200) })}` },
  ]);
}

/** Return a queue; null if it is none any more, or not visible to this key. */
function queueOf(name, signal) {
  return get(path("queues", name), { signal }).catch(() => null);
}

function queuePanel(queue) {
  const found = warning(queue);
  return [
    found && h("div", { class: "problem-box warn", role: "alert" }, h("span", {}, found.text)),
    h("div", { class: "queue-facts" }, panel("Queue", facts(policyOf(queue)))),
  ];
}

function policyOf(queue) {
  return [
    ["Delivery", queue.deliveryMode],
    ["Waiting", queue.maxQueueSize ? `${count(queue.messageCount)} of ${count(queue.maxQueueSize)}` : count(queue.messageCount)],
    ["In flight", count(queue.inFlight)],
    ["Consumers", count(queue.subscriberCount)],
    ["When full", queue.maxQueueSize ? whenFull(queue) : null],
    ["Message TTL", queue.messageTtl ? duration(queue.messageTtl / 1000) : "none"],
    ["Maximum deliveries", queue.maxRetryAttempts ? count(queue.maxRetryAttempts) : "as configured"],
    ["Dead letters", queue.enableDeadLetterQueue ? deadLetterLink(queue) : "not kept: what cannot be delivered is dropped"],
    ["Durable", queue.durable ? "yes" : "no, in memory only"],
    ["Created", when(queue.createdAt)],
  ];
}

function deadLetterLink(queue) {
  const place = queue.deadLetterQueueName ?? `dlq.${queue.name}`;
  return h("a", { href: `#/dead-letters/${encodeURIComponent(place)}` }, named(place));
}
