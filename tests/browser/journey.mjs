// From the link that `culvert dev` prints to bytes through a tunnel, and every page in every kind of browser.

import { readFile } from "node:fs/promises";
import { get } from "node:http";
import { attack } from "./attack.mjs";
import { press, reach, type, workByKeyboard } from "./keyboard.mjs";
import { KINDS, PASSWORD, World } from "./world.mjs";

const printed = await readFile(process.argv[2], "utf8");
const link = printed.match(/http:\/\/localhost:\d+\/dashboard\/enter#\S+/)[0];
const service = printed.match(/this machine, 127\.0\.0\.1:(\d+)/)[1];
const hostile = printed.match(/http:\/\/hello\.tunnel\.localhost:\d+/)[0];
const { origin } = new URL(link);
const base = `${origin}/dashboard/me`;

const world = await World.open();
let clicks = 0;
const click = async (page, name) => {
  clicks += 1;
  await page.getByRole("button", { name, exact: true }).click();
};

async function comeIn() {
  const window = await world.window("desktop", origin);
  const { page } = window;
  await page.goto(link);
  world.check(new URL(page.url()).hash === "", "the secret stays in the address bar");
  await world.look(window, "enter");
  await click(page, "Come in");
  await page.waitForURL("**/dashboard/account");
  await world.look(window, "account");
  await page.getByLabel("New password").fill(PASSWORD);
  await click(page, "Set password");
  await page.waitForURL("**/dashboard/me");
  await page.goto(`${origin}/dashboard/account`);
  await page.getByRole("button", { name: "Set up an authenticator app" }).click();
  await page.getByLabel("The secret as a QR code").waitFor();
  await world.look(window, "second-factor");
  return window;
}

async function makeTunnel(window) {
  const { page } = window;
  await page.goto(`${base}/tunnels/new`);
  clicks += 2;
  await page.getByLabel("Name", { exact: true }).fill("from the browser");
  await page.getByLabel("Protocol").selectOption("tcp");
  await page.getByLabel("Local port").fill(service);
  await click(page, "Create tunnel");
  await page.waitForURL(/tunnels\/[0-9a-f-]{36}$/);
  await click(page, "Start");
  // The page looks again by itself while the device is at it.
  await page.getByText("running", { exact: true }).waitFor();
  await world.look(window, "tunnel");
  const address = await page.locator("p.line code").first().innerText();
  const answer = await new Promise((resolve, reject) => {
    get(`http://${address}/`, async (response) => resolve(Buffer.concat(await response.toArray()).toString())).on("error", reject);
  });
  world.check(answer.includes("Hello from the other end"), `the tunnel answers ${answer}`);
  return page.url();
}

// A change that another tab makes is seen without a reload, and nothing that somebody types is lost by it.
async function seeChanges(window, tunnel) {
  const rename = async (page, name) => {
    await page.goto(`${tunnel}/settings`);
    await page.getByLabel("Name", { exact: true }).fill(name);
    const posted = page.waitForRequest((request) => request.method() === "POST").then(() => Date.now());
    await page.getByRole("button", { name: "Save settings" }).click();
    return posted;
  };
  const other = await window.context.newPage();
  await other.goto(`${base}/tunnels`);
  const waits = [];
  for (let round = 0; round < 20; round += 1) {
    const name = `round ${round}`;
    // Noticed in the page itself: the browser draws a tab in the background but once a second.
    const seen = other.evaluate(
      (name) =>
        new Promise((resolve) => {
          const isShown = () => [...document.querySelectorAll("main a")].some((link) => link.textContent === name);
          new MutationObserver(() => isShown() && resolve(Date.now())).observe(document.body, { childList: true, subtree: true });
        }),
      name,
    );
    const posted = await rename(window.page, name);
    waits.push((await seen) - posted);
  }
  waits.sort((a, b) => a - b);
  const [median, most] = [waits[10], waits.at(-1)];
  console.log(`a change is seen in another tab after ${median} ms (median), ${most} ms at most, of ${waits.length}`);
  // What is typed is not lost by it, and shown again when it is left.
  const name = window.page.getByLabel("Name", { exact: true });
  await name.fill("typed");
  await rename(other, "from the browser");
  await window.page.getByText("Something has changed.").waitFor();
  world.check((await name.inputValue()) === "typed", "a change takes away what is typed");
  await name.fill("round 19");
  await window.page.locator("h1").click();
  await window.page.getByRole("link", { name: "The tunnel from the browser" }).waitFor();
  await other.close();
}

// An endpoint that hears of nothing that happens here.
async function makeEndpoint(window) {
  const { page } = window;
  await page.goto(`${base}/webhooks`);
  await page.getByLabel("Address").fill("https://8.8.8.8/");
  for (const event of ["tunnel.started", "tunnel.stopped", "device.offline"]) await page.getByLabel(event).uncheck();
  await page.getByLabel("command.expired").check();
  await click(page, "Create endpoint");
  await page.getByRole("heading", { name: "The endpoint's secret" }).waitFor();
  await world.look(window, "webhook-secret");
  await page.getByRole("link", { name: "The endpoint", exact: true }).click();
  await page.waitForURL(/webhooks\/[0-9a-f-]{36}$/);
  const endpoint = page.url();
  await click(page, "Send a test event");
  await page.getByRole("link", { name: "webhook.test" }).first().click();
  await page.getByRole("heading", { name: "Delivery of webhook.test" }).waitFor();
  return [endpoint, page.url()];
}

// With the keyboard alone to any page, tunnel and part of the documentation.
async function goByKeys(window) {
  const { page } = window;
  await page.goto(base);
  await page.keyboard.press("Control+k");
  const field = page.getByRole("dialog").getByRole("searchbox");
  await field.waitFor();
  await page.keyboard.type("from the br");
  const hit = page.getByRole("dialog").getByRole("link", { name: "from the browser" });
  await hit.waitFor();
  await world.look(window, "palette");
  await page.keyboard.press("ArrowDown");
  world.check(await hit.evaluate((link) => link === document.activeElement), "the arrow leads elsewhere");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "from the browser", exact: true }).waitFor();
  await page.keyboard.press("g");
  await page.keyboard.press("d");
  await page.getByRole("heading", { name: "Devices", exact: true }).waitFor();
  await page.keyboard.press("?");
  await page.getByRole("dialog").getByLabel("Keys of one letter are on").uncheck();
  await page.keyboard.press("Escape");
  await page.keyboard.press("n");
  world.check(page.url() === `${base}/devices`, "a key that is off leads elsewhere");
  await page.evaluate(() => localStorage.clear());
  await page.goto(`${origin}/docs/book`);
  await page.getByRole("searchbox").fill("backup");
  await page.keyboard.press("Enter");
  const first = page.locator(".found a").first();
  await first.waitFor();
  await page.getByRole("searchbox").fill("device_offline");
  await page.locator('.found a[href="/docs/errors#device_offline"]').click();
  await page.getByRole("heading", { name: "device_offline" }).waitFor();
}

