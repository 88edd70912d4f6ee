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

  static async open(more = []) {
    const world = new World();
    // Chromium's own sandbox does not start as root, as in most containers, where there is little shared memory as well.
    const args = ["--disable-dev-shm-usage", ...(process.getuid() === 0 ? ["--no-sandbox"] : []), ...more];
    world.browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args });
    return world;
  }

  // A window of one kind. `expected` are the statuses of refusals that the journey is about.
  async window(kind, origin, { storageState, ignoreHTTPSErrors, expected = [] } = {}) {
    const context = await this.browser.newContext({ ...KINDS[kind], storageState, ignoreHTTPSErrors });
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

  // What makes a page wider makes nothing scroll sideways: 400 % zoom (WCAG 2.2, 1.4.10), the reader's own spacing (1.4.12), and
  // the longer words of another language. The page is not to be used after it.
  async checkReflow({ page, kind }, name) {
    if (KINDS[kind].javaScriptEnabled === false) return;
    const look = async (what) => {
      const wide = () => document.documentElement.scrollWidth - document.documentElement.clientWidth;
      const by = await page.evaluate(wide);
      if (by > 0) this.problems.push(`${kind}, ${name}: ${what}, it scrolls sideways by ${by} px`);
    };
    const size = page.viewportSize();
    await page.setViewportSize({ width: 320, height: 256 });
    await look("at 400 %");
    await page.setViewportSize(size);
    await page.evaluate(() => {
      for (const { style } of document.querySelectorAll("body, body *")) {
        Object.assign(style, { lineHeight: "1.5", letterSpacing: "0.12em", wordSpacing: "0.16em" });
      }
    });
    await look("with wider text");
    await page.evaluate(() => {
      for (const element of document.querySelectorAll("body, body *")) element.removeAttribute("style");
      const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
      while (texts.nextNode()) {
        const text = texts.currentNode;
        if (text.data.trim() && !text.parentElement.closest("code")) text.data += ` ${text.data.slice(0, text.data.length * 0.4)}`;
      }
    });
    await look("with texts 40 % longer");
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
