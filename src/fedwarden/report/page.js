"use strict";
const { figures, light, dark, config } = JSON.parse(document.getElementById("figures").textContent);
const scheme = matchMedia("(prefers-color-scheme: dark)");

function draw(template, width) {
  figures.forEach((figure, i) => {
    const height = width ? Math.min(figure.layout.height, 440) : figure.layout.height; // two on a sheet of paper
    const place = document.getElementById(`figure-${i}`);
    place.style.height = `${height}px`; // of which Plotly takes the size when the window changes
    Plotly.react(place, figure.data, { ...figure.layout, template, width, height, autosize: !width }, config);
  });
}

const onScreen = () => draw(scheme.matches ? dark : light);
onScreen();
scheme.addEventListener("change", onScreen);
document.querySelector("details")?.addEventListener("toggle", onScreen); // what is folded has no width to be drawn in
addEventListener("beforeprint", () => draw(light, 660));
addEventListener("afterprint", onScreen);
