// The page: assembled here, with the keys that work everywhere on it.
import { render } from "preact";
import { CallDetail } from "./CallDetail";
import { CallTable, stepRow } from "./CallTable";
import { nextTheme, openCall, query, rememberChoices } from "./choice";
import { ClusterMap } from "./ClusterMap";
import { Banner, Header, HonestyStrip, isStale } from "./Header";
import { Kpis } from "./Kpis";
import { feedState, goLive } from "./live";

function Page() {
  return (
    <>
      <Header />
      <Banner />
      <main class={isStale() ? "is-old" : ""}>
        {feedState.value.heardAt === 0 ? <p class="empty">Waiting for the first picture of the cluster.</p> : <Live />}
      </main>
      <HonestyStrip />
    </>
  );
}

function Live() {
  return (
    <>
      <Kpis />
      <div class={openCall.value ? "columns has-detail" : "columns"}>
        <CallTable />
        <div class="side">
          <CallDetail />
          <ClusterMap />
        </div>
      </div>
    </>
  );
}

function onKey(event: KeyboardEvent): void {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") leave();
  else if (event.target instanceof HTMLInputElement) return;
  else if (event.key === "j" || event.key === "k") stepRow(event.key === "j" ? 1 : -1);
  else if (event.key === "t") nextTheme();
  else if (event.key === "/") document.getElementById("filter")?.focus();
  else return;
  event.preventDefault();
}

// Escape undoes one thing: the filter being written, then the open call, then the filter.
function leave(): void {
  const active = document.activeElement;
  if (active instanceof HTMLInputElement) active.blur();
  else if (openCall.value) openCall.value = "";
  else query.value = "";
}

rememberChoices();
addEventListener("keydown", onKey);
render(<Page />, document.getElementById("page") ?? document.body);
goLive();
