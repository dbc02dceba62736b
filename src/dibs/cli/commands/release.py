"""heartbeat, transfer, release: commands about a claim that the caller has."""

from __future__ import annotations

import os

from dibs.base.ids import new_id
from dibs.base.terminal import plain
from dibs.cli.framework import flags
from dibs.cli.framework.context import Call, Document
from dibs.cli.framework.parse import DOUBTFUL, UsageError, taken_by_equals
from dibs.cli.framework.result import Answer, combined, failure, is_failure, yes
from dibs.cli.framework.spec import ANY, JOB, JOBS, Argument, Command, Option
from dibs.cli.text.claim import SAME_ACTOR, ceiling, field, waited_for
from dibs.cli.text.words import job_command, span
from dibs.client.flow import ending_of
from dibs.client.transport import Ask, Transport
from dibs.core.limits import CHECKPOINT_BYTES_MAX, RESULT_BYTES_MAX
from dibs.core.records import FAILED, RELEASED
from dibs.wire.codes import NOT_YOURS, YES
from dibs.wire.documents import Reply
from dibs.wire.sentences import shown_name


def heartbeat(call: Call) -> Answer:
    document: Document = {}
    flags.put(document, "ttl_seconds", flags.ttl_seconds(call))
    flags.put(document, "metadata", call.values.get("metadata"))
    flags.put(document, "checkpoint", call.text("checkpoint", CHECKPOINT_BYTES_MAX))
    flags.put(document, "mode", "shared" if call.values.get("shared") else None)
    document = flags.check_texts(document) | flags.proof(call)  # last: it renews the actor's session
    return combined([(name, _renewed(call, name, document)) for name in call.values["job"]])


def _renewed(call: Call, name: str, document: Document) -> Answer:
    reply = call.ask("renew", name, flags.proof_of(call, name, document))
    if is_failure(reply):
        return _refused(call, name, document, reply)
    body: Document = {"name": name, **(reply.body or {})}
    if "checkpoint" in document and call.env.get("DIBS_CHECKPOINT_FILE"):
        _note_in_file(call, name, document)
    # Renewing the actor's session may have answered already who waits for this job: it is said once, here.
    already = [job for job in call.wanted if job["name"] == name]
    if already:
        call.wanted = [job for job in call.wanted if job not in already]
        body["new_waiters"] = body.get("new_waiters", 0) + already[0]["new_waiters"]
    lines = [f"{call.paint.good('Still yours:')} {plain(name)}, for another {span(body['remaining_ms'])}."]
    if body.get("checkpoint"):
        lines.append(field("checkpoint", plain(body["checkpoint"])))
    return yes(body, "\n".join([*lines, *ceiling(body), *waited_for(body)]))


def _refused(call: Call, name: str, document: Document, reply: Reply) -> Answer:
    """The failure. An actor that never had the job is told if its owner has the actor's name."""
    answer = failure(reply)
    never_ours = answer.code == "lease_not_current" and "ended" not in answer.document
    if never_ours and "session_id" in document and (ours := flags.actor_owner(call)) is not None:
        found = call.ask("inspect", name, {}).body or {}
        if found.get("owner") == ours:
            answer.text = answer.message = f"{answer.text} {SAME_ACTOR}"
    return answer


def _note_in_file(call: Call, name: str, document: Document) -> None:
    """Inside `dibs run --checkpoint-file`, put the checkpoint into that file too: it is sent when it changes, and at
    the end of the run. So the newest counts, wherever it was noted."""
    env = call.env
    if (name, document.get("session_id")) != (env.get("DIBS_JOB"), env.get("DIBS_SESSION")):
        return
    from dibs.base.files import replace_file

    path = os.path.realpath(env["DIBS_CHECKPOINT_FILE"])
    try:
        mode = os.stat(path).st_mode & 0o777 if os.path.exists(path) else 0o666
        replace_file(path, document["checkpoint"], mode=mode)
    except OSError as error:
        call.complain(f"{plain(path)} could not be written ({error.strerror}), and may be sent over this checkpoint.")


def transfer(call: Call) -> Answer:
    to, to_session = call.values.get("to"), call.values.get("to_session")
    document: Document = {"fresh_lease_id": new_id()}
    flags.put(document, "to_owner", to)
    if to_session is not None:
        document["to_session"] = flags.checked_session(call, to_session, "--to-session")
    flags.put(document, "ttl_seconds", flags.ttl_seconds(call))
    flags.put(document, "checkpoint", call.text("checkpoint", CHECKPOINT_BYTES_MAX))
    document = flags.check_texts(document) | flags.proof(call)  # last: it renews the actor's session
    body = call.body("transfer", call.values["job"], document)
    name, owner, left = plain(body["name"]), plain(body["owner"]), span(body["remaining_ms"])
    lines = [f"{call.paint.good('Handed over:')} {name} is {owner}'s now, for another {left}."]
    lines.append(field("fencing token", str(body["fencing_token"])))
    if to_session is None:
        lines.append(field("lease", body["lease_id"]))
        lines.append(f"Give the lease id to {owner}: it proves the claim. Your own lease has ended.")
    return yes(body, "\n".join(lines), quiet=plain(body["lease_id"]))


