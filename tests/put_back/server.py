"""Faults of the server: connections, callers' rights, tokens, answers, pages for browsers."""

from __future__ import annotations

from tests.put_back.fault import Change, put_back

ADMISSION = "src/dibs/server/http/admission.py"
CONNECTION = "src/dibs/server/connection.py"
CREDENTIALS = "src/dibs/engine/credentials.py"
HANDLERS = "src/dibs/server/handlers.py"
HTTP_SERVER = "src/dibs/server/http_server.py"
LISTEN = "src/dibs/server/http/listen.py"
BROWSER = "src/dibs/server/http/browser.py"
PARSE = "src/dibs/server/http/parse.py"
VALUES = "src/dibs/wire/values.py"
HEALTH = "src/dibs/server/monitor/health.py"
ERRORS = "src/dibs/base/errors.py"

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
        Change(CREDENTIALS, 'if self._caller.namespace not in (None, reply.body["namespace"]):', "if False:"),
    ),
    put_back(
        "F-090",
        "A stream goes on as long as its token is one, for whichever namespace.",
        Change(
            HANDLERS, "return self.caller_of(headers).namespace == namespace", "return bool(self.caller_of(headers))"
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
)