async function refuse(window) {
  const { page } = window;
  await page.goto(`${base}/tunnels/new`);
  await page.getByLabel("Name", { exact: true }).fill("\u202e<img src=x onerror=alert(1)>");
  await page.getByLabel("Local port").fill("none");
  await click(page, "Create tunnel");
  world.check((await page.getByLabel("Local port").getAttribute("aria-invalid")) === "true", "the fault is not at its field");
  world.check(await page.locator("[role=alert]").evaluate((alert) => alert === document.activeElement), "after a refusal, the focus is not on it");
  await world.look(window, "fault");
  await page.locator("[role=alert] a").first().press("Enter");
  world.check(await page.getByLabel("Local port").evaluate((field) => field === document.activeElement), "a fault does not lead to its field");
}

// Two minutes before a sign-in ends, its pages say so, unless another tab has used it meanwhile.
async function warnOfTheEnd(window) {
  const { page } = window;
  const left = [121, 122, 119];
  await page.route(`${base}/usage`, async (route) => {
    const response = await route.fetch();
    const body = (await response.text()).replace(/data-ends-in="\d+"/, `data-ends-in="${left.shift() ?? 119}"`);
    await route.fulfill({ response, body });
  });
  // Without the stream, whose first look would take one of these.
  await page.route("**/live", (route) => route.fulfill({ status: 429, body: "" }));
  await page.goto(`${base}/usage`);
  await page.getByText("You are signed out at").waitFor();
  world.check(left.length === 0, "it is said before the sign-in is looked at once more");
  await world.look(window, "ends-soon");
}

