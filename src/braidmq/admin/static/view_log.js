// The log: segments, their sizes and integrity; files in quarantine.

import { get, path, post } from "./api.js";
import { busy, every, fill, h, redraw } from "./dom.js";
import { bytes, count, duration, plural } from "./format.js";
import { complain, say, sentence } from "./notices.js";
import { badge, emptyState, heading, panel, tiles } from "./pieces.js";
import { me } from "./session.js";
import { table } from "./table.js";

const REFRESH_MS = 10_000;

export function view({ signal }) {
  const problem = h("div", {});
  const place = h("div", {}, h("p", { class: "muted" }, "Loading…"));
  const verify = h("button", { type: "button", onclick: () => busy(verify, check) }, "Verify sealed segments");
  let read = false;
  let checked = null; // the results of a check, kept until the page is left

  async function refresh() {
    try {
      draw(place, merged(await get(path("log"), { signal }), checked));
      redraw(problem);
      read = true;
    } catch (error) {
      if (signal.aborted) return;
      redraw(problem, h("div", { class: "problem-box", role: "alert" }, sentence(error)));
      // Keep the last answer: a broker with a damaged log ends, and this shows where the damage is.
      if (!read) redraw(place);
    }
  }

  async function check() {
    fill(verify, "Verifying…");
    try {
      const found = await post(path("log", "verify"), {}, { long: true });
      checked = new Map(found.segments.map((segment) => [segment.name, segment.verified]));
      const bad = found.segments.filter((segment) => segment.verified === false).length;
      if (bad) complain(new Error(`${plural(bad, "segment is", "segments are")} damaged: run braidmq wal verify on the broker's machine`));
      else say(`${plural(found.segments.filter((s) => s.verified).length, "sealed segment")} verified, no damage.`);
      draw(place, found);
    } catch (error) {
      complain(error);
    } finally {
      fill(verify, "Verify sealed segments");
    }
  }

  every(REFRESH_MS, refresh, signal);
  return {
    title: "Log",
    element: h("div", {}, heading("Log", {
      about: "The broker writes every durable message here before it confirms the publish.",
      actions: me.admin ? [verify] : [],
    }), problem, place),
  };
}

function merged(log, checked) {
  if (checked) for (const segment of log.segments) segment.verified ??= checked.get(segment.name) ?? null;
  return log;
}

function draw(place, log) {
  const largest = Math.max(1, ...log.segments.map((segment) => segment.bytes));
  const shown = table({
    caption: "Segments",
    key: (segment) => segment.name,
    columns: [
      { title: "Segment", wide: true, cell: (segment) => h("code", {}, segment.name) },
      { title: "Ids", numeric: true, cell: (segment) => range(segment) },
      { title: "Size", cell: (segment) => sizeBar(segment.bytes, largest) },
      { title: "State", cell: (segment) => segment.sealed ? "sealed" : "open" },
      { title: "Integrity", cell: integrity },
    ],
  });
  shown.render(log.segments);
  redraw(place,
    log.poisoned && h("div", { class: "problem-box", role: "alert" }, "A write to the log failed, so the broker accepts nothing more. Check the disk, then restart the broker."),
    log.full && h("div", { class: "problem-box", role: "alert" }, "The disk is full: publishes are refused until there is space. Consumers are not affected."),
    tiles([
      { label: "Size", value: bytes(log.bytes), note: plural(log.segments_total ?? log.segments.length, "segment") },
      { label: "Committed id", value: count(log.committed_id) },
      { label: "fsync", value: log.fsync },
      { label: "Retention", value: kept(log), note: "longer while a reader needs it" },
      { label: "Quarantined", value: count(log.quarantine.length), note: "incomplete writes", kind: log.quarantine.length ? "warn" : "" },
    ]),
    panel("Segments", log.segments.length ? shown.element : emptyState("The log is empty", "The first durable message creates its first segment.", ["braidmq publish hello '{\"n\": 1}'"])),
    log.quarantine.length > 0 && panel("Quarantine", h("p", { class: "muted" }, "Bytes after the last complete record, found when the broker started. They were never confirmed to a publisher."),
      quarantine(log.quarantine)));
}

function kept(log) {
  const limits = [
    log.retention_hours && duration(log.retention_hours * 3600),
    log.retention_bytes && bytes(log.retention_bytes),
  ].filter(Boolean);
  return limits.join(", ") || "unlimited";
}

function range(segment) {
  return segment.last_id === null || segment.last_id < segment.first_id
    ? h("span", { class: "muted" }, "empty")
    : `${count(segment.first_id)} – ${count(segment.last_id)}`;
}

function sizeBar(size, largest) {
  const fillBar = h("i", { "aria-hidden": "true" });
  fillBar.style.inlineSize = `${Math.max(1, (100 * size) / largest)}%`;
  return h("span", { class: "size-bar" }, h("span", { class: "track" }, fillBar), h("span", {}, bytes(size)));
}

function integrity(segment) {
  if (segment.verified === true) return badge("verified", "good");
  if (segment.verified === false) return badge("damaged", "bad");
  return h("span", { class: "muted" }, segment.sealed ? "not checked" : "being written");
}

function quarantine(files) {
  const shown = table({
    caption: "Quarantine",
    key: (file) => file.name,
    columns: [
      { title: "File", wide: true, cell: (file) => h("code", {}, file.name) },
      { title: "Size", numeric: true, cell: (file) => bytes(file.bytes) },
    ],
  });
  shown.render(files);
  return shown.element;
}
