// The page: signing in, choosing the view for the address, and the frame around the views.

import { DEV_KEY, get, keepKey, keyState, onRefused, path } from "./api.js";
import { fill, h, icon, pause, unseen } from "./dom.js";
import { ZONE, count } from "./format.js";
import { newest, startLive, stopLive, watch } from "./live.js";
import { named } from "./names.js";
import { clear, sentence } from "./notices.js";
import { heading } from "./pieces.js";
import { load, match } from "./router.js";
import { me } from "./session.js";
import { signIn } from "./view_sign_in.js"; // loaded now: the broker may be unreachable when it is needed

const LIVE_WORDS = { idle: "", connecting: "Connecting…", live: "Live", reconnecting: "Reconnecting…" };
const RETRY_MS = 2_000;

const byId = (id) => document.getElementById(id);
const main = byId("main");
let leaving = new AbortController();
let first = true;

// --- signing in and out -----------------------------------------------------------------------

/** Sign in with this tab's key or the development key; otherwise ask for one. */
async function begin() {
  let session;
  try {
    session = await get(path("session"), { trial: null });
  } catch (error) {
    cannotStart(error);
    return;
  }
  me.dev = session.dev === true;
  fill(byId("version"), session.version ?? "");
  const { present, signedOut } = keyState();
  if (!present && me.dev && !signedOut) keepKey(DEV_KEY);
  if (!keyState().present) {
    askForKey();
    return;
  }
  try {
    enter(await get(path("session")));
  } catch (error) {
    if (error.status !== 401) cannotStart(error);
  }
}

function cannotStart(error) {
  document.body.dataset.state = "signed-out";
  fill(main, heading("The broker is not responding", { about: sentence(error) }),
    h("p", {}, "Retrying automatically."));
  setTimeout(begin, RETRY_MS);
}

function enter(session) {
  me.name = session.principal ?? "";
  me.admin = session.admin === true;
  document.body.dataset.state = "signed-in";
  fill(byId("who"), me.name && [unseen("Signed in as "), named(me.name, { max: 24 })]);
  byId("sign-out").hidden = false;
  startLive();
  show();
}

function askForKey(problem = "") {
  leaving.abort();
  stopLive();
  document.body.dataset.state = "signed-out";
  byId("sign-out").hidden = true;
  fill(byId("who"));
  document.title = "Sign in – BraidMQ";
  fill(main, signIn({ dev: me.dev, problem, enter }));
  main.dataset.view = "sign_in";
  main.querySelector("input").focus();
}

onRefused((error) => {
  keepKey(null);
  askForKey(sentence(error));
});

byId("sign-out").addEventListener("click", () => {
  keepKey(null);
  clear();
  askForKey();
});

// --- views ------------------------------------------------------------------------------------

async function show() {
  if (document.body.dataset.state !== "signed-in") return;
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const route = match(location.hash);
  closeMenu();
  mark(route?.section);
  if (!route) {
    put("nowhere", { title: "Not found", element: nowhere() });
    return;
  }
  let module;
  try {
    module = await load(route.module);
  } catch (error) {
    if (!signal.aborted) await waitForBroker(error, signal);
    return;
  }
  try {
    if (!signal.aborted) put(route.module, module.view({ ...route, signal, mark }));
  } catch (error) {
    cannotShow(error);
  }
}

function cannotShow(error, ...more) {
  put("error", { title: "Error", element: h("div", {}, heading("This page could not be shown", { about: sentence(error) }), more) });
}

/** Report that a view could not be loaded, and reload the page once the broker answers. */
async function waitForBroker(error, signal) {
  const answers = () => get(path("session"), { trial: null, signal }).then(() => null, (reason) => reason);
  let reason = await answers();
  if (signal.aborted) return;
  // If the broker answers, it does not have the view: reloading repeatedly would not help.
  if (reason === null) return cannotShow(error, h("button", { type: "button", onclick: () => location.reload() }, "Reload"));
  cannotShow(reason, h("p", {}, "Retrying automatically."));
  while (reason !== null && !signal.aborted) {
    await pause(RETRY_MS, signal);
    reason = await answers();
  }
  // Browsers may cache a module's failure until the page is reloaded.
  if (!signal.aborted) location.reload();
}

function put(name, { title, element }) {
  document.title = `${title} – BraidMQ`;
  fill(main, element);
  main.dataset.view = name;
  scrollTo(0, 0);
  // Screen readers continue at the title of the new view; after loading they start at the top.
  if (!first) main.querySelector("h1")?.focus({ preventScroll: true });
  first = false;
}

function nowhere() {
  return h("div", {}, heading("Page not found"), h("p", {}, h("a", { href: "#/overview" }, "Go to the overview")));
}

function mark(section) {
  for (const link of document.querySelectorAll(".side a")) {
    if (link.hash === `#/${section}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

addEventListener("hashchange", () => {
  if (location.hash !== "#main") show();
});

byId("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address is the view's
  main.focus();
});

// --- around the views ---------------------------------------------------------------------------

function closeMenu() {
  document.body.classList.remove("menu-open");
  byId("menu").setAttribute("aria-expanded", "false");
}

byId("menu").addEventListener("click", () => {
  const open = document.body.classList.toggle("menu-open");
  byId("menu").setAttribute("aria-expanded", String(open));
});

addEventListener("keydown", (event) => {
  if (event.key === "Escape" && document.body.classList.contains("menu-open")) {
    closeMenu();
    byId("menu").focus();
  }
});

function drawTheme(theme) {
  fill(byId("theme"), icon(theme), unseen(`Theme: ${theme}`));
  byId("theme").title = `Theme: ${theme}`;
}

byId("theme").addEventListener("click", () => drawTheme(globalThis.braidmqTheme.next()));
drawTheme(document.documentElement.dataset.theme);

fill(byId("zone"), `Times in ${ZONE}`);

watch(({ state }) => {
  const place = byId("live");
  if (place.dataset.state !== state) {
    place.dataset.state = state;
    place.lastElementChild.textContent = LIVE_WORDS[state];
  }
  const dead = newest()?.dead_letters ?? 0;
  fill(byId("dead-letter-tally"), dead > 0 && [count(dead), unseen(" waiting")]);
});

begin();