// A tunnel is made, started, stopped and deleted without script: pages load themselves again while something is under way.
async function workWithoutScript(storageState) {
  const window = await world.window("without script", origin, { storageState });
  const { page } = window;
  await page.goto(`${base}/tunnels/new`);
  await page.getByLabel("Name", { exact: true }).fill("plain");
  await page.getByLabel("Protocol").selectOption("tcp");
  await page.getByLabel("Local port").fill(service);
  await page.getByRole("button", { name: "Create tunnel" }).click();
  await page.getByRole("button", { name: "Start", exact: true }).first().click();
  await page.getByRole("button", { name: "Stop", exact: true }).waitFor();
  await page.locator(".badge", { hasText: "running" }).first().waitFor();
  // A stop is refused (409) until the start is finished, which may be a moment after the tunnel runs.
  await page.locator(".notice", { hasText: "The action start" }).waitFor({ state: "detached" });
  await page.getByRole("button", { name: "Stop", exact: true }).click();
  await page.locator(".badge", { hasText: "stopped" }).first().waitFor();
  await page.getByRole("link", { name: "Settings" }).click();
  await page.locator("form[action$='/delete'] input[type=text]").fill("plain");
  await page.getByRole("button", { name: /^Delete/ }).click();
  await page.getByRole("heading", { name: "Tunnels", exact: true }).waitFor();
  world.check((await page.getByRole("link", { name: "plain", exact: true }).count()) === 0, "without script, a tunnel is not deleted");
  await window.context.close();
}

// A Team, a colleague who makes an account by the invitation, and what the colleague is refused.
async function inviteColleague(window) {
  const { page } = window;
  await page.goto(`${base}/team`);
  await page.getByLabel("Name", { exact: true }).fill("Lab");
  await click(page, "Make Team");
  await page.getByRole("heading", { name: "Lab", exact: true }).waitFor();
  const team = page.url();
  await page.getByLabel("E-mail").fill("grace@example.com");
  await click(page, "Invite");
  await page.getByRole("heading", { name: "The link for grace@example.com" }).waitFor();
  await world.look(window, "invitation");
  const invitation = await page.locator("[data-copy] code").first().innerText();

  const colleague = await world.window("telephone", origin, { expected: [403] });
  await colleague.page.goto(invitation);
  await colleague.page.getByRole("button", { name: "Come in", exact: true }).click();
  await colleague.page.getByRole("heading", { name: "Join Lab" }).waitFor();
  await world.look(colleague, "join");
  await colleague.page.getByLabel("Your name").fill("Grace");
  await colleague.page.getByLabel("Password").fill(PASSWORD);
  await colleague.page.getByRole("button", { name: "Create account" }).click();
  await colleague.page.waitForURL("**/dashboard/me");
  await colleague.page.goto(team);
  await world.look(colleague, "team-of-a-member");
  await colleague.page.goto(team.replace(/team$/, "webhooks"));
  // The page says beforehand that a member may not. It is posted from a page that was open before that was so.
  await colleague.page.getByText("team_role_forbidden").waitFor();
  await world.look(colleague, "refused-beforehand");
  await colleague.page.evaluate(() => (document.querySelector("fieldset[disabled]").disabled = false));
  await colleague.page.getByLabel("Address").fill("https://8.8.8.8/");
  await colleague.page.getByRole("button", { name: "Create endpoint" }).click();
  await colleague.page.getByRole("link", { name: "Why was this refused?" }).click();
  // The refusal is stored after its answer.
  while ((await colleague.page.getByRole("heading", { name: "What it saw" }).count()) === 0) await colleague.page.reload();
  world.check((await colleague.page.locator("main").innerText()).includes("Owners and admins change the Team's webhooks"), "the rule is not told");
  await world.look(colleague, "why-refused");
  const why = colleague.page.url();
  await colleague.context.close();
  return [team, why];
}

