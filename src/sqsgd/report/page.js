"use strict";
(() => {
  const { charts, config } = JSON.parse(document.getElementById("report-data").textContent);
  const root = document.documentElement;
  const toggle = document.getElementById("theme");
  const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);
  const press = () => toggle.setAttribute("aria-pressed", String(isDark()));

  // The content security policy admits Vega by its hash, and forbids eval: "ast" interprets expressions.
  async function draw() {
    const packed = atob(document.getElementById("vega").textContent.trim());
    if (!packed) return;
    const bytes = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
    const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(plain).text();
    document.head.append(script);
    const size = { width: "container", height: 260, autosize: { type: "fit-x", contains: "padding" } };
    const options = { actions: false, ast: true, config, renderer: "svg" };
    for (const [place, chart] of Object.entries(charts)) {
      await vegaEmbed(place, { ...size, ...chart }, options);
    }
  }

  function sortBy(header) {
    const table = header.closest("table");
    const column = header.cellIndex;
    const before = header.getAttribute("aria-sort");
    const rows = Array.from(table.tBodies[0].rows, (row) => {
      const { value } = row.cells[column].dataset;
      return { row, missing: value === "", key: value === undefined ? row.cells[column].textContent : Number(value) };
    });
    const numeric = typeof rows[0].key === "number";
    const order = (before ? before === "descending" : !numeric) ? "ascending" : "descending";
    const sign = order === "ascending" ? 1 : -1;
    rows.sort((a, b) => {
      if (a.missing || b.missing) return Number(a.missing) - Number(b.missing);
      if (!numeric) return sign * a.key.localeCompare(b.key, "en", { numeric: true });
      return a.key === b.key ? 0 : a.key < b.key ? -sign : sign;
    });
    table.tBodies[0].append(...rows.map((each) => each.row));
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", order);
    document.getElementById("sorted").textContent = `Sorted by ${header.textContent}, ${order}.`;
  }

  press();
  toggle.hidden = false;
  toggle.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    press();
  });
  prefersDark.addEventListener("change", press);
  for (const button of document.querySelectorAll("table.results thead button")) {
    button.addEventListener("click", () => sortBy(button.closest("th")));
  }
  window.drawn = draw();
})();
