"use strict";

// The secret of a link stands behind the `#`, which no server sees. It goes into the form, and out of the address bar.
const form = document.querySelector("form[data-takes-fragment]");
if (form && location.hash.length > 1) {
  form.elements.link.value = location.hash.slice(1);
  history.replaceState(null, "", location.pathname);
}

// What the page is better with: times in the reader's own zone, with the exact one as the title, and buttons that copy.
const improve = (root) => {
  for (const time of root.querySelectorAll("time[datetime]")) {
    time.title = time.dateTime;
    time.textContent = new Date(time.dateTime).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
  }
  for (const block of root.querySelectorAll("[data-copy]")) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(block.querySelector("code").textContent);
      button.textContent = "Copied";
    });
    block.append(button);
  }
  if (window.PublicKeyCredential?.parseCreationOptionsFromJSON) root.querySelectorAll("form[data-passkey]").forEach(takePasskey);
};

// A passkey (Web Authentication): what the device answers goes into the form.
let offered,
  asks = false;
const takePasskey = (form) => {
  const options = JSON.parse(form.dataset.options);
  const answer = async (ask, isOffer) => {
    offered?.abort();
    offered = new AbortController();
    asks = !isOffer;
    try {
      const credential = await ask(offered.signal);
      form.elements.answer.value = JSON.stringify(credential.toJSON());
      form.requestSubmit();
    } catch (error) {
      // Somebody has changed their mind, or something else is asked for.
      if (!["AbortError", "NotAllowedError"].includes(error.name)) alert(error.message);
    }
    asks = false;
    if (waits) look();
  };
  const create = (signal) =>
    navigator.credentials.create({ publicKey: PublicKeyCredential.parseCreationOptionsFromJSON(options), signal });
  const get = (signal, mediation) =>
    navigator.credentials.get({ publicKey: PublicKeyCredential.parseRequestOptionsFromJSON(options), mediation, signal });
  form.hidden = false;
  form.addEventListener("submit", (event) => {
    if (form.elements.answer.value) return;
    event.preventDefault();
    answer(form.dataset.passkey === "create" ? create : get);
  });
  // The field for the e-mail address offers passkeys as well.
  if (form.dataset.passkey === "offer") {
    PublicKeyCredential.isConditionalMediationAvailable?.().then((can) => can && answer((signal) => get(signal, "conditional"), true));
    // A challenge is good for five minutes.
    setTimeout(() => isInUse() || location.reload(), 270_000);
  }
};
improve(document);

// Fetches a page as a document. Asking by script does not keep a sign-in from ending.
const fetchPage = (url, use) => {
  const request = new XMLHttpRequest();
  request.open("GET", url);
  request.responseType = "document";
  request.onload = () => use(request);
  request.send();
  return request;
};

// The page shows what has changed since: it is fetched anew, and its content takes the place of what is there.
const main = document.getElementById("content");
const REFUSED_PERIOD = 10_000;
// Least time between two sentences that a screen reader speaks.
const SPEAK_PERIOD = 5_000;
let source, timer, retry, later, spoken = -SPEAK_PERIOD;

// What is said when nothing else is: that the sign-in ends.
let ending = "";
const say = (news) => {
  const text = news || ending;
  clearTimeout(later);
  const wait = spoken + SPEAK_PERIOD - performance.now();
  if (text && wait > 0) {
    later = setTimeout(say, wait, text);
    return;
  }
  if (text) spoken = performance.now();
  const line = document.getElementById("live");
  line.textContent = text;
  line.hidden = !text;
};

// Whether somebody has changed a field. What the browser has filled in by itself is no change.
const isChanged = (field) => {
  if (field.matches(":autofill")) return false;
  if (field.type === "checkbox" || field.type === "radio") return field.checked !== field.defaultChecked;
  if (field.options) return [...field.options].some((option) => option.defaultSelected && !option.selected);
  return field.value !== field.defaultValue;
};