// Policies are reloaded and rolled back, by the keyboard alone.
async function rollBack(window) {
  const { page } = window;
  await page.goto(`${origin}/dashboard/operator/policies`);
  await press(page, "Show what a reload would change");
  await page.getByText("They are the ones that are in use").waitFor();
  await world.look(window, "operator-policies-plan");
  await page.goto(`${origin}/dashboard/operator/policies`);
  await press(page, "Reload");
  await press(page, await page.getByRole("button", { name: /^Roll back to generation/ }).innerText());
  await page.getByText("There are no earlier policies").waitFor();
}

// With the keys of the keyboard alone.
async function signInByKeyboard() {
  const window = await world.window("desktop", origin, { expected: [401] });
  const { page } = window;
  await page.goto(`${origin}/dashboard/me/keys`);
  await world.look(window, "sign-in");
  for (const password of ["not the password", PASSWORD]) {
    await page.getByLabel("E-mail").focus();
    await page.keyboard.press("Control+A");
    await page.keyboard.type("dev@culvert.test");
    await page.keyboard.press("Tab");
    await page.keyboard.type(password);
    await page.keyboard.press("Enter");
    if (password !== PASSWORD) await page.getByRole("alert").waitFor();
  }
  await page.waitForURL("**/dashboard/me/keys");
  await page.getByLabel("Name", { exact: true }).fill("browser");
  await click(page, "Make key");
  await page.getByRole("heading", { name: "Your key" }).waitFor();
  await world.look(window, "key");
  await page.reload();
  await page.getByRole("heading", { name: "Your key" }).waitFor();
  await page.goto(`${base}/keys`);
  const revocable = await page.getByRole("button", { name: "Revoke" }).count();
  world.check(revocable === 2, `beside the key of culvert dev there are ${revocable - 1} keys`);
  await click(page, "Sign out");
  await page.waitForURL("**/dashboard/sign-in");
  await page.goBack();
  world.check(!(await page.content()).includes("Revoke"), "the back button shows a page after signing out");
  await window.context.close();
}

// A passkey is made on the account's page, and signs in without a password, by the keyboard alone.
async function signInByPasskey(storageState) {
  const window = await world.window("desktop", origin, { storageState });
  const { page } = window;
  const devtools = await window.context.newCDPSession(page);
  await devtools.send("WebAuthn.enable");
  const options = { protocol: "ctap2", transport: "internal", hasResidentKey: true, hasUserVerification: true, isUserVerified: true };
  const { authenticatorId } = await devtools.send("WebAuthn.addVirtualAuthenticator", { options });
  await page.goto(`${origin}/dashboard/account`);
  if ((await page.getByLabel("Password", { exact: true }).count()) > 0) {
    await type(page, "Password", PASSWORD);
    await page.keyboard.press("Enter");
    await page.waitForURL("**/dashboard/account");
  }
  await reach(page, "Name", "#new-passkey");
  await page.keyboard.type("this machine");
  await press(page, "Add a passkey");
  await page.getByRole("cell", { name: "this machine" }).waitFor();
  await world.look(window, "passkeys");
  // The field for the e-mail address offers it at once, where the browser can.
  await devtools.send("WebAuthn.setAutomaticPresenceSimulation", { authenticatorId, enabled: false });
  await press(page, "Sign out");
  await page.waitForURL("**/dashboard/sign-in");
  await world.look(window, "sign-in-with-passkey");
  await devtools.send("WebAuthn.setAutomaticPresenceSimulation", { authenticatorId, enabled: true });
  await press(page, "Sign in with a passkey");
  await page.waitForURL("**/dashboard/me");
  const state = await window.context.storageState();
  await window.context.close();
  return state;
}

