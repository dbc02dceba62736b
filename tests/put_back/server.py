"""Faults of the server: connections, callers' rights, tokens, answers, pages for browsers."""

from __future__ import annotations

from tests.put_back.fault import Change, put_back

ADMISSION = "src/dibs/server/http/admission.py"
BOARD_ROUTES = "src/dibs/server/routes/dashboard.py"
BROWSER = "src/dibs/server/http/browser.py"
CONNECTION = "src/dibs/server/connection.py"
CREDENTIALS = "src/dibs/engine/credentials.py"
DESCRIPTION = "src/dibs/server/routes/description.py"
ERRORS = "src/dibs/base/errors.py"
GATEWAY = "src/dibs/compat/action_llama/routes.py"
HANDLERS = "src/dibs/server/handlers.py"
HEALTH = "src/dibs/server/monitor/health.py"
HTTP_SERVER = "src/dibs/server/http_server.py"
INTRODUCTION = "src/dibs/server/routes/introduction.py"
ISSUERS = "src/dibs/oidc/issuers.py"
LISTEN = "src/dibs/server/http/listen.py"
OCTOSTORE_ROUTES = "src/dibs/compat/octostore/routes.py"
OIDC_TOKENS = "src/dibs/oidc/tokens.py"
PARSE = "src/dibs/server/http/parse.py"
RUNS = "src/dibs/compat/action_llama/runs.py"
VALUES = "src/dibs/wire/values.py"
WEBHOOKS = "src/dibs/engine/webhooks/__init__.py"

