// Bundles the page into ../static (or the folder given): hashed names and an index.html that points to them.
// Fails when a bundle is over its budget.
import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { basename, dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const target = resolve(process.argv[2] ?? join(here, "..", "static"));
const BUDGET_GZIP_BYTES = { ".js": 90 * 1024, ".css": 12 * 1024 };

await rm(target, { recursive: true, force: true });
await mkdir(target, { recursive: true });
const result = await build({
  absWorkingDir: here,
  entryPoints: { main: "src/main.tsx", worker: "src/worker.ts", style: "src/style.css" },
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  entryNames: "[name]-[hash]",
  outdir: target,
  metafile: true,
  legalComments: "eof",
  logLevel: "warning",
});

const names = Object.keys(result.metafile.outputs).map((path) => basename(path));
const named = (start) => "static/" + names.find((name) => name.startsWith(`${start}-`));
const page = await readFile(join(here, "src", "index.html"), "utf8");
const filled = page
  .replace("{{worker}}", named("worker"))
  .replace("{{style}}", named("style"))
  .replace("{{main}}", named("main"));
await writeFile(join(target, "index.html"), filled);

for (const [ending, limit] of Object.entries(BUDGET_GZIP_BYTES)) {
  let total = 0;
  for (const name of names.filter((each) => each.endsWith(ending))) {
    total += gzipSync(await readFile(join(target, name))).length;
  }
  console.log(`${ending.slice(1)}: ${(total / 1024).toFixed(1)} of ${limit / 1024} KB gzip`);
  if (total > limit) process.exitCode = 1;
}