def release(call: Call) -> Answer:
    names: list[str] = call.values["job"]
    if not names and not call.values.get("mine"):
        raise UsageError(f"release needs JOB: {JOBS.help}. --mine releases all that you hold.")
    flags.refuse_for_resources(call)
    document = flags.done_fields(call, call.text("result", RESULT_BYTES_MAX)) | failure_fields(call)
    flags.put(document, "checkpoint", call.text("checkpoint", CHECKPOINT_BYTES_MAX))
    document = flags.check_texts(document) | flags.proof(call)  # last: it renews the actor's session
    if not call.values.get("mine"):
        return _each_released(call, names, document)
    if names or "session_id" not in document:
        raise UsageError("--mine is all that an --actor or --session holds: give it neither JOB nor lease.")
    return _released_all(call, document)


def _released_all(call: Call, document: Document) -> Answer:
    """Release all that the session holds, in every namespace, or only in the one that was named."""
    named = call.said("namespace")
    holds = {document["session_id"]: call.body("session-show", document["session_id"], {}).get("holds", ())}
    for session in flags.earlier_sessions(call):  # which the store may have forgotten
        holds[session] = (call.ask("session-show", session, {}).body or {}).get("holds", ())
    transports: dict[str, Transport] = {}
    answers = []
    try:
        for session, held in holds.items():
            for hold in held:
                namespace = hold["namespace"]
                if named not in (None, namespace):
                    continue
                if namespace not in transports:
                    transports[namespace] = call.another_transport(namespace=namespace)
                asked = {**document, "session_id": session}
                answers.append((hold["name"], _released(call, hold["name"], asked, transports[namespace])))
    finally:
        for transport in transports.values():
            transport.close()
    where = "here" if named is None else f"in namespace {plain(named)}"
    return combined(answers) if answers else yes({"jobs": []}, f"You hold nothing {where}.")


def _each_released(call: Call, names: list[str], document: Document) -> Answer:
    """Release one by one, first the name that may have been meant as the time of --done: if it never was the caller's,
    nothing was released."""
    doubtful = call.values.get(DOUBTFUL, 0)
    answers = {doubtful: _released(call, names[doubtful], document, call.transport())}
    first = answers[doubtful]
    never_ours = first.code == "lease_not_current" and "ended" not in first.document
    if DOUBTFUL in call.values and len(names) > 1 and never_ours:
        raise UsageError(
            f"{plain(names[doubtful])} stands behind --done and is no job of yours, so nothing was released."
            f"{taken_by_equals(COMMANDS['release'])}"
        )
    for index, name in enumerate(names):
        if index != doubtful:
            answers[index] = _released(call, name, document, call.transport())
    _release_twins(call, [name for index, name in enumerate(names) if answers[index].exit == YES], document)
    return combined([(name, answers[index]) for index, name in enumerate(names)])


def _release_twins(call: Call, released: list[str], document: Document) -> None:
    """The hook of an agent claims a file for all clones and for its checkout: who releases the file means both."""
    files = [name for name in released if name.startswith("path:")]
    if not files or "session_id" not in document:
        return
    body = call.ask("session-show", document["session_id"], {}).body or {}
    for hold in body.get("holds", ()):
        if hold["name"] not in files and shown_name(hold["name"]) in files:
            call.ask("release", hold["name"], {"session_id": document["session_id"]})


def failure_fields(call: Call) -> Document:
    """The fields of a release for failed work; empty without --failed."""
    values = call.values
    retry_after = flags.number_for(call, "retry_after", "retry_after_seconds")
    if not values.get("failed"):
        for key, value in (("--reason", values.get("reason")), ("--retry-after", retry_after)):
            if value is not None:
                raise UsageError(f"{key} needs --failed.")
        return {}
    if values.get("done") is not None or values.get("result") is not None:
        raise UsageError("Use --failed or --done, not both.")
    fields: Document = {"failed": True}
    flags.put(fields, "reason", values.get("reason"))
    flags.put(fields, "retry_after_seconds", retry_after)
    return fields


def _released(call: Call, name: str, document: Document, transport: Transport) -> Answer:
    document = flags.proof_of(call, name, document)
    tracker = flags.tracker_for([name])
    if tracker is not None:
        proven = {key: value for key, value in document.items() if key in ("lease_id", "session_id")}
        tracker.withdraw_before_release(call, name, proven)
    call.wanted = [job for job in call.wanted if job["name"] != name]  # who waits for it gets it now
    document = ending_of(name, document)
    reply = transport.ask(Ask("release", name, document))
    body: Document = reply.body or {}
    done = document.get("done_seconds")
    if body.get("status") == "failed":
        return yes(body | {"released": True}, _failed(call, body))
    if is_failure(reply):
        refused = _refused(call, name, document, reply)
        if done and body.get("ended") in (RELEASED, FAILED):
            refused.text = refused.message = f"{refused.text} This did not mark it as done."
        return refused
    if document.get("failed"):  # a failure is answered with what it counts for
        text = f"{plain(name)} was released before, and not as failed. This counted nothing."
        return Answer(NOT_YOURS, {"ended": RELEASED}, text, code="lease_not_current", is_error=True)
    after = f"Marked done for {span(done * 1000)}." if done else "It can be claimed."
    return yes({"name": name, "released": True}, f"{call.paint.good('Released')} {plain(name)}. {after}")


