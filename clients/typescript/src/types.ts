// Made from /openapi.json by scripts/types.mjs. To change it, change the server.

export type Document = Record<string, unknown>;

export interface AcquireRequest {
  /** how long the claim lasts without a heartbeat. Default: 60, or inside a session as long as that lives. */
  ttl_seconds?: number | null;
  /** the same in milliseconds, instead of `ttl_seconds`. */
  ttl_ms?: number | null;
  /** who you are, as shown to others; it proves nothing. Default: the session's, else the token's name. Seen by everybody who may look at the namespace. */
  owner?: string | null;
  /** a short text shown to everybody, such as repo=acme/app. Seen by everybody who may look at the namespace. */
  metadata?: string | null;
  /** a value that is new for each claim: repeating the claim with it gives the same lease. Seen by nobody. */
  request_key?: string | null;
  /** the session that the claim belongs to. Seen by only the caller that received it: it is a proof. Lists of sessions show the ids of others cut short. */
  session_id?: string | null;
  /** false: the lease outlives its session, by its own TTL. true needs a `session_id`. Default: true inside a session. */
  ephemeral?: boolean | null;
  /** if the claim is lost, not released, nobody gets the job for this long, a minute at most. Default: 0. */
  lock_delay_seconds?: number | null;
  /** shared: coexists with other shared claims, excludes exclusive ones. Seen by everybody who may look at the namespace. */
  mode?: "exclusive" | "shared" | null;
  /** up to this many owners at once; all must give the same number, and none may be shared. Of a pool it may be left out. Default: the pool's, else 1. Seen by everybody who may look at the namespace. */
  slots?: number | null;
  /** how many of the slots to take. Default: 1. Seen by everybody who may look at the namespace. */
  units?: number | null;
  /** after this many failures and losses in a row, park the job until somebody frees it. Default: 0 for no limit. */
  max_attempts?: number | null;
  /** claim the job even if it is marked as done. Default: false. */
  again?: boolean | null;
  /** the claim ends after this long, whatever is renewed. Default: the token's or the server's limit, which is also the most. */
  max_hold_seconds?: number | null;
  /** wait in line for up to this long. Default: 0. */
  wait_seconds?: number | null;
  /** the place in line that an earlier `queued` gave. Seen by only the caller that received it: it is a proof. */
  ticket?: string | null;
  /** only the newest of this group waits in line: an older place of the same group leaves it as `superseded`. At most 512 bytes of UTF-8. Seen by nobody. */
  replaces?: string | null;
  /** proves that the caller already holds the job: gives the same lease, or `lease_not_current`. Seen by only the caller that received it: it is a proof. */
  lease_id?: string | null;
  /** who may claim the job, see below. Seen by everybody who may look at the namespace; an entry `token:` as `token:[redacted]`. */
  acl?: Document | null;
}

export interface AcquireAnyRequest {
  /** how long the claim lasts without a heartbeat. Default: 60, or inside a session as long as that lives. */
  ttl_seconds?: number | null;
  /** the same in milliseconds, instead of `ttl_seconds`. */
  ttl_ms?: number | null;
  /** who you are, as shown to others; it proves nothing. Default: the session's, else the token's name. Seen by everybody who may look at the namespace. */
  owner?: string | null;
  /** a short text shown to everybody, such as repo=acme/app. Seen by everybody who may look at the namespace. */
  metadata?: string | null;
  /** a value that is new for each claim: repeating the claim with it gives the same lease. Seen by nobody. */
  request_key?: string | null;
  /** the session that the claim belongs to. Seen by only the caller that received it: it is a proof. Lists of sessions show the ids of others cut short. */
  session_id?: string | null;
  /** false: the lease outlives its session, by its own TTL. true needs a `session_id`. Default: true inside a session. */
  ephemeral?: boolean | null;
  /** if the claim is lost, not released, nobody gets the job for this long, a minute at most. Default: 0. */
  lock_delay_seconds?: number | null;
  /** shared: coexists with other shared claims, excludes exclusive ones. Seen by everybody who may look at the namespace. */
  mode?: "exclusive" | "shared" | null;
  /** up to this many owners at once; all must give the same number, and none may be shared. Of a pool it may be left out. Default: the pool's, else 1. Seen by everybody who may look at the namespace. */
  slots?: number | null;
  /** how many of the slots to take. Default: 1. Seen by everybody who may look at the namespace. */
  units?: number | null;
  /** after this many failures and losses in a row, park the job until somebody frees it. Default: 0 for no limit. */
  max_attempts?: number | null;
  /** claim the job even if it is marked as done. Default: false. */
  again?: boolean | null;
  /** the claim ends after this long, whatever is renewed. Default: the token's or the server's limit, which is also the most. */
  max_hold_seconds?: number | null;
  /** tried in this order. */
  names: Array<string>;
  /** claim this many of them or none; the answer has `leases`. Default: one, and the answer is that lease. */
  count?: number | null;
  /** only 0: claiming any of several does not wait. */
  wait_seconds?: number | null;
}

