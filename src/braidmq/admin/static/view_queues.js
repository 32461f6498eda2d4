// Queues: topics with a declared delivery policy. Administrators create, purge and delete them.

import { get, path, post, remove } from "./api.js";
import { ask, confirm } from "./dialogs.js";
import { h } from "./dom.js";
import { count, plural } from "./format.js";
import { list } from "./lists.js";
import { topicLink } from "./names.js";
import { say } from "./notices.js";
import { badge, emptyState, heading } from "./pieces.js";
import { OVERFLOWS, warning } from "./queue_state.js";
import { me } from "./session.js";

const MODES = [
  ["RoundRobin", "Round robin: each message to one consumer"],
  ["FanOutWithAck", "Fan-out: to every consumer, acknowledged"],
  ["FanOutWithoutAck", "Fan-out: to every consumer, not acknowledged"],
  ["PriorityBased", "By priority: the most urgent first"],
];
const SORTS = [["name", "Name"], ["waiting", "Waiting"]];

export function view(context) {
  const queues = list({
    context,
    noun: ["queue", "queues"],
    search: "Search queues",
    sorts: SORTS,
    key: (queue) => queue.name,
    columns: [
      { title: "Queue", wide: true, sort: "name", cell: called },
      { title: "Mode", cell: (queue) => queue.deliveryMode },
      { title: "Waiting", numeric: true, sort: "waiting", descending: true, cell: waiting },
      { title: "In flight", numeric: true, cell: (queue) => count(queue.inFlight) },
      { title: "Consumers", numeric: true, cell: (queue) => count(queue.subscriberCount) },
      ...(me.admin ? [{ title: "Actions", actions: true, cell: buttons }] : []),
    ],
    async load({ signal, ...query }) {
      const page = await get(path("queues"), { query, signal });
      return { rows: page.queues, next: page.next, total: page.total };
    },
    empty: emptyState("No queues yet", "A queue is a topic with a policy: which consumer gets a message, how many may wait, and when a message becomes a dead letter.",
      ["braidmq queue create orders --delivery-mode RoundRobin"]),
  });

  function buttons(queue) {
    return [
      h("button", { type: "button", class: "small", onclick: () => purge(queue.name).then(reloadIf) }, "Purge…"),
      h("button", { type: "button", class: "small", onclick: () => drop(queue).then(reloadIf) }, "Delete…"),
    ];
  }

  function reloadIf(done) {
    if (done) queues.reload();
  }

  return {
    title: "Queues",
    element: h("div", {}, heading("Queues", {
      about: "Topics with a declared delivery policy.",
      actions: me.admin ? [h("button", { type: "button", class: "primary", onclick: () => create().then(reloadIf) }, "New queue…")] : [],
    }), queues.element),
  };
}

function called(queue) {
  const found = warning(queue);
  return [topicLink(queue.name, "queues"), found && [" ", h("span", { title: found.text }, badge(found.mark, "warn"))]];
}

function waiting(queue) {
  return queue.maxQueueSize ? `${count(queue.messageCount)} of ${count(queue.maxQueueSize)}` : count(queue.messageCount);
}

/** Purge a queue once its name was typed; dead letters are purged the same way. */
export async function purge(name, { what = "messages" } = {}) {
  let purged = 0;
  const done = await confirm({
    title: `Purge ${what}?`,
    text: `All messages waiting in this queue are removed for good. ${what === "messages" ? "They stay in the log for Spark until retention removes them." : "They can no longer be replayed."}`,
    action: "Purge",
    typed: name,
    act: async () => { ({ purged } = await post(path("queues", name, "purge"), {}, { long: true })); },
  });
  if (done) say(`${plural(purged, "message")} purged.`);
  return done;
}

/** Delete a queue once its name was typed. */
export async function drop(queue) {
  const done = await confirm({
    title: "Delete this queue?",
    text: `This deletes its policy and ${plural(queue.messageCount, "waiting message")}; its dead letters stay.`,
    action: "Delete queue",
    typed: queue.name,
    act: () => remove(path("queues", queue.name), { long: true }),
  });
  if (done) say("Queue deleted.");
  return done;
}

function create() {
  const fields = {
    name: h("input", { id: "queue-name", autocomplete: "off", spellcheck: "false", maxlength: "256" }),
    deliveryMode: select("queue-mode", MODES),
    maxQueueSize: h("input", { id: "queue-size", type: "number", min: "1", placeholder: "unlimited" }),
    overflowStrategy: select("queue-overflow", OVERFLOWS),
    messageTtl: h("input", { id: "queue-ttl", type: "number", min: "1", placeholder: "no expiry" }),
    maxRetryAttempts: h("input", { id: "queue-attempts", type: "number", min: "1", placeholder: "as configured" }),
    enableDeadLetterQueue: h("input", { id: "queue-dead", type: "checkbox", checked: true }),
  };
  const field = (input, label) => h("div", { class: "field" }, h("label", { for: input.id }, label), input);
  return ask({
    title: "New queue",
    body: [
      field(fields.name, "Name"),
      field(fields.deliveryMode, "Delivery"),
      h("div", { class: "field-pair" }, field(fields.maxQueueSize, "Maximum waiting"), field(fields.overflowStrategy, "When full")),
      h("div", { class: "field-pair" }, field(fields.messageTtl, "Message TTL (ms)"), field(fields.maxRetryAttempts, "Maximum deliveries")),
      h("label", { class: "check" }, fields.enableDeadLetterQueue, "Keep undeliverable messages as dead letters"),
    ],
    action: "Create queue",
    async submit() {
      if (!fields.name.value) throw new Error("Enter a name.");
      await post(path("queues"), described(fields));
      say("Queue created.");
    },
  });
}

function described(fields) {
  const body = { name: fields.name.value, deliveryMode: fields.deliveryMode.value };
  for (const name of ["maxQueueSize", "messageTtl", "maxRetryAttempts"]) {
    if (fields[name].value) body[name] = Number(fields[name].value);
  }
  if (body.maxQueueSize) body.overflowStrategy = fields.overflowStrategy.value;
  body.enableDeadLetterQueue = fields.enableDeadLetterQueue.checked;
  return body;
}

function select(id, options) {
  return h("select", { id }, options.map(([value, label]) => h("option", { value }, label)));
}
