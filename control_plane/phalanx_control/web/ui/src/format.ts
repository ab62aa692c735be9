// Numbers and times as people read them. Pure.
const SYMBOLS: Readonly<Record<string, string>> = { USD: "$", EUR: "€", GBP: "£" };

export function duration(ms: number): string {
  if (ms < 0) return "0 s";
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  if (ms < 10_000) return `${(ms / 1000).toFixed(1)} s`;
  const s = Math.floor(ms / 1000);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} m ${pad(s % 60)} s`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h ${pad(Math.floor((s % 3600) / 60))} m`;
  return `${Math.floor(s / 86_400)} d ${pad(Math.floor((s % 86_400) / 3600))} h`;
}

export function ago(ms: number): string {
  const s = Math.max(0, Math.round(ms / 1000));
  return s < 60 ? `${s} s ago` : `${duration(ms)} ago`;
}

// Small amounts keep enough digits to be seen growing; smaller ones are not called nothing.
export function money(amount: string | number, currency: string): string {
  const value = Number(amount);
  const digits = value === 0 || value >= 1 ? 2 : value >= 0.01 ? 3 : 4;
  const tiny = value > 0 && value < 0.0001;
  const number = (tiny ? 0.0001 : value).toFixed(digits);
  const sign = SYMBOLS[currency];
  return `${tiny ? "<" : ""}${sign ? sign + number : `${number} ${currency}`}`;
}

export function count(value: number): string {
  return Number.isInteger(value) ? value.toLocaleString("en") : value.toFixed(2).replace(/0$/, "");
}

export function bytes(value: number): string {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let scaled = value;
  let unit = 0;
  while (scaled >= 1000 && unit < units.length - 1) {
    scaled /= 1000;
    unit += 1;
  }
  return `${scaled >= 100 || unit === 0 ? scaled.toFixed(0) : scaled.toFixed(1)} ${units[unit]}`;
}

export function clock(wallMs: number): string {
  return wallMs ? new Date(wallMs).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" }) : "";
}

// An id's prefix and first characters: enough to tell calls apart in a table; the whole one is in the title.
export function shortId(id: string): string {
  const dash = id.indexOf("-");
  return dash < 0 ? id.slice(0, 10) : id.slice(0, dash + 9);
}

function pad(value: number): string {
  return String(value).padStart(2, "0");
}
