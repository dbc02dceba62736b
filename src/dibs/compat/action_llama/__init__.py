"""Action Llama: `rlock` and its siblings, the gateway's protocol and routes, runs, its lock tools for models."""
