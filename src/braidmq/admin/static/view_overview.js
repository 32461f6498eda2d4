// The overview: health, throughput, and where to look next.

import { get, path } from "./api.js";
import { chart } from "./chart.js";
import { every, h, redraw } from "./dom.js";
import { bytes, compact, count, duration, milliseconds, plural } from "./format.js";
import { newest, total, watch } from "./live.js";
import { sentence } from "./notices.js";
import { STRANDS, badge, command, copyButton, heading, panel, strandBadge, strandName, tiles } from "./pieces.js";
import { me } from "./session.js";

const REFRESH_MS = 5_000;

export function view({ signal }) {
  const numbers = h("div", {});
  const broker = h("div", {});
  const problem = h("div", { role: "alert" });
  const start = h("div", {});
  const charts = makeCharts();
  let facts = null;

  function drawNumbers() {
    if (facts) redraw(numbers, numberTiles(facts, newest()));
  }

  async function refresh() {
    try {
      facts = await get(path("overview"), { signal });
      const problems = [...(facts.ready ? [] : [facts.reason || "not ready"]), ...(facts.alarms ?? [])];
      redraw(problem, problems.map((one) => h("div", { class: "problem-box" }, h("span", {}, sentence(one)))));
      redraw(broker, brokerPanels(facts));
      redraw(start, facts.messages_published === 0 && facts.topics === 0 && firstSteps(facts));
      drawNumbers();
    } catch (error) {
      if (!signal.aborted) redraw(problem, h("div", { class: "problem-box" }, h("span", {}, sentence(error))));
    }
  }

  watch(({ points }) => {
    drawNumbers();
    for (const one of charts) one.draw(points);
  }, signal);
  every(REFRESH_MS, refresh, signal);

  return {
    title: "Overview",
    element: h("div", {},
      heading("Overview"),
      problem, start, numbers,
      h("div", { class: "charts" }, charts.map((one) => one.element)),
      broker),
  };
}

function numberTiles(facts, point) {
  const connections = point?.connections ?? facts.connections;
  const perSecond = h("span", { class: "unit" }, "/s");
  return tiles([
    { id: "in", label: "In", value: [compact(total(point?.in)), perSecond], note: `${compact(facts.messages_published)} in total` },
    { id: "out", label: "Out", value: [compact(total(point?.out)), perSecond.cloneNode(true)], note: `${compact(facts.messages_delivered)} in total` },
    { id: "backlog", label: "Backlog", value: compact(point?.backlog ?? facts.backlog), note: `${compact(point?.in_flight ?? facts.messages_inflight)} in flight`, href: "#/subscriptions" },
    { id: "dead", label: "Dead letters", value: compact(point?.dead_letters ?? facts.dead_letters), href: "#/dead-letters", kind: (point?.dead_letters ?? facts.dead_letters) ? "warn" : "" },
    { id: "topics", label: "Topics", value: compact(facts.topics), note: plural(facts.queues, "queue"), href: "#/topics" },
    { id: "connections", label: "Connections", value: compact(total(connections)), note: `${plural(facts.subscriptions, "subscription")}${me.admin ? "" : " in all"}`, href: "#/connections" },
    { id: "log", label: "Log", value: bytes(point?.log_bytes ?? facts.log_bytes), note: `fsync ${facts.fsync}`, href: "#/log" },
    { id: "uptime", label: "Uptime", value: duration(facts.uptime_s), note: facts.recovery_seconds !== undefined ? `recovered in ${milliseconds(1000 * facts.recovery_seconds)}` : null },
  ]);
}

