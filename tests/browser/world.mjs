// Browsers of four kinds, which note everything that no page of ours may do.

import AxeBuilder from "@axe-core/playwright";
import { chromium } from "playwright-core";
import { mkdir } from "node:fs/promises";

const RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];
const PICTURES = process.env.PICTURES;

// A password that nobody guesses.
export const PASSWORD = "gravel otter lantern 42";

export const KINDS = {
  desktop: { viewport: { width: 1200, height: 800 } },
  dark: { viewport: { width: 1200, height: 800 }, colorScheme: "dark", reducedMotion: "reduce" },
  telephone: { viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true },
  "without script": { viewport: { width: 1200, height: 800 }, javaScriptEnabled: false },
};

export class World {
  problems = [];

  static async open() {
    const world = new World();
    // Chromium's own sandbox does not start as root, as in most containers, where there is little shared memory as well.
    const args = ["--disable-dev-shm-usage", ...(process.getuid() === 0 ? ["--no-sandbox"] : [])];
    world.browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args });
    return world;
  }

  // A window of one kind. `expected` are the statuses of refusals that the journey is about.
  async window(kind, origin, { storageState, expected = [] } = {}) {
    const context = await this.browser.newContext({ ...KINDS[kind], storageState });
    context.setDefaultTimeout(20_000);
    const page = await context.newPage();
    const note = (text) => this.problems.push(`${kind}, ${page.url()}: ${text}`);
    page.on("pageerror", (error) => note(`script: ${error.message}`));
    page.on("console", (message) => {
      const refused = expected.some((status) => message.text().includes(`status of ${status}`));
      if (message.type() === "error" && !refused) note(`console: ${message.text()}`);
    });
    page.on("request", (request) => {
      if (origin && !request.url().startsWith(origin)) note(`asks ${request.url()}`);
    });
    page.on("requestfailed", (request) => {
      // What a reload gives up is asked for again.
      if (request.failure()?.errorText !== "net::ERR_ABORTED") note(`failed: ${request.url()}`);
    });
    return { context, page, kind };
  }

  // Looks at a page: no barrier that axe finds, nothing that scrolls sideways.
  async look({ page, kind }, name) {
    if (KINDS[kind].javaScriptEnabled !== false) {
      const { violations } = await new AxeBuilder({ page }).withTags(RULES).analyze();
      for (const { id, nodes } of violations) {
        this.problems.push(`${kind}, ${name}: axe ${id} at ${nodes.map((node) => node.target.join(" ")).join(", ")}`);
      }
      const wide = () => document.documentElement.scrollWidth > document.documentElement.clientWidth;
      if (await page.evaluate(wide)) this.problems.push(`${kind}, ${name}: scrolls sideways`);
    }
    if (PICTURES) {
      await mkdir(PICTURES, { recursive: true });
      await page.screenshot({ path: `${PICTURES}/${kind.replaceAll(" ", "-")}-${name}.png`, fullPage: true });
    }
  }

  check(holds, what) {
    if (!holds) this.problems.push(what);
  }

  async close() {
    await this.browser.close();
    if (this.problems.length > 0) {
      console.error(this.problems.join("\n"));
      process.exit(1);
    }
  }
}