export interface AcquireAllRequest {
  /** how long the claim lasts without a heartbeat. Default: 60, or inside a session as long as that lives. */
  ttl_seconds?: number | null;
  /** the same in milliseconds, instead of `ttl_seconds`. */
  ttl_ms?: number | null;
  /** who you are, as shown to others; it proves nothing. Default: the session's, else the token's name. Seen by everybody who may look at the namespace. */
  owner?: string | null;
  /** a short text shown to everybody, such as repo=acme/app. Seen by everybody who may look at the namespace. */
  metadata?: string | null;
  /** a value that is new for each claim: repeating the claim with it gives the same lease. Seen by nobody. */
  request_key?: string | null;
  /** the session that the claim belongs to. Seen by only the caller that received it: it is a proof. Lists of sessions show the ids of others cut short. */
  session_id?: string | null;
  /** false: the lease outlives its session, by its own TTL. true needs a `session_id`. Default: true inside a session. */
  ephemeral?: boolean | null;
  /** if the claim is lost, not released, nobody gets the job for this long, a minute at most. Default: 0. */
  lock_delay_seconds?: number | null;
  /** shared: coexists with other shared claims, excludes exclusive ones. Seen by everybody who may look at the namespace. */
  mode?: "exclusive" | "shared" | null;
  /** up to this many owners at once; all must give the same number, and none may be shared. Of a pool it may be left out. Default: the pool's, else 1. Seen by everybody who may look at the namespace. */
  slots?: number | null;
  /** how many of the slots to take. Default: 1. Seen by everybody who may look at the namespace. */
  units?: number | null;
  /** after this many failures and losses in a row, park the job until somebody frees it. Default: 0 for no limit. */
  max_attempts?: number | null;
  /** claim the job even if it is marked as done. Default: false. */
  again?: boolean | null;
  /** the claim ends after this long, whatever is renewed. Default: the token's or the server's limit, which is also the most. */
  max_hold_seconds?: number | null;
  /** wait in all lines at once, holding nothing. Default: 0. */
  wait_seconds?: number | null;
  /** as with `acquire`. Seen by only the caller that received it: it is a proof. */
  ticket?: string | null;
  /** as with `acquire`. At most 512 bytes of UTF-8. Seen by nobody. */
  replaces?: string | null;
  /** all of them or none. */
  names: Array<string>;
}

export interface RenewRequest {
  /** the lease id that the claim gave: it proves that the job is yours. Seen by only the caller that received it: it is a proof. */
  lease_id?: string | null;
  /** or this: the session of the claim. Seen by only the caller that received it: it is a proof. Lists of sessions show the ids of others cut short. */
  session_id?: string | null;
  /** a new TTL, from now. It may be shorter. Default: the one it has. */
  ttl_seconds?: number | null;
  /** the same in milliseconds, instead of `ttl_seconds`. */
  ttl_ms?: number | null;
  /** replaces what there is. Seen by everybody who may look at the namespace. */
  metadata?: string | null;
  /** how far the work has come, for the next owner. At most 4096 bytes of UTF-8. Seen by everybody who may look at the namespace. */
  checkpoint?: string | null;
  /** shared: share an exclusive claim from now on; who waits to share it gets it at once. A shared one never becomes exclusive. Default: the one it has. */
  mode?: "exclusive" | "shared" | null;
  /** names a step that changes something outside: notes that it begins, or how it ended. At most 200 bytes of UTF-8. Seen by everybody who may look at the namespace. */
  effect_key?: string | null;
  /** begun, before the step; then done, failed, or in_doubt if nobody can know. */
  effect_status?: "begun" | "done" | "failed" | "in_doubt" | null;
  /** a random id of this try: the same when it begins and when it ends. An end without it is that of the try under this lease. Seen by nobody. */
  effect_id?: string | null;
  /** with done: what the step gave, such as an address or an id. At most 1024 bytes of UTF-8. Seen by everybody who may look at the namespace. */
  effect_result?: string | null;
  /** with failed or in_doubt: why; everybody who may see the job sees it. Seen by everybody who may look at the namespace. */
  effect_reason?: string | null;
}

