-- Put-if-absent of a fresh key under a lease that was granted before, one transaction each. wrk ... -- TAG LEASE
local common = require("common")
local etcd = require("etcd")

acquired, released, bad, first_bad = 0, 0, 0, ""
setup, done = common.setup, common.done

local fresh, put

function init(args)
  fresh = common.name_maker(args[1])
  put = etcd.put_if_absent(args[2])
end

function request()
  return put(fresh())
end

function response(status, _, body)
  if status == 200 and string.find(body, '"succeeded":true', 1, true) then
    acquired = acquired + 1
  else
    common.note_bad(status, body)
  end
end
