// Fetch pages and replace the body, so that this script outlives every page: keys pressed while the server answers wait in a queue,
// and are carried out on the page that comes, in their order. Without scripts, the browser loads the pages itself.
"use strict";

const pageSetups = []; // functions that prepare every page that is shown
const departures = []; // functions that save what the page would lose, called with the form that is sent, or null
const queue = []; // keys, and clicks on links and fields, while the server answers
let request = null; // what is under way
let pagePath = location.pathname + location.search;

const EDITING_KEYS = ["Enter", "Escape", "Tab", "Backspace", "Delete", "ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Home", "End"];
const NO_ANSWER =
  "The server does not answer, so this may not have been saved. Check the terminal that runs suprank, then try again: an action that is sent twice counts once.";

async function visit(url, { form = null, body = null, back = null } = {}) {
  for (const depart of departures) depart(form);
  request?.abort.abort();
  const mine = (request = { abort: new AbortController(), form });
  document.documentElement.classList.add("busy");
  let answer, text, problem;
  try {
    answer = await fetch(url, { method: body ? "POST" : "GET", body, signal: mine.abort.signal });
    text = await answer.text();
    if (!answer.headers.get("content-type")?.startsWith("text/html")) problem = text || `Status ${answer.status}.`;
  } catch {
    problem = NO_ANSWER;
  }
  if (request !== mine) return; // another link was clicked in the meantime
  const page = problem ? null : new DOMParser().parseFromString(text, "text/html");
  if (page && answer.ok && scriptUrl(page) !== scriptUrl(document)) {
    location.assign(answer.url); // the server was restarted, perhaps with another script
    return;
  }
  request = null;
  document.documentElement.classList.remove("busy");
  if (problem) report(problem);
  else showPage(page, new URL(answer.url), back);
  if (problem || !answer.ok) dropQueue();
  else replayQueue();
}

function scriptUrl(page) {
  return page.querySelector("script[src]")?.getAttribute("src");
}

function showPage(page, url, back) {
  const path = location.pathname;
  if (!back) {
    history.replaceState({ scroll: scrollY }, "");
    if (url.searchParams.has("did")) url.searchParams.delete("did"); // a reload does not report the action again
    if (url.href !== location.href) history.pushState(null, "", url);
  }
  pagePath = location.pathname + location.search;
  document.title = page.title;
  document.body.replaceWith(document.adoptNode(page.body));
  scrollTo({ top: back?.scroll || 0, behavior: "instant" });
  for (const setup of pageSetups) setup();
  const heading = document.querySelector("h1");
  if (heading && document.activeElement === document.body && path !== location.pathname) {
    heading.tabIndex = -1; // screen readers announce the new page
    heading.focus({ preventScroll: true });
  }
}

function report(problem) {
  const message = document.createElement("p");
  message.className = "message bad";
  message.setAttribute("role", "alert");
  message.textContent = problem;
  document.getElementById("messages").replaceChildren(message);
  scrollTo({ top: 0, behavior: "instant" });
}

// The keys after an action that was refused were meant for another page.
function dropQueue() {
  const keys = queue.filter((one) => one.key && !one.repeat).map((one) => (one.key === " " ? "Space" : one.key));
  queue.length = 0;
  if (keys.length) document.querySelector("#messages .message.bad")?.append(` The keys pressed since then were ignored: ${keys.join(" ")}.`);
}

function replayQueue() {
  while (queue.length && !request) {
    const next = queue.shift();
    if (next.link) {
      visit(next.link);
      continue;
    }
    if (next.field) {
      const field = document.querySelector(next.field);
      if (field) field.focus();
      else queue.length = 0; // what was typed there must not become shortcuts
      continue;
    }
    const target = document.activeElement || document.body;
    if (target.dispatchEvent(new KeyboardEvent("keydown", { ...next, bubbles: true, cancelable: true }))) keyDefault(target, next);
  }
}

