-- What every load script shares: fresh names, raw request text, and one line of figures at the end.
--
-- wrk gives each thread its own Lua state and tells response() nothing about the connection a reply came on. So
-- no script here may pair "my last request" with "this reply": whatever a later request needs must be read out
-- of a reply itself, or be safe without it.

local common = {}
local threads = {}

-- Several servers: BENCH_PORTS names a port for each thread.
local ports = {}
for port in string.gmatch(os.getenv("BENCH_PORTS") or "", "%d+") do
  table.insert(ports, port)
end

-- Runs once for each thread, in the main state. Counters are globals of the thread's state: done() reads them there.
function common.setup(thread)
  table.insert(threads, thread)
  thread:set("thread_id", #threads)
  if #ports > 0 then
    thread.addr = wrk.lookup("127.0.0.1", ports[(#threads - 1) % #ports + 1])[1]
  end
end

-- Names are fresh in every run (`tag`), thread and request, and all of one length: 24 characters of the base64
-- alphabet, so the very same text is also a valid base64 key for etcd and Content-Length is a constant.
function common.name_maker(tag)
  local prefix = string.format("bench%s%03d", tag, thread_id or 0)
  local digits = 24 - #prefix
  assert(digits >= 7, "the tag is too long")
  local pattern, count = "%s%0" .. digits .. "d", 0
  return function()
    count = count + 1
    return string.format(pattern, prefix, count)
  end
end

-- The header text that stays the same for one kind of request. Built by hand and once: wrk.format() for each
-- request would take time on the cores the server wants.
function common.head(content_length)
  local lines = {" HTTP/1.1", "Host: " .. wrk.headers["Host"], "Content-Type: application/json",
    "Content-Length: " .. content_length}
  if wrk.headers["Authorization"] then
    table.insert(lines, "Authorization: " .. wrk.headers["Authorization"])
  end
  return table.concat(lines, "\r\n") .. "\r\n\r\n"
end

-- The text between `before` and the next quote, or nil. Plain find: a JSON library would be the bottleneck.
function common.field(body, before)
  local _, last = string.find(body, before, 1, true)
  if not last then
    return nil
  end
  local stop = string.find(body, '"', last + 1, true)
  return stop and string.sub(body, last + 1, stop - 1)
end

-- The first reply that was not the expected one is kept: a count alone does not say what went wrong.
function common.note_bad(status, body)
  bad = bad + 1
  if first_bad == "" then
    first_bad = status .. " " .. string.sub(body, 1, 300)
  end
end

local function total(key)
  local sum = 0
  for _, thread in ipairs(threads) do
    sum = sum + (thread:get(key) or 0)
  end
  return sum
end

function common.done(summary, latency, _)
  local sample = ""
  for _, thread in ipairs(threads) do
    sample = sample ~= "" and sample or (thread:get("first_bad") or "")
  end
  local errors = summary.errors
  io.write(string.format(
    '\nBENCH {"requests":%d,"micros":%d,"acquired":%d,"released":%d,"bad":%d,"p50_us":%d,"p99_us":%d,'
      .. '"socket_errors":%d,"timeouts":%d,"first_bad":"%s"}\n',
    summary.requests, summary.duration, total("acquired"), total("released"), total("bad"),
    latency:percentile(50), latency:percentile(99),
    errors.connect + errors.read + errors.write, errors.timeout,
    (string.gsub(sample, '[%c"\\]', "'"))))
end

return common
