"use strict";
// Functions shared by all pages: create elements, format numbers, and draw SVG plots that can be navigated by pointer,
// touch and keyboard. Tables that are too wide can be scrolled with the keyboard.
const page = (() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const byId = (id) => document.getElementById(id);
  const readData = () => JSON.parse(byId("data").textContent);
  document.documentElement.classList.add("scripted");

  function make(name, attributes = {}, ...children) {
    return fill(document.createElement(name), attributes, children);
  }

  function draw(name, attributes = {}, ...children) {
    return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
  }

  function fill(element, attributes, children = []) {
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  const fixed = (value, digits) => value.toFixed(digits).replace("-", "−");
  const signed = (value, digits) => {
    const text = fixed(value, digits);
    return Number(value.toFixed(digits)) > 0 ? `+${text}` : text.replace(/^−(?=[0.]+$)/, "");
  };
  const round = (value) => Math.round(100 * value) / 100;
  const series = (points) => points.map((point) => point.map(round).join(",")).join(" ");
  const nearest = (values, value) =>
    values.reduce((best, one) => (Math.abs(one - value) < Math.abs(best - value) ? one : best));

  const text = (x, y, label, anchor = "middle") =>
    draw("text", { x: round(x), y: round(y), "text-anchor": anchor }, label);
  const title = (x, y, label) => fill(text(x, y, label), { class: "title" });
  const verticalTitle = (x, y, label) => fill(title(0, 0, label), { transform: `translate(${x} ${round(y)}) rotate(-90)` });
  const line = (kind, x1, y1, x2, y2) =>
    draw("line", { class: kind, x1: round(x1), y1: round(y1), x2: round(x2), y2: round(y2) });
  const stroke = (...points) => draw("polyline", { class: "stroke", points: series(points) });
  const polygon = (...corners) => draw("polygon", { points: series(corners) });

  // A shape per marker, so that rows differ without color.
  const shapes = {
    o: (x, y, r) => draw("circle", { cx: round(x), cy: round(y), r }),
    s: (x, y, r) => polygon([x - r, y - r], [x + r, y - r], [x + r, y + r], [x - r, y + r]),
    "^": (x, y, r) => polygon([x, y - 1.3 * r], [x + 1.2 * r, y + 0.9 * r], [x - 1.2 * r, y + 0.9 * r]),
    D: (x, y, r) => polygon([x, y - 1.3 * r], [x + 1.3 * r, y], [x, y + 1.3 * r], [x - 1.3 * r, y]),
    v: (x, y, r) => polygon([x, y + 1.3 * r], [x + 1.2 * r, y - 0.9 * r], [x - 1.2 * r, y - 0.9 * r]),
    "<": (x, y, r) => polygon([x - 1.3 * r, y], [x + 0.9 * r, y - 1.2 * r], [x + 0.9 * r, y + 1.2 * r]),
    ">": (x, y, r) => polygon([x + 1.3 * r, y], [x - 0.9 * r, y - 1.2 * r], [x - 0.9 * r, y + 1.2 * r]),
    P: (x, y, r) => cross(x, y, r, 0),
    X: (x, y, r) => cross(x, y, r, Math.PI / 4),
    "$✦$": (x, y, r) => star(x, y, 1.5 * r, 0.6 * r, 4),
    "*": (x, y, r) => star(x, y, 1.6 * r, 0.7 * r, 5),
  };
  const star = (x, y, outer, inner, tips) => {
    const corner = (k) => [k % 2 ? inner : outer, (Math.PI * k) / tips];
    const corners = [...Array(2 * tips).keys()].map(corner);
    return polygon(...corners.map(([r, angle]) => [x + r * Math.sin(angle), y - r * Math.cos(angle)]));
  };

  const cross = (x, y, r, turn) => {
    const [wide, long] = [0.45 * r, 1.3 * r];
    const arm = (k) => [[-wide, -long], [wide, -long], [wide, -wide]].map(([a, b]) => rotate(a, b, turn + (k * Math.PI) / 2));
    return polygon(...[0, 1, 2, 3].flatMap(arm).map(([a, b]) => [x + a, y + b]));
  };
  const rotate = (a, b, angle) => [
    a * Math.cos(angle) - b * Math.sin(angle),
    a * Math.sin(angle) + b * Math.cos(angle),
  ];

  // Axes from 0 to max in both directions, as wide as the container, so that text has the size of the page.
  function newPlot(place, { maxWidth, aspect, maxHeight, extraHeight, max, step, write }) {
    const width = Math.max(260, Math.min(maxWidth, place.clientWidth || maxWidth));
    const [left, top] = [46, 12];
    const across = width - left - 10;
    const up = Math.round(Math.min(aspect * across, maxHeight));
    const low = top + up + extraHeight; // y of the axis; tick labels are below it
    const plot = { width, left, top, across, up, low };
    plot.x = (value) => left + (across * value) / max;
    plot.y = (value) => top + up * (1 - value / max);
    plot.picture = draw("svg", { viewBox: `0 0 ${width} ${low + 46}`, role: "slider", tabindex: 0 });
    for (let n = 0; n * step < max + step / 2; n += 1) {
      const [x, y, label] = [plot.x(n * step), plot.y(n * step), write(n * step)];
      plot.picture.append(line("grid", x, top, x, top + up), line("grid", left, y, left + across, y));
      plot.picture.append(text(left - 8, y + 4, label, "end"), text(x, low + 16, label));
    }
    plot.picture.append(line("diagonal", plot.x(0), plot.y(0), plot.x(max), plot.y(max)));
    return plot;
  }

  function labelAxes({ picture, left, across, top, up, low }, xLabel, yLabel) {
    picture.append(title(left + across / 2, low + 38, xLabel), verticalTitle(11, top + up / 2, yLabel));
  }

  // Pointer position in the units of the drawing.
  function pointerPosition({ picture, width }, event) {
    const box = picture.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top].map((value) => (value * width) / box.width);
  }

  // Navigation between the positions of a drawing by pointer and touch, and by arrow keys, Home, End and Escape.
  function makeNavigable(plot, { count, current, at, go }) {
    const { picture } = plot;
    for (const kind of ["pointermove", "pointerdown"]) {
      picture.addEventListener(kind, (event) => {
        const next = at(...pointerPosition(plot, event));
        if (next !== null && next !== current()) go(next);
      });
    }
    picture.addEventListener("keydown", (event) => {
      const [now, last] = [current(), count - 1];
      const back = now === null ? last : now - 1;
      const on = now === null ? 0 : now + 1;
      const steps = { ArrowRight: on, ArrowUp: on, ArrowLeft: back, ArrowDown: back, Home: 0, End: last };
      if (event.key === "Escape") go(null);
      if (!(event.key in steps) || !count) return;
      event.preventDefault();
      go(Math.max(0, Math.min(last, steps[event.key])));
    });
    picture.addEventListener("focus", () => {
      if (current() === null && count && picture.matches(":focus-visible")) go(0);
    });
  }

  // Replace a drawing and keep the keyboard focus.
  function show(place, picture) {
    const focused = place.contains(document.activeElement);
    place.replaceChildren(picture);
    if (focused) picture.focus({ preventScroll: true });
  }

  // Make tables that overflow focusable, so that the keyboard can scroll them, and mark the sides that continue.
  const scrollers = all(".scroll");
  function markOverflow(scroller) {
    const hidden = scroller.scrollWidth - scroller.clientWidth;
    if (hidden > 0) scroller.tabIndex = 0;
    else scroller.removeAttribute("tabindex");
    scroller.toggleAttribute("data-more-left", scroller.scrollLeft > 1);
    scroller.toggleAttribute("data-more-right", scroller.scrollLeft < hidden - 1);
  }
  const sizes = new ResizeObserver(() => scrollers.forEach(markOverflow));
  for (const scroller of scrollers) {
    sizes.observe(scroller);
    for (const table of scroller.children) sizes.observe(table);
    scroller.addEventListener("scroll", () => markOverflow(scroller), { passive: true });
  }

  function goTo(target) {
    target.tabIndex = -1;
    target.focus({ preventScroll: true });
    target.scrollIntoView();
  }

  const elements = { all, byId, readData, make, draw, fill, goTo, show };
  const numbers = { fixed, signed, round, nearest };
  const drawing = { text, title, verticalTitle, line, stroke, shapes, newPlot, labelAxes, makeNavigable };
  return { ...elements, ...numbers, ...drawing };
})();
