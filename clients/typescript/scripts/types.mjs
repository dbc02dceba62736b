// Writes src/types.ts from a server's description of itself.
//
//   curl 'http://127.0.0.1:3427/openapi.json?path=*' | node scripts/types.mjs > src/types.ts
//
// Takes the documents that the client uses, and those that they refer to. Plain JavaScript, because the types must be
// there before anything compiles.

import { readFileSync } from "node:fs";

const REQUESTS = ["acquire-request", "acquire-any-request", "acquire-all-request", "renew-request", "release-request",
  "transfer-request", "session-open-request"];
const ANSWERS = ["acquired", "held", "refused", "queued", "done", "delayed", "parked", "superseded", "closed", "leave", "withdraw",
  "renew", "failed", "transferred", "job", "list", "events", "event", "session", "error"];

const schemas = JSON.parse(readFileSync(0, "utf8")).components.schemas;
const nameOf = (word) => word.split("-").map((part) => part[0].toUpperCase() + part.slice(1)).join("");
const isNullable = (schema) => [schema.type].flat().includes("null") || (schema.anyOf ?? []).some((each) => each.type === "null");

function typeOf(schema) {
  if (schema.$ref) return nameOf(schema.$ref.split("/").at(-1));
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((each) => JSON.stringify(each)).join(" | ");
  if (schema.anyOf) return schema.anyOf.map(typeOf).join(" | ");
  if (Array.isArray(schema.type)) return schema.type.map((type) => typeOf({ ...schema, type })).join(" | ");
  if (schema.type === "array") return `Array<${schema.items ? typeOf(schema.items) : "unknown"}>`;
  if (schema.type === "object") return "Document";
  return { integer: "number" }[schema.type] ?? schema.type ?? "unknown";
}

/** The kind of a value as the decoder asks for it; null if anything may be there. */
function kindOf(schema) {
  const plain = schema.anyOf?.find((each) => each.type !== "null") ?? schema;
  const type = [plain.type].flat().find((each) => each !== "null");
  const kind = plain.$ref ? "object" : { integer: "number" }[type] ?? type;
  return kind === undefined ? null : kind + (isNullable(schema) ? "?" : "");
}

function referred(word, found = new Set()) {
  if (found.has(word)) return found;
  found.add(word);
  for (const [, other] of JSON.stringify(schemas[word]).matchAll(/#\/components\/schemas\/([^"]+)/g)) referred(other, found);
  return found;
}

const words = new Set([...REQUESTS, ...ANSWERS].flatMap((word) => [...referred(word)]));
const lines = ["// Made from /openapi.json by scripts/types.mjs. To change it, change the server.", "",
  "export type Document = Record<string, unknown>;"];
for (const word of words) {
  const { properties = {}, required = [] } = schemas[word];
  lines.push("", `export interface ${nameOf(word)} {`);
  for (const [field, schema] of Object.entries(properties)) {
    const about = (schema.description ?? "").replace(/\[([^\]]+)\]\([^)]*\)/g, "$1").replaceAll("*/", "* /");
    if (about) lines.push(`  /** ${about} */`);
    lines.push(`  ${field}${required.includes(field) ? "" : "?"}: ${typeOf(schema)};`);
  }
  lines.push("}");
}
lines.push("", "/** What each answer must have, and of which kind. A kind with a question mark may be null. */",
  "export const REQUIRED = {");
for (const word of ANSWERS) {
  const { properties, required = [] } = schemas[word];
  const kinds = required.map((field) => [field, kindOf(properties[field])]).filter(([, kind]) => kind !== null);
  lines.push(`  ${word}: { ${kinds.map(([field, kind]) => `${field}: "${kind}"`).join(", ")} },`);
}
lines.push("} as const;");
process.stdout.write(`${lines.join("\n")}\n`);