def _failed(call: Call, body: Document) -> str:
    first = f"{call.paint.wait('Released as failed:')} {plain(body['name'])}, {body['failures']} in a row."
    if body["parked"]:
        free = job_command(["free", *flags.next_words(call, ("url", "namespace"))], [body["name"]])
        return f"{first} It is parked. Fix the cause, then free it:  {free}"
    after = f" in {span(body['retry_after_ms'])}" if body["retry_after_ms"] else ""
    return f"{first} It can be claimed{after}."


COMMANDS = {
    "heartbeat": Command(
        heartbeat,
        JOBS,
        *flags.PROOF,
        Option("--ttl TIME", "a new TTL (default: the present one)"),
        *(flags.CHECKPOINT, flags.METADATA, Option("-s, --shared", field="renew.mode")),
        about=(
            "Restarts the claim's TTL. The checkpoint is shown to the next owner. Several jobs are renewed one by one."
        ),
        examples=(
            ("dibs heartbeat issue-1842 --actor agent-7", "still here"),
            ('dibs heartbeat issue-1842 --actor agent-7 --checkpoint "tests pass"', "with progress"),
            ("dibs heartbeat issue-1842 --checkpoint 'half way'", "inside a session, or with DIBS_ACTOR"),
            ("dibs heartbeat issue-1842 --actor agent-7 --checkpoint - < notes.txt", "progress from a file"),
        ),
        exits=(
            (0, "still yours"),
            (flags.NOT_YOURS[0][0], f"{flags.NOT_YOURS[0][1]}. With --shared also: the job has slots"),
        ),
    ),
    "transfer": Command(
        transfer,
        JOB,
        Option("--to OWNER", "the new owner, as shown to others", filled=True, required="to"),
        Option("--to-session ID", "the new owner's open session", completes="session", required="to"),
        *flags.PROOF,
        Option("--ttl TIME", "a new TTL (default: the present one)"),
        flags.CHECKPOINT,
        about=(
            "The new owner gets a new lease id, a higher fencing token, and the checkpoint, in one atomic "
            "step. Your own lease ends. A session needs only the job's name; to an owner you pass the "
            "printed lease id. The line of those who wait stays as it is."
        ),
        examples=(
            ("dibs transfer issue-1842 --to agent-8 --actor agent-7", "to a worker that gets the lease id"),
            ('dibs transfer issue-1842 --to-session "$OTHER"', "to another session, from inside one"),
        ),
        exits=(
            (0, "handed over"),
            (1, "what you, your parent or your child session has besides stands in the way"),
            (2, "the job is not yours, or there is no such session"),
            (3, "the transfer would deadlock: the new owner waits for somebody who waits for this job"),
        ),
    ),
    "release": Command(
        release,
        Argument("JOB", JOBS.help, completes="job", takes=ANY),
        Option("--mine", "instead of JOB: all that the actor or the session holds; with --namespace, in that one"),
        *flags.PROOF,
        flags.DONE,
        Option("--result TEXT", "the result, shown while the job is marked as done; - reads it from stdin"),
        *(flags.CHECKPOINT, flags.FAILED, flags.REASON, flags.RETRY_AFTER),
        about=(
            "Frees the job at once. --done marks it as done: claims in that time are refused, with the "
            "result and who did it. --failed counts as an attempt: the next owner sees the reason, "
            "--max-attempts parks the job after that many in a row, and a release without --failed resets "
            "the count. Repeating a release is not an error, unless it reports another result than the first. "
            "Several jobs are released one by one; an error with one does not stop the others."
        ),
        examples=(
            ("dibs release issue-1842 --actor agent-7", "free for the next owner"),
            ("dibs release issue-1842", "inside a session"),
            ("dibs release --mine --actor agent-7", "all that you hold"),
            ("dibs release staging database --actor agent-7", "all jobs of a claim-all"),
            ('dibs release issue-1842 --actor agent-7 --done --result "PR 77"', "done, for a day"),
            ("dibs release issue-1842 --actor agent-7 --done=1h", "done, for an hour"),
            (
                'dibs release issue-1842 --actor agent-7 --failed --reason "registry away" --retry-after 5m',
                "failed; not again for five minutes",
            ),
        ),
        exits=(
            (0, "let go"),
            *flags.NOT_YOURS,
        ),
    ),
}