export interface ReleaseRequest {
  /** the lease id that the claim gave: it proves that the job is yours. Seen by only the caller that received it: it is a proof. */
  lease_id?: string | null;
  /** or this: the session of the claim. Seen by only the caller that received it: it is a proof. Lists of sessions show the ids of others cut short. */
  session_id?: string | null;
  /** the work is finished: later claims are told so for a day, or `done_seconds`. Default: false. */
  done?: boolean | null;
  /** how long the job is marked as done. Default: 0, with `done` 86,400. */
  done_seconds?: number | null;
  /** a short text for later claims while the job is marked as done, such as a link to the pull request. At most 4096 bytes of UTF-8. Seen by everybody who may look at the namespace. */
  result?: string | null;
  /** how far the work has come, for the next owner. At most 4096 bytes of UTF-8. Seen by everybody who may look at the namespace. */
  checkpoint?: string | null;
  /** the work failed; this counts as an attempt. Default: false. */
  failed?: boolean | null;
  /** with a failure: why; everybody who may see the job sees it. Seen by everybody who may look at the namespace. */
  reason?: string | null;
  /** with a failure: nobody gets the job for this long, a week at most. Default: 0. */
  retry_after_seconds?: number | null;
  /** neither failed nor done, as after an interruption: the count of attempts stays. Default: false. */
  uncounted?: boolean | null;
}

export interface TransferRequest {
  /** the lease id that the claim gave: it proves that the job is yours. Seen by only the caller that received it: it is a proof. */
  lease_id?: string | null;
  /** or this: the session of the claim. Seen by only the caller that received it: it is a proof. Lists of sessions show the ids of others cut short. */
  session_id?: string | null;
  /** who gets the job, as shown to others. Without `to_session` it stays under the same token. Seen by everybody who may look at the namespace. */
  to_owner?: string | null;
  /** the open session that gets the job, of this namespace; may be of another token. It needs no lease id. Seen by nobody. */
  to_session?: string | null;
  /** a random UUID of yours, from which the server makes the new owner's lease id. After a lost reply, send the same: you get the same answer. Default: one that the server makes. Seen by only the caller that received it: it is a proof. */
  fresh_lease_id?: string | null;
  /** a new TTL. Default: the one it has. */
  ttl_seconds?: number | null;
  /** the same in milliseconds, instead of `ttl_seconds`. */
  ttl_ms?: number | null;
  /** for the new owner. Default: the one it has. At most 4096 bytes of UTF-8. Seen by everybody who may look at the namespace. */
  checkpoint?: string | null;
}

export interface SessionOpenRequest {
  /** how long the session lives without a keepalive. Default: 60. A value out of bounds is set to the nearest bound. */
  ttl_seconds?: number | null;
  /** the same, instead of `ttl_seconds`. A value out of bounds is refused (`invalid_ttl`). */
  ttl_ms?: number | null;
  /** who. Default: the token's name. Seen by everybody who may look at the namespace. */
  owner?: string | null;
  /** shown to those who may see the session. Seen by everybody who may look at the namespace. */
  metadata?: string | null;
  /** identifies the session's process for others on the same machine; the command line fills it in. Seen by nobody. */
  process?: string | null;
  /** a session of yours whose part this one is, as a subagent's is of its agent's. Claims of a session and of its parent do not exclude each other; those of two with the same parent do. Seen by nobody. */
  parent_id?: string | null;
  /** as `fresh_lease_id` of a transfer. Default: one that the server makes. Seen by only the caller that received it: it is a proof. */
  fresh_session_id?: string | null;
}

