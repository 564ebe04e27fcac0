"use strict";
// The page without this script is whole but for the diagrams: all tables of both readings are there, in the paper's order.
// Here they get sorted and filtered, diagrams get drawn, and what is chosen is kept in the address.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const byId = (id) => document.getElementById(id);
  document.documentElement.classList.add("scripted");

  // ---- What is chosen -------------------------------------------------------------------------------------------

  const datasets = Object.keys(data.datasets);
  const readings = Object.keys(data.readings);
  const views = Object.keys(data.views);
  const rows = Object.keys(data.rows);
  const directions = ["ascending", "descending"];

  const initial = () => ({
    reading: readings[0],
    dataset: "all",
    chart: datasets[0],
    view: "edgewise",
    models: rows,
    sort: {}, // table: {key, direction}
  });
  const state = initial();

  function readAddress() {
    const text = location.hash.slice(1);
    if (text && !text.includes("=")) return; // a link into the page
    const given = new URLSearchParams(text);
    const pick = (name, among, fallback) => (among.includes(given.get(name)) ? given.get(name) : fallback);
    const usual = initial();
    state.reading = pick("reading", readings, usual.reading);
    state.dataset = pick("dataset", datasets, usual.dataset);
    state.chart = pick("chart", datasets, usual.chart);
    state.view = pick("view", views, usual.view);
    state.models = given.has("models") ? rows.filter((row) => given.get("models").split(",").includes(row)) : usual.models;
    state.sort = {};
    for (const part of (given.get("sort") || "").split(",")) {
      const [table, key, direction] = part.split(":");
      if (headings(byId(table)).has(key) && directions.includes(direction)) state.sort[table] = { key, direction };
    }
  }

  function writeAddress() {
    const usual = initial();
    const given = new URLSearchParams();
    for (const name of ["reading", "dataset", "chart", "view"]) {
      if (state[name] !== usual[name]) given.set(name, state[name]);
    }
    if (state.models.length !== rows.length) given.set("models", state.models.join(","));
    const sorted = Object.entries(state.sort).map(([table, { key, direction }]) => `${table}:${key}:${direction}`);
    if (sorted.length) given.set("sort", sorted.join(","));
    const text = given.toString().replaceAll("%2C", ",").replaceAll("%3A", ":");
    history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
  }

  function choose(change) {
    Object.assign(state, change);
    writeAddress();
    showTables();
    if (!("sort" in change || "dataset" in change)) drawAll();
  }

  function showTables() {
    for (const input of all("[data-choice]")) {
      const chosen = state[input.dataset.choice];
      if (input.type === "radio") input.checked = input.value === chosen;
      else if (input.type === "checkbox") input.checked = chosen.includes(input.value);
      else input.value = chosen;
    }
    for (const part of all("[data-reading]")) part.hidden = part.dataset.reading !== state.reading;
    for (const row of all("main table.sortable:not(.statistics) tr[data-dataset]")) {
      row.hidden = state.dataset !== "all" && row.dataset.dataset !== state.dataset;
    }
    all("table.sortable").forEach(sort);
  }

  for (const input of all("[data-choice]")) {
    input.addEventListener("change", () => {
      const name = input.dataset.choice;
      if (input.type !== "checkbox") return choose({ [name]: input.value });
      const ticked = all(`[data-choice="${name}"]`).filter((box) => box.checked);
      return choose({ [name]: ticked.map((box) => box.value) });
    });
  }

  // ---- Tables ---------------------------------------------------------------------------------------------------

  function headings(table) {
    return new Map(table ? all("thead th[data-key]", table).map((heading, place) => [heading.dataset.key, { heading, place }]) : []);
  }

  for (const table of all("table.sortable")) {
    for (const body of table.tBodies) all("tr[data-dataset]", body).forEach((row, place) => (row.dataset.place = place));
    for (const [key, { heading }] of headings(table)) {
      const button = make("button", { type: "button" }, heading.textContent);
      button.addEventListener("click", () => {
        const now = state.sort[table.id];
        const next = now && now.key === key ? directions[directions.indexOf(now.direction) + 1] : directions[0];
        const { [table.id]: _, ...others } = state.sort;
        choose({ sort: next ? { ...others, [table.id]: { key, direction: next } } : others });
      });
      heading.replaceChildren(button);
    }
  }

  function sort(table) {
    const chosen = state.sort[table.id];
    const columns = headings(table);
    for (const { heading } of columns.values()) heading.removeAttribute("aria-sort");
    if (chosen) columns.get(chosen.key).heading.setAttribute("aria-sort", chosen.direction);
    table.toggleAttribute("data-sorted", Boolean(chosen));
    const compare = chosen ? comparison(columns.get(chosen.key).place, chosen.direction) : () => 0;
    for (const body of table.tBodies) {
      const sorted = all("tr[data-dataset]", body).sort((a, b) => compare(a, b) || a.dataset.place - b.dataset.place);
      body.append(...sorted);
    }
  }

  // What has no number goes last, whichever way the others are sorted.
  function comparison(place, direction) {
    const sign = direction === "ascending" ? 1 : -1;
    return (a, b) => {
      const [one, other] = [a.cells[place], b.cells[place]];
      if (!("value" in one.dataset)) return sign * one.textContent.localeCompare(other.textContent);
      const empty = (one.dataset.value === "") - (other.dataset.value === "");
      if (empty || one.dataset.value === other.dataset.value) return empty;
      return sign * (Number(one.dataset.value) < Number(other.dataset.value) ? -1 : 1);
    };
  }

  // Whoever has no mouse must be able to scroll a table that is too wide.
  const widths = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
      else target.removeAttribute("tabindex");
    }
  });
  all(".scroll").forEach((scroller) => widths.observe(scroller));

  // Links into the page leave what is chosen in the address.
  for (const link of all('nav a[href^="#"], a.skip')) {
    link.addEventListener("click", (event) => {
      const target = byId(link.hash.slice(1));
      event.preventDefault();
      target.tabIndex = -1;
      target.focus({ preventScroll: true });
      target.scrollIntoView();
    });
  }

  // ---- Drawing --------------------------------------------------------------------------------------------------

  function make(name, attributes = {}, ...children) {
    return fill(document.createElement(name), attributes, children);
  }

  function draw(name, attributes = {}, ...children) {
    return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
  }

  function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  const fixed = (value, digits) => value.toFixed(digits).replace("-", "−");
  const signed = (value, digits) => {
    const text = fixed(value, digits);
    return Number(value.toFixed(digits)) > 0 ? `+${text}` : text.replace(/^−(?=[0.]+$)/, "");
  };
  const percent = (value) => fixed(100 * value, 2);
  const grouped = (count) => count.toLocaleString("en");

  // A shape for each model, for eyes and printers that see no colour: centred, as wide as 2 r.
  const shapes = {
    gcn: (x, y, r) => draw("circle", { cx: x, cy: y, r }),
    gat: (x, y, r) => draw("rect", { x: x - 0.9 * r, y: y - 0.9 * r, width: 1.8 * r, height: 1.8 * r }),
    gmnn: (x, y, r) => polygon([x, y - 1.25 * r], [x + 1.15 * r, y + 0.85 * r], [x - 1.15 * r, y + 0.85 * r]),
    epfgnn: (x, y, r) => polygon([x, y - 1.3 * r], [x + 1.3 * r, y], [x, y + 1.3 * r], [x - 1.3 * r, y]),
    "epfgnn mean field": (x, y, r) => polygon([x, y + 1.25 * r], [x + 1.15 * r, y - 0.85 * r], [x - 1.15 * r, y - 0.85 * r]),
  };
  const polygon = (...corners) => draw("polygon", { points: corners.map((corner) => corner.map(round).join(",")).join(" ") });
  const round = (value) => Math.round(100 * value) / 100;
  const path = (points) => draw("polyline", { class: "stroke", points: points.map((p) => p.map(round).join(",")).join(" ") });

  function marked(row, x, y, r, attributes) {
    return fill(shapes[row](round(x), round(y), r), attributes, []);
  }

  const sourceOf = (row) => data.datasets[state.chart].sources[data.readings[state.reading].rows[row]];
  const shownRows = () => state.models.filter((row) => sourceOf(row));
  const binsOf = (row) => sourceOf(row).views[state.view];
  const total = (bins) => bins.count.reduce((sum, count) => sum + count, 0);

  let bin = null; // the chosen one, from 0

  function drawAll() {
    if (!datasets.length) return;
    describeModels();
    drawDiagram();
    all(".drawing").filter((place) => scatters[place.id]).forEach(drawScatter);
  }

  function describeModels() {
    for (const label of all(".models label")) {
      const row = label.dataset.model;
      const source = sourceOf(row);
      const ece = source && binsOf(row) ? binsOf(row).ece : null;
      label.classList.toggle("absent", !source);
      label.querySelector("input").disabled = !source;
      const spread = ece && ece.runs > 1 ? ` ± ${percent(ece.std)}` : "";
      label.querySelector(".value").textContent = !source ? "no runs" : ece ? percent(ece.mean) + spread : "nothing to score";
    }
  }

  for (const key of all(".models .key")) {
    const row = key.dataset.key;
    const picture = draw("svg", { viewBox: "0 0 44 16", "aria-hidden": "true", "data-model": row });
    picture.append(path([[0, 8], [44, 8]]), marked(row, 22, 8, 4, { class: "point" }));
    key.append(picture);
  }

  // A diagram fills the width that it gets, so that its letters are never smaller than those of the page.
  function layout(place, most) {
    const width = Math.max(260, Math.min(most, place.clientWidth || most));
    const left = 46;
    const right = 10;
    return { width, left, right, across: width - left - right };
  }

  function axis(picture, { left, top, across, up, ticks, write, max }) {
    for (const tick of ticks) {
      const [x, y] = [left + (across * tick) / max, top + up - (up * tick) / max].map(round);
      picture.append(
        draw("line", { class: "grid", x1: x, x2: x, y1: top, y2: top + up }),
        draw("line", { class: "grid", x1: left, x2: left + across, y1: y, y2: y }),
        draw("text", { x: left - 8, y: y + 4, "text-anchor": "end" }, write(tick)),
      );
    }
  }

  function drawDiagram() {
    const place = byId("diagram");
    const { width, left, right, across } = layout(place, 720);
    const [top, up, strip, between] = [12, Math.round(Math.min(0.78 * across, 470)), 78, 22];
    const low = top + up + between + strip;
    const height = low + 46;
    const picture = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "slider", tabindex: 0, "aria-orientation": "horizontal" });
    const shown = shownRows().filter((row) => binsOf(row) && total(binsOf(row)));
    const numBins = shown.length ? binsOf(shown[0]).count.length : 15;
    const [x, y] = [(c) => left + across * c, (a) => top + up * (1 - a)];
    const ticks = [0, 0.2, 0.4, 0.6, 0.8, 1];

    const chosen = draw("rect", { class: "chosen", y: top, width: round(across / numBins), height: low - top });
    picture.append(chosen);
    axis(picture, { left, top, across, up, ticks, write: (tick) => tick.toFixed(1), max: 1 });
    picture.append(draw("line", { class: "diagonal", x1: x(0), y1: y(0), x2: x(1), y2: y(1) }));
    for (const tick of ticks) picture.append(draw("text", { x: round(x(tick)), y: low + 16, "text-anchor": "middle" }, tick.toFixed(1)));
    const isEvent = state.view === "same_label";
    const names = isEvent ? ["probability of the same label", "frequency"] : ["confidence", "accuracy"];
    picture.append(
      draw("text", { class: "title", x: left + across / 2, y: low + 38, "text-anchor": "middle" }, names[0]),
      draw("text", { class: "title", transform: `translate(11 ${top + up / 2}) rotate(-90)`, "text-anchor": "middle" }, names[1]),
      draw("text", { class: "title", transform: `translate(11 ${low - strip / 2}) rotate(-90)`, "text-anchor": "middle" }, "share"),
    );

    const highest = Math.max(0, ...shown.flatMap((row) => binsOf(row).count.map((count) => count / total(binsOf(row)))));
    if (shown.length) picture.append(draw("text", { x: left - 8, y: low - strip + 9, "text-anchor": "end" }, `${Math.round(100 * highest)}%`));
    picture.append(draw("line", { class: "frame", x1: left, x2: left + across, y1: low, y2: low }));

    shown.forEach((row, order) => {
      const bins = binsOf(row);
      const group = draw("g", { class: "model", "data-model": row });
      const slot = (0.84 * across) / numBins / shown.length;
      bins.count.forEach((count, k) => {
        if (!count) return;
        const tall = Math.max(1, (strip * count) / total(bins) / highest);
        const from = x(k / numBins) + (0.08 * across) / numBins + order * slot;
        group.append(draw("rect", { class: "share", "data-bin": k, x: round(from), y: round(low - tall), width: round(0.88 * slot), height: round(tall) }));
      });
      const filled = bins.count.map((_, k) => k).filter((k) => bins.count[k]);
      const at = (k) => [x(bins.confidence[k]), y(bins.accuracy[k])];
      if (shown.length === 1) {
        for (const k of filled) {
          const [px, py] = at(k).map(round);
          group.append(draw("line", { class: "gap", x1: px, x2: px, y1: round(y(bins.confidence[k])), y2: py }));
        }
      }
      // A stroke across an empty bin would claim what no element shows.
      for (const k of filled) if (bins.count[k + 1]) group.append(path([at(k), at(k + 1)]));
      for (const k of filled) {
        const kind = bins.filled[k] < bins.runs ? "point partly" : "point";
        group.append(marked(row, ...at(k), 4.2, { class: kind, "data-bin": k }));
      }
      picture.append(group);
    });
    if (!shown.length) {
      const words = shownRows().length ? "Nothing to score in this view" : "Tick a model to draw it";
      picture.append(draw("text", { class: "title", x: left + across / 2, y: top + up / 2, "text-anchor": "middle" }, words));
    }

    const anyPartly = shown.some((row) => binsOf(row).filled.some((n) => n && n < binsOf(row).runs));
    byId("diagram-caption").textContent =
      `${data.datasets[state.chart].label}, ${data.views[state.view]}, ${data.readings[state.reading].label}; bins added up over all runs.` +
      (anyPartly ? " Hollow marks: bins that are empty in some runs." : "");

    const filledBins = [...Array(numBins).keys()].filter((k) => shown.some((row) => binsOf(row).count[k]));
    if (bin !== null && !filledBins.includes(bin)) bin = null;
    const select = (next) => {
      bin = next;
      chosen.setAttribute("visibility", bin === null ? "hidden" : "visible");
      if (bin !== null) chosen.setAttribute("x", round(x(bin / numBins)));
      tellBin(shown, numBins, picture);
    };
    const binAt = (event) => {
      const box = picture.getBoundingClientRect();
      const c = (((event.clientX - box.left) * width) / box.width - left) / across;
      return filledBins.length && c > -0.02 && c < 1.02 ? nearest(filledBins, Math.floor(numBins * c)) : null;
    };
    for (const kind of ["pointermove", "pointerdown"]) {
      picture.addEventListener(kind, (event) => {
        const next = binAt(event);
        if (next !== null && next !== bin) select(next);
      });
    }
    movable(picture, () => filledBins.length, () => filledBins.indexOf(bin), (place) => select(place === null ? null : filledBins[place]));
    fill(picture, { "aria-label": "Bin of the reliability diagram", "aria-valuemin": 1, "aria-valuemax": numBins }, []);
    replaceDrawing(place, picture);
    select(bin);
  }

  const nearest = (values, value) => values.reduce((best, one) => (Math.abs(one - value) < Math.abs(best - value) ? one : best));

  // A new drawing takes the focus of the old one with it.
  function replaceDrawing(place, picture) {
    const focused = place.contains(document.activeElement);
    place.replaceChildren(picture);
    if (focused) picture.focus({ preventScroll: true });
  }

  // Arrow keys, Home and End move between places; Escape leaves them.
  function movable(picture, count, current, go) {
    picture.addEventListener("keydown", (event) => {
      const [last, now] = [count() - 1, current()];
      const next = {
        ArrowRight: now + 1,
        ArrowUp: now + 1,
        ArrowLeft: now < 0 ? last : now - 1,
        ArrowDown: now < 0 ? last : now - 1,
        Home: 0,
        End: last,
      }[event.key];
      if (event.key === "Escape") return go(null);
      if (next === undefined || last < 0) return undefined;
      event.preventDefault();
      return go(Math.max(0, Math.min(last, next)));
    });
    picture.addEventListener("focus", () => {
      if (current() < 0 && count() && picture.matches(":focus-visible")) go(0);
    });
  }

  function limits(k, numBins) {
    const limit = (j) => (j === 0 || j === numBins ? String(j / numBins) : (j / numBins).toFixed(4));
    return `${limit(k)} ${k ? "<" : "≤"} ${state.view === "same_label" ? "probability" : "confidence"} ≤ ${limit(k + 1)}`;
  }

  function tellBin(shown, numBins, picture) {
    const place = byId("bin");
    if (bin === null) {
      place.replaceChildren(make("p", { class: "hint" }, "Point at a bin to see its numbers."));
      fill(picture, { "aria-valuenow": 1, "aria-valuetext": "no bin chosen" }, []);
      return;
    }
    const title = `Bin ${bin + 1} of ${numBins}: ${limits(bin, numBins)}`;
    const isEvent = state.view === "same_label";
    const names = ["", "count", isEvent ? "probability" : "confidence", isEvent ? "frequency" : "accuracy", "gap"];
    const head = make("tr", {}, ...names.map((name) => make("th", { scope: "col", class: name ? "number" : "" }, name)));
    const lines = shown.map((row) => [row, binNumbers(binsOf(row))]);
    const body = lines.map(([row, numbers]) =>
      make("tr", { "data-row": row }, make("th", { scope: "row" }, data.rows[row]), ...numbers.map((text) => make("td", { class: "number" }, text))),
    );
    const note = make("p", { class: "hint" }, "Gap: above the diagonal +, beneath it −. Counts are over all runs.");
    place.replaceChildren(make("p", { class: "bin-limits" }, title), make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)), note);
    const said = lines.map(([row, [count, confidence, accuracy, gap]]) => `${data.rows[row]}: count ${count}, ${names[2]} ${confidence}, ${names[3]} ${accuracy}, gap ${gap}`);
    fill(picture, { "aria-valuenow": bin + 1, "aria-valuetext": [title, ...said].join(". ") }, []);
  }

  function binNumbers(bins) {
    const [count, confidence, accuracy] = [bins.count[bin], bins.confidence[bin], bins.accuracy[bin]];
    return count ? [grouped(count), fixed(confidence, 3), fixed(accuracy, 3), signed(accuracy - confidence, 3)] : ["0", "–", "–", "–"];
  }

  // ---- Run by run -----------------------------------------------------------------------------------------------

  // Places of the errors in a run's line: split, fold, init, then nodewise, edgewise, agree, disagree.
  const scatters = {
    "nodes-edges": { across: 3, up: 4, names: ["node ECE", "edge ECE"], run: null },
    "agree-disagree": { across: 6, up: 5, names: ["disagree ECE", "agree ECE"], run: null },
  };

  function drawScatter(place) {
    const scatter = scatters[place.id];
    const { width, left, across } = layout(place, 480);
    const top = 12;
    const picture = draw("svg", { viewBox: `0 0 ${width} ${top + across + 46}`, role: "slider", tabindex: 0 });
    const runs = shownRows().flatMap((row) =>
      sourceOf(row).runs
        .filter((run) => run[scatter.across] !== null && run[scatter.up] !== null)
        .map((run) => ({ row, run, x: run[scatter.across], y: run[scatter.up] })),
    );
    runs.sort((a, b) => a.x - b.x);
    const largest = Math.max(0.01, ...runs.flatMap(({ x, y }) => [x, y]));
    const step = [0.01, 0.02, 0.05, 0.1, 0.2].find((one) => largest / one <= 6) || 0.25;
    const max = step * Math.ceil(largest / step);
    const ticks = [...Array(Math.round(max / step) + 1).keys()].map((n) => n * step);
    const [x, y] = [(value) => left + (across * value) / max, (value) => top + across * (1 - value / max)];
    axis(picture, { left, top, across, up: across, ticks, write: (tick) => fixed(100 * tick, 0), max });
    for (const tick of ticks) picture.append(draw("text", { x: round(x(tick)), y: top + across + 16, "text-anchor": "middle" }, fixed(100 * tick, 0)));
    picture.append(
      draw("line", { class: "diagonal", x1: x(0), y1: y(0), x2: x(max), y2: y(max) }),
      draw("text", { class: "title", x: left + across / 2, y: top + across + 38, "text-anchor": "middle" }, `${scatter.names[0]}, percent`),
      draw("text", { class: "title", transform: `translate(11 ${top + across / 2}) rotate(-90)`, "text-anchor": "middle" }, `${scatter.names[1]}, percent`),
    );
    for (const row of shownRows()) {
      const group = draw("g", { class: "model", "data-model": row });
      for (const one of runs) if (one.row === row) group.append(marked(row, x(one.x), y(one.y), 3.6, { class: "run" }));
      picture.append(group);
    }
    const ring = draw("circle", { class: "ring", r: 7, visibility: "hidden" });
    picture.append(ring);

    const readout = byId(`${place.id}-run`);
    const select = (next) => {
      scatter.run = next;
      const one = runs[next];
      ring.setAttribute("visibility", one ? "visible" : "hidden");
      if (one) fill(ring, { cx: round(x(one.x)), cy: round(y(one.y)) }, []);
      const text = one ? tellRun(scatter, one) : runs.length ? "Point at a mark to see its run." : "No runs to draw.";
      readout.textContent = text;
      readout.classList.toggle("hint", !one);
      fill(picture, { "aria-valuenow": one ? next + 1 : 1, "aria-valuetext": text }, []);
    };
    for (const kind of ["pointermove", "pointerdown"]) {
      picture.addEventListener(kind, (event) => {
        const box = picture.getBoundingClientRect();
        const [px, py] = [event.clientX - box.left, event.clientY - box.top].map((value) => (value * width) / box.width);
        const far = runs.map((one) => Math.hypot(x(one.x) - px, y(one.y) - py));
        const next = far.indexOf(Math.min(...far));
        if (next >= 0 && far[next] < 28 && next !== scatter.run) select(next);
      });
    }
    movable(picture, () => runs.length, () => (scatter.run === null ? -1 : scatter.run), select);
    fill(picture, { "aria-label": `Run, by ${scatter.names[0]}`, "aria-valuemin": 1, "aria-valuemax": Math.max(1, runs.length) }, []);
    replaceDrawing(place, picture);
    select(null);
  }

  function tellRun({ names }, { row, run: [split, fold, init], x, y }) {
    return `${data.rows[row]}, split ${split}, fold ${fold}, init ${init}: ${names[0]} ${percent(x)}, ${names[1]} ${percent(y)}`;
  }

  // ---- Begin ----------------------------------------------------------------------------------------------------

  function begin() {
    readAddress();
    showTables();
    drawAll();
  }
  begin();
  window.addEventListener("hashchange", begin);
  const drawn = new Map();
  const resized = new ResizeObserver((entries) => {
    const changed = entries.filter(({ target }) => drawn.get(target) !== target.clientWidth);
    for (const { target } of changed) drawn.set(target, target.clientWidth);
    if (changed.length) drawAll();
  });
  for (const place of all(".drawing")) {
    drawn.set(place, place.clientWidth);
    resized.observe(place);
  }
})();
