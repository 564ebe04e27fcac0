// Shows the numbers of the bin at the pointer, at the finger, or chosen with the arrow keys. Without this script the
// numbers are tooltips.
(() => {
  const { all, fill, makeNavigable } = page;
  for (const figure of all(".reliability")) {
    const picture = figure.querySelector("svg");
    const readout = figure.querySelector(".readout");
    const columns = all(".bins rect", picture).map((box) => {
      const [left, width] = ["x", "width"].map((name) => Number(box.getAttribute(name)));
      const caption = box.querySelector("title").textContent;
      box.querySelector("title").remove(); // or it would cover the diagram
      return { box, center: left + width / 2, caption };
    });
    let chosen = null;
    const go = (next) => {
      chosen = next;
      columns.forEach(({ box }, place) => box.classList.toggle("chosen", place === next));
      const caption = next === null ? "" : columns[next].caption;
      readout.textContent = caption;
      fill(picture, { "aria-valuenow": (next ?? 0) + 1, "aria-valuetext": caption || "no bin selected" });
    };
    const at = (x) => {
      const away = columns.map(({ center }) => Math.abs(center - x));
      return away.indexOf(Math.min(...away));
    };
    fill(picture, { role: "slider", tabindex: 0, "aria-valuemin": 1, "aria-valuemax": columns.length });
    const plot = { picture, width: picture.viewBox.baseVal.width };
    makeNavigable(plot, { count: columns.length, current: () => chosen, at, go });
    go(null);
  }
})();
