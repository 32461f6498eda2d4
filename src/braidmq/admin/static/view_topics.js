// The topics that the key may see, with search, order and pages.

import { get, path } from "./api.js";
import { ask } from "./dialogs.js";
import { h } from "./dom.js";
import { count } from "./format.js";
import { list } from "./lists.js";
import { inAddress, topicLink } from "./names.js";
import { emptyState, heading } from "./pieces.js";

const SORTS = [["name", "Name"], ["messages", "Messages"], ["last", "Newest message"]];

export function view(context) {
  const topics = list({
    context,
    noun: ["topic", "topics"],
    search: "Search topics",
    sorts: SORTS,
    key: (topic) => topic.name,
    columns: [
      { title: "Topic", wide: true, sort: "name", cell: (topic) => topicLink(topic.name) },
      { title: "Messages", numeric: true, sort: "messages", descending: true, cell: (topic) => count(topic.messages) },
      { title: "Last offset", numeric: true, sort: "last", descending: true, cell: (topic) => topic.last_offset ? count(topic.last_offset) : "–" },
      { title: "Subscriptions", numeric: true, cell: (topic) => count(topic.subscriptions) },
    ],
    async load({ signal, ...query }) {
      const page = await get(path("topics"), { query, signal });
      return { rows: page.topics, next: page.next, total: page.total };
    },
    empty: emptyState("No topics yet", "The first message or subscription creates a topic.",
      ["braidmq publish hello '{\"n\": 1}'"]),
  });
  return {
    title: "Topics",
    element: h("div", {}, heading("Topics", {
      about: "Named streams of messages, in one log, for every strand.",
      actions: [h("button", { type: "button", onclick: openTopic }, "Publish to a topic…")],
    }), topics.element),
  };
}

function openTopic() {
  const input = h("input", { id: "topic-name", autocomplete: "off", spellcheck: "false" });
  ask({
    title: "Publish to a topic",
    body: h("div", { class: "field" }, h("label", { for: "topic-name" }, "Topic"), input,
      h("p", { class: "muted hint-text" }, "Its first message creates it.")),
    action: "Continue",
    async submit() {
      if (!input.value) throw new Error("Enter a topic.");
      location.hash = `#/topics/${inAddress(input.value)}?publish=yes`;
    },
  });
}
