// What the reader has chosen: theme, filter, the open call, the lit gang. Kept in the address or in local storage.
import { effect, signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";
const THEMES: readonly Theme[] = ["system", "light", "dark"];

export const theme = signal<Theme>(storedTheme());
export const query = signal("");
export const openCall = signal("");
export const litGang = signal("");

export function nextTheme(): void {
  theme.value = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length] ?? "system";
}

export function rememberChoices(): void {
  readAddress();
  addEventListener("hashchange", readAddress);
  effect(() => {
    document.documentElement.dataset["theme"] = theme.value;
    store(theme.value);
  });
  effect(() => {
    const wanted = new URLSearchParams();
    if (query.value) wanted.set("q", query.value);
    if (openCall.value) wanted.set("call", openCall.value);
    const hash = wanted.size ? `#${wanted}` : location.pathname + location.search;
    if (`#${wanted}` !== location.hash && (wanted.size || location.hash)) history.replaceState(null, "", hash);
  });
}

function readAddress(): void {
  const given = new URLSearchParams(location.hash.slice(1));
  query.value = given.get("q") ?? "";
  openCall.value = given.get("call") ?? "";
}

function storedTheme(): Theme {
  try {
    return THEMES.find((name) => name === localStorage.getItem("theme")) ?? "system";
  } catch {
    return "system"; // storage is switched off: the choice lasts as long as the page
  }
}

function store(value: Theme): void {
  try {
    localStorage.setItem("theme", value);
  } catch {
    return; // as above
  }
}
