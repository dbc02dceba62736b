-- Acquire a fresh name, then release it. wrk ... -- TAG
--
-- A release needs the name and the lease id, and both must come out of the same reply because replies of several
-- connections arrive mixed. The reply to an acquire repeats `metadata`, so the name travels there. Whatever was
-- acquired waits in a line; the next request on any connection releases the first of it.
local common = require("common")

acquired, released, bad, first_bad = 0, 0, 0, ""
setup, done = common.setup, common.done

local fresh, acquire_head, release_head
local names, leases, first, last = {}, {}, 1, 0

local function acquire_body(name)
  return '{"ttl_seconds":60,"metadata":"' .. name .. '"}'
end

local function release_body(lease)
  return '{"lease_id":"' .. lease .. '"}'
end

function init(args)
  fresh = common.name_maker(args[1])
  acquire_head = "/acquire" .. common.head(#acquire_body(string.rep("x", 24)))
end

local function release_request()
  local name, lease = names[first], leases[first]
  names[first], leases[first] = nil, nil
  first = first + 1
  local body = release_body(lease)
  -- Lease ids have one length; the head is built from the first one seen.
  release_head = release_head or "/release" .. common.head(#body)
  return "POST /locks/" .. name .. release_head .. body
end

function request()
  if first <= last then
    return release_request()
  end
  local name = fresh()
  return "POST /locks/" .. name .. acquire_head .. acquire_body(name)
end

local function on_acquired(status, body)
  local lease, name = common.field(body, '"lease_id":"'), common.field(body, '"metadata":"')
  if not (lease and name and string.find(body, '"status":"acquired"', 1, true)) then
    return common.note_bad(status, body)
  end
  acquired = acquired + 1
  last = last + 1
  names[last], leases[last] = name, lease
end

function response(status, _, body)
  if status ~= 200 then
    common.note_bad(status, body)
  elseif body == "null" then
    released = released + 1
  else
    on_acquired(status, body)
  end
end
