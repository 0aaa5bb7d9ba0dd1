"""The questions that the comparison answers, one module for each family."""

PEERS_QUESTIONS = {
    "limits": "what can this machine do at best?",
    "start": "how soon is a server of use, and what does it cost while nothing happens?",
    "batched": "how much goes through, in batches, and what does it cost in CPU and disk?",
    "java": "what do Kafka's own Java tools show with their defaults?",
    "latency": "how long does a producer wait that sends one record at a time?",
    "end_to_end": "how old is a record when a reader has it?",
    "fan_out": "how old is a record when each of many groups has it, and what do the groups cost?",
    "connections": "what do many producers cost that each wait for their acknowledgement?",
    "recovery": "how soon is a killed server of use again, and is everything there?",
    "replicated": "what do three replicas cost?",
    "leader_kill": "how long does a writer hear nothing when its leader is killed?",
}
GROWTH = {
    "growth_partitions": "how does Penstock's cost grow with partitions, from 1 to 10,000?",
    "growth_connections": "how does Penstock's cost grow with connections, from 1 to 2,000?",
    "growth_logs": "how do start, lookup and retention of Penstock grow with logs of 1, 10 and 50 GB?",
}
QUESTIONS = PEERS_QUESTIONS | GROWTH
DEFAULT = tuple(PEERS_QUESTIONS)
