// A call's state: icon, word and colour together.
import { StateIcon } from "./icons";
import { lookOf } from "./states";

export function State({ state }: { state: string }) {
  const { tone, word } = lookOf(state);
  return (
    <span class={`state tone-${tone}`}>
      <StateIcon tone={tone} />
      {word}
    </span>
  );
}
