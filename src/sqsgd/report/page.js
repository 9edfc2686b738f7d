"use strict";
(() => {
  const report = JSON.parse(document.getElementById("report-data").textContent);
  const root = document.documentElement;
  const toggle = document.getElementById("theme");
  const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
  const printing = window.matchMedia("print");
  const precise = window.matchMedia("(pointer: fine)").matches;
  const hidden = new Set();
  const live = document.querySelector("meta[http-equiv=refresh]") !== null;

  // A page that refreshes itself keeps what its reader has chosen.
  function remember() {
    const kept = { theme: root.dataset.theme, hidden: [...hidden], top: window.scrollY };
    try { sessionStorage.setItem(location.pathname, JSON.stringify(kept)); } catch { /* no storage here */ }
  }

  function recalled() {
    try { return JSON.parse(sessionStorage.getItem(location.pathname)) ?? {}; } catch { return {}; }
  }

  // The content security policy admits this script by its hash.
  async function unpackPlotly() {
    const packed = atob(document.getElementById("plotly").textContent);
    const bytes = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
    const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(plain).text();
    document.head.append(script);
  }

  function isDark() {
    return root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches;
  }

  function colouredTrace(trace, theme) {
    const { role, colour, series } = trace.meta;
    const paint = theme.series[colour];
    const visible = !hidden.has(series);
    if (role === "band") return { ...trace, visible, fillcolor: paint + "2e" };
    if (role === "line") return { ...trace, visible, line: { ...trace.line, color: paint } };
    const marker = { ...trace.marker, color: paint };
    if (role === "bar") {
      return { ...trace, marker: { ...marker, pattern: { ...marker.pattern, fgcolor: theme.surface } } };
    }
    return { ...trace, visible, marker };
  }

  function colouredLayout(layout, theme) {
    const axis = { gridcolor: theme.line, linecolor: theme.muted, tickcolor: theme.muted };
    return {
      ...layout,
      dragmode: precise ? "zoom" : false,
      font: { ...layout.font, color: theme.ink },
      hoverlabel: { bgcolor: theme.surface, bordercolor: theme.muted, align: "left", font: { color: theme.ink } },
      xaxis: { ...layout.xaxis, ...axis },
      yaxis: { ...layout.yaxis, ...axis },
    };
  }

  function draw() {
    toggle.setAttribute("aria-pressed", String(isDark()));
    if (!window.Plotly) return;
    const theme = isDark() && !printing.matches ? report.themes.dark : report.themes.light;
    for (const [name, figure] of Object.entries(report.figures)) {
      const data = figure.data.map((trace) => colouredTrace(trace, theme));
      const layout = colouredLayout(figure.layout, theme);
      Plotly.react(`plot-${name}`, data, layout, { displayModeBar: false, responsive: true });
    }
  }

  function show(box) {
    const series = Number(box.value);
    if (box.checked) hidden.delete(series);
    else hidden.add(series);
    for (const entry of document.querySelectorAll(`.key [data-series="${series}"]`)) {
      entry.hidden = !box.checked;
    }
  }

  function sortBy(header) {
    const table = header.closest("table");
    const body = table.tBodies[0];
    const column = header.cellIndex;
    const before = header.getAttribute("aria-sort");
    const opposite = { ascending: "descending", descending: "ascending" };
    const order = before ? opposite[before] : header.dataset.first;
    const sign = order === "ascending" ? 1 : -1;
    const rows = Array.from(body.rows, (row) => {
      const cell = row.cells[column];
      const numeric = "value" in cell.dataset;
      const missing = numeric && cell.dataset.value === "";
      return { row, missing, key: numeric ? Number(cell.dataset.value) : cell.textContent.trim() };
    });
    rows.sort((a, b) => {
      if (a.missing || b.missing) return Number(a.missing) - Number(b.missing);
      if (typeof a.key === "string") return sign * a.key.localeCompare(b.key, "en", { numeric: true });
      return a.key === b.key ? 0 : a.key < b.key ? -sign : sign;
    });
    body.append(...rows.map((each) => each.row));
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", order);
    document.getElementById("sorted").textContent = `Sorted by ${header.textContent.trim()}, ${order}.`;
  }

  const kept = live ? recalled() : {};
  if (kept.theme) root.dataset.theme = kept.theme;
  toggle.hidden = false;
  toggle.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    draw();
  });
  prefersDark.addEventListener("change", draw);
  printing.addEventListener("change", draw);
  for (const button of document.querySelectorAll("#results-table thead button")) {
    button.addEventListener("click", () => sortBy(button.closest("th")));
  }
  for (const box of document.querySelectorAll(".choice input")) {
    box.checked = !(kept.hidden ?? []).includes(Number(box.value));
    show(box);
    box.addEventListener("change", () => {
      show(box);
      draw();
    });
  }
  if (live) window.addEventListener("pagehide", remember);
  window.drawn = unpackPlotly().then(() => {
    draw();
    if (kept.top) window.scrollTo({ top: kept.top, behavior: "instant" });
  });
})();
