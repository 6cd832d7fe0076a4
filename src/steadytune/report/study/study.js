// The page is complete without this. It adds sorting by any column, and a filter over the trials.
"use strict";
(() => {
  // "0.823 ± 0.04 *" sorts by 0.823, "1,600" by 1600; a cell that does not begin with a number has none.
  const number = (text) => {
    const found = /^[<>≤≥~]?\s*([-−+]?(?:\d[\d,]*)?\.?\d+(?:e[-+]?\d+)?)/i.exec(text);
    return found ? Number(found[1].replace("−", "-").replaceAll(",", "")) : NaN;
  };
  const empty = (text) => text === "" || text === "–" || text === "-";

  const sorted = (rows, column, descending, holdsNumbers) => {
    const keyed = rows.map((row) => {
      const cell = row.cells[column];
      const text = cell.textContent.trim();
      const value = cell.dataset.v ? Number(cell.dataset.v) : number(text);
      return { row, text, value, missing: empty(text) };
    });
    const numeric = holdsNumbers && keyed.every((each) => each.missing || !Number.isNaN(each.value));
    const order = numeric ? (a, b) => a.value - b.value : (a, b) => a.text.localeCompare(b.text, "en", { numeric: true });
    const sign = descending ? -1 : 1;
    keyed.sort((a, b) => a.missing - b.missing || (a.missing ? 0 : sign * order(a, b)));  // what is missing stays last
    return keyed.map((each) => each.row);
  };

  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    const original = [...body.rows];
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      if (head.classList.contains("unsorted")) return;
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const next = { ascending: "descending", descending: "none" }[head.getAttribute("aria-sort")] ?? "ascending";
        for (const each of heads) each.removeAttribute("aria-sort");
        if (next !== "none") head.setAttribute("aria-sort", next);
        const holdsNumbers = head.classList.contains("n");
        const rows = next === "none" ? original : sorted(original, column, next === "descending", holdsNumbers);
        for (const row of rows) body.append(row);
      });
    });
  }

  const tables = [...document.querySelectorAll("table.trials")];
  const rows = tables.flatMap((table) => [...table.tBodies[0].rows]);
  if (rows.length < 2) return;
  const states = [...new Set(rows.map((row) => row.className))].sort();
  const form = document.createElement("form");
  form.className = "filter";
  const words = document.createElement("input");
  words.type = "search";
  words.setAttribute("aria-label", "Show trials that contain these words");
  words.placeholder = "Filter trials by words";
  const state = document.createElement("select");
  state.setAttribute("aria-label", "Show trials of this status");
  for (const each of ["", ...states]) state.append(new Option(each || "any status", each));
  const told = document.createElement("output");
  form.append(words, state, told);
  form.addEventListener("submit", (event) => event.preventDefault());
  const filter = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = (state.value && row.className !== state.value) || !wanted.every((word) => text.includes(word));
      shown += !row.hidden;
    }
    told.value = `${shown.toLocaleString("en")} of ${rows.length.toLocaleString("en")} trials`;
  };
  form.addEventListener("input", filter);
  document.querySelector("#trials h3").before(form);
  filter();
})();
