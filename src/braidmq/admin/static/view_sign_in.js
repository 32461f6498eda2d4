// Signing in with an API key, which is tested first and kept by this tab only.

import { DEV_KEY, get, keepKey, path } from "./api.js";
import { busy, fill, h } from "./dom.js";
import { sentence } from "./notices.js";
import { command } from "./pieces.js";

/** Return the form; *enter* is called with the session once a key is accepted. */
export function signIn({ dev, problem, enter }) {
  const told = h("p", { class: "problem", id: "sign-in-problem", role: "alert" }, problem);
  const input = h("input", {
    type: "password", id: "key", autocomplete: "current-password", spellcheck: "false", required: true,
    "aria-describedby": "sign-in-problem",
  });
  const button = h("button", { type: "submit", class: "primary" }, "Sign in");

  const attempt = (key) => busy(button, () => tried(key));

  async function tried(key) {
    fill(told);
    try {
      const session = await get(path("session"), { trial: key });
      keepKey(key);
      enter(session);
    } catch (error) {
      fill(told, error.status === 401 ? "Unknown API key." : sentence(error));
      input.setAttribute("aria-invalid", "true");
      input.select();
    }
  }

  function onsubmit(event) {
    event.preventDefault();
    const key = input.value.trim();
    // fetch would throw on characters that a header cannot hold, so no key contains them.
    if (/^[\x21-\x7e]+$/.test(key)) attempt(key);
    else fill(told, key ? "A key holds only printable ASCII characters, and no spaces." : "Enter an API key.");
  }

  return h("div", { class: "sign-in" },
    h("form", { class: "panel", onsubmit, novalidate: true },
      h("h1", { tabindex: "-1" }, "Sign in"),
      h("p", { class: "muted" }, "Use an API key of this broker. The key is kept until you close this tab."),
      h("div", { class: "field" }, h("label", { for: "key" }, "API key"), input),
      told,
      h("div", { class: "actions" }, button,
        dev && h("button", { type: "button", onclick: () => attempt(DEV_KEY) }, "Use the development key"))),
    h("details", { class: "hint" },
      h("summary", {}, "No key yet?"),
      h("p", { class: "muted" }, "Create a key on the broker's machine, add the printed block to the configuration, and restart the broker:"),
      command("braidmq keys new --name me --publish '*' --subscribe '*' --admin")));
}