addEventListener(
  "keydown",
  (event) => {
    if (!request || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.key.length > 1 && !EDITING_KEYS.includes(event.key)) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    if (!event.repeat || event.key !== "Enter") queue.push({ key: event.key, shiftKey: event.shiftKey, repeat: event.repeat });
  },
  true,
);

addEventListener("mousedown", (event) => {
  if (request && typing(event.target)) queue.push({ field: event.target.id ? `#${event.target.id}` : `main [name="${event.target.name}"]` });
});

// What the browser does after a key that no listener has handled. It does so only for real keys, not for those of the queue.
function keyDefault(target, { key, shiftKey, repeat }) {
  if (key === "Escape") document.querySelector("dialog[open]")?.close();
  else if (key === "Tab") focusNext(target, shiftKey);
  else if (target.matches("select")) chooseOption(target, key);
  else if (target.matches("textarea, input:not([type=checkbox])")) editText(target, key);
  else if (!repeat && target.matches(key === "Enter" ? "a, button, summary" : key === " " ? "button, summary, input" : "none")) target.click();
}

function submitImplicitly(form) {
  form?.requestSubmit([...form.elements].find((one) => one.type === "submit" && !one.disabled));
}

function editText(input, key) {
  if (key === "Enter" && input.matches("input")) return submitImplicitly(input.form);
  let [from, to] = [input.selectionStart, input.selectionEnd];
  const caret = { ArrowLeft: Math.max(0, from - 1), ArrowRight: to + 1, Home: 0, End: input.value.length }[key];
  if (caret !== undefined) return input.setSelectionRange(caret, caret);
  if (from === to && key === "Backspace") from = Math.max(0, from - 1);
  if (from === to && key === "Delete") to += 1;
  if (key.length > 1 && !["Enter", "Backspace", "Delete"].includes(key)) return;
  input.setRangeText(key === "Enter" ? "\n" : key.length === 1 ? key : "", from, to, "end");
  input.dispatchEvent(new Event("input", { bubbles: true }));
}

function chooseOption(select, key) {
  if (key === "Enter") return submitImplicitly(select.form);
  const step = { ArrowDown: 1, ArrowUp: -1 }[key];
  let at = select.selectedIndex + step;
  if (!step) {
    select.typed = (select.typed || "") + key.toLowerCase();
    at = [...select.options].findIndex((one) => one.text.toLowerCase().startsWith(select.typed));
  }
  if (at < 0 || at >= select.options.length) return;
  select.selectedIndex = at;
  select.dispatchEvent(new Event("change", { bubbles: true }));
}

function focusNext(target, backwards) {
  const all = [...document.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea, summary")];
  const usable = all.filter((one) => one.tabIndex >= 0 && !one.disabled && one.getClientRects().length);
  const side = backwards ? Node.DOCUMENT_POSITION_PRECEDING : Node.DOCUMENT_POSITION_FOLLOWING;
  const beyond = usable.filter((one) => target.compareDocumentPosition(one) & side && !(backwards && one.contains(target)));
  (target === document.body ? usable : beyond).at(backwards ? -1 : 0)?.focus();
}

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (event.defaultPrevented || form.method === "dialog") return;
  event.preventDefault();
  if (request?.form) return; // a form is sent once
  const body = new URLSearchParams(new FormData(form));
  if (event.submitter?.name) body.append(event.submitter.name, event.submitter.value);
  const url = new URL(form.action);
  if (form.method === "post") return visit(url, { form, body });
  url.search = body;
  visit(url);
});

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href]");
  if (!link || event.defaultPrevented || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  if (link.target || link.origin !== location.origin || (link.hash && link.pathname + link.search === pagePath)) return;
  event.preventDefault();
  if (request && (request.form || queue.length)) queue.push({ link: link.href });
  else visit(link.href);
});

addEventListener("popstate", (event) => {
  if (location.pathname + location.search !== pagePath) visit(location.href, { back: event.state || {} });
});
addEventListener("pagehide", () => {
  for (const depart of departures) depart(null);
});
