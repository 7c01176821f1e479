"""RDMA by verbs: ports and GIDs, queue pairs between two processes or two hosts, operations, their loops.

``ports`` reads what a machine has, ``verbs`` hides pyverbs, ``endpoint`` is one side with its queue pairs and memory,
``loops`` are the timed loops, ``side`` runs them in a process of its own, ``pairing`` joins two sides and ``measure``
turns what they answer into samples. ``server`` and ``wire`` are the two hosts' set-up over TCP.
"""