export interface Acquired {
  /** `acquired`. */
  status: "acquired";
  /** the job; a claim-all names it in `leases`. */
  name?: string;
  /** the proof. Keep it to yourself. */
  lease_id: string;
  /** a number that rises with every lease on this job. */
  fencing_token?: number;
  /** as given. */
  owner: string;
  /** when the lease ends without a heartbeat. */
  expires_at?: string;
  /** the same, from now. */
  remaining_ms: number;
  /** half of it: heartbeat by then. */
  renew_after_ms: number;
  /** as given; null without, or if that of other owners leaves no room. */
  metadata?: string | null;
  /** 1, and 1 more for each owner that failed or lost the job since the last clean release. */
  attempt?: number;
  /** with a ceiling (`max_hold_seconds`): when the lease ends, whatever is renewed. */
  ends_at?: string;
  /** the same, from now. */
  ends_in_ms?: number;
  /** of a job with slots: the number of its slot, from 0. The lowest that was free. */
  slot?: number;
  /** the numbers of all its slots, one for each unit. */
  slot_numbers?: Array<number>;
  /** true: an earlier claim got the lease, not this one or one that it repeats. */
  held_before?: boolean;
  /** the last owner, if there was one: see previous. */
  previous?: Previous;
  /** of a claim-any: the names before this one, each with `name`, `status` and the reason. */
  skipped?: Array<Document>;
  /** of several jobs: one such document for each. `lease_id`, `owner`, `remaining_ms` and `renew_after_ms` beside it apply to all. */
  leases?: Array<Acquired>;
}

export interface Previous {
  /** who had the job before. */
  owner: string;
  /** `released`, `failed`, `expired`, `broken` or `transferred`. */
  how: string;
  /** when that was. */
  at: string;
  /** its token. */
  fencing_token: number;
  /** how far it got, or null. */
  checkpoint: string | null;
  /** which attempt that was. */
  attempt: number;
  /** who broke it, or to whom it was handed. */
  by?: string;
  /** why it failed or was broken. */
  reason?: string;
  /** its metadata, if it had any. */
  metadata?: string;
  /** in the answer to a claim: the steps that it and owners before it noted, see effect. */
  effects?: Array<Effect>;
}

export interface Effect {
  /** which step. */
  key: string;
  /** `new`: it was not begun before; `done`; `failed`; `in_doubt`: somebody began it and never said how it ended; `running`: its owner has begun it. The answer to `begun` says how the step stood before. */
  status: string;
  /** whose try that was; in doubt, the first one that is. */
  owner?: string;
  /** its token. */
  fencing_token?: number;
  /** when it ended, or began. */
  at?: string;
  /** of `done`: what it gave. */
  result?: string;
  /** why the last try failed, or is in doubt. */
  reason?: string;
}

export interface Held {
  /** `held`. */
  status: "held";
  /** the job. */
  name?: string;
  /** a one-way name for credential and owner, shaped like a UUID; of the first in line, if nobody holds it. */
  holder_id?: string | null;
  /** who. */
  owner?: string | null;
  /** its token. */
  fencing_token?: number;
  /** `exclusive` or `shared`. */
  mode?: string;
  /** since when. */
  since?: string;
  /** how long already. */
  held_ms?: number;
  /** the owner's last sign of life: a heartbeat of the lease or of its session. */
  last_heartbeat?: string;
  /** how long ago that was. */
  silent_ms?: number;
  /** when the worker itself last did something, where its session says so (`active`). */
  last_active?: string;
  /** how long ago that was. */
  idle_ms?: number;
  /** when it ends without a heartbeat; of the first in line: when it loses its place unless it asks again. */
  expires_at?: string | null;
  /** when the hold ends, from now. */
  remaining_ms?: number | null;
  /** its metadata. */
  metadata?: string | null;
  /** how far it got. */
  checkpoint?: string | null;
  /** its attempt. */
  attempt?: number;
  /** with a ceiling: when it ends, whatever is renewed. */
  ends_at?: string;
  /** the same, from now. */
  ends_in_ms?: number;
  /** of a job with slots: its slot, from 0. */
  slot?: number;
  /** all of its slots, one for each unit. */
  slot_numbers?: Array<number>;
  /** how many are in line. */
  waiting?: number;
  /** when asking again makes sense. */
  retry_after_ms: number;
  /** if nobody holds it: the first in line, with `owner` and `since`. */
  reserved_for?: Document;
  /** true: its pool has no slots until an operator gives it some. */
  paused?: boolean;
  /** in a tree, or of several jobs: the name of the claim in the way, if another. */
  conflict?: string;
  /** if several are in the way: of the 100 that end first each with `name`, `owner` and `fencing_token`. */
  holders?: Array<Document>;
  /** if more are in the way than `holders` names: how many. */
  holder_count?: number;
}