// Whether somebody is at a field, has marked something or typed something that would be lost, or is asked for a passkey.
const isInUse = () =>
  asks ||
  !(getSelection()?.isCollapsed ?? true) ||
  document.activeElement.matches("#content :is(input, select, textarea)") ||
  [...main.querySelectorAll("input, textarea, select")].some(isChanged);

const show = (page) => {
  const fresh = page.getElementById("content");
  if (!fresh) return location.reload();
  // The same control of the same row, wherever the row is by then.
  const name = (element) => [element.form?.getAttribute("action"), element.getAttribute("href"), element.textContent].join(" ");
  const focused = main.contains(document.activeElement) ? name(document.activeElement) : null;
  const scrolled = [...main.querySelectorAll(".scroll")].map((region) => region.scrollLeft);
  const open = [...main.querySelectorAll("details")].map((details) => details.open);
  // What it says is not spoken once more.
  page.getElementById("live")?.replaceWith(document.getElementById("live"));
  main.replaceChildren(...fresh.childNodes);
  improve(main);
  narrowPage();
  main.querySelectorAll("details").forEach((details, i) => (details.open = open[i] ?? details.open));
  main.querySelectorAll(".scroll").forEach((region, i) => (region.scrollLeft = scrolled[i] ?? 0));
  if (focused !== null) {
    const heading = main.querySelector("h1");
    heading.tabIndex = -1;
    const same = [...main.querySelectorAll("a, button, summary, .scroll")].find((element) => name(element) === focused);
    (same ?? heading).focus({ preventScroll: true });
  }
  document.title = page.title;
};

// One request at a time, so that none is overtaken by an older one.
let waits = false,
  looks = false,
  again = false;
const look = () => {
  if (looks) {
    again = true;
    return;
  }
  if (isInUse()) {
    if (!waits) say("Something has changed. It is shown when you leave the form.");
    waits = true;
    return;
  }
  if (waits) say("");
  waits = false;
  looks = true;
  const request = fetchPage(location.href, () => {
    if (request.responseURL !== location.href.split("#")[0] || request.status === 404) location.reload();
    else if (request.status !== 200) {
      clearTimeout(retry);
      retry = setTimeout(look, REFUSED_PERIOD);
    } else if (isInUse()) again = true;
    else show(request.response);
  });
  request.onloadend = () => {
    looks = false;
    if (again) {
      again = false;
      look();
    }
  };
};

const follow = () => {
  source?.close();
  clearTimeout(timer);
  if (document.hidden) return;
  source = new EventSource(document.body.dataset.live);
  source.onopen = () => {
    say("");
    look();
  };
  source.addEventListener("change", look);
  source.onerror = () => {
    if (source.readyState !== EventSource.CLOSED) return say("Not connected. The page catches up by itself.");
    // Too many streams are open, the host is away, or the sign-in has ended, which looking shows.
    say("Live updates are off for now. This page looks every 10 seconds.");
    look();
    timer = setTimeout(follow, REFUSED_PERIOD);
  };
};

if (document.body.dataset.live) {
  document.addEventListener("visibilitychange", follow);
  document.addEventListener("focusout", () => waits && setTimeout(look));
  follow();
}

// A sign-in that is not used ends. The page says so two minutes before, unless another tab has used it meanwhile.
const WARNED_BEFORE = 120_000;
const LONGEST_TIMER = 2_000_000_000;
const warn = (page) => {
  const left = page.body.dataset.endsIn * 1000;
  if (!(left < LONGEST_TIMER)) return;
  const at = new Date(Date.now() + left).toLocaleTimeString(undefined, { timeStyle: "short" });
  if (left <= WARNED_BEFORE) {
    ending = `You are signed out at ${at}, unless you open a page before.`;
    return say("");
  }
  setTimeout(() => fetchPage(location.href, ({ response }) => response && warn(response)), left - WARNED_BEFORE);
};
warn(document);

// A second click sends nothing: the first answer may have given the browser another cookie.
document.addEventListener("submit", (event) => {
  const { target } = event;
  if (event.defaultPrevented || target.method !== "post") return;
  if (target.dataset.sent) return event.preventDefault();
  target.dataset.sent = "yes";
  setTimeout(() => delete target.dataset.sent, 2_000);
});

