"use strict";

// The secret of a link stands behind the `#`, which no server sees. It goes into the form, and out of the address bar.
const form = document.querySelector("form[data-takes-fragment]");
if (form && location.hash.length > 1) {
  form.elements.link.value = location.hash.slice(1);
  history.replaceState(null, "", location.pathname);
}

// Times in the reader's own zone; the exact one stays as the title.
for (const time of document.querySelectorAll("time[datetime]")) {
  time.title = time.dateTime;
  time.textContent = new Date(time.dateTime).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
}

for (const block of document.querySelectorAll("[data-copy]")) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(block.querySelector("code").textContent);
    button.textContent = "Copied";
  });
  block.append(button);
}

// While something is under way, the page looks again, unless somebody is at a field of it.
if (document.body.hasAttribute("data-reloads")) {
  setInterval(() => {
    if (!document.hidden && !document.activeElement.matches("input, select, textarea")) location.reload();
  }, 2000);
}
