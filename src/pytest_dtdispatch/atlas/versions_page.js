"use strict";
(() => {
  document.documentElement.classList.add("active");
  const AT_ONCE = 100;
  const data = JSON.parse(document.getElementById("data").textContent);
  const { versions, rows } = data;
  const table = document.getElementById("versions");
  const controls = document.getElementById("controls");
  const more = document.getElementById("more");
  const texts = rows.map((row) => `${row.signature} ${row.on.map((cell) => (cell && cell.signature) || "").join(" ")}`.toLowerCase());
  const ANYWHERE = {
    moves: (cell) => Boolean(cell && cell.moves),
    no_hit: (cell) => Boolean(cell && cell.why_no_hit),
    unsupported: (cell) => Boolean(cell) && cell.outcome === "torch does not support it",
    no_rule: (cell) => cell === null,
  };
  // Of a cell, what is sorted by: nothing where there is no such figure.
  const FIGURES = {
    times: (cell) => cell.miss_ns,
    miss: (cell) => cell.miss_ns,
    hit: (cell) => cell.hit_ns,
    propagations: (cell) => (cell.outcome ? undefined : cell.propagations || 1),
  };
  const UNITS = { times: "miss ms, hit us", miss: "miss ms", hit: "hit us", propagations: "propagations" };
  let sorted = { column: -1, sign: 1 };
  let shown = [];
  let drawn = 0;

  readAddress();
  controls.addEventListener("input", draw);
  controls.addEventListener("reset", () => setTimeout(draw));
  controls.addEventListener("submit", (event) => event.preventDefault());
  window.addEventListener("hashchange", () => { if (readAddress()) draw(); });
  more.addEventListener("click", drawMore);
  if ("IntersectionObserver" in window) {
    new IntersectionObserver((seen) => seen.some((one) => one.isIntersecting) && drawMore(), { rootMargin: "400px" }).observe(more);
  }
  draw();

  // An address may name what is looked for: atlas_versions.html#find=mm.default
  function readAddress() {
    const found = /^#find=(.*)$/.exec(location.hash);
    if (found) controls.elements.text.value = decoded(found[1]);
    return Boolean(found);
  }

  function decoded(text) {
    try { return decodeURIComponent(text); } catch { return text; }
  }

  function value(name) { return controls.elements[name].value; }

  function draw() {
    const words = value("text").toLowerCase().split(/\s+/).filter(Boolean);
    const anywhere = ANYWHERE[value("anywhere")];
    const pair = Number(value("pair"));
    const isChanged = ([place, kind]) => (!pair || place === pair) && (!value("change") || kind === value("change"));
    shown = rows.filter((row, n) =>
      (!value("kind") || row.kind === value("kind")) &&
      (!value("mesh") || row.mesh === value("mesh")) &&
      (!anywhere || row.on.some(anywhere)) &&
      ((!pair && !value("change")) || (row.changes || []).some(isChanged)) &&
      words.every((word) => texts[n].includes(word)));
    if (sorted.column >= 0) shown = inOrder(shown);
    else if (sorted.sign < 0) shown.reverse();
    // mm.default before addmm.default, where mm.default is looked for
    const isNamed = (row) => words.some((word) => row.signature.toLowerCase().startsWith(word));
    if (sorted.column < 0) shown.sort((one, other) => isNamed(other) - isNamed(one));
    drawHead();
    table.tBodies[0].replaceChildren();
    drawn = 0;
    drawMore();
    document.getElementById("shown").textContent = `${shown.length.toLocaleString("en")} of ${rows.length.toLocaleString("en")} rows`;
  }

  // What has no figure comes last, in either order.
  function inOrder(some) {
    const figure = FIGURES[value("figures")];
    const keyed = some.map((row, n) => [row.on[sorted.column] ? figure(row.on[sorted.column]) : undefined, n, row]);
    keyed.sort(([one, m], [other, n]) =>
      one === undefined || other === undefined
        ? (one === undefined) - (other === undefined) || m - n
        : sorted.sign * (one - other) || m - n);
    return keyed.map(([, , row]) => row);
  }

  function drawHead() {
    const line = element("tr");
    line.append(headOf("signature", -1, 1, ""));
    versions.forEach((version, column) => line.append(headOf(version.heading, column, -1, UNITS[value("figures")])));
    table.tHead.replaceChildren(line);
  }

  function headOf(title, column, first, unit) {
    const head = element("th", column < 0 ? "l" : "r");
    const button = element("button", "", title);
    const isSorted = sorted.column === column;
    button.type = "button";
    button.addEventListener("click", () => {
      sorted = { column, sign: isSorted ? -sorted.sign : first };
      draw();
      table.tHead.rows[0].cells[column + 1].firstChild.focus();
    });
    head.scope = "col";
    if (isSorted) head.setAttribute("aria-sort", sorted.sign > 0 ? "ascending" : "descending");
    head.append(button);
    if (unit) head.append(element("span", "unit", unit));
    return head;
  }

  function drawMore() {
    const next = shown.slice(drawn, drawn + AT_ONCE);
    table.tBodies[0].append(...next.map(lineOf));
    drawn += next.length;
    more.hidden = drawn >= shown.length;
  }

  function lineOf(row) {
    const line = element("tr");
    const name = element("th", "l");
    const button = element("button", "name");
    const signature = element("bdi", "", row.signature);
    name.scope = "row";
    button.type = "button";
    button.setAttribute("aria-expanded", "false");
    button.append(signature);
    button.addEventListener("click", () => unfold(row, line, button));
    name.append(button);
    line.append(name, ...row.on.map((cell, place) => cellOf(row, cell, place)));
    return line;
  }

  function cellOf(row, cell, place) {
    const made = element("td", "r");
    made.dataset.title = versions[place].heading;
    if (cell) for (const text of figuresOf(cell)) made.append(element("span", "figure", text));
    const odd = oddOf(cell);
    if (odd) made.append(element("span", "odd", odd));
    for (const [at, kind, factor] of row.changes || []) {
      if (at === place && isShown(kind)) made.append(element("span", toneOf(kind), factor ? `${kind.split(" ")[1]} ${timesText(factor)}` : kind));
    }
    return made;
  }

  function isShown(kind) {
    const only = value("figures");
    const timed = /^(?:slower|faster) (hit|miss)$/.exec(kind);
    return !timed || only === "times" || only === timed[1];
  }

  function figuresOf(cell) {
    const key = value("figures");
    if (key === "propagations") {
      const count = FIGURES.propagations(cell);
      return count === undefined ? [] : [String(count)];
    }
    return [
      ...(key !== "hit" && cell.miss_ns ? [(cell.miss_ns / 1e6).toFixed(3)] : []),
      ...(key !== "miss" && cell.hit_ns ? [(cell.hit_ns / 1e3).toFixed(2)] : []),
    ];
  }

  function oddOf(cell) {
    if (cell === null) return "no rule";
    const short = {
      "ran once, and is not measured": "ran once",
      "torch takes the op apart before DTensor is asked": "taken apart",
      "torch does not support it": "unsupported",
      "raised after a fake collective that wrote nothing": "undefined",
      "torch has no kernel for this device": "no kernel",
      "no arguments made": "no arguments",
    };
    if (cell.outcome) return short[cell.outcome] || cell.outcome;
    return [cell.moves ? "redistributes" : "", cell.why_no_hit ? "never hits" : ""].filter(Boolean).join(", ");
  }

  function toneOf(kind) {
    if (/^slower|^more |^no longer|any more$/.test(kind) && kind !== "redistributes no more") return "mark bad";
    if (/^redistributes now/.test(kind)) return "mark bad";
    return /^faster|^fewer|^supported|^hits|no more$|^has a rule/.test(kind) ? "mark good" : "mark notice";
  }

  function timesText(factor) {
    return factor > 1 ? `\u2191 ${factor.toFixed(1)}x` : `\u2193 ${(1 / factor).toFixed(1)}x`;
  }

  function unfold(row, line, button) {
    const open = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!open));
    if (open) { line.nextSibling.remove(); return; }
    const detail = element("tr", "detail");
    const wide = element("td");
    wide.colSpan = versions.length + 1;
    const list = element("dl");
    row.on.forEach((cell, place) => list.append(element("dt", "", versions[place].heading), element("dd", "", said(cell))));
    wide.append(list);
    detail.append(wide);
    line.after(detail);
  }

  // Everything that is known of a row on one version.
  function said(cell) {
    if (cell === null) return "the op has no rule";
    const counts = Object.entries(cell.collectives || {}).map(([name, count]) => `${count} ${name}`);
    return [
      cell.signature || "",
      cell.outcome || "",
      cell.message || "",
      cell.miss_ns ? `miss ${(cell.miss_ns / 1e6).toFixed(3)} ms${spread(cell.miss_spread)}` : "",
      cell.hit_ns ? `hit ${(cell.hit_ns / 1e3).toFixed(2)} us${spread(cell.hit_spread)}` : "",
      cell.why_no_hit || "",
      cell.outcome ? "" : `propagations: ${cell.propagations || 1}`,
      cell.moves ? `redistributes ${cell.moves.join("; ")}` : "",
      counts.length ? `collectives: ${counts.join(", ")}` : "",
    ].filter(Boolean).join("; ");
  }

  function spread(factor) { return factor ? ` (visits up to ${factor.toFixed(2)}x)` : ""; }

  function element(name, className = "", text = "") {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text) made.textContent = text;
    return made;
  }
})();
