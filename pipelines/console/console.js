// What pages can do beyond HTML: renew themselves, mark what changed, copy ids. Without it all pages work.
"use strict";

const EVERY_MS = 5000;
// Of a page that takes long the server makes few: a tenth of the time goes into it at most.
const REST = 10;
const PAUSED = "txlake-paused";
const COPY = `<svg class="icon" viewBox="0 0 24 24" aria-hidden="true"><rect x="9" y="9" width="11" height="11" rx="2"/><path d="M5 15V6a2 2 0 0 1 2-2h9"/></svg>`;

const isPaused = () => sessionStorage.getItem(PAUSED) === "yes";
let renewed = true;

async function copy(button, text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = Object.assign(document.createElement("textarea"), { value: text });
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
    button.focus();
  }
  button.setAttribute("aria-label", "Copied");
  button.title = "Copied";
}

function addCopyButtons() {
  for (const place of document.querySelectorAll("[data-copy]")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.innerHTML = COPY;
    button.title = "Copy";
    button.setAttribute("aria-label", `Copy ${place.dataset.copy}`);
    button.addEventListener("click", () => copy(button, place.dataset.copy));
    (place.matches("td") ? place.firstElementChild : place).append(button);
  }
}

function addPause() {
  const live = document.querySelector(".live");
  if (!live || !document.querySelector("main[data-live]")) return;
  const state = document.createElement("span");
  state.textContent = isPaused() ? "Paused" : renewed ? "Live" : "Does not answer";
  state.className = renewed ? "" : "bad";
  state.title = "Renews every 5 s, less often where a page takes long";
  const button = document.createElement("button");
  button.type = "button";
  button.className = "small pause";
  button.textContent = isPaused() ? "Go on" : "Pause";
  button.addEventListener("click", () => {
    sessionStorage.setItem(PAUSED, isPaused() ? "no" : "yes");
    state.textContent = isPaused() ? "Paused" : "Live";
    button.textContent = isPaused() ? "Go on" : "Pause";
    if (!isPaused()) renew();
  });
  live.prepend(state, button);
}

// A row or a fact as it is compared: times by their instant, since "4 min ago" changes by itself.
function comparable(element) {
  const clone = element.cloneNode(true);
  for (const time of clone.querySelectorAll("time")) time.textContent = time.dateTime;
  for (const button of clone.querySelectorAll("button")) button.remove();
  return clone.textContent.replace(/\s+/g, " ").trim();
}

const watched = (root) => [...root.querySelectorAll("tbody tr, [data-watch]")];

function mark(before, after) {
  const known = new Set(watched(before).map(comparable));
  for (const element of watched(after)) {
    if (!known.has(comparable(element))) element.classList.add("changed");
  }
}

// Somebody writes, has chosen rows or text, or has opened something: the page stays as it is.
function isInUse(main) {
  const active = document.activeElement;
  const isWriting = main.contains(active) && active.matches("input, select, textarea");
  const hasChosen = main.querySelector("input:checked, details[open]") !== null;
  return isWriting || hasChosen || !getSelection().isCollapsed;
}

// The focus goes to the element at the same place of the new page, or to all of it as before.
function replace(before, after) {
  const places = "a, button, summary";
  const isFocused = document.activeElement === before;
  const place = [...before.querySelectorAll(places)].indexOf(document.activeElement);
  const scrolled = [...before.querySelectorAll(".scroll, pre")].map((part) => part.scrollLeft);
  before.replaceWith(after);
  [...after.querySelectorAll(".scroll, pre")].forEach((part, at) => { part.scrollLeft = scrolled[at] ?? 0; });
  return () => {
    const focused = isFocused ? after : after.querySelectorAll(places)[place];
    focused?.focus({ preventScroll: true });
  };
}

async function renew() {
  const main = document.querySelector("main[data-live]");
  if (!main || isPaused() || document.hidden || isInUse(main)) return;

  let text;
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html" } });
    if (!answer.ok || answer.redirected) throw new Error(answer.statusText);
    text = await answer.text();
    renewed = true;
  } catch {
    renewed = false;
    const state = document.querySelector(".live span");
    if (state) { state.textContent = "Does not answer"; state.className = "bad"; }
    return;
  }

  const next = new DOMParser().parseFromString(text, "text/html");
  const fresh = next.querySelector("main[data-live]");
  // Another renewal can have been sooner: of two, one is shown.
  if (!fresh || !main.isConnected || isPaused() || isInUse(main)) return;
  mark(main, fresh);
  document.title = next.title;
  const refocus = replace(main, document.adoptNode(fresh));
  const pages = next.querySelector("nav[data-live]");
  if (pages && !document.querySelector("nav[data-live]").contains(document.activeElement)) {
    document.querySelector("nav[data-live]").replaceWith(document.adoptNode(pages));
    showPlace();
  }
  addCopyButtons();
  addPause();
  refocus();
}

// On a telephone the page's own name can stand beside the screen.
function showPlace() {
  const pages = document.querySelector("nav[data-live]");
  const place = pages?.querySelector("[aria-current]");
  if (place) pages.scrollLeft = place.offsetLeft - (pages.clientWidth - place.offsetWidth) / 2;
}

addCopyButtons();
addPause();
showPlace();

async function keepRenewing() {
  const began = performance.now();
  await renew();
  setTimeout(keepRenewing, Math.max(EVERY_MS, REST * (performance.now() - began)));
}

setTimeout(keepRenewing, EVERY_MS);
document.addEventListener("visibilitychange", renew);
