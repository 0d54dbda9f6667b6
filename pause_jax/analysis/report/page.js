"use strict";
// An interpreter of Vega's expressions instead of eval, which the page forbids.
const options = {
  renderer: "svg",
  ast: true,
  actions: { export: true, source: false, compiled: false, editor: false },
};
for (const block of document.querySelectorAll('script[type="application/json"]')) {
  const place = document.getElementById(block.dataset.chart);
  const drawn = vegaEmbed(place, JSON.parse(block.textContent), options);
  drawn.then(({ view }) => {
    // Once more, as the rows of its legend follow from its width.
    const fit = () => view.resize().runAsync();
    addEventListener("resize", fit);
    return fit();
  }).catch((error) => {
    place.textContent = "This chart could not be drawn: " + error.message;
    throw error;
  });
}
// What differs is printed too; the files lie beside the page.
addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll("details.printed")) part.open = true;
});
