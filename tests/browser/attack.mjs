// A page behind a tunnel does what it can to somebody who is signed in.

// `hostile` is the page's address, and `planted` are the cookies that it tries to set.
export async function attack(world, { origin, hostile, storageState, planted, options = {} }) {
  const base = `${origin}/dashboard/me`;
  // The service behind the tunnel has no icon.
  const window = await world.window("desktop", null, { ...options, storageState, expected: [403, 404] });
  const { page } = window;
  await page.goto(`${base}/devices`);
  const form = await page.locator('form[action$="/devices/code"]').evaluate((form) => ({
    action: form.action,
    key: form.elements.form_key.value,
  }));
  await page.goto(hostile);
  world.check((await page.evaluate(() => document.cookie)) === "", "a tunnel's page reads a cookie");
  const read = await page.evaluate(async (url) => {
    const options = { credentials: "include" };
    return fetch(url, options).then(() => "read").catch(() => "refused");
  }, `${base}/keys`);
  world.check(read === "refused", "a tunnel's page reads a page of the dashboard");
  // It shows the dashboard in no frame, holds no window of it, and plants no cookie that is taken for a sign-in.
  await page.evaluate(async (url) => {
    const frame = Object.assign(document.createElement("iframe"), { src: url });
    const loaded = new Promise((resolve) => frame.addEventListener("load", resolve));
    document.body.append(frame);
    await loaded;
  }, base);
  world.check(page.frames().every((frame) => !frame.url().startsWith(origin)), "a tunnel's page frames the dashboard");
  const opened = page.context().waitForEvent("page");
  await page.evaluate((url) => {
    window.opened = window.open(url);
  }, base);
  const popup = await opened;
  await popup.locator("h1").waitFor();
  world.check(await popup.evaluate(() => window.opener === null), "a page of the dashboard knows the tunnel's page that opened it");
  world.check(await page.evaluate(() => window.opened.closed), "a tunnel's page holds a window of the dashboard");
  await popup.close();
  await page.evaluate((cookies) => {
    for (const cookie of cookies) document.cookie = cookie;
  }, planted);
  // That the browser says so as well is as it should be.
  const refusals = ["CORS", "net::ERR_FAILED", `failed: ${base}/keys`, "frame-ancestors", `failed: ${origin}/dashboard/sign-in`];
  const ofTheRefusal = (problem) => refusals.some((text) => problem.includes(text));
  world.problems = world.problems.filter((problem) => !ofTheRefusal(problem));
  const answered = page.waitForResponse((response) => response.url() === form.action);
  await page.evaluate(({ action, key }) => {
    const forged = document.createElement("form");
    Object.assign(forged, { method: "post", action });
    const field = document.createElement("input");
    Object.assign(field, { name: "form_key", value: key });
    forged.append(field);
    document.body.append(forged);
    forged.submit();
  }, form);
  world.check((await answered).status() === 403, "a tunnel's page posts a form of the dashboard");
  await page.waitForURL(form.action);
  await page.goto(base);
  world.check(page.url() === base, "a cookie that a tunnel's page has planted signs somebody out");
  await window.context.close();
}
