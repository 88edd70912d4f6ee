// From the link that `culvert serve` leaves in its data folder to bytes through a tunnel: the first operator's account, a
// device, its tunnel.

import { execFile, spawn } from "node:child_process";
import { readFile } from "node:fs/promises";
import { createServer, get } from "node:http";
import { promisify } from "node:util";
import { PASSWORD, World } from "./world.mjs";

const [linkFile, agent, state] = process.argv.slice(2);
const link = (await readFile(linkFile, "utf8")).trim();
const { origin } = new URL(link);
const run = promisify(execFile);

const world = await World.open();
const window = await world.window("desktop", origin);
const { page } = window;
const began = Date.now();
let clicks = 0;
let commands = 0;
const click = async (role, name) => {
  clicks += 1;
  await page.getByRole(role, { name, exact: true }).click();
};
const command = async (...words) => {
  commands += 1;
  return run(agent, ["--state-dir", state, ...words]);
};

await page.goto(link);
await click("button", "Come in");
await page.getByRole("heading", { name: "Set up Culvert" }).waitFor();
await world.look(window, "set-up");
await page.getByLabel("Your name").fill("Ada");
await page.getByLabel("E-mail").fill("ada@example.com");
await page.getByLabel("Password").fill(PASSWORD);
await click("button", "Create account");
await page.waitForURL("**/dashboard/me");
await world.look(window, "first-overview");

await click("button", "Add a device");
const enrol = (await page.locator("[data-copy] code").first().innerText()).split(" ");
await world.look(window, "enrolment");
await command(...enrol.slice(enrol.indexOf("enroll")), "--name", "laptop");
commands += 1;
const device = spawn(agent, ["--state-dir", state, "run"], { stdio: "ignore" });
const service = createServer((_, response) => response.end("hello from the laptop")).listen(0, "127.0.0.1");

await page.goto(`${origin}/dashboard/me/tunnels/new`);
await page.getByLabel("Name", { exact: true }).fill("web");
await page.getByLabel("Protocol").selectOption("tcp");
await page.getByLabel("Local port").fill(String(service.address().port));
await click("button", "Create tunnel");
await page.waitForURL(/tunnels\/[0-9a-f-]{36}$/);
// The agent may not be connected yet, and the page says so: the button is pressed again when it is.
await page.goto(`${origin}/dashboard/me/devices`);
while ((await page.getByText("online", { exact: true }).count()) === 0) await page.reload();
await page.goto(`${origin}/dashboard/me/tunnels`);
await click("link", "web");
await click("button", "Start");
await page.getByText("running", { exact: true }).waitFor();
const address = await page.locator("p.line code").first().innerText();
const answer = await new Promise((resolve, reject) => {
  get(`http://${address}/`, async (response) => resolve(Buffer.concat(await response.toArray()).toString())).on("error", reject);
});
world.check(answer === "hello from the laptop", `the tunnel answers ${answer}`);
const seconds = (Date.now() - began) / 1000;
console.log(`from the set-up link to bytes through a tunnel: ${clicks} clicks, ${commands} commands, ${seconds.toFixed(1)} s`);
world.check(clicks <= 8 && commands <= 2 && seconds <= 60, "more than 8 clicks, 2 commands or 60 s");

// The link is used up.
const other = await world.window("desktop", origin, { expected: [410] });
await other.page.goto(link);
await other.page.getByRole("button", { name: "Come in", exact: true }).click();
await other.page.getByRole("alert").waitFor();
device.kill("SIGINT");
service.close();
await world.close();
