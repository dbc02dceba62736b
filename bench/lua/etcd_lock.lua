-- Lock of etcd's lock service with a fresh name, then Unlock. wrk ... -- TAG LEASE
--
-- The reply to Lock says the key that Unlock wants. Whatever was locked waits in a line; the next request on any
-- connection unlocks the first of it.
local common = require("common")

acquired, released, bad, first_bad = 0, 0, 0, ""
setup, done = common.setup, common.done

local fresh, lease, lock_head
local keys, first, last = {}, 1, 0

local function lock_body(name)
  return '{"name":"' .. name .. '","lease":"' .. lease .. '"}'
end

function init(args)
  fresh, lease = common.name_maker(args[1]), args[2]
  lock_head = "POST /v3/lock/lock" .. common.head(#lock_body(string.rep("x", 24)))
end

function request()
  if first <= last then
    local body = '{"key":"' .. keys[first] .. '"}'
    keys[first] = nil
    first = first + 1
    return "POST /v3/lock/unlock" .. common.head(#body) .. body
  end
  return lock_head .. lock_body(fresh())
end

function response(status, _, body)
  local key = common.field(body, '"key":"')
  if status ~= 200 then
    common.note_bad(status, body)
  elseif key then
    acquired = acquired + 1
    last = last + 1
    keys[last] = key
  else
    released = released + 1
  end
end