// What is found is narrowed while somebody types.
const narrow = (input, results, page) => {
  let wait;
  const ask = () => {
    const url = new URL(page, location);
    url.searchParams.set(input.name, input.value);
    fetchPage(url, ({ response }) => {
      const fresh = response?.querySelector("[data-narrows]");
      if (fresh && url.searchParams.get(input.name) === input.value) results.replaceChildren(...fresh.childNodes);
    });
  };
  input.addEventListener("input", () => {
    clearTimeout(wait);
    wait = setTimeout(ask, 150);
  });
};
const narrowPage = () => {
  const results = document.querySelector("[data-narrows]");
  const fields = [...document.querySelectorAll("form[role=search] input")];
  if (results) narrow(fields.find((field) => main.contains(field)) ?? fields[0], results, location.pathname);
};
narrowPage();

const dialog = (label, ...content) => {
  const made = document.createElement("dialog");
  made.setAttribute("aria-label", label);
  made.append(...content);
  document.body.append(made);
  made.addEventListener("close", () => made.remove());
  made.showModal();
  return made;
};

// The palette: every page, tunnel, device and request by a few letters, with the keyboard alone.
const searchLink = document.querySelector("[data-palette]");
const openPalette = () => {
  const input = Object.assign(document.createElement("input"), { type: "search", name: "find" });
  input.setAttribute("aria-label", "A page, the name of a tunnel or a device, or the id of a request");
  const found = document.createElement("div");
  narrow(input, found, searchLink.href);
  dialog("Go to", input, found).addEventListener("keydown", (event) => {
    const links = [...found.querySelectorAll("a")];
    const at = links.indexOf(document.activeElement);
    if (event.key === "Enter" && at < 0) links[0]?.click();
    else if (event.key === "ArrowDown") (links[at + 1] ?? input).focus();
    else if (event.key === "ArrowUp") (links[at - 1] ?? input).focus();
    else return;
    event.preventDefault();
  });
  input.dispatchEvent(new Event("input"));
};

// Keys of one letter can be switched off (WCAG 2.2, 2.1.4), because speech input types them.
const KEYS = "single keys";
const showKeys = () => {
  const list = document.createElement("ul");
  const line = (text) => list.append(Object.assign(document.createElement("li"), { textContent: text }));
  line("/ or Ctrl K: search");
  line("n: new tunnel");
  for (const link of document.querySelectorAll("[data-key]")) line(`g ${link.dataset.key}: ${link.textContent}`);
  const label = Object.assign(document.createElement("label"), { className: "box" });
  const box = Object.assign(document.createElement("input"), { type: "checkbox", checked: localStorage.getItem(KEYS) !== "off" });
  box.addEventListener("change", () => localStorage.setItem(KEYS, box.checked ? "on" : "off"));
  label.append(box, "Keys of one letter are on");
  dialog("Keys", list, label);
};

let prefix = "";
document.addEventListener("keydown", (event) => {
  if (!searchLink || document.querySelector("dialog[open]")) return;
  if ((event.ctrlKey || event.metaKey) && event.key === "k") {
    event.preventDefault();
    return openPalette();
  }
  const isTyping = event.target.matches("input, select, textarea");
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping || localStorage.getItem(KEYS) === "off") return;
  const typed = prefix + event.key;
  prefix = typed === "g" ? "g" : "";
  const link = typed.startsWith("g") ? document.querySelector(`[data-key="${CSS.escape(typed.slice(1))}"]`) : null;
  if (link) link.click();
  else if (typed === "/") openPalette();
  else if (typed === "?") showKeys();
  else if (typed === "n") location.assign(`${searchLink.href.replace(/search$/, "tunnels/new")}`);
  else return;
  event.preventDefault();
});
searchLink?.addEventListener("click", (event) => {
  event.preventDefault();
  openPalette();
});
