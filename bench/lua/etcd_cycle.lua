-- Put-if-absent of a fresh key, then delete it. wrk ... -- TAG LEASE CONNECTIONS
--
-- etcd's replies do not repeat the key, so nothing tells whose acquire was answered. Keys are deleted in the
-- order they were sent, `lag` behind: every connection has one request under way, so a key that far back has long
-- been answered. A delete that finds nothing counts as bad, so a wrong guess would show.
local common = require("common")
local etcd = require("etcd")

acquired, released, bad, first_bad = 0, 0, 0, ""
setup, done = common.setup, common.done

local fresh, put, delete, lag
local keys, first, last = {}, 1, 0
local put_next = true
local probed = false

function init(args)
  fresh = common.name_maker(args[1])
  put, delete = etcd.put_if_absent(args[2]), etcd.delete()
  lag = 8 * tonumber(args[3])
end

function request()
  -- wrk asks the first thread for one request that it never sends, to see what requests look like.
  if thread_id == 1 and not probed then
    probed = true
    return put(fresh())
  end
  if put_next or last - first < lag then
    put_next = false
    last = last + 1
    keys[last] = fresh()
    return put(keys[last])
  end
  put_next = true
  local key = keys[first]
  keys[first] = nil
  first = first + 1
  return delete(key)
end

function response(status, _, body)
  if status == 200 and string.find(body, '"succeeded":true', 1, true) then
    acquired = acquired + 1
  elseif status == 200 and string.find(body, '"deleted":"1"', 1, true) then
    released = released + 1
  else
    common.note_bad(status, body)
  end
end
