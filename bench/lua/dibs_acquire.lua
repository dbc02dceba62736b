-- Acquire a fresh name with every request and never release. wrk ... -- TAG
local common = require("common")

acquired, released, bad, first_bad = 0, 0, 0, ""
setup, done = common.setup, common.done

local BODY = '{"ttl_seconds":60}'
local fresh, tail

function init(args)
  fresh = common.name_maker(args[1])
  tail = "/acquire" .. common.head(#BODY) .. BODY
end

function request()
  return "POST /locks/" .. fresh() .. tail
end

function response(status, _, body)
  if status == 200 and string.find(body, '"status":"acquired"', 1, true) then
    acquired = acquired + 1
  else
    common.note_bad(status, body)
  end
end
