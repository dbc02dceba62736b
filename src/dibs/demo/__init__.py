"""`dibs demo`: workers race for one backlog, one of them is killed, another takes over.

plan     the backlog, how long each step takes, who is to die. Pure: the same seed gives the same plan
worker   one worker, a process of its own, that claims through the SDK like any other program
ledger   what the workers did to the world, line by line. Duplicates are counted here, not in what dibs says
stage    the processes: started, listened to, killed, ended
story    what has happened so far, from what the workers tell. Pure
outcome  how it ended: the story beside the ledger. Pure
screen   the board, the log and the report as text. Pure
show     puts that text where somebody looks
play     the whole of it, from start to end
"""