export interface Refused {
  /** `done` if all are; `parked` if none comes free by itself, of claim-all if one is parked; else `held`: waiting may help. */
  status: string;
  /** an answer for each name. An error has its `code` as `status` there. */
  refused: Array<Document>;
  /** when asking again makes sense; not with `parked`. */
  retry_after_ms?: number;
  /** of a claim-any with `count`: how many could be claimed: too few. */
  free?: number;
  /** of a repeat: what its request key still has. If you have read no earlier answer about it, withdraw the claim and ask again with a new key. */
  rest?: Array<Acquired>;
}

export interface Queued {
  /** `queued`. */
  status: "queued";
  /** the job. */
  name: string;
  /** the place. Ask again with the last one you were given, within 15 s. */
  ticket: string;
  /** 1: next. */
  position: number;
  /** a one-way name for credential and owner, shaped like a UUID. */
  holder_id?: string | null;
  /** who. */
  owner?: string | null;
  /** its token. */
  fencing_token?: number;
  /** `exclusive` or `shared`. */
  mode?: string;
  /** since when. */
  since?: string;
  /** how long already. */
  held_ms?: number;
  /** the owner's last sign of life: a heartbeat of the lease or of its session. */
  last_heartbeat?: string;
  /** how long ago that was. */
  silent_ms?: number;
  /** when the worker itself last did something, where its session says so (`active`). */
  last_active?: string;
  /** how long ago that was. */
  idle_ms?: number;
  /** when it ends without a heartbeat. */
  expires_at?: string | null;
  /** when the hold ends, from now. */
  remaining_ms?: number | null;
  /** its metadata. */
  metadata?: string | null;
  /** how far it got. */
  checkpoint?: string | null;
  /** its attempt. */
  attempt?: number;
  /** with a ceiling: when it ends, whatever is renewed. */
  ends_at?: string;
  /** the same, from now. */
  ends_in_ms?: number;
  /** of a job with slots: its slot, from 0. */
  slot?: number;
  /** all of its slots, one for each unit. */
  slot_numbers?: Array<number>;
  /** in a tree, or of several jobs: the name of the claim in the way, if another. */
  conflict?: string;
  /** if several are in the way: of the 100 that end first each with `name`, `owner` and `fencing_token`. */
  holders?: Array<Document>;
  /** if more are in the way than `holders` names: how many. */
  holder_count?: number;
  /** true: its pool has no slots until an operator gives it some. */
  paused?: boolean;
  /** when to ask again: 5 s at most. */
  retry_after_ms: number;
  /** if the job is closed: see closure. The place is kept. */
  closed?: Closure;
}

export interface Closure {
  /** what is closed: a job; if it ends in `/`, also all below it. */
  name: string;
  /** why. */
  reason: string;
  /** who closed it. */
  by: string;
  /** since when. */
  since: string;
  /** until when. */
  until: string;
  /** the same, from now. */
  remaining_ms: number;
}

export interface Done {
  /** `done`. */
  status: "done";
  /** the job. */
  name: string;
  /** who did it. */
  owner: string;
  /** when. */
  done_at: string;
  /** how long ago. */
  done_ms_ago: number;
  /** until when it counts as done. */
  until: string;
  /** the same, from now. */
  retry_after_ms: number;
  /** the token it was done with. */
  fencing_token: number;
  /** its result, or null. */
  result: string | null;
  /** the same, as `GET /locks/{name}` says it. */
  done: Document;
}

export interface Delayed {
  /** `delayed`. */
  status: "delayed";
  /** the job. */
  name: string;
  /** until when. */
  available_at: string;
  /** the whole time of rest. */
  lock_delay_seconds: number;
  /** the rest of that time. */
  retry_after_ms: number;
  /** the hold that ended before the rest. */
  previous?: Previous;
}

