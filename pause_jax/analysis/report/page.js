"use strict";
// Interpret Vega expressions, because the page's Content-Security-Policy forbids eval.
const options = {
  renderer: "svg",
  ast: true,
  actions: { export: true, source: false, compiled: false, editor: false },
};
for (const block of document.querySelectorAll('script[type="application/json"]')) {
  const place = document.getElementById(block.dataset.chart);
  const drawn = vegaEmbed(place, JSON.parse(block.textContent), options);
  drawn.then(({ view }) => {
    // Resize again, because the number of legend rows depends on the width.
    const fit = () => view.resize().runAsync();
    addEventListener("resize", fit);
    return fit();
  }).catch((error) => {
    place.textContent = "This chart could not be drawn: " + error.message;
    throw error;
  });
}
// Print the differing fields, but not the other collapsed sections.
addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll("details.printed")) part.open = true;
});
