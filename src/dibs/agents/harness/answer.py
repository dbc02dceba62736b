"""What a hook answers, in each harness's own form. Pure.

A refusal is exit 2 with the reason on stderr, which all harnesses honour; those that read the reason from JSON get it
there. Nothing ever answers "allow": that would skip the question that the harness asks its user.
"""

from __future__ import annotations

from dibs.agents.harness import parse as kinds
from dibs.agents.harness.identity import CLAUDE, CODEX, COPILOT, CURSOR, GEMINI, OPENCODE
from dibs.agents.harness.parse import HookEvent
from dibs.base.jsontext import encode

REFUSED = 2
CONTEXT_CHARS_MAX = 9_000  # Claude Code cuts texts at 10,000


class HookAnswer:
    """What to write, and the exit code. `reason` of a refusal and `text` of a remark are not in the harness's form."""

    def __init__(
        self, exit_code: int = 0, stdout: str = "", stderr: str = "", *, reason: str = "", text: str = ""
    ) -> None:
        self.exit = exit_code
        self.stdout = stdout
        self.stderr = stderr
        self.reason = reason
        self.text = text


NOTHING = HookAnswer()
# The events after which a harness passes our words to the model, as seen in the versions that `agents.md` names.
_CLAUDE = (kinds.BEFORE_EDIT, kinds.BEFORE_SHELL, kinds.AFTER_TOOL, kinds.START, kinds.COMPACTED)
_HEARD = {
    CLAUDE: _CLAUDE,
    CODEX: _CLAUDE,
    COPILOT: (kinds.BEFORE_EDIT, kinds.BEFORE_SHELL, kinds.AFTER_TOOL, kinds.START),
    GEMINI: (kinds.AFTER_TOOL, kinds.START),
}


def refusal(event: HookEvent, reason: str) -> HookAnswer:
    """Refuse what the agent is about to do."""
    reason = reason[:CONTEXT_CHARS_MAX]
    if event.harness == COPILOT:  # reads the reason from JSON, and takes any other exit for an error of ours
        told = {"permissionDecision": "deny", "permissionDecisionReason": reason}
        return HookAnswer(0, encode(told), reason=reason)
    if event.harness == CURSOR:
        told = {"permission": "deny", "agent_message": reason, "user_message": reason}
        return HookAnswer(REFUSED, encode(told), reason, reason=reason)
    return HookAnswer(REFUSED, "", reason, reason=reason)


def remark(event: HookEvent, text: str) -> HookAnswer:
    """Tell the agent something and refuse nothing. A harness without a place for it shows stderr to its user."""
    text = text[:CONTEXT_CHARS_MAX]
    if not text:
        return NOTHING
    if event.kind in _HEARD.get(event.harness, ()):
        told: dict[str, object] = {"additionalContext": text}
        if event.harness != COPILOT:
            told = {"hookSpecificOutput": {"hookEventName": event.name, **told}}
        return HookAnswer(0, encode(told), text=text)
    if event.harness == OPENCODE:  # our plugin there adds it to what the tool says
        return HookAnswer(0, text, text=text)
    return HookAnswer(0, "", text, text=text)


def with_remark(event: HookEvent, answer: HookAnswer, text: str) -> HookAnswer:
    """An answer with one remark more. A refusal has it at the end of its reason."""
    if answer.exit == 0 and not answer.stdout and not answer.stderr:
        return remark(event, text)
    if answer.reason:
        return refusal(event, f"{answer.reason}\n{text}")
    return remark(event, f"{answer.text}\n{text}") if answer.text else answer
