"""`dibs demo`: workers race for one backlog, one of them is killed, another takes over.

plan     the backlog, how long each step takes, which worker is killed. Pure: the same seed gives the same plan
worker   one worker, a process of its own, that claims through the SDK like any other program
ledger   a line for every side effect of the workers. Duplicates are counted here, not in the answers of dibs
stage    the processes: started, listened to, killed, ended
story    what has happened so far, from the workers' events. Pure
outcome  how it ended: the story beside the ledger. Pure
screen   the board, the log and the report as text. Pure
show     writes that text to the terminal
play     the whole demo, from start to end
"""
