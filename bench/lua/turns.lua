-- A worker with one connection does the same operations in turn: acquire,release or acquire,get,renew,release.
-- wrk -tN -cN ... -- TAG OPERATIONS fresh|own
--
-- As many threads as connections: then a thread has one connection, and its next reply is the answer to its last
-- request. "fresh" takes a new name for every turn, "own" the same one again and again.
local common = require("common")

acquired, released, bad, first_bad = 0, 0, 0, ""
setup, done = common.setup, common.done

local ACQUIRE = '{"ttl_seconds":60}'
local operations, at, fresh, is_own, name, lease = {}, 0, nil, false, nil, nil
local heads = {}

function init(args)
  fresh = common.name_maker(args[1])
  for operation in string.gmatch(args[2], "%a+") do
    table.insert(operations, operation)
  end
  is_own = args[3] == "own"
  heads.acquire = "/acquire" .. common.head(#ACQUIRE) .. ACQUIRE
  heads.get = common.head(0)
end

local function with_lease(operation)
  local body = '{"lease_id":"' .. lease .. '"}'
  heads[operation] = heads[operation] or ("/" .. operation .. common.head(#body))
  return "POST /locks/" .. name .. heads[operation] .. body
end

-- wrk asks the first thread for one request that it never sends, so this must not move on by itself.
function request()
  local operation = operations[at + 1]
  if operation == "acquire" then
    if not (is_own and name) then
      name = fresh()
    end
    return "POST /locks/" .. name .. heads.acquire
  elseif operation == "get" then
    return "GET /locks/" .. name .. heads.get
  end
  return with_lease(operation)
end

local function is_right(operation, status, body)
  if status ~= 200 then
    return false
  elseif operation == "acquire" then
    lease = common.field(body, '"lease_id":"')
    return lease and string.find(body, '"status":"acquired"', 1, true)
  elseif operation == "get" then
    return string.find(body, '"status":"held"', 1, true)
  elseif operation == "renew" then
    return string.find(body, lease, 1, true)
  end
  return body == "null"
end

function response(status, _, body)
  local operation = operations[at + 1]
  if not is_right(operation, status, body) then
    common.note_bad(status, body)
    at, name = 0, nil
    return
  end
  if operation == "acquire" then
    acquired = acquired + 1
  elseif operation == "release" then
    released = released + 1
  end
  at = (at + 1) % #operations
end
