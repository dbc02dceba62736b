-- Request text for etcd's JSON gateway. Keys are base64 already: see common.name_maker.
local common = require("common")

local etcd = {}
local SAMPLE_KEY = string.rep("x", 24)
local VALUE = "YmVuY2gtb3duZXI=" -- "bench-owner"

function etcd.put_if_absent(lease)
  local function body(key)
    return '{"compare":[{"key":"' .. key .. '","target":"CREATE","create_revision":"0"}],'
      .. '"success":[{"request_put":{"key":"' .. key .. '","value":"' .. VALUE .. '","lease":"' .. lease .. '"}}]}'
  end
  local head = "POST /v3/kv/txn" .. common.head(#body(SAMPLE_KEY))
  return function(key)
    return head .. body(key)
  end
end

function etcd.delete()
  local function body(key)
    return '{"key":"' .. key .. '"}'
  end
  local head = "POST /v3/kv/deleterange" .. common.head(#body(SAMPLE_KEY))
  return function(key)
    return head .. body(key)
  end
end

return etcd
