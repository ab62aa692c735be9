// Which colour and pattern a gang has on the map. Pure; a gang keeps its colour as long as it lives.
export const COLOURS = 8; // Okabe-Ito's seven and one near-black (near-white when dark): .gang-0 … .gang-7 in style.css
export const PATTERNS = ["", "stripe", "dots"] as const;

export interface Ink {
  readonly colour: number;
  readonly pattern: (typeof PATTERNS)[number];
  readonly number: number; // written in large cells, so that colour is never the only sign
}

export type Inks = ReadonlyMap<string, Ink>;

export function withGangs(before: Inks, gangIds: readonly string[]): Inks {
  const after = new Map<string, Ink>();
  for (const id of gangIds) {
    const ink = before.get(id);
    if (ink) after.set(id, ink);
  }
  for (const id of [...gangIds].sort()) {
    if (!after.has(id)) after.set(id, freeInk(id, [...after.values()]));
  }
  return after;
}

// The hash picks where to look first; the first look that no living gang has is taken, plain colours before patterns.
function freeInk(id: string, taken: readonly Ink[]): Ink {
  const looks = new Set(taken.map((ink) => look(ink.colour, ink.pattern)));
  const numbers = new Set(taken.map((ink) => ink.number));
  let number = 1;
  while (numbers.has(number)) number += 1;
  const first = hash(id) % COLOURS;
  for (const pattern of PATTERNS) {
    for (let step = 0; step < COLOURS; step += 1) {
      const colour = (first + step) % COLOURS;
      if (!looks.has(look(colour, pattern))) return { colour, pattern, number };
    }
  }
  return { colour: first, pattern: PATTERNS[hash(id + "'") % PATTERNS.length] ?? "", number };
}

function look(colour: number, pattern: string): string {
  return `${colour}/${pattern}`;
}

function hash(text: string): number {
  let value = 0x811c9dc5;
  for (let i = 0; i < text.length; i += 1) value = Math.imul(value ^ text.charCodeAt(i), 0x01000193);
  return value >>> 0;
}
