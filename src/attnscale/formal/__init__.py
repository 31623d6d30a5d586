"""The two formal languages of the ACL 2022 paper, FIRST and PARITY, as tasks for tiny transformers.

FIRST asks whether the first bit of a string is 1, PARITY whether the number of 1s is odd (Chiang and Cholak 2022,
"Overcoming a Theoretical Limitation of Self-Attention", arXiv 2202.12172). The scales are the registered attentions of
`attnscale.attention`; networks, tasks and training are here.
"""