FAULTS = (
    put_back(
        "F-085",
        "What follows the head of a request has no bound, and a field behind the body counts as a header.",
        Change(
            CONNECTION,
            "            if self._input.is_receiving and self._head_bytes > limits.HEAD_BYTES_MAX:\n",
            "            if False:\n",
        ),
        Change(
            CONNECTION,
            "        if self._input is HEAD:\n            self._headers.append",
            "        if True:\n            self._headers.append",
        ),
    ),
    put_back(
        "F-088",
        "An admin of one namespace is shown a token of another, whose hash it sends.",
        Change(CREDENTIALS, 'if self._caller.namespace not in (None, made["namespace"]):', "if False:"),
    ),
    put_back(
        "F-090",
        "A stream goes on as long as its token is one, for whichever namespace.",
        Change(
            HANDLERS, "return self.caller_of(headers).namespace == namespace", "return bool(self.caller_of(headers))"
        ),
    ),
    put_back(
        "F-091",
        "A webhook of OctoStore's is not bound to its owner's namespace.",
        Change(
            OCTOSTORE_ROUTES,
            "caller = Caller(principal=user.principal, role=AGENT, namespace=user.scope)",
            "caller = Caller(principal=user.principal, role=AGENT, namespace=None)",
        ),
    ),
    put_back(
        "F-092",
        "A session of OctoStore's is everybody's who has the name of its owner.",
        Change(
            "src/dibs/compat/octostore/callers.py",
            "return may_use(session, self.principal, self.scope)",
            "return may_use(session, self.principal, None)",
        ),
        Change(
            OCTOSTORE_ROUTES,
            "KeepSession(session=session_id, principal=user.principal, bound=user.scope)",
            "KeepSession(session=session_id, principal=user.principal, bound=None)",
        ),
    ),
    put_back(
        "F-094",
        "Clients are counted by address, also those of IPv6.",
        Change(
            ADMISSION, '    if ":" not in client:\n        return client\n', "    if client:\n        return client\n"
        ),
    ),
    put_back(
        "F-096",
        "A page under a name of its own may ask a server of this machine.",
        Change(
            BROWSER,
            '            if name == b"host" and not self.knows(value):\n',
            '            if name == b"host" and not value:\n',
        ),
        Change(
            BROWSER,
            'if name == b"origin" and not self._names_us(value) and (strict or value not in self._origins):',
            'if name == b"origin" and strict and not self._names_us(value):',
        ),
    ),
    put_back(
        "F-097",
        "The gateway passes on whatever name, and names the type of a body twice.",
        Change(GATEWAY, '        if name in (b".", b"..") or b"/" in name or b"\\\\" in name:', "        if False:"),
        Change(
            GATEWAY,
            '"Connection": "close"}\n        headers["Via"]',
            '"Connection": "close", "Content-Type": kind}\n        headers["Via"]',
        ),
    ),
    put_back(
        "F-099",
        "Answers over TLS do not tell browsers to come back over TLS.",
        Change(HTTP_SERVER, 'b"strict-transport-security", b"max-age=31536000"', 'b"x-transport-security", b"none"'),
    ),
    put_back(
        "F-100",
        "TLS 1.2 takes ciphers in CBC mode and without forward secrecy.",
        Change("src/dibs/server/http/tls.py", 'CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"', 'CIPHERS = "DEFAULT"'),
    ),
    put_back(
        "F-101",
        "A query is taken apart however long it is.",
        Change(PARSE, "    if len(query) > QUERY_BYTES_MAX:\n", "    if False:\n"),
        Change(PARSE, "max_num_fields=QUERY_FIELDS_MAX", "max_num_fields=100_000"),
    ),
    put_back(
        "F-104",
        "Who was refused is not counted.",
        Change(ADMISSION, "        self._counts[status] += 1\n        now_ms", "        now_ms"),
    ),
    put_back(
        "F-112",
        "Opening a session again opens another one.",
        Change(
            "src/dibs/wire/requests.py",
            'fresh_id=values.fresh_id_of(document, "fresh_session_id", caller),',
            "fresh_id=new_id(),",
        ),
    ),
    put_back(
        "F-140",
        "A caller chooses the id of the heir's lease.",
        Change(
            VALUES,
            '    return digest_id(field, sent, caller.principal, caller.namespace or "", *place)\n',
            "    return str(sent)\n",
        ),
    ),
    put_back(
        "F-141",
        "Who sends an id opens a session of this id.",
        Change(
            VALUES,
            'return digest_id(field, sent, caller.principal, caller.namespace or "", *place)',
            "return str(sent)",
        ),
    ),
    put_back(
        "F-180",
        "A frozen store is as healthy as any.",
        Change(
            HEALTH,
            'return store.trouble() or (Unavailable(f"The store is frozen: {why}") if why else None)',
            "return store.trouble()",
        ),
    ),
    put_back(
        "F-284",
        "What a store refuses to a server is told to its callers as it is.",
        Change(
            ERRORS,
            '    public = "The store does not let this server in. Who runs it finds the reason in its log. Ask another'
            ' server."\n',
            "    public = None\n",
        ),
    ),
    put_back(
        "F-320",
        "A long answer is given to the system in one piece.",
        Change(
            "src/dibs/server/http/request.py",
            "        elif len(body) > WRITE_BYTES_MAX:",
            "        elif len(body) > 2**40:",
        ),
    ),
    put_back(
        "F-321",
        "A full server turns away whoever comes.",
        Change(
            ADMISSION,
            "if self._most and is_full and not self._turn_out_one(self._strangers, _IN_ALL):",
            "if self._most and is_full:",
        ),
        Change(ADMISSION, "if is_full and not self._turn_out_one(own.strangers, _PER_CLIENT):", "if is_full:"),
    ),
    put_back(
        "F-322",
        "Failed logins of a client refuse the right token, too.",
        Change(
            BOARD_ROUTES,
            '        authorization = b"Bearer " + token.encode()\n',
            '        authorization = b"Bearer " + token.encode()\n        self._failures.check(call.client)\n',
        ),
    ),
    put_back(
        "F-323",
        "A server that cannot start leaves its socket.",
        Change(
            LISTEN,
            "    if address.path:\n        with contextlib.suppress(OSError)",
            "    if False:\n        with contextlib.suppress(OSError)",
        ),
    ),
    put_back(
        "F-324",
        "A field that nobody knows is passed over.",
        Change(VALUES, "            if verb in OF_OCTOSTORE:\n", "            if True:\n"),
    ),
    put_back(
        "F-325",
        "A token of a file may replace itself by one in the store.",
        Change(
            "src/dibs/compat/octostore/admin.py",
            "        if self._api.guard.is_in_file(authorization):",
            "        if False:",
        ),
    ),
    put_back(
        "F-326",
        "The server's own token has its user's name, whoever else has it.",
        Change("src/dibs/engine/auth.py", "_apart(line) if line.name.lower() in taken else line", "line"),
    ),
    put_back(
        "F-328",
        "A server that may open no more files says nothing.",
        Change(
            HTTP_SERVER, "if error.errno in (errno.EMFILE, errno.ENFILE) and now_ms >= self._next_line_ms:", "if False:"
        ),
    ),
    put_back(
        "F-366",
        "Sockets of one folder have one name while they are made.",
        Change(LISTEN, "digest = hashlib.sha256(os.fsencode(name)).hexdigest()", 'digest = "0" * 64'),
    ),
    put_back(
        "F-405",
        "A server takes no request for a name that its store had before.",
        Change(HANDLERS, "names = (self.engine.store_id, *self.engine.moved_from)", "names = (self.engine.store_id,)"),
    ),
    put_back(
        "F-432",
        "Callers are told where a server's store is.",
        Change(HEALTH, '"details": trouble.public or trouble.details}', '"details": trouble.details}'),
        Change(
            ERRORS,
            "    public = \"The server's store is damaged. "
            'Who runs the server finds more in its log. Ask another server."\n',
            "    public = None\n",
        ),
    ),
    put_back(
        "F-500",
        "What is unreadable behind the last request is taken for its body.",
        Change(
            CONNECTION,
            "        if not self._move(UNREADABLE).is_read:\n            return  #",
            "        before = self._move(UNREADABLE)\n        if before is LAST:\n"
            "            self._incoming = self.call\n        elif not before.is_read:\n            return  #",
        ),
    ),
    put_back(
        "F-643",
        "Of requests that wait for an issuer, one that fails keeps the others from going on.",
        Change(
            CONNECTION,
            "        self.call = call\n"
            "        for observer in self.state.observers:\n            observer.begin(call)\n",
            "        self.call = call\n",
        ),
        Change(
            CONNECTION,
            "        is_usual = not api.checks_names or",
            "        for observer in state.observers:\n            observer.begin(call)\n"
            "        is_usual = not api.checks_names or",
        ),
        Change(
            OIDC_TOKENS,
            "                loop.call_soon(each)  # one that fails is alone with it\n",
            "                each()\n",
        ),
    ),
    put_back(
        "F-644",
        "An issuer is waited for until its thread says something.",
        Change(OIDC_TOKENS, "timer = loop.call_later(WAIT_S_MAX, go_on)", "timer = loop.call_later(86_400, go_on)"),
        Change(OIDC_TOKENS, "    except Exception as error:  # whatever", "    except KeyError as error:  # whatever"),
    ),
    put_back(
        "F-645",
        "The log has the words of an error about what was sent.",
        Change(
            ISSUERS,
            'raise KeysUnavailable(f"{url} does not answer: {type(error).__name__}") from None',
            'raise KeysUnavailable(f"{url} does not answer: {error}") from None',
        ),
    ),
    put_back(
        "F-646",
        "Each doubt about a token is counted.",
        Change(OIDC_TOKENS, "            self.counts[KEYS] += key in self._unsure\n", ""),
        Change(
            OIDC_TOKENS,
            "        self._unsure[key] = None\n",
            "        self._unsure[key] = None\n        self.counts[KEYS] += 1\n",
        ),
    ),
    put_back(
        "F-647",
        "A token that was accepted is unknown after the rules were read again.",
        Change(
            OIDC_TOKENS,
            "        for key in self._known:\n"
            "            self._doubt(key)  # a request that is under way asks again, and is not refused\n",
            "",
        ),
    ),
    put_back(
        "F-648",
        "An issuer may take its time for each byte.",
        Change(ISSUERS, "        ender.start()\n", ""),
    ),
    put_back(
        "F-650",
        "Of a rule with templates nothing is tried.",
        Change(
            "src/dibs/oidc/rules_file.py",
            "    check_rule(rule)\n",
            "    if not names_in(principal + role + namespace):\n        check_rule(rule)\n",
        ),
    ),
    put_back(
        "F-651",
        "A signed token is replaced by one of the store.",
        Change("src/dibs/compat/octostore/admin.py", "if self._api.guard.is_signed(authorization):", "if False:"),
    ),
    put_back(
        "F-652",
        "Each rule is looked at by itself.",
        Change(
            "src/dibs/oidc/commands.py",
            "for number, text in warnings_about(found.rules)]",
            "for number, rule in enumerate(found.rules, 1) for _, text in warnings_about((rule,))]",
        ),
    ),
    put_back(
        "F-691",
        "A server that says nothing is not asked whether it is there.",
        Change(
            "src/dibs/server/dashboard/app.js",
            "setInterval(() => {\n  if (!document.hidden && me) source?.listen();\n}, 500);\n",
            "",
        ),
    ),
    put_back(
        "F-694",
        "Who asks for / gets the page of the board, and a refusal for want of a token names no place to read.",
        Change(
            BOARD_ROUTES,
            'is_page = api.settings.contract is not None or takes(call.headers.get(b"accept", b""), b"text/html")',
            "is_page = True",
        ),
        Change("src/dibs/server/http/response.py", 'body["help"] = HELP', "pass"),
    ),
    put_back(
        "F-781",
        "The brief contract has the headers that say what a parameter says.",
        Change(
            DESCRIPTION,
            '_SPARED = ("X-Dibs-Namespace", "Idempotency-Key", "Last-Event-ID", "X-Dibs-Names", "X-Dibs-Store")',
            "_SPARED = ()",
        ),
    ),
    put_back(
        "F-782",
        "Who signs out sees the page to sign in, whether the server answers or not.",
        Change("src/dibs/server/dashboard/app.js", "    await logOut();\n", "    await logOut().catch(() => null);\n"),
    ),
    put_back(
        "F-783",
        "A list is not read again when time ends something in it, nor when a job is closed or opened.",
        Change(
            "src/dibs/server/dashboard/source.js",
            "const isDue = !isLive || !(what in LISTS) || this.lists.get(what)?.rows.some(isOver);",
            "const isDue = !isLive || !(what in LISTS);",
        ),
        Change("src/dibs/server/dashboard/source.js", '"pool-set", "closed", "opened"]);', '"pool-set"]);'),
    ),
    put_back(
        "F-784",
        "The board says that nobody has what is in the way of who waits for slots.",
        Change(
            "src/dibs/server/dashboard/columns.js",
            'held: "who is before it comes first", closed: "it is closed", paused: "its pool is paused", ',
            "",
        ),
        Change(
            "src/dibs/server/dashboard/job.js",
            "spans.holds.length ? holdsTable(spans, this._source.ns) : null",
            "holdsTable(spans, this._source.ns)",
        ),
    ),
    put_back(
        "F-785",
        "A field that several requests have refers into the first of them.",
        Change(
            DESCRIPTION,
            'fields[field] = _ref("schemas", _put_as(self.schemas, field, schema))',
            'known = [(key, each.get("properties", {})) for key, each in self.schemas.items()]\n'
            "                    first = next(key for key, each in known if each.get(field) == schema)\n"
            '                    if fields is not self.schemas[first]["properties"]:\n'
            '                        fields[field] = _ref("schemas", f"{first}/properties/{field}")',
        ),
    ),
    put_back(
        "F-786",
        "A server with another program's rules names the command and the skill that are refused there.",
        Change(
            INTRODUCTION,
            "    command = _COMMAND if api.settings.contract is None else _IN_PLACE\n",
            "    command = _COMMAND\n",
        ),
        Change(
            INTRODUCTION,
            'return plugin(PARTS, "shipped-files") if api.settings.contract is None else None',
            'return plugin(PARTS, "shipped-files")',
        ),
    ),
    put_back(
        "F-764",
        "A new token is told whatever the store said to it.",
        Change(CREDENTIALS, "        self._run(rules.CreateToken(", "        run_one(self._store, rules.CreateToken("),
        Change(
            CREDENTIALS,
            "        self._run(rules.RotateToken(digest=digest, fresh_digest=fresh,",
            "        run_one(self._store, rules.RotateToken(digest=digest, fresh_digest=fresh,",
        ),
    ),
    put_back(
        "F-765",
        "Whatever is not a session is a session that is not there.",
        Change(
            OCTOSTORE_ROUTES,
            "    if isinstance(outcome, SessionOver | SessionUnknown):\n",
            "    if not isinstance(outcome, SessionState):\n",
        ),
    ),
    put_back(
        "F-766",
        "A webhook is removed, whatever the store said to it.",
        Change(
            WEBHOOKS,
            "        outcome = expected(run_one(self._store, command), rules.WebhookState)\n",
            "        outcome = run_one(self._store, command)\n"
            "        if not isinstance(outcome, rules.WebhookState):\n"
            "            return Reply(status=503)\n",
        ),
    ),
    put_back(
        "F-767",
        "A run has ended, and a holder or secret was wrong, whatever the store said.",
        Change(RUNS, "        expected(ended, SessionState, SessionOver, SessionUnknown)  # it", "        # it"),
        Change(RUNS, "expected((yield command), SessionState, SessionOver, SessionUnknown)", "yield command"),
    ),
    put_back(
        "F-774",
        "A webhook cannot ask for closures, changes of access and steps.",
        Change(
            "src/dibs/wire/webhooks.py",
            "- _ABOUT_NO_JOB)",
            '- _ABOUT_NO_JOB - {"closed", "opened", "access-set", "effect-begun"})',
        ),
    ),
    put_back(
        "F-775",
        "A webhook and a metric are for names as they were written.",
        Change("src/dibs/wire/webhooks.py", "    if EVERY not in pattern:\n", "    if False:\n"),
        Change("src/dibs/cli/commands/webhook.py", "= _pattern(call, call.values", "= (call.values"),
        Change("src/dibs/cli/commands/serve.py", "check_name(job_name(name).name)", "check_name(name)"),
    ),
    put_back(
        "F-776",
        "A mark of a page may be as long as a name.",
        Change("src/dibs/server/http/parse.py", 'MARK_BYTES_MAX if field == "after" else NAME', "NAME"),
    ),
    put_back(
        "F-796",
        "A page of the board that comes late hides what was closed meanwhile.",
        Change("src/dibs/server/dashboard/jobs.js", "    if (begun < this._closuresBegun) return;\n", ""),
    ),
)
