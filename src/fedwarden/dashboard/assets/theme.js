/* What only the browser knows: whether it prefers dark pages, the title of its window, and what did not arrive. */
(function () {
  function lost(event) {
    if (event.target.tagName !== "SCRIPT") return;
    document.body.textContent = "A part of this page did not arrive. The page is loaded again in five seconds.";
    window.setTimeout(() => window.location.reload(), 5000);
  }
  window.addEventListener("error", lost, true);
  const prefers = window.matchMedia("(prefers-color-scheme: dark)");
  prefers.addEventListener("change", () => window.dash_clientside.set_props("scheme", { data: Date.now() }));
  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    fedwarden: {
      theme: function (choice, _changed, search) {
        const asked = new URLSearchParams(search || "").get("theme");
        const theme = asked === "light" || asked === "dark" ? asked : choice;
        const dark = theme === "dark" || (theme !== "light" && prefers.matches);
        document.documentElement.dataset.theme = dark ? "dark" : "light";
        return dark;
      },
      title: function (title) {
        document.title = title ? title + " · fedwarden" : "fedwarden";
        return title || "";
      },
    },
  });
})();
