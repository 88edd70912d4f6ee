// Turns pictures of the browser suite into those of the documentation: smaller, as WebP.

import { chromium } from "playwright-core";
import { readFile, writeFile } from "node:fs/promises";

const [from, to] = process.argv.slice(2);
const CHOSEN = {
  "desktop-me": "overview",
  "desktop-one-tunnel": "tunnel",
  "dark-one-refusal": "why-refused",
  "telephone-one-tunnel-access": "telephone",
};
const MOST_HEIGHT = 1000;

const args = ["--disable-dev-shm-usage", ...(process.getuid() === 0 ? ["--no-sandbox"] : [])];
const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args });
const page = await browser.newPage();
for (const [name, picture] of Object.entries(CHOSEN)) {
  const png = (await readFile(`${from}/${name}.png`)).toString("base64");
  const webp = await page.evaluate(
    async ([png, most]) => {
      const image = new Image();
      image.src = `data:image/png;base64,${png}`;
      await image.decode();
      const canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = [image.width, Math.min(image.height, (most * image.width) / 1200 + 400)];
      canvas.getContext("2d").drawImage(image, 0, 0);
      return canvas.toDataURL("image/webp", 0.8).split(",")[1];
    },
    [png, MOST_HEIGHT],
  );
  await writeFile(`${to}/${picture}.webp`, Buffer.from(webp, "base64"));
}
await browser.close();
