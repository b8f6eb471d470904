"use strict";
const { figures, light, dark, config } = JSON.parse(document.getElementById("figures").textContent);
const scheme = matchMedia("(prefers-color-scheme: dark)");

function draw(template, width) {
  figures.forEach((figure, i) => {
    const height = width ? Math.min(figure.layout.height, 440) : figure.layout.height; // two on a sheet of paper
    const layout = { ...figure.layout, template, width, height, autosize: !width };
    Plotly.react(`figure-${i}`, figure.data, layout, config);
  });
}

const onScreen = () => draw(scheme.matches ? dark : light);
onScreen();
scheme.addEventListener("change", onScreen);
addEventListener("beforeprint", () => draw(light, 660));
addEventListener("afterprint", onScreen);
