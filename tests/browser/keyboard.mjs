// Everyday work with Tab, Enter and the arrow keys alone.

import { PASSWORD } from "./world.mjs";

// What has the focus: its element, what a screen reader calls it, and whether it is in the part that is asked for.
const focused = (part) => {
  const { activeElement } = document;
  const label = activeElement.getAttribute("aria-label") ?? activeElement.labels?.[0]?.textContent ?? activeElement.textContent;
  return { tag: activeElement.tagName, name: label.trim(), inside: activeElement.closest(part) !== null };
};

// Tabs on until something with this name has the focus, in this part of the page.
export async function reach(page, name, part = "body") {
  const passed = [];
  for (let steps = 0; steps < 150; steps += 1) {
    await page.keyboard.press("Tab");
    const at = await page.evaluate(focused, part);
    if (at.tag !== "BODY" && at.name === name && at.inside) return;
    passed.push(at.name.slice(0, 30));
  }
  throw new Error(`Tab does not reach "${name}" on ${page.url()}: ${passed.join(" | ")}`);
}

export async function press(page, name) {
  await reach(page, name);
  await page.keyboard.press("Enter");
}

export async function type(page, name, text) {
  await reach(page, name);
  await page.keyboard.press("Control+A");
  await page.keyboard.type(text);
}

export async function workByKeyboard(world, { origin, service }) {
  const window = await world.window("desktop", origin);
  const { page } = window;
  // While a page is replaced in place, the focus stays in it.
  const keepsFocus = async (what) => world.check((await page.evaluate(focused, "body")).tag !== "BODY", `${what}, the focus is lost`);

  await page.goto(`${origin}/dashboard/sign-in`);
  await type(page, "E-mail", "dev@culvert.test");
  await type(page, "Password", PASSWORD);
  await page.keyboard.press("Enter");
  await page.waitForURL("**/dashboard/me");

  await press(page, "Tunnels");
  await page.waitForURL("**/tunnels");
  await press(page, "New tunnel");
  await page.waitForURL("**/tunnels/new");
  await type(page, "Name", "by keys");
  await reach(page, "Protocol");
  await page.keyboard.press("Home");
  for (let steps = 0; steps < 5 && (await page.getByLabel("Protocol").inputValue()) !== "tcp"; steps += 1) await page.keyboard.press("ArrowDown");
  await type(page, "Local port", service);
  await page.keyboard.press("Enter");
  await page.waitForURL(/tunnels\/[0-9a-f-]{36}$/);

  await press(page, "Start");
  await page.locator(".badge", { hasText: "running" }).first().waitFor();
  // A stop is refused (409) until the start is finished, which may be a moment after the tunnel runs.
  await page.locator(".notice", { hasText: "The action start" }).waitFor({ state: "detached" });
  await press(page, "Stop");
  await page.locator(".badge", { hasText: "stopped" }).first().waitFor();

  await press(page, "Who may visit");
  await page.waitForURL("**/access");
  await type(page, "Refuse", "203.0.113.0/24");
  await press(page, "Save addresses");
  await page.getByText("but for those who are refused").waitFor();
  await type(page, "Address of a visitor", "203.0.113.9");
  await page.keyboard.press("Enter");
  await page.getByText("may not visit").waitFor();

  await press(page, "by keys");
  await page.getByRole("heading", { name: "by keys", exact: true }).waitFor();
  await press(page, "Settings");
  await page.waitForURL("**/settings");
  // Another tab changes it: what has the focus keeps it.
  await reach(page, "Save settings");
  const other = await window.context.newPage();
  await other.goto(page.url());
  await other.getByLabel("Name", { exact: true }).fill("by the keys");
  await other.getByRole("button", { name: "Save settings" }).click();
  await page.getByRole("link", { name: "The tunnel by the keys" }).waitFor();
  await keepsFocus("when another tab has changed the page");
  await other.close();
  await type(page, "The tunnel's name", "by the keys");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Tunnels", exact: true }).waitFor();

  await press(page, "Keys");
  await page.waitForURL("**/keys");
  await type(page, "Name", "by keys");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Your key" }).waitFor();
  await press(page, "Webhooks");
  await page.waitForURL("**/webhooks");
  await type(page, "Address", "https://8.8.8.8/");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "The endpoint's secret" }).waitFor();
  await press(page, "Team");
  await page.waitForURL("**/team");
  await type(page, "Name", "Keys");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Keys", exact: true }).waitFor();
  await type(page, "E-mail", "lin@example.com");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "The link for lin@example.com" }).waitFor();
  await press(page, "Sign out");
  await page.waitForURL("**/dashboard/sign-in");
  await window.context.close();
}
