// Texts for people: names that may be hostile, lengths of time, instants.

const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
const SHORT = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

/** The text, with characters that cannot be seen, or that turn others around, written out. */
export function visible(text) {
  return String(text).replace(HIDDEN, (one, at, whole) => {
    // Inside an emoji, a joiner is part of a picture.
    if (one === "\u200d" && at > 0 && whole.charCodeAt(at - 1) > 0x20ff) return one;
    return SHORT[one] ?? "\\u" + one.charCodeAt(0).toString(16).padStart(4, "0");
  });
}

const UNITS = [["d", 86_400_000], ["h", 3_600_000], ["min", 60_000], ["s", 1000]];

/** 4 min 5 s; 2 h 3 min; at most two units. */
export function span(ms) {
  const whole = Math.max(0, ms);
  if (whole < 1000) return "0 s";
  const first = UNITS.findIndex(([, size]) => whole >= size);
  const [unit, size] = UNITS[first];
  const text = `${Math.floor(whole / size)} ${unit}`;
  const next = UNITS[first + 1];
  const rest = next ? Math.floor((whole % size) / next[1]) : 0;
  return rest ? `${text} ${rest} ${next[0]}` : text;
}

/** 4 min ago: one unit is enough to look at; the title has the rest. */
export function ago(ms) {
  if (ms < 1000) return "now";
  const [unit, size] = UNITS.find(([, each]) => ms >= each);
  return `${Math.floor(ms / size)} ${unit} ago`;
}

/** 2026-11-16 01:02:03 UTC */
export const exact = (ms) => new Date(ms).toISOString().replace("T", " ").replace(/\.\d+Z$/, " UTC");

export const count = (number) => number.toLocaleString("en-GB");

export const plural = (number, one, many) => `${count(number)} ${number === 1 ? one : many}`;

const MARK = /^path:@[0-9a-f]{12}\/(?=.)/;
/** A job as people know it: the hook of an agent claims a file for all clones, and for its checkout by a digest. */
export const shownName = (name) => String(name).replace(MARK, "path:");

/** What somebody wrote as a note; null for what programs of dibs note for themselves. */
export const noteOf = (metadata) => (metadata && !metadata.startsWith("checkout=") && !metadata.startsWith('{"agent":') ? metadata : null);