export interface Parked {
  /** `parked`. */
  status: "parked";
  /** the job. */
  name: string;
  /** how many owners failed at it or lost it. */
  failures: number;
  /** the last of them. */
  previous?: Previous;
}

export interface Superseded {
  /** `superseded`. */
  status: "superseded";
  /** the job. */
  name: string;
  /** which group. */
  group: string;
  /** who waits instead, if it still waits. */
  by?: string;
}

export interface Closed {
  /** `closed`. */
  status: "closed";
  /** the job. */
  name: string;
  /** see closure. */
  closed: Closure;
  /** the time until the end. */
  retry_after_ms: number;
}

export interface Leave {
  /** the job. */
  name: string;
  /** whether the caller was in the line. Leaving twice is fine. */
  left: boolean;
}

export interface Withdraw {
  /** `withdrawn`. */
  status: string;
  /** whether a place in line was given up. */
  left: boolean;
  /** the jobs that the claim had, and has no more. */
  released: Array<string>;
  /** those that stay, because others may rely on them: another claim of the session got them, too, or a key can ask for them. */
  kept: Array<string>;
}

export interface Renew {
  /** the job. */
  name: string;
  /** the proof. Keep it to yourself. */
  lease_id: string;
  /** a number that rises with every lease on this job. */
  fencing_token: number;
  /** as given. */
  owner: string;
  /** when the lease ends without a heartbeat. */
  expires_at: string;
  /** the same, from now. */
  remaining_ms: number;
  /** half of it: heartbeat by then. */
  renew_after_ms: number;
  /** as given; null without, or if that of other owners leaves no room. */
  metadata: string | null;
  /** 1, and 1 more for each owner that failed or lost the job since the last clean release. */
  attempt: number;
  /** with a ceiling (`max_hold_seconds`): when the lease ends, whatever is renewed. */
  ends_at?: string;
  /** the same, from now. */
  ends_in_ms?: number;
  /** of a job with slots: the number of its slot, from 0. The lowest that was free. */
  slot?: number;
  /** the numbers of all its slots, one for each unit. */
  slot_numbers?: Array<number>;
  /** what there is now. */
  checkpoint: string | null;
  /** how many wait for the job. */
  waiting: number;
  /** how many of them no earlier answer to a heartbeat has reported. */
  new_waiters: number;
  /** with `effect_key`: what is known of that step, see effect. */
  effect?: Effect;
}

export interface Failed {
  /** `failed`. */
  status: "failed";
  /** the job. */
  name: string;
  /** how many owners in a row failed at it or lost it. */
  failures: number;
  /** whether that parked it. */
  parked: boolean;
  /** for how long nobody gets the job. */
  retry_after_ms: number;
  /** the hold that ended, see previous. */
  previous: Previous;
}

export interface Transferred {
  /** `transferred`. */
  status: "transferred";
  /** the job. */
  name: string;
  /** the new owner's. */
  lease_id: string;
  /** a number that rises with every lease on this job. */
  fencing_token: number;
  /** as given. */
  owner: string;
  /** when the lease ends without a heartbeat. */
  expires_at: string;
  /** the same, from now. */
  remaining_ms: number;
  /** half of it: heartbeat by then. */
  renew_after_ms: number;
  /** as given; null without, or if that of other owners leaves no room. */
  metadata: string | null;
  /** 1, and 1 more for each owner that failed or lost the job since the last clean release. */
  attempt: number;
  /** with a ceiling (`max_hold_seconds`): when the lease ends, whatever is renewed. */
  ends_at?: string;
  /** the same, from now. */
  ends_in_ms?: number;
  /** of a job with slots: the number of its slot, from 0. The lowest that was free. */
  slot?: number;
  /** the numbers of all its slots, one for each unit. */
  slot_numbers?: Array<number>;
  /** what there is. */
  checkpoint: string | null;
}

