// Browse a topic from the newest message, the oldest, an offset or a time; page by page, or live.
//
// With the newest on top, new messages appear as they arrive, unless Follow is off. While the
// user is reading (has opened a message or scrolled down), the page only says that there are more.

import { get, path } from "./api.js";
import { busy, every, fill, h, pause } from "./dom.js";
import { ZONE, count, localInput } from "./format.js";
import { messageHeads, messageRow } from "./messages.js";
import { sentence } from "./notices.js";
import { command } from "./pieces.js";

const PAGE_MESSAGES = 50;
const SHOWN_MAX = 500;
const FOLLOW_MS = 1_000;
const BREATH_MS = 50; // between two requests of a long search, to leave the broker time for others

/**
 * Return `{element, showNewest(), topicIsThere()}` for the messages of *topic*.
 *
 * Call `topicIsThere` when the broker reports the topic: it may be created while its page is
 * open.
 */
export function browser({ topic, section, query, signal }) {
  const rows = h("div", { class: "messages", role: "list" });
  const told = h("div", { class: "messages-told", role: "status" });
  const more = h("button", { type: "button", hidden: true, onclick: () => busy(more, turn) }, "More");
  const searching = searchBar(() => looking.abort());
  const controls = browseControls(query, { go, showNew });
  let state = { order: "desc" };
  let next = null;
  let last = 0; // the newest offset shown; following continues after it
  let looking = new AbortController(); // of the current request; answers to older ones are ignored
  let settled = false; // whether a page is shown that new messages can be put on top of
  let failed = false; // whether a retry might succeed

  async function page(wanted, until) {
    return get(path("topics", topic, "messages"), { query: { ...wanted, limit: PAGE_MESSAGES }, signal: until, exact: true });
  }

  /**
   * Return the first page that has messages, or the last one.
   *
   * The broker searches a part of the log at a time, so a page may be empty and name the next
   * one; *step* is called with the start of each.
   */
  async function search(wanted, until, step = () => {}) {
    let found = await page(wanted, until);
    while (found.messages.length === 0 && found.next !== null) {
      step(found.next);
      await pause(BREATH_MS, until);
      found = await page({ order: wanted.order, from: found.next }, until);
    }
    return found;
  }

  function item(message) {
    last = Math.max(last, message.offset);
    return h("div", { role: "listitem" }, messageRow(topic, message, { section }));
  }

  async function go(wanted, { remember = true } = {}) {
    state = wanted;
    next = null;
    last = 0;
    settled = false;
    failed = false;
    controls.offerNew(false);
    searching.hide();
    if (remember && !signal.aborted) keep(wanted);
    fill(told, "Loading…");
    await look(wanted, (items) => fill(rows, items));
  }

  async function turn() {
    if (next !== null) await look({ order: state.order, from: next }, (items) => rows.append(...items));
  }

  /** Load a page and *put* its rows; a search of several steps shows how far it is. */
  async function look(wanted, put) {
    looking.abort();
    const mine = new AbortController();
    looking = mine;
    const wasSettled = settled;
    settled = false; // put nothing on top meanwhile
    try {
      const found = await search(wanted, AbortSignal.any([signal, mine.signal]), (from) => {
        put([]); // do not leave the rows of an older search there
        next = from;
        fill(told);
        searching.show(reached());
        if (document.activeElement === more) searching.focus();
        more.hidden = true;
      });
      if (mine !== looking) return;
      put(found.messages.map(item));
      next = found.next;
      settled = true;
      fill(told, !rows.hasChildNodes() && nothing(topic, state));
    } catch (error) {
      if (mine !== looking) return;
      settled = wasSettled;
      fail(error, mine.signal.aborted);
    }
    settle();
  }

  /** Return how far nothing was found; `next` is the first offset not yet searched. */
  function reached() {
    return state.order === "desc" ? `down to offset ${count(next)}` : `up to offset ${count(next - 1)}`;
  }

  function settle() {
    if (looking.signal.aborted) looking = new AbortController(); // it was stopped; following continues
    more.hidden = next === null;
    fill(more, state.order === "desc" ? "Older messages" : "Newer messages");
    if (searching.hide() && !more.hidden) more.focus();
  }

  function fail(error, stopped) {
    if (signal.aborted) return;
    if (stopped) {
      fill(told, h("p", { class: "muted nothing" }, `Stopped. Nothing ${rows.hasChildNodes() ? "more " : ""}was found ${reached()}.`));
      return;
    }
    failed = !settled && next === null && error.status !== 403;
    const refused = error.status === 403 ? "This key cannot read the topic: it lacks the subscribe permission." : sentence(error);
    fill(told, error.status === 404 ? noMessages(topic, "No messages yet") : h("div", { class: "problem-box", role: "alert" }, refused));
  }

  function isReading() {
    return rows.querySelector("details[open]") !== null || (rows.hasChildNodes() && rows.getBoundingClientRect().top < 0);
  }

  /** Show new messages on top; if the user is reading and has not *asked*, offer them instead. */
  async function lookForNew(asked = false) {
    if (!settled || !controls.isFollowing() || (controls.offersNew() && !asked && isReading())) return;
    const mine = looking;
    const until = AbortSignal.any([signal, mine.signal]);
    try {
      const found = await search({ order: "asc", from: last + 1 }, until);
      const all = found.next === null;
      const newest = all ? found.messages : (await page({ order: "desc" }, until)).messages.reverse();
      const fresh = newest.filter((message) => message.offset > last);
      if (!controls.isFollowing() || mine !== looking || fresh.length === 0) return;
      if (!asked && isReading()) {
        controls.offerNew(true);
        return;
      }
      controls.offerNew(false);
      fill(told);
      if (fresh[0].offset > found.messages[0].offset) rows.prepend(gap());
      rows.prepend(...fresh.map(item).reverse());
      trim();
    } catch {
      // The header shows when the broker is unreachable; the next attempt may succeed.
    }
  }

  /** Drop the oldest rows, so that a page open for days stays small; "Older" loads them again. */
  function trim() {
    if (rows.childElementCount <= SHOWN_MAX) return;
    while (rows.childElementCount > SHOWN_MAX || rows.lastElementChild.matches(".messages-gap")) rows.lastElementChild.remove();
    next = Number(rows.lastElementChild.querySelector(".message").dataset.offset);
    settle();
  }

  async function showNew() {
    await lookForNew(true);
    rows.querySelector("summary")?.focus();
  }

  async function topicIsThere() {
    if (failed) await go(state, { remember: false });
  }

  async function showNewest() {
    controls.set({ order: "desc" });
    await go({ order: "desc" });
  }

  go(controls.wanted(), { remember: false });
  every(FOLLOW_MS, lookForNew, signal);
  return {
    element: h("section", { class: "panel messages-panel", "aria-label": "Messages" },
      h("h2", {}, "Messages"), controls.element, told, messageHeads(), rows, h("div", { class: "actions" }, more, searching.element)),
    showNewest,
    topicIsThere,
  };
}

