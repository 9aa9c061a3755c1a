//! SandboxPool and SandboxLease: warm boxes and the local provider
