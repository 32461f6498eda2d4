// Numbers, sizes and times as people read them. Pure: values in, text out.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const NOTHING = "–";

function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

/** 12345 → "12,345" */
export function count(value) {
  return isNumber(value) ? whole.format(value) : NOTHING;
}

/** 12345 → "12.3K": for axes and tiles. */
export function compact(value) {
  if (!isNumber(value)) return NOTHING;
  return Math.abs(value) < 10_000 ? significant(value) : short.format(value);
}

function significant(value) {
  return whole.format(value) === String(value) || Math.abs(value) >= 10
    ? whole.format(value)
    : String(Number(value.toPrecision(2)));
}

/** 1536 → "1.5 KiB" */
export function bytes(value) {
  if (!isNumber(value)) return NOTHING;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit && value < 100 ? Number(value.toFixed(1)) : Math.round(value)} ${units[unit]}`;
}

/** 0.1234 → "0.12 ms", 2500 → "2.5 s" */
export function milliseconds(value) {
  if (!isNumber(value)) return NOTHING;
  if (value >= 1000) return `${Number((value / 1000).toFixed(1))} s`;
  return `${value >= 100 ? Math.round(value) : Number(value.toPrecision(2))} ms`;
}

/** 90061 → "1 d 1 h" */
export function duration(seconds) {
  if (!isNumber(seconds)) return NOTHING;
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = parts.findIndex(([size]) => seconds >= size);
  if (first < 0) return seconds > 0 ? `${Number(seconds.toPrecision(2))} s` : "0 s";
  let left = Math.floor(seconds);
  return parts.slice(first, first + 2)
    .map(([size, unit]) => {
      const n = Math.floor(left / size);
      left -= n * size;
      return n ? `${n} ${unit}` : "";
    })
    .filter(Boolean).join(" ");
}

function two(number) {
  return String(number).padStart(2, "0");
}

/** The time zone of every time on the page: the browser's. */
export const ZONE = new Intl.DateTimeFormat().resolvedOptions().timeZone ?? "local time";

/** Local clock time of a Date: "14:03:59". */
export function clock(date) {
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

/** Local date and time of a Date, as `datetime-local` inputs have it: "2026-03-01T14:03:59". */
export function localInput(date) {
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}T${clock(date)}`;
}

/** Local time: "14:03:59.120" today, "2026-03-01 14:03:59" before. */
export function moment(iso, now = new Date()) {
  const date = new Date(iso);
  if (!iso || Number.isNaN(date.getTime())) return NOTHING;
  const [day, time] = localInput(date).split("T");
  return day === localInput(now).slice(0, 10)
    ? `${time}.${String(date.getMilliseconds()).padStart(3, "0")}`
    : `${day} ${time}`;
}

/** Local time to the microsecond, with its zone: "2026-03-01 14:03:59.120784 Europe/Berlin". */
export function exactMoment(iso) {
  const date = new Date(iso);
  if (!iso || Number.isNaN(date.getTime())) return NOTHING;
  const fraction = /\.\d+/.exec(iso)?.[0] ?? "";
  return `${localInput(date).replace("T", " ")}${fraction} ${ZONE}`;
}

/** "3 min ago" */
export function ago(iso, now = Date.now()) {
  const seconds = (now - new Date(iso).getTime()) / 1000;
  if (!iso || Number.isNaN(seconds)) return NOTHING;
  return seconds < 1 ? "just now" : `${duration(Math.floor(seconds)).split(" ").slice(0, 2).join(" ")} ago`;
}

/** "1 message", "2 messages" */
export function plural(n, one, many = `${one}s`) {
  return `${count(n)} ${n === 1 ? one : many}`;
}
