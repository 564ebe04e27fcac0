"use strict";
// The tools of any page: to find and make elements, to write numbers, and to draw fields of axes with marks in them,
// through which a person goes by pointer, finger and keys. Tables that are too wide scroll by keys too.
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

  const text = (x, y, words, anchor = "middle") =>
    draw("text", { x: round(x), y: round(y), "text-anchor": anchor }, words);
  const title = (x, y, words) => fill(text(x, y, words), { class: "title" });
  const standing = (x, y, words) => fill(title(0, 0, words), { transform: `translate(${x} ${round(y)}) rotate(-90)` });
  const line = (kind, x1, y1, x2, y2) =>
    draw("line", { class: kind, x1: round(x1), y1: round(y1), x2: round(x2), y2: round(y2) });
  const stroke = (...points) => draw("polyline", { class: "stroke", points: series(points) });
  const polygon = (...corners) => draw("polygon", { points: series(corners) });

  // A shape for each marker, for eyes and printers that see no color.
  const shapes = {
    o: (x, y, r) => draw("circle", { cx: round(x), cy: round(y), r }),
    s: (x, y, r) => polygon([x - r, y - r], [x + r, y - r], [x + r, y + r], [x - r, y + r]),
    "^": (x, y, r) => polygon([x, y - 1.3 * r], [x + 1.2 * r, y + 0.9 * r], [x - 1.2 * r, y + 0.9 * r]),
    D: (x, y, r) => polygon([x, y - 1.3 * r], [x + 1.3 * r, y], [x, y + 1.3 * r], [x - 1.3 * r, y]),
    v: (x, y, r) => polygon([x, y + 1.3 * r], [x + 1.2 * r, y - 0.9 * r], [x - 1.2 * r, y - 0.9 * r]),
    "<": (x, y, r) => polygon([x - 1.3 * r, y], [x + 0.9 * r, y - 1.2 * r], [x + 0.9 * r, y + 1.2 * r]),
    ">": (x, y, r) => polygon([x + 1.3 * r, y], [x - 0.9 * r, y - 1.2 * r], [x - 0.9 * r, y + 1.2 * r]),
    "$✦$": (x, y, r) => star(x, y, 1.5 * r, 0.6 * r, 4),
    "*": (x, y, r) => star(x, y, 1.6 * r, 0.7 * r, 5),
  };
  const star = (x, y, outer, inner, tips) => {
    const corner = (k) => [k % 2 ? inner : outer, (Math.PI * k) / tips];
    const corners = [...Array(2 * tips).keys()].map(corner);
    return polygon(...corners.map(([r, angle]) => [x + r * Math.sin(angle), y - r * Math.cos(angle)]));
  };

  // A field of axes from 0 to max in both directions, as wide as its place: its letters are as large as the page's.
  function newField(place, { widest, steepness, highest, beneath, max, step, write }) {
    const width = Math.max(260, Math.min(widest, place.clientWidth || widest));
    const [left, top] = [46, 12];
    const across = width - left - 10;
    const up = Math.round(Math.min(steepness * across, highest));
    const low = top + up + beneath; // the line beneath which the numbers stand
    const field = { width, left, top, across, up, low };
    field.x = (value) => left + (across * value) / max;
    field.y = (value) => top + up * (1 - value / max);
    field.picture = draw("svg", { viewBox: `0 0 ${width} ${low + 46}`, role: "slider", tabindex: 0 });
    for (let n = 0; n * step < max + step / 2; n += 1) {
      const [x, y, words] = [field.x(n * step), field.y(n * step), write(n * step)];
      field.picture.append(line("grid", x, top, x, top + up), line("grid", left, y, left + across, y));
      field.picture.append(text(left - 8, y + 4, words, "end"), text(x, low + 16, words));
    }
    field.picture.append(line("diagonal", field.x(0), field.y(0), field.x(max), field.y(max)));
    return field;
  }

  function nameAxes({ picture, left, across, top, up, low }, across_name, up_name) {
    picture.append(title(left + across / 2, low + 38, across_name), standing(11, top + up / 2, up_name));
  }

  // Where a pointer is, in the units of the drawing.
  function pointed({ picture, width }, event) {
    const box = picture.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top].map((value) => (value * width) / box.width);
  }

  // Lets a person go through the places of a drawing: by pointer and finger; by arrow keys, Home, End and Escape.
  function movable(field, { count, current, at, go }) {
    const { picture } = field;
    for (const kind of ["pointermove", "pointerdown"]) {
      picture.addEventListener(kind, (event) => {
        const next = at(...pointed(field, event));
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

  // A new drawing takes the focus of the old one with it.
  function show(place, picture) {
    const focused = place.contains(document.activeElement);
    place.replaceChildren(picture);
    if (focused) picture.focus({ preventScroll: true });
  }

  // Whoever has no mouse must be able to scroll a table that is too wide.
  const widths = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
      else target.removeAttribute("tabindex");
    }
  });
  all(".scroll").forEach((scroller) => widths.observe(scroller));

  function goTo(target) {
    target.tabIndex = -1;
    target.focus({ preventScroll: true });
    target.scrollIntoView();
  }

  const elements = { all, byId, readData, make, draw, fill, goTo, show };
  const numbers = { fixed, signed, round, nearest };
  const drawing = { text, title, standing, line, stroke, shapes, newField, nameAxes, movable };
  return { ...elements, ...numbers, ...drawing };
})();
