// report.js
//
// Puts the page together from the comparison that it holds.

function drawContents(comparison) {
  const link = (href, text) => element("a", { href }, text);
  byId("contents").append(link("#figures", "Figures"),
    ...comparison.runs.map((run) => link(`#${cardId(run)}`, run.schedule)), link("#curves", "Losses"));
}

function drawPage() {
  const comparison = JSON.parse(byId("comparison").textContent);
  drawContents(comparison);
  drawFigures(comparison);
  const cards = drawCards(comparison);
  drawCurves(comparison);
  const redrawAll = () => cards.forEach((card) => card.redraw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
  // Paper is light, has a width of its own, and shows what was never scrolled to.
  const setPrint = (prints) => {
    if (prints) document.documentElement.dataset.print = "1";
    else delete document.documentElement.dataset.print;
    for (const card of cards) card.drawNow();
  };
  addEventListener("beforeprint", () => setPrint(true));
  addEventListener("afterprint", () => setPrint(false));
}

drawPage();
