// Sorts and filters the tables, draws the diagrams, and keeps the selection in the URL fragment. Without this script
// the page shows all tables of both readings, without diagrams.
(() => {
  const { all, byId, make, draw, fill, goTo, show, fixed, signed, round, nearest } = page;
  const { text, title, verticalTitle, line, stroke, shapes, newPlot, labelAxes, makeNavigable } = page;
  const data = page.readData();

  // ---- Selection ------------------------------------------------------------------------------------------------

  const datasets = Object.keys(data.datasets);
  const readings = Object.keys(data.readings);
  const views = Object.keys(data.views);
  const rows = Object.keys(data.rows);
  const calibrators = Object.keys(data.calibrators);
  const drawable = [...rows, ...Object.keys(data.calibrated)];
  const directions = ["ascending", "descending"];

  const initial = () => ({
    reading: data.reading,
    dataset: data.dataset,
    chart: datasets[0],
    view: "edgewise",
    calibrator: data.calibrator,
    models: rows,
    sort: {}, // table: {key, direction}
  });
  const state = initial();

  function readAddress() {
    const text = location.hash.slice(1);
    if (text && !text.includes("=")) return; // a link to a section
    const given = new URLSearchParams(text);
    const pick = (name, among, fallback) => (among.includes(given.get(name)) ? given.get(name) : fallback);
    const defaults = initial();
    state.reading = pick("reading", readings, defaults.reading);
    state.dataset = pick("dataset", ["all", ...datasets], defaults.dataset);
    state.chart = pick("chart", datasets, defaults.chart);
    state.view = pick("view", views, defaults.view);
    state.calibrator = pick("calibrator", calibrators, defaults.calibrator);
    const models = given.has("models") ? given.get("models").split(",") : defaults.models;
    state.models = drawable.filter((row) => models.includes(row));
    state.sort = {};
    for (const part of (given.get("sort") || "").split(",")) {
      const [table, key, direction] = part.split(":");
      if (headings(byId(table)).has(key) && directions.includes(direction)) state.sort[table] = { key, direction };
    }
  }

  function writeAddress() {
    const defaults = initial();
    const given = new URLSearchParams();
    for (const name of ["reading", "dataset", "chart", "view", "calibrator"]) {
      if (state[name] !== defaults[name]) given.set(name, state[name]);
    }
    if (state.models.join() !== defaults.models.join()) given.set("models", state.models.join(","));
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
    for (const row of all("main table.sortable:not(.statistics, .overview) tr[data-dataset]")) {
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
    const found = table ? all("thead th[data-key]", table) : [];
    return new Map(found.map((heading, place) => [heading.dataset.key, { heading, place }]));
  }

  for (const table of all("table.sortable")) {
    all("tr[data-dataset]", table).forEach((row, place) => (row.dataset.place = place));
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

  // Cells without a number sort last in both directions.
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

  // Links to sections keep the selection in the URL.
  for (const link of all('nav a[href^="#"], a.skip, a[href="#record"]')) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      goTo(byId(link.hash.slice(1)));
    });
  }

  // A calibrator link shows its diagram over that of the uncalibrated model.
  for (const link of all("a.overlay")) {
    link.addEventListener("click", (event) => {
      const { dataset, base, row, calibrator } = link.dataset;
      event.preventDefault();
      choose({ chart: dataset, calibrator, models: [base, row] });
      goTo(byId("diagrams"));
    });
  }

  // ---- Drawing --------------------------------------------------------------------------------------------------

  const percent = (value) => fixed(100 * value, 2);
  const mark = (row, x, y, r, attributes) => fill((shapes[data.markers[row]] || shapes.o)(x, y, r), attributes);

  const keyOf = (row) =>
    row in data.calibrated ? `${data.calibrated[row]}/${state.calibrator}` : data.readings[state.reading].rows[row];
  const nameOf = (row) =>
    row in data.calibrated ? `${data.rows[data.calibrated[row]]} + ${data.calibrators[state.calibrator]}` : data.rows[row];
  const sourceOf = (row) => data.datasets[state.chart].sources[keyOf(row)];
  const chosenRows = () => state.models.filter((row) => sourceOf(row));

  function drawAll() {
    if (!datasets.length) return;
    describeModels();
    drawDiagram();
    for (const id of Object.keys(scatters)) drawScatter(id);
  }

  for (const key of all(".models .key")) {
    const row = key.dataset.key;
    const picture = draw("svg", { viewBox: "0 0 44 16", "aria-hidden": "true", "data-model": row });
    picture.append(stroke([0, 8], [44, 8]), mark(row, 22, 8, 4, { class: "point" }));
    key.append(picture);
  }

  function describeModels() {
    for (const label of all(".models label[data-model]")) {
      const source = sourceOf(label.dataset.model);
      label.classList.toggle("absent", !source);
      label.querySelector("input").disabled = !source;
      label.querySelector(".name").textContent = nameOf(label.dataset.model);
      const without = keyOf(label.dataset.model) ? "no runs" : "not in this reading";
      label.querySelector(".value").textContent = source ? error(source.views[state.view]) : without;
    }
  }

  function error(bins) {
    if (!bins || !bins.ece) return "nothing to score";
    return percent(bins.ece.mean) + (bins.ece.runs > 1 ? ` ± ${percent(bins.ece.std)}` : "");
  }

  // ---- Reliability ----------------------------------------------------------------------------------------------

  const stripHeight = 78; // of the histogram
  const defaultBins = 15;
  let bin = null; // index of the selected bin

  const isEvent = () => state.view === "same_label";
  const total = (bins) => bins.count.reduce((sum, count) => sum + count, 0);
  const filled = (bins) => bins.count.map((_, k) => k).filter((k) => bins.count[k]);

  function drawDiagram() {
    const shown = chosenRows()
      .map((row) => ({ row, bins: sourceOf(row).views[state.view] }))
      .filter(({ bins }) => bins && total(bins));
    const numBins = shown.length ? shown[0].bins.count.length : defaultBins;
    const place = byId("diagram");
    const size = { maxWidth: 720, aspect: 0.78, maxHeight: 470, extraHeight: stripHeight + 22 };
    const plot = newPlot(place, { ...size, max: 1, step: 0.2, write: (tick) => tick.toFixed(1) });
    const { picture, left, across, top, low, x } = plot;
    labelAxes(plot, isEvent() ? "probability of the same label" : "confidence", isEvent() ? "frequency" : "accuracy");
    const chosen = draw("rect", { class: "chosen", y: top, width: round(across / numBins), height: low - top });
    picture.prepend(chosen);
    drawBars(plot, shown, numBins);
    for (const one of shown) picture.append(drawLine(plot, one, shown.length === 1));
    if (!shown.length) {
      const words = chosenRows().length ? "Nothing to score in this view" : "Select a model to draw it";
      picture.append(title(left + across / 2, top + plot.up / 2 - 20, words));
    }
    caption(shown);

    const places = [...Array(numBins).keys()].filter((k) => shown.some(({ bins }) => bins.count[k]));
    const go = (next) => {
      bin = next === null ? null : places[next];
      fill(chosen, { visibility: bin === null ? "hidden" : "visible", x: round(x((bin || 0) / numBins)) });
      showBin(shown, numBins, picture);
    };
    const at = (px) => {
      const c = (px - left) / across;
      return places.length && c > -0.02 && c < 1.02 ? places.indexOf(nearest(places, Math.floor(numBins * c))) : null;
    };
    const current = () => (places.includes(bin) ? places.indexOf(bin) : null);
    makeNavigable(plot, { count: places.length, current, at, go });
    fill(picture, { "aria-label": "Bin of the reliability diagram", "aria-valuemin": 1, "aria-valuemax": numBins });
    show(place, picture);
    go(current());
  }

  function drawBars({ picture, left, across, low, x }, shown, numBins) {
    const fractions = shown.map(({ bins }) => bins.count.map((count) => count / total(bins)));
    const highest = Math.max(...fractions.flat(), 0);
    const slot = (0.84 * across) / numBins / shown.length;
    shown.forEach(({ row, bins }, order) => {
      const group = draw("g", { "data-model": row });
      for (const k of filled(bins)) {
        const height = Math.max(1, (stripHeight * fractions[order][k]) / highest);
        const from = x((k + 0.08) / numBins) + order * slot;
        const box = { x: round(from), y: round(low - height), width: round(0.88 * slot), height: round(height) };
        group.append(draw("rect", { class: "fraction", ...box }));
      }
      picture.append(group);
    });
    picture.append(line("frame", left, low, left + across, low), verticalTitle(11, low - stripHeight / 2, "fraction"));
    if (shown.length) picture.append(text(left - 8, low - stripHeight + 9, `${Math.round(100 * highest)}%`, "end"));
  }

  function drawLine({ x, y }, { row, bins }, withGaps) {
    const group = draw("g", { class: "model", "data-model": row });
    const at = (k) => [x(bins.confidence[k]), y(bins.accuracy[k])];
    for (const k of filled(bins)) {
      const perfect = [x(bins.confidence[k]), y(bins.confidence[k])];
      if (withGaps) group.append(line("gap", ...perfect, ...at(k)));
    }
    for (const k of filled(bins)) {
      // No line through bins with few elements or across empty ones.
      if (!bins.few[k] && k + 1 < bins.few.length && !bins.few[k + 1]) group.append(stroke(at(k), at(k + 1)));
    }
    for (const k of filled(bins)) {
      const kind = bins.few[k] ? "point few" : "point";
      group.append(mark(row, ...at(k), 4.2, { class: kind, "data-bin": k }));
    }
    return group;
  }

  function caption(shown) {
    const names = [data.datasets[state.chart].label, data.views[state.view], data.readings[state.reading].label];
    const hasHollow = shown.some(({ bins }) => filled(bins).some((k) => bins.few[k]));
    const hollow = hasHollow ? ` Hollow markers: bins with fewer than ${data.minBinCount} elements per run.` : "";
    const runs = shown.map(({ row, bins }) => `${nameOf(row)} ${bins.runs}`).join(", ");
    const differ = new Set(shown.map(({ bins }) => bins.runs)).size > 1 ? ` Runs: ${runs}.` : "";
    byId("diagram-caption").textContent = `${names.join(", ")}; bins summed over all runs.${differ}${hollow}`;
  }

  function showBin(shown, numBins, picture) {
    const names = ["count", ...(isEvent() ? ["probability", "frequency"] : ["confidence", "accuracy"]), "gap"];
    const between = [limit(bin, numBins), bin ? "<" : "≤", names[1], "≤", limit(bin + 1, numBins)].join(" ");
    const limits = bin === null ? `All ${numBins} bins` : `Bin ${bin + 1} of ${numBins}: ${between}`;
    const rows = shown.map(({ row, bins }) => [nameOf(row), bin === null ? allNumbers(bins) : binNumbers(bins)]);
    const note = `Gap: ${names[2]} minus ${names[1]}. Counts are over all runs.`;
    byId("bin").replaceChildren(
      make("p", { class: "bin-limits" }, limits),
      table(["", ...names], rows),
      make("p", { class: "hint" }, note),
    );
    if (bin === null) {
      fill(picture, { "aria-valuenow": 1, "aria-valuetext": "no bin selected" });
      return;
    }
    const parts = rows.map(([name, numbers]) => `${name}: ${numbers.map((one, i) => `${names[i]} ${one}`).join(", ")}`);
    fill(picture, { "aria-valuenow": bin + 1, "aria-valuetext": [limits, ...parts].join(". ") });
  }

  const limit = (k, numBins) => (k === 0 || k === numBins ? String(k / numBins) : (k / numBins).toFixed(4));

  const binNumbers = (bins) => numbersOf(bins.count[bin], bins.confidence[bin], bins.accuracy[bin]);

  function allNumbers(bins) {
    const mean = (values) => filled(bins).reduce((sum, k) => sum + bins.count[k] * values[k], 0) / total(bins);
    return numbersOf(total(bins), mean(bins.confidence), mean(bins.accuracy));
  }

  function numbersOf(count, confidence, accuracy) {
    if (!count) return ["0", "–", "–", "–"];
    const numbers = [fixed(confidence, 3), fixed(accuracy, 3), signed(accuracy - confidence, 3)];
    return [count.toLocaleString("en"), ...numbers];
  }

  function table(names, rows) {
    const head = names.map((name) => make("th", { scope: "col", class: "number" }, name));
    const body = rows.map(([name, numbers]) => {
      const cells = numbers.map((number) => make("td", { class: "number" }, number));
      return make("tr", {}, make("th", { scope: "row" }, name), ...cells);
    });
    return make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body));
  }

  // ---- Run by run -----------------------------------------------------------------------------------------------

  // Indices into the list of a run: split, fold, init, then the ECE of nodewise, edgewise, agree, disagree.
  const scatters = {
    "nodes-edges": { across: 3, up: 4, names: ["node ECE", "edge ECE"] },
    "agree-disagree": { across: 6, up: 5, names: ["disagree ECE", "agree ECE"] },
  };
  const pointerRadius = 28; // maximal distance between pointer and mark

  function drawScatter(id) {
    const { names } = scatters[id];
    const runs = runsOf(scatters[id]);
    const largest = Math.max(0.01, ...runs.flatMap((one) => [one.x, one.y]));
    const step = [0.01, 0.02, 0.05, 0.1].find((one) => largest / one <= 6) || 0.2;
    const max = step * Math.ceil(largest / step);
    const write = (tick) => fixed(100 * tick, 0);
    const plot = newPlot(byId(id), { maxWidth: 480, aspect: 1, maxHeight: 480, extraHeight: 0, max, step, write });
    const { picture, x, y } = plot;
    labelAxes(plot, ...names.map((name) => `${name}, percent`));
    for (const row of chosenRows()) {
      const ofRow = runs.filter((one) => one.row === row);
      const marks = ofRow.map((one) => mark(row, x(one.x), y(one.y), 3.6, { class: "run" }));
      picture.append(draw("g", { class: "model", "data-model": row }, ...marks));
    }
    const ring = draw("circle", { class: "ring", r: 7, visibility: "hidden" });
    picture.append(ring);

    let run = null;
    const readout = byId(`${id}-run`);
    const go = (next) => {
      run = next;
      const one = next === null ? null : runs[next];
      fill(ring, one ? { visibility: "visible", cx: round(x(one.x)), cy: round(y(one.y)) } : { visibility: "hidden" });
      const hint = runs.length ? "Point at a mark to see its run." : "No runs to draw.";
      readout.textContent = one ? describeRun(names, one) : hint;
      readout.classList.toggle("hint", !one);
      fill(picture, { "aria-valuenow": one ? next + 1 : 1, "aria-valuetext": readout.textContent });
    };
    const at = (px, py) => {
      const away = runs.map((one) => Math.hypot(x(one.x) - px, y(one.y) - py));
      const least = Math.min(...away);
      return least < pointerRadius ? away.indexOf(least) : null;
    };
    makeNavigable(plot, { count: runs.length, current: () => run, at, go });
    const last = Math.max(1, runs.length);
    fill(picture, { "aria-label": `Run, by ${names[0]}`, "aria-valuemin": 1, "aria-valuemax": last });
    show(byId(id), picture);
    go(null);
  }

  function runsOf({ across, up }) {
    const runs = chosenRows().flatMap((row) => sourceOf(row).runs.map((run) => ({ row, run })));
    const placed = runs.map(({ row, run }) => ({ row, run, x: run[across], y: run[up] }));
    return placed.filter(({ x, y }) => x !== null && y !== null).sort((a, b) => a.x - b.x);
  }

  function describeRun([across, up], { row, run: [split, fold, init], x, y }) {
    const which = `${nameOf(row)}, split ${split}, fold ${fold}, init ${init}`;
    return `${which}: ${across} ${percent(x)}, ${up} ${percent(y)}`;
  }

  // ---- Start ----------------------------------------------------------------------------------------------------

  function start() {
    readAddress();
    showTables();
    drawAll();
  }
  start();
  window.addEventListener("hashchange", start);
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