export interface Job {
  /** the job. */
  name: string;
  /** `held`; or of a job that nobody holds what a claim would be told: `parked`, `done`, `frozen` (the store is being moved), `closed`, `paused` (a pool of 0 slots), `delayed` (it rests); or `free`. Take a word that you do not know for one more reason why nobody can claim it now. */
  status: string;
  /** a one-way name for credential and owner, shaped like a UUID. */
  holder_id?: string | null;
  /** who. */
  owner?: string | null;
  /** the token of the hold, else the last one; 0 if there was never one. */
  fencing_token: number;
  /** `exclusive` or `shared`. */
  mode?: string;
  /** since when. */
  since?: string;
  /** how long already. */
  held_ms?: number;
  /** the owner's last sign of life: a heartbeat of the lease or of its session. */
  last_heartbeat?: string;
  /** how long ago that was. */
  silent_ms?: number;
  /** when the worker itself last did something, where its session says so (`active`). */
  last_active?: string;
  /** how long ago that was. */
  idle_ms?: number;
  /** when it ends without a heartbeat. */
  expires_at?: string | null;
  /** when the hold ends, from now. */
  remaining_ms?: number | null;
  /** its metadata. */
  metadata?: string | null;
  /** how far it got. */
  checkpoint?: string | null;
  /** its attempt. */
  attempt?: number;
  /** with a ceiling: when it ends, whatever is renewed. */
  ends_at?: string;
  /** the same, from now. */
  ends_in_ms?: number;
  /** of a job with slots: its slot, from 0. */
  slot?: number;
  /** all of its slots, one for each unit. */
  slot_numbers?: Array<number>;
  /** while held, or of a pool: how many owners at once. */
  slots?: number;
  /** how many of them are taken. */
  slots_taken?: number;
  /** true: an operator set its slots; 0 of them: it is paused. */
  pool?: boolean;
  /** if there are several: for each `holder_id`, `owner` and the other fields above. */
  holders?: Array<Document>;
  /** while done: `owner`, `at`, `until`, `result`, `fencing_token`. */
  done?: Document;
  /** while it rests: when that is over. */
  available_at?: string;
  /** the same, from now. */
  retry_after_ms?: number;
  /** see previous. */
  previous?: Previous;
  /** the steps that its owners noted: see effect. */
  effects?: Array<Effect>;
  /** if there is one. */
  acl?: Document;
  /** of a series: its last number. */
  last_number?: number;
  /** if it is closed for newcomers: see closure. */
  closed?: Closure;
  /** how many are in line. */
  waiting?: number;
  /** in a tree: other claims in the way, each with `name`, `owner`, `mode`; 100 at most, those that end first. */
  overlapping?: Array<Document>;
  /** if more are in the way than `overlapping` names: how many. */
  overlapping_count?: number;
}

export interface List {
  /** as `GET /locks/{name}`, without `acl` and `overlapping`; in a tree also without `waiting`. */
  locks: Array<Job>;
  /** how many there are; null unless all are on this page. */
  total: number | null;
  /** as asked. */
  prefix: string;
  /** what is closed now below this prefix or above it, see closure. */
  closures?: Array<Closure>;
  /** what to send as `after` for the next page; null on the last. */
  next: string | null;
}

export interface Events {
  /** in order, as in a job's history, each also with `name` and `namespace`. */
  events: Array<Event>;
  /** what to send as `after` to continue. */
  next_after: number;
  /** null, or what was asked for and is no longer on record, as in a stream. */
  gap: Document | null;
}

export interface Event {
  /** its number in the store, rising. */
  seq: number;
  /** when. */
  at: string;
  /** what, see below. */
  event: string;
  /** the owner of the hold or place. */
  owner?: string;
  /** with `owner`: the token of the hold. */
  fencing_token?: number;
  /** with `owner`: the attempt. */
  attempt?: number;
  /** of a hold of a job with slots: its slot. */
  slot?: number;
  /** all of them, one for each unit. */
  slot_numbers?: Array<number>;
  /** the TTL of the claim; 0 for a claim that lives as long as its session. */
  ttl_seconds?: number;
  /** what the owner noted. */
  metadata?: string;
  /** how far the work has come. */
  checkpoint?: string;
  /** which step. */
  effect_key?: string;
  /** the result of the job, or of the step. */
  result?: string;
  /** until when it counts as done. */
  done_until?: string;
  /** who broke, freed or received it. */
  by?: string;
  /** why. */
  reason?: string;
  /** of a failure or a loss: for how long nobody gets the job. */
  retry_after_seconds?: number;
  /** of a release: true: it says nothing about the work. */
  uncounted?: boolean;
  /** of `closed`: until when. */
  until?: string;
  /** of `GET /events`: the job. */
  name?: string;
  /** of `GET /events`: its namespace. */
  namespace?: string;
}

