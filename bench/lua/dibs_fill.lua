-- Acquire COUNT fresh names with TTLs spread evenly over TTL_MIN..TTL_MAX seconds, then stop.
-- wrk -t1 ... -- TAG COUNT TTL_MIN TTL_MAX
local common = require("common")

acquired, released, bad, first_bad = 0, 0, 0, ""
setup, done = common.setup, common.done

local fresh, wanted, ttl_min, ttl_span
local sent = 0

function init(args)
  fresh = common.name_maker(args[1])
  wanted, ttl_min = tonumber(args[2]), tonumber(args[3])
  ttl_span = tonumber(args[4]) - ttl_min + 1
end

function request()
  local body = string.format('{"ttl_seconds":%d}', ttl_min + sent % ttl_span)
  sent = sent + 1
  return "POST /locks/" .. fresh() .. "/acquire" .. common.head(#body) .. body
end

function response(status, _, body)
  if status == 200 and string.find(body, '"status":"acquired"', 1, true) then
    acquired = acquired + 1
  else
    common.note_bad(status, body)
  end
  if acquired + bad >= wanted then
    wrk.thread:stop()
  end
end