/** Return `{element, show(words), hide(), focus()}`: the progress of a search, with a stop button. */
function searchBar(stop) {
  // A screen reader should announce the search once, not every number.
  const far = h("span", { "aria-live": "off" });
  const button = h("button", { type: "button", onclick: stop }, "Stop");
  const element = h("div", { class: "searching", role: "status", hidden: true }, h("span", { class: "muted" }, "Searching… nothing found yet ", far), button);
  return {
    element,
    show(words) {
      fill(far, words);
      element.hidden = false;
    },
    /** Hide it; return whether it had the focus. */
    hide() {
      const focused = document.activeElement === button;
      element.hidden = true;
      return focused;
    },
    focus: () => button.focus(),
  };
}

function gap() {
  return h("div", { role: "listitem", class: "muted messages-gap" },
    "Messages arrive faster than the page can show them; some are skipped here.");
}

/** Keep the position in the address. */
function keep(wanted) {
  const kept = new URLSearchParams(Object.entries(wanted).filter(([name, value]) => value !== "" && !(name === "order" && value === "desc")));
  history.replaceState(null, "", location.hash.split("?")[0] + (kept.size ? `?${kept}` : ""));
}

function nothing(topic, wanted) {
  if (wanted.from || wanted.time) return h("p", { class: "muted nothing" }, "No messages from this point on.");
  return noMessages(topic, "No messages in the log");
}

