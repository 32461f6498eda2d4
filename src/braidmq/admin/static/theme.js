// The theme: the system's preference, unless the user has chosen one here.
//
// A classic script that runs before the first paint; main.js uses it as `braidmqTheme`.

"use strict";

globalThis.braidmqTheme = (() => {
  const PLACE = "braidmq.theme";
  const THEMES = ["auto", "light", "dark"];

  function chosen() {
    try {
      const theme = localStorage.getItem(PLACE);
      return THEMES.includes(theme) ? theme : "auto";
    } catch {
      return "auto"; // storage may be blocked; then the choice is not remembered
    }
  }

  function choose(theme) {
    document.documentElement.dataset.theme = theme;
    try {
      localStorage.setItem(PLACE, theme);
    } catch {
      // As above.
    }
  }

  function next() {
    const theme = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
    choose(theme);
    return theme;
  }

  document.documentElement.dataset.theme = chosen();
  return { next };
})();
