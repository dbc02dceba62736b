// Written by `dibs agent install`: each file is claimed before an agent of opencode writes it.
import { spawn } from "node:child_process"

// As long as other harnesses wait for a hook. One that takes longer refuses nothing. A guarded command may stand in line.
const PATIENCE_MS = 10_000
const PATIENCE_IN_LINE_MS = 12 * PATIENCE_MS
const BEFORE = new Set(["edit", "write", "multiedit", "patch", "apply_patch", "bash"])

export const Dibs = async ({ client, directory }) => {
  const parents = new Map()
  let missing = false

  // What dibs has to say, and whether it refuses. Where dibs is not installed the work goes on.
  const ask = (name, sessionID, more = {}) =>
    new Promise((resolve) => {
      if (missing) return resolve({ text: "" })
      const parent = parents.get(sessionID)
      const who = parent ? { session_id: parent, agent_id: sessionID } : { session_id: sessionID }
      const patience = name === "PreToolUse" && more.tool_name === "bash" ? PATIENCE_IN_LINE_MS : PATIENCE_MS
      const words = ["agent", "hook", "--client", "opencode", "--limit", `${patience / 1000}s`]
      const child = spawn("dibs", words, { cwd: directory })
      const impatience = setTimeout(() => child.kill("SIGKILL"), patience)
      let text = ""
      child.stdout.on("data", (data) => (text += data))
      child.stderr.on("data", (data) => (text += data))
      child.stdin.on("error", () => {})
      child.on("error", () => {
        missing = true
        const message = "dibs is not installed here, so files that agents write are not claimed. Work goes on without it."
        client.app.log({ body: { service: "dibs", level: "warn", message } }).catch(() => {})
        resolve({ text: "" })
      })
      child.on("close", (code) => {
        clearTimeout(impatience)
        resolve({ text: text.trim(), refused: code === 2 })
      })
      child.stdin.end(JSON.stringify({ hook_event_name: name, cwd: directory, ...who, ...more }))
    })

  return {
    "tool.execute.before": async ({ tool, sessionID }, { args }) => {
      if (!BEFORE.has(tool)) return
      const answer = await ask("PreToolUse", sessionID, { tool_name: tool, tool_input: args })
      if (answer.refused) throw new Error(answer.text)
    },
    "tool.execute.after": async ({ tool, sessionID, args }, output) => {
      if (tool !== "bash") return
      const { text } = await ask("PostToolUse", sessionID, { tool_name: tool, tool_input: args })
      if (text) output.output = `${output.output}\n${text}`
    },
    event: async ({ event: { type, properties } }) => {
      const { parentID, id } = properties.info ?? {}
      if (type === "session.created" && parentID) parents.set(id, parents.get(parentID) ?? parentID)
      if (type === "session.idle") await ask(parents.has(properties.sessionID) ? "SubagentStop" : "Stop", properties.sessionID)
      if (type === "session.deleted") await ask("SessionEnd", id)
    },
  }
}