function makeCharts() {
  const byStrand = (field) => STRANDS.map((strand) =>
    ({ name: strandName(strand), of: `of-${strand}`, value: (point) => point[field]?.[strand] }));
  const one = (name, of, field) => ({ name, of, value: (point) => point[field] });
  return [
    chart({ title: "Messages in", note: "per second", series: byStrand("in"), format: compact, stacked: true, floor: 10 }),
    chart({ title: "Messages out", note: "per second", series: byStrand("out"), format: compact, stacked: true, floor: 10 }),
    chart({ title: "Backlog", note: "messages", series: [one("Waiting", "of-main", "backlog"), one("In flight", "of-second", "in_flight")], format: compact, floor: 10 }),
    chart({ title: "Commit to disk", note: "fsync latency", series: [one("Median", "of-main", "fsync_p50_ms"), one("99th percentile", "of-second", "fsync_p99_ms")], format: milliseconds }),
    chart({ title: "Memory", note: "bytes", series: [one("Process", "of-main", "rss_bytes"), one("Messages held", "of-second", "memory_bytes")], format: bytes, floor: 1024 * 1024, binary: true }),
    chart({ title: "Event loop", note: "scheduling delay", series: [one("Delay", "of-main", "loop_lag_ms")], format: milliseconds, floor: 4 }),
  ];
}

function brokerPanels(facts) {
  const listeners = Object.entries(facts.listeners ?? {});
  const build = facts.build ?? {};
  const compiled = build.compiled_modules?.length ?? 0;
  const all = compiled + (build.interpreted_modules?.length ?? 0);
  return h("div", { class: "columns" },
    panel("Listening on", h("ul", { class: "listeners" }, listeners.map(([name, address]) =>
      h("li", {}, strandBadge(name),
        address ? [h("code", {}, address), copyButton(address, `Copy the address of ${strandName(name)}`)] : h("span", { class: "muted" }, "off"))))),
    panel("Health", h("ul", { class: "checks" },
      check(facts.ready, "Accepting work", facts.reason),
      check(facts.fsync === "always", facts.fsync === "always" ? "Confirms only what is on disk" : `fsync is “${facts.fsync}”: a power cut can lose confirmed messages`),
      memoryCheck(facts),
      roomCheck(facts),
      all > 0 && check(compiled === all, compiled === all ? "Hot modules compiled" : `${count(compiled)} of ${count(all)} hot modules compiled`, "", "info"))));
}

function memoryCheck(facts) {
  if (!facts.memory_limit_bytes) return null;
  const share = facts.memory_bytes / facts.memory_limit_bytes;
  return check(share < 0.9, `Messages use ${bytes(facts.memory_bytes)} of ${bytes(facts.memory_limit_bytes)}`);
}

/** Whether messages were lost or sent back because a queue or the memory had no room for them. */
function roomCheck(facts) {
  const lost = [
    facts.messages_dropped > 0 && `${plural(facts.messages_dropped, "message")} dropped`,
    facts.messages_refused > 0 && `${plural(facts.messages_refused, "publish", "publishes")} refused`,
  ].filter(Boolean);
  if (lost.length === 0) return check(true, "Nothing dropped or refused for lack of room");
  return check(false, [`${lost.join(", ")} since the start: `, h("a", { href: "#/queues?sort=waiting" }, "full queues")]);
}

function check(well, text, reason = "", otherwise = "warn") {
  return h("li", {}, badge(well ? "ok" : otherwise === "info" ? "note" : "check", well ? "good" : otherwise === "info" ? "" : "warn"),
    h("span", {}, text, reason && `: ${reason}`));
}

function firstSteps(facts) {
  const blip = facts.listeners?.blip;
  // Without --url the command line connects to a development broker on the default port.
  const usual = facts.dev && (!blip || blip === "127.0.0.1:5555");
  const url = usual ? "" : ` --url blip://${facts.dev ? "dev-key" : "KEY"}@${blip ?? "HOST:5555"}`;
  return h("section", { class: "empty first-steps", "aria-label": "First steps" },
    h("p", { class: "empty-title" }, "The broker is running and empty"),
    h("p", { class: "muted" }, "Subscribe first: a subscription receives only messages published after it."),
    command(`braidmq subscribe hello${url}`),
    h("p", { class: "muted" }, "Then publish in another terminal, or on this page under Topics."),
    command(`braidmq publish hello '{"n": 1}'${url}`));
}