export interface Session {
  /** the proof. Keep it to yourself. */
  session_id: string;
  /** the token's name. */
  user_id: string;
  /** who. */
  owner: string;
  /** as given, or null. */
  metadata: string | null;
  /** when it was opened. */
  since: string;
  /** when it ends without a keepalive. */
  expires_at: string;
  /** the same, from now. */
  remaining_ms: number;
  /** its TTL. */
  ttl_seconds: number;
  /** half of it: send a keepalive by then. */
  keepalive_interval_secs: number;
  /** whether it is open. */
  active: boolean;
  /** how many leases it holds. */
  lock_count?: number;
  /** each with `name`, `namespace`, `fencing_token`, `mode`, `remaining_ms`, `waiting` (how many wait) and, with a ceiling, `ends_in_ms`; with slots, `slot`. */
  holds?: Array<Document>;
  /** names of the jobs that it waits for in line. */
  waits: Array<string>;
  /** of a keepalive with `active`: its jobs with new waiters. Each with `name`, `namespace`, `waiting` and `new_waiters`. */
  wanted?: Array<Document>;
}

export interface Error {
  /** a title. */
  error: string;
  /** one of the codes below, for programs. */
  code: string;
  /** a sentence for people. */
  details: string;
  /** the same as `X-Request-Id`. */
  request_id?: string;
  /** only where asking later helps. */
  retry_after_ms?: number;
  /** only with status 401: where the server says what it is and how it is used. */
  help?: string;
  /** only with `deadlock`: owners and jobs in turn, beginning with the asker. */
  cycle?: Array<string>;
  /** only with `lease_not_current`, where it is remembered: `released`, `failed`, `expired`, `broken` or `transferred`. */
  ended?: string;
  /** only with `number_taken`: the number. */
  number?: number;
  /** only with `number_taken`: the next one that is free. */
  next?: number;
  /** only with `number_taken`: whose it is, if that is known. */
  owner?: string;
}

/** What each answer must have, and of which kind. A kind with a question mark may be null. */
export const REQUIRED = {
  acquired: { status: "string", lease_id: "string", owner: "string", remaining_ms: "number", renew_after_ms: "number" },
  held: { status: "string", retry_after_ms: "number" },
  refused: { status: "string", refused: "array" },
  queued: { status: "string", name: "string", ticket: "string", position: "number", retry_after_ms: "number" },
  done: { status: "string", name: "string", owner: "string", done_at: "string", done_ms_ago: "number", until: "string", retry_after_ms: "number", fencing_token: "number", result: "string?", done: "object" },
  delayed: { status: "string", name: "string", available_at: "string", lock_delay_seconds: "number", retry_after_ms: "number" },
  parked: { status: "string", name: "string", failures: "number" },
  superseded: { status: "string", name: "string", group: "string" },
  closed: { status: "string", name: "string", closed: "object", retry_after_ms: "number" },
  leave: { name: "string", left: "boolean" },
  withdraw: { status: "string", left: "boolean", released: "array", kept: "array" },
  renew: { name: "string", lease_id: "string", fencing_token: "number", owner: "string", expires_at: "string", remaining_ms: "number", renew_after_ms: "number", metadata: "string?", attempt: "number", checkpoint: "string?", waiting: "number", new_waiters: "number" },
  failed: { status: "string", name: "string", failures: "number", parked: "boolean", retry_after_ms: "number", previous: "object" },
  transferred: { status: "string", name: "string", lease_id: "string", fencing_token: "number", owner: "string", expires_at: "string", remaining_ms: "number", renew_after_ms: "number", metadata: "string?", attempt: "number", checkpoint: "string?" },
  job: { name: "string", status: "string", fencing_token: "number" },
  list: { locks: "array", total: "number?", prefix: "string", next: "string?" },
  events: { events: "array", next_after: "number", gap: "object?" },
  event: { seq: "number", at: "string", event: "string" },
  session: { session_id: "string", user_id: "string", owner: "string", metadata: "string?", since: "string", expires_at: "string", remaining_ms: "number", ttl_seconds: "number", keepalive_interval_secs: "number", active: "boolean", waits: "array" },
  error: { error: "string", code: "string", details: "string" },
} as const;