const began = Date.now();
const first = await comeIn();
const tunnel = await makeTunnel(first);
const seconds = (Date.now() - began) / 1000;
console.log(`from the link to bytes through a tunnel: ${clicks} clicks, ${seconds.toFixed(1)} s`);
world.check(clicks <= 8 && seconds <= 60, "more than 8 clicks or 60 s");
await seeChanges(first, tunnel);
const [endpoint, delivery] = await makeEndpoint(first);
await goByKeys(first);
const [team, why] = await inviteColleague(first);
await rollBack(first);
await first.page.goto(`${base}/tunnels`);
const web = origin + (await first.page.getByRole("link", { name: "hello-web" }).getAttribute("href"));
await first.page.goto(`${base}/devices`);
const device = origin + (await first.page.getByRole("link", { name: "dev", exact: true }).nth(1).getAttribute("href"));
const storageState = await first.context.storageState();
await first.context.close();

// What somebody loads who comes for the first time, and what a page is later.
{
  const window = await world.window("desktop", origin, { storageState });
  const sizes = [];
  const counted = [];
  window.page.on("response", (response) => response.url().endsWith("/live") || counted.push(response.body()));
  // The page looks once more when its stream is open.
  const again = window.page.waitForResponse((response) => response.request().resourceType() === "xhr");
  await window.page.goto(base);
  await again;
  for (const body of await Promise.all(counted)) sizes.push(body.length);
  const sum = sizes.reduce((all, one) => all + one, 0);
  console.log(`first visit: ${sizes.length} requests, ${(sum / 1000).toFixed(1)} kB, not compressed`);
  world.check(sizes.length > 0 && sizes.length <= 10 && sum <= 90_000, `a first visit takes ${sizes.length} requests and ${sum} bytes`);
  await window.context.close();
}

const refused = await world.window("desktop", origin, { storageState, expected: [422] });
await refuse(refused);
await refused.context.close();
const ending = await world.window("desktop", origin, { storageState, expected: [429] });
await warnOfTheEnd(ending);
await ending.context.close();
await workWithoutScript(storageState);
const pages = ["", "/tunnels", "/tunnels/new", "/devices", "/operations", "/webhooks", "/usage", "/keys", "/team", "/policies", "/search?find=a", "/explain", "/audit"].map((path) => base + path);
for (const kind of Object.keys(KINDS)) {
  const window = await world.window(kind, origin, { storageState });
  const ofTunnel = ["", "/access", "/ports", "/domain", "/sessions", "/settings"].map((part) => tunnel + part);
  const ofOperator = ["accounts", "teams", "nodes", "policies", "policies/shadows", "health"].map((page) => `${origin}/dashboard/operator/${page}`);
  const ofDocs = ["docs", "docs/errors", "docs/policies", "docs/book", "docs/operate/dashboard", "docs/search?q=backup"];
  const ownPages = [...pages, ...ofTunnel, `${web}/domain`, `${web}/settings`, device, endpoint, delivery, team, why, ...ofOperator, `${origin}/dashboard/account`, `${origin}/dashboard/gallery`];
  ownPages.push(...ofDocs.map((page) => `${origin}/${page}`));
  for (const url of ownPages) {
    await window.page.goto(url);
    world.check((await window.page.locator("h1").count()) === 1, `${kind}: ${url} has no heading`);
    const named = url.replace(device, "/dashboard/one-device").replace(delivery, "/dashboard/one-delivery").replace(`${origin}/docs`, "/dashboard/docs").replace(/\?.*/, "").replace(tunnel, "/dashboard/one-tunnel").replace(web, "/dashboard/web").replace(endpoint, "/dashboard/one-webhook").replace(team, "/dashboard/one-team").replace(why, "/dashboard/one-refusal");
    const name = named.split("/dashboard/")[1].replaceAll("/", "-");
    await world.look(window, name);
    await world.checkReflow(window, name);
  }
  await window.context.close();
}
await signInByKeyboard();
await workByKeyboard(world, { origin, service });
await attack(world, {
  origin,
  hostile,
  storageState: await signInByPasskey(storageState),
  planted: ["", "; domain=localhost", "; domain=tunnel.localhost"].map((domain) => `culvert_local=planted; path=/dashboard${domain}`),
});
await world.close();
console.log(`every page in ${Object.keys(KINDS).length} kinds of browsers: nothing to complain of`);
