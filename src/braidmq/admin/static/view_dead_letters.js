// The dead-letter queues: one for each topic with undeliverable messages.

import { get, path } from "./api.js";
import { h } from "./dom.js";
import { count } from "./format.js";
import { list } from "./lists.js";
import { inAddress, named } from "./names.js";
import { emptyState, heading } from "./pieces.js";

export function view(context) {
  const queues = list({
    context,
    noun: ["dead-letter queue", "dead-letter queues"],
    key: (row) => row.queue,
    columns: [
      { title: "Queue", wide: true, cell: (row) => h("a", { href: `#/dead-letters/${inAddress(row.queue)}` }, named(row.queue)) },
      { title: "Letters", numeric: true, cell: (row) => count(row.messageCount) },
      { title: "In flight", numeric: true, cell: (row) => count(row.inFlight) },
      { title: "Consumers", numeric: true, cell: (row) => count(row.subscriberCount) },
    ],
    async load({ after, limit, signal }) {
      const page = await get(path("dead-letters"), { query: { after, limit }, signal });
      return { rows: page.queues, next: page.next, total: page.total };
    },
    empty: emptyState("No dead letters", "Messages that cannot be delivered are kept here with the reason, and can be replayed. To list them in a terminal:",
      ["braidmq dlq list"]),
  });
  return {
    title: "Dead letters",
    element: h("div", {}, heading("Dead letters", { about: "Messages that could not be delivered, with the reason. Nothing is dropped silently." }), queues.element),
  };
}