function noMessages(topic, title) {
  // Do not suggest a command with a name that the shell would split or expand.
  const word = /^[\w.-]{1,64}$/.test(topic) ? topic : "TOPIC";
  return h("div", { class: "empty" }, h("p", { class: "empty-title" }, title),
    h("p", { class: "muted" }, "Publish one with the button above, or from a terminal:"), command(`braidmq publish ${word} '{"n": 1}'`));
}

function browseControls(query, { go, showNew }) {
  const start = h("select", { id: "browse-start", onchange: changed },
    h("option", { value: "newest" }, "Newest first"), h("option", { value: "oldest" }, "Oldest first"),
    h("option", { value: "offset" }, "From offset"), h("option", { value: "time" }, "From time"));
  const offset = h("input", { id: "browse-offset", inputmode: "numeric", "aria-label": "Offset", placeholder: "offset" });
  const time = h("input", { id: "browse-time", type: "datetime-local", step: "1", "aria-label": `Time in ${ZONE}` });
  const zone = h("span", { class: "muted" }, ZONE);
  const button = h("button", { type: "submit" }, "Show");
  const live = h("input", { type: "checkbox", id: "follow", checked: true, onchange: () => offerNew(false) });
  const liveLabel = h("label", { class: "check" }, live, "Follow");
  const fresh = h("button", { type: "button", hidden: true, onclick: () => busy(fresh, showNew) }, "Show new messages");
  const problem = h("span", { class: "problem", role: "alert" });

  function hideUnused() {
    offset.hidden = start.value !== "offset";
    time.hidden = zone.hidden = start.value !== "time";
    liveLabel.hidden = start.value !== "newest";
  }

  function changed() {
    hideUnused();
    offerNew(false);
    if (start.value === "time" && !time.value) time.value = localInput(new Date(Date.now() - 3_600_000));
    if (start.value === "newest" || start.value === "oldest") go(wanted());
    else (start.value === "offset" ? offset : time).focus();
  }

  function wanted() {
    if (start.value === "oldest") return { order: "asc" };
    if (start.value === "offset") return { order: "asc", from: offset.value.replace(/[,\s]/g, "") };
    if (start.value === "time") return { order: "asc", time: new Date(time.value).toISOString() };
    return { order: "desc" };
  }

  function onsubmit(event) {
    event.preventDefault();
    fill(problem);
    if (start.value === "offset" && !/^\d+$/.test(offset.value.replace(/[,\s]/g, ""))) fill(problem, "The offset must be a whole number.");
    else if (start.value === "time" && Number.isNaN(Date.parse(time.value))) fill(problem, "Choose a date and a time.");
    else go(wanted());
  }

  function set(to) {
    start.value = to.from ? "offset" : to.time ? "time" : to.order === "asc" ? "oldest" : "newest";
    if (to.from) offset.value = count(Number(to.from));
    if (to.time) time.value = localInput(new Date(to.time));
    hideUnused();
  }

  function offerNew(on) {
    fresh.hidden = !on;
  }

  const given = { from: query.get("from"), time: query.get("time"), order: query.get("order") ?? "desc" };
  if (given.from && !/^\d+$/.test(given.from)) given.from = null; // edited by hand in the address
  if (given.time && Number.isNaN(Date.parse(given.time))) given.time = null;
  set(given);
  return {
    element: h("form", { class: "toolbar", onsubmit, novalidate: true },
      h("label", { class: "unseen-text", for: "browse-start" }, "Start at"), start, offset, time, zone, button, liveLabel, h("span", { role: "status" }, fresh), problem),
    wanted,
    set,
    isFollowing: () => start.value === "newest" && live.checked,
    offerNew,
    offersNew: () => !fresh.hidden,
  };
}
