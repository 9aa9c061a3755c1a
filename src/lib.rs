//! greenroom: a runtime of supervised actors for agentic reinforcement learning.
