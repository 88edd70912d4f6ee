// The dashboard as others reach it: at a name of its own, over TLS that a proxy ends, with tunnels at another name.
//
//     public.mjs PROGRAMS FOLDER LISTEN HTTPS      a host serves in the folder, at the ports LISTEN and HTTPS; the proxy listens at
//                                                  the port of `public_url` in FOLDER/culvert.toml

import { execFile, spawn } from "node:child_process";
import { readFile } from "node:fs/promises";
import { createServer, request } from "node:http";
import { createServer as createTlsServer } from "node:https";
import { createInterface } from "node:readline";
import { promisify } from "node:util";
import { attack } from "./attack.mjs";
import { PASSWORD, World } from "./world.mjs";

const [programs, folder, listen, https] = process.argv.slice(2);
const run = promisify(execFile);
const culvert = async (...words) => {
  const { stdout } = await run(`${programs}/culvert`, [...words, "--config", "culvert.toml", "--json"], { cwd: folder });
  return JSON.parse(stdout);
};
const settings = await readFile(`${folder}/culvert.toml`, "utf8");
const origin = settings.match(/public_url = "([^"]+)"/)[1];
const { port } = new URL(origin);

// The proxy of an operator: it ends TLS, and says who has come.
const proxy = createTlsServer({ key: await readFile(`${folder}/proxy.key`), cert: await readFile(`${folder}/proxy.pem`) }, (incoming, outgoing) => {
  const headers = { ...incoming.headers, "x-forwarded-for": incoming.socket.remoteAddress, "x-forwarded-proto": "https" };
  const asked = request({ host: "127.0.0.1", port: listen, method: incoming.method, path: incoming.url, headers }, (answer) => {
    outgoing.writeHead(answer.statusCode, answer.rawHeaders);
    answer.pipe(outgoing);
  });
  asked.on("error", () => outgoing.destroy());
  outgoing.on("close", () => asked.destroy());
  incoming.pipe(asked);
}).listen(Number(port), "127.0.0.1");

// A page of somebody else, behind a tunnel of this host.
async function serveHostilePage() {
  const service = createServer((_, response) => response.end("<!doctype html><title>A page</title><h1>A page</h1>")).listen(0, "127.0.0.1");
  const { code } = await culvert("device", "code", "--account", "ada@example.com");
  const state = `${folder}/agent`;
  const agent = (...words) => ["--state-dir", state, ...words];
  await run(`${programs}/culvert-agent`, agent("enroll", "--server", `http://127.0.0.1:${listen}`, "--code", code));
  const device = spawn(`${programs}/culvert-agent`, agent("http", String(service.address().port), "--subdomain", "hello", "--json"));
  // Before, it has an address, and the node says that it is not there yet. What it says later is read as well: a
  // program whose output nobody reads any more ends.
  await new Promise((running, failed) => {
    const lines = createInterface(device.stdout);
    lines.on("line", (line) => JSON.parse(line).state === "running" && running());
    lines.on("close", () => failed(new Error("the agent ended before its tunnel ran")));
  });
  return () => {
    device.kill("SIGINT");
    service.close();
  };
}

const account = await culvert("account", "create", "--email", "ada@example.com", "--name", "Ada");
const { url: link } = await culvert("account", "link", "--email", account.email);
const stop = await serveHostilePage();

// The browser takes the proxy's certificate, by its key alone, as it takes one of an authority that it knows.
const key = (await readFile(`${folder}/proxy.spki`, "utf8")).trim();
const world = await World.open([
  "--host-resolver-rules=MAP culvert.test 127.0.0.1, MAP *.tunnel.test 127.0.0.1",
  `--ignore-certificate-errors-spki-list=${key}`,
]);
const window = await world.window("desktop", origin);
const { page } = window;
await page.goto(link);
await page.getByRole("button", { name: "Come in", exact: true }).click();
await page.waitForURL("**/dashboard/account");
await page.getByLabel("New password").fill(PASSWORD);
await page.getByRole("button", { name: "Set password" }).click();
await page.waitForURL("**/dashboard/me");
await world.look(window, "public-overview");
const [cookie, ...others] = (await window.context.cookies()).filter(({ httpOnly }) => httpOnly);
const { name, domain, path, secure, sameSite } = cookie;
const wanted = JSON.stringify({ name: "__Host-culvert", domain: "culvert.test", path: "/", secure: true, sameSite: "Lax" });
world.check(JSON.stringify({ name, domain, path, secure, sameSite }) === wanted, `the cookie is ${JSON.stringify(cookie)}`);
world.check(others.length === 0, `there are other cookies: ${JSON.stringify(others)}`);
// Somebody types the name without https. The browser asks nothing in the clear: the proxy would not understand it.
const clear = origin.replace("https:", "http:");
await page.goto(`${clear}/dashboard/me/keys`);
// It says that it would have asked.
world.problems = world.problems.filter((problem) => !problem.endsWith(`asks ${clear}/dashboard/me/keys`));
world.check(page.url() === `${origin}/dashboard/me/keys`, `without https, the browser is led to ${page.url()}`);
const storageState = await window.context.storageState();
await window.context.close();

const hostile = `https://hello.tunnel.test:${https}/`;
const planted = ["", "; domain=culvert.test", "; domain=tunnel.test", "; domain=test"].map((domain) => `__Host-culvert=planted; path=/; secure${domain}`);
await attack(world, { origin, hostile, storageState, planted, options: { ignoreHTTPSErrors: true } });
stop();
proxy.closeAllConnections();
proxy.close();
await world.close();
console.log("over TLS, at a name of its own: nothing to complain of");
